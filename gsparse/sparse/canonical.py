"""Functions that make matrices from coordinates or blocks, or bring them to canonical form (sorted, no duplicates)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array, compute_dtype
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of


def canonical(device: Device, csr: Csr) -> Csr:
    """Return the matrix in canonical form: rows are sorted, and duplicates added up in their order.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Its values are of any dtype that has a compute dtype.

    Returns
    -------
    Csr
        `csr` itself if it is canonical. Otherwise it shares those arrays of `csr` that need no change. Values keep
        their dtype, so sums of integers wrap, and True + True is True. Synchronizes.
    """
    if csr.is_canonical:
        return csr
    kernels, dtype = kernels_of(device), csr.dtype
    if not kernels.layout.survey(device, csr.indptr, csr.indices, False).num_unsorted:
        return replace(csr, is_canonical=True)
    xp, csr = device.xp, sorted_rows(device, computed(csr, dtype))
    is_first = first_of_each_place(device, csr)
    if kernels.reductions.first_where(device, is_first, "zero") is not None:  # synchronizes
        sums = kernels.sparse_rows.sum_runs(
            device, csr.data, xp.flatnonzero(is_first).astype(csr.indices.dtype)
        )  # synchronizes
        csr = replace(kernels.sparse_rows.keep_entries(device, csr, is_first), data=sums)
    return replace(csr, data=csr.data.astype(dtype, copy=False), is_canonical=True)


def sorted_rows(device: Device, csr: Csr) -> Csr:
    """Return the matrix with sorted rows. Entries with the same row and column keep their order. Synchronizes.

    The matrix is transposed twice, because the rows of a transpose are always sorted.
    """
    kernels = kernels_of(device)
    return kernels.transpose.csr_transpose(device, kernels.transpose.csr_transpose(device, csr))


def first_of_each_place(device: Device, csr: Csr) -> Array:
    """Return a bool for each entry of a matrix with sorted rows: whether it is the first one in its row and column."""
    rows = kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz)
    is_first = device.xp.ones(csr.nnz, np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]) | (csr.indices[1:] != csr.indices[:-1])
    return is_first


def computed(csr: Csr, dtype: Any) -> Csr:
    """Return the matrix with values of the compute dtype for results of `dtype`.

    Raises
    ------
    TypeError
        If no kernel computes in `dtype`.
    """
    compute = compute_dtype(dtype)
    if compute is None:
        raise TypeError(f"no kernel computes in {np.dtype(dtype)}")
    return csr if csr.dtype == compute else csr.with_data(csr.data.astype(compute))


def in_common(*matrices: Csr) -> tuple[Csr, ...]:
    """Return the matrices with index arrays of the same dtype: int64 if one of them has int64."""
    dtype = matrices[0].indices.dtype
    if all(part.indices.dtype == dtype for part in matrices):
        return matrices
    common = np.result_type(*(part.indices.dtype for part in matrices))
    return tuple(part.with_index_dtype(common) for part in matrices)


def from_coordinates(device: Device, shape: tuple[int, int], rows: Array, columns: Array, data: Array) -> Csr:
    """Return the matrix with the given entries, whose rows and columns must be in range.

    Entries of one row keep their order, and repeated entries remain. Synchronizes.
    """
    index = np.int32 if max(*shape, int(data.size)) <= MAX_INT32 else np.int64
    order, indptr = kernels_of(device).transpose.order_by_row(device, rows.astype(index, copy=False), shape[0])
    return Csr(shape, indptr, columns.astype(index, copy=False)[order], data[order])


def without_zeros(device: Device, csr: Csr) -> Csr:
    """Return the matrix without entries that are 0. The dtype of the values stays the same. Synchronizes."""
    kept = kernels_of(device).sparse_rows.drop_zeros(device, computed(csr, csr.dtype))
    return kept.with_data(kept.data.astype(csr.dtype, copy=False))


def identity(device: Device, shape: tuple[int, int], offset: int, dtype: Any) -> Csr:
    """Return the matrix with ones on diagonal `offset`. An element is on it if its column minus its row is `offset`."""
    xp = device.xp
    row, column = max(0, -offset), max(0, offset)
    count = max(0, min(shape[0] - row, shape[1] - column))
    index = np.int32 if max(shape) <= MAX_INT32 else np.int64
    indptr = xp.clip(xp.arange(shape[0] + 1, dtype=np.int64) - row, 0, count).astype(index)
    return Csr(shape, indptr, xp.arange(column, column + count, dtype=index), xp.ones(count, dtype))


def kronecker(device: Device, a: Csr, b: Csr) -> Csr:
    """Return the Kronecker product of A and B, with an entry for each pair of an entry of A and one of B. Synchronizes.

    The result is in canonical form if A and B are.
    """
    shape = (a.num_rows * b.num_rows, a.num_cols * b.num_cols)
    (a_rows, a_columns), (b_rows, b_columns) = (_coordinates(device, part) for part in (a, b))
    rows = (a_rows[:, None] * b.num_rows + b_rows).reshape(-1)
    columns = (a_columns[:, None] * b.num_cols + b_columns).reshape(-1)
    result = from_coordinates(device, shape, rows, columns, (a.data[:, None] * b.data).reshape(-1))
    return in_common(result, a, b)[0]  # As in SciPy, the result has int64 indices if A or B has them.


def from_blocks(
    device: Device, shape: tuple[int, int], blocks: Sequence[tuple[int, int, Csr]], dtype: np.dtype[Any]
) -> Csr:
    """Return the matrix that consists of blocks at given places. Synchronizes.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    shape : (int, int)
        The shape of the result.
    blocks : sequence of (row, column, Csr)
        The first row and column of each block, and the block. Blocks do not overlap, and blocks in the same rows come
        from left to right.
    dtype : dtype
        The dtype of the result's values.
    """
    xp = device.xp
    parts: list[tuple[Array, ...]] = [(xp.zeros(0, np.int64), xp.zeros(0, np.int64), xp.zeros(0, dtype))]
    for row, column, block in blocks:
        rows, columns = _coordinates(device, block)
        parts.append((rows + row, columns + column, block.data.astype(dtype, copy=False)))
    joined = from_coordinates(device, shape, *(xp.concatenate(list(part)) for part in zip(*parts, strict=True)))
    index = np.result_type(joined.indices.dtype, *(block.indices.dtype for *_, block in blocks))
    return joined.with_index_dtype(index)  # As in SciPy, the result has int64 indices if a block has them.


def _coordinates(device: Device, csr: Csr) -> tuple[Array, Array]:
    """Return the row and the column of each entry as int64, so that products of these numbers do not overflow."""
    rows = kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz)
    return rows.astype(np.int64), csr.indices.astype(np.int64)
