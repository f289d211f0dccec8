"""How the loops read stored entries (`gsparse.formats.entries`): one position, or eight or a run of them side by side.

What an encoding lacks is None: `bases` of plain columns, `table` of plain values, `codes` of values that are all equal.
Numba compiles a loop for the types it is called with and drops branches on None, so each combination has code of its
own and none is written twice.

Positions and columns are turned into uint64 where they index, because numba tests each signed index for wrap-around.
That alone costs half as much again (7-point 100**3, one thread: 17.1 ms signed, 10.8 ms unsigned).

`conjugate` is True or None, never False, for the same reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.cpu import CPU_LANES
from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Values
from gsparse.kernels.cpu.compiling import inlined
from gsparse.kernels.cpu.lanes import (
    LANES,
    add,
    any_padding,
    conjugate_lanes,
    gather,
    gather_first,
    gather_kept,
    keep_padding,
    lane_sum,
    load,
    load_first,
    multiply,
    splat,
)

__all__ = [
    "RUN",
    "Entries",
    "Run",
    "add_entry",
    "add_run",
    "base_at",
    "column_at",
    "entries_of",
    "lanes_first_value",
    "lanes_product",
    "lanes_value",
    "no_sums",
    "sum_lanes",
    "value_at",
]

# Consecutive positions that share a base; also the rows of a slice. Four times LANES.
RUN = CPU_LANES

# What loops take of a matrix's entries: codes and bases of columns, codes and table of values, whether to conjugate.
Entries = tuple[Array, Array | None, Array | None, Array | None, bool | None]
# Sums of a run of rows: four `Lanes`.
Run = tuple[Any, Any, Any, Any]


def entries_of(columns: Columns, values: Values, conjugate: bool) -> Entries:
    """Give the arguments of a loop over encoded entries, in their order."""
    told = True if conjugate and values.dtype.kind == "c" else None
    return columns.codes, columns.bases, values.codes, values.table, told


@inlined
def column_at(codes: Array, bases: Array | None, k: Any) -> Any:
    """Give the column of position `k`, which does not pad."""
    if bases is not None:
        return np.uint64(bases[np.uint64(k) // np.uint64(RUN)]) + np.uint64(codes[np.uint64(k)])
    return np.uint64(codes[np.uint64(k)])


@inlined
def value_at(codes: Array | None, table: Array | None, k: Any, zero: Any, conjugate: bool | None) -> Any:
    """Give the value of position `k`, widened to the type of `zero`."""
    value = zero
    if codes is not None:
        if table is not None:
            value = type(zero)(table[np.uint64(codes[np.uint64(k)])])
        else:
            value = type(zero)(codes[np.uint64(k)])
    elif table is not None:
        value = type(zero)(table[0])
    if conjugate is not None:
        value = np.conj(value)
    return value


@inlined
def add_entry(
    total: Any,
    k: Any,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
) -> Any:
    """Add the entry at position `k`, its value widened to the type of `total` first, as SciPy does."""
    return total + value_at(values, table, k, total, conjugate) * x[column_at(columns, bases, k)]


@inlined
def base_at(bases: Array | None, k: Any) -> Any:
    """Give the base of the run that position `k` is in, 0 for plain columns."""
    if bases is not None:
        return np.uint64(bases[np.uint64(k) // np.uint64(RUN)])
    return np.uint64(0)


@inlined
def lanes_value(codes: Array | None, table: Array | None, k: Any, zero: Any, conjugate: bool | None) -> Any:
    """Give the values of the positions from `k` on, widened."""
    value = splat(zero)
    if codes is not None:
        if table is not None:
            value = gather(table, codes, np.uint64(k), np.uint64(0))
        else:
            value = load(codes, np.uint64(k), zero)
    elif table is not None:
        value = splat(table[0])
    if conjugate is not None:
        value = conjugate_lanes(value)
    return value


@inlined
def lanes_first_value(
    codes: Array | None, table: Array | None, k: Any, count: Any, zero: Any, conjugate: bool | None
) -> Any:
    """Give the values of `count` positions from `k` on, then anything; no other position is read."""
    value = splat(zero)
    if codes is not None:
        if table is not None:
            value = gather_first(table, codes, np.uint64(k), np.uint64(0), np.uint64(count))
        else:
            value = load_first(codes, np.uint64(k), np.uint64(count), zero)
    elif table is not None:
        value = splat(table[0])
    if conjugate is not None:
        value = conjugate_lanes(value)
    return value


@inlined
def lanes_product(
    k: Any,
    base: Any,
    columns: Array,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    zero: Any,
) -> Any:
    """Give the products of the entries at `LANES` positions from `k` on, none of which pads."""
    return multiply(lanes_value(values, table, k, zero, conjugate), gather(x, columns, np.uint64(k), base))


@inlined
def _add_padded(
    sums: Any,
    k: Any,
    base: Any,
    columns: Array,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    zero: Any,
) -> Any:
    # The product of padding is dropped, not multiplied by zero: x[0] may be inf or NaN.
    gathered = gather_kept(x, columns, np.uint64(k), base)
    product = multiply(lanes_value(values, table, k, zero, conjugate), gathered)
    return keep_padding(columns, np.uint64(k), sums, add(sums, product))


@inlined
def no_sums(zero: Any) -> Run:
    """Give a run of sums to start from."""
    lanes = splat(zero)
    return lanes, lanes, lanes, lanes


@inlined
def add_run(
    sums: Run,
    k: Any,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    zero: Any,
) -> Run:
    """Add the run of positions from `k` on to the sums of as many rows; those that pad add nothing."""
    a, b, c, d = sums
    base = base_at(bases, k)
    if any_padding(columns, np.uint64(k)):
        a = _add_padded(a, k, base, columns, values, table, conjugate, x, zero)
        b = _add_padded(b, k + LANES, base, columns, values, table, conjugate, x, zero)
        c = _add_padded(c, k + 2 * LANES, base, columns, values, table, conjugate, x, zero)
        d = _add_padded(d, k + 3 * LANES, base, columns, values, table, conjugate, x, zero)
    else:
        a = add(a, lanes_product(k, base, columns, values, table, conjugate, x, zero))
        b = add(b, lanes_product(k + LANES, base, columns, values, table, conjugate, x, zero))
        c = add(c, lanes_product(k + 2 * LANES, base, columns, values, table, conjugate, x, zero))
        d = add(d, lanes_product(k + 3 * LANES, base, columns, values, table, conjugate, x, zero))
    return a, b, c, d


@inlined
def sum_lanes(
    begin: Any,
    end: Any,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    zero: Any,
) -> Any:
    """Sum consecutive positions in `LANES` partial sums; those before and after whole groups of positions singly.

    With bases, groups begin at multiples of `LANES`, so that none has positions of two runs.
    """
    first = begin
    if bases is not None:
        first = min(-(-begin // LANES) * LANES, end)
    total = zero
    for k in range(begin, first):
        total = add_entry(total, k, columns, bases, values, table, conjugate, x)
    if end - first >= LANES:
        lanes = splat(zero)
        stop = end - (end - first) % LANES
        for k in range(first, stop, LANES):
            base = base_at(bases, k)
            lanes = add(lanes, lanes_product(k, base, columns, values, table, conjugate, x, zero))
        total = total + lane_sum(lanes)
        first = stop
    for k in range(first, end):
        total = add_entry(total, k, columns, bases, values, table, conjugate, x)
    return total
