"""Products of CSR or BSR matrices with a dense matrix X. The contract is in `gsparse.kernels.contract`.

**By rows.** A part owns consecutive rows with all their columns. All parts have about the same number of entries plus
rows (`first_row`). For each entry, a row of X is gathered. The loops for blocks are in `spmm_bsr.py`.

**By columns.** If X is much larger than Y and does not fit into the caches, a product by rows reads most rows of X from
memory once per entry. If the caller also has the transpose of the matrix, a product by columns reads X only once, in
order, and adds to rows of Y, which does fit into the caches::

    column j of the matrix        row j of X                 rows of a copy of Y
      rows    2   5   9           x_j ................       y_2 += a * x_j,  y_5 += b * x_j,  y_9 += c * x_j
      values  a   b   c

The columns of the matrix are divided into ranges, one for each thread. Each range has its own copy of Y, and the copies
are added in the order of the ranges. So the bits of the result depend on `gsparse.get_num_threads`, but not on the
number of threads that actually run.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import get_num_threads, run_parts
from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.kernels.contract import ChoosePanelLaunch, MultiplyColumns
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.lanes import add, load, load_first, multiply, splat, store, store_first
from gsparse.kernels.cpu.rows import Int, first_row, widened, write
from gsparse.kernels.cpu.spmm_bsr import multiply_blocks
from gsparse.kernels.cpu.vectors import LANES
from gsparse.kernels.set_up import Survey

# The formats that products with several columns read, in addition to CSR with unencoded values.
FORMATS: tuple[str, ...] = ("bsr",)
READS_HALVES = False
Eight = tuple[Any, Any, Any, Any, Any, Any, Any, Any]

# From this number of columns on, an `x` that is contiguous in C order is read row by row, and the sums of a row of `y`
# are in memory. Otherwise, up to eight sums of a row are in registers. Milliseconds for 7-point 60**3:
#
#     columns             4      8     16     32
#     sums in memory    7.0    4.8    6.7   11.5
#     in registers      2.4    3.7    7.1   12.9
#     SciPy             3.6    4.9    9.2   17.6
_MIN_ROW_COLUMNS = 16

# If the rows of X are not contiguous, strips of this number of columns are copied to row-major order and multiplied.
# Each entry of the matrix then reads one cache line of a strip instead of eight cache lines of X. SciPy copies all
# columns at the same time. Milliseconds for a column-major X and the matrix fe_body on one thread:
#
#     columns             3      6      8     32    128
#     without a copy    1.0    1.7    2.0   10.8     37
#     in strips         1.0    1.2    1.6    5.8     26
#     SciPy             1.1    1.4    2.1    9.4     38
_STRIP_COLUMNS = 8
# If X has at most this number of columns, a product with CSR does not copy them.
_FEW_COLUMNS = 2

# An X of at most this number of bytes stays in the caches of a core, so a product by rows is faster than by columns.
_CACHE_BYTES = 4 << 20
# In `transposed_product`, the number of copies of the result is limited: the matrix has at least this number of entries
# per element of all copies.
_ENTRIES_PER_SUM = 4
# A product by columns is used if X has at least this number of times the bytes of all copies of Y.
_RATIO = 2


class PanelProduct(NamedTuple):
    """A CSR matrix, X, Y, and the other arguments of a product. `conjugate` is True or None."""

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
    """Multiply columns of any strides. A product by rows has the bits of `csr_scalar`."""
    if isinstance(matrix, Bsr):
        return partial(_multiply, partial(multiply_blocks, matrix), 0)
    assert isinstance(matrix, Csr)
    return partial(_multiply, partial(_multiply_strip, matrix, transpose), _FEW_COLUMNS)


def _multiply(
    multiply_strip: MultiplyColumns, few: int, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool
) -> None:
    """Multiply in strips of columns, unless x has at most `few` columns or contiguous rows."""
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
    """For each row, add its entries times rows of X to an array of sums, which is in memory."""
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
    """Compute eight sums of a row together in registers. For the remaining columns, compute four, two and one sum."""
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


class ColumnPanel(NamedTuple):
    """The transposed matrix, X, and the copies of Y. `conjugate` is True or None."""

    indptr: Array
    indices: Array
    data: Array
    conjugate: bool | None
    x: Array
    copies: Array


def num_copies(x: Array, y: Array) -> int:
    """Return the number of copies of Y for a product by columns, or 0 if a product by rows is faster.

    The rows of `x` must be contiguous.
    """
    copies = get_num_threads()
    is_worthwhile = x.nbytes > _CACHE_BYTES and _RATIO * copies * y.size * y.itemsize <= x.nbytes
    return copies if is_worthwhile and x.strides[1] == x.itemsize else 0


def multiply_by_columns(
    transpose: Csr, number: int, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool
) -> None:
    """Compute Y = alpha·A·X + beta·Y from the transpose of A, with `number` copies of Y."""
    copies = np.empty((number, *y.shape), y.dtype)
    conjugates = True if conjugate and transpose.dtype.kind == "c" else None
    cost = (transpose.indices.size + x.shape[0]) * x.shape[1]
    run_parts(_add_columns, cost, (transpose.indptr, transpose.indices, transpose.data, conjugates, x, copies))
    run_parts(_write_sums, copies.size, copies, y, alpha, beta)


def transposed_product(csr: Csr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """Compute the product with the transpose of `csr`. Like SciPy, add multiples of the rows of `csr`.

    Each thread adds to its own copy of the result.
    """
    if x.ndim == 1:
        x, y = x[:, np.newaxis], y[:, np.newaxis]
    copies = min(get_num_threads(), csr.nnz // (_ENTRIES_PER_SUM * max(csr.num_cols, 1)))
    multiply_by_columns(csr, max(copies, 1), np.ascontiguousarray(x), y, alpha, beta, conjugate)


TRANSPOSED_PRODUCT = transposed_product


@compiled
def _add_columns(part: int, num_parts: int, panel: ColumnPanel) -> None:
    """Fill the copies of Y that belong to this part."""
    panel = ColumnPanel(*panel)
    num_copies, num_columns = panel.copies.shape[0], panel.x.shape[1]
    for copy in range(part * num_copies // num_parts, (part + 1) * num_copies // num_parts):
        panel.copies[np.uint64(copy)] = panel.copies.dtype.type(0)
        first, last = first_row(copy, num_copies, panel.indptr), first_row(copy + 1, num_copies, panel.indptr)
        for j in range(first, last):
            if num_columns == 1:
                _add_column(j, copy, panel)
                continue
            for column in range(0, num_columns, LANES):
                count = min(num_columns - column, LANES)
                if count == LANES:
                    _add_lanes(j, copy, column, panel)
                else:
                    _add_first(j, copy, column, count, panel)


@inlined
def _add_column(j: Int, copy: Int, panel: ColumnPanel) -> None:
    """For an X with one column, add multiples of its element j to elements of a copy of Y."""
    sums, zero = panel.copies[np.uint64(copy)], panel.copies.dtype.type(0)
    element = panel.x[np.uint64(j), np.uint64(0)]
    for k in range(panel.indptr[np.uint64(j)], panel.indptr[np.uint64(j + 1)]):
        value = widened(zero, panel.data[np.uint64(k)], panel.conjugate)
        sums[np.uint64(panel.indices[np.uint64(k)]), np.uint64(0)] += value * element


@inlined
def _add_lanes(j: Int, copy: Int, column: Int, panel: ColumnPanel) -> None:
    """Add multiples of `LANES` elements of row j of X to rows of a copy of Y."""
    sums, place, zero = panel.copies[np.uint64(copy)], np.uint64(column), panel.copies.dtype.type(0)
    element = load(panel.x[np.uint64(j)], place, zero)
    for k in range(panel.indptr[np.uint64(j)], panel.indptr[np.uint64(j + 1)]):
        value = splat(widened(zero, panel.data[np.uint64(k)], panel.conjugate))
        row = sums[np.uint64(panel.indices[np.uint64(k)])]
        store(row, place, add(load(row, place, zero), multiply(value, element)))


@inlined
def _add_first(j: Int, copy: Int, column: Int, count: Int, panel: ColumnPanel) -> None:
    """Add multiples of the last `count` elements of row j of X, fewer than `LANES`, to rows of a copy of Y."""
    sums, place, zero = panel.copies[np.uint64(copy)], np.uint64(column), panel.copies.dtype.type(0)
    number = np.uint64(count)
    element = load_first(panel.x[np.uint64(j)], place, number, zero)
    for k in range(panel.indptr[np.uint64(j)], panel.indptr[np.uint64(j + 1)]):
        value = splat(widened(zero, panel.data[np.uint64(k)], panel.conjugate))
        row = sums[np.uint64(panel.indices[np.uint64(k)])]
        store_first(row, place, number, add(load_first(row, place, number, zero), multiply(value, element)))


@compiled
def _write_sums(part: int, num_parts: int, copies: Array, y: Array, alpha: Any, beta: Any) -> None:
    """Sum the copies of Y, and write the rows of Y."""
    num_copies, num_rows, num_columns = copies.shape
    for row in range(part * num_rows // num_parts, (part + 1) * num_rows // num_parts):
        for column in range(num_columns):
            total = copies[np.uint64(0), np.uint64(row), np.uint64(column)]
            for copy in range(1, num_copies):
                total += copies[np.uint64(copy), np.uint64(row), np.uint64(column)]
            write(y[np.uint64(row)], column, total, alpha, beta)
