"""The transpose of a matrix in one of three ways, symmetry, and the order of integer keys.

The contract is in `gsparse.kernels.algebra`. The kernels are `src/transpose.cu`, which describes the three ways,
and `src/setup_entries.cu`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.encode import SOURCE as ENTRIES
from gsparse.kernels.gpu.launch import Source, constant, expression, launch_blocks, num_tiles, tally
from gsparse.kernels.gpu.row_classes import find_longest
from gsparse.kernels.gpu.sparse_rows import ITEMS, as_items, point_to_rows, prefix_sums, row_numbers, sum_tiles

_SOURCE = Source("transpose.cu", 256)
# Maximum number of entries, and of columns, of a matrix that one block transposes; its number of threads; and the
# maximum number of bits of a digit.
_SMALL, _SMALL_THREADS = constant(_SOURCE.file, "GS_SMALL"), constant(_SOURCE.file, "GS_SMALL_THREADS")
_SMALL_BITS = constant(_SOURCE.file, "GS_SMALL_BITS")
# With fewer entries, columns are not counted: waiting for the counts takes longer than sorting.
_FEW_ENTRIES = 100_000
# If columns are counted, an entry reads the numbers of all entries of its column. This is the maximum mean of these
# numbers; matrices with longer columns are sorted. On an H200, counting and sorting take the same time for about 170
# numbers (section `phases` of asv_bench/measure_algebra.py).
_MOST_NUMBERS = 128

# Number of bits of a digit, and number of different digits.
_DIGIT_BITS, _DIGITS = constant(_SOURCE.file, "GS_DIGIT_BITS"), constant(_SOURCE.file, "GS_DIGITS")
# Up to this many tiles, one block adds the counts of all tiles, which saves two launches.
_FEW_TILES = 32


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Return the transpose, by the fastest method for its number of entries and its mean column length.

    Synchronizes only if columns are counted.
    """
    if max(csr.nnz, csr.num_cols) <= _SMALL:
        return _transpose_small(device, csr)
    # On average, an entry would read at least as many numbers as the mean length of columns.
    if _FEW_ENTRIES <= csr.nnz <= min(MAX_INT32, _MOST_NUMBERS * csr.num_cols):
        return _transpose_by_counts(device, csr)
    order, columns = sorted_keys(device, csr.indices, csr.num_cols)
    return _transpose_in_order(device, csr, find_bounds(device, columns, csr.num_cols), order)


def _empty_transpose(device: Device, csr: Csr, indptr: Array) -> Csr:
    """Return the transpose with these row pointers. Its columns and values have not been written yet."""
    indices, data = device.empty(csr.nnz, csr.indices.dtype), device.empty(csr.nnz, csr.dtype)
    return Csr(csr.shape[::-1], indptr, indices, data, csr.is_canonical)


