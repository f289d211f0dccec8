"""The dense arrays that callers pass, which products read without a copy, and results in arrays of the same library."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from queue import SimpleQueue
from typing import Any, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.cupy import import_cupy
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError


class ReleaseQueue:
    """A thread that holds objects until events have happened, and then drops them.

    Examples
    --------
    >>> import threading
    >>> class Event(threading.Event):
    ...     synchronize = threading.Event.wait
    >>> class Dropped(threading.Event):
    ...     __del__ = lambda self: print("dropped")
    >>> event, queue = Event(), ReleaseQueue()
    >>> queue.put(event, Dropped())
    >>> event.set(); queue.join()
    dropped
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[tuple[Any, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gsparse-release", daemon=True)
        self._thread.start()

    def put(self, event: Any, held: Any) -> None:
        """Hold an object until ``event.synchronize()`` returns."""
        self._items.put((event, held))

    def join(self) -> None:
        """Let the thread end when the queue is empty, and wait for it."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            item = self._items.get()
            if item is None:
                return
            with suppress(Exception):  # After an error on the GPU, no kernel reads any more.
                item[0].synchronize()
            del item  # now, and not when the next item arrives


class _Owner:
    """The owner of the memory of CuPy arrays, for CuPy. It lives as long as the last of these arrays."""


@cache
def _release_queue() -> ReleaseQueue:  # on GPUs only
    return ReleaseQueue()


def kept_until_read(view: Array) -> Array:  # on GPUs only
    """Return a CuPy array over the memory of `view`, a CuPy array whose memory belongs to another library.

    The returned array and its slices keep `view` alive. After the last of them has been dropped, `view` is still kept
    until all work that was queued by then, on the stream that is current in this call, has ended.
    """
    if not view.size:
        return view
    cuda, owner = import_cupy().cuda, _Owner()
    weakref.finalize(owner, _release, view, cuda.get_current_stream()).atexit = False
    memory = cuda.UnownedMemory(view.data.ptr, view.nbytes, owner, view.device.id)
    return type(view)(view.shape, view.dtype, cuda.MemoryPointer(memory, 0), view.strides)


def _release(view: Array, stream: Any) -> None:  # on GPUs only
    with view.device:
        event = import_cupy().cuda.Event(block=True, disable_timing=True)
        event.record(stream)
    _release_queue().put(event, view)


# DLPack's numbers for memory that kernels can use: CUDA, ROCm, CUDA managed.
_GPU_MEMORY = (2, 10, 13)

# The packages whose arrays are used as they are.
_OWN_PACKAGES = ("numpy", "cupy", "cupyx")


@dataclass(frozen=True)
class Library:
    """How arrays of another library are converted to NumPy or CuPy arrays over the same memory, and back.

    Parameters
    ----------
    exporter : str, optional
        The ``module:function`` that converts a NumPy or CuPy array to an array of the library. If it is empty, results
        are arrays of NumPy or CuPy.
    prepare : callable, optional
        A function that is applied to arrays of the library first, if it cannot share all of them as they are.
    reuses_memory_on : callable, optional
        ``reuses_memory_on(stream)`` returns whether memory that the library frees is only reused by later work on this
        CUDA stream. Then the memory need not be kept.
    """

    exporter: str = ""
    prepare: Callable[[Any], Any] = lambda array: array
    reuses_memory_on: Callable[[int], bool] = lambda stream: False

    def import_array(self, array: Any) -> Array:
        """Return a NumPy array, or a CuPy array if the memory is a GPU's, over the memory of an array of the library.

        Raises
        ------
        TypeError
            If a tensor of PyTorch requires a gradient, outside of ``torch.no_grad()``.
        DtypeError
            If NumPy or CuPy does not have the dtype (bfloat16), or the array is not dense.
        DeviceError
            If the memory is a GPU's and CuPy is not installed.
        """
        array = self.prepare(array)
        try:
            return self._on_gpu(array) if is_on_gpu(array) else _on_host(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, DeviceError):
                raise
            raise DtypeError(
                f"a product takes dense numbers that NumPy or CuPy can read, not this {type(array).__name__}: {error}"
            ) from error

    def _on_gpu(self, array: Any) -> Array:
        cupy = import_cupy()
        view = cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)
        return view if self.reuses_memory_on(cupy.cuda.get_current_stream().ptr) else kept_until_read(view)

    def export_array(self, array: Array) -> Any:
        """Return an array of the library over the memory of an array of NumPy or CuPy."""
        if not self.exporter:
            return array
        module, _, function = self.exporter.partition(":")
        return getattr(import_module(module), function)(array)


def is_on_gpu(array: Any) -> bool:
    """Return whether an array is in the memory of a GPU, according to the array's own protocols."""
    dlpack_device = getattr(array, "__dlpack_device__", None)
    return hasattr(array, "__cuda_array_interface__") if dlpack_device is None else dlpack_device()[0] in _GPU_MEMORY


def _on_host(array: Any) -> Array:
    return np.asarray(array) if _has_numpy_interface(array) else np.from_dlpack(array)


def _has_numpy_interface(array: Any) -> bool:
    """Return whether `numpy.asarray` converts the array to an array of numbers, instead of wrapping the object."""
    return hasattr(array, "__array__") or hasattr(array, "__array_interface__")


def _without_gradient(tensor: Any) -> Any:
    """Return a tensor without gradient, with lazy conjugation and negation applied.

    Raise an error if it needs a gradient.
    """
    if tensor.requires_grad and import_module("torch").is_grad_enabled():
        raise TypeError(
            "the tensor requires a gradient, which a product would lose: use gsparse.torch.matmul(A, x) or "
            "gsparse.torch.solve(A, b), or pass x.detach()"
        )
    return tensor.detach().resolve_conj().resolve_neg()


def _is_stream_of_torch(stream: int) -> bool:  # on GPUs only
    return bool(import_module("torch").cuda.current_stream().cuda_stream == stream)


# The libraries, by the package in which the class of their arrays is defined.
LIBRARIES = {
    "torch": Library("torch:from_dlpack", _without_gradient, _is_stream_of_torch),
    "jaxlib": Library("jax.dlpack:from_dlpack"),
    "numba": Library("numba.cuda:as_cuda_array"),
}
_OTHERS = Library()


def library_of(array: Any) -> Library | None:
    """Return the library of an array; None if NumPy or CuPy read it directly, or only `numpy.asarray` accepts it.

    Examples
    --------
    >>> library_of([1.0, 2.0]) is None
    True
    """
    library = _library_of_class(cast(Hashable, type(array)))
    return None if library is _OTHERS and not is_on_gpu(array) and _has_numpy_interface(array) else library


def as_own_array(array: Any) -> Any:
    """Convert an array of another library to NumPy or CuPy. Return any other object unchanged."""
    library = library_of(array)
    return array if library is None else library.import_array(array)


@lru_cache(maxsize=256)
def _library_of_class(cls: Any) -> Library | None:
    packages = [base.__module__.partition(".")[0] for base in cls.__mro__]
    for package in packages:
        if package in LIBRARIES or package in _OWN_PACKAGES:
            return LIBRARIES.get(package)
    return _OTHERS if hasattr(cls, "__dlpack__") or hasattr(cls, "__cuda_array_interface__") else None


@dataclass(frozen=True, slots=True)
class DenseInput:
    """A dense vector or block of columns from a caller, as an array of NumPy or CuPy.

    Attributes
    ----------
    array : array
        A NumPy array, or a CuPy array if the memory is on a GPU. It shares memory with the caller's array.
    gpu : Device or None
        The GPU that holds the memory; None for an array on the host.
    library : Library or None
        The library of the caller's array; None for NumPy and CuPy.
    """

    array: Array
    gpu: Device | None = None
    library: Library | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def is_on_host(self) -> bool:
        """Whether the array is on the host."""
        return self.gpu is None

    def flat(self, device: Device, dtype: np.dtype[Any], columns: int) -> Array:
        """Return the columns, one after the other, as a contiguous vector of `dtype` on a device. May synchronize.

        `columns` is the number of columns: 1 for a vector. The result shares memory with the caller's array if no copy
        is necessary.
        """
        by_columns = self.array.reshape(self.array.shape[0], columns).T
        if device.owns(self.array):
            return device.xp.ascontiguousarray(by_columns.astype(dtype, copy=False)).reshape(-1)
        host = by_columns if self.gpu is None else self.gpu.download(by_columns)
        return device.upload(np.ascontiguousarray(host.astype(dtype, copy=False)).reshape(-1))

    def returned(self, result: Array) -> Any:
        """Return a NumPy or CuPy result as an array of the caller's library, over the same memory."""
        return result if self.library is None else self.library.export_array(result)

    def copy_back(self, device: Device, result: Array) -> Array:
        """Return a contiguous result of `device` on the side of the caller's array. May synchronize."""
        return result if device.owns(self.array) else device.download_vector(result)


def parse_dense(x: Any) -> DenseInput:
    """Parse a dense array from a caller. A `DenseInput` is returned unchanged.

    Raises
    ------
    TypeError
        If a tensor of PyTorch requires a gradient, outside of ``torch.no_grad()``.
    DtypeError
        If neither NumPy nor CuPy can read the dtype or the layout.
    DeviceError
        If the memory is a GPU's and CuPy is not installed.

    Examples
    --------
    >>> parse_dense([1.0, 2.0]).shape
    (2,)
    """
    if isinstance(x, DenseInput):
        return x
    if type(x) is np.ndarray:
        return DenseInput(x)
    library = library_of(x)
    array = x if library is None else library.import_array(x)
    gpu = device_of(array)
    # `asarray` also turns an `np.matrix` into a plain array.
    return DenseInput(np.asarray(array) if gpu is None else array, gpu, library)
