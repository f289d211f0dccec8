"""The transpose of a matrix, in one of three ways (kernels: `src/transpose.cu`, which describes them)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.sort import find_bounds, sorted_keys, stable_order
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.sparse_rows import ITEMS, as_items, point_to_rows, row_numbers, sum_tiles
from gsparse.kernels.gpu.tallies import TILE_THREADS, num_tiles, tally

_SOURCE = "transpose.cu"
_THREADS = 256
# The most entries, and the most columns, of a matrix that one block transposes, the threads of the block, and the most
# bits of a digit.
_SMALL, _SMALL_THREADS = constant(_SOURCE, "GS_SMALL"), constant(_SOURCE, "GS_SMALL_THREADS")
_SMALL_BITS = constant(_SOURCE, "GS_SMALL_BITS")
# Entries from which on columns are counted: for fewer, to wait for the counts takes longer than to sort.
_FEW_ENTRIES = 100_000
# The most numbers of its column that an entry reads on average, where columns are counted; the entries of a matrix with
# longer columns are sorted. On an H200, an earlier version took these ms to count and to sort: 1.7 and 5.3 for columns
# of 7 entries (7-point 200**3), 1.1 and 2.3 for columns of 27 (27-point 100**3). To read one more number takes about
# 0.14 ns for 1000 entries, so the two are equal at about 170 numbers. Section `phases` of asv_bench/measure_algebra.py
# measures both.
_MOST_NUMBERS = 128


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = [expression("sum_squares", np.dtype(np.int32))]
    for index in INDEX_DTYPES:
        names.append(expression("count_columns", index))
        kernels = ("transpose_small", "place_by_rank", "order_entries")
        names += [expression(name, item, index) for name, item in product(kernels, ITEMS)]
        names += [expression("place_entries", item, index, number) for item, number in product(ITEMS, INDEX_DTYPES)]
    return [(_SOURCE, name) for name in names]


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Choose the way by the number of entries and the mean length of columns, and count columns only if it may pay.

    Only a transpose of which the columns are counted synchronizes.
    """
    if max(csr.nnz, csr.num_cols) <= _SMALL:
        return _transpose_small(device, csr)
    # The mean number of numbers that entries would read is at least the mean length of columns.
    if _FEW_ENTRIES <= csr.nnz <= min(MAX_INT32, _MOST_NUMBERS * csr.num_cols):
        return _transpose_by_counts(device, csr)
    order, columns = sorted_keys(device, csr.indices, csr.num_cols)
    return _transpose_in_order(device, csr, find_bounds(device, columns, csr.num_cols), order)


def _empty_transpose(device: Device, csr: Csr, indptr: Array) -> Csr:
    """Return the transpose with these row pointers; its columns and values are still to be written."""
    indices, data = device.empty(csr.nnz, csr.indices.dtype), device.empty(csr.nnz, csr.dtype)
    return Csr(csr.shape[::-1], indptr, indices, data, csr.is_canonical)


def _transpose_small(device: Device, csr: Csr) -> Csr:
    """Sort the entries in one block."""
    index, bits = csr.indptr.dtype, (csr.num_cols - 1).bit_length() if csr.num_cols else 0
    steps = -(-bits // _SMALL_BITS)
    width = -(-bits // steps) if steps else 0
    transposed = _empty_transpose(device, csr, device.empty(csr.num_cols + 1, index))
    data, new_data = as_items(csr.data), as_items(transposed.data)
    sizes = (np.int32(csr.nnz), np.int64(csr.num_rows), np.int32(csr.num_cols), np.int32(steps), np.int32(width))
    args = (*sizes, csr.indptr, csr.indices, data, transposed.indptr, transposed.indices, new_data)
    launch_blocks(device, _SOURCE, expression("transpose_small", data.dtype, index), 1, _SMALL_THREADS, args)
    return transposed


def _transpose_by_counts(device: Device, csr: Csr) -> Csr:
    """Count the entries of each column. Sort the entries if columns turn out to be long. Synchronizes."""
    index, num_cols = csr.indices.dtype, csr.num_cols
    counts, ranks = device.xp.zeros(num_cols, np.int32), device.empty(csr.nnz, np.int32)
    _launch_entries(device, csr, expression("count_columns", index), (csr.indices, counts, ranks))
    offsets = sum_tiles(device, counts)
    blocks = num_tiles(num_cols)
    args: Any = (np.int64(num_cols), counts, *tally(device, blocks, 1))
    launch_blocks(device, _SOURCE, expression("sum_squares", counts.dtype), blocks, TILE_THREADS, args)
    _, num_read = device.counts.read(2)  # synchronizes
    indptr = point_to_rows(device, counts, offsets, index)
    if num_read > _MOST_NUMBERS * csr.nnz:
        del ranks
        return _transpose_in_order(device, csr, indptr, stable_order(device, csr.indices, num_cols))
    # Rows are as good as numbers to bring the entries of a column into their order, if no two are in the same row.
    numbers = None if csr.is_canonical else device.empty(csr.nnz, np.int32)
    rows, placed = device.empty(csr.nnz, index), device.empty(csr.nnz, as_items(csr.data).dtype)
    data, sizes = as_items(csr.data), (np.int64(csr.nnz), np.int64(csr.num_rows))
    args = (*sizes, csr.indptr, csr.indices, data, ranks, indptr, rows, numbers, placed)
    name, blocks = expression("place_by_rank", data.dtype, index), num_tiles(csr.nnz + csr.num_rows)
    launch_blocks(device, _SOURCE, name, blocks, TILE_THREADS, args)
    del ranks
    transposed = _empty_transpose(device, csr, indptr)
    sizes = (np.int64(csr.nnz), np.int64(num_cols))
    args = (*sizes, indptr, rows, numbers, placed, transposed.indices, as_items(transposed.data))
    name, blocks = expression("order_entries", data.dtype, index), num_tiles(csr.nnz + num_cols)
    launch_blocks(device, _SOURCE, name, blocks, TILE_THREADS, args)
    return transposed


def _transpose_in_order(device: Device, csr: Csr, indptr: Array, order: Array) -> Csr:
    """Return the transpose, whose entry p is entry ``order[p]`` of the matrix."""
    rows, transposed = row_numbers(device, csr.indptr, csr.nnz), _empty_transpose(device, csr, indptr)
    data, new_data = as_items(csr.data), as_items(transposed.data)
    name = expression("place_entries", data.dtype, rows.dtype, order.dtype)
    _launch_entries(device, csr, name, (order, rows, data, transposed.indices, new_data))
    return transposed


def _launch_entries(device: Device, csr: Csr, name: str, args: tuple[Array, ...]) -> None:
    """Launch a kernel with a thread for each entry."""
    launch_threads(device, _SOURCE, name, csr.nnz, _THREADS, (np.int64(csr.nnz), *args))
