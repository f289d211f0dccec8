"""A communicator between ranks that have a GPU each, over the NCCL or RCCL that CuPy provides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.gpu import GpuDevice
from gsparse.distributed.ranks.communicator import Buffers, Communicator
from gsparse.errors import CommunicationError

# Time limit, in seconds, for NCCL to end its communicator. NCCL's `abort` has been observed not to return after a rank
# had died inside a CUDA graph.
_END_TIMEOUT = 2.0

# Size of ncclUniqueId, in bytes.
_UNIQUE_ID_SIZE = 128


class NcclCommunicator(Communicator):  # on GPUs only
    """The communicator of one rank that sends the arrays of its GPU over NCCL, and host arrays over `control`.

    An all-reduce is queued on the current stream. An exchange runs on a stream of its own, concurrently with the work
    that the current stream does until it waits for the exchange. Both can be captured in a CUDA graph. NCCL does not
    report that another rank has died, so the host checks `control` while it waits.

    Parameters
    ----------
    control : Communicator
        A communicator of the same ranks for host arrays. The ranks agree on NCCL's unique id over it. It is closed and
        aborted with this one.
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
        control.allreduce(unique_id)  # a sum with zeros: all ranks get the id of rank 0
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
            # A high priority, so that data for which other ranks wait do not queue behind a product.
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
        """Return the address of an array, its number of elements, and their type, as NCCL takes them."""
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
        """Call a method that ends NCCL's communicator, in a thread, and wait for it for `_END_TIMEOUT` at most."""
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
