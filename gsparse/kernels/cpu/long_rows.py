"""Rows kept apart (`gsparse.formats.LongRows`): chunks of a fixed size, summed by any part, added up in their order."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import LongRows
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import sum_lanes
from gsparse.kernels.cpu.rows import write

__all__ = ["CHUNK_SIZE", "long_args", "sum_chunks", "write_long_rows"]

# Entries of a chunk: microseconds of work, so that chunks share out well and their sums cost nothing.
CHUNK_SIZE = 4096

_NO_POSITIONS, _NO_CHUNKS = np.empty(0, np.int64), np.empty(0, np.int32)


def long_args(long_rows: LongRows | None, dtype: Any) -> tuple[Any, ...]:
    """Give what a kernel takes of long rows, room for the sums of chunks last; the same types where there are none.

    The room is new for each product: the same matrix may be multiplied in two threads at once.
    """
    if long_rows is None:
        return _NO_POSITIONS, _NO_POSITIONS, _NO_CHUNKS, _NO_CHUNKS, CHUNK_SIZE, np.empty(0, dtype)
    arrays = (long_rows.begins, long_rows.ends, long_rows.first_chunk, long_rows.chunk_rows)
    return *arrays, long_rows.chunk_size, np.empty(long_rows.num_chunks, dtype)


@inlined
def sum_chunks(
    part: int,
    num_parts: int,
    begins: Array,
    ends: Array,
    first_chunk: Array,
    chunk_rows: Array,
    chunk_size: int,
    chunk_sums: Array,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    zero: Any,
) -> None:
    """Sum a part's share of the chunks."""
    num_chunks = chunk_rows.size
    for chunk in range(part * num_chunks // num_parts, (part + 1) * num_chunks // num_parts):
        place = np.uint64(chunk_rows[np.uint64(chunk)])
        begin = begins[place] + (chunk - np.int64(first_chunk[place])) * chunk_size
        end = min(begin + chunk_size, ends[place])
        total = sum_lanes(begin, end, columns, bases, values, table, conjugate, x, zero)
        chunk_sums[np.uint64(chunk)] = total


def write_long_rows(long_rows: LongRows | None, chunk_sums: Array, y: Array, alpha: Any, beta: Any) -> None:
    """Add up the chunks of each long row, once all are there."""
    if long_rows is not None:
        args = (long_rows.rows, long_rows.first_chunk, chunk_sums, y, alpha, beta)
        run_parts(_write_long_rows, chunk_sums.size, *args)


@compiled
def _write_long_rows(
    part: int, num_parts: int, rows: Array, first_chunk: Array, chunk_sums: Array, y: Array, alpha: Any, beta: Any
) -> None:
    for i in range(part * rows.size // num_parts, (part + 1) * rows.size // num_parts):
        total = y.dtype.type(0)
        for chunk in range(first_chunk[np.uint64(i)], first_chunk[np.uint64(i + 1)]):
            total = total + chunk_sums[np.uint64(chunk)]
        write(y, rows[np.uint64(i)], total, alpha, beta)
