"""Products of two matrices that consist of full dense blocks, computed block by block.

    A: blocks of p x q   ·   B: blocks of q x r   =   C: blocks of p x r

The structure of C is computed from block patterns, which are matrices with one entry per block. Values are then
computed for one pair of blocks at a time. Results have the same structure as products that are computed entry by entry.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import BlockPattern
from gsparse.sparse.canonical import in_common

Size = tuple[int, int]

# For each block of A, a thread searches B once, and then multiplies all elements of the block. This pays only if blocks
# of A have at least _FEWEST_ELEMENTS elements. Computing the block pattern of C pays only if multiplying two blocks
# takes at least _FEWEST_PRODUCTS products of elements.
_FEWEST_ELEMENTS, _FEWEST_PRODUCTS = 2, 8


def are_worth(rows: int, inner: int, columns: int) -> bool:
    """Return whether multiplying blocks of rows x inner by blocks of inner x columns is faster than by entries."""
    elements = rows * inner
    return rows <= MAX_BLOCK and elements >= _FEWEST_ELEMENTS and elements * columns >= _FEWEST_PRODUCTS


def block_pattern(device: Device, csr: Csr, blocksize: Size) -> BlockPattern:
    """Return the block pattern of a matrix that consists of full blocks of size `blocksize`."""
    indptr, indices = csr.indptr, csr.indices
    if blocksize != (1, 1):
        indptr, indices = kernels_of(device).blocks.block_parts(device, csr, blocksize, 1)
    shape = csr.num_rows // blocksize[0], csr.num_cols // blocksize[1]
    blocks = Csr(shape, indptr, indices, device.no_values(csr.dtype), is_canonical=csr.is_canonical)
    return BlockPattern(blocksize, blocks)


def block_patterns(device: Device, a: Csr, b: Csr, of_a: Size, of_b: Size) -> tuple[BlockPattern, BlockPattern] | None:
    """Return the block patterns to multiply A and B by blocks; None if their blocks are too small for that to pay.

    Parameters
    ----------
    device : Device
    a, b : Csr
        B in canonical form.
    of_a, of_b : (int, int)
        The sizes of the full blocks of A and B. Where A's blocks do not have as many columns as B's blocks have rows,
        the patterns consist of smaller blocks.
    """
    inner = gcd(of_a[1], of_b[0])
    if not are_worth(of_a[0], inner, of_b[1]):
        return None
    return block_pattern(device, a, (of_a[0], inner)), block_pattern(device, b, (inner, of_b[1]))


class BlockProduct:
    """The structure of a product of two matrices of blocks.

    Parameters
    ----------
    patterns : (BlockPattern, BlockPattern, BlockPattern)
        The block patterns of A, B and their product C.

    Attributes
    ----------
    pattern : BlockPattern
        The block pattern of C.
    """

    def __init__(self, device: Device, patterns: tuple[BlockPattern, BlockPattern, BlockPattern]) -> None:
        self._device = device
        common = in_common(*(pattern.blocks for pattern in patterns))
        a, b, c = (BlockPattern(p.blocksize, blocks) for p, blocks in zip(patterns, common, strict=True))
        self._patterns, self.pattern = (a, b, c), c

    @classmethod
    def of(cls, device: Device, a: BlockPattern, b: BlockPattern, dtype: np.dtype[Any]) -> BlockProduct | None:
        """Compute the structure; return None if multiplying by entries is faster. Synchronizes.

        Parameters
        ----------
        device : Device
            The device of the arrays. It must be the active one.
        a, b : BlockPattern
            A's blocks have as many columns as B's blocks have rows, and at most `MAX_BLOCK` rows. B's pattern is
            sorted.
        dtype : dtype
            The compute dtype of the values of A and B.
        """
        common = in_common(*(pattern.blocks.with_data(device.no_values(dtype)) for pattern in (a, b)))
        a, b = (BlockPattern(p.blocksize, blocks) for p, blocks in zip((a, b), common, strict=True))
        c = kernels_of(device).blocks.block_product(device, a, b)
        return None if c is None else cls(device, (a, b, c))

    @property
    def nbytes(self) -> int:
        """Bytes of the row pointers and columns of the three patterns."""
        return sum(int(p.blocks.indptr.nbytes + p.blocks.indices.nbytes) for p in self._patterns)

    def product(self, a_data: Array, b_data: Array) -> Csr:
        """Return C, zeros included, from the values of A and B."""
        blocks, (rows, columns) = self.pattern.blocks, self.pattern.blocksize
        indptr, indices = kernels_of(self._device).prolongation.expand_pattern(
            self._device, blocks.indptr, blocks.indices, rows, columns
        )
        shape = blocks.num_rows * rows, blocks.num_cols * columns
        longest = None if blocks.longest is None else blocks.longest * columns
        return Csr(shape, indptr, indices, self.values(a_data, b_data), True, longest)

    def values(self, a_data: Array, b_data: Array) -> Array:
        """Return the values of C in CSR order, zeros included, from those of A and B."""
        return kernels_of(self._device).blocks.multiply_blocks(self._device, a_data, b_data, self._patterns)
