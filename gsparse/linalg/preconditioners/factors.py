"""The factorizations of incomplete factors A ≈ (I + L)·D·(I + U), by rows and by blocks of rows.

A factorization is called with a matrix, and returns the factors. The first call finds what depends on the structure
alone: where the entries of the factors are, and the levels of rows that do not depend on each other. Later calls, for
matrices of the same structure, only compute values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.square_matrix import MAX_ERROR, SquareMatrix
from gsparse.linalg.preconditioners.triangular import (
    BlockStructure,
    BlockUnitTriangularMatrix,
    UnitTriangularMatrix,
    are_positive_definite,
)


class IncompleteFactors(NamedTuple):
    """Incomplete factors.

    Attributes
    ----------
    lower, upper : (UnitTriangularMatrix, bool)
        I + L and I + U, and whether the adjoint of each is meant.
    inverse_diagonal : array, shape (N,) or (number of blocks, size, size)
        The inverse of D, which is a diagonal or consists of dense blocks.
    """

    lower: tuple[UnitTriangularMatrix, bool]
    inverse_diagonal: Array
    upper: tuple[UnitTriangularMatrix, bool]


class IncompleteFactorization(ABC):
    """How incomplete factors are computed and used.

    Parameters
    ----------
    name : {"ilu0", "ic0"}
        The preconditioner. For "ic0" the matrix is Hermitian, I + U is the adjoint of I + L, and D is positive.
    solve : {"levels", "jacobi"} or None
        How to solve with the factors; None for the default of the device.
    sweeps : int
        Number of Jacobi sweeps.
    shift : float
        Manteuffel's shift.
    """

    def __init__(self, name: str, solve: str | None, sweeps: int, shift: float) -> None:
        self.name, self.solve, self.sweeps, self.shift = name, solve, sweeps, shift
        self._triangles: dict[bool, UnitTriangularMatrix] = {}

    @abstractmethod
    def __call__(self, matrix: SquareMatrix) -> IncompleteFactors:
        """Return the factors of a matrix. Synchronizes."""

    def _triangle(self, cls: type[UnitTriangularMatrix], matrix: SquareMatrix, csr: Csr, *, upper: bool) -> Any:
        """Return I + N for a strictly triangular N, which shares what the structure of earlier ones decides."""
        known = self._triangles.get(upper)
        if known is None:
            solve = self.solve or ("jacobi" if kernels_of(matrix.device).triangular.NEEDS_LEVELS else "levels")
            made = cls(matrix.device, matrix.size, csr, solve, self.sweeps, upper=upper)
        else:
            made = known.with_data(csr.data)
        self._triangles[upper] = made
        return made

    def _shifted_diagonal(self, matrix: SquareMatrix) -> Array:
        """Return the diagonal, each element farther from 0 by `shift` times the sum of magnitudes of its row."""
        xp, diagonal = matrix.device.xp, matrix.diagonal
        if not self.shift:
            return diagonal
        phases = xp.where(diagonal == 0, 1, diagonal / xp.where(diagonal == 0, 1, xp.abs(diagonal)))
        return (diagonal + self.shift * matrix.row_sums() * phases).astype(matrix.dtype)


@dataclass(frozen=True, eq=False)
class RowStructure:
    """Where the entries of incomplete factors are, and in which order rows are factorized: all but the values.

    Attributes
    ----------
    device : Device
    pattern : Csr
        The matrix with a full diagonal. Its values are the positions of its entries in the matrix, and for elements of
        the diagonal that are not stored a position past the end.
    is_full : bool
        Whether the matrix stores all of its diagonal.
    diagonal : array, shape (N,)
        The positions of the diagonal in `pattern`.
    lower, upper : Csr
        The entries below and above the diagonal, with their positions in `pattern` as values.
    """

    device: Device
    pattern: Csr
    is_full: bool
    diagonal: Array
    lower: Csr
    upper: Csr

    @classmethod
    def of(cls, matrix: SquareMatrix) -> RowStructure:
        """Complete the diagonal, and find the triangles. Synchronizes."""
        device, kernels, xp = matrix.device, kernels_of(matrix.device), matrix.device.xp
        pattern, every = matrix.csr.with_data(xp.arange(matrix.csr.nnz)), xp.arange(matrix.size, dtype=np.int64)
        diagonal, num_missing, _ = kernels.edits.find_entries(device, pattern, every, every, True)  # synchronizes
        if num_missing:
            rows = xp.flatnonzero(diagonal < 0).astype(np.int64)
            past_the_end = xp.full(rows.size, pattern.nnz, pattern.dtype)
            pattern = kernels.edits.insert_entries(device, pattern, rows, rows, past_the_end, True)
            diagonal, _, _ = kernels.edits.find_entries(device, pattern, every, every, True)  # synchronizes
        places = pattern.with_data(xp.arange(pattern.nnz))
        lower, upper = (
            kernels.sparse_rows.triangle(device, places, *side) for side in ((-1, False), (1, True))
        )  # synchronizes
        return cls(device, pattern, not num_missing, diagonal.astype(pattern.indices.dtype), lower, upper)

    @cached_property
    def levels(self) -> Levels | None:
        """The levels of `lower`; None where one thread visits all rows. Synchronizes the first time."""
        kernels = kernels_of(self.device)
        return (
            kernels.triangular.triangular_levels(self.device, self.lower, upper=False)
            if kernels.triangular.NEEDS_LEVELS
            else None
        )

    @cached_property
    def rows(self) -> Array:
        """The row of each entry of `pattern`."""
        return kernels_of(self.device).sparse_rows.row_numbers(self.device, self.pattern.indptr, self.pattern.nnz)

    @cached_property
    def transposed(self) -> Csr:
        """The transpose of `pattern`, with the position of each entry there as its value."""
        positions = self.device.xp.arange(self.pattern.nnz, dtype=self.pattern.indices.dtype)
        return kernels_of(self.device).transpose.csr_transpose(self.device, self.pattern.with_data(positions))

    def factorize(self, filled: Csr) -> Array:
        """Overwrite the values of a matrix on `pattern` with those of its factors, and return them."""
        kernels_of(self.device).triangular.factorize_ilu0(self.device, filled, self.diagonal, self.levels)
        return filled.data

    def approximate(self, filled: Csr, sweeps: int) -> Array:
        """Return the values of the factors after this number of sweeps of a fixed-point iteration.

        It begins with the triangles of the matrix, the lower one divided by the diagonal.
        """
        xp, factors = self.device.xp, filled.data.copy()
        with np.errstate(all="ignore"):
            divisors = filled.data[self.diagonal][filled.indices]
            factors = xp.where(filled.indices < self.rows, factors / divisors, factors)
            out = xp.empty_like(factors)
            for _ in range(sweeps):
                pattern = (self.rows, self.diagonal, self.transposed)
                kernels_of(self.device).triangular.sweep_ilu0(self.device, filled, *pattern, factors, out)
                factors, out = out, factors
        return factors

    def fill(self, matrix: SquareMatrix, diagonal: Array) -> Csr:
        """Return a copy, on `pattern`, of a matrix of this structure, with another diagonal."""
        xp, values = matrix.device.xp, matrix.csr.data
        zero = xp.zeros(1, values.dtype)
        data = values.copy() if self.is_full else xp.concatenate([values, zero])[self.pattern.data]
        data[self.diagonal] = diagonal
        return self.pattern.with_data(data)


class RowFactorization(IncompleteFactorization):
    """Incomplete factors by rows; see `IncompleteFactorization`.

    Parameters
    ----------
    name, solve, sweeps, shift
    factor_sweeps : int, optional
        Number of sweeps of a fixed-point iteration that computes the factors. Without it, they are exact.
    """

    _structure: RowStructure | None = None

    def __init__(
        self, name: str, solve: str | None, sweeps: int, shift: float, factor_sweeps: int | None = None
    ) -> None:
        super().__init__(name, solve, sweeps, shift)
        self.factor_sweeps = factor_sweeps

    def __call__(self, matrix: SquareMatrix) -> IncompleteFactors:
        device = matrix.device
        structure = self._structure or RowStructure.of(matrix)
        filled = structure.fill(matrix, self._shifted_diagonal(matrix))
        if self.factor_sweeps is None:
            factors = structure.factorize(filled)
        else:
            factors = structure.approximate(filled, self.factor_sweeps)
        pivots, hermitian = factors[structure.diagonal], self.name == "ic0"
        self._check(matrix, pivots, hermitian)
        self._structure = structure
        below, above = structure.lower, structure.upper
        lower = self._triangle(UnitTriangularMatrix, matrix, below.with_data(factors[below.data]), upper=False)
        if hermitian:
            return IncompleteFactors((lower, False), (1 / pivots.real).astype(matrix.dtype), (lower, True))
        rows = kernels_of(device).sparse_rows.row_numbers(device, above.indptr, above.nnz)
        scaled = above.with_data(factors[above.data] / pivots[rows])
        upper = self._triangle(UnitTriangularMatrix, matrix, scaled, upper=True)
        return IncompleteFactors((lower, False), 1 / pivots, (upper, False))

    def _check(self, matrix: SquareMatrix, pivots: Array, hermitian: bool) -> None:
        """Raise an error if a pivot is not usable. Synchronizes."""
        test = "not positive" if hermitian else "zero"
        row = kernels_of(matrix.device).reductions.first_where(matrix.device, pivots, test, "not finite")
        if row is None:
            return
        if hermitian:
            fault = f"ic0: the pivot in row {row} is not positive: try ic0(A, shift=0.01); for an indefinite A use "
            fault += "ilu0(A) with gmres"
        else:
            fault = f"ilu0: the pivot in row {row} is zero or not finite: try ilu0(A, shift=0.01), or reorder the rows"
        raise matrix.error_of_row(row, self.name, fault)


class BlockFactorization(IncompleteFactorization):
    """Incomplete factors by blocks of rows; see `IncompleteFactorization`.

    Parameters
    ----------
    name, solve, sweeps, shift
    size : int
        Number of rows of a block.
    """

    _structure: BlockStructure | None = None

    def __init__(self, name: str, solve: str | None, sweeps: int, shift: float, size: int) -> None:
        super().__init__(name, solve, sweeps, shift)
        self.size = size

    def __call__(self, matrix: SquareMatrix) -> IncompleteFactors:
        device, xp, hermitian = matrix.device, matrix.device.xp, self.name == "ic0"
        structure = self._structure or BlockStructure.of(matrix, self.size, self.name)
        blocks = structure.fill(matrix, self._shifted_diagonal(matrix))
        factors, is_regular = kernels_of(device).triangular.factorize_block_ilu0(
            device, blocks, structure.diagonal, structure.levels, MAX_ERROR
        )
        inverses = factors[structure.diagonal]
        if hermitian:
            inverses = (inverses + xp.conj(inverses.swapaxes(1, 2))) / 2
            is_regular = are_positive_definite(device, inverses) & (is_regular != 0)
        self._check(matrix, is_regular, "is not positive definite" if hermitian else "is singular")
        self._structure = structure
        parts = [(structure.lower, False)] if hermitian else [(structure.lower, False), (structure.upper, True)]
        triangles = [
            self._triangle(BlockUnitTriangularMatrix, matrix, part.with_data(factors[part.data]), upper=is_upper)
            for part, is_upper in parts
        ]
        return IncompleteFactors((triangles[0], False), inverses, (triangles[-1], hermitian))

    def _check(self, matrix: SquareMatrix, are_good: Array, fault: str) -> None:
        """Raise an error if there is a node whose diagonal block has a fault. Synchronizes."""
        node = kernels_of(matrix.device).reductions.first_where(matrix.device, are_good, "zero")
        if node is None:
            return
        size, name = self.size, self.name
        last = min((node + 1) * size, matrix.size) - 1
        raise FactorizationError(
            f"{name}: the diagonal block of node {node} (rows {node * size} to {last}) {fault}: try {name}(A, "
            f"block_size={size}, shift=0.01), or another block_size"
        )
