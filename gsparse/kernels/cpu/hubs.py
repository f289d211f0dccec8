"""Products with hub columns, and the positions of their entries.

The contracts are in `gsparse.kernels.contract` and `gsparse.kernels.set_up`.

Each row has one lane on the CPU, so that a slice is a run of rows (`gsparse.kernels.cpu.entries`), whose sums are kept
in vector registers. A part owns consecutive slices, about the same number of positions plus slices for each part.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Columns, Csr, HubColumns, HubSlices, Values, padding_code
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.entries import RUN, Entries, add_run, entries_of, no_sums
from gsparse.kernels.cpu.rows import Arguments, first_row, store_run, write

__all__ = ["hub_columns", "hub_positions", "hub_rows"]

_RARE = padding_code(np.uint16)


@bound
def hub_columns(matrix: HubColumns, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """Hub columns, slice by slice, with the elements of x for the frequent columns in an array of their own."""
    slices, (frequent, rare) = matrix.slices, _values_of_kinds(matrix)
    entries = (
        entries_of(Columns(matrix.codes), frequent, conjugate),
        entries_of(Columns(matrix.columns), rare, conjugate),
    )
    offsets = slices.frequent_offsets, slices.rare_offsets, slices.frequent_offsets + slices.rare_offsets
    cost = matrix.num_stored + y.size
    run_parts(_hub_columns, cost, offsets, slices.rows, entries, x[slices.frequent], (x, y, alpha, beta))


def _values_of_kinds(matrix: HubColumns) -> tuple[Values, Values]:
    """Return the values at the frequent and at the rare positions."""
    codes, table = matrix.values.codes, matrix.values.table
    if codes is None:
        return matrix.values, matrix.values
    end = matrix.slices.num_frequent_positions
    return Values(codes[:end], table), Values(codes[end:], table)


@partial(compiled, allocates=True)
def _hub_columns(
    part: int,
    num_parts: int,
    offsets: tuple[Array, Array, Array],
    rows: Array,
    entries: tuple[Entries, Entries],
    hubs: Array,
    arguments: Arguments,
) -> None:
    frequent, rare = Entries(*entries[0]), Entries(*entries[1])
    frequent_offsets, rare_offsets, both = offsets
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    sums = np.empty(RUN, y.dtype)
    for index in range(first_row(part, num_parts, both), first_row(part + 1, num_parts, both)):
        run = no_sums(zero)
        for k in range(frequent_offsets[np.uint64(index)], frequent_offsets[np.uint64(index + 1)], RUN):
            run = add_run(run, k, frequent, hubs, zero)
        for k in range(rare_offsets[np.uint64(index)], rare_offsets[np.uint64(index + 1)], RUN):
            run = add_run(run, k, rare, x, zero)
        store_run(sums, 0, run)
        for place in range(RUN):
            row = rows[np.uint64(index * RUN + place)]
            if row >= 0:
                write(y, row, sums[np.uint64(place)], alpha, beta)


def hub_rows(device: Device, csr: Csr, numbers: Array, most_steps: int) -> tuple[Array, Array, Array, Array]:
    """Count the entries of each row whose columns are frequent, and sort the rows with NumPy."""
    frequent, lengths = np.empty(csr.num_rows, np.int64), np.diff(csr.indptr).astype(np.int64)
    run_parts(_frequent_lengths, csr.nnz, csr.indptr, csr.indices, numbers, frequent)
    wanted, powers = -(-lengths // most_steps), 2 ** np.arange(RUN.bit_length())
    power = powers[np.minimum(np.searchsorted(powers, wanted), powers.size - 1)]
    lanes = np.where(wanted > RUN, -(-wanted // RUN) * RUN, power)
    frequent_steps, rare_steps = -(-frequent // lanes), -(-(lengths - frequent) // lanes)
    order = np.lexsort((-frequent_steps, -frequent_steps - rare_steps, -lanes))
    return order, lanes, frequent_steps, rare_steps


@compiled
def _frequent_lengths(part: int, num_parts: int, indptr: Array, indices: Array, numbers: Array, lengths: Array) -> None:
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        count = 0
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            if numbers[np.uint64(indices[np.uint64(k)])] != _RARE:
                count += 1
        lengths[row] = count


def hub_positions(device: Device, csr: Csr, slices: HubSlices) -> Array:
    """Number the entries of each row in frequent and in rare columns, and deal them to the lanes of the row."""
    positions = np.empty(csr.nnz, np.int64)
    offsets = slices.frequent_offsets, slices.rare_offsets
    layout = slices.numbers, slices.places, slices.lanes, offsets
    run_parts(_hub_positions, csr.nnz, csr.indptr, csr.indices, layout, positions)
    return positions


@compiled
def _hub_positions(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    layout: tuple[Array, Array, Array, tuple[Array, Array]],
    positions: Array,
) -> None:
    numbers, places, all_lanes, (frequent_offsets, rare_offsets) = layout
    first_rare = frequent_offsets[-1]
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        place = places[np.uint64(row)]
        lanes = np.int64(all_lanes[np.uint64(place // RUN)])
        num_frequent = num_rare = np.int64(0)
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            is_frequent = numbers[np.uint64(indices[np.uint64(k)])] != _RARE
            number = num_frequent if is_frequent else num_rare
            lane, step = place + number % lanes, number // lanes
            if is_frequent:
                num_frequent += 1
                begin = frequent_offsets[np.uint64(lane // RUN)]
            else:
                num_rare += 1
                begin = first_rare + rare_offsets[np.uint64(lane // RUN)]
            positions[np.uint64(k)] = begin + step * RUN + lane % RUN
