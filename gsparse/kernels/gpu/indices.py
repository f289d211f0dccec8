"""Lists of row or column numbers: checked, and turned into places (kernels: `src/indices.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks
from gsparse.kernels.gpu.tallies import TILE_THREADS, num_tiles, tally

_SOURCE = "indices.cu"
# The byte of which -1 consists.
_ALL_BITS = 0xFF


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = [
        expression(name, index)
        for name in ("check_numbers", "count_numbers", "place_numbers")
        for index in INDEX_DTYPES
    ]
    return [(_SOURCE, name) for name in names]


def numbers_from_start(device: Device, numbers: Array, size: int) -> Array | None:
    """Check each number and add the size to negative ones. Synchronizes."""
    if numbers.dtype == np.uint64 and not are_in_range(device, numbers, size):  # synchronizes
        return None  # As int64, the largest numbers would be negative ones.
    checked = device.empty(int(numbers.size), np.int64)
    return checked if _are_valid(device, numbers, size, checked) else None  # synchronizes


def are_in_range(device: Device, numbers: Array, size: int) -> bool:
    """Check each number. Synchronizes."""
    return _are_valid(device, numbers, size, None)  # synchronizes


def _are_valid(device: Device, numbers: Array, size: int, checked: Array | None) -> bool:
    count = int(numbers.size)
    if not count:
        return True
    if numbers.dtype not in INDEX_DTYPES or not numbers.flags.c_contiguous:
        numbers = device.xp.ascontiguousarray(numbers, np.int64)
    blocks = num_tiles(count)
    args: Any = (np.int64(count), np.int64(size), numbers, checked, *tally(device, blocks))
    launch_blocks(device, _SOURCE, expression("check_numbers", numbers.dtype), blocks, TILE_THREADS, args)
    return device.counts.read() == [0]  # synchronizes


def count_numbers(device: Device, numbers: Array, size: int) -> Array:
    """Add one for each number, in any order."""
    counts = device.xp.zeros(size, np.int64)
    name, blocks = expression("count_numbers", numbers.dtype), num_tiles(int(numbers.size))
    launch_blocks(device, _SOURCE, name, blocks, TILE_THREADS, (np.int64(numbers.size), numbers, counts))
    return counts


def places_of(device: Device, numbers: Array, size: int, dtype: Any) -> Array | None:
    """Claim the place of each number. Synchronizes."""
    count, places = int(numbers.size), device.empty(size, dtype)
    device.fill_bytes(places, _ALL_BITS)
    if not count:
        return places
    blocks = num_tiles(count)
    args: Any = (np.int64(count), numbers, places, *tally(device, blocks))
    launch_blocks(device, _SOURCE, expression("place_numbers", places.dtype), blocks, TILE_THREADS, args)
    return places if device.counts.read() == [0] else None  # synchronizes
