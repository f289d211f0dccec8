"""Ranks that have a GPU each, over NCCL or RCCL as CuPy brings them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.gpu import GpuDevice
from gsparse.distributed.ranks.communicator import Buffers, Communicator
from gsparse.errors import CommunicationError

__all__ = ["NcclCommunicator"]

# Seconds that NCCL may take to let go. After a rank has died inside a CUDA graph `abort` has been seen not to return.
_LET_GO = 2.0

# Bytes of ncclUniqueId.
_IDENTITY_SIZE = 128


class NcclCommunicator(Communicator):  # on GPUs only
    """One rank's end: arrays of its GPU go over NCCL on the current stream, arrays of the host over `control`.

    Exchanges run on a stream of their own, beside what is queued until they are waited for. All of it can be captured
    in a CUDA graph. NCCL tells nobody that a rank has died: `control` does, looked at while the host waits.

    Parameters
    ----------
    control : Communicator
        Of the same ranks, over which they agree on NCCL's identity; closed and aborted with this one.
    device : GpuDevice
        The rank's own.

    Raises
    ------
    CommunicationError
        Where CuPy has no NCCL, or NCCL finds no way between the GPUs.
    """

    is_queued = True

    def __init__(self, control: Communicator, device: GpuDevice) -> None:
        self.rank, self.world_size, self.timeout = control.rank, control.world_size, control.timeout
        self._control, self._device, self._cuda = control, device, device.xp.cuda
        self._nccl = nccl = import_module("cupy.cuda.nccl")
        if not nccl.available:
            raise CommunicationError("CuPy finds no NCCL: pip install nvidia-nccl-cu13 (or cu12)")
        identity = np.zeros(_IDENTITY_SIZE, np.int64)
        if self.rank == 0:
            identity[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
        control.allreduce(identity)
        self._types = {"float32": (1, nccl.NCCL_FLOAT32), "float64": (1, nccl.NCCL_FLOAT64)}
        self._types |= {"complex64": (2, nccl.NCCL_FLOAT32), "complex128": (2, nccl.NCCL_FLOAT64)}
        self._types |= {"int32": (1, nccl.NCCL_INT32), "int64": (1, nccl.NCCL_INT64)}
        with device.active():
            try:
                self._nccl_comm: Any = nccl.NcclCommunicator(
                    self.world_size, identity.astype(np.uint8).tobytes(), self.rank
                )
            except nccl.NcclError as error:
                raise CommunicationError(f"NCCL does not connect rank {self.rank}: {error}") from error
            # Above all else, so that what others wait for does not queue behind a product.
            self._stream = self._cuda.Stream(non_blocking=True, priority=-5)

    def on(self, device: Device) -> Communicator:
        return self if device is self._device else self._control.on(device)

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        if any(isinstance(a, np.ndarray) for a in (*sends.values(), *receives.values())):
            return self._control.exchange(sends, receives)
        if not sends and not receives:
            return _nothing
        caller, own = self._cuda.get_current_stream(), self._stream
        own.wait_event(caller.record(self._event()))
        self._nccl.groupStart()
        for peer, values in sends.items():
            self._nccl_comm.send(*self._buffer(values), peer, own.ptr)
        for peer, values in receives.items():
            self._nccl_comm.recv(*self._buffer(values), peer, own.ptr)
        self._nccl.groupEnd()
        done = own.record(self._event())
        return lambda: self._cuda.get_current_stream().wait_event(done)

    def allreduce(self, values: Array) -> None:
        if isinstance(values, np.ndarray):
            self._control.allreduce(values)
            return
        pointer, count, kind = self._buffer(values)
        stream = self._cuda.get_current_stream().ptr
        self._nccl_comm.allReduce(pointer, pointer, count, kind, self._nccl.NCCL_SUM, stream)

    def _event(self) -> Any:
        return self._cuda.Event(disable_timing=True)

    def _buffer(self, values: Array) -> tuple[int, int, int]:
        factor, kind = self._types[values.dtype.name]
        return values.data.ptr, factor * values.size, kind

    def check(self) -> None:
        self._control.check()
        try:
            self._nccl_comm.check_async_error()
        except self._nccl.NcclError as error:
            raise CommunicationError(f"NCCL has failed on rank {self.rank}: {error}") from error

    def abort(self, reason: str) -> None:
        self._control.abort(reason)
        self._let_go("abort")

    def close(self) -> None:
        self._control.close()
        self._let_go("destroy")

    def _let_go(self, how: str) -> None:
        """Call what ends NCCL's communicator, and wait no longer than `_LET_GO`."""
        if self._nccl_comm is None:
            return
        communicator, self._nccl_comm = self._nccl_comm, None

        def call() -> None:
            with self._device.active():
                getattr(communicator, how)()

        thread = threading.Thread(target=call, name=f"gsparse rank {self.rank} ends NCCL", daemon=True)
        thread.start()
        thread.join(_LET_GO)
        self.is_stuck = thread.is_alive()


def _nothing() -> None:
    pass
