"""Set-up of BSR: the size of full blocks, their columns, and values laid out block by block.

The contract is in `gsparse.kernels.set_up`. A part of a loop owns consecutive rows or block rows, about the same number
of entries plus rows for each part (`first_row`).
"""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import BlockRows, Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.rows import first_row
from gsparse.kernels.cpu.slices import bits
from gsparse.kernels.cpu.vectors import LANES

# Rows that are examined first. If they show that there are no blocks, the other rows are not read.
_SAMPLE_ROWS = 4096


def full_blocks(device: Device, csr: Csr) -> tuple[int, int]:
    """Examine the first rows, and then all others unless the first ones contradict every size."""
    contradicted = np.zeros((2, MAX_BLOCK + 1), np.bool_)
    for axis, size in enumerate(csr.shape):
        contradicted[axis] = [n == 0 or size % n != 0 for n in range(MAX_BLOCK + 1)]
    sample = min(_SAMPLE_ROWS, csr.num_rows)
    for first, last in ((0, sample), (sample, csr.num_rows)):
        if first < last and not contradicted[:, 2:].all():
            cost = int(csr.indptr[last] - csr.indptr[first]) + last - first
            run_parts(_contradict, cost, first, last, csr.indptr, csr.indices, contradicted)
    rows, columns = (int(np.flatnonzero(~sizes)[-1]) for sizes in contradicted)
    return rows, columns


def block_parts(device: Device, csr: Csr, blocksize: tuple[int, int], row_lanes: int) -> tuple[Array, Array]:
    """Divide row pointers and columns by the size of the blocks; each block row is one part."""
    rows, columns = blocksize
    indptr = csr.indptr[::rows] // (rows * columns)
    indices = np.empty(csr.nnz // (rows * columns), csr.indices.dtype)
    run_parts(_block_columns, csr.num_rows + indices.size, rows, columns, csr.indptr, csr.indices, indptr, indices)
    return indptr, indices


def lay_out_blocks(device: Device, blocks: BlockRows, items: Array) -> Array:
    """Copy items from CSR order to blocks, each of which is stored column by column.

    Zeros follow the last block, because products load whole registers from any row of a block on.
    """
    placed = np.empty(items.size + LANES, items.dtype)
    placed[items.size :] = 0
    rows, columns = blocks.blocksize
    run_parts(_fill_blocks, items.size, rows, columns, blocks.part_indptr, bits(items), bits(placed))
    return placed


@compiled
def _contradict(
    part: int, num_parts: int, first: int, last: int, indptr: Array, indices: Array, contradicted: Array
) -> None:
    """Mark each number of rows and of columns of blocks of which the rows do not consist.

    All threads write to the same marks, but only to set them.
    """
    num_rows = last - first
    for row in range(first + part * num_rows // num_parts, first + (part + 1) * num_rows // num_parts):
        begin, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
        length = end - begin
        before = np.int64(indptr[np.uint64(row - 1)]) if row > 0 else begin
        is_same = begin - before == length
        if is_same:
            for j in range(length):
                is_same &= indices[np.uint64(begin + j)] == indices[np.uint64(before + j)]
        is_open = False
        for size in range(2, MAX_BLOCK + 1):
            if row % size != 0 and not is_same:
                contradicted[0, size] = True
            if not contradicted[1, size]:
                fits = length % size == 0
                for j in range(length):
                    column = np.int64(indices[np.uint64(begin + j)])
                    if j % size == 0:
                        fits &= column % size == 0
                    else:
                        fits &= column == np.int64(indices[np.uint64(begin + j - 1)]) + 1
                if not fits:
                    contradicted[1, size] = True
            is_open |= not contradicted[0, size] or not contradicted[1, size]
        if not is_open:
            return


@compiled
def _block_columns(
    part: int, num_parts: int, rows: int, columns: int, indptr: Array, indices: Array, places: Array, out: Array
) -> None:
    """Write the column of each block; those of block row i begin at ``places[i]``."""
    for row in range(first_row(part, num_parts, places), first_row(part + 1, num_parts, places)):
        begin, place = np.int64(indptr[np.uint64(row * rows)]), np.int64(places[np.uint64(row)])
        for j in range(np.int64(places[np.uint64(row + 1)]) - place):
            out[np.uint64(place + j)] = np.int64(indices[np.uint64(begin + j * columns)]) // columns


@compiled
def _fill_blocks(
    part: int, num_parts: int, rows: int, columns: int, places: Array, items: Array, placed: Array
) -> None:
    """Copy the elements of the blocks; those of block row i begin at block ``places[i]``."""
    for row in range(first_row(part, num_parts, places), first_row(part + 1, num_parts, places)):
        place = np.int64(places[np.uint64(row)])
        count = np.int64(places[np.uint64(row + 1)]) - place
        begin, length = place * rows * columns, count * columns
        for j in range(count):
            for c in range(columns):
                for r in range(rows):
                    source = begin + r * length + j * columns + c
                    placed[np.uint64(begin + (j * columns + c) * rows + r)] = items[np.uint64(source)]
