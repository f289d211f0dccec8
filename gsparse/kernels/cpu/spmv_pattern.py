"""Row-pattern product. The contract is in `gsparse.kernels.contract`.

If consecutive rows follow the same pattern, entry j of these rows reads consecutive elements of `x`. So no column index
is read, and nothing is gathered. Up to a run of such rows is summed together, in vector registers. Each row is summed
in the order of its entries, so the result has the bits of `csr_scalar`.

All parts own the same number of consecutive rows. If values differ from row to row, they are stored in slices, and all
parts own the same number of consecutive slices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.formats import RowPattern
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN, Run, lanes_first_value, lanes_value, no_sums
from gsparse.kernels.cpu.lanes import add, conjugate_lanes, load, load_first, multiply, same_as_first, splat
from gsparse.kernels.cpu.rows import Arguments, Loop, write_first, write_run
from gsparse.kernels.cpu.vectors import LANES


class RowPatterns(NamedTuple):
    """The pattern number of each row, and the offsets of patterns. Pattern p is at ``indptr[p] : indptr[p + 1]``."""

    codes: Array
    indptr: Array
    offsets: Array


class StoredValues(NamedTuple):
    """Encoded values (`gsparse.kernels.cpu.entries`)."""

    codes: Array | None
    table: Array | None
    conjugate: bool | None


def row_pattern(matrix: RowPattern, dtype: np.dtype[Any], conjugate: bool) -> Loop:
    """Row patterns: sum consecutive rows of one pattern together."""
    conjugates = True if conjugate and matrix.dtype.kind == "c" else None
    patterns = (matrix.codes, matrix.pattern_indptr, matrix.offsets)
    if matrix.slices is None or matrix.values is None:
        return _constant_rows, (patterns, matrix.pattern_values, conjugates)
    values = (matrix.values.codes, matrix.values.table, conjugates)
    return _varying_rows, (patterns, matrix.slices.slice_offsets, values)


@inlined
def _end_of_stretch(codes: Array, row: int, limit: int) -> int:
    """Return the end of the stretch of rows from `row` on that have the pattern of `row`; at most `limit`."""
    code = codes[np.uint64(row)]
    row += 1
    while row + LANES <= limit and codes[np.uint64(row)] == code and same_as_first(codes, np.uint64(row)):
        row += LANES
    while row < limit and codes[np.uint64(row)] == code:
        row += 1
    return row


@inlined
def _groups(rows: Any) -> tuple[Any, Any, Any]:
    """Return the number of rows in the second, third and fourth group of `LANES` rows, for `rows` rows in all."""
    q, r, s = rows - LANES, rows - 2 * LANES, rows - 3 * LANES
    return np.uint64(max(min(q, LANES), 0)), np.uint64(max(min(r, LANES), 0)), np.uint64(max(min(s, LANES), 0))


@inlined
def _add_rows(sums: Run, values: Run, x: Array, source: Any, groups: tuple[Any, Any, Any], zero: Any) -> Run:
    """Add one product to the sum of each of more than `LANES` rows. The i-th row reads ``x[source + i]``."""
    a, b, c, d = sums
    t, u, v, w = values
    q, r, s = groups
    a = add(a, multiply(t, load(x, source, zero)))
    b = add(b, multiply(u, load_first(x, source + np.uint64(LANES), q, zero)))
    c = add(c, multiply(v, load_first(x, source + np.uint64(2 * LANES), r, zero)))
    d = add(d, multiply(w, load_first(x, source + np.uint64(3 * LANES), s, zero)))
    return a, b, c, d


@inlined
def _run_of_values(stored: StoredValues, k: Any, groups: tuple[Any, Any, Any], zero: Any) -> Run:
    """Return the values of more than `LANES` positions from `k` on. `groups` is the result of `_groups`."""
    codes, table, conjugate = stored
    q, r, s = groups
    return (
        lanes_value(codes, table, k, zero, conjugate),
        lanes_first_value(codes, table, k + LANES, q, zero, conjugate),
        lanes_first_value(codes, table, k + 2 * LANES, r, zero, conjugate),
        lanes_first_value(codes, table, k + 3 * LANES, s, zero, conjugate),
    )


@inlined
def _constant(values: Array, k: Any, conjugate: bool | None) -> Any:
    value = splat(values[np.uint64(k)])
    if conjugate is not None:
        value = conjugate_lanes(value)
    return value


@compiled
def _constant_rows(
    part: int, num_parts: int, patterns: RowPatterns, values: Array, conjugate: bool | None, arguments: Arguments
) -> None:
    codes, pattern_indptr, offsets = patterns
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    row, last = part * y.size // num_parts, (part + 1) * y.size // num_parts
    while row < last:
        end = _end_of_stretch(codes, row, last)
        pattern = np.uint64(codes[np.uint64(row)])
        first, stop = pattern_indptr[pattern], pattern_indptr[pattern + np.uint64(1)]
        while end - row > LANES:
            rows = min(end - row, RUN)
            run, groups = no_sums(zero), _groups(rows)
            for k in range(first, stop):
                value = _constant(values, k, conjugate)
                source = np.uint64(row + offsets[np.uint64(k)])
                run = _add_rows(run, (value, value, value, value), x, source, groups, zero)
            write_run(y, row, rows, run, alpha, beta)
            row += rows
        if row < end:
            count = np.uint64(end - row)
            sums = splat(zero)
            for k in range(first, stop):
                read = load_first(x, np.uint64(row + offsets[np.uint64(k)]), count, zero)
                sums = add(sums, multiply(_constant(values, k, conjugate), read))
            write_first(y, row, count, sums, alpha, beta)
            row = end


@compiled
def _varying_rows(
    part: int,
    num_parts: int,
    patterns: RowPatterns,
    slice_offsets: Array,
    stored: StoredValues,
    arguments: Arguments,
) -> None:
    # Up to all rows of a slice are summed together, so that its values are read in the order of storage. With groups of
    # eight rows instead, each group would read every fourth cache line, which the hardware does not prefetch. A product
    # would take twice as long (27-point 64**3, one thread).
    codes, pattern_indptr, offsets = patterns
    value_codes, table, conjugate = stored
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    num_slices = slice_offsets.size - 1
    for index in range(part * num_slices // num_parts, (part + 1) * num_slices // num_parts):
        row, last = index * RUN, min((index + 1) * RUN, y.size)
        begin = slice_offsets[np.uint64(index)] - row
        while row < last:
            end = _end_of_stretch(codes, row, last)
            pattern = np.uint64(codes[np.uint64(row)])
            first, stop = pattern_indptr[pattern], pattern_indptr[pattern + np.uint64(1)]
            position, rows = begin + row, end - row
            if rows > LANES:
                run, groups = no_sums(zero), _groups(rows)
                for k in range(first, stop):
                    source = np.uint64(row + offsets[np.uint64(k)])
                    value = _run_of_values(stored, position, groups, zero)
                    run = _add_rows(run, value, x, source, groups, zero)
                    position += RUN
                write_run(y, row, rows, run, alpha, beta)
            else:
                sums = splat(zero)
                for k in range(first, stop):
                    value = lanes_first_value(value_codes, table, position, rows, zero, conjugate)
                    read = load_first(x, np.uint64(row + offsets[np.uint64(k)]), np.uint64(rows), zero)
                    sums = add(sums, multiply(value, read))
                    position += RUN
                write_first(y, row, rows, sums, alpha, beta)
            row = end
