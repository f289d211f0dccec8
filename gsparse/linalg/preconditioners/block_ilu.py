"""Incomplete factors on the graph of nodes: each entry is a dense block, and so is each element of the diagonal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import MAX_INVERSE
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, operator_of
from gsparse.linalg.preconditioners.triangular import UnitTriangularMatrix


@dataclass(frozen=True, eq=False)
class BlockStructure:
    """Where the blocks of incomplete factors are, and in which order they are factorized: all but the values.

    Attributes
    ----------
    size : int
        Number of rows of a block.
    blocks : Csr
        The matrix of nodes, without values. It has an entry for each block in which the matrix has one, and for each
        diagonal block.
    places : array, shape (number of entries of the matrix,)
        The position in `blocks` of the block of each entry.
    diagonal : array, shape (number of nodes,)
        The positions of the diagonal blocks.
    lower, upper : Csr
        The blocks below and above the diagonal, with their positions as values.
    levels : Levels or None
        Of `lower`; None where one thread visits all rows.
    """

    size: int
    blocks: Csr
    places: Array
    diagonal: Array
    lower: Csr
    upper: Csr
    levels: Levels | None

    @classmethod
    def of(cls, matrix: SquareMatrix, size: int, name: str) -> BlockStructure:
        """Find the blocks of `size` rows. `name` is the preconditioner that needs them. Synchronizes."""
        if size > MAX_INVERSE:
            raise ValueError(f"{name}: block_size must be at most {MAX_INVERSE}, got {size}")
        device, kernels, xp = matrix.device, kernels_of(matrix.device), matrix.device.xp
        csr, index, count = matrix.csr, matrix.csr.indices.dtype, -(-matrix.size // size)
        nodes = xp.arange(count, dtype=np.int64)
        keys = (matrix.rows // size).astype(np.int64) * count + csr.indices // size
        block_keys = xp.unique(xp.concatenate([keys, nodes * (count + 1)]))  # synchronizes
        rows = block_keys // max(count, 1)
        columns = (block_keys - rows * count).astype(index)
        indptr = xp.searchsorted(block_keys, xp.arange(count + 1, dtype=np.int64) * count).astype(index)
        diagonal = xp.searchsorted(block_keys, nodes * (count + 1)).astype(index)
        blocks = Csr((count, count), indptr, columns, xp.arange(int(block_keys.size)), True)
        lower, upper = (kernels.sparse_rows.triangle(device, blocks, *side) for side in ((-1, False), (1, True)))
        levels = (
            kernels.triangular.triangular_levels(device, lower, upper=False)
            if kernels.triangular.NEEDS_LEVELS
            else None
        )
        blocks = blocks.with_data(device.no_values(matrix.dtype))
        return cls(size, blocks, xp.searchsorted(block_keys, keys), diagonal, lower, upper, levels)

    def fill(self, matrix: SquareMatrix, diagonal: Array) -> Csr:
        """Return the blocks of a matrix of this structure, with another diagonal.

        Elements that are no entries of the matrix are 0, and past the end of the matrix the diagonal is 1.
        """
        xp, size, count = matrix.device.xp, self.size, self.blocks.num_rows
        blocks = xp.zeros((self.blocks.nnz, size, size), matrix.dtype)
        blocks[self.places, matrix.rows % size, matrix.csr.indices % size] = matrix.csr.data
        every = xp.arange(count * size)
        filled = xp.ones(count * size, matrix.dtype)
        filled[: matrix.size] = diagonal
        blocks[self.diagonal[every // size], every % size, every % size] = filled
        return self.blocks.with_data(blocks)


def are_positive_definite(device: Device, blocks: Array) -> Array:
    """Return whether each Hermitian matrix of a batch is positive definite: whether its pivots are positive."""
    xp, rest = device.xp, blocks.copy()
    are_positive = xp.ones(len(rest), bool)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for k in range(rest.shape[1]):
            column, pivot = rest[:, :, k].copy(), rest[:, k, k].real
            are_positive &= pivot > 0
            rest -= column[:, :, None] * (xp.conj(column) / pivot[:, None])[:, None, :]
    return are_positive


class BlockUnitTriangularMatrix(UnitTriangularMatrix):
    """The matrix I + N on a device, where N consists of dense blocks; see `UnitTriangularMatrix`."""

    @cached_property
    def nnz(self) -> int:
        """Number of entries of N, which are all elements of its blocks. Synchronizes the first time."""
        device, size, blocks = self._device, self._size, self._csr
        rows = kernels_of(device).sparse_rows.row_numbers(device, blocks.indptr, blocks.nnz)
        length, xp = blocks.data.shape[1], device.xp
        heights, widths = (xp.minimum(size - part * length, length) for part in (rows, blocks.indices))
        return int((heights.astype(np.int64) * widths).sum())  # synchronizes

    @cached_property
    def _operator(self) -> MatrixOperator:
        return operator_of(self._device, self._entries())

    @cached_property
    def _adjoint(self) -> Csr:
        transposed = self._transposed_numbers
        return transposed.with_data(self._device.xp.conj(self._csr.data[transposed.data].swapaxes(1, 2)))

    def _bind_solver(
        self, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        bind: Callable[..., Callable[[Array, Array], None]] = kernels_of(
            self._device
        ).triangular.block_triangular_solver
        return bind(self._device, csr, levels, self._size, columns, upper)

    def _entries(self) -> Csr:
        """Return the elements of all blocks as the entries of a matrix in CSR. Synchronizes."""
        device, blocks, num_rows = self._device, self._csr, self._size
        xp, size, index = device.xp, blocks.data.shape[1], blocks.indices.dtype
        inner = xp.arange(size)
        rows = kernels_of(device).sparse_rows.row_numbers(device, blocks.indptr, blocks.nnz)
        begins, lengths = blocks.indptr.astype(np.int64), xp.diff(blocks.indptr).astype(np.int64)
        # The rows of a block row have the same length. Entry (r, c) of block k stands behind r whole rows, and behind
        # the earlier blocks of its own row.
        row_begins = begins[:-1, None] * size**2 + inner * (lengths * size)[:, None]
        places = row_begins[rows] + ((xp.arange(blocks.nnz) - begins[rows]) * size)[:, None]
        places = places[:, :, None] + inner
        columns, data = (xp.empty(blocks.data.size, dtype) for dtype in (index, blocks.data.dtype))
        columns[places] = (blocks.indices.astype(np.int64) * size)[:, None, None] + inner
        data[places] = blocks.data
        wide = np.dtype(np.int64) if blocks.data.size > np.iinfo(index).max else index
        ends = xp.full(1, blocks.data.size, np.int64)
        indptr = xp.concatenate([row_begins.reshape(-1)[:num_rows], ends]).astype(wide)
        csr = Csr((num_rows, num_rows), indptr, columns.astype(wide, copy=False), data, True)
        if num_rows % size == 0:
            return csr
        last = int(row_begins.reshape(-1)[num_rows])  # synchronizes
        indptr[num_rows] = last
        csr = Csr(csr.shape, indptr, csr.indices[:last], data[:last], True)
        inside: Csr = kernels_of(device).sparse_rows.keep_entries(device, csr, csr.indices < num_rows)
        return inside
