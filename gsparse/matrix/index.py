"""Parse the key of ``A[key]`` as SciPy does: the selected numbers of each axis, and the shape of the selection.

Indices are arrays of the host or of the device of the matrix, and stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import index as as_integer
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import DeviceError
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.sparse_operations import csr_of, is_sparse
from gsparse.sparse.canonical import without_zeros

# If the index is on the host and selects at most this number of places, they are listed on the host, because one upload
# takes less time than several operations on the device.
FEW_PLACES = 4096

# The selected numbers of an axis: one number, a slice as a range, or an array of int64 of one or two dimensions.
Axis = int | range | Array


@dataclass(frozen=True, eq=False)
class Index:
    """The parsed key of ``A[key]``.

    Attributes
    ----------
    axes : tuple
        An `Axis` for each dimension of the matrix. All numbers are in range, and none is negative.
    shape : tuple of int
        The shape of the selection, including the axes of length 1 that None in the key adds.
    is_distinct : bool
        Whether the key has only slices, numbers and masks, so that no place is selected twice.
    on_device : bool
        Whether the key has an array of a GPU. If so, single entries are returned in an array of the GPU.
    """

    axes: tuple[Axis, ...]
    shape: tuple[int, ...]
    is_distinct: bool
    on_device: bool

    @property
    def arrays(self) -> list[Array]:
        """Those elements of `axes` that are arrays."""
        return [axis for axis in self.axes if not isinstance(axis, int | range)]


def parse_index(matrix: MatrixLike, key: Any) -> Index:
    """Parse a key. Synchronizes if it contains arrays of a GPU.

    Raises
    ------
    IndexError
        If the key is no index, has too many parts, or selects what is out of range.
    ValueError
        If a number is not of an integer type, although its value is whole, such as 1.0.
    DeviceError
        If a part of the key lives on a GPU, and the matrix does not live there.
    """
    axes: list[Axis] = []
    lengths: list[int] = []
    fixed: list[int] = []  # the axes whose part of the key is no slice
    is_distinct, on_device = True, False
    parts = _one_for_each_axis(matrix, key)
    for number, part in enumerate(parts):
        first = len(axes)
        if part is None:
            lengths.append(1)
        elif isinstance(part, slice):
            numbers = range(*part.indices(matrix.shape[first]))
            axes.append(numbers)
            lengths.append(len(numbers))
        elif isinstance(part, int):
            axes.append(_checked_number(part, matrix.shape[first]))
            fixed.append(first)
        else:
            on_device = on_device or device_of(part) is not None
            if part.dtype.kind == "b":
                axes += _places_of(matrix, part, number, first)
            else:
                is_distinct = False
                axes.append(_checked_numbers(matrix.device, part, matrix.shape[first]))
            fixed += range(first, len(axes))
    arrays = [axis for axis in axes if not isinstance(axis, int | range)]
    if arrays:
        lengths[fixed[0] : fixed[0]] = _broadcast_shape(arrays)
    return Index(tuple(axes), tuple(lengths), is_distinct, on_device)


def _broadcast_shape(arrays: list[Array]) -> tuple[int, ...]:
    if len(arrays) == 1:  # `numpy.broadcast_shapes` takes several microseconds
        return tuple(arrays[0].shape)
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shapes = " ".join(str(array.shape) for array in arrays)
        raise IndexError(
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {shapes}"
        ) from None


# ----------------------------------------------------------------------------------------------------------- parts


def _one_for_each_axis(matrix: MatrixLike, key: Any) -> list[Any]:
    """Return the parts of a key, with full slices added for missing axes. A mask of two dimensions is one part."""
    parts = [_as_part(matrix, part) for part in (key if isinstance(key, tuple) else (key,))]
    num_ellipses = sum(part is Ellipsis for part in parts)
    if num_ellipses > 1:
        raise IndexError("an index can only have a single ellipsis")
    taken = sum(_num_axes(part) for part in parts)
    if taken > matrix.ndim:
        raise IndexError(
            f"Too many indices for array or tuple index out of range. Key {key} needs {taken}D. Array is {matrix.ndim}D"
        )
    place = next((number for number, part in enumerate(parts) if part is Ellipsis), len(parts))
    rest = [slice(None)] * (matrix.ndim - taken)
    return [*parts[:place], *rest, *parts[place + num_ellipses :]]


def _num_axes(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if getattr(part, "dtype", None) == np.dtype(bool) else 1


def _as_part(matrix: MatrixLike, part: Any) -> Any:
    """Return a part of a key as None, an ellipsis, a slice, an int, an array or a sparse matrix of booleans."""
    if part is None or part is Ellipsis or isinstance(part, slice | int):
        return int(part) if isinstance(part, int) else part
    if isinstance(part, np.ndarray) and part.ndim:
        return _as_array(part)
    if is_sparse(part):
        if part.dtype == bool:
            return part
        raise IndexError(
            "Indexing with sparse matrices is not supported except boolean indexing where matrix and index are equal "
            "shapes."
        )
    if device_of(part) is not None:  # on GPUs only
        if device_of(part) is not matrix.device:
            raise DeviceError(f"the matrix lives on {matrix.device.name}, the index does not: bring one to the other")
        return part if part.ndim else _as_part(matrix, part.get())
    try:
        return as_integer(part)
    except TypeError:
        array = _as_array(part)
    if not array.ndim and _is_whole(array[()]):
        raise ValueError("Inexact indices into sparse matrices are not allowed")
    return array  # Other objects are refused later, after the parts have been counted.


def _is_whole(part: Any) -> bool:
    try:
        return bool(int(part) == part)
    except (TypeError, ValueError):
        return False


def _as_array(part: Any) -> Array:
    try:
        array = np.asarray(part)
    except (ValueError, TypeError, MemoryError) as error:
        raise IndexError("invalid index") from error
    if array.ndim and array.dtype.kind not in "biuf":
        raise IndexError(f"an index takes integers, slices and booleans, got {array.dtype}")
    return array


# --------------------------------------------------------------------------------------------------------- places


def list_places(device: Device, rows: Array, columns: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return rows and columns, broadcast to a shape, as vectors on the device.

    `rows` and `columns` may be on the host or on the device.
    """
    parts = (rows, columns)
    if all(isinstance(part, np.ndarray) for part in parts) and prod(shape) <= FEW_PLACES:
        i, j = device.upload(np.stack([np.broadcast_to(part, shape).reshape(-1) for part in parts]))
        return i, j
    xp = device.xp
    i, j = (device.upload(part) if isinstance(part, np.ndarray) else part for part in parts)
    i, j = (xp.ascontiguousarray(xp.broadcast_to(part, shape).reshape(-1)) for part in (i, j))
    return i, j


