"""A GPU as a device, used through CuPy: streams, graphs, copies, and kernels that are compiled from source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.compilation import KernelStore, compile_kernel, recorded_kernels, runs_together
from gsparse.device.cupy import import_cupy
from gsparse.device.dtypes import HOST_ONLY, Array, in_native_order
from gsparse.device.gpu_streams import GpuStreams
from gsparse.device.launching import DriverKernel, bind_call, driver_launch
from gsparse.device.memory import Staging, Wait
from gsparse.device.streams import NO_CONTEXT, TO_DEVICE, TO_HOST
from gsparse.errors import DeviceError, DeviceMemoryError, DtypeError
from gsparse.profiling import recording
from gsparse.profiling.recording import recorded_copy


class GpuDevice(GpuStreams, Device):  # on GPUs only
    """One GPU, used through CuPy: CUDA on NVIDIA, HIP on AMD (where each GCD is a GPU).

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
        super().__init__(cupy)
        self.index = index
        self.name = f"gpu:{index}"
        self.xp = cupy
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        # Device().attributes["WarpSize"] is wrong on HIP.
        self.lanes = int(properties["warpSize"])
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.description = properties["name"].decode()
        self.bus = str(cupy.cuda.Device(index).pci_bus_id)
        self._array, self._current_device = cupy.ndarray, cupy.cuda.runtime.getDevice
        self.kernels = KernelStore(partial(_compiled, self))
        self._expected: set[tuple[str, Any, Any]] = set()
        self._launch = driver_launch(cupy)

    @cached_property
    def shared_memory(self) -> int:  # type: ignore[override]
        properties = self.xp.cuda.runtime.getDeviceProperties(self.index)
        return int(properties.get("sharedMemPerMultiprocessor") or properties["sharedMemPerBlock"])

    @cached_property
    def runs_blocks_together(self) -> bool:  # type: ignore[override]
        # CuPy has no cooperative launches on HIP.
        is_hip = self.xp.cuda.runtime.is_hip
        return not is_hip and bool(self.xp.cuda.Device(self.index).attributes.get("CooperativeLaunch"))

    @cached_property
    def staging(self) -> Any:
        """Pinned buffers for copies between host and device."""
        return Staging(self.xp)

    def owns(self, array: object) -> bool:
        return isinstance(array, self.xp.ndarray) and array.device.id == self.index

    def can_read_vectors(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        # Every product calls this function, so it reads the attributes that are fastest to read, and each only once.
        # Reading `flags` alone would take a third of the time of all these attributes.
        cls, index, itemsize = self._array, self.index, dtype.itemsize
        num_rows, num_cols = shape
        contiguous = (itemsize,)
        if type(x) is not cls or x.size != num_cols or x.dtype != dtype or x.strides != contiguous:
            return False
        memory = x.data
        if memory.device_id != index or self._current_device() != index:
            return False
        if out is None:
            return True
        if type(out) is not cls or out.size != num_rows or out.dtype != dtype or out.strides != contiguous:
            return False
        target = out.data
        distance = memory.ptr - target.ptr
        return target.device_id == index and not -itemsize * num_cols < distance < itemsize * num_rows

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return self._array(shape, dtype)  # cupy.empty makes the same call, but takes twice as long.

    def fill_bytes(self, array: Array, byte: int) -> None:
        array.data.memset_async(byte, array.nbytes)

    def can_read_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        if type(X) is not self._array or X.ndim != 2 or X.dtype != dtype:
            return False
        rows, columns = X.shape
        is_on_device: bool = X.data.device_id == self.index == self._current_device()
        return is_on_device and rows == num_rows and columns > 0

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        try:
            return self._array(shape, dtype)
        except MemoryError:  # of CuPy's allocator, or of the one that the user has set, such as RMM's
            return None

    @recorded_copy(TO_DEVICE)
    def upload(self, host: npt.NDArray[Any]) -> Array:
        if host.dtype.char in HOST_ONLY:
            raise DtypeError(f"{host.dtype} has no device arithmetic and stays on the host: use astype(float)")
        with self.active(), _MemoryGuard(self):
            return self.staging.upload(np.ascontiguousarray(in_native_order(host)))

    @recorded_copy(TO_HOST)
    def download(self, array: Array) -> npt.NDArray[Any]:
        with self.active():
            # `asnumpy` would copy a strided array within its own ``with stream:`` block, which `on_stream` explains.
            array = array if array.flags.c_contiguous else self.xp.ascontiguousarray(array)
            return self.xp.asnumpy(array)  # type: ignore[no-any-return]  # synchronizes

    @recorded_copy(TO_HOST)
    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        with self.active():
            return self.staging.download(array)  # type: ignore[no-any-return]  # synchronizes

    def record_event(self) -> Any:
        with self.active():
            return super().record_event()

    def host_array(self, size: int, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Array]:
        cuda, nbytes = self.xp.cuda, size * dtype.itemsize
        with self.active():
            pinned = cuda.alloc_pinned_memory(nbytes)
        host: npt.NDArray[Any] = np.frombuffer(pinned, dtype, size)
        host[:] = 0
        memory = cuda.UnownedMemory(pinned.ptr, nbytes, pinned, self.index)
        return host, self._array(size, dtype, cuda.MemoryPointer(memory, 0))

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        return self.kernels.get(source, expression)

    def compile_ahead(self, routine: str, dtype: npt.DTypeLike, index_dtype: npt.DTypeLike) -> None:
        key = routine, np.dtype(dtype), np.dtype(index_dtype)
        if key not in self._expected:
            self._expected.add(key)
            self.kernels.begin(recorded_kernels(*key))

    def compile_together(self, source: str, expressions: Sequence[str]) -> None:
        self.kernels.begin((source, each) for each in expressions)

    def bind_kernel(
        self, source: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]
    ) -> Callable[..., None]:
        kernel = self.kernel(source, expression)
        bind = kernel.bind if isinstance(kernel, DriverKernel) else partial(bind_call, kernel)
        return bind(grid, block, args)

    def bind_product(
        self,
        source: str,
        expression: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        dtype: npt.DTypeLike = float,
        shared_bytes: int = 0,
    ) -> Callable[..., None]:
        kernel = self.kernel(source, expression)
        if isinstance(kernel, DriverKernel):
            return kernel.bind_product(grid, block, args, np.dtype(dtype), shared_bytes)
        return bind_call(kernel, grid, block, args, shared_bytes)

    def active(self) -> AbstractContextManager[Any]:
        is_current = self.xp.cuda.runtime.getDevice() == self.index
        return NO_CONTEXT if is_current else self.xp.cuda.Device(self.index)

    def memory_guard(self) -> AbstractContextManager[Any]:
        guard = _MemoryGuard(self)
        return guard if recording.recorder is None else recording.block(self, guard)

    def identity(self) -> str:
        runtime = self.xp.cuda.runtime
        return (
            f"{self.description} {runtime.driverGetVersion()} {runtime.runtimeGetVersion()} CuPy {self.xp.__version__}"
        )

    def read_async(self, array: Array, wait: Wait | None = None) -> Callable[[], npt.NDArray[Any]]:
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
    """The context manager of `Device.memory_guard`. It is a class because a generator would slow each product down."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        device, cupy = self._device, self._device.xp
        # RMM's errors are C++ exceptions of this name, and so are those of CuPy's sorts, which allocate in Thrust.
        is_from_cpp = isinstance(error, MemoryError) and str(error).startswith("std::bad_alloc")
        if not is_from_cpp and not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            return
        with device.active():
            cupy.get_default_memory_pool().free_all_blocks()
            free, total = cupy.cuda.runtime.memGetInfo()
        raise DeviceMemoryError(
            f"{device.name} is out of memory: {error}; free now {free:,} of {total:,} bytes. "
            "Drop arrays that are no longer needed, call A.release(), or choose a format with less padding."
        ) from error


def _compiled(device: GpuDevice, source: str, expression: str) -> Callable[..., None]:
    """Compile a kernel, and return an object that launches it: `kernel(grid, block, args)`."""
    with device.active():
        kernel = compile_kernel(device.xp, device.lanes, source, expression)
        if device._launch is None or runs_together(source):
            return kernel
        return DriverKernel(device.xp, kernel, device.index, device._launch)


@cache
def gpu_device(index: int) -> GpuDevice:  # on GPUs only
    """Return the device of one GPU. Each call returns the same object.

    Parameters
    ----------
    index : int
        CuPy's device number.
    """
    return GpuDevice(index)
