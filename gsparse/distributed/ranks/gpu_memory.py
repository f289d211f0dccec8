"""Communicators between ranks with GPUs: through the GPUs' memory if all are in one host, or over NCCL or RCCL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.gpu import GpuDevice
from gsparse.device.locks import make_lock
from gsparse.distributed.ranks.communicator import Buffers, Communicator
from gsparse.distributed.ranks.shared_memory import MemoryCommunicator, Round, hash_of, host_hash
from gsparse.errors import CommunicationError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.exchange import Mailboxes

# Time limit, in seconds, for NCCL to end its communicator. After a rank had died inside a CUDA graph, NCCL's `abort`
# was observed not to return.
_END_TIMEOUT = 2.0

# Size of ncclUniqueId, in bytes.
_UNIQUE_ID_SIZE = 128


class NcclCommunicator(Communicator):  # on GPUs only
    """A communicator that sends arrays of the rank's GPU over NCCL, and host arrays over `control`.

    An all-reduce is queued on the current stream. An exchange runs on a separate stream, concurrently with the work of
    the current stream, until the current stream waits for the exchange. Both can be captured in a CUDA graph. NCCL does
    not report that another rank has died, so the host checks `control` while it waits.

    Parameters
    ----------
    control : Communicator
        A communicator of the same ranks for host arrays, which also transfers NCCL's unique id. `close` and `abort` of
        this communicator call the same method of `control`.
    device : GpuDevice
        The GPU of this rank.

    Raises
    ------
    CommunicationError
        If CuPy has no NCCL, or NCCL cannot connect the GPUs.
    """

    is_queued = True

    def __init__(self, control: Communicator, device: GpuDevice) -> None:
        self.rank, self.world_size, self.timeout = control.rank, control.world_size, control.timeout
        self._control, self._device, self._cuda = control, device, device.xp.cuda
        self._nccl = nccl = import_module("cupy.cuda.nccl")
        if not nccl.available:
            raise CommunicationError("CuPy finds no NCCL: pip install nvidia-nccl-cu13 (or cu12)")
        unique_id = np.zeros(_UNIQUE_ID_SIZE, np.int64)
        if self.rank == 0:
            unique_id[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
        control.allreduce(unique_id)  # All other ranks add zeros, so all ranks get the id of rank 0.
        self._types = {"float32": (1, nccl.NCCL_FLOAT32), "float64": (1, nccl.NCCL_FLOAT64)}
        self._types |= {"complex64": (2, nccl.NCCL_FLOAT32), "complex128": (2, nccl.NCCL_FLOAT64)}
        self._types |= {"int32": (1, nccl.NCCL_INT32), "int64": (1, nccl.NCCL_INT64)}
        with device.active():
            try:
                self._nccl_comm: Any = nccl.NcclCommunicator(
                    self.world_size, unique_id.astype(np.uint8).tobytes(), self.rank
                )
            except nccl.NcclError as error:
                raise CommunicationError(f"NCCL cannot connect rank {self.rank}: {error}") from error
            # A high priority, so that data for which other ranks wait are sent before a queued product runs.
            self._stream = self._cuda.Stream(non_blocking=True, priority=-5)

    def on(self, device: Device) -> Communicator:
        return self if device is self._device else self._control.on(device)

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        if any(isinstance(a, np.ndarray) for a in (*sends.values(), *receives.values())):
            return self._control.exchange(sends, receives)
        if not sends and not receives:
            return lambda: None
        caller, stream = self._cuda.get_current_stream(), self._stream
        stream.wait_event(caller.record(self._new_event()))
        self._nccl.groupStart()
        for peer, values in sends.items():
            self._nccl_comm.send(*self._buffer(values), peer, stream.ptr)
        for peer, values in receives.items():
            self._nccl_comm.recv(*self._buffer(values), peer, stream.ptr)
        self._nccl.groupEnd()
        done = stream.record(self._new_event())
        return lambda: self._cuda.get_current_stream().wait_event(done)

    def allreduce(self, values: Array) -> None:
        if isinstance(values, np.ndarray):
            self._control.allreduce(values)
            return
        pointer, count, kind = self._buffer(values)
        stream = self._cuda.get_current_stream().ptr
        self._nccl_comm.allReduce(pointer, pointer, count, kind, self._nccl.NCCL_SUM, stream)

    def _new_event(self) -> Any:
        return self._cuda.Event(disable_timing=True)

    def _buffer(self, values: Array) -> tuple[int, int, int]:
        """Return what NCCL needs of an array: its address, the number of NCCL's elements, and NCCL's type."""
        factor, kind = self._types[values.dtype.name]
        return values.data.ptr, factor * values.size, kind

    def check(self, ranks: Sequence[int] | None = None) -> None:
        self._control.check(ranks)
        try:
            self._nccl_comm.check_async_error()
        except self._nccl.NcclError as error:
            raise CommunicationError(f"NCCL has failed on rank {self.rank}: {error}") from error

    def abort(self, reason: str) -> None:
        self._control.abort(reason)
        self._end_nccl("abort")

    def close(self) -> None:
        self._control.close()
        self._end_nccl("destroy")

    def _end_nccl(self, method: str) -> None:
        """Call a method that ends NCCL's communicator, in a thread, and wait at most `_END_TIMEOUT` for its end."""
        if self._nccl_comm is None:
            return
        communicator, self._nccl_comm = self._nccl_comm, None

        def call() -> None:
            with self._device.active():
                getattr(communicator, method)()

        thread = threading.Thread(target=call, name=f"gsparse rank {self.rank} ends NCCL", daemon=True)
        thread.start()
        thread.join(_END_TIMEOUT)
        self.is_stuck = thread.is_alive()


