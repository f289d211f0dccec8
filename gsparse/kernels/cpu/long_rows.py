"""Rows that are kept out of slices and blocks (`gsparse.formats.LongRows`).

A long row is cut into chunks of a fixed number of entries. A part of a product owns a contiguous share of all chunks,
whichever rows they belong to, and stores the sum of each chunk. After all parts have finished, a second loop adds up
the chunks of each row in their order; there a part owns whole long rows. So no bit depends on the number of parts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import LongRows
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import Entries, sum_lanes
from gsparse.kernels.cpu.rows import write

# Entries of a chunk: microseconds of work, so that threads share the chunks evenly, and adding up the sums is cheap.
CHUNK_SIZE = 4096

_NO_POSITIONS, _NO_CHUNKS = np.empty(0, np.int64), np.empty(0, np.int32)


class Chunks(NamedTuple):
    """The chunks of long rows, as loops read them: the arrays of `LongRows`, and room for the sum of each chunk."""

    begins: Array
    ends: Array
    first_chunk: Array
    chunk_rows: Array
    size: int
    sums: Array


def chunks_of(long_rows: LongRows | None, dtype: Any) -> tuple[Any, ...]:
    """Return the fields of `Chunks` as a plain tuple, of the same types where there are no long rows.

    The room for the sums is new for each product: the same matrix may be multiplied in two threads at once.
    """
    if long_rows is None:
        return _NO_POSITIONS, _NO_POSITIONS, _NO_CHUNKS, _NO_CHUNKS, CHUNK_SIZE, np.empty(0, dtype)
    arrays = (long_rows.begins, long_rows.ends, long_rows.first_chunk, long_rows.chunk_rows)
    return *arrays, long_rows.chunk_size, np.empty(long_rows.num_chunks, dtype)


@inlined
def sum_chunks(part: int, num_parts: int, chunks: Chunks, entries: Entries, x: Array, zero: Any) -> None:
    """Sum the chunks that a part owns."""
    num_chunks = chunks.chunk_rows.size
    for chunk in range(part * num_chunks // num_parts, (part + 1) * num_chunks // num_parts):
        row = np.uint64(chunks.chunk_rows[np.uint64(chunk)])
        begin = chunks.begins[row] + (chunk - np.int64(chunks.first_chunk[row])) * chunks.size
        end = min(begin + chunks.size, chunks.ends[row])
        chunks.sums[np.uint64(chunk)] = sum_lanes(begin, end, entries, x, zero)


def write_long_rows(long_rows: LongRows | None, chunk_sums: Array, y: Array, alpha: Any, beta: Any) -> None:
    """Add up the chunks of each long row, once all of them have been summed."""
    if long_rows is not None:
        chunks = (long_rows.rows, long_rows.first_chunk, chunk_sums)
        run_parts(_write_long_rows, chunk_sums.size, chunks, y, alpha, beta)


@compiled
def _write_long_rows(
    part: int, num_parts: int, chunks: tuple[Array, Array, Array], y: Array, alpha: Any, beta: Any
) -> None:
    rows, first_chunk, chunk_sums = chunks
    for i in range(part * rows.size // num_parts, (part + 1) * rows.size // num_parts):
        total = y.dtype.type(0)
        for chunk in range(first_chunk[np.uint64(i)], first_chunk[np.uint64(i + 1)]):
            total = total + chunk_sums[np.uint64(chunk)]
        write(y, rows[np.uint64(i)], total, alpha, beta)
