"""Division of a product's rows into parts, and writing of the sums of rows to `y`.

Each part of a product owns consecutive rows. Only the part that owns a row sums the row's entries, and writes the row's
element of `y`. The functions of this module are compiled into the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.cpu.compiling import inlined
from gsparse.kernels.cpu.entries import Run
from gsparse.kernels.cpu.lanes import add, load, load_first, multiply, splat, store, store_first
from gsparse.kernels.cpu.vectors import LANES

Int = int | np.signedinteger[Any]


# A compiled loop over the rows of a matrix, and the arguments that are passed between `num_parts` and the vectors.
Loop = tuple[Callable[..., None], tuple[Any, ...]]


class Arguments(NamedTuple):
    """The vectors and factors of a product y = alpha * A @ x + beta * y."""

    x: Array
    y: Array
    alpha: Any
    beta: Any


@inlined
def first_row(part: int, num_parts: int, offsets: Array) -> int:
    """Return the first row of a part. All parts have about the same number of entries plus rows.

    The cost of a row is the number of its entries, plus 1 for its element of `y`. So row i begins at cost
    ``offsets[i] + i``. Part p owns the rows that begin within share p of the total cost:

        cost    0 |------- share 0 -------|------- share 1 -------|------- share 2 -------| offsets[-1] + num_rows
        rows      | 0 | 1 |   2   |     3       | 4 |        5                 | 6 |   7  |
        owner     | part 0                      | part 1                       | part 2   |

    A part ends where the following part begins, so each row has exactly one owner, even if rows are empty or the cost
    of a row exceeds a share.
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
def lower_bound(indices: Array, begin: Any, end: Any, column: Any) -> Any:
    """Return the first position in `begin` to `end` where the sorted `indices` are at least `column`; else `end`."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[np.uint64(middle)] < column:
            begin = middle + 1
        else:
            end = middle
    return begin


@inlined
def write(y: Array, row: Int, total: Any, alpha: Any, beta: Any) -> None:
    """Compute ``y[row] = alpha * total + beta * y[row]``; `y` is not read if beta is zero.

    A factor of one is not multiplied, because the complex product 1 * inf contains NaN, unlike SciPy's result.
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
    """Compute ``y[i] = alpha * total + beta * y[i]`` for `LANES` consecutive rows i from `row` on."""
    if alpha != 1:
        total = multiply(splat(alpha), total)
    if beta == 1:
        total = add(total, load(y, np.uint64(row), beta))
    elif beta != 0:
        total = add(total, multiply(splat(beta), load(y, np.uint64(row), beta)))
    store(y, np.uint64(row), total)


@inlined
def write_first(y: Array, row: Any, count: Any, total: Any, alpha: Any, beta: Any) -> None:
    """Compute ``y[i] = alpha * total + beta * y[i]`` for `count` rows i from `row` on, at most `LANES`."""
    if alpha != 1:
        total = multiply(splat(alpha), total)
    if beta == 1:
        total = add(total, load_first(y, np.uint64(row), np.uint64(count), beta))
    elif beta != 0:
        total = add(total, multiply(splat(beta), load_first(y, np.uint64(row), np.uint64(count), beta)))
    store_first(y, np.uint64(row), np.uint64(count), total)


@inlined
def store_run(sums: Array, place: Any, run: Run) -> None:
    """Store the sums of a run of rows in `sums`, from `place` on."""
    a, b, c, d = run
    k = np.uint64(place)
    store(sums, k, a)
    store(sums, k + np.uint64(LANES), b)
    store(sums, k + np.uint64(2 * LANES), c)
    store(sums, k + np.uint64(3 * LANES), d)


@inlined
def write_run(y: Array, row: Any, rows: Any, sums: Run, alpha: Any, beta: Any) -> None:
    """Compute ``y[i] = alpha * sums + beta * y[i]`` for `rows` rows i from `row` on, at most a run."""
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


@inlined
def widened(zero: Any, value: Any, conjugate: bool | None) -> Any:
    """Return a value of the matrix in the type of the number `zero`, conjugated if `conjugate` is not None."""
    if conjugate is not None:
        value = np.conj(value)
    return type(zero)(value)
