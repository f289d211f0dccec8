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
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.algebra import BlockPattern
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_threads
from gsparse.kernels.gpu.row_classes import longest_rows
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.sparse_products import spgemm_known
from gsparse.kernels.gpu.sparse_rows import row_numbers

__all__ = ["block_product", "instantiations", "multiply_blocks"]

_SOURCE = "block_products.cu"
_THREADS = constant(_SOURCE, "GS_BLOCK_PRODUCT_THREADS")
# A thread looks at all blocks of A's block row for each column of C, so the work of a block row is about quadratic in
# its length. Products are made by blocks if the longest block row of A has at most _SHORT blocks, or _EVEN times as
# many as the mean one.
_SHORT, _EVEN = 256, 8


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    kinds = product(COMPUTE_DTYPES, INDEX_DTYPES, range(1, MAX_BLOCK + 1))
    return [(_SOURCE, expression("multiply_blocks", *kind)) for kind in kinds]


def block_product(device: Device, a: BlockPattern, b: BlockPattern) -> BlockPattern | None:
    """Multiply matrices of zeros, all of whose products have an entry. None for long rows of A. Synchronizes."""
    longest = longest_rows(device, a.blocks, b.blocks)  # synchronizes
    if longest[0] > max(_SHORT, _EVEN * a.blocks.nnz / max(a.blocks.num_rows, 1)):
        return None
    zeros = [
        replace(blocks, data=device.xp.zeros(blocks.nnz, blocks.dtype), longest=length)
        for blocks, length in zip((a.blocks, b.blocks), longest, strict=True)
    ]
    c = spgemm_known(device, *zeros).result  # synchronizes
    return BlockPattern((a.blocksize[0], b.blocksize[1]), c.with_data(device.no_values(c.dtype)))


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
