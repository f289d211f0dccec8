"""Reading stored entries (`gsparse.formats.entries`): one position, eight positions in vector registers, or a run.

An array that an encoding does not need is None: `bases` for plain columns, `table` for plain values, and `values` if
all values are equal. Numba compiles a loop for the types of its arguments, and leaves out the branches for arrays that
are None. So each combination of encodings has its own machine code, but the source is written only once. For the same
reason, `conjugate` is True or None, never False. Numba leaves out branches only if they test an argument, not if they
test a field of a tuple. So functions that test whether an array is None take the array as an argument. All other
functions take `Entries`.

Positions and columns are converted to uint64 before they index an array, because numba tests each signed index for
wrap-around, which makes a product up to 1.6 times as slow (7-point 100**3, one thread).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gsparse.device.cpu import CPU_LANES
from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Values
from gsparse.kernels.cpu.compiling import inlined
from gsparse.kernels.cpu.instructions import prefetch
from gsparse.kernels.cpu.lanes import (
    add,
    any_padding,
    conjugate_lanes,
    gather,
    gather_first,
    gather_or_first,
    keep_first,
    keep_padding,
    lane_sum,
    load,
    load_first,
    multiply,
    splat,
)
from gsparse.kernels.cpu.vectors import LANES

# Number of positions of a run, which share a base. It is also the number of rows of a slice, and four times LANES.
RUN = CPU_LANES

# Number of positions by which loops prefetch values and columns ahead. It is a page of float64 values, because the
# hardware prefetches only within a page. This saves 20 % of the time of products that exceed the caches.
_AHEAD = 512

# The sums of a run of rows: four `Lanes`.
Run = tuple[Any, Any, Any, Any]


class Entries(NamedTuple):
    """The stored entries of a matrix, as arguments of compiled loops."""

    columns: Array
    bases: Array | None
    values: Array | None
    table: Array | None
    conjugate: bool | None


def entries_of(columns: Columns, values: Values, conjugate: bool) -> tuple[Any, ...]:
    """Return the fields of `Entries` as a plain tuple, which Python passes to kernels (see `compiled`)."""
    conjugates = True if conjugate and values.dtype.kind == "c" else None
    return columns.codes, columns.bases, values.codes, values.table, conjugates


# ---------------------------------------------------------------------------- one position


@inlined
def column_at(codes: Array, bases: Array | None, k: Any) -> Any:
    """Return the column of position `k`, which must not be padding."""
    if bases is not None:
        return np.uint64(bases[np.uint64(k) // np.uint64(RUN)]) + np.uint64(codes[np.uint64(k)])
    return np.uint64(codes[np.uint64(k)])


@inlined
def value_at(codes: Array | None, table: Array | None, k: Any, zero: Any, conjugate: bool | None) -> Any:
    """Return the value at position `k`, widened to the type of `zero`."""
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
def add_entry(total: Any, k: Any, entries: Entries, x: Array) -> Any:
    """Add the product of the entry at position `k` and its element of x to `total`, in the type of `total`."""
    value = value_at(entries.values, entries.table, k, total, entries.conjugate)
    return total + value * x[column_at(entries.columns, entries.bases, k)]


@inlined
def base_at(bases: Array | None, k: Any) -> Any:
    """Return the base of the run to which position `k` belongs; 0 for plain columns."""
    if bases is not None:
        return np.uint64(bases[np.uint64(k) // np.uint64(RUN)])
    return np.uint64(0)


# ---------------------------------------------------------------------------- eight positions


@inlined
def lanes_value(codes: Array | None, table: Array | None, k: Any, zero: Any, conjugate: bool | None) -> Any:
    """Return the values of the `LANES` positions from `k` on, widened to the type of `zero`."""
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
    """Return the values of `count` positions from `k` on, followed by arbitrary values. Read no other positions."""
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
def lanes_product(k: Any, base: Any, entries: Entries, x: Array, zero: Any) -> Any:
    """Multiply the `LANES` entries from position `k` on by their elements of `x`. No position may be padding."""
    value = lanes_value(entries.values, entries.table, k, zero, entries.conjugate)
    return multiply(value, gather(x, entries.columns, np.uint64(k), base))


@inlined
def _add_padded(sums: Any, k: Any, base: Any, entries: Entries, x: Array, zero: Any) -> Any:
    # Drop the products at padding. Padding is not a value of zero, because x[0] may be inf or NaN.
    gathered = gather_or_first(x, entries.columns, np.uint64(k), base)
    value = lanes_value(entries.values, entries.table, k, zero, entries.conjugate)
    return keep_padding(entries.columns, np.uint64(k), sums, add(sums, multiply(value, gathered)))


# ---------------------------------------------------------------------------- runs and rows


@inlined
def no_sums(zero: Any) -> Run:
    """Return sums of 0 for the rows of a run."""
    lanes = splat(zero)
    return lanes, lanes, lanes, lanes


@inlined
def add_run(sums: Run, k: Any, entries: Entries, x: Array, zero: Any) -> Run:
    """Add the products at a run of positions, from `k` on, to the sums of a slice's rows. Padding adds nothing."""
    a, b, c, d = sums
    base = base_at(entries.bases, k)
    prefetch(entries.values, np.uint64(k + _AHEAD), RUN)
    prefetch(entries.columns, np.uint64(k + _AHEAD), RUN)
    if any_padding(entries.columns, np.uint64(k)):
        a = _add_padded(a, k, base, entries, x, zero)
        b = _add_padded(b, k + LANES, base, entries, x, zero)
        c = _add_padded(c, k + 2 * LANES, base, entries, x, zero)
        d = _add_padded(d, k + 3 * LANES, base, entries, x, zero)
    else:
        a = add(a, lanes_product(k, base, entries, x, zero))
        b = add(b, lanes_product(k + LANES, base, entries, x, zero))
        c = add(c, lanes_product(k + 2 * LANES, base, entries, x, zero))
        d = add(d, lanes_product(k + 3 * LANES, base, entries, x, zero))
    return a, b, c, d


@inlined
def sum_lanes(begin: Any, end: Any, entries: Entries, x: Array, zero: Any) -> Any:
    """Return `LANES` partial sums of the products at positions `begin` to `end`. Each has every `LANES`-th product.

    The positions are read in groups of `LANES`. The last group may be shorter. With bases, groups begin at multiples of
    `LANES`, so that each group is within one run, and the first group may also be shorter.
    """
    k, lanes = begin, splat(zero)
    if entries.bases is not None:
        k = min(-(-begin // LANES) * LANES, end)
        if begin < k:
            lanes = _first_product(begin, k - begin, entries, x, zero)
    while k + LANES <= end:
        prefetch(entries.values, np.uint64(k + _AHEAD), LANES)
        prefetch(entries.columns, np.uint64(k + _AHEAD), LANES)
        lanes = add(lanes, lanes_product(k, base_at(entries.bases, k), entries, x, zero))
        k += LANES
    if k < end:
        lanes = add(lanes, _first_product(k, end - k, entries, x, zero))
    return lane_sum(lanes)


@inlined
def _first_product(k: Any, count: Any, entries: Entries, x: Array, zero: Any) -> Any:
    """Return the products of `count` < `LANES` entries from position `k` on with `x`, followed by zeros."""
    value = lanes_first_value(entries.values, entries.table, k, count, zero, entries.conjugate)
    count = np.uint64(count)
    gathered = gather_first(x, entries.columns, np.uint64(k), base_at(entries.bases, k), count)
    # In the unused lanes, x may be inf or NaN, so set them to zero.
    return keep_first(multiply(value, gathered), count)
