"""Dense arrays as callers pass them: parsed once, where they enter, and results returned in the same kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.interchange import Library, library_of
from gsparse.device.select import device_of

__all__ = ["DenseInput", "parse_dense"]


@dataclass(frozen=True, slots=True)
class DenseInput:
    """A vector or a block of columns of the caller: NumPy's, CuPy's, or another library's over the same memory.

    Attributes
    ----------
    array : array
        A NumPy array, or a CuPy array for memory of a GPU.
    home : Device or None
        The GPU that holds the memory; None for an array of the host.
    library : Library or None
        The library whose arrays the caller uses, where that is neither NumPy nor CuPy.
    """

    array: Array
    home: Device | None = None
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
        """Whether the memory is the host's."""
        return self.home is None

    def flat(self, device: Device, dtype: np.dtype[Any], columns: int) -> Array:
        """Return the columns one after the other in a contiguous vector of `dtype` on a device.

        The vector shares memory with the caller's array where nothing has to be copied.
        """
        by_columns = self.array.reshape(-1, columns).T
        if device.owns(self.array):
            return device.xp.ascontiguousarray(by_columns.astype(dtype, copy=False)).reshape(-1)
        host = by_columns if self.home is None else self.home.download(by_columns)
        return device.upload(np.ascontiguousarray(host.astype(dtype, copy=False)).reshape(-1))

    def returned(self, result: Array) -> Any:
        """Return a NumPy or CuPy result as an array of the caller's library, over the same memory."""
        return result if self.library is None else self.library.give(result)

    def moved_back(self, device: Device, result: Array) -> Array:
        """Return a contiguous result of `device` in the memory where the caller's array lives. May synchronize."""
        return result if device.owns(self.array) else device.download_vector(result)


def parse_dense(x: Any) -> DenseInput:
    """Parse whatever a caller passes as a dense array; an input that is parsed already is returned as it is.

    Raises
    ------
    TypeError
        Where a tensor of another library asks for a gradient.
    DtypeError
        For dtypes and layouts that neither NumPy nor CuPy can read.
    DeviceError
        For memory of a GPU where there is no CuPy.

    Examples
    --------
    >>> parse_dense([1.0, 2.0]).shape
    (2,)
    """
    if isinstance(x, DenseInput):
        return x
    library = library_of(x)
    array = x if library is None else library.take(x)
    home = device_of(array)
    # `asarray` also turns an `np.matrix` into a plain array.
    return DenseInput(np.asarray(array) if home is None else array, home, library)
