"""Writes to single entries, blocks and diagonals, on the device.

A write to places where the matrix has entries changes values only. The structure and all that was prepared for it
remain, and a transposed view sees the new values. A write to other places adds entries, in new arrays that only this
matrix gets, as in SciPy.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.select import device_of
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.matrix.dense_operands import check_home
from gsparse.matrix.host_operations import write_on_host
from gsparse.matrix.in_place import check_not_frozen, entries_of, is_written_on_host, one_at_a_time
from gsparse.matrix.index import FEW_PLACES, Axis, Index, list_places, parse_index
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.sparse_operations import csr_of, is_sparse, matrix_of
from gsparse.sparse.canonical import canonical
from gsparse.sparse.editing import with_new_entries, with_values_at
from gsparse.sparse.reshaping import dense_of, repeated

# `setdiag` keeps the dtype of the matrix and writes existing entries in place, as in SciPy, if it adds fewer entries
# than this share of the stored entries. Otherwise the matrix gets new arrays, in the common dtype of all values.
_FEW_NEW_ENTRIES = 0.001


@dataclass(frozen=True, eq=False)
class Places:
    """The places that are written.

    Attributes
    ----------
    rows, columns : array of int64
        The row and the column of each place, on the device.
    distinct : bool
        Whether it is known that no place occurs twice.
    ordered : bool
        Whether both rows and columns are known to increase strictly from place to place.
    """

    rows: Array
    columns: Array
    distinct: bool
    ordered: bool = False

    def of(self, matrix: MatrixLike) -> tuple[Array, Array]:
        """Return rows and columns in the order of the CSR arrays, which may be those of the transpose."""
        return (self.columns, self.rows) if matrix._by_columns else (self.rows, self.columns)


# ------------------------------------------------------------------------------------------------------------ places


def _grid_of(matrix: MatrixLike, index: Index) -> tuple[Array, Array, tuple[int, ...]]:
    """Return the rows and the columns of an index, and the shape to which they are broadcast.

    As in SciPy, a slice of rows becomes a column, and a slice of columns a row.
    """
    xp = _module_of(matrix.device, index)
    rows, columns = index.axes if matrix.ndim == 2 else (0, index.axes[0])
    with matrix.device.active():
        i, j = (_numbers(xp, axis) for axis in (rows, columns))
        if matrix.ndim == 2:
            if isinstance(rows, range):
                i = i[:, None]
            if isinstance(columns, range):
                j = j[None, :]
                i = i[:, None] if i.ndim == 1 else i
    try:
        return i, j, np.broadcast_shapes(i.shape, j.shape)
    except ValueError:
        raise IndexError("number of row and column indices differ") from None


def _module_of(device: Device, index: Index) -> Any:
    """Return the array module, of the host or of the device, for the list of an index's places."""
    sizes = [1 if isinstance(axis, int) else len(axis) for axis in index.axes]
    is_on_host = all(isinstance(axis, np.ndarray) for axis in index.arrays)
    return np if is_on_host and max(sizes) <= FEW_PLACES else device.xp


def _numbers(xp: Any, axis: Axis) -> Array:
    if isinstance(axis, int):
        return xp.full(1, axis, np.int64)
    if isinstance(axis, range):
        return xp.arange(axis.start, axis.stop, axis.step, dtype=np.int64)
    return axis if xp is np else xp.asarray(axis)


# ------------------------------------------------------------------------------------------------------------ values


def _values_for(matrix: MatrixLike, x: Any, shape: tuple[int, ...], *, is_single: bool) -> Array:
    """Return the values to write to a grid, on the device: one value for all places, or one for each place.

    Raises
    ------
    ValueError
        If the values cannot be broadcast to the grid.
    """
    device, dtype = matrix.device, matrix.dtype
    if is_sparse(x):
        x = _dense_values(matrix, x)
    x = x.astype(dtype, copy=False) if device_of(x) is not None else np.asarray(x, dtype=dtype)
    if is_single and x.size != 1:
        raise ValueError("Trying to assign a sequence to an item")
    if x.size != 1 and _without_ones(x.shape) != _without_ones(shape):
        x = (np if isinstance(x, np.ndarray) else device.xp).broadcast_to(x, shape)
    elif x.size == 1 and 0 in shape:
        x = x.reshape(-1)[:0]
    flat = x.reshape(-1)
    return device.upload(np.ascontiguousarray(flat)) if isinstance(flat, np.ndarray) else flat


def _dense_values(matrix: MatrixLike, x: Any) -> Array:
    """Return a sparse operand as a dense array on the device."""
    device, csr = matrix.device, csr_of(matrix, x, False)
    dense = dense_of(device, csr).reshape(x.shape)
    return dense.astype(matrix.dtype, copy=False)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


# ------------------------------------------------------------------------------------------------------------ writes


