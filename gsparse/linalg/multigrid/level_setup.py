"""The set-up of all levels by smoothed aggregation, on the device of the matrix.

The steps on each level, beginning with the finest:

    connections  →  aggregates  →  smoothers  →  the tentative prolongator T, P and R  →  the Galerkin product R·A·P

The matrix of the coarsest level gets a dense inverse, if it has at most `MAX_INVERTED` rows. A larger coarsest level is
an error if `max_levels` has ended the coarsening. Otherwise it is only smoothed, with a warning unless its matrix is
diagonal.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.errors import CoarseningWarning, FactorizationError
from gsparse.formats import Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.multigrid.coarsening import Coarsening, Transfers
from gsparse.linalg.multigrid.cycle import Level, inner_dtype
from gsparse.linalg.multigrid.options import AggregationOptions, Phases
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.polynomial import estimated_eigenvalue, gershgorin_bound, spectral_radius
from gsparse.linalg.preconditioners.relaxation import Relaxation, Smoother
from gsparse.linalg.preconditioners.square_matrix import DIAGONAL_RANGE, SquareMatrix, reciprocals
from gsparse.linalg.small_matrices import dense_inverse
from gsparse.matrix.arrays import MatrixArrays, frames_to_the_caller
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.products.planning import MIN_ANALYSIS_PRODUCTS, MatrixOptions
from gsparse.products.structure import SparsityPattern, Structure

# Maximum number of rows of a coarsest level that gets a dense inverse. For 3000 rows in float64, a product reads 72 MB.
MAX_INVERTED = 3000
# Coarsening ends if the next level would have more than this fraction of a level's rows.
STALLED = 0.8
# Expected numbers of products with the matrix of a coarse level and with a transfer: about as many as one solve makes.
# These numbers are too small for an analysis of values and columns, so the plan looks only at the lengths of rows. (The
# analysis took about 10 ms for the 7-point matrix on 200³ points on an H200.)
LEVEL_PRODUCTS, TRANSFER_PRODUCTS = MIN_ANALYSIS_PRODUCTS - 1, 20
# A coarse matrix with at least this many entries may be stored in dense blocks. For smaller matrices, the conversion
# does not pay: a product takes little more than the time of a launch in any format.
_MIN_BLOCK_ENTRIES = 2**20

# ``make(matrix, hermitian)`` returns the presmoother and the postsmoother of a level.
MakeSmoothers = Callable[[SquareMatrix, bool], tuple[Smoother, Smoother]]


class LevelMatrix(SquareMatrix):
    """The matrix of a level. Empty rows count as rows of the identity, so that smoothers do not change the unknown."""

    FILLS_EMPTY_ROWS = True

    @property
    def coarsening_input(self) -> Any:
        """The argument of `Coarsening`: the CSR matrix, or over ranks a `RankRows`."""
        return self.csr

    @cached_property
    def diagonal(self) -> Array:
        diagonal = self.stored_diagonal
        if self.stores_positive_diagonal:  # synchronizes
            return diagonal
        if kernels_of(self.device).reductions.first_where(self.device, diagonal, "zero") is None:  # synchronizes
            return diagonal
        is_empty = (diagonal == 0) & (super().row_sums() == 0)
        return self.device.xp.where(is_empty, 1, diagonal).astype(self.dtype, copy=False)

    @cached_property
    def reciprocals(self) -> Array:
        """The reciprocals of the diagonal, and 0 where the diagonal is 0."""
        if self.stores_positive_diagonal:  # synchronizes
            return 1 / self.diagonal
        return reciprocals(self.device.xp, self.diagonal).astype(self.dtype, copy=False)

    def forget_diagonal(self) -> None:
        """Free the diagonal and its reciprocals. They are computed again when needed."""
        for name in ("stored_diagonal", "diagonal", "reciprocals"):
            self.__dict__.pop(name, None)

    def row_sums(self) -> Array:
        sums = super().row_sums()
        return self.device.xp.where(sums == 0, 1, sums).astype(sums.dtype, copy=False)


@dataclass(eq=False)
class Setup(ABC):
    """Computes the levels of a matrix: on one device (`LevelSetup`), or over ranks.

    The structures of all levels are stored, so that a matrix of the same structure with other values is set up faster.

    Attributes
    ----------
    options : AggregationOptions
    symmetry : {"hermitian", "symmetric", "nonsymmetric"}
    candidates, left_candidates : array, shape (num_rows, k)
        Near-nullspace candidates of the matrix and of its adjoint. Over ranks, the rows of this rank.
    make : callable
        Function that returns the smoothers of a level.
    dtype : dtype or None
        float32 or float64, the precision of the values of the levels; None for that of the matrix.
    improves : bool
        Whether the candidates of the finest level are smoothed first.
    is_automatic : bool
        Whether the smoothers are the default ones.
    coarsenings : list of Coarsening or None
        The structure of the transfers of each level that has a coarser one (over ranks, of the distributed levels);
        None before the first set-up.
    suits_theory : bool
        Whether the smoothers are automatic, and the matrix of the latest set-up is Hermitian with a positive diagonal.
    phases : Phases
        The times of the latest set-up.
    coarse_nnz : int
        Number of entries of the coarsest matrix.
    """

    options: AggregationOptions
    symmetry: str
    candidates: Array
    left_candidates: Array
    make: MakeSmoothers
    dtype: np.dtype[Any] | None
    improves: bool = field(default=True, kw_only=True)
    is_automatic: bool = field(default=False, kw_only=True)
    coarsenings: list[Any] | None = field(default=None, init=False)
    suits_theory: bool = field(default=False, init=False)
    coarse_nnz: int = field(default=0, init=False)

    @property
    def num_candidates(self) -> int:
        return int(self.candidates.shape[1])

    @property
    def _is_hermitian(self) -> bool:
        return self.symmetry == "hermitian" or (self.symmetry == "symmetric" and self.candidates.dtype.kind != "c")

    @property
    def _declared(self) -> Any:
        """The value of the option ``symmetric=`` with which the matrices of the levels are made."""
        if not self._is_hermitian:
            return False
        return "hermitian" if self.candidates.dtype.kind == "c" else True

    def _block_size(self, depth: int) -> int:
        return self.num_candidates if depth else self.options.block_size

    # ---------------------------------------------------------------- methods in which the two set-ups differ

    @abstractmethod
    def build(self, finest: Any) -> tuple[list[Level], MatrixOperator | None]:
        """Return the levels, and the inverse of the coarsest matrix or None if that is only smoothed. Synchronizes."""

    @abstractmethod
    def _is_small(self, matrix: Any, depth: int) -> bool:
        """Return whether a level has so few rows that it is not coarsened."""

    @abstractmethod
    def _new_coarsening(self, matrix: Any, depth: int) -> Coarsening: ...

    @abstractmethod
    def _level(self, matrix: Any, depth: int, transfers: Transfers[Any], smoothers: tuple[Smoother, Smoother]) -> Level:
        """Return the `Level` of a matrix, with its transfers and (presmoother, postsmoother)."""

    @abstractmethod
    def _coarse_matrix(self, matrix: Any, depth: int, transfers: Transfers[Any]) -> Any:
        """Return the matrix of the next coarser level, which has the number `depth`."""

    def _smoothers(self, matrix: Any) -> tuple[Smoother, Smoother]:
        return self.make(matrix, self._is_hermitian)

    # ---------------------------------------------------------------- methods that the two set-ups share

    def _coarsen(self, matrix: Any) -> tuple[list[Level], Any, Callable[[], tuple[Array, Array]]]:
        """Return all levels that have a coarser one, the matrix of the coarsest level, and its candidates.

        The last item is a function that returns the candidates, so that `fill` can time their smoothing separately.
        """
        self.phases = Phases(matrix.device)
        candidates: Callable[[], tuple[Array, Array]] = partial(tuple, (self.candidates, self.left_candidates))
        levels, coarsenings = list[Level](), list[Coarsening]()
        while (coarsening := self._coarsening(matrix, len(coarsenings))) is not None:
            coarsenings.append(coarsening)
            smoothers = self.phases.run("smoothers", self._smoothers, matrix)
            radius = self.phases.run("eigenvalue", largest_magnitude, matrix, self._is_hermitian)
            if not levels:
                self.suits_theory = self.is_automatic and self._is_hermitian and matrix.has_positive_diagonal()
                if self.improves:
                    left = self.left_candidates if self.symmetry == "nonsymmetric" else None
                    candidates = partial(improved_candidates, matrix, smoothers[0], self.candidates, left)
            transfers = coarsening.fill(matrix.coarsening_input, candidates, radius, self.phases)
            candidates = partial(tuple, (transfers.candidates, transfers.left_candidates))
            levels.append(self._level(matrix, len(levels), transfers, smoothers))
            matrix = self._coarse_matrix(matrix, len(levels), transfers)
        self.coarsenings = coarsenings
        return levels, matrix, candidates

    def _coarsening(self, matrix: Any, depth: int) -> Coarsening | None:
        """Return the structure of a level's transfers, or None if this is the coarsest level."""
        if self.coarsenings is not None:
            if depth == len(self.coarsenings):
                return None
            coarsening: Coarsening = self.coarsenings[depth]
            coarsening.examine(matrix.coarsening_input, self.phases)
        else:
            if self._is_small(matrix, depth) or depth + 1 == self.options.max_levels:
                return None
            coarsening = self._new_coarsening(matrix, depth)
            if not 0 < coarsening.num_aggregates * self.num_candidates <= STALLED * matrix.coarsening_input.shape[0]:
                return None
        share_bounds(matrix, coarsening)
        return coarsening

    def _narrow_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the values of the levels, for a matrix of dtype `dtype`."""
        return dtype if self.dtype is None else inner_dtype(self.dtype, dtype)


def share_bounds(matrix: LevelMatrix, coarsening: Coarsening) -> None:
    """Store the bounds that a coarsening has found in `matrix.shared`, so that smoothers need not find them again."""
    matrix.shared[gershgorin_bound] = coarsening.unfiltered_bound
    matrix.shared[DIAGONAL_RANGE] = coarsening.diagonal_range


@dataclass(eq=False)
class LevelSetup(Setup):
    """The set-up on one device.

    Attributes
    ----------
    finer_levels : int
        Number of levels that several ranks have set up together before this set-up; 0 on one device. The first level of
        this set-up has this number in warnings.
    structures : dict
        The structures of the matrices of all levels, by the number of the level and the name of the matrix.

    All other attributes are those of `Setup`.
    """

    finer_levels: int = 0
    structures: dict[tuple[int, str], Structure] = field(default_factory=dict)

    def build(self, finest: SquareMatrix) -> tuple[list[Level], MatrixOperator | None]:
        """Return the levels, and the inverse of the coarsest matrix. Synchronizes.

        The inverse is None if the coarsest level is only smoothed.

        Raises
        ------
        FactorizationError
            If the coarsest level is too large for a dense inverse and `max_levels` allows no further level.

        Warns
        -----
        CoarseningWarning
            If a level cannot be coarsened further and is too large for a dense inverse, unless it is diagonal.
        """
        levels, matrix, _ = self._coarsen(LevelMatrix(finest.device, finest.csr, finest.operator))
        self.coarse_nnz = matrix.csr.nnz
        return self._with_coarsest(levels, matrix)

    def _coarse_matrix(self, matrix: LevelMatrix, depth: int, transfers: Transfers[Csr]) -> LevelMatrix:
        operator = self._operator_of(matrix, transfers.coarse, (depth, "A"))
        return LevelMatrix(matrix.device, transfers.coarse, operator)

    def _is_small(self, matrix: LevelMatrix, depth: int) -> bool:
        return matrix.size <= self.options.max_coarse * self._block_size(depth)

    def _new_coarsening(self, matrix: LevelMatrix, depth: int) -> Coarsening:
        size, strength = self._block_size(depth), self.options.strength(depth)
        return Coarsening(matrix.device, matrix.csr, size, self.symmetry, strength, self.phases)

    def _level(
        self, matrix: LevelMatrix, depth: int, transfers: Transfers[Csr], smoothers: tuple[Smoother, Smoother]
    ) -> Level:
        P = self._operator_of(matrix, self._narrow(transfers.prolongation), (depth, "P"))
        R = self._operator_of(matrix, self._narrow(transfers.restriction), (depth, "R"))
        return Level(self._narrow_operator(matrix, depth), R, P, *smoothers)

    def _with_coarsest(self, levels: list[Level], matrix: LevelMatrix) -> tuple[list[Level], MatrixOperator | None]:
        if matrix.size <= MAX_INVERTED:
            inverse = self.phases.run("coarsest", dense_inverse, matrix.device, matrix.csr, self._is_hermitian)
            return levels, self._operator_of(matrix, self._narrow(inverse), (len(levels), "inverse"))
        if len(levels) + 1 == self.options.max_levels:
            raise FactorizationError(
                f"amg: the coarsest level has {matrix.size} rows, and a dense inverse is computed for at most "
                f"{MAX_INVERTED}: allow more levels (max_levels)"
            )
        if matrix.csr.nnz > matrix.size:
            if self._is_small(matrix, len(levels)):
                text = (
                    f"the coarsest level has {matrix.size} rows, and a dense inverse is computed for at most "
                    f"{MAX_INVERTED}, so it is only smoothed: use a smaller max_coarse"
                )
            else:
                text = (
                    f"level {self.finer_levels + len(levels)} of {matrix.size} rows has too few strong connections for "
                    "a coarser one, so it is only smoothed: use another strength, such as "
                    "strength=('classical', {'theta': 0.02})"
                )
            warnings.warn(f"amg: {text}", CoarseningWarning, stacklevel=frames_to_the_caller())
        smoothers = self.phases.run("smoothers", self._smoothers, matrix)
        return [*levels, Level(self._narrow_operator(matrix, len(levels)), None, None, *smoothers)], None

    def _narrow_operator(self, matrix: LevelMatrix, depth: int) -> MatrixOperator:
        """Return the matrix of a level as an operator, with values in the dtype of the levels."""
        narrow = self._narrow(matrix.csr)
        return matrix.operator if narrow is matrix.csr else self._operator_of(matrix, narrow, (depth, "A"))

    def _narrow(self, csr: Csr) -> Csr:
        """Return a matrix with values in the dtype of the levels."""
        dtype = self._narrow_dtype(csr.dtype)
        return csr if dtype == csr.dtype else csr.with_data(csr.data.astype(dtype))

    def _blocksize(self, csr: Csr) -> tuple[int, int] | None:
        """Return the block size for storing a coarse matrix in dense blocks; None to store it by entries.

        A coarse matrix has one row per aggregate and candidate. The transfers consist of full blocks, and so do their
        products.
        """
        k, is_coarse = self.num_candidates, csr.num_rows != self.candidates.shape[0]
        is_coarse = is_coarse and csr.num_rows == csr.num_cols
        return (k, k) if is_coarse and 1 < k <= MAX_BLOCK and csr.nnz >= _MIN_BLOCK_ENTRIES else None

    def _operator_of(self, matrix: LevelMatrix, csr: Csr, key: tuple[int, str]) -> MatrixOperator:
        """Return `csr` as an operator on the device of `matrix`. It is not analysed before its first product.

        Parameters
        ----------
        matrix : LevelMatrix
        csr : Csr
        key : (int, str)
            The number of the level, and the name of the matrix on this level. In an update, the new matrix reuses the
            structure of the matrix that it replaces.
        """
        structure = self.structures.get(key)
        if structure is None:
            sparsity = SparsityPattern(matrix.device, csr, known_blocksize=self._blocksize(csr))
            structure = Structure(sparsity)
            self.structures[key] = structure
        csr = replace(csr, indptr=structure.sparsity.csr.indptr, indices=structure.sparsity.csr.indices)
        is_square = csr.num_rows == csr.num_cols
        symmetric = self._declared if is_square else False
        products = LEVEL_PRODUCTS if is_square else TRANSFER_PRODUCTS
        options = MatrixOptions(expected_products=products, symmetric=symmetric)
        arrays = MatrixArrays.of_result(matrix.device, options, csr, structure=structure)
        return MatrixOperator(matrix.operator.matrix._with_arrays(arrays, csr.shape, GpuSparseMatrix))


def largest_magnitude(matrix: LevelMatrix, hermitian: bool) -> float:
    """Return an estimate of the largest magnitude of an eigenvalue of D⁻¹A. Synchronizes."""
    if hermitian and matrix.has_positive_diagonal():
        return estimated_eigenvalue(matrix, matrix.reciprocals)
    return spectral_radius(matrix, matrix.reciprocals)


def improved_candidates(
    matrix: LevelMatrix, smoother: Smoother, right: Array, left: Array | None
) -> tuple[Array, Array]:
    """Smooth the candidates, so that they fulfil boundary conditions and follow jumps of coefficients.

    The last step is a Jacobi step. Unlike a polynomial, it makes a candidate zero in rows whose diagonal is much larger
    than all other entries. `left` are the candidates of the adjoint; None if they are the same as `right`.
    """
    smoothers = smoother, Relaxation("jacobi", ((1.0, matrix.reciprocals),))
    smoothed = _smoothed(matrix, smoothers, right, adjoint=False)
    of_adjoint = smoothed if left is None else _smoothed(matrix, smoothers, left, adjoint=True)
    matrix.forget_diagonal()
    return smoothed, of_adjoint


def _smoothed(matrix: LevelMatrix, smoothers: tuple[Smoother, ...], candidates: Array, *, adjoint: bool) -> Array:
    """Return the candidates after applying smoothers to A·x = 0, one after the other, with x = candidates."""
    xp, (rows, columns) = matrix.device.xp, candidates.shape
    passes = VectorPasses(matrix.device, matrix.dtype, columns)
    x, b, r = xp.ascontiguousarray(candidates.T).reshape(-1).copy(), passes.vector(rows), passes.vector(rows)
    for smoother in smoothers:
        for call in smoother.bind(passes, matrix.operator, adjoint).calls(x, b, r, guess=True, residual=False):
            call()
    return xp.ascontiguousarray(x.reshape(columns, rows).T)
