"""CSR products of a matrix and a vector; the contract is in `gsparse.kernels.contract`.

Each kernel is a compiled loop over one part, ``_name(part, num_parts, ...)``, and a function that runs all parts on the
threads. What a part owns:

    csr_scalar, csr_vector   consecutive rows, about the same number of entries plus rows for each part (`first_row`)
    csr_adaptive             consecutive blocks of rows, and consecutive chunks of rows longer than a block
    csr_split                consecutive tiles; a tile is `TILE_WORK` consecutive entries and row ends

How a row, chunk or tile is summed does not depend on the part that it belongs to, so the number of threads does not
change a bit of the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import CsrEntries, RowBlocks, Tiles
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.cpu.binding import bound
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import Entries, add_entry, entries_of, sum_lanes
from gsparse.kernels.cpu.long_rows import Chunks, chunks_of, sum_chunks, write_long_rows
from gsparse.kernels.cpu.rows import Arguments, first_row, write

__all__ = ["BLOCK_WORK", "TILE_WORK", "csr_adaptive", "csr_scalar", "csr_split", "csr_vector"]

# Entries plus rows of a block, and entries plus row ends of a tile: about a microsecond of work. A row longer than a
# block is summed in chunks.
BLOCK_WORK = 1024
TILE_WORK = 2048


class Stretch(NamedTuple):
    """Consecutive entries, `begin` to `stop` - 1, and the rows that end among them, `row` to `last` - 1.

    position   begin ................................................................ stop
    row            `row` | `row` + 1 |      ...      | `last` - 1 |  `last` goes on after stop
    """

    row: Any
    last: Any
    begin: Any
    stop: Any


class Blocks(NamedTuple):
    """Blocks of rows: block b has rows ``first_rows[b]`` to ``first_rows[b + 1] - 1``."""

    indptr: Array
    first_rows: Array
    long_length: int


class TileRows(NamedTuple):
    """Tiles: rows ``first_rows[t]`` to ``first_rows[t + 1] - 1`` end in tile t.

    ``carries[t]`` receives the sum of the last entries of tile t, whose row ends in a later tile.
    """

    indptr: Array
    first_rows: Array
    size: int
    carries: Array


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


@bound
def csr_adaptive(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, each row summed as in `csr_vector`, except that threads share long rows, in chunks."""
    schedule = matrix.schedule
    assert isinstance(schedule, RowBlocks)
    long_length = NO_LIMIT if schedule.long_rows is None else schedule.long_rows.long_length
    blocks = (matrix.indptr, schedule.first_rows, long_length)
    chunks = chunks_of(schedule.long_rows, y.dtype)
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    run_parts(_csr_adaptive, matrix.nnz + y.size, blocks, chunks, entries, (x, y, alpha, beta))
    write_long_rows(schedule.long_rows, chunks[-1], y, alpha, beta)


