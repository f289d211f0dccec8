"""Dense arrays as callers pass them, parsed once where they enter, and results as arrays of the same library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.interchange import Library, library_of
from gsparse.device.select import device_of


@dataclass(frozen=True, slots=True)
class DenseInput:
    """A vector or a block of columns that a caller has passed, as an array of NumPy or CuPy.

    Attributes
    ----------
    array : array
        A NumPy array, or a CuPy array if the memory is a GPU's. An array of another library shares its memory.
    gpu : Device or None
        The GPU that holds the memory; None for an array on the host.
    library : Library or None
        The library of the caller's array, if that is neither NumPy nor CuPy.
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
        """Return the columns, one after the other, in a contiguous vector of `dtype` on a device. May synchronize.

        `columns` is the number of columns: 1 for a vector.
        The vector shares memory with the caller's array if nothing has to be copied.
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
        """Return a contiguous result of `device` on the caller's side, host or device. May synchronize."""
        return result if device.owns(self.array) else device.download_vector(result)


def parse_dense(x: Any) -> DenseInput:
    """Parse anything that a caller passes as a dense array. A `DenseInput` is returned unchanged.

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
