"""Which part of a product owns a row, and how a row's sum reaches `y`. Inlined into the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.cpu.compiling import inlined
from gsparse.kernels.cpu.entries import Run
from gsparse.kernels.cpu.lanes import LANES, add, load, load_first, multiply, splat, store, store_first

__all__ = ["Int", "first_row", "write", "write_first", "write_lanes", "write_run"]

Int = int | np.signedinteger[Any]


@inlined
def first_row(part: int, num_parts: int, offsets: Array) -> int:
    """Find the first row of a part, where parts share entries plus rows equally.

    Row i costs its entries and one more for its place in `y`, so it begins at cost ``offsets[i] + i``; part p owns the
    rows that begin in its share of the whole. A part ends where the next begins, so each row has one owner, also
    where rows are empty or one row costs more than a share.
    """
    num_rows: int = offsets.size - 1
    if part >= num_parts:
        return num_rows
    bound = part * (np.int64(offsets[num_rows]) + num_rows) // num_parts
    low, high = 0, num_rows
    while low < high:
        middle = (low + high) // 2
        if np.int64(offsets[np.uint64(middle)]) + middle < bound:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def write(y: Array, row: Int, total: Any, alpha: Any, beta: Any) -> None:
    """Let ``y[row] = alpha * total + beta * y[row]``; `y` is not read where beta is zero.

    A factor of one is not multiplied by: complex 1 * inf has a NaN in it, which SciPy's product has not.
    """
    if alpha != 1:
        total = alpha * total
    if beta == 1:
        total = total + y[np.uint64(row)]
    elif beta != 0:
        total = total + beta * y[np.uint64(row)]
    y[np.uint64(row)] = total


@inlined
def write_lanes(y: Array, row: Any, total: Any, alpha: Any, beta: Any) -> None:
    """Do as `write` for `LANES` rows."""
    if alpha != 1:
        total = multiply(splat(alpha), total)
    if beta == 1:
        total = add(total, load(y, np.uint64(row), beta))
    elif beta != 0:
        total = add(total, multiply(splat(beta), load(y, np.uint64(row), beta)))
    store(y, np.uint64(row), total)


@inlined
def write_first(y: Array, row: Any, count: Any, total: Any, alpha: Any, beta: Any) -> None:
    """Do as `write_lanes` for the first `count` of them."""
    if alpha != 1:
        total = multiply(splat(alpha), total)
    if beta == 1:
        total = add(total, load_first(y, np.uint64(row), np.uint64(count), beta))
    elif beta != 0:
        total = add(total, multiply(splat(beta), load_first(y, np.uint64(row), np.uint64(count), beta)))
    store_first(y, np.uint64(row), np.uint64(count), total)


@inlined
def write_run(y: Array, row: Any, rows: Any, sums: Run, alpha: Any, beta: Any) -> None:
    """Do as `write` for `rows` rows from `row` on, up to a run."""
    a, b, c, d = sums
    if rows == 4 * LANES:
        write_lanes(y, row, a, alpha, beta)
        write_lanes(y, row + LANES, b, alpha, beta)
        write_lanes(y, row + 2 * LANES, c, alpha, beta)
        write_lanes(y, row + 3 * LANES, d, alpha, beta)
    else:
        write_first(y, row, min(rows, LANES), a, alpha, beta)
        write_first(y, row + LANES, max(0, min(rows - LANES, LANES)), b, alpha, beta)
        write_first(y, row + 2 * LANES, max(0, min(rows - 2 * LANES, LANES)), c, alpha, beta)
        write_first(y, row + 3 * LANES, max(0, min(rows - 3 * LANES, LANES)), d, alpha, beta)
