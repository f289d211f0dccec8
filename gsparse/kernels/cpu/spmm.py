"""CSR, or blocks, times a dense matrix; the contract is in `gsparse.kernels.contract`.

A part owns consecutive rows, about the same number of entries plus rows for each part (`first_row`), and all columns of
these rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.kernels.contract import ChoosePanelLaunch, MultiplyColumns
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.rows import Int, first_row, widened, write
from gsparse.kernels.cpu.spmm_bsr import multiply_blocks
from gsparse.kernels.cpu.spmm_columns import multiply_by_columns, num_copies
from gsparse.kernels.set_up import Survey

Eight = tuple[Any, Any, Any, Any, Any, Any, Any, Any]

# From this number of columns on, an `x` that is contiguous in C order is read along its rows, and the sums of a row of
# `y` are in memory. If there are fewer columns, or if `x` is not contiguous, up to eight sums at a time are in
# registers. Milliseconds for 7-point 60**3:
#
#     columns             4      8     16     32
#     sums in memory    7.0    4.8    6.7   11.5
#     in registers      2.4    3.7    7.1   12.9
#     SciPy             3.6    4.9    9.2   17.6
_MIN_ROW_COLUMNS = 16

# Columns that are not contiguous within a row are multiplied in strips of this many columns, each copied to row-major
# order first. An entry then reads one cache line of `x` instead of eight, and the copy takes as much memory as eight
# vectors. Milliseconds for a column-major `x`, fe_body, one thread; SciPy copies all columns at once:
#
#     columns             3      6      8     32    128
#     without a copy    1.0    1.7    2.0   10.8     37
#     in strips         1.0    1.2    1.6    5.8     26
#     SciPy             1.1    1.4    2.1    9.4     38
_STRIP_COLUMNS = 8
# Up to this many columns of a product with CSR are not copied.
_FEW_COLUMNS = 2


class PanelProduct(NamedTuple):
    """A CSR matrix and the columns that it is multiplied with, as loops take them; `conjugate` is True or None."""

    indptr: Array
    indices: Array
    data: Array
    conjugate: bool | None
    x: Array
    y: Array
    alpha: Any
    beta: Any


def csr_spmm(
    device: Device,
    matrix: Csr | RowPattern | Bsr,
    dtype: np.dtype[Any],
    choose: ChoosePanelLaunch,
    survey: Survey,
    transpose: Csr | None = None,
) -> MultiplyColumns:
    """Multiply columns of any strides. Each has the bits of `csr_scalar`, unless `transpose` is read instead."""
    if isinstance(matrix, Bsr):
        return partial(_multiply, partial(multiply_blocks, matrix), 0)
    assert isinstance(matrix, Csr)
    return partial(_multiply, partial(_multiply_strip, matrix, transpose), _FEW_COLUMNS)


def _multiply(
    multiply_strip: MultiplyColumns, few: int, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool
) -> None:
    """Multiply all columns at once if they are at most `few`, or contiguous within a row, and otherwise in strips."""
    num_columns = x.shape[1]
    if num_columns <= few or x.strides[1] == x.itemsize:
        multiply_strip(x, y, alpha, beta, conjugate)
        return
    for first in range(0, num_columns, _STRIP_COLUMNS):
        columns = slice(first, first + _STRIP_COLUMNS)
        multiply_strip(_in_row_order(x[:, columns]), y[:, columns], alpha, beta, conjugate)


def _multiply_strip(
    matrix: Csr, transpose: Csr | None, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool
) -> None:
    num_columns = x.shape[1]
    if num_columns == 0:
        return
    if transpose is not None and (copies := num_copies(x, y)):
        multiply_by_columns(transpose, copies, x, y, alpha, beta, conjugate)
        return
    by_rows = num_columns >= _MIN_ROW_COLUMNS and x.flags.c_contiguous
    cost = (matrix.indices.size + y.shape[0]) * num_columns
    conjugates = True if conjugate and matrix.data.dtype.kind == "c" else None
    kernel = _csr_spmm_rows if by_rows else _csr_spmm_tiles
    run_parts(kernel, cost, (matrix.indptr, matrix.indices, matrix.data, conjugates, x, y, alpha, beta))


def _in_row_order(x: Array) -> Array:
    strip = np.empty(x.shape, x.dtype)
    run_parts(_copy_rows, x.size, x, strip)
    return strip


@compiled
def _copy_rows(part: int, num_parts: int, source: Array, target: Array) -> None:
    num_rows, num_columns = source.shape
    for row in range(part * num_rows // num_parts, (part + 1) * num_rows // num_parts):
        for column in range(num_columns):
            target[np.uint64(row), np.uint64(column)] = source[np.uint64(row), np.uint64(column)]


@partial(compiled, allocates=True)
def _csr_spmm_rows(part: int, num_parts: int, product: PanelProduct) -> None:
    """Add each entry to the sums of all columns of its row, which are in memory."""
    indptr, indices, data, conjugate, x, y, alpha, beta = product
    num_columns = x.shape[1]
    zero = y.dtype.type(0)
    sums = np.empty(num_columns, y.dtype)
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        sums[:] = zero
        for position in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            value = widened(zero, data[np.uint64(position)], conjugate)
            source = np.uint64(indices[np.uint64(position)])
            for column in range(num_columns):
                sums[np.uint64(column)] += value * x[source, np.uint64(column)]
        for column in range(num_columns):
            write(y[np.uint64(row)], column, sums[np.uint64(column)], alpha, beta)


@compiled
def _csr_spmm_tiles(part: int, num_parts: int, product: PanelProduct) -> None:
    """Sum eight columns of a row at a time in registers, then four, two and one."""
    product = PanelProduct(*product)
    indptr, indices, data, conjugate, x, y, alpha, beta = product
    num_columns = x.shape[1]
    zero = y.dtype.type(0)
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        begin, end = indptr[np.uint64(row)], indptr[np.uint64(row + 1)]
        column = 0
        while column + 8 <= num_columns:
            sums = _columns_of_8(zero, begin, end, column, product)
            for lane in range(8):
                write(y[np.uint64(row)], column + lane, sums[lane], alpha, beta)
            column += 8
        if column + 4 <= num_columns:
            fewer = _columns_of_4(zero, begin, end, column, product)
            for lane in range(4):
                write(y[np.uint64(row)], column + lane, fewer[lane], alpha, beta)
            column += 4
        if column + 2 <= num_columns:
            pair = _columns_of_2(zero, begin, end, column, product)
            for lane in range(2):
                write(y[np.uint64(row)], column + lane, pair[lane], alpha, beta)
            column += 2
        if column < num_columns:
            total = zero
            for position in range(begin, end):
                value = widened(zero, data[np.uint64(position)], conjugate)
                total += value * x[np.uint64(indices[np.uint64(position)]), np.uint64(column)]
            write(y[np.uint64(row)], column, total, alpha, beta)


@inlined
def _columns_of_8(zero: Any, begin: Int, end: Int, column: Int, product: PanelProduct) -> Eight:
    """Return the sums of eight columns of one row."""
    indices, data, conjugate, x = product.indices, product.data, product.conjugate, product.x
    a = b = c = d = e = f = g = h = zero
    for position in range(begin, end):
        value = widened(zero, data[np.uint64(position)], conjugate)
        source = np.uint64(indices[np.uint64(position)])
        a += value * x[source, np.uint64(column)]
        b += value * x[source, np.uint64(column + 1)]
        c += value * x[source, np.uint64(column + 2)]
        d += value * x[source, np.uint64(column + 3)]
        e += value * x[source, np.uint64(column + 4)]
        f += value * x[source, np.uint64(column + 5)]
        g += value * x[source, np.uint64(column + 6)]
        h += value * x[source, np.uint64(column + 7)]
    return a, b, c, d, e, f, g, h


@inlined
def _columns_of_4(zero: Any, begin: Int, end: Int, column: Int, product: PanelProduct) -> tuple[Any, Any, Any, Any]:
    """Return the sums of four columns of one row."""
    indices, data, conjugate, x = product.indices, product.data, product.conjugate, product.x
    a = b = c = d = zero
    for position in range(begin, end):
        value = widened(zero, data[np.uint64(position)], conjugate)
        source = np.uint64(indices[np.uint64(position)])
        a += value * x[source, np.uint64(column)]
        b += value * x[source, np.uint64(column + 1)]
        c += value * x[source, np.uint64(column + 2)]
        d += value * x[source, np.uint64(column + 3)]
    return a, b, c, d


@inlined
def _columns_of_2(zero: Any, begin: Int, end: Int, column: Int, product: PanelProduct) -> tuple[Any, Any]:
    """Return the sums of two columns of one row."""
    indices, data, conjugate, x = product.indices, product.data, product.conjugate, product.x
    a = b = zero
    for position in range(begin, end):
        value = widened(zero, data[np.uint64(position)], conjugate)
        source = np.uint64(indices[np.uint64(position)])
        a += value * x[source, np.uint64(column)]
        b += value * x[source, np.uint64(column + 1)]
    return a, b
