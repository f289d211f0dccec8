"""Arrays of other libraries, which products read without a copy, and results as arrays of the same library.

NumPy or CuPy must be able to read the array without a copy: through DLPack, the CUDA array interface or ``__array__``.
CuPy and the other library wait for each other's streams, as the protocols require. The memory of an array that is read
on another stream than its library's stays allocated until it has been read (`gsparse.device.foreign_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

import numpy as np

from gsparse.device.cupy import import_cupy
from gsparse.device.dtypes import Array
from gsparse.device.foreign_memory import kept_until_read
from gsparse.errors import DeviceError, DtypeError

# DLPack's numbers for memory in which a GPU computes: CUDA, ROCm, CUDA managed.
_GPU_MEMORY = (2, 10, 13)

# The packages whose arrays are read directly.
_OWN_PACKAGES = ("numpy", "cupy", "cupyx")


@dataclass(frozen=True)
class Library:
    """How arrays of another library become arrays of NumPy or CuPy over the same memory, and back.

    Parameters
    ----------
    exporter : str, optional
        The ``module:function`` that makes an array of the library from an array of NumPy or CuPy. Without it, results
        are arrays of NumPy or CuPy.
    prepare : callable, optional
        Applied to an array of the library first, if the library does not share every array as it is.
    reuses_memory_on : callable, optional
        ``reuses_memory_on(stream)`` returns whether the library gives memory that it frees only to later work on this
        stream of CUDA.
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
    """Return whether the memory of an array is a GPU's, according to the array's own protocols."""
    dlpack_device = getattr(array, "__dlpack_device__", None)
    return hasattr(array, "__cuda_array_interface__") if dlpack_device is None else dlpack_device()[0] in _GPU_MEMORY


def _on_host(array: Any) -> Array:
    return np.asarray(array) if _has_numpy_interface(array) else np.from_dlpack(array)


def _has_numpy_interface(array: Any) -> bool:
    """Return whether `numpy.asarray` makes an array of the numbers, and not of the object itself."""
    return hasattr(array, "__array__") or hasattr(array, "__array_interface__")


def _without_gradient(tensor: Any) -> Any:
    """Return a tensor as plain memory, with lazy conjugation and negation applied. Refuse one with a gradient."""
    if tensor.requires_grad and import_module("torch").is_grad_enabled():
        raise TypeError(
            "the tensor requires a gradient, which a product would lose: use gsparse.torch.matmul(A, x) or "
            "gsparse.torch.solve(A, b), or pass x.detach()"
        )
    return tensor.detach().resolve_conj().resolve_neg()


def _is_stream_of_torch(stream: int) -> bool:  # on GPUs only
    return bool(import_module("torch").cuda.current_stream().cuda_stream == stream)


# The libraries by the package of the array's class.
LIBRARIES = {
    "torch": Library("torch:from_dlpack", _without_gradient, _is_stream_of_torch),
    "jaxlib": Library("jax.dlpack:from_dlpack"),
    "numba": Library("numba.cuda:as_cuda_array"),
}
_OTHERS = Library()


def library_of(array: Any) -> Library | None:
    """Return the library of an array, or None if it is read directly or only `numpy.asarray` understands it.

    Examples
    --------
    >>> library_of([1.0, 2.0]) is None
    True
    """
    library = _library_of_class(cast(Hashable, type(array)))
    return None if library is _OTHERS and not is_on_gpu(array) and _has_numpy_interface(array) else library


def as_own_array(array: Any) -> Any:
    """Return an array of another library as an array of NumPy or CuPy, and anything else unchanged."""
    library = library_of(array)
    return array if library is None else library.import_array(array)


@lru_cache(maxsize=256)
def _library_of_class(cls: Any) -> Library | None:
    packages = [base.__module__.partition(".")[0] for base in cls.__mro__]
    for package in packages:
        if package in LIBRARIES or package in _OWN_PACKAGES:
            return LIBRARIES.get(package)
    return _OTHERS if hasattr(cls, "__dlpack__") or hasattr(cls, "__cuda_array_interface__") else None
