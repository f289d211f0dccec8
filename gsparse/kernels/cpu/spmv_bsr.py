"""Products with blocks (BSR); the contract is in `gsparse.kernels.contract`.

The rows of a block are kept side by side in a vector register (`gsparse.kernels.cpu.lanes`): each column of a block is
multiplied by one element of x. A part owns consecutive block rows, about the same number of blocks plus block rows for
each part (`first_row`). Each row is summed in the order of its entries, so the bits are those of `csr_scalar`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Bsr
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.entries import Entries, column_at, entries_of, lanes_value, value_at
from gsparse.kernels.cpu.lanes import add, multiply, splat
from gsparse.kernels.cpu.rows import Arguments, first_row, write, write_first

# Blocks with at most this number of rows are summed in scalars, because most lanes of a register would be idle.
# 27-point 30**3 with shuffled nodes, one thread, ms in scalars / in lanes / csr_scalar: 2 x 2 blocks 0.86 / 1.15 /
# 1.11, 3 x 3 blocks 2.35 / 1.85 / 2.84.
_FEW_ROWS = 2


@bound
def bsr(matrix: Bsr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """BSR, block by block, the rows of a block side by side."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    rows, columns = matrix.blocksize
    cost, offsets = matrix.num_stored + y.size, matrix.slices.slice_offsets
    kernel = _bsr_of_few_rows if rows <= _FEW_ROWS else _bsr
    run_parts(kernel, cost, rows, columns, offsets, entries, (x, y, alpha, beta))


@compiled
def _bsr(
    part: int, num_parts: int, rows: int, columns: int, offsets: Array, entries: Entries, arguments: Arguments
) -> None:
    """Load whole registers: the lanes past the last row of a block hold other values, and their sums are not stored."""
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    for row in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        sums = splat(zero)
        begin, end = offsets[np.uint64(row)], offsets[np.uint64(row + 1)]
        place = begin * columns * rows
        for k in range(begin, end):
            source = column_at(entries.columns, entries.bases, k) * np.uint64(columns)
            for c in range(columns):
                value = lanes_value(entries.values, entries.table, place, zero, entries.conjugate)
                sums = add(sums, multiply(value, splat(x[source + np.uint64(c)])))
                place += rows
        write_first(y, row * rows, rows, sums, alpha, beta)


@compiled
def _bsr_of_few_rows(
    part: int, num_parts: int, rows: int, columns: int, offsets: Array, entries: Entries, arguments: Arguments
) -> None:
    """Sum the rows of blocks with one row or two; with one row, the second sum is not used."""
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
    values, table, conjugate = entries.values, entries.table, entries.conjugate
    zero = y.dtype.type(0)
    other = rows - 1
    for row in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        first = second = zero
        begin, end = offsets[np.uint64(row)], offsets[np.uint64(row + 1)]
        place = begin * columns * rows
        for k in range(begin, end):
            source = column_at(entries.columns, entries.bases, k) * np.uint64(columns)
            for c in range(columns):
                element = x[source + np.uint64(c)]
                first += value_at(values, table, place, zero, conjugate) * element
                second += value_at(values, table, place + other, zero, conjugate) * element
                place += rows
        write(y, row * rows, first, alpha, beta)
        if other:
            write(y, row * rows + 1, second, alpha, beta)
