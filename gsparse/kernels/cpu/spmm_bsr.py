"""Products of square blocks (BSR) with several dense columns. The contract is in `gsparse.kernels.contract`.

A part owns consecutive block rows with all their columns. All parts have about the same number of blocks plus block
rows (`first_row`). `LANES` columns of X are side by side in a vector register (`gsparse.kernels.cpu.lanes`). Each
loaded row of X is multiplied by the elements of two to four rows of a block::

    block        rows of X, 8 columns          sums of 8 columns, in registers

    a b c        x0 ................           y0 += a x0 + b x1 + c x2
    d e f        x1 ................           y1 += d x0 + e x1 + f x2
    g h i        x2 ................           y2 += g x0 + h x1 + i x2

Each element of the result is summed in the order of the row's entries, so the bits are those of `csr_scalar`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Bsr
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import Entries, column_at, entries_of, value_at
from gsparse.kernels.cpu.lanes import add, load, load_first, multiply, splat
from gsparse.kernels.cpu.rows import Int, first_row, write, write_first
from gsparse.kernels.cpu.vectors import LANES


class BlockPanel(NamedTuple):
    """A matrix of square blocks, X and Y, and the factors of a product."""

    size: int
    offsets: Array
    entries: Entries
    x: Array
    y: Array
    alpha: Any
    beta: Any


def multiply_blocks(matrix: Bsr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """Multiply by an `x` whose rows are contiguous. `y` may have any strides."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    cost = (matrix.num_stored + y.shape[0]) * x.shape[1]
    panel = matrix.blocksize[0], matrix.slices.slice_offsets, entries, x
    if y.strides[1] == y.itemsize:
        run_parts(_multiply_blocks, cost, (*panel, y, alpha, beta))
        return
    result = np.empty(y.shape, y.dtype)
    run_parts(_multiply_blocks, cost, (*panel, result, y.dtype.type(1), y.dtype.type(0)))
    run_parts(_write_rows, y.size, result, y, alpha, beta)


@compiled
def _write_rows(part: int, num_parts: int, result: Array, y: Array, alpha: Any, beta: Any) -> None:
    num_rows, num_columns = y.shape
    for row in range(part * num_rows // num_parts, (part + 1) * num_rows // num_parts):
        for column in range(num_columns):
            write(y[np.uint64(row)], column, result[np.uint64(row), np.uint64(column)], alpha, beta)


@compiled
def _multiply_blocks(part: int, num_parts: int, panel: BlockPanel) -> None:
    """Compute the product. For `LANES` columns, two to four rows of a block row are summed together."""
    panel = BlockPanel(*panel)
    size, offsets, x, y, alpha, beta = panel.size, panel.offsets, panel.x, panel.y, panel.alpha, panel.beta
    num_columns = x.shape[1]
    for row in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        for column in range(0, num_columns, LANES):
            count = min(num_columns - column, LANES)
            r = 0
            while r < size:
                left, target = size - r, np.uint64(row * size + r)
                if left == 4 or left > 6:
                    a, b, c, d = _four_rows(row, r, column, count, panel)
                    write_first(y[target], column, count, a, alpha, beta)
                    write_first(y[target + np.uint64(1)], column, count, b, alpha, beta)
                    write_first(y[target + np.uint64(2)], column, count, c, alpha, beta)
                    write_first(y[target + np.uint64(3)], column, count, d, alpha, beta)
                    r += 4
                elif left > 2:
                    a, b, c = _three_rows(row, r, column, count, panel)
                    write_first(y[target], column, count, a, alpha, beta)
                    write_first(y[target + np.uint64(1)], column, count, b, alpha, beta)
                    write_first(y[target + np.uint64(2)], column, count, c, alpha, beta)
                    r += 3
                else:
                    a, b = _two_rows(row, r, column, count, panel)
                    write_first(y[target], column, count, a, alpha, beta)
                    write_first(y[target + np.uint64(1)], column, count, b, alpha, beta)
                    r += 2


@inlined
def _four_rows(row: Int, r: Int, column: Int, count: Int, panel: BlockPanel) -> tuple[Any, Any, Any, Any]:
    size, entries, x, zero = panel.size, Entries(*panel.entries), panel.x, panel.y.dtype.type(0)
    values, table, conjugate = entries.values, entries.table, entries.conjugate
    a = b = c = d = splat(zero)
    begin, end = panel.offsets[np.uint64(row)], panel.offsets[np.uint64(row + 1)]
    place = begin * size * size + r
    for k in range(begin, end):
        source = column_at(entries.columns, entries.bases, k) * np.uint64(size)
        for j in range(size):
            element = _row_of_x(x, source + np.uint64(j), column, count, zero)
            a = add(a, multiply(splat(value_at(values, table, place, zero, conjugate)), element))
            b = add(b, multiply(splat(value_at(values, table, place + 1, zero, conjugate)), element))
            c = add(c, multiply(splat(value_at(values, table, place + 2, zero, conjugate)), element))
            d = add(d, multiply(splat(value_at(values, table, place + 3, zero, conjugate)), element))
            place += size
    return a, b, c, d


@inlined
def _three_rows(row: Int, r: Int, column: Int, count: Int, panel: BlockPanel) -> tuple[Any, Any, Any]:
    size, entries, x, zero = panel.size, Entries(*panel.entries), panel.x, panel.y.dtype.type(0)
    values, table, conjugate = entries.values, entries.table, entries.conjugate
    a = b = c = splat(zero)
    begin, end = panel.offsets[np.uint64(row)], panel.offsets[np.uint64(row + 1)]
    place = begin * size * size + r
    for k in range(begin, end):
        source = column_at(entries.columns, entries.bases, k) * np.uint64(size)
        for j in range(size):
            element = _row_of_x(x, source + np.uint64(j), column, count, zero)
            a = add(a, multiply(splat(value_at(values, table, place, zero, conjugate)), element))
            b = add(b, multiply(splat(value_at(values, table, place + 1, zero, conjugate)), element))
            c = add(c, multiply(splat(value_at(values, table, place + 2, zero, conjugate)), element))
            place += size
    return a, b, c


@inlined
def _two_rows(row: Int, r: Int, column: Int, count: Int, panel: BlockPanel) -> tuple[Any, Any]:
    size, entries, x, zero = panel.size, Entries(*panel.entries), panel.x, panel.y.dtype.type(0)
    values, table, conjugate = entries.values, entries.table, entries.conjugate
    a = b = splat(zero)
    begin, end = panel.offsets[np.uint64(row)], panel.offsets[np.uint64(row + 1)]
    place = begin * size * size + r
    for k in range(begin, end):
        source = column_at(entries.columns, entries.bases, k) * np.uint64(size)
        for j in range(size):
            element = _row_of_x(x, source + np.uint64(j), column, count, zero)
            a = add(a, multiply(splat(value_at(values, table, place, zero, conjugate)), element))
            b = add(b, multiply(splat(value_at(values, table, place + 1, zero, conjugate)), element))
            place += size
    return a, b


@inlined
def _row_of_x(x: Array, row: Any, column: Int, count: Int, zero: Any) -> Any:
    """Return `count` columns of a row of x, followed by zeros."""
    if count == LANES:
        return load(x[row], np.uint64(column), zero)
    return load_first(x[row], np.uint64(column), np.uint64(count), zero)
