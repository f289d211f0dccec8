"""Smoothers for the normal equations, which converge for indefinite and strongly nonsymmetric matrices.

    gauss_seidel_ne     A·Aᴴ·y = b, x = Aᴴ·y     projections of x on the solutions of one row at a time (Kaczmarz)
    gauss_seidel_nr     Aᴴ·A·x = Aᴴ·b            projections of the residual on one column at a time
    jacobi_ne           A·Aᴴ·y = b, x = Aᴴ·y     all rows at once (Cimmino)

The adjoint of `gauss_seidel_ne` for A is `gauss_seidel_nr` for Aᴴ, with its projections in the reverse order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call
from gsparse.linalg.preconditioners.gauss_seidel import Direction, Sweeps
from gsparse.linalg.preconditioners.relaxation import BoundSmoother, OperatorRelaxation, Relax, Smoother
from gsparse.linalg.preconditioners.row_order import OrderedMatrix, find_levels, resolve_ordering
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# A matrix may have at most this many pairs of entries in the same column, per entry. With more pairs, `jacobi_ne` is
# used instead: a dense column makes all rows depend on each other, so that each group would have only one row.
_MAX_PAIRS = 512


@dataclass(frozen=True, eq=False, kw_only=True)
class Projections(Sweeps):
    """Projections on the rows of a matrix G, each of which uses the newest values.

    Attributes
    ----------
    matrix : OrderedMatrix
        G: the matrix A, or Aᴴ for projections of the residual.
    weights : array, shape (num_rows,)
        ω divided by the squared norm of each row of G; 0 for empty rows.
    of_residual : bool
        Whether the residual is projected ("nr"); otherwise x is projected ("ne").
    """

    of_residual: bool

    def leaves(self, adjoint: bool) -> Literal["nothing", "b", "the residual"]:
        return "the residual" if self.of_residual != adjoint else "nothing"

    def relaxation(self, bound: BoundSmoother) -> Relax:
        passes, matrix, directions = bound.passes, self.matrix, self.directions_of(bound)
        of_residual = self.of_residual != bound.adjoint
        # A sweep reads the CSR arrays of G twice, to multiply and to add, and also b, x and the weights.
        bind = partial(
            kernels_of(passes.device).relaxation.bind_projections,
            passes.device, matrix.rows(passes.dtype), matrix.levels, matrix.items(self.weights, passes.dtype),
            passes.columns,
        )  # fmt: skip
        sweeps = {backward: bind(backward, of_residual) for backward in {*directions}}

        def relax(x: Array, b: Array, r: Array, guess: bool, residual: bool) -> list[Call]:
            calls: list[Call] = [] if guess else [partial(x.fill, 0)]
            if of_residual:
                calls += bound.residual(x, b, r)[: 2 if guess else 1]
            vectors = (r, x) if of_residual else (x, b)
            return [*calls, *(partial(sweeps[backward], *vectors) for backward in directions)]

        return relax


def projections(
    matrix: SquareMatrix,
    directions: tuple[Direction, ...],
    *,
    of_residual: bool,
    omega: float = 1.0,
    ordering: str = "auto",
) -> Smoother:
    """Return projections of x on the rows of A, or of the residual on the columns of A. Synchronizes.

    Return `jacobi_ne` instead if a column is so long that too many rows depend on each other.

    Parameters
    ----------
    matrix : SquareMatrix
    directions : tuple of bool
        For each sweep, whether it is a backward one.
    of_residual : bool
        Whether this is "gauss_seidel_nr" instead of "gauss_seidel_ne".
    omega : float
    ordering : {"auto", "natural", "wavefront", "multicolor"}
        The order of the projections. Two projections depend on each other if their rows have a column in common.
    """
    name = f"gauss_seidel_{'nr' if of_residual else 'ne'}"
    key = (name, ordering)
    if key not in matrix.shared:
        matrix.shared[key] = _ordered_rows(matrix, ordering, of_residual)
    ordered = matrix.shared[key]
    if ordered is None:
        return replace(jacobi_ne(matrix, len(directions)), replaces=name)
    return Projections(ordered, _weights(matrix, ordered.csr, omega), directions, name, of_residual=of_residual)


def _ordered_rows(matrix: SquareMatrix, ordering: str, of_residual: bool) -> OrderedMatrix | None:
    """Return the rows of A or Aᴴ in the order of visits; None if too many rows share columns. Synchronizes."""
    device, csr, kernels = matrix.device, matrix.csr, kernels_of(matrix.device)
    ordering = resolve_ordering(device, csr, ordering)
    transposed = kernels.transpose.csr_transpose(device, csr)
    if of_residual:
        csr, transposed = transposed.with_data(device.xp.conj(transposed.data)), csr
    if ordering == "natural" and not kernels.triangular.NEEDS_LEVELS:
        return OrderedMatrix(device, csr, ordering, None)
    squares = (transposed.indptr[1:] - transposed.indptr[:-1]).astype(np.float64) ** 2
    if float(squares.sum()) > _MAX_PAIRS * max(csr.nnz, 1):  # synchronizes
        return None
    one, other = (part.with_data(device.xp.ones(part.nnz, np.float32)) for part in (csr, transposed))
    graph = kernels.sparse_products.spgemm(device, one, other)
    return OrderedMatrix(device, csr, ordering, find_levels(device, graph, ordering))


def _weights(matrix: SquareMatrix, csr: Csr, omega: float) -> Array:
    """Return ω divided by the squared norm of each row of G; 0 for empty rows."""
    xp, device = matrix.device.xp, matrix.device
    longest = int(xp.diff(csr.indptr).max()) if csr.num_rows else 0  # synchronizes
    sums = kernels_of(device).reductions.sum_entries(device, csr.indptr, csr.data, "square", longest)
    weights: Array = xp.where(sums == 0, 0, omega / xp.where(sums == 0, 1, sums)).astype(matrix.dtype)
    return weights


def jacobi_ne(matrix: SquareMatrix, sweeps: int, omega: float | None = None) -> OperatorRelaxation:
    """Return Cimmino's method, x += ω·Aᴴ·D⁻¹·(b − A·x) with the diagonal D of A·Aᴴ. Synchronizes.

    Parameters
    ----------
    matrix : SquareMatrix
    sweeps : int
    omega : float, optional
        By default 1 divided by an upper bound of the largest eigenvalue of D⁻¹·A·Aᴴ. Then the method converges.
    """
    weights = _weights(matrix, matrix.csr, 1.0)
    scaled = matrix.csr.with_data(matrix.csr.data * weights[matrix.rows])
    operator = matrix.operator_of(scaled)
    if omega is None:
        omega = 1.0 / _largest_square(matrix, scaled)
    return OperatorRelaxation("jacobi_ne", sweeps * ((omega, operator, True),))


def _largest_square(matrix: SquareMatrix, scaled: Csr) -> float:
    """Return Gershgorin's bound for the eigenvalues of D⁻¹·A·Aᴴ: the largest row sum of magnitudes. Synchronizes."""
    device, xp = matrix.device, matrix.device.xp
    if not matrix.size:
        return 1.0
    one, two = (matrix.operator_of(csr.with_data(xp.abs(csr.data)), products=1) for csr in (matrix.csr, scaled))
    dtype = np.dtype(one.dtype)
    ones, column_sums, row_sums = xp.ones(matrix.size, dtype), *(xp.empty(matrix.size, dtype) for _ in range(2))
    one.bind(device, dtype, adjoint=True)(ones, column_sums)
    two.bind(device, dtype)(column_sums, row_sums)
    return float(row_sums.max()) or 1.0  # synchronizes
