"""The order of integer keys (kernels: `src/sort.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.sparse_rows import prefix_sums
from gsparse.kernels.gpu.tallies import TILE_THREADS, num_tiles, tally

_SOURCE = "sort.cu"
_THREADS = 256
# Bits of a digit, and digits.
_DIGIT_BITS, _DIGITS = constant(_SOURCE, "GS_DIGIT_BITS"), constant(_SOURCE, "GS_DIGITS")
# Tiles up to which one block adds up the counts of all tiles, which saves two launches.
_FEW_TILES = 32


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = []
    for index in INDEX_DTYPES:
        names += [expression(name, index) for name in ("count_digits", "find_bounds")]
        names += [expression("place_digits", index, number) for number in INDEX_DTYPES]
    return [(_SOURCE, name) for name in names]


def stable_order(device: Device, keys: Array, bound: int, numbers: Array | None = None) -> Array:
    """Sort by digits, from the lowest one on."""
    return sorted_keys(device, keys, bound, numbers)[0]


def sorted_keys(device: Device, keys: Array, bound: int, numbers: Array | None = None) -> tuple[Array, Array]:
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
    return places if tiles <= _FEW_TILES else prefix_sums(device, counts, is_total_read=False)


def order_by_row(device: Device, rows: Array, num_rows: int) -> tuple[Array, Array]:
    """Sort the entries by row, then search for the first one of each row."""
    order, sorted_rows = sorted_keys(device, rows, num_rows)
    return order, find_bounds(device, sorted_rows, num_rows)


def find_bounds(device: Device, keys: Array, bound: int) -> Array:
    """Return the number of keys less than each of 0 to `bound`; the keys are sorted."""
    bounds = device.empty(bound + 1, keys.dtype)
    args: Any = (np.int64(keys.size), np.int64(bound), keys, bounds)
    launch_threads(device, _SOURCE, expression("find_bounds", keys.dtype), bound + 1, _THREADS, args)
    return bounds
