"""Matrix-vector products; the contract is in `gsparse.kernels`.

Each kernel is a compiled loop over the rows of one part, ``_name(part, num_parts, ...)``, and a function that hands the
parts out. No row is shared between parts, so that the number of threads does not change a bit of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.formats import BlockedEllpack, Csr, Ellpack
from gsparse.kernels import Launch
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.rows import Int, add_entry, eight_at, eight_of, first_row, sum_row, sums_of_4, sums_of_8, write
from gsparse.threads import run_parts

__all__ = ["blocked_ellpack", "conjugation", "csr_scalar", "csr_vector", "ellpack"]

# ELLPACK rows side by side, a register each.
_TILE_ROWS = 8

# Above this width, ELLPACK is read a few columns at a time over a longer run of rows: all columns at once are more
# streams than the hardware prefetches or, at a stride of whole pages, the first cache holds. Width 7 (7-point 100**3):
# 4.8 ms all at once, 6.6 by columns; width 27 (27-point 48**3): 3.9 and 2.0; width 81: 7.2 and 2.7.
_MAX_ELLPACK_STREAMS = 16
_RUN_ROWS = 1024
_RUN_COLUMNS = 4


def conjugation(conjugate: bool, data: Array) -> bool | None:
    """Give what the loops are told: True where values have to be conjugated, else None."""
    return True if conjugate and data.dtype.kind == "c" else None


def csr_scalar(
    device: object, matrix: Csr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """CSR, each row summed one entry after the other, as SciPy does: the same bits."""
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    cost = indices.size + y.size
    run_parts(_csr_scalar, cost, indptr, indices, data, x, y, alpha, beta, conjugation(conjugate, data))


def csr_vector(
    device: object, matrix: Csr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """CSR, each row in independent partial sums: for long rows, which otherwise wait for one addition at a time.

    There are four partial sums where ``launch.threads_per_row`` is at most 4, else eight.
    """
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    kernel = _csr_vector_4 if launch.threads_per_row <= 4 else _csr_vector_8
    cost = indices.size + y.size
    run_parts(kernel, cost, indptr, indices, data, x, y, alpha, beta, conjugation(conjugate, data))


def ellpack(
    device: object, matrix: Ellpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """ELLPACK, eight rows side by side."""
    width, indptr, indices, data = matrix.width, matrix.indptr, matrix.indices, matrix.data
    kernel = _ellpack if width <= _MAX_ELLPACK_STREAMS else _ellpack_wide
    cost = indices.size + y.size
    run_parts(kernel, cost, width, indptr, indices, data, x, y, alpha, beta, conjugation(conjugate, data))


def blocked_ellpack(
    device: object, matrix: BlockedEllpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """Blocked ELLPACK, a slice at a time in the order it is stored."""
    size, offsets, indptr = matrix.slice_size, matrix.slice_offsets, matrix.indptr
    indices, data = matrix.indices, matrix.data
    cost = indices.size + y.size
    conj = conjugation(conjugate, data)
    run_parts(_blocked_ellpack, cost, size, offsets, indptr, indices, data, x, y, alpha, beta, conj)


@compiled
def _csr_scalar(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    data: Array,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
    conjugate: bool | None,
) -> None:
    # One loop over entries and rows alike. A loop over a row's entries is unrolled by LLVM, with a loop for what is
    # left over, and a short row then pays for two mispredicted branches: 3 to 12 % on graphs and circuits.
    zero = y.dtype.type(0)
    row, last = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    if row == last:
        return
    total = zero
    position, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
    while True:
        if position < end:
            total = add_entry(total, position, indices, data, x, conjugate)
            position += 1
        else:
            write(y, row, total, alpha, beta)
            row += 1
            if row == last:
                return
            total = zero
            end = np.int64(indptr[np.uint64(row + 1)])


@compiled
def _csr_vector_4(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    data: Array,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
    conjugate: bool | None,
) -> None:
    zero = y.dtype.type(0)
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        begin, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
        fours = (end - begin) // 4
        a, b, c, d = sums_of_4(zero, begin, 4, fours, indices, data, x, conjugate)
        rest = begin + 4 * fours
        tail = sum_row(zero, rest, 1, end - rest, indices, data, x, conjugate)
        write(y, row, ((a + c) + (b + d)) + tail, alpha, beta)


@compiled
def _csr_vector_8(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    data: Array,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
    conjugate: bool | None,
) -> None:
    zero = y.dtype.type(0)
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        begin, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
        eights = (end - begin) // 8
        a, b, c, d, e, f, g, h = sums_of_8(eight_of(zero), begin, 8, eights, indices, data, x, conjugate)
        rest = begin + 8 * eights
        tail = sum_row(zero, rest, 1, end - rest, indices, data, x, conjugate)
        write(y, row, (((a + e) + (c + g)) + ((b + f) + (d + h))) + tail, alpha, beta)


@compiled
def _ellpack(
    part: int,
    num_parts: int,
    width: int,
    indptr: Array,
    indices: Array,
    data: Array,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
    conjugate: bool | None,
) -> None:
    zero = y.dtype.type(0)
    num_rows = y.size
    first, last = part * num_rows // num_parts, (part + 1) * num_rows // num_parts
    tiled = last - (last - first) % _TILE_ROWS
    for tile in range(first, tiled, _TILE_ROWS):
        sums = sums_of_8(eight_of(zero), tile, num_rows, width, indices, data, x, conjugate)
        for lane in range(_TILE_ROWS):
            row, total = tile + lane, sums[lane]
            if np.isnan(total):
                total = _sum_unpadded(zero, row, row, num_rows, indptr, indices, data, x, conjugate)
            write(y, row, total, alpha, beta)
    for row in range(tiled, last):
        total = _sum_unpadded(zero, row, row, num_rows, indptr, indices, data, x, conjugate)
        write(y, row, total, alpha, beta)


@compiled
def _ellpack_wide(
    part: int,
    num_parts: int,
    width: int,
    indptr: Array,
    indices: Array,
    data: Array,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
    conjugate: bool | None,
) -> None:
    zero = y.dtype.type(0)
    num_rows = y.size
    sums = np.empty(_RUN_ROWS, y.dtype)
    first, last = part * num_rows // num_parts, (part + 1) * num_rows // num_parts
    tiled = last - (last - first) % _TILE_ROWS
    for run in range(first, tiled, _RUN_ROWS):
        rows = min(_RUN_ROWS, tiled - run)
        sums[:] = zero
        for column in range(0, width, _RUN_COLUMNS):
            columns = min(_RUN_COLUMNS, width - column)
            for lane in range(0, rows, _TILE_ROWS):
                position = column * num_rows + run + lane
                totals = sums_of_8(eight_at(sums, lane), position, num_rows, columns, indices, data, x, conjugate)
                for k in range(_TILE_ROWS):
                    sums[np.uint64(lane + k)] = totals[k]
        for row in range(run, run + rows):
            total = sums[np.uint64(row - run)]
            if np.isnan(total):
                total = _sum_unpadded(zero, row, row, num_rows, indptr, indices, data, x, conjugate)
            write(y, row, total, alpha, beta)
    for row in range(tiled, last):
        total = _sum_unpadded(zero, row, row, num_rows, indptr, indices, data, x, conjugate)
        write(y, row, total, alpha, beta)


@compiled
def _blocked_ellpack(
    part: int,
    num_parts: int,
    slice_size: int,
    slice_offsets: Array,
    indptr: Array,
    indices: Array,
    data: Array,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
    conjugate: bool | None,
) -> None:
    # Sums stay in memory, so that a slice is read from end to end as it lies (7-point 100**3, slices of 32: 4.6 ms;
    # eight rows at a time in registers 5.8 ms).
    zero = y.dtype.type(0)
    sums = np.empty(slice_size, y.dtype)
    first, last = first_row(part, num_parts, slice_offsets), first_row(part + 1, num_parts, slice_offsets)
    for index in range(first, last):
        begin, end = slice_offsets[np.uint64(index)], slice_offsets[np.uint64(index + 1)]
        for lane in range(slice_size):
            sums[np.uint64(lane)] = zero
        for column in range(begin, end, slice_size):
            for lane in range(slice_size):
                total = sums[np.uint64(lane)]
                sums[np.uint64(lane)] = add_entry(total, column + lane, indices, data, x, conjugate)
        first_lane = index * slice_size
        for row in range(first_lane, min(first_lane + slice_size, y.size)):
            total = sums[np.uint64(row - first_lane)]
            if np.isnan(total):
                position = begin + row - first_lane
                total = _sum_unpadded(zero, row, position, slice_size, indptr, indices, data, x, conjugate)
            write(y, row, total, alpha, beta)


@compiled
def _sum_unpadded(
    zero: Any,
    row: Int,
    begin: Int,
    stride: Int,
    indptr: Array,
    indices: Array,
    data: Array,
    x: Array,
    conjugate: bool | None,
) -> Any:
    """Sum a padded row again over its true length: its NaN may come from 0 * inf in the padding."""
    count = np.int64(indptr[np.uint64(row + 1)]) - np.int64(indptr[np.uint64(row)])
    return sum_row(zero, begin, stride, count, indices, data, x, conjugate)
