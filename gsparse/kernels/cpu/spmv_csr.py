"""CSR products of a matrix and a vector; the contract is in `gsparse.kernels.contract`.

Each kernel is a compiled loop over one part, ``_name(part, num_parts, ...)``, and a function that hands the parts out.
A part owns whole rows, blocks of rows, tiles or chunks, and what it sums does not depend on its bounds, so the number
of threads does not change a bit of the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import CsrEntries, RowBlocks, Tiles
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import add_entry, entries_of, sum_lanes
from gsparse.kernels.cpu.long_rows import long_args, sum_chunks, write_long_rows
from gsparse.kernels.cpu.rows import Int, first_row, write

__all__ = ["BLOCK_WORK", "TILE_WORK", "csr_adaptive", "csr_scalar", "csr_split", "csr_vector"]

# Entries plus rows of a block, entries plus row ends of a tile: about a microsecond of work. A row longer than a block
# is summed by chunks.
BLOCK_WORK = 1024
TILE_WORK = 2048

# Mean length from which on the rows of a block or tile are summed in lanes, not one entry after the other.
_LANES_LENGTH = 16


@bound
def csr_scalar(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, each row summed one entry after the other, as SciPy does: the same bits."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    run_parts(_csr_scalar, matrix.nnz + y.size, matrix.indptr, *entries, x, y, alpha, beta)


@bound
def csr_vector(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, each row in eight partial sums: for long rows, which otherwise wait for one addition at a time."""
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    run_parts(_csr_vector, matrix.nnz + y.size, matrix.indptr, *entries, x, y, alpha, beta)


@bound
def csr_adaptive(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, each block of rows summed in the way that suits the length of its rows; long rows by chunks."""
    schedule = matrix.schedule
    assert isinstance(schedule, RowBlocks)
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    limit = NO_LIMIT if schedule.long_rows is None else schedule.long_rows.long_length
    args = (matrix.indptr, schedule.first_rows, limit, *long_args(schedule.long_rows, y.dtype))
    run_parts(_csr_adaptive, matrix.nnz + y.size, *args, *entries, x, y, alpha, beta)
    write_long_rows(schedule.long_rows, args[-1], y, alpha, beta)


@bound
def csr_split(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, shared out by entries and row ends whatever the rows look like."""
    tiles = matrix.schedule
    assert isinstance(tiles, Tiles)
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    # New for each product: the same matrix may be multiplied in two threads at once.
    carries = np.empty(tiles.num_tiles, y.dtype)
    args = (matrix.indptr, tiles.first_rows, tiles.size, carries)
    run_parts(_csr_split, matrix.nnz + y.size, *args, *entries, x, y, alpha, beta)
    run_parts(_add_carries, carries.size, tiles.split_rows, tiles.first_carry, tiles.carry_tiles, carries, y, alpha)


@inlined
def _sum_one_by_one(
    total: Any,
    row: Int,
    last: Int,
    begin: Int,
    stop: Int,
    indptr: Array,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
) -> Any:
    """Sum the entries `begin` to `stop`, write the rows `row` to `last` that end there, and give what is left over."""
    # One loop over entries and rows alike. A loop over a row's entries is unrolled by LLVM, with a loop for what is
    # left over, and a short row then pays for two mispredicted branches: 3 to 12 % on graphs and circuits.
    position, end = np.int64(begin), np.int64(stop)
    if row < last:
        end = np.int64(indptr[np.uint64(row + 1)])
    while True:
        if position < end:
            total = add_entry(total, position, columns, bases, values, table, conjugate, x)
            position += 1
        elif row < last:
            write(y, row, total, alpha, beta)
            row += 1
            total = y.dtype.type(0)
            end = np.int64(stop)
            if row < last:
                end = np.int64(indptr[np.uint64(row + 1)])
        else:
            return total


@inlined
def _sum_in_lanes(
    row: Int,
    last: Int,
    begin: Int,
    stop: Int,
    indptr: Array,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
) -> Any:
    """Do as `_sum_one_by_one` with eight partial sums a row."""
    zero = y.dtype.type(0)
    position = np.int64(begin)
    for ending in range(row, last):
        end = np.int64(indptr[np.uint64(ending + 1)])
        total = sum_lanes(position, end, columns, bases, values, table, conjugate, x, zero)
        write(y, ending, total, alpha, beta)
        position = end
    return sum_lanes(position, np.int64(stop), columns, bases, values, table, conjugate, x, zero)


@compiled
def _csr_scalar(
    part: int,
    num_parts: int,
    indptr: Array,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
) -> None:
    row, last = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    begin, stop = indptr[np.uint64(row)], indptr[np.uint64(last)]
    _sum_one_by_one(
        y.dtype.type(0), row, last, begin, stop, indptr, columns, bases, values, table, conjugate, x, y, alpha, beta
    )


@compiled
def _csr_vector(
    part: int,
    num_parts: int,
    indptr: Array,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
) -> None:
    row, last = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    begin, stop = indptr[np.uint64(row)], indptr[np.uint64(last)]
    _sum_in_lanes(row, last, begin, stop, indptr, columns, bases, values, table, conjugate, x, y, alpha, beta)


@compiled
def _csr_adaptive(
    part: int,
    num_parts: int,
    indptr: Array,
    first_rows: Array,
    long_length: int,
    long_begins: Array,
    long_ends: Array,
    first_chunk: Array,
    chunk_rows: Array,
    chunk_size: int,
    chunk_sums: Array,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
) -> None:
    zero = y.dtype.type(0)
    sum_chunks(
        part, num_parts, long_begins, long_ends, first_chunk, chunk_rows, chunk_size, chunk_sums,
        columns, bases, values, table, conjugate, x, zero,
    )  # fmt: skip
    num_blocks = first_rows.size - 1
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        row, last = np.int64(first_rows[np.uint64(block)]), np.int64(first_rows[np.uint64(block + 1)])
        begin, stop = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(last)])
        if last - row == 1 and stop - begin > long_length:
            continue  # its chunks are summed above
        if stop - begin >= _LANES_LENGTH * (last - row):
            _sum_in_lanes(row, last, begin, stop, indptr, columns, bases, values, table, conjugate, x, y, alpha, beta)
        else:
            _sum_one_by_one(
                zero, row, last, begin, stop, indptr, columns, bases, values, table, conjugate, x, y, alpha, beta
            )


