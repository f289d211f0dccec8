"""Change the shape or arrangement of a matrix's entries: select, transpose, reshape, repeat, convert to dense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.canonical import from_coordinates, without_zeros


def select_rows(device: Device, csr: Csr, rows: Array | range) -> Csr:
    """Return the rows with the given numbers, in the given order. Rows may be repeated.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Its values may be of any dtype.
    rows : array of integers, shape (m,), or range
        Row numbers from 0 to ``num_rows - 1``. An array of them is on the device.

    Returns
    -------
    Csr
        The m rows. The entries of each row keep their order. Synchronizes.
    """
    if not isinstance(rows, range) or rows.step != 1:
        return kernels_of(device).sparse_rows.take_rows(device, csr, _as_array(device, rows))
    return kernels_of(device).sparse_rows.slice_rows(device, csr, rows.start, len(rows))


def select_columns(device: Device, csr: Csr, columns: Array | range) -> Csr:
    """Return the columns with the given numbers, in the given order. Columns may be repeated.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Its values may be of any dtype.
    columns : array of integers, shape (n,), or range
        Column numbers from 0 to ``num_cols - 1``. An array of them is on the device.

    Returns
    -------
    Csr
        The n columns. Within each row, entries keep the order that they have in `csr`, as in SciPy. So rows of the
        result are sorted if the rows of `csr` and `columns` are. Synchronizes.
    """
    numbers = _as_array(device, columns)
    places = kernels_of(device).sparse_rows.places_of(device, numbers, csr.num_cols, csr.indices.dtype)  # synchronizes
    if places is None:
        return _repeat_columns(device, csr, numbers)
    selected = kernels_of(device).sparse_rows.map_columns(device, csr, places, len(columns))
    is_canonical = csr.is_canonical and isinstance(columns, range) and columns.step > 0
    return replace(selected, is_canonical=is_canonical)


def _repeat_columns(device: Device, csr: Csr, columns: Array) -> Csr:
    """Return the selected columns, some of which are selected several times. Synchronizes.

    `order` sorts the indices into `columns` by column number: column c is selected at the indices
    ``order[first[c]:first[c + 1]]``. Each entry of column c is copied once for each of these indices.
    """
    xp, index = device.xp, csr.indices.dtype
    counts = kernels_of(device).sparse_rows.count_numbers(device, columns, csr.num_cols)
    first = xp.zeros(csr.num_cols + 1, np.int64)
    xp.cumsum(counts, out=first[1:])
    order = kernels_of(device).transpose.stable_order(device, columns, csr.num_cols)
    ends = xp.zeros(csr.nnz + 1, np.int64)
    xp.cumsum(counts[csr.indices], out=ends[1:])
    nnz = int(ends[-1])  # synchronizes
    index = index if nnz <= MAX_INT32 else np.dtype(np.int64)
    entries = kernels_of(device).sparse_rows.row_numbers(device, ends, nnz)
    number = xp.arange(entries.size, dtype=np.int64) - ends[entries]
    places = order[first[csr.indices[entries]] + number].astype(index)
    return Csr((csr.num_rows, int(columns.size)), ends[csr.indptr].astype(index), places, csr.data[entries])


def _as_array(device: Device, numbers: Array | range) -> Array:
    if not isinstance(numbers, range):
        return numbers
    return device.xp.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)


def triangle(device: Device, csr: Csr, offset: int, upper: bool) -> Csr:
    """Return the entries on diagonal `offset` and on one side of it: above it if `upper`, else below. Synchronizes."""
    return replace(kernels_of(device).sparse_rows.triangle(device, csr, offset, upper), is_canonical=csr.is_canonical)


class CsrTranspose:
    """Transposes several matrices of the same structure.

    The second call computes and stores, for each entry of the transpose, the position of its value in the matrix. So a
    single transpose takes no memory for these positions.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._structure: Csr | None = None
        self._order: Array | None = None

    def __call__(self, csr: Csr) -> Csr:
        """Return the transpose. All calls must pass the same structure. The first two calls may synchronize."""
        device = self._device
        if self._structure is None:
            result = kernels_of(device).transpose.csr_transpose(device, csr)
            self._structure = result.with_data(device.no_values(csr.dtype))
            return result
        if self._order is None:
            numbers = device.xp.arange(csr.nnz, dtype=np.int32 if csr.nnz <= MAX_INT32 else np.int64)
            self._order = kernels_of(device).transpose.csr_transpose(device, csr.with_data(numbers)).data
        return self._structure.with_data(device.xp.take(csr.data, self._order))