def _write(matrix: MatrixLike, places: Places, values: Array) -> None:
    """Write values, one for each place or one for all, to existing and to new entries."""
    device = matrix.device
    csr, positions, is_sorted, num_new = _find(matrix, places)
    if num_new:  # Warn before anything is written, because the warning may be an error.
        warnings.warn(
            f"Changing the sparsity structure of a {type(matrix).__name__} is expensive: all {csr.nnz} entries are "
            f"copied for {num_new} more. Set many elements in one assignment, A[rows, columns] = values, or make the "
            "matrix from a scipy.sparse.coo_array.",
            sp.SparseEfficiencyWarning,
            stacklevel=frames_to_the_caller(),
        )
    if num_new < positions.size:
        data = with_values_at(device, csr, positions, values, distinct=places.distinct)
        matrix._arrays.replace_values(data, matrix._stored_shape)
        csr = csr.with_data(data)
    if num_new:
        _insert(matrix, csr, places, positions, num_new, values, is_sorted=is_sorted)


def _find(matrix: MatrixLike, places: Places) -> tuple[Csr, Array, bool, int]:
    """Find the entry at each place. If a place has several entries, add up all repeated entries first, as in SciPy.

    Returns
    -------
    csr, positions, is_canonical, num_new
        The arrays of the matrix, the position of each place's entry, whether the matrix is canonical, and the number of
        places without entry, whose positions are negative.
    """
    device, kernels = matrix.device, kernels_of(matrix.device)
    i, j = places.of(matrix)
    csr, is_canonical = entries_of(matrix), matrix._arrays.current(matrix._stored_shape).is_canonical
    positions, num_new, has_several = kernels.edits.find_entries(device, csr, i, j, is_canonical)  # synchronizes
    if has_several:
        matrix._arrays.declared.clear()
        matrix.sum_duplicates()
        csr, is_canonical = entries_of(matrix), True
        positions, num_new, _ = kernels.edits.find_entries(device, csr, i, j, is_canonical)  # synchronizes
    return csr, positions, is_canonical, num_new


def _insert(
    matrix: MatrixLike, csr: Csr, places: Places, positions: Array, num_new: int, values: Array, *, is_sorted: bool
) -> None:
    """Replace the arrays of a matrix by arrays that also have entries at the places with negative positions."""
    i, j = places.of(matrix)
    if num_new < i.size:
        new = matrix.device.xp.flatnonzero(positions < 0)  # synchronizes
        i, j, values = i[new], j[new], values[new] if values.size > 1 else values
    # Rows with repeated entries are not canonical, but may be sorted nevertheless.
    is_sorted = is_sorted or matrix.has_sorted_indices
    is_new = {"distinct": places.distinct, "ordered": places.ordered}
    csr = with_new_entries(matrix.device, csr, i, j, values, is_sorted=is_sorted, **is_new)
    matrix._arrays = matrix_of(matrix, csr, matrix.shape, type(matrix))._arrays


# --------------------------------------------------------------------------------------------------- sparse operands


def _set_sparse(matrix: MatrixLike, index: Index, rows: Array, columns: Array, shape: tuple[int, ...], x: Any) -> None:
    """Write a sparse matrix `x` to a grid. Existing entries where `x` has none become stored zeros.

    Raises
    ------
    ValueError
        If the matrix cannot be broadcast to the grid.
    """
    if 0 in x.shape:
        return
    device = matrix.device
    # Single entries form a row.
    rows, columns = (part[None] if part.ndim == 1 else part for part in (rows, columns))
    shape = (1, *shape)[-2:]
    if not all(one in (1, other) for one, other in zip((1, *x.shape)[-2:], shape, strict=True)):
        raise ValueError("shape mismatch in assignment")
    if 0 in shape:
        return
    source = csr_of(matrix, x, False)
    with device.active(), device.memory_guard():
        _write_zeros(matrix, index, rows, columns, shape)
        source = repeated(device, canonical(device, source), shape)  # type: ignore[arg-type]
        if not source.nnz:
            return
        i = kernels_of(device).sparse_rows.row_numbers(device, source.indptr, source.nnz)
        i, j = (_elements(device, part, i, source.indices) for part in (rows, columns))
        _write(matrix, Places(i, j, index.is_distinct), source.data.astype(matrix.dtype, copy=False))


def _elements(device: Device, numbers: Array, i: Array, j: Array) -> Array:
    """Return ``numbers[i, j]``, with `numbers` broadcast along its axes of length 1."""
    numbers = device.upload(np.ascontiguousarray(numbers)) if isinstance(numbers, np.ndarray) else numbers
    height, width = numbers.shape
    if height == 1 or width == 1:
        return numbers.reshape(-1)[j if height == 1 and width > 1 else i if height > 1 else i * 0]
    return numbers[i, j]


