"""Matrices that consist of dense blocks: finding the blocks, storing them as BSR, and multiplying such matrices.

The contract is in `gsparse.kernels.set_up`. Each part of a loop owns consecutive rows or block rows. All parts have
about the same number of entries plus rows (`first_row`).

The structure of a product is computed by the loops for single entries (`sparse_products.py`). In the loop that computes
values, a part owns consecutive block rows of the product. Its array `places` holds, for each block column, the position
of the column's block in the array `sums`. Products of two blocks are added to `sums`, in the order of the blocks in A's
row. Each row of a block begins a new vector register in `sums`:

    sums      c00 c01 c02 - - - - - | c10 c11 c12 - - - - - | ...      blocks with three columns

The lanes marked "-" hold products with the values that follow a row of B's block in memory. They are not stored.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import BlockRows, Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.lanes import add, load, load_first, multiply, splat, store
from gsparse.kernels.cpu.layout import bits
from gsparse.kernels.cpu.rows import Int, first_row
from gsparse.kernels.cpu.sparse_products import products_before_rows, spgemm_known
from gsparse.kernels.cpu.vectors import LANES
from gsparse.kernels.set_up import BlockPattern

# Blocks are stored one after the other, because one thread owns all blocks of a block row.
SLICES_BLOCKS = False

# Number of rows that are examined first. If they rule out all block sizes, no further rows are read.
_SAMPLE_ROWS = 4096

# If multiplying two blocks takes fewer products of elements than this, multiplying by entries is faster. The time by
# blocks divided by the time by entries is 2.7 for 2 x 2 blocks, 0.85 for 3 x 3, and 0.4 for 4 x 4
# (`asv_bench/measure_algebra.py blocks --device cpu`).
_FEWEST_PRODUCTS = 18

# Row pointers, columns and values of a matrix of blocks.
Blocks = tuple[Array, Array, Array]
# The numbers of rows and columns of A's blocks, and of columns of B's blocks.
Sizes = tuple[int, int, int]
# The position of a block's first element, and the distance between the first elements of its rows.
Block = tuple[Int, Int]


def full_blocks(device: Device, csr: Csr) -> tuple[int, int]:
    """Return the largest block size (rows, columns) of which all blocks are full.

    Examine all rows, unless the first rows rule out all sizes.
    """
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
    """Return the row pointers and the columns of the blocks. `row_lanes` is not used, as a block row is one part."""
    rows, columns = blocksize
    indptr = csr.indptr[::rows] // (rows * columns)
    indices = np.empty(csr.nnz // (rows * columns), csr.indices.dtype)
    run_parts(_block_columns, csr.num_rows + indices.size, rows, columns, csr.indptr, csr.indices, indptr, indices)
    return indptr, indices


def lay_out_blocks(device: Device, blocks: BlockRows, items: Array) -> Array:
    """Return items, copied from CSR order to blocks. Each block is stored column by column.

    Zeros follow the last block, because products load complete registers that may begin at the block's last row.
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
    """Mark block heights and block widths that the rows from `first` up to `last` rule out.

    All threads write to the same array. This is safe because they only set marks to True.
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
    """Write the block column of each block. The blocks of block row i begin at position ``places[i]`` of `out`."""
    for row in range(first_row(part, num_parts, places), first_row(part + 1, num_parts, places)):
        begin, place = np.int64(indptr[np.uint64(row * rows)]), np.int64(places[np.uint64(row)])
        for j in range(np.int64(places[np.uint64(row + 1)]) - place):
            out[np.uint64(place + j)] = np.int64(indices[np.uint64(begin + j * columns)]) // columns


@compiled
def _fill_blocks(
    part: int, num_parts: int, rows: int, columns: int, places: Array, items: Array, placed: Array
) -> None:
    """Copy the items of the blocks. ``places[i]`` is the number of the first block of block row i."""
    for row in range(first_row(part, num_parts, places), first_row(part + 1, num_parts, places)):
        place = np.int64(places[np.uint64(row)])
        count = np.int64(places[np.uint64(row + 1)]) - place
        begin, length = place * rows * columns, count * columns
        for j in range(count):
            for c in range(columns):
                for r in range(rows):
                    source = begin + r * length + j * columns + c
                    placed[np.uint64(begin + (j * columns + c) * rows + r)] = items[np.uint64(source)]


def block_product(device: Device, a: BlockPattern, b: BlockPattern) -> BlockPattern | None:
    """Return the pattern of the product, or None if blocks are small. Multiply zeros, because zero results are kept."""
    if a.blocksize[0] * a.blocksize[1] * b.blocksize[1] < _FEWEST_PRODUCTS:
        return None
    zeros = [replace(blocks, data=np.zeros(blocks.nnz, blocks.dtype)) for blocks in (a.blocks, b.blocks)]
    c = spgemm_known(device, *zeros).result
    return BlockPattern((a.blocksize[0], b.blocksize[1]), c.with_data(device.no_values(c.dtype)))


def multiply_blocks(
    device: Device, a_data: Array, b_data: Array, patterns: tuple[BlockPattern, BlockPattern, BlockPattern]
) -> Array:
    """Return the values of the product. Each block is a sum of products of two blocks."""
    a, b, c = (pattern.blocks for pattern in patterns)
    (rows, inner), columns = patterns[0].blocksize, patterns[1].blocksize[1]
    values, pairs = np.empty(c.nnz * rows * columns, a_data.dtype), products_before_rows(a, b)
    cost, sizes = int(pairs[-1]) * rows * inner * columns, (rows, inner, columns)
    run_parts(_multiply, cost, pairs, c.num_cols, sizes, _with(a, a_data), _with(b, b_data), _with(c, values))
    return values


def _with(blocks: Csr, data: Array) -> Blocks:
    return blocks.indptr, blocks.indices, data


@partial(compiled, allocates=True)
def _multiply(
    part: int, num_parts: int, pairs: Array, num_block_cols: int, sizes: Sizes, a: Blocks, b: Blocks, c: Blocks
) -> None:
    a_indptr, a_indices, a_data = a
    b_indptr, b_indices, b_data = b
    c_indptr, c_indices, c_data = c
    rows, inner, columns = sizes
    begin, end = first_row(part, num_parts, pairs), first_row(part + 1, num_parts, pairs)
    if begin == end:
        return
    places, longest = np.empty(num_block_cols, np.int64), np.int64(0)
    for row in range(begin, end):
        longest = max(longest, np.int64(c_indptr[np.uint64(row + 1)]) - np.int64(c_indptr[np.uint64(row)]))
    registers = (columns + LANES - 1) // LANES  # number of registers for a row of a block
    sums = np.empty(longest * rows * registers * LANES, c_data.dtype)
    zero = c_data.dtype.type(0)
    for row in range(begin, end):
        c_first, c_last = np.int64(c_indptr[np.uint64(row)]), np.int64(c_indptr[np.uint64(row + 1)])
        for e in range(c_last - c_first):
            places[np.uint64(c_indices[np.uint64(c_first + e)])] = e * rows * registers * LANES
        for e in range((c_last - c_first) * rows * registers):
            store(sums, np.uint64(e * LANES), splat(zero))
        a_first, a_last = np.int64(a_indptr[np.uint64(row)]), np.int64(a_indptr[np.uint64(row + 1)])
        for e in range(a_last - a_first):
            from_row = np.int64(a_indices[np.uint64(a_first + e)])
            b_first, b_last = np.int64(b_indptr[np.uint64(from_row)]), np.int64(b_indptr[np.uint64(from_row + 1)])
            a_block = a_first * rows * inner + e * inner, (a_last - a_first) * inner
            for f in range(b_last - b_first):
                b_block = b_first * inner * columns + f * columns, (b_last - b_first) * columns
                place = places[np.uint64(b_indices[np.uint64(b_first + f)])]
                _add_product(a_data, a_block, b_data, b_block, sizes, sums, place)
        _store_blocks(sums, rows, columns, c_last - c_first, c_first * rows * columns, c_data)


@inlined
def _add_product(
    a_data: Array, a_block: Block, b_data: Array, b_block: Block, sizes: Sizes, sums: Array, place: Int
) -> None:
    """Add the product of two blocks to the sums from `place` on."""
    rows, inner, columns = sizes
    zero, registers = sums.dtype.type(0), (columns + LANES - 1) // LANES
    for first in range(0, columns, LANES):
        start = b_block[0] + first
        # Complete registers are loaded, unless they would extend beyond the last element.
        is_whole = start + (inner - 1) * b_block[1] + LANES <= b_data.size
        for i in range(rows):
            to = np.uint64(place + i * registers * LANES + first)
            total = load(sums, to, zero)
            for k in range(inner):
                factor = splat(a_data[np.uint64(a_block[0] + i * a_block[1] + k)])
                source = np.uint64(start + k * b_block[1])
                if is_whole:
                    elements = load(b_data, source, zero)
                else:
                    elements = load_first(b_data, source, np.uint64(min(columns - first, LANES)), zero)
                total = add(total, multiply(factor, elements))
            store(sums, to, total)


@inlined
def _store_blocks(sums: Array, rows: int, columns: int, num_blocks: Int, to: Int, c_data: Array) -> None:
    """Copy the sums of a block row to CSR order, from position `to` on."""
    pitch = (columns + LANES - 1) // LANES * LANES
    for i in range(rows):
        for e in range(num_blocks):
            source = (e * rows + i) * pitch
            for j in range(columns):
                c_data[np.uint64(to + j)] = sums[np.uint64(source + j)]
            to += columns