def reshaped(device: Device, csr: Csr, shape: tuple[int, int]) -> Csr:
    """Return a matrix of another shape with the same elements, counted row by row. May synchronize.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Its values may be of any dtype. Rows may be unsorted and have duplicates.
    shape : (int, int)
        The new shape, with the same number of elements.
    """
    if shape == csr.shape:
        return csr
    xp, index = device.xp, np.dtype(np.int32 if max(*shape, csr.nnz) <= MAX_INT32 else np.int64)
    if not csr.nnz:
        return Csr(shape, xp.zeros(shape[0] + 1, index), xp.zeros(0, index), csr.data, is_canonical=True)
    rows = kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz)
    places = rows.astype(np.int64) * csr.num_cols + csr.indices
    rows = places // shape[1]
    columns = places - rows * shape[1]
    if not (csr.is_canonical or shape[0] == 1):
        return from_coordinates(device, shape, rows, columns, csr.data)
    # In a canonical matrix, the places of entries increase from entry to entry, and so do their new rows.
    indptr = xp.searchsorted(rows, xp.arange(shape[0] + 1))
    return Csr(shape, indptr.astype(index), columns.astype(index), csr.data, csr.is_canonical)


def dense_of(device: Device, csr: Csr) -> Array:
    """Return a matrix as a dense array in C order. On a GPU, synchronizes unless `csr.is_canonical`."""
    return added_to(device, csr, device.xp.zeros(csr.shape, csr.dtype))


def added_to(device: Device, csr: Csr, dense: Array) -> Array:
    """Add a matrix to a dense array of the same dtype in C order, in place, and return the array.

    Entries with the same row and column are added in their order. On a GPU, synchronizes unless `csr.is_canonical`.
    """
    kernels = kernels_of(device)
    if not (csr.is_canonical or device.is_host):  # A GPU adds faster if each element has at most one entry.
        is_canonical = not kernels.layout.survey(device, csr.indptr, csr.indices, False).num_unsorted  # synchronizes
        csr = replace(csr, is_canonical=is_canonical)
    kernels.edits.add_entries(device, csr, dense)
    return dense


def full(device: Device, dense: Array) -> Csr:
    """Return a dense two-dimensional array as a matrix that stores all elements, zeros included."""
    xp, (num_rows, num_cols) = device.xp, dense.shape
    index = np.int32 if max(*dense.shape, dense.size) <= MAX_INT32 else np.int64
    indptr = xp.arange(num_rows + 1, dtype=index) * index(num_cols)
    indices = xp.broadcast_to(xp.arange(num_cols, dtype=index), dense.shape).reshape(-1)
    return Csr(dense.shape, indptr, indices, xp.ascontiguousarray(dense).reshape(-1), is_canonical=True)


def from_dense(device: Device, dense: Array) -> Csr:
    """Return a dense two-dimensional array as a matrix that stores the elements that are not 0. Synchronizes."""
    return without_zeros(device, full(device, dense))


def repeated(device: Device, csr: Csr, shape: tuple[int, int]) -> Csr:
    """Return a matrix of shape `shape` in which the only row or the only column of `csr` is repeated.

    May synchronize.
    """
    if csr.num_rows == 1 != shape[0]:
        csr = select_rows(device, csr, device.xp.zeros(shape[0], np.int64))
    if csr.num_cols == 1 != shape[1]:
        csr = select_columns(device, csr, device.xp.zeros(shape[1], np.int64))
    return csr
