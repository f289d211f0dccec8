"""Where arrays live: array module, lanes of a warp, stream, kernels, and copies to and from the host."""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse._typing import HOST_ONLY, Array
from gsparse.errors import DeviceError, DeviceMemoryError, DtypeError

__all__ = ["CpuDevice", "Device", "GpuDevice", "device_of", "get_device"]

DEVICE_VARIABLE = "GSPARSE_DEVICE"

# Rows of a slice of blocked ELLPACK on the CPU: a slice's sums stay in registers and cache. 32 beat 8 by a tenth on
# 7-point problems.
CPU_LANES = 32

# Timings of which `Device.seconds_of` takes the median, and products of one timing on a GPU.
_TIMINGS = 5
_PRODUCTS_PER_GRAPH = 10

_NOTHING = nullcontext()

# Returns once what it is given says that something is done.
Wait = Callable[[Callable[[], bool]], None]


class Device(ABC):
    """What every layer above asks of the place where arrays live.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
    name : str
        As `get_device` takes it: "cpu", "gpu:0".
    lanes : int
        Threads of a warp: 32 on NVIDIA, 64 on AMD's CDNA; the rows of a slice of blocked ELLPACK.
    multiprocessors : int
        What blocks of a GPU run on; 1 elsewhere.
    xp : module
        NumPy or CuPy.
    """

    kind: str
    name: str
    lanes: int
    multiprocessors: int = 1
    xp: Any

    @property
    @abstractmethod
    def kernels(self) -> Any:
        """The backend module: `gsparse.kernels.cpu` or `gsparse.kernels.gpu`."""

    @abstractmethod
    def owns(self, array: object) -> bool:
        """Tell whether `array` is an array of this device."""

    @abstractmethod
    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Give a device array with the contents of a host array; the same memory where the host is the device."""

    @abstractmethod
    def download(self, array: Array) -> npt.NDArray[Any]:
        """Give a new, writable host array with the contents of a device array. Synchronizes."""

    @abstractmethod
    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        """Give a product's result to a caller on the host. Synchronizes."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate on this device, which has to be active."""
        return self.xp.empty(shape, dtype)

    def takes(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        """Tell whether a product can be computed as it is, and this device is active.

        That is, `x` and `out` (if it is not None) are contiguous vectors of this device, of the sizes that a matrix of
        this shape takes and gives and of this dtype, and do not overlap.
        """
        if not self._is_vector(x, shape[1], dtype):
            return False
        return out is None or (self._is_vector(out, shape[0], dtype) and not np.may_share_memory(x, out))

    def takes_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        """Tell the same of several columns of so many elements, which lie in any order and are more than one."""
        is_array = type(X) is np.ndarray and X.ndim == 2 and X.dtype == dtype
        return is_array and X.shape[0] == num_rows and X.shape[1] > 1

    @staticmethod
    def _is_vector(array: Any, size: int, dtype: np.dtype[Any]) -> bool:
        return type(array) is np.ndarray and array.shape == (size,) and array.dtype == dtype and array.flags.carray

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Allocate on this device, which is active; None where that fails."""
        return np.empty(shape, dtype)

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        """Give a compiled GPU kernel; only GPUs have any."""
        raise DeviceError(f"{self.name} has no GPU kernels (asked for {expression} of {source})")

    def active(self) -> AbstractContextManager[Any]:
        """Make this the current device within the block."""
        return _NOTHING

    def memory_guard(self) -> AbstractContextManager[Any]:
        """Turn the array module's out-of-memory error into `DeviceMemoryError` and leave its pool usable."""
        return _NOTHING

    def synchronize(self) -> None:
        """Wait for the work on the caller's current stream; the host's own work has no queue."""
        return

    def identity(self) -> str:
        """Name the hardware and what drives it, for verdicts that are kept on disk."""
        return f"{platform.machine()} {platform.processor()} {os.cpu_count()}"

    def timed(self, call: Callable[[], None]) -> Callable[[], float | None]:
        """Run a call and give a function that tells the seconds it took; None while they are not known yet."""
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        return lambda: seconds

    def seconds_of(self, call: Callable[[], None]) -> float:
        """Give the time one call keeps the device busy: the median of several. Synchronizes."""
        call()
        return statistics.median(self.timed(call)() or 0.0 for _ in range(_TIMINGS))

    def is_capturing(self) -> bool:
        """Tell whether what is launched now goes into a CUDA graph instead of being run."""
        return False

    def stream_key(self) -> Hashable:
        """Tell streams apart: what runs under one key runs one after the other."""
        return threading.get_ident()

    def aside(self) -> AbstractContextManager[Any]:
        """Do what is within the block at once, also while the caller's stream is being captured. Synchronizes."""
        return _NOTHING

    def apart(self) -> AbstractContextManager[Any]:
        """Queue what is within the block on a stream of its own, after what the caller's stream has and before more."""
        return _NOTHING

    def recorded(self, call: Callable[[], None]) -> Callable[[], None]:
        """Give a function that queues again all that `call` queues: on a GPU a CUDA graph, launched at once.

        Within `apart`; `call` must neither wait nor allocate.
        """
        return call

    def peek(self, array: Array, wait: Wait | None = None) -> Callable[[], npt.NDArray[Any]]:
        """Queue a copy of a small array to the host, and give a function that waits for it and gives the copy.

        Where `wait` is given, it is called to do the waiting, with what tells whether the copy has been made.
        """
        copy = self.download(array)
        return lambda: copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], Device], tuple[str]]:
        return get_device, (self.name,)


