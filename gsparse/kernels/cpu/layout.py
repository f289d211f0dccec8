"""Statistics of a structure, and positions of entries in padded formats (contract: `gsparse.kernels.set_up`).

The loops of the survey compute statistics of blocks of `_BLOCK_ROWS` rows. Each part owns the same number of
consecutive blocks, and writes one row of statistics for each block.

NumPy sorts rows and measures slices, because a sort compiled by numba takes twice as long, after two seconds of
compilation. In loops that copy items, each part owns consecutive slices with about the same number of positions, or the
same number of long rows or of ELLPACK rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr, LaneSlices, LongRows, Slices
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN
from gsparse.kernels.cpu.rows import first_row
from gsparse.kernels.set_up import Survey

# Rows with more entries than this are long rows, which are not stored in slices. With this limit, sorted slices and
# long rows of the matrices cnr-2000 and R-MAT 18 have 1.15 and 1.22 positions per entry.
LONG_LENGTH = 128

# In scalar and vector CSR, no row counts as long, because one thread sums each row.
SCALAR_LENGTH = NO_LIMIT
# Number of entries in a chunk of a long row. Summing a chunk takes microseconds. So threads share the chunks evenly,
# and adding up the sums of the chunks is cheap.
CHUNK_SIZE = 4096

# Number of rows of a block of a survey, a multiple of a slice. The number is fixed, so that results do not depend on
# the number of threads.
_BLOCK_ROWS = 4096
# The statistics of each block, in this order: sums, minima, maxima.
_SUMS = (
    "num_empty", "sum_squares", "blocked_stored", "split_stored", "num_long", "long_entries", "num_falls",
    "num_unsorted",
)  # fmt: skip
_LEAST, _GREATEST = ("min_length", "min_column"), ("max_length", "max_column")

# Rows are sorted by length within groups (scopes) of this many consecutive rows, as on a GPU.
SORTING_SCOPE = 1024

# Number of rows that one call of NumPy's sort sorts, a multiple of SORTING_SCOPE. Their row numbers stay in the cache.
_SORTED_AT_ONCE = 2**16

# Number of ELLPACK rows of which one column is filled before the next column. They are enough to write each column in
# complete cache lines, and so few that the rows that are read stay in the cache until the next column is filled.
_FILL_ROWS = 64


def survey(device: Device, indptr: Array, indices: Array, spans: bool) -> Survey:
    """Compute the statistics. `spans` is ignored, because the CPU does not narrow columns in CSR order."""
    num_rows = indptr.size - 1
    first, last = int(indptr[0]), int(indptr[-1])
    names = (*_SUMS, *_LEAST, *_GREATEST)
    measured = np.zeros((-(-num_rows // _BLOCK_ROWS), len(names)), np.int64)
    # Columns are measured row by row, which is possible only if the row pointers are valid.
    run_parts(_measure_lengths, num_rows, indptr, LONG_LENGTH, measured)
    facts: dict[str, Any] = dict.fromkeys(names, 0)
    falls = int(measured[:, _SUMS.index("num_falls")].sum())
    if num_rows and first == 0 and not falls and last <= indices.size:
        run_parts(_measure_columns, last + num_rows, indptr, indices, measured)
    if num_rows:
        facts |= dict(zip(_SUMS, measured[:, : len(_SUMS)].sum(axis=0).tolist(), strict=True))
        least, greatest = measured[:, len(_SUMS) : -2], measured[:, -2:]
        facts |= dict(zip(_LEAST, least.min(axis=0).tolist(), strict=True))
        facts |= dict(zip(_GREATEST, greatest.max(axis=0).tolist(), strict=True))
    if last == 0:
        facts["min_column"] = facts["max_column"] = 0
    return Survey(**facts, first=first, last=last, run_span=0)


def long_rows(
    device: Device, indptr: Array, survey: Survey, limit: int, first: int | None = None
) -> tuple[LongRows, int]:
    """Find the rows that are longer than `limit`, in ascending order of their numbers."""
    lengths = np.diff(indptr).astype(np.int64)
    rows = np.flatnonzero(lengths > limit)
    lengths, end = lengths[rows], 0
    begins = indptr[rows].astype(np.int64)
    if first is not None:
        places = -(-lengths // RUN) * RUN
        begins, end = first + np.cumsum(places) - places, first + int(places.sum())
    chunks = -(-lengths // CHUNK_SIZE)
    first_chunk = np.zeros(rows.size + 1, np.int32)
    np.cumsum(chunks, out=first_chunk[1:])
    chunk_rows = np.repeat(np.arange(rows.size, dtype=np.int32), chunks)
    args = (rows.astype(np.int32), begins, begins + lengths, first_chunk, chunk_rows)
    return LongRows(*args, CHUNK_SIZE, limit), end


@inlined
def _length(indptr: Array, row: Any) -> Any:
    return np.int64(indptr[np.uint64(row + 1)]) - np.int64(indptr[np.uint64(row)])


@compiled
def _measure_lengths(part: int, num_parts: int, indptr: Array, long_length: int, measured: Array) -> None:
    num_blocks, num_rows = measured.shape[0], indptr.size - 1
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        last = min((block + 1) * _BLOCK_ROWS, num_rows)
        shortest, longest = _length(indptr, block * _BLOCK_ROWS), np.int64(0)
        empty = squares = padded = padded_short = num_long = long_entries = falls = np.int64(0)
        for first in range(block * _BLOCK_ROWS, last, RUN):
            width, short_width = np.int64(0), np.int64(0)
            for row in range(first, min(first + RUN, last)):
                length = _length(indptr, row)
                shortest, width = min(shortest, length), max(width, length)
                empty += length == 0
                falls += length < 0
                squares += length * length
                if length > long_length:
                    num_long += 1
                    long_entries += length
                else:
                    short_width = max(short_width, length)
            longest = max(longest, width)
            padded += width * RUN
            padded_short += short_width * RUN
        sums = (empty, squares, padded, padded_short, num_long, long_entries, falls)
        for i in range(7):
            measured[block, i] = sums[i]
        measured[block, 8], measured[block, 10] = shortest, longest


@compiled
def _measure_columns(part: int, num_parts: int, indptr: Array, indices: Array, measured: Array) -> None:
    """For each block, count unsorted entries, and find the smallest and the largest column."""
    num_blocks, num_rows = measured.shape[0], indptr.size - 1
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        unsorted, low, high = np.int64(0), np.int64(2**62), np.int64(-1)
        for row in range(block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, num_rows)):
            before = np.int64(-(2**62))
            for k in range(np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])):
                column = np.int64(indices[np.uint64(k)])
                unsorted += column <= before
                low, high, before = min(low, column), max(high, column), column
        measured[block, 7], measured[block, 9], measured[block, 11] = unsorted, low, high


class Copy(NamedTuple):
    """Items in CSR order, and the array `placed` to which the items are copied. All other positions get `padding`."""

    indptr: Array
    items: Array
    placed: Array
    padding: Any


def cut_slices(
    device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
) -> tuple[Array | None, Array, int]:
    """Sort the rows if `sort`, and count the positions of each slice."""
    num_rows = indptr.size - 1
    num_slices = -(-num_rows // RUN)
    lengths = np.full(num_slices * RUN, -1, np.int64)  # -1 for a place without a row, and for a long row
    np.subtract(indptr[1:], indptr[:-1], out=lengths[:num_rows])
    if long_length != NO_LIMIT:
        lengths[lengths > long_length] = -1
    rows = None
    if sort:
        rows = _sort_in_scopes(lengths)
    elif long_length != NO_LIMIT:
        rows = np.where(lengths < 0, -1, np.arange(lengths.size, dtype=np.int32))
    offsets = np.zeros(num_slices + 1, np.int64)
    np.cumsum(RUN * np.maximum(lengths.reshape(-1, RUN).max(axis=1), 0), out=offsets[1:])
    return rows, offsets, int(offsets[-1])


def _sort_in_scopes(lengths: Array) -> Array:
    """Sort lengths in place, in descending order within each scope. Return the row number of each length.

    Rows of the same length are sorted by number. Length -1 stands for a place without a row, and comes last.
    """
    rows = np.empty(lengths.size, np.int32)
    for first in range(0, lengths.size, _SORTED_AT_ONCE):
        part = lengths[first : first + _SORTED_AT_ONCE]
        places = np.arange(-(-part.size // SORTING_SCOPE) * SORTING_SCOPE)
        # Encode length and place in one number. For example, row 3 of a scope gets -5 * SORTING_SCOPE + 3 if it has 5
        # entries.
        keys = np.full(places.size, SORTING_SCOPE)
        keys[: part.size] = -SORTING_SCOPE * part
        keys += places % SORTING_SCOPE
        keys.reshape(-1, SORTING_SCOPE).sort(axis=1)
        keys, places = keys[: part.size], places[: part.size]
        part[:] = -(keys // SORTING_SCOPE)
        rows[first : first + part.size] = first + places - places % SORTING_SCOPE + keys % SORTING_SCOPE
    rows[lengths < 0] = -1
    return rows


def lay_out(device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
    """Copy items from CSR order to the positions of slices and long rows."""
    placed = np.empty(slices.num_positions, items.dtype)
    copy, long_rows = _copy_of(indptr, items, placed, padding), slices.long_rows
    run_parts(_fill_slices, placed.size, slices.slice_offsets, slices.rows, copy)
    if long_rows is not None:
        run_parts(_fill_long_rows, placed.size, long_rows.rows, long_rows.begins, copy)
    return placed


def lay_out_ellpack(device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any) -> Array:
    """Copy items from CSR order to the positions of ELLPACK."""
    placed = np.empty(width * pitch, items.dtype)
    run_parts(_fill_ellpack, placed.size, width, pitch, _copy_of(indptr, items, placed, padding))
    return placed


def bits(items: Array) -> Array:
    """View items of up to eight bytes as integers, so that loops are compiled for fewer types."""
    return items if items.itemsize > 8 else items.view(f"u{items.itemsize}")


def _copy_of(indptr: Array, items: Array, placed: Array, padding: Any) -> tuple[Any, ...]:
    """Return the fields of `Copy` as a plain tuple, which Python passes to kernels (see `compiled`)."""
    return indptr, bits(items), bits(placed), bits(np.array([padding]).astype(items.dtype))[0]


@inlined
def _fill_place(copy: Copy, row: Any, width: Any, begin: Any, stride: int) -> None:
    """Write a row's items, followed by padding, to `width` positions from `begin` on, which are `stride` apart.

    Row -1 has no items.
    """
    indptr, items, placed, padding = copy
    source, length = np.int64(0), np.int64(0)
    if row >= 0:
        source = np.int64(indptr[np.uint64(row)])
        length = min(_length(indptr, row), width)
    for j in range(length):
        placed[np.uint64(begin + j * stride)] = items[np.uint64(source + j)]
    for j in range(length, width):
        placed[np.uint64(begin + j * stride)] = padding


@compiled
def _fill_slices(part: int, num_parts: int, offsets: Array, rows: Array | None, copy: Copy) -> None:
    copy = Copy(*copy)
    num_rows = copy.indptr.size - 1
    for index in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        begin = offsets[np.uint64(index)]
        width = (offsets[np.uint64(index + 1)] - begin) // RUN
        for place in range(RUN):
            row = np.int64(index * RUN + place)
            if rows is not None:
                row = np.int64(rows[np.uint64(row)])
            # If `rows` is None, a row that is longer than its slice is a long row, which is stored elsewhere.
            if row >= num_rows or (row >= 0 and _length(copy.indptr, row) > width):
                row = np.int64(-1)
            _fill_place(copy, row, width, begin + place, RUN)


@compiled
def _fill_long_rows(part: int, num_parts: int, rows: Array, begins: Array, copy: Copy) -> None:
    copy = Copy(*copy)
    num_long = rows.size
    for i in range(part * num_long // num_parts, (part + 1) * num_long // num_parts):
        end = begins[i + 1] if i + 1 < num_long else np.int64(copy.placed.size)
        _fill_place(copy, rows[i], end - begins[i], begins[i], 1)


@compiled
def _fill_ellpack(part: int, num_parts: int, width: int, pitch: int, copy: Copy) -> None:
    indptr, items, placed, padding = copy
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


def lane_rows(device: Device, csr: Csr, numbers: Array | None, most_steps: int) -> tuple[Array, Array, Array, Array]:
    """Sort the rows by descending length. Each row has one lane."""
    lengths = np.diff(csr.indptr).astype(np.int64)
    ones, zeros = np.ones_like(lengths), np.zeros_like(lengths)
    return np.argsort(-lengths, kind="stable"), ones, zeros, lengths


def lane_positions(device: Device, csr: Csr, slices: LaneSlices) -> Array:
    """Return the position of each entry in the slices."""
    positions = np.empty(csr.nnz, np.int64)
    run_parts(_lane_positions, csr.nnz, csr.indptr, slices.places, slices.rare_offsets, positions)
    return positions


@compiled
def _lane_positions(part: int, num_parts: int, indptr: Array, places: Array, offsets: Array, positions: Array) -> None:
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        place = places[np.uint64(row)]
        position = offsets[np.uint64(place // RUN)] + place % RUN
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            positions[np.uint64(k)] = position
            position += RUN