# Size of half a box (`gsparse.kernels.exchange`), in 64-bit words. Each word holds 32 bits of the message, so half a
# box holds 2 MiB.
_HALF_WORDS = 1 << 19
# The size of cudaIpcMemHandle_t, in bytes.
_HANDLE_SIZE = 64


class SharedGpuCommunicator(MemoryCommunicator):
    """The communicator for groups in which several ranks use the same GPU.

    Without CUDA's Multi-Process Service, a GPU runs the kernels of one process at a time, in time slices of about 2 ms.
    A kernel that waited for another process on the same GPU would waste the rest of its time slice. So a rank tells the
    others over `control` that it has written its messages, and only then do they start the kernels that read the
    messages. Sums are computed over `control`. Calls wait for the GPU, so they cannot be part of a CUDA graph.
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
    """Return the fastest communicator between ranks that have GPUs. All ranks must call this together.

    Ranks that are processes of one host communicate through the memory of their GPUs if possible. Otherwise, the ranks
    communicate over NCCL if each rank has its own GPU. If ranks share a GPU, the result is `control`.

    Raises
    ------
    CommunicationError
        If NCCL is needed, but CuPy does not have NCCL, or NCCL cannot connect the GPUs.
    """
    assert isinstance(device, GpuDevice)
    own = host_hash(), hash_of(device.bus), os.getpid(), device.xp.cuda.runtime.is_hip
    table = control.table(np.array(own, np.int64))
    num_ranks, (num_hosts, _, num_processes, _) = len(table), (np.unique(column).size for column in table.T)
    has_own_gpus = np.unique(table[:, :2], axis=0).shape[0] == num_ranks
    # On AMD, a running kernel is not guaranteed to see the writes of another GPU. A process cannot open memory that the
    # process itself has exported, so boxes do not work for ranks that are threads of one process.
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
        Whether this rank could open the memory of all other ranks.
    """

    def __init__(self, control: Communicator, device: GpuDevice) -> None:
        self._device, self._rank, self._world_size = device, control.rank, control.world_size
        self._runtime, self._opened = device.xp.cuda.runtime, dict[int, int]()
        self._control, self._address, self.are_open = control, 0, False

    def connect(self) -> None:
        """Allocate this rank's boxes, and open the boxes of other ranks. All ranks must call this together."""
        handle, failure = bytes(_HANDLE_SIZE), self._runtime.CUDARuntimeError
        with self._device.active():
            with suppress(failure):  # no memory is left, or this driver cannot share it
                self._address = _memory_pool.take(self._device, self._nbytes)
                handle = self._runtime.ipcGetMemHandle(self._address)
            handles = self._control.table(np.frombuffer(handle, np.int64))
            if handles.any(axis=1).all():  # a rank that has no memory to share sends a handle of zeros
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
        """Return the boxes at an address as an array with the axes (rank, half, word)."""
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
    """Memory for boxes. The memory is reused, but never freed, because other processes may still have it open."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._unused: dict[tuple[int, int], list[int]] = {}

    def take(self, device: GpuDevice, nbytes: int) -> int:
        """Return the address of zeroed memory."""
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
