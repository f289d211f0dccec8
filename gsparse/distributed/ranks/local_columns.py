"""Local numbers of the columns of a rank's rows, the rank's own columns first; and rows put together from parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.canonical import canonical, in_common

HostArray = npt.NDArray[Any]


def union(one: HostArray, other: HostArray) -> HostArray:
    """Return the numbers that are in at least one of two sorted arrays, each once and sorted, as int64."""
    # NumPy's `union1d` takes ten times as long.
    both = np.concatenate([one, other]).astype(np.int64, copy=False)
    both.sort(kind="stable")  # merges sorted runs
    return both[np.append(True, both[1:] != both[:-1])] if both.size else both


def whole_nodes(columns: HostArray, block_size: int) -> HostArray:
    """Return all columns of the nodes to which some columns belong, sorted."""
    if block_size == 1:
        return columns.astype(np.int64, copy=False)
    nodes = np.unique(columns // block_size).astype(np.int64)
    return (nodes[:, None] * block_size + np.arange(block_size)).reshape(-1)


def columns_of_others(device: Device, csr: Csr, own: slice) -> HostArray:
    """Return the columns of other ranks in which rows have entries, sorted, on the host. Synchronizes.

    The columns of `csr` are those of the whole matrix.
    """
    outside = csr.indices[(csr.indices < own.start) | (csr.indices >= own.stop)]
    columns: HostArray = device.download(device.xp.unique(outside))  # synchronizes
    return columns


def with_own_columns(device: Device, csr: Csr, own: slice, ghosts: HostArray) -> Csr:
    """Replace the columns of the whole matrix by local ones, and return the rows in canonical form. Synchronizes.

    `ghosts` is sorted and contains all columns of other ranks in which the rows have entries.
    """
    xp, num_own, columns = device.xp, own.stop - own.start, csr.indices
    is_own = (columns >= own.start) & (columns < own.stop)
    of_ghosts = num_own + xp.searchsorted(device.upload(ghosts), columns)
    local = xp.where(is_own, columns - own.start, of_ghosts)
    shape = (csr.num_rows, num_own + len(ghosts))
    index = np.int32 if max(*shape, csr.nnz) <= MAX_INT32 else np.int64
    return canonical(device, Csr(shape, csr.indptr.astype(index), local.astype(index), csr.data))


def placed(device: Device, csr: Csr, rows: Array, num_rows: int) -> Csr:
    """Return a matrix with `num_rows` rows: the entries of row i of `csr` are in its row ``rows[i]``. Synchronizes.

    If several rows of `csr` are put into one row, their entries follow each other in the order of these rows.
    """
    kernels = kernels_of(device)
    of_entries = rows.astype(csr.indices.dtype)[kernels.sparse_rows.row_numbers(device, csr.indptr, csr.nnz)]
    order, indptr = kernels.transpose.order_by_row(device, of_entries, num_rows)
    return Csr((num_rows, csr.num_cols), indptr, csr.indices[order], csr.data[order])


def beside(device: Device, left: Csr, right: Csr, num_cols: int) -> Csr:
    """Return rows with the entries of `left` and of `right`, in canonical form.

    The columns of both are sorted in each row, and no entry is in both.
    """
    if not right.nnz:
        return replace(left, shape=(left.num_rows, num_cols), is_canonical=True)
    kernels, (left, right) = kernels_of(device), in_common(left, right)
    rows = kernels.sparse_rows.row_numbers(device, right.indptr, right.nnz).astype(np.int64)
    wide = replace(left, shape=(left.num_rows, num_cols))
    columns = right.indices.astype(np.int64)
    return replace(kernels.edits.insert_entries(device, wide, rows, columns, right.data, True), is_canonical=True)
