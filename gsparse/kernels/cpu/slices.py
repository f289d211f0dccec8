"""Set-up of padded formats: the order of rows, where slices begin, and laying items out in them.

The contract is in `gsparse.kernels.contract`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Slices
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.contract import Survey
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN
from gsparse.kernels.cpu.rows import first_row

__all__ = ["SORTING_SCOPE", "bits", "cut_slices", "lay_out", "lay_out_ellpack"]

# Rows among which those of like length are gathered; the GPU's own.
SORTING_SCOPE = 1024

# ELLPACK rows filled at a time: enough that each column is written in whole cache lines, few enough that the rows read
# stay in the cache from one column to the next.
_FILL_ROWS = 64


def cut_slices(
    device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
) -> tuple[Array | None, Array, int]:
    """Order the rows where asked; count and scan the positions of slices."""
    num_rows = indptr.size - 1
    num_slices = -(-num_rows // RUN)
    rows = None
    if sort:
        rows = np.empty(num_slices * RUN, np.int32)
        run_parts(_sort_scopes, 4 * num_rows, indptr, long_length, rows)
    elif long_length != NO_LIMIT:
        rows = np.full(num_slices * RUN, -1, np.int32)
        rows[:num_rows] = np.where(np.diff(indptr) > long_length, -1, np.arange(num_rows))
    offsets = np.zeros(num_slices + 1, np.int64)
    run_parts(_measure_slices, indptr.size, indptr, rows, long_length, offsets)
    np.cumsum(offsets, out=offsets)
    return rows, offsets, int(offsets[-1])


def lay_out(device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
    """Put the items of CSR's order where slices and long rows have them."""
    placed = np.empty(slices.num_positions, items.dtype)
    source, target, fill = bits(items), bits(placed), bits(np.array([padding]).astype(items.dtype))[0]
    offsets, rows, long_rows = slices.slice_offsets, slices.rows, slices.long_rows
    run_parts(_fill_slices, placed.size, indptr, source, offsets, rows, target, fill)
    if long_rows is not None:
        run_parts(_fill_long_rows, placed.size, indptr, source, long_rows.rows, long_rows.begins, target, fill)
    return placed


def lay_out_ellpack(device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any) -> Array:
    """Put the items of CSR's order where ELLPACK has them."""
    placed = np.empty(width * pitch, items.dtype)
    fill = bits(np.array([padding]).astype(items.dtype))[0]
    run_parts(_fill_ellpack, placed.size, indptr, bits(items), width, pitch, bits(placed), fill)
    return placed


def bits(items: Array) -> Array:
    """Give items of up to eight bytes as the integers of their bits: loops that copy need no more types than sizes."""
    return items if items.itemsize > 8 else items.view(f"u{items.itemsize}")


@inlined
def _length(indptr: Array, row: Any) -> Any:
    return np.int64(indptr[np.uint64(row + 1)]) - np.int64(indptr[np.uint64(row)])


@compiled
def _sort_scopes(part: int, num_parts: int, indptr: Array, long_length: int, rows: Array) -> None:
    num_rows = indptr.size - 1
    num_scopes = -(-rows.size // SORTING_SCOPE)
    for scope in range(part * num_scopes // num_parts, (part + 1) * num_scopes // num_parts):
        first, last = scope * SORTING_SCOPE, min((scope + 1) * SORTING_SCOPE, rows.size)
        keys = np.empty(last - first, np.int64)
        for row in range(first, last):
            # By falling length, then by row; what has no place in a slice comes last.
            length = np.int64(-1)
            if row < num_rows and _length(indptr, row) <= long_length:
                length = _length(indptr, row)
            keys[row - first] = -length * SORTING_SCOPE + (row - first)
        keys.sort()
        for place in range(last - first):
            key = keys[place]
            length = -(key // SORTING_SCOPE)
            rows[first + place] = first + key % SORTING_SCOPE if length >= 0 else -1


@compiled
def _measure_slices(
    part: int, num_parts: int, indptr: Array, rows: Array | None, long_length: int, offsets: Array
) -> None:
    """Let ``offsets[s + 1]`` be the positions of slice s."""
    num_rows, num_slices = indptr.size - 1, offsets.size - 1
    for index in range(part * num_slices // num_parts, (part + 1) * num_slices // num_parts):
        width = np.int64(0)
        for place in range(index * RUN, (index + 1) * RUN):
            row = np.int64(place)
            if rows is not None:
                row = np.int64(rows[np.uint64(place)])
            if 0 <= row < num_rows and _length(indptr, row) <= long_length:
                width = max(width, _length(indptr, row))
        offsets[index + 1] = width * RUN


@inlined
def _fill_place(
    indptr: Array, items: Array, row: Any, width: Any, begin: Any, stride: int, placed: Array, padding: Any
) -> None:
    """Put a row's items `stride` apart from `begin` on, then padding, `width` in all; all padding for a row of -1."""
    source, length = np.int64(0), np.int64(0)
    if row >= 0:
        source = np.int64(indptr[np.uint64(row)])
        length = min(_length(indptr, row), width)
    for j in range(length):
        placed[np.uint64(begin + j * stride)] = items[np.uint64(source + j)]
    for j in range(length, width):
        placed[np.uint64(begin + j * stride)] = padding


@compiled
def _fill_slices(
    part: int,
    num_parts: int,
    indptr: Array,
    items: Array,
    offsets: Array,
    rows: Array | None,
    placed: Array,
    padding: Any,
) -> None:
    num_rows = indptr.size - 1
    for index in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        begin = offsets[np.uint64(index)]
        width = (offsets[np.uint64(index + 1)] - begin) // RUN
        for place in range(RUN):
            row = np.int64(index * RUN + place)
            if rows is not None:
                row = np.int64(rows[np.uint64(row)])
            # A long row without an order of rows: what is longer than its slice is not in it.
            if row >= num_rows or (row >= 0 and _length(indptr, row) > width):
                row = np.int64(-1)
            _fill_place(indptr, items, row, width, begin + place, RUN, placed, padding)


@compiled
def _fill_long_rows(
    part: int, num_parts: int, indptr: Array, items: Array, rows: Array, begins: Array, placed: Array, padding: Any
) -> None:
    num_long = rows.size
    for i in range(part * num_long // num_parts, (part + 1) * num_long // num_parts):
        end = begins[i + 1] if i + 1 < num_long else np.int64(placed.size)
        _fill_place(indptr, items, rows[i], end - begins[i], begins[i], 1, placed, padding)


@compiled
def _fill_ellpack(
    part: int, num_parts: int, indptr: Array, items: Array, width: int, pitch: int, placed: Array, padding: Any
) -> None:
    num_rows = indptr.size - 1
    last = (part + 1) * pitch // num_parts
    for first in range(part * pitch // num_parts, last, _FILL_ROWS):
        end = min(first + _FILL_ROWS, last)
        for column in range(width):
            for place in range(first, end):
                item = padding
                if place < num_rows and column < _length(indptr, place):
                    item = items[np.uint64(np.int64(indptr[np.uint64(place)]) + column)]
                placed[np.uint64(column * pitch + place)] = item
