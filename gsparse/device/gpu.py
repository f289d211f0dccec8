"""A GPU behind CuPy: streams, graphs, copies, and kernels compiled from source."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import NOTHING, TIMINGS, Device, Wait
from gsparse.device.compilation import compile_kernel
from gsparse.device.cupy import import_cupy
from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.staging import Staging
from gsparse.errors import DeviceError, DeviceMemoryError, DtypeError

__all__ = ["GpuDevice", "gpu_device", "on_stream"]

# Products of one timing.
_PRODUCTS_PER_GRAPH = 10


@contextmanager
def on_stream(cupy: Any, stream: Any) -> Iterator[None]:
    """Make a stream of the current device current within the block, and afterwards the one that was current before.

    CuPy's own ``with stream:`` returns to the stream of the enclosing ``with`` block, and so forgets a stream that the
    caller chose with ``stream.use()``. It is entered nevertheless, because CuPy enters it too (to copy strided arrays
    to the host), and must then return to `stream`.
    """
    caller = cupy.cuda.get_current_stream()
    try:
        with stream:
            yield
    finally:
        caller.use()


class GpuDevice(Device):  # on GPUs only
    """One GPU behind CuPy: CUDA on NVIDIA, HIP on AMD (a GCD is a GPU).

    Parameters
    ----------
    index : int
        CuPy's device number.
    """

    kind = "gpu"

    def __init__(self, index: int = 0) -> None:
        cupy = import_cupy()
        count = cupy.cuda.runtime.getDeviceCount()
        if not 0 <= index < count:
            raise DeviceError(f"'gpu:{index}' was asked for, CuPy sees {count} GPU(s): use gpu:0 to gpu:{count - 1}")
        self.index = index
        self.name = f"gpu:{index}"
        self.xp = cupy
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        # Not Device().attributes["WarpSize"], which is wrong on HIP.
        self.lanes = int(properties["warpSize"])
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.description = properties["name"].decode()
        self.bus = str(cupy.cuda.Device(index).pci_bus_id)
        self._array, self._current_device = cupy.ndarray, cupy.cuda.runtime.getDevice
        # The default streams are numbers, not addresses; the last of them, one a thread, has the same for all threads.
        self._current_stream, self._last_named_stream = cupy.cuda.get_current_stream, cupy.cuda.runtime.streamPerThread
        self._out_of_memory = cupy.cuda.memory.OutOfMemoryError
        self._kernels: dict[tuple[str, str], Callable[..., None]] = {}

    @cached_property
    def staging(self) -> Any:
        """Pinned buffers for this device's copies, made when first needed."""
        return Staging(self.xp)

    def owns(self, array: object) -> bool:
        return isinstance(array, self.xp.ndarray) and array.device.id == self.index

    def takes(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        # On the way of every product: attributes that cost least, and nothing asked twice.
        cls, index = self._array, self.index
        if type(x) is not cls or x.size != shape[1] or x.ndim != 1 or x.dtype != dtype or not x.flags.c_contiguous:
            return False
        memory = x.data
        if memory.device_id != index or self._current_device() != index:
            return False
        if out is None:
            return True
        if type(out) is not cls or out.size != shape[0] or out.ndim != 1 or out.dtype != dtype:
            return False
        target = out.data
        apart = memory.ptr - target.ptr
        return target.device_id == index and bool(out.flags.c_contiguous) and not -x.nbytes < apart < out.nbytes

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return self._array(shape, dtype)  # (cupy.empty, which ends here, takes twice as long)

    def takes_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        if type(X) is not self._array or X.ndim != 2 or X.dtype != dtype:
            return False
        rows, columns = X.shape
        is_here: bool = X.data.device_id == self.index == self._current_device()
        return is_here and rows == num_rows and columns > 1

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        try:
            return self._array(shape, dtype)
        except self._out_of_memory:
            return None

    def upload(self, host: npt.NDArray[Any]) -> Array:
        if host.dtype.char in HOST_ONLY:
            raise DtypeError(f"{host.dtype} has no device arithmetic and stays on the host: use astype(float)")
        with self.active(), self.memory_guard():
            return self.staging.upload(np.ascontiguousarray(host))

    def download(self, array: Array) -> npt.NDArray[Any]:
        with self.active():
            # CuPy would make a strided array contiguous within a ``with stream:`` of its own, see `on_stream`.
            array = array if array.flags.c_contiguous else self.xp.ascontiguousarray(array)
            return self.xp.asnumpy(array)  # type: ignore[no-any-return]  # synchronizes

    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        with self.active():
            return self.staging.download(array)  # type: ignore[no-any-return]  # synchronizes

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        found = self._kernels.get((source, expression))
        if found is None:
            with self.active():
                found = compile_kernel(self.xp, self.lanes, source, expression)
            self._kernels[source, expression] = found
        return found

    def active(self) -> AbstractContextManager[Any]:
        is_current = self.xp.cuda.runtime.getDevice() == self.index
        return NOTHING if is_current else self.xp.cuda.Device(self.index)

    def memory_guard(self) -> AbstractContextManager[Any]:
        return _MemoryGuard(self)

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()  # synchronizes

    def identity(self) -> str:
        runtime = self.xp.cuda.runtime
        return (
            f"{self.description} {runtime.driverGetVersion()} {runtime.runtimeGetVersion()} CuPy {self.xp.__version__}"
        )

    def timed(self, call: Callable[[], None]) -> Callable[[], float | None]:
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        call()
        end.record()
        return lambda: 1e-3 * self.xp.cuda.get_elapsed_time(begin, end) if end.done else None

    def seconds_of(self, call: Callable[[], None]) -> float:
        # Captured: called one by one, small products would all take as long as their call.
        self.synchronize()  # synchronizes
        stream = self.xp.cuda.Stream(non_blocking=True)
        with on_stream(self.xp, stream):
            call()
            stream.begin_capture()
            for _ in range(_PRODUCTS_PER_GRAPH):
                call()
            graph = stream.end_capture()
            found = []
            for _ in range(TIMINGS):
                seconds = self.timed(lambda: graph.launch(stream))
                stream.synchronize()  # synchronizes
                found.append((seconds() or 0.0) / _PRODUCTS_PER_GRAPH)
        return statistics.median(found)

    def is_capturing(self) -> bool:
        stream = self.xp.cuda.get_current_stream()
        return bool(stream.ptr and stream.is_capturing())  # (the default stream, 0, never is)

    def stream_key(self) -> Hashable:
        stream = self._current_stream()
        pointer: int = stream.ptr
        if pointer <= self._last_named_stream:
            return (threading.get_ident(), pointer) if pointer == self._last_named_stream else pointer
        # What is captured runs whenever its graph is launched, beside anything else.
        return object() if stream.is_capturing() else pointer

    @contextmanager
    def aside(self) -> Iterator[None]:
        stream = self.xp.cuda.Stream(non_blocking=True)
        with on_stream(self.xp, stream):
            yield
            stream.synchronize()  # synchronizes

    @contextmanager
    def apart(self) -> Iterator[None]:
        caller, stream = self.xp.cuda.get_current_stream(), self.xp.cuda.Stream(non_blocking=True)
        with on_stream(self.xp, stream):
            stream.wait_event(caller.record())
            try:
                yield
            finally:
                caller.wait_event(stream.record())

    def recorded(self, call: Callable[[], None]) -> Callable[[], None]:
        stream = self.xp.cuda.get_current_stream()
        stream.begin_capture()
        try:
            call()
        finally:
            graph = stream.end_capture()
        return lambda: graph.launch(stream)

    def peek(self, array: Array, wait: Wait | None = None) -> Callable[[], npt.NDArray[Any]]:
        memory = self.xp.cuda.alloc_pinned_memory(array.nbytes)
        copy: npt.NDArray[Any] = np.frombuffer(memory, array.dtype, array.size)
        array.get(out=copy, blocking=False)
        event = self.xp.cuda.get_current_stream().record()

        def finish() -> npt.NDArray[Any]:
            if wait is not None:
                wait(lambda: bool(event.done))
            event.synchronize()  # synchronizes
            return copy

        return finish

    def __reduce__(self) -> tuple[Callable[[int], Device], tuple[int]]:
        return gpu_device, (self.index,)


class _MemoryGuard:  # on GPUs only
    """See `Device.memory_guard`; entered on every product, so it is no generator."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        device, cupy = self._device, self._device.xp
        if not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            return
        with device.active():
            cupy.get_default_memory_pool().free_all_blocks()
            free, total = cupy.cuda.runtime.memGetInfo()
        raise DeviceMemoryError(
            f"{device.name} is out of memory: {error}; free now {free:,} of {total:,} bytes. "
            "Drop arrays that are no longer needed, call A.release(), or choose a format with less padding."
        ) from error


@cache
def gpu_device(index: int) -> GpuDevice:  # on GPUs only
    """Return the device of one GPU: the same object each time.

    Parameters
    ----------
    index : int
        CuPy's device number.
    """
    return GpuDevice(index)
