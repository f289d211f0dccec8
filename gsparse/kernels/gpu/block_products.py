"""Products of two matrices of dense blocks (contract: `gsparse.kernels.algebra`; kernel: `src/block_products.cu`).

The places of the blocks of the product are found by the kernels for single entries (`sparse_products.py`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.algebra import BlockPattern
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_threads
from gsparse.kernels.gpu.row_classes import longest_rows, num_products
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.sparse_products import spgemm_known
from gsparse.kernels.gpu.sparse_rows import row_numbers

_SOURCE = "block_products.cu"
_THREADS = constant(_SOURCE, "GS_BLOCK_PRODUCT_THREADS")
# For each column of a block of C, a thread looks for this block in B once for each block of A's block row. A product is
# made by blocks if there are at most _MOST_LOOKS of these looks for each product of two blocks, times the elements of
# A's block. The limit is an estimate: a look has about 50 instructions, and a product by entries takes 10 ps (27-point
# 80**3 on an H200), in which an H200 executes about 130 instructions of threads.
_MOST_LOOKS = 2.0
# Block rows of A are even if the longest one has at most _SHORT blocks, or _EVEN times as many as the mean one.
# Otherwise looks are counted, and the longest one must have at most the part 1/_SPREAD of all blocks, because a thread
# visits its blocks one after the other.
_SHORT, _EVEN, _SPREAD = 256, 8, 1024


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    kinds = product(COMPUTE_DTYPES, INDEX_DTYPES, range(1, MAX_BLOCK + 1))
    return [(_SOURCE, expression("multiply_blocks", *kind)) for kind in kinds]


def block_product(device: Device, a: BlockPattern, b: BlockPattern) -> BlockPattern | None:
    """Find the pattern by multiplying matrices of zeros, where every product leaves an entry. Synchronizes.

    Return None if there would be too many looks.
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
    # If rows are alike, a block row of A has mean(A) * mean(C) looks, and mean(A) * mean(B) products.
    looks = _mean(c) / (_mean(b.blocks) or 1.0) if is_even else _looks(device, a.blocks, b.blocks, c)
    if looks > _MOST_LOOKS * a.blocksize[0] * a.blocksize[1]:
        return None
    return BlockPattern((a.blocksize[0], b.blocksize[1]), c.with_data(device.no_values(c.dtype)))


def _mean(csr: Csr) -> float:
    """Return the mean number of entries of a row."""
    return csr.nnz / max(csr.num_rows, 1)


def _looks(device: Device, a: Csr, b: Csr, c: Csr) -> float:
    """Return the number of looks for each product. Synchronizes."""
    xp = device.xp
    looks = (xp.diff(a.indptr).astype(np.int64) * xp.diff(c.indptr)).sum()
    return float(looks) / max(float(num_products(device, a, b).sum()), 1.0)  # synchronizes


def multiply_blocks(
    device: Device, a_data: Array, b_data: Array, patterns: tuple[BlockPattern, BlockPattern, BlockPattern]
) -> Array:
    """Sum up each column of each block of the product in a thread of its own."""
    a, b, c = (pattern.blocks for pattern in patterns)
    (rows, inner), columns = patterns[0].blocksize, patterns[1].blocksize[1]
    values = device.empty(c.nnz * rows * columns, a_data.dtype)
    of_blocks = row_numbers(device, c.indptr, c.nnz)
    sizes = np.int64(c.nnz), np.int32(inner), np.int32(columns)
    factors = (a.indptr, a.indices, a_data, b.indptr, b.indices, b_data)
    args: Any = (*sizes, of_blocks, *factors, c.indptr, c.indices, values)
    name = expression("multiply_blocks", a_data.dtype, c.indices.dtype, rows)
    launch_threads(device, _SOURCE, name, c.nnz * columns, _THREADS, args)
    return values
