"""CSR times a dense matrix X, read by columns, for an X that is much larger than the result Y.

`csr_spmm` gathers a row of X for each entry. If X does not fit the caches, most of these rows come from memory, and
again for each entry of the same column. If the matrix is also given by columns, as the arrays of its transpose, this
product reads X once, in order, and adds to rows of Y, which do fit::

    column j of the matrix        row j of X                 rows of a copy of Y
      rows    2   5   9           x_j ................       y_2 += a * x_j,  y_5 += b * x_j,  y_9 += c * x_j
      values  a   b   c

The columns are divided into ranges, one for each thread that may be used. Each range has its own copy of Y, and the
copies are added up in their order. So the bits of the result depend on `gsparse.get_num_threads`, but not on the number
of threads that take part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import get_num_threads, run_parts
from gsparse.formats import Csr
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.lanes import add, load, load_first, multiply, splat, store, store_first
from gsparse.kernels.cpu.rows import Int, first_row, widened, write
from gsparse.kernels.cpu.vectors import LANES

# A smaller X stays in the caches of a core, and its rows are gathered faster than rows of Y are changed.
_CACHE_BYTES = 4 << 20
# X must have at least this many times the bytes of all copies of Y.
_RATIO = 2


class ColumnPanel(NamedTuple):
    """The transposed arrays, X, and the copies of Y, as loops take them; `conjugate` is True or None."""

    indptr: Array
    indices: Array
    data: Array
    conjugate: bool | None
    x: Array
    copies: Array


def num_copies(x: Array, y: Array) -> int:
    """Return the number of copies of Y for a product that is read by columns, or 0 if gathering is faster.

    The rows of `x` must be contiguous.
    """
    copies = get_num_threads()
    is_worthwhile = x.nbytes > _CACHE_BYTES and _RATIO * copies * y.size * y.itemsize <= x.nbytes
    return copies if is_worthwhile and x.strides[1] == x.itemsize else 0


def multiply_by_columns(
    transpose: Csr, number: int, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool
) -> None:
    """Compute Y = alpha·A·X + beta·Y with the transpose of A and this number of copies of Y."""
    copies = np.empty((number, *y.shape), y.dtype)
    conjugates = True if conjugate and transpose.dtype.kind == "c" else None
    cost = (transpose.indices.size + x.shape[0]) * x.shape[1]
    run_parts(_add_columns, cost, (transpose.indptr, transpose.indices, transpose.data, conjugates, x, copies))
    run_parts(_write_sums, copies.size, copies, y, alpha, beta)


@compiled
def _add_columns(part: int, num_parts: int, panel: ColumnPanel) -> None:
    """Fill the copies of Y that belong to this part."""
    panel = ColumnPanel(*panel)
    num_copies, num_columns = panel.copies.shape[0], panel.x.shape[1]
    for copy in range(part * num_copies // num_parts, (part + 1) * num_copies // num_parts):
        panel.copies[np.uint64(copy)] = panel.copies.dtype.type(0)
        first, last = first_row(copy, num_copies, panel.indptr), first_row(copy + 1, num_copies, panel.indptr)
        for j in range(first, last):
            for column in range(0, num_columns, LANES):
                count = min(num_columns - column, LANES)
                if count == LANES:
                    _add_lanes(j, copy, column, panel)
                else:
                    _add_first(j, copy, column, count, panel)


@inlined
def _add_lanes(j: Int, copy: Int, column: Int, panel: ColumnPanel) -> None:
    """Add multiples of `LANES` elements of row j of X."""
    sums, place, zero = panel.copies[np.uint64(copy)], np.uint64(column), panel.copies.dtype.type(0)
    element = load(panel.x[np.uint64(j)], place, zero)
    for k in range(panel.indptr[np.uint64(j)], panel.indptr[np.uint64(j + 1)]):
        value = splat(widened(zero, panel.data[np.uint64(k)], panel.conjugate))
        row = sums[np.uint64(panel.indices[np.uint64(k)])]
        store(row, place, add(load(row, place, zero), multiply(value, element)))


@inlined
def _add_first(j: Int, copy: Int, column: Int, count: Int, panel: ColumnPanel) -> None:
    """Add multiples of the last elements of row j of X, fewer than `LANES`."""
    sums, place, zero = panel.copies[np.uint64(copy)], np.uint64(column), panel.copies.dtype.type(0)
    number = np.uint64(count)
    element = load_first(panel.x[np.uint64(j)], place, number, zero)
    for k in range(panel.indptr[np.uint64(j)], panel.indptr[np.uint64(j + 1)]):
        value = splat(widened(zero, panel.data[np.uint64(k)], panel.conjugate))
        row = sums[np.uint64(panel.indices[np.uint64(k)])]
        store_first(row, place, number, add(load_first(row, place, number, zero), multiply(value, element)))


@compiled
def _write_sums(part: int, num_parts: int, copies: Array, y: Array, alpha: Any, beta: Any) -> None:
    """Add up the copies of rows of Y."""
    num_copies, num_rows, num_columns = copies.shape
    for row in range(part * num_rows // num_parts, (part + 1) * num_rows // num_parts):
        for column in range(num_columns):
            total = copies[np.uint64(0), np.uint64(row), np.uint64(column)]
            for copy in range(1, num_copies):
                total += copies[np.uint64(copy), np.uint64(row), np.uint64(column)]
            write(y[np.uint64(row)], column, total, alpha, beta)
