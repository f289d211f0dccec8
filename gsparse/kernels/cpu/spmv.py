"""Products of a matrix and a vector. The contract is in `gsparse.kernels.contract`.

Each product has a compiled loop over one part, ``_name(part, num_parts, ...)``, and a function ``name`` that returns
the loop and its arguments. A part owns consecutive rows (block rows, slices). All parts have about the same number of
entries plus rows (`first_row`), or in ELLPACK the same number of runs. The order of a row's additions does not depend
on its part, so the number of threads does not change the bits of the result. Row patterns are in `spmv_pattern.py`.

In ELLPACK, blocked ELLPACK and row lanes, a run of positions has one entry of each row of a run of rows. The loops add
the products of one run of positions after the other to the sums of the rows, which are in vector registers
(`gsparse.kernels.cpu.lanes`). On the CPU, each row has one lane of `LaneSlices`, and no column is frequent. With blocks
(BSR), the rows of a block are side by side in a vector register, and each column of a block is multiplied by one
element of x. Each row except a long one is summed in the order of its entries, and padding adds nothing, so the result
has the bits of `csr_scalar`.

A long row (`gsparse.formats.LongRows`) is not stored in slices, but cut into chunks of a fixed number of entries. Each
part owns the same number of consecutive chunks, and stores the sum of each chunk. After all parts have finished, a
second loop adds up the sums of each row's chunks in their order. A part of this loop owns whole long rows. So the bits
of the result do not depend on the number of parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import is_for_one_thread, run_parts
from gsparse.formats import BlockedEllpack, Bsr, Columns, Csr, CsrEntries, Ellpack, LongRows, RowLanes
from gsparse.formats.launch import Launch
from gsparse.kernels.contract import BindProduct, Multiply
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import (
    RUN,
    Entries,
    Run,
    add_entry,
    add_run,
    column_at,
    entries_of,
    lanes_value,
    no_sums,
    sum_lanes,
    value_at,
)
from gsparse.kernels.cpu.lanes import add, load, multiply, splat
from gsparse.kernels.cpu.layout import CHUNK_SIZE
from gsparse.kernels.cpu.rows import Arguments, Loop, first_row, store_run, write, write_first, write_run
from gsparse.kernels.cpu.spmv_pattern import row_pattern
from gsparse.kernels.cpu.vectors import LANES

# Numbers of runs of rows and of ELLPACK columns that are read together. The sums of these rows stay in the first-level
# cache. Reading all columns of a run takes up to 3.4 times as long (27-point 64**3), because the hardware cannot
# prefetch all columns of a wide matrix at the same time.
_STRETCH_RUNS = 32
_STRETCH_COLUMNS = 4

# Blocks with at most this number of rows are summed in scalars, because most lanes of a register would be idle. For
# 27-point 30**3, scalars take 0.75 times as long as lanes with 2 x 2 blocks, but 1.3 times as long with 3 x 3 blocks.
_FEW_ROWS = 2

_NO_POSITIONS, _NO_CHUNKS = np.empty(0, np.int64), np.empty(0, np.int32)


def csr_scalar(matrix: CsrEntries, dtype: np.dtype[Any], conjugate: bool) -> Loop:
    """CSR: sum the entries of each row one after the other, as SciPy does, with the same bits."""
    return _csr_scalar, (matrix.indptr, entries_of(matrix.columns, matrix.values, conjugate))


def csr_vector(matrix: CsrEntries, dtype: np.dtype[Any], conjugate: bool) -> Loop:
    """CSR: compute eight partial sums of each row, so that additions of a row need not wait for one another."""
    return _csr_vector, (matrix.indptr, entries_of(matrix.columns, matrix.values, conjugate))


@compiled
def _csr_scalar(part: int, num_parts: int, indptr: Array, entries: Entries, arguments: Arguments) -> None:
    entries, arguments = Entries(*entries), Arguments(*arguments)
    row, last = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    if row == last:
        return
    position, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
    total = arguments.y.dtype.type(0)
    # A single loop runs over the entries of all rows. If each row had an inner loop, LLVM would unroll it, and generate
    # another loop for the remaining entries. A short row would then cost two mispredicted branches, which take 3 to
    # 12 % of the time of a product with graphs and circuits.
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


def ellpack(matrix: Ellpack, dtype: np.dtype[Any], conjugate: bool) -> Loop:
    """ELLPACK: sum the rows of a run in vector registers."""
    return _ellpack, (matrix.width, matrix.pitch, entries_of(matrix.columns, matrix.values, conjugate))


def blocked_ellpack(matrix: BlockedEllpack, dtype: np.dtype[Any], conjugate: bool) -> Loop:
    """Blocked ELLPACK: sum one slice after the other, in the order of storage, and long rows in chunks."""
    slices, entries = matrix.slices, entries_of(matrix.columns, matrix.values, conjugate)
    return _blocked_ellpack, (slices.slice_offsets, slices.rows, entries, _chunks_of(None, np.empty(0, dtype)))


@inlined
def _run_at(sums: Array, place: Any, zero: Any) -> Run:
    k = np.uint64(place)
    a, b = load(sums, k, zero), load(sums, k + np.uint64(LANES), zero)
    return a, b, load(sums, k + np.uint64(2 * LANES), zero), load(sums, k + np.uint64(3 * LANES), zero)


@partial(compiled, allocates=True)
def _ellpack(part: int, num_parts: int, width: int, pitch: int, entries: Entries, arguments: Arguments) -> None:
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    num_runs = pitch // RUN
    first, last = part * num_runs // num_parts, (part + 1) * num_runs // num_parts
    sums = np.empty(_STRETCH_RUNS * RUN, y.dtype)
    for stretch in range(first, last, _STRETCH_RUNS):
        row, rows = stretch * RUN, min(_STRETCH_RUNS, last - stretch) * RUN
        sums[:] = zero
        for column in range(0, width, _STRETCH_COLUMNS):
            columns_end = min(column + _STRETCH_COLUMNS, width) * pitch
            for place in range(0, rows, RUN):
                run = _run_at(sums, place, zero)
                for k in range(column * pitch + row + place, columns_end, pitch):
                    run = add_run(run, k, entries, x, zero)
                store_run(sums, place, run)
        for place in range(0, rows, RUN):
            rows_left = min(y.size - row - place, RUN)
            write_run(y, row + place, rows_left, _run_at(sums, place, zero), alpha, beta)


@partial(compiled, allocates=True)
def _blocked_ellpack(
    part: int,
    num_parts: int,
    offsets: Array,
    rows: Array | None,
    entries: Entries,
    chunks: Chunks,
    arguments: Arguments,
) -> None:
    """Multiply slices. Slice s holds the rows ``rows[s * RUN : (s + 1) * RUN]``; without `rows`, rows are in order."""
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    sum_chunks(part, num_parts, Chunks(*chunks), entries, x, zero)
    sums = np.empty(RUN, y.dtype)
    for index in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        run = no_sums(zero)
        for k in range(offsets[np.uint64(index)], offsets[np.uint64(index + 1)], RUN):
            run = add_run(run, k, entries, x, zero)
        if rows is None:
            write_run(y, index * RUN, min(y.size - index * RUN, RUN), run, alpha, beta)
        else:
            store_run(sums, 0, run)
            for place in range(RUN):
                row = rows[np.uint64(index * RUN + place)]
                if row >= 0:
                    write(y, row, sums[np.uint64(place)], alpha, beta)


def bsr(matrix: Bsr, dtype: np.dtype[Any], conjugate: bool) -> Loop:
    """BSR: sum block rows in vector registers, one block after the other."""
    rows, columns = matrix.blocksize
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    return _bsr_of_few_rows if rows <= _FEW_ROWS else _bsr, (rows, columns, matrix.slices.slice_offsets, entries)


@compiled
def _bsr(
    part: int, num_parts: int, rows: int, columns: int, offsets: Array, entries: Entries, arguments: Arguments
) -> None:
    """Multiply block rows. Lanes past the last row of a block hold unrelated values, and are not stored."""
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
    zero = y.dtype.type(0)
    for row in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        sums = splat(zero)
        begin, end = offsets[np.uint64(row)], offsets[np.uint64(row + 1)]
        place = begin * columns * rows
        for k in range(begin, end):
            source = column_at(entries.columns, entries.bases, k) * np.uint64(columns)
            for c in range(columns):
                value = lanes_value(entries.values, entries.table, place, zero, entries.conjugate)
                sums = add(sums, multiply(value, splat(x[source + np.uint64(c)])))
                place += rows
        write_first(y, row * rows, rows, sums, alpha, beta)


@compiled
def _bsr_of_few_rows(
    part: int, num_parts: int, rows: int, columns: int, offsets: Array, entries: Entries, arguments: Arguments
) -> None:
    """Multiply block rows of one or two rows. With one row, the second sum is not used."""
    entries = Entries(*entries)
    x, y, alpha, beta = arguments
    values, table, conjugate = entries.values, entries.table, entries.conjugate
    zero = y.dtype.type(0)
    other = rows - 1
    for row in range(first_row(part, num_parts, offsets), first_row(part + 1, num_parts, offsets)):
        first = second = zero
        begin, end = offsets[np.uint64(row)], offsets[np.uint64(row + 1)]
        place = begin * columns * rows
        for k in range(begin, end):
            source = column_at(entries.columns, entries.bases, k) * np.uint64(columns)
            for c in range(columns):
                element = x[source + np.uint64(c)]
                first += value_at(values, table, place, zero, conjugate) * element
                second += value_at(values, table, place + other, zero, conjugate) * element
                place += rows
        write(y, row * rows, first, alpha, beta)
        if other:
            write(y, row * rows + 1, second, alpha, beta)


class Chunks(NamedTuple):
    """The chunks of long rows: arrays of `LongRows`, the largest size of a chunk, and the sum of each chunk."""

    begins: Array
    ends: Array
    first_chunk: Array
    chunk_rows: Array
    size: int
    sums: Array


def _chunks_of(long_rows: LongRows | None, sums: Array) -> tuple[Any, ...]:
    """Return the fields of `Chunks` as a plain tuple. It has the same types if `long_rows` is None."""
    if long_rows is None:
        return _NO_POSITIONS, _NO_POSITIONS, _NO_CHUNKS, _NO_CHUNKS, CHUNK_SIZE, sums
    arrays = (long_rows.begins, long_rows.ends, long_rows.first_chunk, long_rows.chunk_rows)
    return *arrays, long_rows.chunk_size, sums


@inlined
def sum_chunks(part: int, num_parts: int, chunks: Chunks, entries: Entries, x: Array, zero: Any) -> None:
    """Sum the chunks that a part owns."""
    num_chunks = chunks.chunk_rows.size
    for chunk in range(part * num_chunks // num_parts, (part + 1) * num_chunks // num_parts):
        row = np.uint64(chunks.chunk_rows[np.uint64(chunk)])
        begin = chunks.begins[row] + (chunk - np.int64(chunks.first_chunk[row])) * chunks.size
        end = min(begin + chunks.size, chunks.ends[row])
        chunks.sums[np.uint64(chunk)] = sum_lanes(begin, end, entries, x, zero)


def _multiply_with_long_rows(
    loop: Callable[..., None], cost: int, fixed: tuple[Any, ...], long_rows: LongRows, arguments: tuple[Any, ...]
) -> None:
    """Multiply slices and chunks. Then add up the chunks' sums of each long row, and write the long rows to y."""
    _, y, alpha, beta = arguments
    sums = np.empty(long_rows.num_chunks, y.dtype)  # allocated per product, because several threads may multiply
    run_parts(loop, cost, *fixed[:-1], _chunks_of(long_rows, sums), arguments)
    run_parts(_write_long_rows, sums.size, (long_rows.rows, long_rows.first_chunk, sums), y, alpha, beta)


