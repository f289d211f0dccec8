"""ELLPACK and blocked ELLPACK products; the contract is in `gsparse.kernels.contract`.

Both add run after run of positions to the sums of as many rows, which are kept in vector registers
(`gsparse.kernels.cpu.lanes`). Each row except a long one is summed in the order of its entries, and padding adds
nothing, so the bits are those of `csr_scalar`.

In ELLPACK a part owns consecutive runs of rows, the same number for each part. In blocked ELLPACK it owns consecutive
slices, about the same number of positions plus slices for each part (`first_row`), and consecutive chunks of long rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import BlockedEllpack, Ellpack
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN, Entries, Run, add_run, entries_of, no_sums
from gsparse.kernels.cpu.lanes import load
from gsparse.kernels.cpu.long_rows import Chunks, chunks_of, sum_chunks, write_long_rows
from gsparse.kernels.cpu.rows import Arguments, first_row, store_run, write, write_run
from gsparse.kernels.cpu.vectors import LANES

# ELLPACK is read a few columns at a time over a stretch of rows, whose sums stay in the first-level cache. Reading all
# columns at once takes more streams than the hardware prefetches and, at a stride of whole pages, more than that cache
# holds. One thread, 7-point 100**3 and 27-point 64**3, ms: all columns of a run 6.8, 19.6; 4 columns of 8 runs 7.2,
# 6.9; 4 columns of 32 runs 6.5, 5.7; 2 columns of 32 runs 8.2, 6.9; 8 columns of 32 runs 7.4, 7.8.
_STRETCH_RUNS = 32
_STRETCH_COLUMNS = 4


@bound
def ellpack(matrix: Ellpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """ELLPACK, the rows of a run side by side."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    cost = matrix.num_stored + y.size
    run_parts(_ellpack, cost, matrix.width, matrix.pitch, entries, (x, y, alpha, beta))


@bound
def blocked_ellpack(matrix: BlockedEllpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """Blocked ELLPACK, slice by slice in the order in which they are stored; long rows in chunks."""
    slices, entries = matrix.slices, entries_of(matrix.columns, matrix.values, conjugate)
    cost = matrix.num_stored + y.size
    chunks = chunks_of(slices.long_rows, y.dtype)
    run_parts(_blocked_ellpack, cost, slices.slice_offsets, slices.rows, chunks, entries, (x, y, alpha, beta))
    write_long_rows(slices.long_rows, chunks[-1], y, alpha, beta)


@inlined
def _run_at(sums: Array, place: Any, zero: Any) -> Run:
    k = np.uint64(place)
    a, b = load(sums, k, zero), load(sums, k + np.uint64(LANES), zero)
    return a, b, load(sums, k + np.uint64(2 * LANES), zero), load(sums, k + np.uint64(3 * LANES), zero)


@partial(compiled, allocates=True)
def _ellpack(part: int, num_parts: int, width: int, pitch: int, entries: Entries, arguments: Arguments) -> None:
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
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
                    run = add_run(run, k, entries, x, zero)
                store_run(sums, place, run)
        for place in range(0, rows, RUN):
            rows_left = min(y.size - row - place, RUN)
            write_run(y, row + place, rows_left, _run_at(sums, place, zero), alpha, beta)


@partial(compiled, allocates=True)
def _blocked_ellpack(
    part: int,
    num_parts: int,
    offsets: Array,
    rows: Array | None,
    chunks: Chunks,
    entries: Entries,
    arguments: Arguments,
) -> None:
    """Multiply slices; slice s has the rows ``rows[s * RUN : (s + 1) * RUN]``, or without `rows` those numbers."""
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    sum_chunks(part, num_parts, Chunks(*chunks), entries, x, zero)
    sums = np.empty(RUN, y.dtype)
    for index in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        run = no_sums(zero)
        for k in range(offsets[np.uint64(index)], offsets[np.uint64(index + 1)], RUN):
            run = add_run(run, k, entries, x, zero)
        if rows is None:
            write_run(y, index * RUN, min(y.size - index * RUN, RUN), run, alpha, beta)
        else:
            store_run(sums, 0, run)
            for place in range(RUN):
                row = rows[np.uint64(index * RUN + place)]
                if row >= 0:
                    write(y, row, sums[np.uint64(place)], alpha, beta)
