"""The order of integer keys, and the transpose of a matrix (kernels: `src/sort.cu`)."""

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
from gsparse.kernels.gpu.row_classes import sizes_and_longest
from gsparse.kernels.gpu.sparse_rows import ITEMS, as_items, point_to_rows, prefix_sums, row_numbers
from gsparse.kernels.gpu.tallies import TILE_THREADS, num_tiles, tally

__all__ = ["csr_transpose", "instantiations", "order_by_row", "stable_order"]

_SOURCE = "sort.cu"
_THREADS = 256
# Bits of a digit, and digits (GS_DIGIT_BITS, GS_DIGITS).
_DIGIT_BITS, _DIGITS = 8, 256
# Tiles up to which one block adds up the counts of all tiles, which saves two launches.
_FEW_TILES = 32
# Entries from which on a transpose counts its columns: for fewer, to wait for the counts takes longer than to sort.
_FEW_ENTRIES = 100_000
# The longest column whose entries each read all of its numbers; the entries of a matrix with longer columns are sorted.
# Counting first, and sorting at once, on an H200, ms: 7-point 200**3 1.7 and 5.3, 27-point 100**3 1.1 and 2.3. The
# smoothed prolongator P of 200**3 has columns of 81 entries, and A·P longer ones. To count these is in vain: 1.9
# instead of 1.6, and 4.1 instead of 3.3.
_SHORT_COLUMN = 64


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = []
    for index in INDEX_DTYPES:
        kernels = ("count_digits", "find_bounds", "count_columns", "place_numbers")
        names += [expression(name, index) for name in kernels]
        names += [expression("settle_entries", item, index) for item in ITEMS]
        names += [expression("place_digits", index, number) for number in INDEX_DTYPES]
        names += [expression("place_entries", item, index, number) for item, number in product(ITEMS, INDEX_DTYPES)]
    return [(_SOURCE, name) for name in names]


def stable_order(device: Device, keys: Array, bound: int, numbers: Array | None = None) -> Array:
    """Sort by digits, from the lowest one on."""
    return _sorted(device, keys, bound, numbers)[0]


def _sorted(device: Device, keys: Array, bound: int, numbers: Array | None = None) -> tuple[Array, Array]:
    """Return the numbers of the keys in the order of the keys, and the sorted keys."""
    size, bits = int(keys.size), max(1, (bound - 1).bit_length())
    tiles, steps = num_tiles(size), -(-bits // _DIGIT_BITS)
    width = -(-bits // steps)
    number = np.dtype(np.int32 if size <= MAX_INT32 else np.int64) if numbers is None else numbers.dtype
    for shift in range(0, bits, width) if size else ():
        digit = (np.int32(shift), np.int32((1 << min(width, bits - shift)) - 1), np.int64(size), keys)
        sorted_keys, sorted_numbers = device.empty(size, keys.dtype), device.empty(size, number)
        args: Any = (*digit, numbers, _places_of_digits(device, digit, tiles), sorted_keys, sorted_numbers)
        launch_blocks(device, _SOURCE, expression("place_digits", keys.dtype, number), tiles, TILE_THREADS, args)
        keys, numbers = sorted_keys, sorted_numbers
    return device.empty(0, number) if numbers is None else numbers, keys


def _places_of_digits(device: Device, digit: tuple[Any, ...], tiles: int) -> Array:
    """Return where the keys with each digit begin, for each tile."""
    counts, keys = device.empty(_DIGITS * tiles, np.int32), digit[-1]
    places, arrivals, _ = tally(device, _DIGITS * tiles if tiles <= _FEW_TILES else 0)
    args = (*digit, counts, arrivals, places if tiles <= _FEW_TILES else None)
    launch_blocks(device, _SOURCE, expression("count_digits", keys.dtype), tiles, TILE_THREADS, args)
    return places if tiles <= _FEW_TILES else prefix_sums(device, counts)


def order_by_row(device: Device, rows: Array, num_rows: int) -> tuple[Array, Array]:
    """Sort the entries by row, then search for the first one of each row."""
    order, sorted_rows = _sorted(device, rows, num_rows)
    return order, _bounds(device, sorted_rows, num_rows)


def _bounds(device: Device, keys: Array, bound: int) -> Array:
    """Return the number of keys less than each of 0 to `bound`; the keys are sorted."""
    bounds = device.empty(bound + 1, keys.dtype)
    args: Any = (np.int64(keys.size), np.int64(bound), keys, bounds)
    launch_threads(device, _SOURCE, expression("find_bounds", keys.dtype), bound + 1, _THREADS, args)
    return bounds


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Sort the entries by column, in which entries of one column keep the order of their rows.

    Columns are counted first if there are more than a few entries, and need no sort if they are short. Then it
    synchronizes.
    """
    if not _FEW_ENTRIES <= csr.nnz <= MAX_INT32:
        order, columns = _sorted(device, csr.indices, csr.num_cols)
        return _transpose_in_order(device, csr, _bounds(device, columns, csr.num_cols), order)
    counts, ranks = device.xp.zeros(csr.num_cols, np.int32), device.empty(csr.nnz, np.int32)
    _launch_entries(device, csr, expression("count_columns", csr.indices.dtype), (csr.indices, counts, ranks))
    offsets, _, longest = sizes_and_longest(device, counts)  # synchronizes
    indptr = point_to_rows(device, counts, offsets, csr.indptr.dtype)
    if longest > _SHORT_COLUMN:
        del ranks
        return _transpose_in_order(device, csr, indptr, stable_order(device, csr.indices, csr.num_cols))
    numbers = device.empty(csr.nnz, np.int32)
    args = (csr.indices, ranks, indptr, numbers)
    _launch_entries(device, csr, expression("place_numbers", csr.indices.dtype), args)
    return _transposed(device, csr, indptr, "settle_entries", (), (csr.indices, indptr, numbers))


def _transpose_in_order(device: Device, csr: Csr, indptr: Array, order: Array) -> Csr:
    """Return the transpose, whose entry p is entry ``order[p]`` of the matrix."""
    return _transposed(device, csr, indptr, "place_entries", (order.dtype,), (order,))


def _transposed(
    device: Device, csr: Csr, indptr: Array, kernel: str, types: tuple[Any, ...], places: tuple[Array, ...]
) -> Csr:
    """Bring the entries to their places in the transpose, whose row pointers are known."""
    index, rows = csr.indptr.dtype, row_numbers(device, csr.indptr, csr.nnz)
    transposed = Csr(csr.shape[::-1], indptr, device.empty(csr.nnz, index), device.empty(csr.nnz, csr.dtype))
    data, new_data = as_items(csr.data), as_items(transposed.data)
    name = expression(kernel, data.dtype, index, *types)
    _launch_entries(device, csr, name, (*places, rows, data, transposed.indices, new_data))
    return transposed


def _launch_entries(device: Device, csr: Csr, name: str, args: tuple[Array, ...]) -> None:
    """Launch a kernel with a thread for each entry."""
    launch_threads(device, _SOURCE, name, csr.nnz, _THREADS, (np.int64(csr.nnz), *args))
