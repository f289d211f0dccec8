"""Statistics of a structure, and its long rows.

The contract is in `gsparse.kernels.set_up`. The loops measure blocks of `_BLOCK_ROWS` rows. A part owns consecutive
blocks, the same number for each part, and writes one row of measurements for each of its blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import LongRows
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN
from gsparse.kernels.cpu.long_rows import CHUNK_SIZE
from gsparse.kernels.set_up import Survey

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
