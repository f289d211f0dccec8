"""The entries of a matrix in another shape: reshaped, repeated, in a dense array, and from one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.assembly import from_coordinates, without_zeros
from gsparse.sparse.selection import select_columns, select_rows


def reshaped(device: Device, csr: Csr, shape: tuple[int, int]) -> Csr:
    """Return a matrix of another shape with the same elements in the order of the rows. May synchronize.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Values of any dtype, in any order within rows, with duplicates.
    shape : (int, int)
        With as many elements.
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
    # The places of the entries of a canonical matrix rise, and so do their new rows.
    indptr = xp.searchsorted(rows, xp.arange(shape[0] + 1))
    return Csr(shape, indptr.astype(index), columns.astype(index), csr.data, csr.is_canonical)


def dense_of(device: Device, csr: Csr) -> Array:
    """Return a matrix as a dense array in C order. Synchronizes on a GPU unless it is known to be canonical."""
    return added_to(device, csr, device.xp.zeros(csr.shape, csr.dtype))


def added_to(device: Device, csr: Csr, dense: Array) -> Array:
    """Add a matrix to a dense array of its dtype in C order, in place, and return that.

    Several entries of one place are added up in their order. Synchronizes on a GPU unless the matrix is known to be
    canonical.
    """
    kernels = kernels_of(device)
    if not (csr.is_canonical or device.is_host):  # A GPU adds faster if no place has several entries.
        is_canonical = not kernels.layout.survey(device, csr.indptr, csr.indices, False).num_unsorted  # synchronizes
        csr = replace(csr, is_canonical=is_canonical)
    kernels.edits.add_entries(device, csr, dense)
    return dense


def full(device: Device, dense: Array) -> Csr:
    """Return a dense array of two dimensions as a matrix with an entry for each of its elements, zeros included."""
    xp, (num_rows, num_cols) = device.xp, dense.shape
    index = np.int32 if max(*dense.shape, dense.size) <= MAX_INT32 else np.int64
    indptr = xp.arange(num_rows + 1, dtype=index) * index(num_cols)
    indices = xp.broadcast_to(xp.arange(num_cols, dtype=index), dense.shape).reshape(-1)
    return Csr(dense.shape, indptr, indices, xp.ascontiguousarray(dense).reshape(-1), is_canonical=True)


def from_dense(device: Device, dense: Array) -> Csr:
    """Return a dense array of two dimensions as a matrix of its elements that are not 0. Synchronizes."""
    return without_zeros(device, full(device, dense))


def repeated(device: Device, csr: Csr, shape: tuple[int, int]) -> Csr:
    """Return a matrix whose only row, or only column, is repeated as often as a shape asks for. May synchronize."""
    if csr.num_rows == 1 != shape[0]:
        csr = select_rows(device, csr, device.xp.zeros(shape[0], np.int64))
    if csr.num_cols == 1 != shape[1]:
        csr = select_columns(device, csr, device.xp.zeros(shape[1], np.int64))
    return csr
