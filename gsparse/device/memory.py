"""The arrays of a device: allocation, copies to and from the host, and what products can read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array

# A function that calls its argument until that returns True, and then returns.
Wait = Callable[[Callable[[], bool]], None]


class Memory(ABC):
    """The arrays of a device.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    """

    xp: Any

    @abstractmethod
    def owns(self, array: object) -> bool:
        """Return whether `array` is an array of this device."""

    @abstractmethod
    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Return a device array with the contents of a host array. May synchronize.

        If the device is the host, both share memory, unless the host array has to be copied to become contiguous. On a
        GPU, the host array may be changed after this call, and arrays of extended precision raise DtypeError.
        """

    @abstractmethod
    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a new, writable host array with the contents of a device array. Synchronizes."""

    @abstractmethod
    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        """Return a contiguous result as a host array for the caller; the array itself on a CPU. Synchronizes."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate an array on this device, which must be the current device."""
        return self.xp.empty(shape, dtype)

    def no_values(self, dtype: np.dtype[Any]) -> Array:
        """Return an array without elements, the same each time for one dtype."""
        return self._no_values(dtype)

    @cached_property
    def _no_values(self) -> Callable[[np.dtype[Any]], Array]:
        return cache(partial(self.empty, 0))

    def fill_bytes(self, array: Array, byte: int) -> None:
        """Set each byte of a contiguous array."""
        array.view(np.uint8).fill(byte)

    def map_values(self, function: Callable[[Array], Array], values: Array) -> Array:
        """Return ``function(values)`` for a function of `xp` that maps each element of a one-dimensional array."""
        return function(values)

    @abstractmethod
    def can_read_vectors(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        """Return whether a product can be computed without converting `x` or `out`, and this device is current.

        For that, `x` and `out` (if it is not None) have to be contiguous vectors on this device, of this dtype and of
        the sizes that a matrix of this shape requires, and must not overlap.
        """

    @abstractmethod
    def can_read_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        """Return whether X has columns, of `num_rows` elements, and can be read without conversion.

        X may be row-major, column-major or strided. This device must be current.
        """

    @abstractmethod
    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Allocate an array on this device, which must be the current device.

        Return None if the memory of a GPU does not suffice. On a CPU, NumPy raises MemoryError.
        """

    def host_array(self, size: int, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Array]:
        """Allocate an array in host memory that kernels can write. Return it as an array of the host and of the device.

        It is made of zeros.
        """
        array = np.zeros(size, dtype)
        return array, array

    def read_async(self, array: Array, wait: Wait | None = None) -> Callable[[], npt.NDArray[Any]]:
        """Queue a copy of a small array to the host, and return a function that waits for the copy and returns it.

        The optional `wait` does the waiting. Its argument is a function that returns whether the copy has been made.
        """
        copy = self.download(array)
        return lambda: copy


class _MemoryOf:
    """The memory of a host array, from which NumPy makes another array."""

    def __init__(self, owner: npt.NDArray[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = owner.__array_interface__


def address_of(array: Array) -> int:
    """Return the address of the first element of an array, of the host or of a device."""
    pointer = getattr(array.data, "ptr", None)  # of a CuPy array
    return int(array.ctypes.data if pointer is None else pointer)


def alias_of(owner: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return another array over the memory of a host array.

    The alias and all its views together hold one reference to `owner`. So `gsparse.matrix.loans` can count the
    references to `owner` in order to find out whether a user still holds it.
    """
    return np.asarray(_MemoryOf(owner))