# -------------------------------------------------------------------------------------------------------- numbers


def _checked_number(number: int, size: int) -> int:
    if not -size <= number < size:
        raise IndexError(f"index ({number}) out of range")
    return number + size if number < 0 else number


def _checked_numbers(device: Device, numbers: Array, size: int) -> Array:
    """Return numbers as int64. Negative numbers, which count from the end, become positive."""
    if numbers.ndim not in (1, 2):
        raise IndexError(f"Index dimension must be 1 or 2. Got {numbers.ndim}")
    flat = numbers.reshape(-1) if numbers.dtype.kind in "iu" else numbers.reshape(-1).astype(np.int64)
    if isinstance(numbers, np.ndarray) and numbers.size <= FEW_PLACES:
        # Large unsigned numbers would become negative ones.
        checked = _from_start(flat if flat.dtype.kind == "u" else flat.astype(np.int64, copy=False), size)
        checked = None if checked is None else checked.astype(np.int64, copy=False)
    else:
        with device.active(), device.memory_guard():
            on_device = device.upload(flat) if isinstance(numbers, np.ndarray) and not device.is_host else flat
            checked = kernels_of(device).sparse_rows.numbers_from_start(device, on_device, size)  # synchronizes
    if checked is None:
        low, high = int(numbers.min()), int(numbers.max())  # synchronizes
        raise IndexError(f"index ({high if high >= size else low}) out of range")
    return checked.reshape(numbers.shape)


def _from_start(numbers: Array, size: int) -> Array | None:
    """Make negative numbers, which count from the end, positive. Return None if a number is out of range."""
    if not numbers.size:
        return numbers
    low = numbers.min()
    if low < -size or numbers.max() >= size:
        return None
    return np.where(numbers < 0, numbers + size, numbers) if low < 0 else numbers


def _places_of(matrix: MatrixLike, mask: Any, number: int, first: int) -> tuple[Array, ...]:
    """Return the coordinates of the elements of a mask that are true, in arrays of int64."""
    shape = matrix.shape[first : first + mask.ndim]
    if mask.shape != shape:
        raise IndexError(f"bool index {number} has shape {mask.shape} instead of {shape}")
    if not is_sparse(mask):
        with matrix.device.active():
            return tuple(numbers.astype(np.int64, copy=False) for numbers in mask.nonzero())  # synchronizes
    device, csr = matrix.device, csr_of(matrix, mask, False)
    with device.active(), device.memory_guard():
        csr = without_zeros(device, csr)
        columns = csr.indices.astype(np.int64, copy=False)
        if mask.ndim == 1:
            return (columns,)
        return kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz).astype(
            np.int64, copy=False
        ), columns