def _transpose_small(device: Device, csr: Csr) -> Csr:
    """Return the transpose of a small matrix, whose entries one block sorts."""
    index, bits = csr.indptr.dtype, (csr.num_cols - 1).bit_length() if csr.num_cols else 0
    steps = -(-bits // _SMALL_BITS)
    width = -(-bits // steps) if steps else 0
    transposed = _empty_transpose(device, csr, device.empty(csr.num_cols + 1, index))
    data, new_data = as_items(csr.data), as_items(transposed.data)
    sizes = (np.int32(csr.nnz), np.int64(csr.num_rows), np.int32(csr.num_cols), np.int32(steps), np.int32(width))
    args = (*sizes, csr.indptr, csr.indices, data, transposed.indptr, transposed.indices, new_data)
    launch_blocks(device, _SOURCE.file, expression("transpose_small", data.dtype, index), 1, _SMALL_THREADS, args)
    return transposed


def _transpose_by_counts(device: Device, csr: Csr) -> Csr:
    """Return the transpose, by counting the entries of each column, or by sorting if columns are long. Synchronizes."""
    index, num_cols = csr.indices.dtype, csr.num_cols
    counts, ranks = device.xp.zeros(num_cols, np.int32), device.empty(csr.nnz, np.int32)
    _SOURCE.launch(device, "count_columns", (index,), csr.nnz, (np.int64(csr.nnz), csr.indices, counts, ranks))
    offsets = sum_tiles(device, counts)
    args: Any = (np.int64(num_cols), counts, *tally(device, num_tiles(num_cols), 1))
    _SOURCE.launch_tiles(device, "sum_squares", (counts.dtype,), num_cols, args)
    find_longest(device, counts, num_cols, 1, 2)
    _, num_read, longest = device.counts.read(3)  # synchronizes
    indptr = point_to_rows(device, counts, offsets, index)
    if num_read > _MOST_NUMBERS * csr.nnz:
        del ranks
        return _transpose_in_order(device, csr, indptr, stable_order(device, csr.indices, num_cols))
    # The entries of a column are ordered by row number, or by entry number if a row may have several of them.
    numbers = None if csr.is_canonical else device.empty(csr.nnz, np.int32)
    rows, placed = device.empty(csr.nnz, index), device.empty(csr.nnz, as_items(csr.data).dtype)
    data, sizes = as_items(csr.data), (np.int64(csr.nnz), np.int64(csr.num_rows))
    args = (*sizes, csr.indptr, csr.indices, data, ranks, indptr, rows, numbers, placed)
    _SOURCE.launch_tiles(device, "place_by_rank", (data.dtype, index), csr.nnz + csr.num_rows, args)
    del ranks
    transposed = replace(_empty_transpose(device, csr, indptr), longest=longest)
    sizes = (np.int64(csr.nnz), np.int64(num_cols))
    args = (*sizes, indptr, rows, numbers, placed, transposed.indices, as_items(transposed.data))
    _SOURCE.launch_tiles(device, "order_entries", (data.dtype, index), csr.nnz + num_cols, args)
    return transposed


def _transpose_in_order(device: Device, csr: Csr, indptr: Array, order: Array) -> Csr:
    """Return the transpose, whose entry p is entry ``order[p]`` of the matrix."""
    rows, transposed = row_numbers(device, csr.indptr, csr.nnz), _empty_transpose(device, csr, indptr)
    data, new_data = as_items(csr.data), as_items(transposed.data)
    args = (np.int64(csr.nnz), order, rows, data, transposed.indices, new_data)
    _SOURCE.launch(device, "place_entries", (data.dtype, rows.dtype, order.dtype), csr.nnz, args)
    return transposed


def stable_order(device: Device, keys: Array, bound: int, numbers: Array | None = None) -> Array:
    """Return the order of the keys, which are sorted digit by digit from the lowest digit on."""
    return sorted_keys(device, keys, bound, numbers)[0]


def sorted_keys(device: Device, keys: Array, bound: int, numbers: Array | None = None) -> tuple[Array, Array]:
    """Return the numbers of the keys, sorted by key, and the sorted keys."""
    size, bits = int(keys.size), max(1, (bound - 1).bit_length())
    tiles, steps = num_tiles(size), -(-bits // _DIGIT_BITS)
    width = -(-bits // steps)
    number = np.dtype(np.int32 if size <= MAX_INT32 else np.int64) if numbers is None else numbers.dtype
    for shift in range(0, bits, width) if size else ():
        digit = (np.int32(shift), np.int32((1 << min(width, bits - shift)) - 1), np.int64(size), keys)
        sorted_keys, sorted_numbers = device.empty(size, keys.dtype), device.empty(size, number)
        args: Any = (*digit, numbers, _places_of_digits(device, digit, tiles), sorted_keys, sorted_numbers)
        _SOURCE.launch_tiles(device, "place_digits", (keys.dtype, number), size, args)
        keys, numbers = sorted_keys, sorted_numbers
    return device.empty(0, number) if numbers is None else numbers, keys


def _places_of_digits(device: Device, digit: tuple[Any, ...], tiles: int) -> Array:
    """Return, for each digit and tile, the position of the first key with this digit."""
    counts, keys = device.empty(_DIGITS * tiles, np.int32), digit[-1]
    places, arrivals, _ = tally(device, _DIGITS * tiles if tiles <= _FEW_TILES else 0)
    args = (*digit, counts, arrivals, places if tiles <= _FEW_TILES else None)
    _SOURCE.launch_tiles(device, "count_digits", (keys.dtype,), keys.size, args)
    return places if tiles <= _FEW_TILES else prefix_sums(device, counts, is_total_read=False)


def order_by_row(device: Device, rows: Array, num_rows: int) -> tuple[Array, Array]:
    """Sort the entries by row, then search for the first entry of each row."""
    order, sorted_rows = sorted_keys(device, rows, num_rows)
    return order, find_bounds(device, sorted_rows, num_rows)


def find_bounds(device: Device, keys: Array, bound: int) -> Array:
    """Return, for each number from 0 to `bound`, how many of the sorted keys are less."""
    bounds = device.empty(bound + 1, keys.dtype)
    args: Any = (np.int64(keys.size), np.int64(bound), keys, bounds)
    _SOURCE.launch(device, "find_bounds", (keys.dtype,), bound + 1, args)
    return bounds


def is_symmetric(device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
    """Search the mirror image of each entry by bisection. Synchronizes."""
    differs = device.xp.zeros(1, np.int32)
    data = csr.data if csr.dtype in COMPUTE_DTYPES else csr.data.astype(np.int64)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, data, np.int32(hermitian), np.float64(tolerance), differs)
    ENTRIES.launch(device, "mirrored", (csr.indptr.dtype, data.dtype), csr.num_rows, args)
    return not device.download(differs)[0]  # synchronizes


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    return [
        *_SOURCE.variants("sum_squares", (np.dtype(np.int32),)),
        *_SOURCE.variants("count_columns count_digits find_bounds", INDEX_DTYPES),
        *_SOURCE.variants("transpose_small place_by_rank order_entries", ITEMS, INDEX_DTYPES),
        *_SOURCE.variants("place_entries", ITEMS, INDEX_DTYPES, INDEX_DTYPES),
        *_SOURCE.variants("place_digits", INDEX_DTYPES, INDEX_DTYPES),
        *ENTRIES.variants("mirrored", INDEX_DTYPES, COMPUTE_DTYPES),
    ]