@compiled
def _csr_split(
    part: int,
    num_parts: int,
    indptr: Array,
    first_rows: Array,
    tile_size: int,
    carries: Array,
    columns: Array,
    bases: Array | None,
    values: Array | None,
    table: Array | None,
    conjugate: bool | None,
    x: Array,
    y: Array,
    alpha: Any,
    beta: Any,
) -> None:
    zero = y.dtype.type(0)
    num_tiles, nnz = carries.size, np.int64(indptr[indptr.size - 1])
    for tile in range(part * num_tiles // num_parts, (part + 1) * num_tiles // num_parts):
        row, last = np.int64(first_rows[np.uint64(tile)]), np.int64(first_rows[np.uint64(tile + 1)])
        begin, stop = tile * tile_size - row, min((tile + 1) * tile_size - last, nnz)
        if stop - begin >= _LANES_LENGTH * (last - row):
            left = _sum_in_lanes(
                row, last, begin, stop, indptr, columns, bases, values, table, conjugate, x, y, alpha, beta
            )
        else:
            left = _sum_one_by_one(
                zero, row, last, begin, stop, indptr, columns, bases, values, table, conjugate, x, y, alpha, beta
            )
        carries[np.uint64(tile)] = left


@compiled
def _add_carries(
    part: int,
    num_parts: int,
    split_rows: Array,
    first_carry: Array,
    carry_tiles: Array,
    carries: Array,
    y: Array,
    alpha: Any,
) -> None:
    num_split = split_rows.size
    for i in range(part * num_split // num_parts, (part + 1) * num_split // num_parts):
        total = y.dtype.type(0)
        for k in range(first_carry[np.uint64(i)], first_carry[np.uint64(i + 1)]):
            total = total + carries[np.uint64(carry_tiles[np.uint64(k)])]
        write(y, split_rows[np.uint64(i)], total, alpha, y.dtype.type(1))