@compiled
def _write_long_rows(
    part: int, num_parts: int, chunks: tuple[Array, Array, Array], y: Array, alpha: Any, beta: Any
) -> None:
    rows, first_chunk, chunk_sums = chunks
    for i in range(part * rows.size // num_parts, (part + 1) * rows.size // num_parts):
        total = y.dtype.type(0)
        for chunk in range(first_chunk[np.uint64(i)], first_chunk[np.uint64(i + 1)]):
            total = total + chunk_sums[np.uint64(chunk)]
        write(y, rows[np.uint64(i)], total, alpha, beta)


def row_lanes(matrix: RowLanes, dtype: np.dtype[Any], conjugate: bool) -> Loop:
    """Row lanes: sum one slice after the other. On a CPU, the slices are those of blocked ELLPACK without long rows."""
    slices, entries = matrix.slices, entries_of(Columns(matrix.columns), matrix.values, conjugate)
    return _blocked_ellpack, (slices.rare_offsets, slices.rows, entries, _chunks_of(None, np.empty(0, dtype)))


def _bound(loop_of: Callable[[Any, np.dtype[Any], bool], Loop]) -> BindProduct:
    """Return the function that binds the product of a format. `loop_of` returns the format's loop and its arguments."""

    def bind(device: Device, matrix: Any, dtype: np.dtype[Any], launch: Launch) -> Multiply:
        loop, plain = loop_of(matrix, dtype, False)
        conjugated = loop_of(matrix, dtype, True)[1] if dtype.kind == "c" else plain
        long_rows = matrix.slices.long_rows if isinstance(matrix, BlockedEllpack) else None
        cost = max(matrix.nnz, matrix.num_stored) + matrix.num_rows
        is_alone = is_for_one_thread(loop, cost)

        def multiply(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
            fixed, arguments = conjugated if conjugate else plain, (x, y, alpha, beta)
            if long_rows is not None:
                _multiply_with_long_rows(loop, cost, fixed, long_rows, arguments)
            elif is_alone:
                loop(0, 1, *fixed, arguments)
            else:
                run_parts(loop, cost, *fixed, arguments)

        product: Any = multiply
        product.num_dots = 0
        return cast(Multiply, product)

    bind.__name__, bind.__doc__ = loop_of.__name__, loop_of.__doc__
    return bind


# The function that binds the product of each format. Threads divide the entries evenly in all CSR formats.
PRODUCTS = {
    loop_of.__name__: _bound(loop_of)
    for loop_of in (csr_scalar, csr_vector, ellpack, blocked_ellpack, row_lanes, row_pattern, bsr)
}
FIRST_FORMAT = "csr_scalar"


def csr_product(csr: Csr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """Multiply as `csr_scalar` does, with the arrays of a matrix."""
    entries = csr.indices, None, csr.data, None, (True if conjugate and csr.dtype.kind == "c" else None)
    run_parts(_csr_scalar, csr.nnz + csr.num_rows, csr.indptr, entries, (x, y, alpha, beta))


CSR_PRODUCT = csr_product
