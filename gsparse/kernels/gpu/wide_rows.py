"""Rows of a product of two sparse matrices that no table holds (kernels: `src/sparse_products_wide.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.row_classes import RowClass
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.sparse_rows import point_to_rows, row_pointers, sum_tiles
from gsparse.kernels.gpu.tallies import TILE_THREADS

_SOURCE = "sparse_products_wide.cu"
_THREADS = constant(_SOURCE, "GS_WIDE_THREADS")
# Columns of a window, and entries of a window of values of up to 8 bytes and of more.
_COLUMNS = constant(_SOURCE, "GS_WINDOW_COLUMNS")
_ENTRIES = constant(_SOURCE, "GS_WINDOW_ENTRIES"), constant(_SOURCE, "GS_WINDOW_ENTRIES") // 2
# Blocks that are launched without asking how many have a window: to wait for that number takes longer than to start
# blocks that have nothing to do.
_FEW_BLOCKS = 4096
# The most lanes that go through a row of B together.
_MAX_LANES = constant(_SOURCE, "GS_WIDE_LANES")


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = []
    for index in INDEX_DTYPES:
        names += [expression(n, index) for n in ("spgemm_count_wide", "spgemm_columns_wide", "count_windows")]
        names += [expression("spgemm_values_wide", dtype, index) for dtype in COMPUTE_DTYPES]
    return [(_SOURCE, name) for name in names]


def count(device: Device, group: RowClass, a: Csr, b: Csr, sizes: Array | None) -> Array:
    """Add the numbers of columns of wide rows to `sizes`, and return those of each window of columns."""
    windows, index = _num_windows(b), a.indices.dtype
    counts = device.empty(group.count * windows, np.int32)
    args: Any = (*_shape_of(group.rows, group.count, b), a.indptr, a.indices, b.indptr, b.indices, counts, sizes)
    name = expression("spgemm_count_wide", index)
    launch_blocks(device, _SOURCE, name, group.count * windows, TILE_THREADS, args)
    return counts


def fill_columns(device: Device, rows: Array | None, num_rows: int, a: Csr, b: Csr, c: Csr) -> None:
    """Write the columns of wide rows to `c`."""
    counts = count(device, RowClass(0, rows, num_rows), a, b, None) if _num_windows(b) > 1 else None
    structure = (a.indptr, a.indices, b.indptr, b.indices, counts, c.indptr, c.indices)
    args: Any = (*_shape_of(rows, num_rows, b), *structure)
    name = expression("spgemm_columns_wide", c.indices.dtype)
    launch_blocks(device, _SOURCE, name, num_rows * _num_windows(b), TILE_THREADS, args)


def fill_values(
    device: Device, rows: Array | None, num_rows: int, a: Csr, b: Csr, c: Csr, flags: tuple[Array | None, Array | None]
) -> None:
    """Write the values of wide rows, whose columns are known, to `c`. May synchronize.

    The flags, if there are any, are set if a value is 0.
    """
    index, size = c.indices.dtype, _ENTRIES[c.dtype.itemsize > 8]
    windows = device.empty(num_rows, index)
    args: Any = (np.int32(size), np.int64(num_rows), rows, c.indptr, windows)
    launch_threads(device, _SOURCE, expression("count_windows", index), num_rows, TILE_THREADS, args)
    blocks = num_rows + c.nnz // size  # or fewer
    if blocks <= _FEW_BLOCKS:
        first_window = point_to_rows(device, windows, sum_tiles(device, windows, is_total_read=False), index)
    else:
        first_window, blocks = row_pointers(device, windows)  # synchronizes
    arrays = (a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, c.indptr, c.indices, c.data)
    name = expression("spgemm_values_wide", c.dtype, index)
    launch_blocks(device, _SOURCE, name, blocks, _THREADS, (np.int64(num_rows), rows, first_window, *arrays, *flags))


def _num_windows(b: Csr) -> int:
    return -(-b.num_cols // _COLUMNS)


def _shape_of(rows: Array | None, num_rows: int, b: Csr) -> tuple[Any, ...]:
    """Return the arguments for the rows: windows, lanes of a row of B, number of rows, and the rows."""
    lanes = min(1 << (b.nnz // max(b.num_rows, 1)).bit_length(), _MAX_LANES)
    return np.int64(_num_windows(b)), np.int32(lanes), np.int64(num_rows), rows
