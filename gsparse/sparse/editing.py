"""Write values to existing and to new entries of a CSR matrix, and change the shape of a matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of

_MAX_INT64 = np.iinfo(np.int64).max


def with_values_at(device: Device, csr: Csr, positions: Array, values: Array, *, distinct: bool) -> Array:
    """Return a copy of a matrix's values in which some are replaced.

    Synchronizes if positions are not distinct.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Its values may be of any dtype.
    positions : array of int64
        Indices into the entries of `csr`. Negative ones are skipped.
    values : array
        New values, in the dtype of the matrix: one for each position, or one for all positions.
    distinct : bool
        Whether no position occurs twice. If some do, the last value for a position is written.
    """
    if not distinct and values.size > 1:
        last = _last_of_each(device, positions + 1, csr.nnz + 1)
        positions, values = positions[last], values[last]
    data = csr.data.copy()
    kernels_of(device).edits.put_values(device, data, positions, values)
    return data


def with_new_entries(
    device: Device,
    csr: Csr,
    rows: Array,
    columns: Array,
    values: Array,
    *,
    distinct: bool,
    ordered: bool,
    is_sorted: bool,
) -> Csr:
    """Return a matrix with new entries at places that have no entry yet. Synchronizes unless `distinct`.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Its values may be of any dtype.
    rows, columns : array of int64
        The places of the new entries, in any order.
    values : array
        New values, in the dtype of the matrix: one for each place, or one for all places.
    distinct : bool
        Whether no place occurs twice. If some do, the last value for a place is written.
    ordered : bool
        Whether `rows` is known to be strictly increasing, so that no row has more than one new entry.
    is_sorted : bool
        Whether columns increase within each row of the matrix. If so, columns also increase in each row of the result.
        If not, each row of the result begins with its new entries, as in SciPy.
    """
    xp = device.xp
    if rows.size > 1 and not ordered:
        order = _order_of_places(device, csr, rows, columns, distinct=distinct, by_columns=is_sorted)
        rows, columns = rows[order], columns[order]
        values = values[order] if values.size > 1 else values
    values = xp.ascontiguousarray(values if values.size > 1 else xp.broadcast_to(values, rows.shape))
    inserted = kernels_of(device).edits.insert_entries(device, csr, rows, columns, values, is_sorted)
    return replace(inserted, is_canonical=csr.is_canonical and is_sorted)


def _order_of_places(
    device: Device, csr: Csr, rows: Array, columns: Array, *, distinct: bool, by_columns: bool
) -> Array:
    """Return indices that sort places by row, and within a row by column if `by_columns`.

    If a place occurs several times, only its last index is returned.
    """
    xp, kernels = device.xp, kernels_of(device)
    if distinct and not by_columns:
        return kernels.transpose.stable_order(device, rows, csr.num_rows)
    bound = csr.num_rows * csr.num_cols
    if bound <= _MAX_INT64:
        places = rows * csr.num_cols + columns
    else:  # Row times num_cols would overflow int64, so number only the places that occur.
        order = xp.lexsort(xp.stack([columns, rows]))
        sorted_rows, sorted_columns = rows[order], columns[order]
        is_next = xp.zeros(rows.size, np.int64)
        is_next[1:] = (sorted_rows[1:] != sorted_rows[:-1]) | (sorted_columns[1:] != sorted_columns[:-1])
        places = xp.empty_like(rows)
        places[order], bound = xp.cumsum(is_next), int(rows.size)
    if distinct:
        return kernels.transpose.stable_order(device, places, bound)
    order = _last_of_each(device, places, bound)
    # No place occurs twice: keep the caller's order within each row, as SciPy does.
    is_whole = order.size == rows.size and not by_columns
    return kernels.transpose.stable_order(device, rows, csr.num_rows) if is_whole else order


def _last_of_each(device: Device, numbers: Array, bound: int) -> Array:
    """Return where each distinct number occurs last, in increasing order of the numbers. Synchronizes.

    All numbers are below `bound`.
    """
    xp, order = device.xp, kernels_of(device).transpose.stable_order(device, numbers, bound)
    ordered = numbers[order]
    is_last = xp.ones(numbers.size, np.bool_)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return order[is_last]  # synchronizes


def resized(device: Device, csr: Csr, shape: tuple[int, int]) -> Csr:
    """Return the matrix with another shape, without the entries outside this shape. It may share arrays with `csr`.

    Synchronizes if rows or columns are cut off.
    """
    xp, (num_rows, num_cols) = device.xp, shape
    indptr, indices, data = csr.indptr, csr.indices, csr.data
    if num_rows < csr.num_rows:
        indptr = indptr[: num_rows + 1].copy()
        nnz = int(indptr[-1])  # synchronizes
        indices, data = indices[:nnz].copy(), data[:nnz].copy()
    elif num_rows > csr.num_rows:
        last = xp.full(num_rows - csr.num_rows, csr.nnz, indptr.dtype)
        indptr = xp.concatenate([indptr, last])
    csr = Csr((num_rows, csr.num_cols), indptr, indices, data, csr.is_canonical)
    if num_cols < csr.num_cols:
        cut = kernels_of(device).sparse_rows.keep_entries(device, csr, csr.indices < num_cols)
        csr = replace(cut, is_canonical=csr.is_canonical)
    return replace(csr, shape=shape)


def missing_entries(device: Device, csr: Csr) -> Csr:
    """Return the boolean matrix that is True where a matrix with sorted rows has no entry. Synchronizes."""
    xp, (num_rows, num_cols) = device.xp, csr.shape
    is_missing = xp.ones(csr.shape, np.bool_)
    is_missing[kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz), csr.indices] = False
    index = csr.indices.dtype if num_rows * num_cols - csr.nnz <= MAX_INT32 else np.dtype(np.int64)
    indptr = (xp.arange(num_rows + 1, dtype=np.int64) * num_cols - csr.indptr).astype(index)
    columns = xp.broadcast_to(xp.arange(num_cols, dtype=index), csr.shape)[is_missing]  # synchronizes
    return Csr(csr.shape, indptr, columns, xp.ones(columns.size, np.bool_), is_canonical=True)
