"""The pieces of a product's row: which part owns it, its sum, and how the sum reaches `y`. Inlined into the kernels.

Positions and columns are turned into uint64 where they index, because numba tests each signed index for wrap-around.
That alone costs half as much again (7-point 100**3, one thread: 17.1 ms signed, 10.8 ms unsigned).

`conjugate` is True or None, never False: numba prunes the branch on None when it compiles, so that it costs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.kernels.cpu.compiling import inlined

__all__ = [
    "Eight",
    "Int",
    "add_entry",
    "eight_at",
    "eight_of",
    "first_row",
    "sum_row",
    "sums_of_4",
    "sums_of_8",
    "write",
]

Int = int | np.signedinteger[Any]
Eight = tuple[Any, Any, Any, Any, Any, Any, Any, Any]


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
def add_entry(total: Any, position: Int, indices: Array, data: Array, x: Array, conjugate: bool | None) -> Any:
    """Add the entry at `position`, widened to the type of `total` first, as SciPy does."""
    value = data[np.uint64(position)]
    if conjugate is not None:
        value = np.conj(value)
    return total + type(total)(value) * x[np.uint64(indices[np.uint64(position)])]


@inlined
def sum_row(
    total: Any, begin: Int, stride: Int, count: Int, indices: Array, data: Array, x: Array, conjugate: bool | None
) -> Any:
    """Add `count` entries to `total`, one after the other."""
    position = begin
    for _ in range(count):
        total = add_entry(total, position, indices, data, x, conjugate)
        position += stride
    return total


@inlined
def sums_of_4(
    zero: Any, begin: Int, stride: Int, count: Int, indices: Array, data: Array, x: Array, conjugate: bool | None
) -> tuple[Any, Any, Any, Any]:
    """Give four sums side by side: sum k has the entries ``begin + k + j * stride``, j < count, in their order."""
    a = b = c = d = zero
    position = begin
    for _ in range(count):
        a = add_entry(a, position, indices, data, x, conjugate)
        b = add_entry(b, position + 1, indices, data, x, conjugate)
        c = add_entry(c, position + 2, indices, data, x, conjugate)
        d = add_entry(d, position + 3, indices, data, x, conjugate)
        position += stride
    return a, b, c, d


@inlined
def eight_of(zero: Any) -> Eight:
    """Give eight sums to start from."""
    return zero, zero, zero, zero, zero, zero, zero, zero


@inlined
def eight_at(sums: Array, lane: Int) -> Eight:
    """Give the eight sums from `lane` on."""
    a, b, c, d = sums[np.uint64(lane)], sums[np.uint64(lane + 1)], sums[np.uint64(lane + 2)], sums[np.uint64(lane + 3)]
    e, f, g = sums[np.uint64(lane + 4)], sums[np.uint64(lane + 5)], sums[np.uint64(lane + 6)]
    return a, b, c, d, e, f, g, sums[np.uint64(lane + 7)]


@inlined
def sums_of_8(
    sums: Eight, begin: Int, stride: Int, count: Int, indices: Array, data: Array, x: Array, conjugate: bool | None
) -> Eight:
    """Go on with eight sums side by side, each in a register of its own: see `sums_of_4`."""
    a, b, c, d, e, f, g, h = sums
    position = begin
    for _ in range(count):
        a = add_entry(a, position, indices, data, x, conjugate)
        b = add_entry(b, position + 1, indices, data, x, conjugate)
        c = add_entry(c, position + 2, indices, data, x, conjugate)
        d = add_entry(d, position + 3, indices, data, x, conjugate)
        e = add_entry(e, position + 4, indices, data, x, conjugate)
        f = add_entry(f, position + 5, indices, data, x, conjugate)
        g = add_entry(g, position + 6, indices, data, x, conjugate)
        h = add_entry(h, position + 7, indices, data, x, conjugate)
        position += stride
    return a, b, c, d, e, f, g, h


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