class _Memory:
    """The memory of a host array, for NumPy to make another array of."""

    def __init__(self, owner: npt.NDArray[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = owner.__array_interface__


def alias_of(owner: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give the memory of a host array under another name.

    The alias and all its views hold one reference to the owner between them, so whoever counts the owner's references
    (`gsparse.mirror`) sees the users', not ours.
    """
    return np.asarray(_Memory(owner))


class CpuDevice(Device):
    """The host itself: NumPy arrays, threaded numba kernels."""

    kind = "cpu"
    name = "cpu"
    lanes = CPU_LANES
    xp = np

    @cached_property
    def kernels(self) -> ModuleType:
        return import_module("gsparse.kernels.cpu")

    def owns(self, array: object) -> bool:
        return isinstance(array, np.ndarray)

    def upload(self, host: npt.NDArray[Any]) -> Array:
        return alias_of(np.ascontiguousarray(host))

    def download(self, array: Array) -> npt.NDArray[Any]:
        return np.array(array)

    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        return np.asarray(array)


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
    def kernels(self) -> ModuleType:
        return import_module("gsparse.kernels.gpu")

    @cached_property
    def staging(self) -> Any:
        """Pinned buffers for this device's copies, made when first needed."""
        return import_module("gsparse.staging").Staging(self.xp)

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
        return _NOTHING if is_current else self.xp.cuda.Device(self.index)

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
        with self.xp.cuda.Stream(non_blocking=True) as stream:
            call()
            stream.begin_capture()
            for _ in range(_PRODUCTS_PER_GRAPH):
                call()
            graph = stream.end_capture()
            found = []
            for _ in range(_TIMINGS):
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
        with self.xp.cuda.Stream(non_blocking=True) as stream:
            yield
            stream.synchronize()  # synchronizes

    @contextmanager
    def apart(self) -> Iterator[None]:
        caller = self.xp.cuda.get_current_stream()
        with self.xp.cuda.Stream(non_blocking=True) as stream:
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


SOURCE_FOLDER = Path(__file__).parent / "kernels" / "gpu" / "src"


@cache
def kernel_source(name: str) -> str:
    """Read a CUDA source with its headers inlined: a file's name, or the text of one written at run time.

    CuPy's disk cache keys on source and options, not on headers found through -I: inlined, a changed header is a
    changed source.
    """
    seen: set[str] = set()

    def expand(file: str) -> str:
        seen.add(file)
        lines = []
        text = (SOURCE_FOLDER / file).read_text() if file.endswith((".cu", ".cuh", ".h")) else file
        for line in text.splitlines():
            header = line.removeprefix('#include "').removesuffix('"') if line.startswith('#include "') else ""
            if not (SOURCE_FOLDER / header).is_file():
                lines.append("" if line == "#pragma once" else line)
            elif header not in seen:
                lines.append(expand(header))
        return "\n".join(lines)

    return expand(name)


def compile_options(lanes: int) -> tuple[str, ...]:
    """Give the compiler options all kernels share."""
    return ("-std=c++17", f"-DGS_WARP={lanes}")


def compile_kernel(cupy: Any, lanes: int, source: str, expression: str) -> Callable[..., None]:
    """Compile one instantiation for the current device through NVRTC or hipRTC; CuPy keeps it on disk."""
    module = cupy.RawModule(code=kernel_source(source), options=compile_options(lanes), name_expressions=[expression])
    kernel: Callable[..., None] = module.get_function(expression)
    return kernel


def import_cupy() -> Any:
    """Import CuPy and make sure that it sees a GPU.

    Raises
    ------
    DeviceError
        Saying what is missing and how to get it.
    """
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            "a GPU was asked for, but CuPy is not installed: pip install 'gsparse[cuda13]' (or cuda12, rocm), "
            "or use device='cpu'"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its runtime's own error types, which need the runtime to be named
        raise DeviceError(f"a GPU was asked for, CuPy found no driver or GPU ({error}); use device='cpu'") from error
    if count == 0:
        raise DeviceError("a GPU was asked for, but CuPy found none; use device='cpu'")
    return cupy


@cache
def _gpu(index: int) -> GpuDevice:
    return GpuDevice(index)


@lru_cache(maxsize=1)
def _cpu() -> CpuDevice:
    return CpuDevice()


@lru_cache(maxsize=1)
def _gpu_available() -> bool:
    try:
        import_cupy()
    except DeviceError:
        return False
    return True


def get_device(name: str | Device | None = None) -> Device:
    """Give a device by name.

    Parameters
    ----------
    name : {"auto", "cpu", "gpu", "gpu:N"} or Device, optional
        "auto" is the current GPU where there is one, else the CPU. "cuda", "hip" and "rocm" are other words for "gpu".
        Without a name, the environment variable ``GSPARSE_DEVICE``, else "auto".

    Raises
    ------
    DeviceError
        Where the name is unknown or the device is not there.

    Examples
    --------
    >>> from gsparse.device import get_device
    >>> get_device("cpu")
    <CpuDevice cpu>
    """
    if isinstance(name, Device):
        return name
    wanted = name or os.environ.get(DEVICE_VARIABLE) or "auto"
    kind, _, index = str(wanted).lower().partition(":")
    if kind == "cpu" and not index:
        return _cpu()
    if kind == "auto" and not index:
        return current_gpu() if _gpu_available() else _cpu()
    if kind in ("gpu", "cuda", "hip", "rocm") and (not index or index.isdecimal()):
        return _gpu(int(index)) if index else current_gpu()
    raise DeviceError(f"unknown device {wanted!r}: use 'auto', 'cpu', 'gpu' or 'gpu:N'")


def current_gpu() -> GpuDevice:
    """Give CuPy's current device."""
    return _gpu(import_cupy().cuda.runtime.getDevice())


def device_of(array: object) -> Device | None:
    """Give the GPU a CuPy array (or CuPy sparse matrix) lives on; None for anything of the host."""
    if isinstance(array, np.ndarray):
        return None
    package = type(array).__module__.partition(".")[0]
    if package not in ("cupy", "cupyx"):
        return None
    holder = array if package == "cupy" else getattr(array, "data", None)  # (cupyx: a sparse matrix)
    found = getattr(holder, "device", None)
    return None if found is None else _gpu(found.id)
