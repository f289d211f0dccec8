"""Arrays of other libraries: multiplied where they lie, without a copy, and answered with arrays of the same library.

What NumPy or CuPy can look at without a copy is taken: DLPack, the CUDA array interface, ``__array__``. CuPy and the
other library wait for each other's streams, as both protocols ask of them.
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
from gsparse.errors import DeviceError, DtypeError

__all__ = ["LIBRARIES", "Library", "library_of", "taken"]

# DLPack's numbers for memory that a GPU computes in: CUDA, ROCm, CUDA managed.
_GPU_MEMORY = (2, 10, 13)

# Ours, and what has always been taken by `numpy.asarray` and answered with NumPy arrays.
_NO_GUESTS = ("numpy", "cupy", "cupyx")


@dataclass(frozen=True)
class Library:
    """What products need of a library to take its arrays and to give some.

    Parameters
    ----------
    giver : str, optional
        ``module:function`` that makes one of its arrays of one of ours, over the same memory. Without it, ours is
        given.
    ready : callable, optional
        Makes an array of the library one that it lets others look at.
    """

    giver: str = ""
    ready: Callable[[Any], Any] = lambda array: array

    def take(self, array: Any) -> Array:
        """Give a NumPy array, or a CuPy array for memory of a GPU, over the same memory.

        Raises
        ------
        TypeError
            Where a tensor asks for a gradient.
        DtypeError
            For dtypes that NumPy or CuPy do not have, as bfloat16, and for layouts that are not dense.
        DeviceError
            For memory of a GPU where there is no CuPy.
        """
        array = self.ready(array)
        try:
            return _on_gpu(array) if is_on_gpu(array) else _on_host(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, DeviceError):
                raise
            raise DtypeError(
                f"a product takes dense numbers that NumPy or CuPy can read, not this {type(array).__name__}: {error}"
            ) from error

    def give(self, array: Array) -> Any:
        """Give an array of the library over the memory of one of ours."""
        if not self.giver:
            return array
        module, _, function = self.giver.partition(":")
        return getattr(import_module(module), function)(array)


def is_on_gpu(array: Any) -> bool:
    """Tell whether an array says that it lies in memory of a GPU."""
    where = getattr(array, "__dlpack_device__", None)
    return hasattr(array, "__cuda_array_interface__") if where is None else where()[0] in _GPU_MEMORY


def _on_gpu(array: Any) -> Array:
    cupy = import_cupy()
    return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)


def _on_host(array: Any) -> Array:
    return np.asarray(array) if _is_numpys(array) else np.from_dlpack(array)


def _is_numpys(array: Any) -> bool:
    """Tell whether `numpy.asarray` makes an array of it that holds numbers, not the object."""
    return hasattr(array, "__array__") or hasattr(array, "__array_interface__")


def _without_gradient(tensor: Any) -> Any:
    """Give a tensor as plain memory: values conjugated or negated lazily are computed. Refuse to lose a gradient."""
    if tensor.requires_grad and import_module("torch").is_grad_enabled():
        raise TypeError(
            "the tensor requires a gradient, which a product would lose: multiply within a torch.autograd.Function "
            "whose backward is A.H @ gradient (see examples/graph_neural_network.py), or multiply x.detach()"
        )
    return tensor.detach().resolve_conj().resolve_neg()


# By the package that an array's class comes from.
LIBRARIES = {
    "torch": Library("torch:from_dlpack", _without_gradient),
    "jaxlib": Library("jax.dlpack:from_dlpack"),
    "numba": Library("numba.cuda:as_cuda_array"),
}
_OTHERS = Library()


def library_of(array: Any) -> Library | None:
    """Give the library that an array is of; None for NumPy's, CuPy's, and what only `numpy.asarray` understands.

    Examples
    --------
    >>> library_of([1.0, 2.0]) is None
    True
    """
    found = _library_of_class(cast(Hashable, type(array)))
    return None if found is _OTHERS and not is_on_gpu(array) and _is_numpys(array) else found


def taken(array: Any) -> Any:
    """Give an array of another library as NumPy's or CuPy's, and anything else as it is."""
    library = library_of(array)
    return array if library is None else library.take(array)


@lru_cache(maxsize=256)
def _library_of_class(cls: Any) -> Library | None:
    packages = [base.__module__.partition(".")[0] for base in cls.__mro__]
    for package in packages:
        if package in LIBRARIES or package in _NO_GUESTS:
            return LIBRARIES.get(package)
    return _OTHERS if hasattr(cls, "__dlpack__") or hasattr(cls, "__cuda_array_interface__") else None
