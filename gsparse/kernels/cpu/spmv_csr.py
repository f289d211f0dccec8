"""CSR products of a matrix and a vector; the contract is in `gsparse.kernels.contract`.

Each kernel is a compiled loop over one part, ``_name(part, num_parts, ...)``, and a function that runs all parts on the
threads. A part owns consecutive rows, about the same number of entries plus rows for each part (`first_row`). How a row
is summed does not depend on the part that it belongs to, so the number of threads does not change a bit of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import CsrEntries
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.entries import Entries, add_entry, entries_of, sum_lanes
from gsparse.kernels.cpu.rows import Arguments, first_row, write


@bound
def csr_scalar(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, each row summed one entry after the other, as SciPy does, with the same bits."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    run_parts(_csr_scalar, matrix.nnz + y.size, matrix.indptr, entries, (x, y, alpha, beta))


@bound
def csr_vector(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, each row summed in eight partial sums: a long row then does not wait for one addition at a time."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    run_parts(_csr_vector, matrix.nnz + y.size, matrix.indptr, entries, (x, y, alpha, beta))


@compiled
def _csr_scalar(part: int, num_parts: int, indptr: Array, entries: Entries, arguments: Arguments) -> None:
    entries, arguments = Entries(*entries), Arguments(*arguments)
    row, last = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    if row == last:
        return
    position, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
    total = arguments.y.dtype.type(0)
    # This is one loop over entries and rows. LLVM would unroll a loop over the entries of one row and add a loop for
    # the remaining entries; a short row would then pay for two mispredicted branches: 3 to 12 % on graphs and circuits.
    while True:
        if position < end:
            total = add_entry(total, position, entries, arguments.x)
            position += 1
        else:
            write(arguments.y, row, total, arguments.alpha, arguments.beta)
            row += 1
            if row == last:
                return
            total = arguments.y.dtype.type(0)
            end = np.int64(indptr[np.uint64(row + 1)])


@compiled
def _csr_vector(part: int, num_parts: int, indptr: Array, entries: Entries, arguments: Arguments) -> None:
    entries, arguments = Entries(*entries), Arguments(*arguments)
    row, last = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    position = np.int64(indptr[np.uint64(row)])
    for i in range(row, last):
        end = np.int64(indptr[np.uint64(i + 1)])
        total = sum_lanes(position, end, entries, arguments.x, arguments.y.dtype.type(0))
        write(arguments.y, i, total, arguments.alpha, arguments.beta)
        position = end
