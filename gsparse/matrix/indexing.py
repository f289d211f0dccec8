"""``A[key]`` on the device: single entries, rows, columns, blocks and diagonals.

Rows, columns and blocks are matrices on the device. As in SciPy, a selection of one dimension is a sparse array of one
dimension. Two arrays of numbers, or a mask, select single entries, whose values form a dense array.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY, Array, compute_dtype
from gsparse.device.select import device_of
from gsparse.files.checks import scipy_matrices
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.host_operations import brought_back, counted_scipy_array, run_on_host
from gsparse.matrix.index import Axis, Index, list_places, parse_index
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.reductions import written
from gsparse.matrix.shapes import reshape_matrix
from gsparse.matrix.sparse_operations import csr_of, matrix_of
from gsparse.sparse.canonical import computed
from gsparse.sparse.reshaping import from_dense, select_columns, select_rows


def _are_separate(rows: Axis, columns: Axis) -> bool:
    """Return whether rows and columns are selected independently: they are not both arrays, or they form a grid."""
    if isinstance(rows, int | range) or isinstance(columns, int | range):
        return True
    return bool(rows.ndim == 2 and rows.shape[1] == 1 and (columns.ndim == 1 or columns.shape[0] == 1))


# ------------------------------------------------------------------------------------------------- single entries


def _entry(matrix: MatrixLike, row: int, column: int, index: Index) -> Any:
    """Return the element at a row and a column, as a scalar or in the shape that the index asks for."""
    device, prepared = matrix.device, matrix._arrays.current(matrix._stored_shape)
    if prepared.is_canonical:
        row_of_arrays, column_of_arrays = (column, row) if matrix._by_columns else (row, column)
        with device.active(), device.memory_guard():
            value = kernels_of(device).edits.sample_entry(device, prepared.csr, row_of_arrays, column_of_arrays)
        value = np.conjugate(value) if matrix._arrays.data.conjugated else value
    else:
        value = device.download_vector(_samples(matrix, np.array([row]), np.array([column])))[0]  # synchronizes
    if not index.shape:
        return value
    if matrix.ndim == 1:
        cls: Any = type(matrix)
        return cls(np.full(index.shape, value), device=matrix.device)
    return np.full(matrix._selected_shape((), index.shape), value)


def _entries(matrix: MatrixLike, rows: Array, columns: Array, index: Index) -> Any:
    """Return the elements at pairs (row, column): a dense vector, or a matrix if the arrays have two dimensions."""
    device, shape = matrix.device, np.broadcast_shapes(rows.shape, columns.shape)
    if 0 in shape:  # SciPy returns an empty sparse array.
        cls: Any = type(matrix)
        empty = cls((1, 0) if len(shape) == 1 else shape, dtype=matrix.dtype, device=device)
        return reshape_matrix(empty, matrix._selected_shape(empty.shape, index.shape))
    with device.active(), device.memory_guard():
        values = _samples(matrix, rows, columns)
        if len(shape) == 2:
            dense = values.reshape(shape)
            csr = from_dense(device, dense.T if matrix._by_columns else dense)
    if len(shape) == 2:
        return matrix_of(matrix, csr, shape, type(matrix))
    if not index.on_device:
        values = matrix._ascontainer(device.download_vector(values))  # synchronizes
    return values.reshape(matrix._selected_shape(values.shape, index.shape))


def _samples(matrix: MatrixLike, rows: Array, columns: Array) -> Array:
    """Return a vector on the device with the value at each pair (row, column). The two arrays are broadcast."""
    device, shape = matrix.device, np.broadcast_shapes(rows.shape, columns.shape)
    prepared, conjugated = matrix._arrays.current(matrix._stored_shape), matrix._arrays.data.conjugated
    is_sorted, csr = prepared.is_canonical, prepared.csr
    with device.active(), device.memory_guard():
        i, j = list_places(device, rows, columns, shape)
        csr = csr if is_sorted else computed(csr, matrix.dtype)
        i, j = (j, i) if matrix._by_columns else (i, j)
        values = kernels_of(device).edits.sample_entries(device, csr, i, j, is_sorted)
        values = values.astype(matrix.dtype, copy=False)
        return device.xp.conjugate(values) if conjugated else values


# --------------------------------------------------------------------------------------------------------- blocks


def _block(matrix: MatrixLike, rows: Axis, columns: Axis) -> Any:
    """Return the submatrix of rows and columns that are selected independently of each other."""
    device, shape = matrix.device, (1, *matrix.shape)[-2:]
    numbers = [_numbers_of(device, axis, size) for axis, size in zip((rows, columns), shape, strict=True)]
    if all(part is None for part in numbers):
        return matrix.copy()
    sizes = tuple(size if part is None else len(part) for part, size in zip(numbers, shape, strict=True))
    by_rows, by_columns = reversed(numbers) if matrix._by_columns else numbers  # numbers in the CSR arrays
    csr = csr_of(matrix, matrix, matrix._by_columns)
    with device.active(), device.memory_guard():
        if by_rows is not None:
            csr = select_rows(device, csr, by_rows)
        if by_columns is not None:
            csr = select_columns(device, csr, by_columns)
    return matrix_of(matrix, csr, sizes, type(matrix))


def _numbers_of(device: Device, axis: Axis, size: int) -> Array | range | None:
    """Return the selected numbers of an axis; None for all numbers in order. Arrays are on the device."""
    if isinstance(axis, int):
        axis = range(axis, axis + 1)
    if isinstance(axis, range):
        return None if axis == range(size) else axis
    flat = axis.reshape(-1)
    return flat if device_of(flat) is not None else device.upload(flat)


# ------------------------------------------------------------------------------------------------------- diagonals


class Selection(MatrixLike):
    """Methods that select entries, rows, columns and diagonals."""

    def __getitem__(self, key: Any) -> Any:
        """Return the selection ``A[key]``, as SciPy does."""
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "__getitem__", key)
        index = parse_index(self, key)
        if len(index.shape) > 2:
            raise IndexError(
                f"Indexing that leads to >2D is not supported by {self.format} format. Try converting to COO format"
            )
        rows, columns = index.axes if self.ndim == 2 else (0, index.axes[0])
        if isinstance(rows, int) and isinstance(columns, int):
            return _entry(self, rows, columns, index)
        if not _are_separate(rows, columns):
            return _entries(self, rows, columns, index)
        found = _block(self, rows, columns)
        return reshape_matrix(found, self._selected_shape(found.shape, index.shape))

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows as matrices on the same device, or the elements of an array of one dimension. Synchronizes."""
        if self.dtype.char in HOST_ONLY:
            with scipy_matrices():
                rows = list(counted_scipy_array(self, "__iter__"))
            yield from (brought_back(self, row) for row in rows)
        elif self.ndim == 1:
            yield from self.toarray()
        elif self._by_columns:
            yield from self.tocsr()
        else:
            csr, shape = csr_of(self, self, False), self._selected_shape((1, self.shape[1]), self.shape[1:])
            bounds = self.device.download(csr.indptr)  # synchronizes
            for begin, end in pairwise(map(int, bounds)):
                with self.device.active(), self.device.memory_guard():
                    indptr = self.device.upload(np.array([0, end - begin], csr.indptr.dtype))
                    parts = (csr.indices[begin:end].copy(), csr.data[begin:end].copy())
                yield matrix_of(self, Csr((1, csr.num_cols), indptr, *parts, csr.is_canonical), shape, type(self))

    def diagonal(self, k: int = 0, out: Any = None) -> Any:
        """Return the entries on a diagonal. Synchronizes, unless `out` is on the device.

        Parameters
        ----------
        k : int
            Column minus row of the entries.
        out : array of the device, optional
            An array of the result's shape. SciPy has no such parameter.

        Returns
        -------
        ndarray
            Of the matrix's dtype; entries that are stored twice are added up. `out` if it was passed.
        """
        if self.ndim != 2:
            raise ValueError("diagonal requires two dimensions")
        if compute_dtype(self.dtype) is None:
            return run_on_host(self, "diagonal", k)
        device, csr = self.device, csr_of(self, self, self._by_columns)
        own, offset = computed(csr, self.dtype), -k if self._by_columns else k
        is_direct = out is not None and device.owns(out) and out.dtype == own.dtype and out.flags.c_contiguous
        with device.active(), device.memory_guard():
            if is_direct and out.shape == (own.diagonal_size(offset),):
                return kernels_of(device).sparse_rows.diagonal_entries(device, own, offset, out)
            entries = kernels_of(device).sparse_rows.diagonal_entries(device, own, offset)
        if out is not None:
            return written(self, entries, out, entries.shape)
        return device.download_vector(entries).astype(self.dtype, copy=False)  # synchronizes
