"""Incomplete factors on the graph of nodes: each entry is a dense block, and so is each element of the diagonal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import MAX_INVERSE
from gsparse.linalg.preconditioners.square_matrix import MAX_ERROR, SquareMatrix
from gsparse.linalg.preconditioners.triangular import UnitTriangularMatrix, levels_of

__all__ = ["BlockFactors", "BlockUnitTriangularMatrix", "are_positive_definite", "factorize_blocks"]


@dataclass(frozen=True, eq=False)
class BlockFactors:
    """The factors (I + L)·D·(I + U) of a matrix whose entries are dense blocks.

    Attributes
    ----------
    lower, upper : Csr
        L and U. The values have the shape (number of blocks, size, size); elements past the end of the matrix are 0.
    inverses : array, shape (number of nodes, size, size)
        The inverses of the blocks of D. Past the end of the matrix they are the identity.
    is_regular : array, shape (number of nodes,)
        Whether each block of D has an inverse.
    """

    lower: Csr
    inverses: Array
    upper: Csr
    is_regular: Array


def factorize_blocks(matrix: SquareMatrix, diagonal: Array, size: int, name: str) -> BlockFactors:
    """Return the incomplete factors of a matrix, in blocks of `size` rows. Synchronizes.

    Parameters
    ----------
    matrix : SquareMatrix
    diagonal : array, shape (N,)
        The diagonal, which may differ from that of the matrix.
    size : int
    name : str
        The preconditioner that needs the factors.
    """
    if size > MAX_INVERSE:
        raise ValueError(f"{name}: block_size must be at most {MAX_INVERSE}, got {size}")
    device, kernels = matrix.device, kernels_of(matrix.device)
    blocks, rows, middle = _fill_blocks(matrix, diagonal, size)
    numbers = Csr(blocks.shape, blocks.indptr, blocks.indices, device.xp.arange(blocks.nnz))
    below, above = (
        kernels.keep_entries(device, numbers, is_kept) for is_kept in (numbers.indices < rows, numbers.indices > rows)
    )
    levels: Levels | None = levels_of(device, below, upper=False) if kernels.NEEDS_LEVELS else None
    factors, is_regular = kernels.factorize_block_ilu0(device, blocks, middle, levels, MAX_ERROR)
    lower, upper = (part.with_data(factors[part.data]) for part in (below, above))
    return BlockFactors(lower, factors[middle], upper, is_regular)


def _fill_blocks(matrix: SquareMatrix, diagonal: Array, size: int) -> tuple[Csr, Array, Array]:
    """Return the blocks that have an entry, the row of each block, and the positions of the diagonal blocks.

    All diagonal blocks exist. Elements that are no entries of the matrix are 0, and past the end of the matrix the
    diagonal is 1. Synchronizes.
    """
    xp, csr, index = matrix.device.xp, matrix.csr, matrix.csr.indices.dtype
    count = -(-matrix.size // size)
    nodes = xp.arange(count, dtype=np.int64)
    keys = (matrix.rows // size).astype(np.int64) * count + csr.indices // size
    block_keys = xp.unique(xp.concatenate([keys, nodes * (count + 1)]))  # synchronizes
    rows = block_keys // max(count, 1)
    columns = (block_keys - rows * count).astype(index)
    indptr = xp.searchsorted(block_keys, xp.arange(count + 1, dtype=np.int64) * count).astype(index)
    middle = xp.searchsorted(block_keys, nodes * (count + 1))
    blocks = xp.zeros((int(block_keys.size), size, size), matrix.dtype)
    blocks[xp.searchsorted(block_keys, keys), matrix.rows % size, csr.indices % size] = csr.data
    every = xp.arange(count * size)
    filled = xp.ones(count * size, matrix.dtype)
    filled[: matrix.size] = diagonal
    blocks[middle[every // size], every % size, every % size] = filled
    return Csr((count, count), indptr, columns, blocks, True), rows.astype(index), middle.astype(index)


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
        (device, size), blocks = (self._matrix.device, self._matrix.size), self._csr
        rows = kernels_of(device).row_numbers(device, blocks.indptr, blocks.nnz)
        length, xp = blocks.data.shape[1], device.xp
        heights, widths = (xp.minimum(size - part * length, length) for part in (rows, blocks.indices))
        return int((heights.astype(np.int64) * widths).sum())  # synchronizes

    @cached_property
    def _operator(self) -> Any:
        return self._matrix.operator_of(self._entries())

    @cached_property
    def _adjoint(self) -> Csr:
        device, blocks = self._matrix.device, self._csr
        numbers = Csr(blocks.shape, blocks.indptr, blocks.indices, device.xp.arange(blocks.nnz))
        transposed: Csr = kernels_of(device).csr_transpose(device, numbers)
        return transposed.with_data(device.xp.conj(blocks.data[transposed.data].swapaxes(1, 2)))

    def _bind_solver(
        self, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        device, num_rows = self._matrix.device, self._matrix.size
        bind: Callable[..., Callable[[Array, Array], None]] = kernels_of(device).block_triangular_solver
        return bind(device, csr, levels, num_rows, columns, upper)

    def _entries(self) -> Csr:
        """Return the elements of all blocks as the entries of a matrix in CSR. Synchronizes."""
        device, blocks, num_rows = self._matrix.device, self._csr, self._matrix.size
        xp, size, index = device.xp, blocks.data.shape[1], blocks.indices.dtype
        inner = xp.arange(size)
        rows = kernels_of(device).row_numbers(device, blocks.indptr, blocks.nnz)
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
        inside: Csr = kernels_of(device).keep_entries(device, csr, csr.indices < num_rows)
        return inside