@bound
def csr_split(matrix: CsrEntries, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
    """CSR, divided by entries and row ends: the parts are equal, however the lengths of the rows vary."""
    schedule = matrix.schedule
    assert isinstance(schedule, Tiles)
    # New for each product: the same matrix may be multiplied in two threads at once.
    carries = np.empty(schedule.num_tiles, y.dtype)
    tiles = (matrix.indptr, schedule.first_rows, schedule.size, carries)
    entries = entries_of(matrix.columns, matrix.values, conjugate)
    run_parts(_csr_split, matrix.nnz + y.size, tiles, entries, (x, y, alpha, beta))
    split_rows = (schedule.split_rows, schedule.first_carry, schedule.carry_tiles)
    run_parts(_add_carries, carries.size, split_rows, carries, y, alpha)


@inlined
def _sum_one_by_one(stretch: Stretch, indptr: Array, entries: Entries, arguments: Arguments) -> Any:
    """Sum a stretch of entries, write the rows that end in it, and return the sum of the entries after those rows."""
    # This is one loop over entries and rows. LLVM would unroll a loop over the entries of one row and add a loop for
    # the remaining entries; a short row would then pay for two mispredicted branches: 3 to 12 % on graphs and circuits.
    row, last, begin, stop = stretch
    position, end = np.int64(begin), np.int64(stop)
    total = arguments.y.dtype.type(0)
    if row < last:
        end = np.int64(indptr[np.uint64(row + 1)])
    while True:
        if position < end:
            total = add_entry(total, position, entries, arguments.x)
            position += 1
        elif row < last:
            write(arguments.y, row, total, arguments.alpha, arguments.beta)
            row += 1
            total = arguments.y.dtype.type(0)
            end = np.int64(stop)
            if row < last:
                end = np.int64(indptr[np.uint64(row + 1)])
        else:
            return total


@inlined
def _sum_in_lanes(stretch: Stretch, indptr: Array, entries: Entries, arguments: Arguments) -> Any:
    """Add rows up like `_sum_one_by_one`, with eight partial sums for each row."""
    zero = arguments.y.dtype.type(0)
    position = np.int64(stretch.begin)
    for row in range(stretch.row, stretch.last):
        end = np.int64(indptr[np.uint64(row + 1)])
        total = sum_lanes(position, end, entries, arguments.x, zero)
        write(arguments.y, row, total, arguments.alpha, arguments.beta)
        position = end
    return sum_lanes(position, np.int64(stretch.stop), entries, arguments.x, zero)


@inlined
def _rows_of_part(part: int, num_parts: int, indptr: Array) -> Stretch:
    row, last = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    return Stretch(row, last, indptr[np.uint64(row)], indptr[np.uint64(last)])


@compiled
def _csr_scalar(part: int, num_parts: int, indptr: Array, entries: Entries, arguments: Arguments) -> None:
    entries, arguments = Entries(*entries), Arguments(*arguments)
    _sum_one_by_one(_rows_of_part(part, num_parts, indptr), indptr, entries, arguments)


@compiled
def _csr_vector(part: int, num_parts: int, indptr: Array, entries: Entries, arguments: Arguments) -> None:
    entries, arguments = Entries(*entries), Arguments(*arguments)
    _sum_in_lanes(_rows_of_part(part, num_parts, indptr), indptr, entries, arguments)


@compiled
def _csr_adaptive(
    part: int, num_parts: int, blocks: Blocks, chunks: Chunks, entries: Entries, arguments: Arguments
) -> None:
    entries, arguments = Entries(*entries), Arguments(*arguments)
    sum_chunks(part, num_parts, Chunks(*chunks), entries, arguments.x, arguments.y.dtype.type(0))
    indptr, first_rows, long_length = blocks
    num_blocks = first_rows.size - 1
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        row, last = np.int64(first_rows[np.uint64(block)]), np.int64(first_rows[np.uint64(block + 1)])
        begin, stop = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(last)])
        if last - row == 1 and stop - begin > long_length:
            continue  # a long row, whose chunks are summed above
        _sum_in_lanes(Stretch(row, last, begin, stop), indptr, entries, arguments)


@compiled
def _csr_split(part: int, num_parts: int, tiles: TileRows, entries: Entries, arguments: Arguments) -> None:
    entries, arguments = Entries(*entries), Arguments(*arguments)
    indptr, first_rows, size, carries = tiles
    num_tiles, nnz = carries.size, np.int64(indptr[indptr.size - 1])
    for tile in range(part * num_tiles // num_parts, (part + 1) * num_tiles // num_parts):
        row, last = np.int64(first_rows[np.uint64(tile)]), np.int64(first_rows[np.uint64(tile + 1)])
        begin, stop = tile * size - row, min((tile + 1) * size - last, nnz)
        carries[np.uint64(tile)] = _sum_in_lanes(Stretch(row, last, begin, stop), indptr, entries, arguments)


@compiled
def _add_carries(
    part: int, num_parts: int, split: tuple[Array, Array, Array], carries: Array, y: Array, alpha: Any
) -> None:
    """Add to each row the sums that earlier tiles have left for it; a part owns consecutive rows of `split_rows`."""
    split_rows, first_carry, carry_tiles = split
    num_split = split_rows.size
    for i in range(part * num_split // num_parts, (part + 1) * num_split // num_parts):
        total = y.dtype.type(0)
        for k in range(first_carry[np.uint64(i)], first_carry[np.uint64(i + 1)]):
            total = total + carries[np.uint64(carry_tiles[np.uint64(k)])]
        write(y, split_rows[np.uint64(i)], total, alpha, y.dtype.type(1))
