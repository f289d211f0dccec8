"""The system of an automatic solve: its properties, which determine the method, and the best solution so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.norms import norm
from gsparse.linalg.operators import Operator
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# Possible numbers of unknowns per node, in the order of the search: six are displacements and rotations of a shell,
# three are displacements of a solid, and two are displacements of a plane.
_BLOCK_SIZES = (6, 4, 3, 2)
# If zeros were dropped from a matrix, its blocks are not full. To find such blocks, samples of consecutive nodes are
# examined.
_NUM_SAMPLES, _SAMPLE_NODES = 16, 32
# At least the fraction _FILLED of the elements of nodes' blocks must be entries. (This fraction is 0.72 for two
# unknowns per node on a regular grid in the plane, and 0.5 for pairs of neighbouring rows of a scalar problem.) Blocks
# that begin one row later must have at most _SHIFTED times that fraction. Otherwise, neighbouring rows are similar only
# because the matrix is a band matrix.
_FILLED, _SHIFTED = 0.65, 0.85
# A matrix counts as having a property if at least this fraction of its rows has the property. Rows of boundary
# conditions may lack it.
MOST_ROWS = 0.95
# Rounding errors of a sum over a row, in units of eps times the sum of magnitudes.
ROUNDING = 64
# Jacobi's preconditioner is good enough if, in each row, the magnitudes of the off-diagonal entries add up to at most
# this fraction of the diagonal. The condition number is then at most 3.
STRONG = 0.5


@dataclass(frozen=True)
class MatrixProperties:
    """The properties of a matrix that determine the choice of a method.

    Attributes
    ----------
    num_rows, num_cols, nnz : int
    dtype : dtype
    is_hermitian : bool
        Whether the matrix is Hermitian up to rounding.
    has_positive_diagonal : bool
        Whether every element of the diagonal is positive.
    num_zero_diagonal : int
        Number of rows whose diagonal element is zero or not stored.
    is_dominant : bool
        Whether in nearly all rows, the diagonal is at least as large as the sum of the other entries, in magnitude.
    is_strongly_dominant : bool
        Whether in all rows, the diagonal is at least twice as large as the sum of the other entries, in magnitude.
    is_m_matrix : bool
        Whether the diagonal is positive and dominant, and nearly all other entries are negative, as in the
        discretization of a diffusion.
    has_constant_null_space : bool
        Whether A times a constant vector is zero.
    num_empty_rows : int
        Number of rows in which all values are zero.
    block_size : int
        Number of unknowns per node, found from groups of rows with (nearly) the same columns; 1 without such groups.
    """

    num_rows: int
    num_cols: int
    nnz: int
    dtype: np.dtype[Any]
    is_hermitian: bool = False
    has_positive_diagonal: bool = False
    num_zero_diagonal: int = 0
    is_dominant: bool = False
    is_strongly_dominant: bool = False
    is_m_matrix: bool = False
    has_constant_null_space: bool = False
    num_empty_rows: int = 0
    block_size: int = 1

    def with_counts(
        self, dominant: int, strong: int, zero_sums: int, negative: int, positive: int, zero: int, empty: int
    ) -> MatrixProperties:
        """Return the properties of a square matrix that follow from counts.

        Parameters
        ----------
        dominant, strong : int
            Number of rows with a dominant diagonal, and with a strongly dominant one.
        zero_sums : int
            Number of rows whose elements add up to 0.
        negative : int
            Number of entries that are zero or have a negative real part.
        positive, zero : int
            Number of rows with a positive diagonal, and with a diagonal of 0.
        empty : int
            Number of rows in which all values are zero.
        """
        size, is_positive = self.num_rows, positive == self.num_rows and not zero
        is_dominant, off_diagonal = dominant >= MOST_ROWS * size, self.nnz - (size - zero)
        return replace(
            self,
            has_positive_diagonal=is_positive,
            num_zero_diagonal=zero,
            is_dominant=is_dominant,
            is_strongly_dominant=strong == size and not zero,
            is_m_matrix=is_positive and is_dominant and negative >= MOST_ROWS * off_diagonal,
            has_constant_null_space=zero_sums == size,
            num_empty_rows=empty,
        )

    @property
    def is_probably_definite(self) -> bool:
        """Whether the matrix is Hermitian with a positive diagonal, so that it may be positive (semi)definite."""
        return self.is_hermitian and self.has_positive_diagonal


def examine(matrix: SquareMatrix) -> MatrixProperties:
    """Return the properties of a square matrix. Synchronizes a dozen times."""
    xp, csr, size = matrix.device.xp, matrix.csr, matrix.size
    base = MatrixProperties(size, size, csr.nnz, matrix.dtype)
    if not size:
        return base
    eps = float(np.finfo(matrix.dtype).eps)
    diagonal, sums = matrix.diagonal, matrix.row_sums()
    magnitude = xp.abs(diagonal)
    others = sums - magnitude
    is_dominant = magnitude >= others - ROUNDING * eps * sums
    count_where = partial(kernels_of(matrix.device).reductions.count_where, matrix.device)  # synchronizes
    dominant = count_where(is_dominant, "not zero")
    strong = count_where(others <= STRONG * magnitude, "not zero")
    zero_sums = count_where(xp.abs(_row_totals(matrix)) <= ROUNDING * eps * sums, "not zero")
    negative = count_where((csr.data.real < 0) | (csr.data == 0), "not zero")
    positive = size - count_where(diagonal, "not positive")
    zero, empty = count_where(diagonal, "zero"), count_where(sums, "zero")
    return replace(
        base.with_counts(dominant, strong, zero_sums, negative, positive, zero, empty),
        is_hermitian=matrix.is_hermitian(),
        block_size=_block_size(matrix),
    )


def _block_size(matrix: SquareMatrix) -> int:
    """Return the number of unknowns per node. Synchronizes."""
    sizes = [n for n in _BLOCK_SIZES if matrix.size % n == 0 and matrix.size > n and matrix.csr.nnz >= n * matrix.size]
    full = next((n for n in sizes if _has_blocks(matrix, n)), None)
    return full or next((n for n in sizes if _nearly_has_blocks(matrix, n)), 1)


def _row_totals(matrix: SquareMatrix) -> Array:
    """Return A times a vector of ones."""
    xp, dtype = matrix.device.xp, matrix.dtype
    totals = xp.empty(matrix.size, dtype)
    matrix.operator.bind(matrix.device, dtype)(xp.ones(matrix.size, dtype), totals)
    return totals


def _has_blocks(matrix: SquareMatrix, size: int) -> bool:
    """Return whether the matrix consists of full blocks of `size` rows and columns. Synchronizes."""
    xp, csr = matrix.device.xp, matrix.csr
    lengths = xp.diff(csr.indptr).reshape(-1, size)
    first_where = partial(kernels_of(matrix.device).reductions.first_where, matrix.device)
    if first_where((lengths != lengths[:, :1]) | (lengths % size != 0), "not zero") is not None:  # synchronizes
        return False
    # For each entry, the k-th of its row: the position of the k-th entry of the first row of the group.
    first_rows = matrix.rows // size * size
    places = xp.arange(csr.nnz) - csr.indptr[matrix.rows] + csr.indptr[first_rows]
    same_columns = csr.indices == csr.indices[places]
    in_groups = csr.indices % size == (xp.arange(csr.nnz) - csr.indptr[matrix.rows]) % size
    return first_where(same_columns & in_groups, "zero") is None  # synchronizes


def _nearly_has_blocks(matrix: SquareMatrix, size: int) -> bool:
    """Return whether blocks of this size are mostly filled, in samples of consecutive rows. Synchronizes."""
    num_nodes, download = matrix.size // size, matrix.device.download
    filled, shifted = np.zeros(2), np.zeros(2)
    for first in np.unique(np.linspace(0, max(num_nodes - _SAMPLE_NODES, 0), _NUM_SAMPLES).astype(np.int64)) * size:
        bounds = download(matrix.csr.indptr[first : first + size * _SAMPLE_NODES + 1])
        rows = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))
        columns = download(matrix.csr.indices[bounds[0] : bounds[-1]]).astype(np.int64)
        filled += _blocks_of(rows, columns, size)
        is_inside = (rows > 0) & (rows <= bounds.size - 1 - size)
        shifted += _blocks_of(rows[is_inside] - 1, columns[is_inside] + size - 1, size)
    fills = [entries / max(places, 1) for entries, places in (filled, shifted)]
    return bool(fills[0] >= _FILLED and fills[1] <= _SHIFTED * fills[0])


def _blocks_of(rows: Array, columns: Array, size: int) -> tuple[int, int]:
    """Return the number of entries, and the number of elements of all blocks that contain entries."""
    num_blocks = np.unique(np.stack([rows // size, columns // size]), axis=1).shape[1]
    return rows.size, size * size * num_blocks


HostArray = npt.NDArray[Any]

# x is a least-squares solution if norm(Aᴴ·r) is at most this fraction (or rtol, if larger) of norm(A)·norm(r).
_NORMAL_TOLERANCE = 1e-7


@dataclass(eq=False)
class LinearProblem:
    """The problem A·X = B, with a tolerance for each column, and its best solution so far.

    With damping, A is the caller's A with the rows damp·I below it, and B is the caller's B with rows of zeros below
    it. The least-squares solution then minimizes norm(b − A·x)² + damp²·norm(x)².

    Attributes
    ----------
    A : Operator
    matrix : GpuSparseMatrix or None
        A, if its entries can be read.
    system : LinearSystem
        B and the initial guess on the device, one column after the other.
    tolerances : ndarray, shape (columns,)
        The largest norm that each column of B − A·X may have.
    rtol : float
    x : array, shape (columns * num_cols,)
        The best solution so far.
    residuals : ndarray, shape (columns,)
        The norms of the true residuals of `x`.
    least_squares : bool
        Whether a solution that minimizes the residual is accepted as well.
    num_equations : int
        The number of rows of the caller's A.
    """

    A: Operator
    matrix: Any
    system: LinearSystem
    tolerances: npt.NDArray[np.float64]
    rtol: float
    least_squares: bool
    num_equations: int
    x: Array = field(init=False)
    residuals: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.norms = self.system.norms_of_b()
        self._multiply = self.A.bind(self.device, self.system.dtype, self.columns)
        self.x = self.system.x.copy()
        self.given_b, self.given_tolerances = self.system.b, self.tolerances
        self.residuals = self.true_residuals(self.x)

    @property
    def device(self) -> Device:
        return self.system.device

    @property
    def columns(self) -> int:
        return self.system.columns

    @property
    def is_solved(self) -> bool:
        return bool((self.residuals <= self.tolerances).all())

    @property
    def is_damped(self) -> bool:
        """Whether A consists of the caller's A and the rows damp·I below it."""
        return self.num_equations < self.A.shape[0]

    @property
    def relative_residuals(self) -> npt.NDArray[np.float64]:
        """The norms of the true residuals, divided by the norms of B's columns unless these are 0.

        The residuals are those of the caller's equations. With damping, each call computes them, and synchronizes.
        """
        norms = self.residuals
        if self.is_damped:
            own = self.residual(self.x).reshape(self.columns, -1)[:, : self.num_equations]
            norms = self.system.norms(self.device.xp.ascontiguousarray(own).reshape(-1))
        return norms / np.where(self.norms == 0, 1, self.norms)

    def residual(self, x: Array) -> Array:
        """Return B − A·X."""
        product = self.device.xp.empty_like(self.system.b)
        self._multiply(x, product)
        residual: Array = self.system.b - product
        return residual

    def true_residuals(self, x: Array) -> npt.NDArray[np.float64]:
        """Return the norm of each column of B − A·X; infinity in place of NaN. Synchronizes."""
        with np.errstate(all="ignore"):
            norms = self.system.norms(self.residual(x))
        return np.where(np.isnan(norms), np.inf, norms)

    def replace_b(self, b: Array, tolerances: npt.NDArray[np.float64]) -> None:
        """Replace B by another right-hand side, until `accept` restores the caller's B. Synchronizes."""
        self.system.b, self.tolerances = b, tolerances
        self.residuals = self.true_residuals(self.x)

    def accept(self, x: Array) -> None:
        """Store x as the solution, even with large residuals, and restore the caller's B. Synchronizes."""
        self.system.b, self.tolerances, self.x = self.given_b, self.given_tolerances, x
        self.residuals = self.true_residuals(x)

    def offer(self, x: Array) -> bool:
        """Store the columns of x with smaller residuals than before. Return whether there are any. Synchronizes."""
        residuals = self.true_residuals(x)
        is_better = residuals < self.residuals
        if is_better.any():
            shape = (self.columns, -1)
            mask = self.device.upload(is_better)
            self.x = self.device.xp.where(mask[:, None], x.reshape(shape), self.x.reshape(shape)).reshape(-1)
            self.residuals = np.minimum(residuals, self.residuals)
        return bool(is_better.any())

    def is_least_squares_solution(self) -> bool:
        """Return whether Aᴴ·r is zero for every column, up to `_NORMAL_TOLERANCE` or rtol. Synchronizes."""
        if self.matrix is None:
            return False
        limits = np.full(self.columns, max(self.rtol, _NORMAL_TOLERANCE) * norm(self.matrix))
        is_least = replace(self.system, x=self.x).is_least_squares(limits, adjoint=True)
        return bool((is_least | (self.residuals <= self.tolerances)).all())

    def as_columns(self, flat: Array) -> Array:
        """Return flat memory, which holds one column after the other, as a solver's argument: a vector or a matrix."""
        return flat if self.columns == 1 else flat.reshape(self.columns, -1).T

    def as_flat(self, x: Array) -> Array:
        """Return a solver's result as flat memory, which holds one column after the other."""
        xp = self.device.xp
        return xp.ascontiguousarray(x.reshape(x.shape[0], -1).T).reshape(-1).astype(self.system.dtype, copy=False)
