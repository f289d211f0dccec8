"""Communicators between ranks that have GPUs: through memory of the GPUs of one host, or over NCCL.

Each process opens the memory of the other processes (CUDA's interprocess communication), even if they use the same GPU.
Messages then go over NVLink where the GPUs have it. This needs neither NCCL nor copies in host memory, except for sums
over ranks that share a GPU.

References
----------
NVIDIA, "CUDA C++ programming guide", section "Interprocess communication".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.gpu import GpuDevice
from gsparse.device.locks import make_lock
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.nccl import NcclCommunicator
from gsparse.distributed.ranks.shared_memory import MemoryCommunicator, Round, hash_of, host_hash
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.exchange import Mailboxes

# Size of half a box (`gsparse.kernels.exchange`), in words of 64 bits. Each word has 32 bits of the message, so half a
# box has room for 2 MiB.
_HALF_WORDS = 1 << 19
# The size of cudaIpcMemHandle_t, in bytes.
_HANDLE_SIZE = 64


class SharedGpuCommunicator(MemoryCommunicator):
    """The communicator of ranks of which several use the same GPU.

    Without CUDA's Multi-Process Service, a GPU runs the kernels of one process at a time, in time slices of about 2 ms.
    A kernel that waited for another process on the same GPU would waste the rest of its time slice. So ranks tell each
    other over `control` that a message has been written, and the kernel that reads it starts only then. Sums are
    computed over `control`. Calls wait for the GPU, so they cannot be part of a CUDA graph.
    """

    def __init__(
        self, control: Communicator, device: Device, mailboxes: Mailboxes, release: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(control, device, mailboxes, release)
        self.is_queued = self.uses_second_stream = False

    def _post(self, messages: Round) -> Callable[[], None]:
        super()._post(messages)
        self._device.synchronize()
        received = {peer: np.empty(1, np.uint8) for peer in messages.peers}
        return self._control.exchange({peer: np.ones(1, np.uint8) for peer in messages.peers}, received)

    def allreduce(self, values: Array) -> None:
        through_host = self._control.on(self._device) if self._device.owns(values) else self._control
        through_host.allreduce(values)


def connect_gpus(control: Communicator, device: Device) -> Communicator:  # on GPUs only
    """Return the fastest communicator between ranks that have GPUs. All ranks call this together.

    If all ranks are processes of one host, they communicate through the memory of their GPUs where this is possible.
    Otherwise they communicate over NCCL if each rank has a GPU of its own. If ranks share a GPU, the result is
    `control`.

    Raises
    ------
    CommunicationError
        If NCCL is needed and CuPy does not have it, or it cannot connect the GPUs.
    """
    assert isinstance(device, GpuDevice)
    own = host_hash(), hash_of(device.bus), os.getpid(), device.xp.cuda.runtime.is_hip
    table = control.table(np.array(own, np.int64))
    num_ranks, (num_hosts, _, num_processes, _) = len(table), (np.unique(column).size for column in table.T)
    has_own_gpus = np.unique(table[:, :2], axis=0).shape[0] == num_ranks
    # On AMD, a running kernel is not guaranteed to see what another GPU writes. A process cannot open its own memory,
    # so ranks that are threads of one process do not communicate in this way.
    if num_hosts == 1 and num_processes == num_ranks and not table[:, 3].any():
        boxes = _GpuBoxes(control, device)
        with ExitStack() as unless_used:
            unless_used.callback(boxes.close)
            boxes.connect()
            if control.table([boxes.are_open]).all():
                kind = MemoryCommunicator if has_own_gpus else SharedGpuCommunicator
                communicator = kind(control, device, boxes.mailboxes(), boxes.close)
                unless_used.pop_all()
                return communicator
    return NcclCommunicator(control, device) if has_own_gpus else control


class _GpuBoxes:
    """The boxes of all ranks in the memory of their GPUs.

    Attributes
    ----------
    are_open : bool
        Whether this rank could open the memory of all others.
    """

    def __init__(self, control: Communicator, device: GpuDevice) -> None:
        self._device, self._rank, self._world_size = device, control.rank, control.world_size
        self._runtime, self._opened = device.xp.cuda.runtime, dict[int, int]()
        self._control, self._address, self.are_open = control, 0, False

    def connect(self) -> None:
        """Allocate this rank's boxes, and open those of the other ranks, which all call this method too."""
        handle, failure = bytes(_HANDLE_SIZE), self._runtime.CUDARuntimeError
        with self._device.active():
            with suppress(failure):  # no memory is left, or this driver cannot share it
                self._address = _memory_pool.take(self._device, self._nbytes)
                handle = self._runtime.ipcGetMemHandle(self._address)
            handles = self._control.table(np.frombuffer(handle, np.int64))
            if handles.any(axis=1).all():  # a handle of zeros comes from a rank that has no memory to share
                with suppress(failure):  # the GPUs cannot read each other's memory
                    for peer in (peer for peer in range(self._world_size) if peer != self._rank):
                        self._opened[peer] = self._runtime.ipcOpenMemHandle(handles[peer].tobytes())
        self.are_open = len(self._opened) == self._world_size - 1

    @property
    def _nbytes(self) -> int:
        return 8 * 2 * _HALF_WORDS * self._world_size

    def mailboxes(self) -> Mailboxes:
        addresses = {**self._opened, self._rank: self._address}
        memory = [self._array(addresses[peer]) for peer in range(self._world_size)]
        theirs = [boxes[self._rank] for boxes in memory]
        return kernels_of(self._device).exchange.Mailboxes(self._device, self._rank, theirs, list(memory[self._rank]))

    def _array(self, address: int) -> Array:
        """Return the boxes at an address as an array with the axes rank, half and word."""
        cuda = self._device.xp.cuda
        memory = cuda.UnownedMemory(address, self._nbytes, self, self._device.index)
        shape = self._world_size, 2, _HALF_WORDS
        return self._device.xp.ndarray(shape, np.uint64, cuda.MemoryPointer(memory, 0))

    def close(self) -> None:
        with self._device.active():
            self._runtime.deviceSynchronize()  # kernels of this rank may still read and write boxes
            while self._opened:
                self._runtime.ipcCloseMemHandle(self._opened.popitem()[1])
        if self._address:
            _memory_pool.put(self._device, self._nbytes, self._address)
            self._address = 0


class _MemoryPool:
    """Memory for boxes. It is never freed, because other processes may still have it open, but it is reused."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._unused: dict[tuple[int, int], list[int]] = {}

    def take(self, device: GpuDevice, nbytes: int) -> int:
        """Return the address of memory full of zeros."""
        runtime = device.xp.cuda.runtime
        with self._lock:
            unused = self._unused.setdefault((device.index, nbytes), [])
            address: int = unused.pop() if unused else runtime.malloc(nbytes)
        runtime.memset(address, 0, nbytes)
        runtime.deviceSynchronize()
        return address

    def put(self, device: GpuDevice, nbytes: int, address: int) -> None:
        with self._lock:
            self._unused[device.index, nbytes].append(address)


_memory_pool = _MemoryPool()