def _write_zeros(matrix: MatrixLike, index: Index, rows: Array, columns: Array, shape: tuple[int, ...]) -> None:
    """Set the entries within a grid to 0. They remain stored."""
    device, xp = matrix.device, matrix.device.xp
    csr = entries_of(matrix)
    # If there are fewer entries than places, look at all entries.
    if rows.shape[1] == 1 and columns.shape[0] == 1 and csr.nnz < shape[0] * shape[1]:
        i, j = (columns, rows) if matrix._by_columns else (rows, columns)
        inside = xp.zeros(csr.num_rows, np.bool_), xp.zeros(csr.num_cols, np.bool_)
        for is_inside, numbers in zip(inside, (i, j), strict=True):
            is_inside[xp.asarray(numbers.reshape(-1))] = True
        written = (
            inside[0][kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz)] & inside[1][csr.indices]
        )
        if kernels_of(device).reductions.first_where(device, written, "not zero") is not None:  # synchronizes
            data = xp.where(written, csr.dtype.type(0), csr.data)
            matrix._arrays.replace_values(data, matrix._stored_shape)
        return
    places = Places(*list_places(device, rows, columns, shape), index.is_distinct)
    csr, positions, _, _ = _find(matrix, places)
    data = with_values_at(device, csr, positions, xp.zeros(1, csr.dtype), distinct=False)
    matrix._arrays.replace_values(data, matrix._stored_shape)


# ---------------------------------------------------------------------------------------------------------- diagonals


def _diagonal_values(matrix: MatrixLike, values: Array, count: int) -> Array:
    """Return the values for a diagonal of `count` places, on the device: one value, or one for each place."""
    xp: Any = np if device_of(values) is None else matrix.device.xp
    values = xp.ascontiguousarray((values[:count] if values.ndim else values).reshape(-1))
    if values.size not in (1, count):
        values = xp.broadcast_to(values, (count,))
    return values if xp is not np else matrix.device.upload(values)


def _write_diagonal(matrix: MatrixLike, values: Array, k: int, count: int, *, is_cast: bool) -> None:
    """Write to the first `count` places of a diagonal.

    As in SciPy, if many entries are new, the matrix gets new arrays, in NumPy's common dtype of its values and of
    `values`. A single value (`is_cast`) is cast to the matrix's dtype.
    """
    device, arange = matrix.device, matrix.device.xp.arange
    rows = arange(max(-k, 0), max(-k, 0) + count, dtype=np.int64)
    columns = arange(max(k, 0), max(k, 0) + count, dtype=np.int64) if k else rows
    places = Places(rows, columns, distinct=True, ordered=True)
    csr, positions, is_sorted, num_new = _find(matrix, places)
    is_in_place = not num_new or num_new < _FEW_NEW_ENTRIES * csr.nnz
    dtype = matrix.dtype if is_cast or is_in_place else np.result_type(matrix.dtype, values.dtype)
    values, csr = values.astype(dtype, copy=False), csr.with_data(csr.data.astype(dtype, copy=False))
    if num_new < count:
        csr = csr.with_data(with_values_at(device, csr, positions, values, distinct=True))
        if is_in_place:
            matrix._arrays.replace_values(csr.data, matrix._stored_shape)
    if num_new:
        _insert(matrix, csr, places, positions, num_new, values, is_sorted=is_sorted)


class Writes(MatrixLike):
    """Methods that write to entries and diagonals."""

    @one_at_a_time
    def __setitem__(self, key: Any, x: Any) -> None:
        """Assign to ``A[key]``, as SciPy does."""
        if is_written_on_host(self):
            write_on_host(self, "__setitem__", key, x)
            return
        check_home(self, x)
        if is_sparse(x) and x.dtype.char in HOST_ONLY:
            x = sp.csr_array(x.tocoo()).astype(self.dtype)
        index = parse_index(self, key)
        check_not_frozen(self)
        rows, columns, shape = _grid_of(self, index)
        is_single = all(isinstance(axis, int) for axis in index.axes)
        if is_sparse(x) and self.ndim == 2 and not is_single:
            _set_sparse(self, index, rows, columns, shape, x)
            return
        with self.device.active(), self.device.memory_guard():
            values = _values_for(self, x, shape, is_single=is_single)
            if values.size:
                _write(self, Places(*list_places(self.device, rows, columns, shape), index.is_distinct), values)

    @one_at_a_time
    def setdiag(self, values: Any, k: int = 0) -> None:
        """Write to a diagonal, in place.

        Parameters
        ----------
        values : scalar or array_like
            NumPy, or CuPy on this matrix's GPU. A scalar is written to the whole diagonal. A shorter array is written
            to the beginning of the diagonal. Surplus values of a longer array are ignored.
        k : int
            Column minus row of the entries.

        Raises
        ------
        ValueError
            If the matrix has no such diagonal.
        """
        num_rows, num_cols = self.shape
        if (k > 0 and k >= num_cols) or (k < 0 and -k >= num_rows):
            raise ValueError("k exceeds array dimensions")
        values = values if device_of(values) is not None else np.asarray(values)
        if values.dtype.kind not in "biufc":
            values = values.astype(self.dtype)  # raises what NumPy raises
        if is_written_on_host(self) or values.dtype.char in HOST_ONLY:
            write_on_host(self, "setdiag", values, k)
            return
        check_home(self, values)
        count = max(min(num_rows + min(k, 0), num_cols - max(k, 0)), 0)
        count = min(count, len(values)) if values.ndim else count
        if not count:
            return
        check_not_frozen(self)
        with self.device.active(), self.device.memory_guard():
            _write_diagonal(self, _diagonal_values(self, values, count), k, count, is_cast=not values.ndim)
