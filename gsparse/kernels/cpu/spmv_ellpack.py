"""ELLPACK and blocked ELLPACK products; the contract is in `gsparse.kernels.contract`.

Both add run after run of positions to the sums of as many rows, kept in vector registers (`gsparse.kernels.cpu.lanes`).
Each row but a long one is summed in the order of its entries and padding adds nothing, so the bits are those of
`csr_scalar`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import BlockedEllpack, Ellpack
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN, Run, add_run, entries_of, no_sums
from gsparse.kernels.cpu.lanes import LANES, load, store
from gsparse.kernels.cpu.long_rows import long_args, sum_chunks, write_long_rows
from gsparse.kernels.cpu.rows import first_row, write, write_run

__all__ = ["blocked_ellpack", "ellpack"]

# ELLPACK is read a few columns at a time over a stretch of rows, whose sums stay in the first cache: all columns are
# more streams than the hardware prefetches or, at a stride of whole pages, the first cache holds. One thread, 7-point
# 100**3 and 27-point 64**3, ms: all columns of a run 6.8, 19.6; 4 columns of 8 runs 7.2, 6.9; 4 columns of 32 runs 6.5,
# 5.7; 2 columns of 32 runs 8.2, 6.9; 8 columns of 32 runs 7.4, 7.8.
_STRETCH_RUNS = 32
_STRETCH_COLUMNS = 4


@bound
def ellpack(matrix: Ellpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """ELLPACK, runs of rows side by side."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    run_parts(_ellpack, matrix.num_stored + y.size, matrix.width, matrix.pitch, *entries, x, y, alpha, beta)


@bound
def blocked_ellpack(matrix: BlockedEllpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """Blocked ELLPACK, a slice at a time in the order it is stored; long rows by chunks."""
    slices, entries = matrix.slices, entries_of(matrix.columns, matrix.values, conjugate)
    cost = matrix.num_stored + y.size
    args = (slices.slice_offsets, slices.rows, *long_args(slices.long_rows, y.dtype))
    run_parts(_blocked_ellpack, cost, *args, *entries, x, y, alpha, beta)
    write_long_rows(slices.long_rows, args[-1], y, alpha, beta)


@inlined
def _run_at(sums: Array, place: Any, zero: Any) -> Run:
    k = np.uint64(place)
    a, b = load(sums, k, zero), load(sums, k + np.uint64(LANES), zero)
    return a, b, load(sums, k + np.uint64(2 * LANES), zero), load(sums, k + np.uint64(3 * LANES), zero)


@inlined
def _store_run(sums: Array, place: Any, run: Run) -> None:
    a, b, c, d = run
    k = np.uint64(place)
    store(sums, k, a)
    store(sums, k + np.uint64(LANES), b)
    store(sums, k + np.uint64(2 * LANES), c)
    store(sums, k + np.uint64(3 * LANES), d)


@compiled
def _ellpack(
    part: int,
    num_parts: int,
    width: int,
    pitch: int,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
) -> None:
    zero = y.dtype.type(0)
    num_runs = pitch // RUN
    first, last = part * num_runs // num_parts, (part + 1) * num_runs // num_parts
    sums = np.empty(_STRETCH_RUNS * RUN, y.dtype)
    for stretch in range(first, last, _STRETCH_RUNS):
        row, rows = stretch * RUN, min(_STRETCH_RUNS, last - stretch) * RUN
        sums[:] = zero
        for column in range(0, width, _STRETCH_COLUMNS):
            columns_end = min(column + _STRETCH_COLUMNS, width) * pitch
            for place in range(0, rows, RUN):
                run = _run_at(sums, place, zero)
                for k in range(column * pitch + row + place, columns_end, pitch):
                    run = add_run(run, k, columns, bases, values, table, conjugate, x, zero)
                _store_run(sums, place, run)
        for place in range(0, rows, RUN):
            rows_left = min(y.size - row - place, RUN)
            write_run(y, row + place, rows_left, _run_at(sums, place, zero), alpha, beta)


@compiled
def _blocked_ellpack(
    part: int,
    num_parts: int,
    slice_offsets: Array,
    rows: Array | None,
    long_begins: Array,
    long_ends: Array,
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
    y: Array,
    alpha: Any,
    beta: Any,
) -> None:
    zero = y.dtype.type(0)
    sum_chunks(
        part, num_parts, long_begins, long_ends, first_chunk, chunk_rows, chunk_size, chunk_sums,
        columns, bases, values, table, conjugate, x, zero,
    )  # fmt: skip
    sums = np.empty(RUN, y.dtype)
    for index in range(first_row(part, num_parts, slice_offsets), first_row(part + 1, num_parts, slice_offsets)):
        run = no_sums(zero)
        for k in range(slice_offsets[np.uint64(index)], slice_offsets[np.uint64(index + 1)], RUN):
            run = add_run(run, k, columns, bases, values, table, conjugate, x, zero)
        if rows is None:
            write_run(y, index * RUN, min(y.size - index * RUN, RUN), run, alpha, beta)
        else:
            _store_run(sums, 0, run)
            for place in range(RUN):
                row = rows[np.uint64(index * RUN + place)]
                if row >= 0:
                    write(y, row, sums[np.uint64(place)], alpha, beta)
