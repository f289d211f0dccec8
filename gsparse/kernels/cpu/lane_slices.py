"""Products with row lanes, and the positions of their entries.

The contracts are in `gsparse.kernels.contract` and `gsparse.kernels.set_up`.

Each row has one lane on the CPU, and no column is frequent, so that a slice is a run of rows
(`gsparse.kernels.cpu.entries`), whose sums are kept in vector registers. A part owns consecutive slices, about the same
number of positions plus slices for each part.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Columns, Csr, LaneSlices, RowLanes
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.entries import RUN, Entries, add_run, entries_of, no_sums
from gsparse.kernels.cpu.rows import Arguments, first_row, store_run, write


@bound
def row_lanes(matrix: RowLanes, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """Row lanes, slice by slice."""
    slices, entries = matrix.slices, entries_of(Columns(matrix.columns), matrix.values, conjugate)
    run_parts(_row_lanes, matrix.num_stored + y.size, slices.rare_offsets, slices.rows, entries, (x, y, alpha, beta))


@partial(compiled, allocates=True)
def _row_lanes(
    part: int, num_parts: int, offsets: Array, rows: Array, parts_of_entries: Entries, arguments: Arguments
) -> None:
    entries = Entries(*parts_of_entries)
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    sums = np.empty(RUN, y.dtype)
    for index in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        run = no_sums(zero)
        for k in range(offsets[np.uint64(index)], offsets[np.uint64(index + 1)], RUN):
            run = add_run(run, k, entries, x, zero)
        store_run(sums, 0, run)
        for place in range(RUN):
            row = rows[np.uint64(index * RUN + place)]
            if row >= 0:
                write(y, row, sums[np.uint64(place)], alpha, beta)


def lane_rows(device: Device, csr: Csr, numbers: Array | None, most_steps: int) -> tuple[Array, Array, Array, Array]:
    """Sort the rows by their lengths."""
    lengths = np.diff(csr.indptr).astype(np.int64)
    ones, zeros = np.ones_like(lengths), np.zeros_like(lengths)
    return np.argsort(-lengths, kind="stable"), ones, zeros, lengths


def lane_positions(device: Device, csr: Csr, slices: LaneSlices) -> Array:
    """Number the entries of each row."""
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
