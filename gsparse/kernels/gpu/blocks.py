"""Matrices that consist of dense blocks: finding the blocks, storing them as BSR, and multiplying such matrices.

The contract is in `gsparse.kernels.set_up`, the kernels in `src/setup_survey.cu` and `src/block_products.cu`. The
structure of a product is computed by the kernels for single entries (`sparse_products.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import BlockRows, Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.launch import Launch
from gsparse.kernels.gpu.launch import ITEM_TYPES, Source, constant, records
from gsparse.kernels.gpu.row_classes import longest_rows, num_products
from gsparse.kernels.gpu.sparse_products import spgemm_known
from gsparse.kernels.gpu.sparse_rows import row_numbers
from gsparse.kernels.set_up import BlockPattern

# The threads of a slice read one step of all of its block rows at the same time.
SLICES_BLOCKS = True

_SET_UP = Source("setup_survey.cu", Launch().threads_per_block)
# Maximum number of blocks of a launch that examines rows. This is enough to fill any GPU; and because it is no more, a
# few thousand rows are enough to recognize a matrix without dense blocks.
_MAX_GRID = 1056

_PRODUCTS = Source("block_products.cu", constant("block_products.cu", "GS_BLOCK_PRODUCT_THREADS"))
# For each column of a block of C, a thread goes through the block row of A, and looks for the matching block of B. A
# product is computed by blocks if the number of these looks, divided by the number of products of two blocks, is at
# most _MOST_LOOKS times the number of elements of a block of A. The limit is an estimate from the instructions of both
# methods.
_MOST_LOOKS = 2.0
# Block rows of A are even if the longest one has at most _SHORT blocks, or at most _EVEN times the mean. If they are
# not even, looks are counted exactly, and the longest block row must have at most 1/_SPREAD of all blocks, because a
# thread visits the blocks of a row one after the other.
_SHORT, _EVEN, _SPREAD = 256, 8, 1024


def full_blocks(device: Device, csr: Csr) -> tuple[int, int]:
    """Return the largest size of full blocks. Stop if the first rows show that no size is possible. Synchronizes."""
    contradicted = device.xp.zeros(1, np.uint32)
    threads = min(csr.num_rows * device.lanes, _MAX_GRID * _SET_UP.threads)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, contradicted)
    _SET_UP.launch(device, "full_blocks", (csr.indptr.dtype,), threads, args)
    bits = int(device.download(contradicted)[0])  # synchronizes
    rows, columns = (_largest(bits >> shift, size) for shift, size in zip((0, 16), csr.shape, strict=True))
    return rows, columns


def _largest(contradicted: int, size: int) -> int:
    """Return the largest divisor of `size`, at most `MAX_BLOCK`, whose bit is not set."""
    return next(n for n in range(MAX_BLOCK, 0, -1) if size % n == 0 and not contradicted >> n & 1)


def block_parts(device: Device, csr: Csr, blocksize: tuple[int, int], row_lanes: int) -> tuple[Array, Array]:
    """Return the row pointers of the parts of block rows, and the block column of each block."""
    rows, columns = blocksize
    num_block_rows = csr.num_rows // rows
    allocate = device.empty if num_block_rows else device.xp.zeros
    indptr = allocate(num_block_rows * row_lanes + 1, csr.indptr.dtype)
    indices = device.empty(csr.nnz // (rows * columns), csr.indices.dtype)
    sizes = (np.int64(num_block_rows), *map(np.int32, (rows, columns, row_lanes)))
    args = (*sizes, csr.indptr, csr.indices, indptr, indices)
    _SET_UP.launch(device, "block_parts", (csr.indptr.dtype,), num_block_rows * device.lanes, args)
    return indptr, indices


def lay_out_blocks(device: Device, blocks: BlockRows, items: Array) -> Array:
    """Copy items from CSR order to the positions of the elements of blocks, and return them."""
    (rows, columns), slices, indptr = blocks.blocksize, blocks.slices, blocks.part_indptr
    out = device.empty(slices.num_positions * rows * columns, items.dtype)
    item = ITEM_TYPES[items.dtype.itemsize]
    types = item, indptr.dtype
    size = np.int32(rows), np.int32(columns)
    copied = indptr, items.view(item), np.zeros(1, item)[0], out.view(item)
    limits = np.int64(blocks.num_parts), np.int64(slices.num_slices), np.int64(slices.long_length)
    args: Any = (*limits, *size, np.int32(blocks.row_lanes), slices.rows, slices.slice_offsets, *copied)
    _SET_UP.launch(device, "lay_out_blocks", types, slices.num_slices * device.lanes * rows, args)
    if slices.long_rows is not None:
        num_chunks = slices.long_rows.num_chunks
        args = (np.int32(num_chunks), records(device, slices.long_rows), *size, *copied)
        _SET_UP.launch(device, "lay_out_long_blocks", types, num_chunks * device.lanes, args)
    return out


def block_product(device: Device, a: BlockPattern, b: BlockPattern) -> BlockPattern | None:
    """Multiply zero matrices in the kernels for single entries, and return the pattern of the result. Synchronizes.

    Return None if there would be too many looks (see `_MOST_LOOKS`).
    """
    longest = longest_rows(device, a.blocks, b.blocks)  # synchronizes
    is_even = longest[0] <= max(_SHORT, _EVEN * _mean(a.blocks))
    if not is_even and longest[0] * _SPREAD > a.blocks.nnz:
        return None
    zeros = [
        replace(blocks, data=device.xp.zeros(blocks.nnz, blocks.dtype), longest=length)
        for blocks, length in zip((a.blocks, b.blocks), longest, strict=True)
    ]
    c = spgemm_known(device, *zeros).result  # synchronizes
    # If block rows are even, a block row of A takes about mean(A) * mean(C) looks and mean(A) * mean(B) products.
    looks = _mean(c) / (_mean(b.blocks) or 1.0) if is_even else _looks(device, a.blocks, b.blocks, c)
    if looks > _MOST_LOOKS * a.blocksize[0] * a.blocksize[1]:
        return None
    return BlockPattern((a.blocksize[0], b.blocksize[1]), c.with_data(device.no_values(c.dtype)))


def _mean(csr: Csr) -> float:
    """Return the mean number of entries of a row."""
    return csr.nnz / max(csr.num_rows, 1)


def _looks(device: Device, a: Csr, b: Csr, c: Csr) -> float:
    """Return the number of looks (see `_MOST_LOOKS`) divided by the number of products. Synchronizes."""
    xp = device.xp
    looks = (xp.diff(a.indptr).astype(np.int64) * xp.diff(c.indptr)).sum()
    return float(looks) / max(float(num_products(device, a, b).sum()), 1.0)  # synchronizes


def multiply_blocks(
    device: Device, a_data: Array, b_data: Array, patterns: tuple[BlockPattern, BlockPattern, BlockPattern]
) -> Array:
    """Return the values of the product. Each thread computes one column of one block."""
    a, b, c = (pattern.blocks for pattern in patterns)
    (rows, inner), columns = patterns[0].blocksize, patterns[1].blocksize[1]
    values = device.empty(c.nnz * rows * columns, a_data.dtype)
    of_blocks = row_numbers(device, c.indptr, c.nnz)
    sizes = np.int64(c.nnz), np.int32(inner), np.int32(columns)
    factors = (a.indptr, a.indices, a_data, b.indptr, b.indices, b_data)
    args: Any = (*sizes, of_blocks, *factors, c.indptr, c.indices, values)
    _PRODUCTS.launch(device, "multiply_blocks", (a_data.dtype, c.indices.dtype, rows), c.nnz * columns, args)
    return values


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    return [
        *_PRODUCTS.variants("multiply_blocks", COMPUTE_DTYPES, INDEX_DTYPES, range(1, MAX_BLOCK + 1)),
        *_SET_UP.variants("full_blocks block_parts", INDEX_DTYPES),
        *_SET_UP.variants("lay_out_blocks lay_out_long_blocks", ITEM_TYPES.values(), INDEX_DTYPES),
    ]
