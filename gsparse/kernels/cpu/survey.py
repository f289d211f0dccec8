"""Statistics of a structure, and the division of the work of CSR products.

The contract is in `gsparse.kernels.set_up`. The loops measure blocks of `_BLOCK_ROWS` rows. A part owns consecutive
blocks, the same number for each part, and writes one row of measurements for each of its blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import LongRows, RowBlocks, Tiles
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN
from gsparse.kernels.cpu.long_rows import CHUNK_SIZE
from gsparse.kernels.cpu.spmv_csr import BLOCK_WORK, TILE_WORK
from gsparse.kernels.set_up import Survey

__all__ = ["LONG_LENGTH", "long_rows", "row_blocks", "survey", "tiles"]

# Length, in entries, above which a row is kept out of slices. The number of positions of sorted slices and long rows
# together, divided by the number of entries, at 512, 256, 128, 64, 32: cnr-2000 1.29, 1.21, 1.15, 1.10, 1.36; R-MAT 18
# 1.68, 1.33, 1.22, 1.16, 1.16.
LONG_LENGTH = 128

# Rows of a block of a survey: whole slices. The number is fixed, so that nothing depends on the number of threads.
_BLOCK_ROWS = 4096
# What is measured of each block: sums, then minima, then maxima.
_SUMS = (
    "num_empty",
    "sum_squares",
    "blocked_stored",
    "split_stored",
    "num_long",
    "long_entries",
    "num_falls",
    "num_unsorted",
)
_LEAST, _GREATEST = ("min_length", "min_column"), ("max_length", "max_column")


def survey(device: Device, indptr: Array, indices: Array, spans: bool) -> Survey:
    """Read row pointers and columns once; `spans` is not used, because the CPU narrows no columns in CSR order."""
    num_rows = indptr.size - 1
    first, last = int(indptr[0]), int(indptr[-1])
    names = (*_SUMS, *_LEAST, *_GREATEST)
    measured = np.zeros((-(-num_rows // _BLOCK_ROWS), len(names)), np.int64)
    # Columns are measured row by row, and therefore only if the row pointers are valid.
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
    """Collect the rows that are longer than a limit, in their order."""
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


def row_blocks(device: Device, indptr: Array, survey: Survey) -> RowBlocks:
    """Combine consecutive rows into blocks of about equal work; a long row has a block of its own."""
    # Row i begins after indptr[i] entries and i rows. A block has the rows that begin in its share of the work.
    begins = indptr + np.arange(indptr.size, dtype=np.int64)
    starts = np.ones(indptr.size, bool)
    starts[1:-1] = np.diff(begins // BLOCK_WORK)[:-1] > 0
    is_long = np.diff(indptr) > BLOCK_WORK
    starts[:-1] |= is_long
    starts[1:] |= is_long
    chunked = long_rows(device, indptr, survey, BLOCK_WORK)[0] if survey.max_length > BLOCK_WORK else None
    return RowBlocks(np.flatnonzero(starts).astype(np.int32), chunked)


def tiles(device: Device, indptr: Array, survey: Survey) -> Tiles:
    """Divide the merged list of entries and row ends into tiles of equal size."""
    num_rows, total = indptr.size - 1, survey.last + indptr.size - 1
    ends = indptr[1:] + np.arange(num_rows, dtype=np.int64)
    bounds = np.minimum(np.arange(-(-total // TILE_WORK) + 1, dtype=np.int64) * TILE_WORK, total)
    first_rows = np.searchsorted(ends, bounds)
    # The row at the end of a tile continues in the next tile if some of its entries are before the end.
    rows, entries = first_rows[1:-1], bounds[1:-1] - first_rows[1:-1]
    carry_tiles = np.flatnonzero(entries > indptr[rows])
    split_rows, starts = np.unique(rows[carry_tiles], return_index=True)
    first_carry = np.append(starts, carry_tiles.size)
    parts = (part.astype(np.int32) for part in (split_rows, first_carry, carry_tiles))
    return Tiles(first_rows.astype(np.int32), TILE_WORK, *parts)


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
    """Count the columns of each block that are not sorted, and find the least and the greatest column."""
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
