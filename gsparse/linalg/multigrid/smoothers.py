"""The smoothers of multigrid by name: functions ``make(matrix, sweeps, **options)`` that return a `Smoother`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gsparse.linalg.preconditioners.diagonal import BlockRelaxation, inverse_blocks, largest_block_eigenvalue
from gsparse.linalg.preconditioners.gauss_seidel import Direction, make_gauss_seidel
from gsparse.linalg.preconditioners.normal_equations import jacobi_ne, projections
from gsparse.linalg.preconditioners.polynomial import largest_eigenvalue
from gsparse.linalg.preconditioners.relaxation import Relaxation, Smoother, chebyshev_omegas
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# The smallest eigenvalue that Chebyshev smoothers damp, divided by the largest. The coarser level reduces the errors
# that belong to smaller eigenvalues.
_SMOOTHING_RATIO = 0.25


def jacobi(matrix: SquareMatrix, sweeps: int) -> Relaxation:
    """Return Jacobi's method with ω = 4/3 divided by the largest eigenvalue of D⁻¹A.

    This is the best weight for eigenvalues between half of the largest and the largest. The estimate needs no margin,
    because errors are reduced for eigenvalues up to 1.5 times the estimate.
    """
    inverse = matrix.inverse_diagonal("the smoother jacobi")
    omega = 4 / (3 * largest_eigenvalue(matrix, inverse, safety=1.0))
    return Relaxation.by_diagonal(matrix, sweeps * (omega,), inverse, "jacobi")


def l1_jacobi(matrix: SquareMatrix, sweeps: int) -> Relaxation:
    """Return l1-Jacobi, which divides by the sum of magnitudes of each row, with the sign of the diagonal.

    It converges for every Hermitian positive definite A.
    """
    phases = matrix.inverse_diagonal("the smoother l1_jacobi")
    phases = phases / matrix.device.xp.abs(phases)
    return Relaxation.scaled(matrix.device, sweeps * (1.0,), phases / matrix.row_sums(), "l1_jacobi")


def chebyshev(matrix: SquareMatrix, sweeps: int) -> Relaxation:
    """Return a Chebyshev polynomial in D⁻¹A, of degree `sweeps`."""
    return chebyshev_smoother(matrix, sweeps, _SMOOTHING_RATIO)


def chebyshev_smoother(matrix: SquareMatrix, degree: int, ratio: float) -> Relaxation:
    """Return a Chebyshev polynomial in D⁻¹A that damps eigenvalues from `ratio` times the largest to the largest.

    The estimate of the largest eigenvalue needs no margin: errors are also reduced for eigenvalues up to ``1 + ratio``
    times the estimate.
    """
    inverse = matrix.inverse_diagonal("the smoother chebyshev")
    high = largest_eigenvalue(matrix, inverse, safety=1.0)
    return Relaxation.by_diagonal(matrix, chebyshev_omegas(ratio * high, high, degree), inverse, "chebyshev")


def alternating(sweeps: int) -> tuple[Direction, ...]:
    """Return the directions of sweeps that alternate, beginning with a forward sweep."""
    return tuple(bool(sweep % 2) for sweep in range(sweeps))


def gauss_seidel(matrix: SquareMatrix, sweeps: int, *, ordering: str = "auto") -> Smoother:
    """Return Gauss-Seidel's method: forward and backward sweeps alternate."""
    return make_gauss_seidel(matrix, alternating(sweeps), ordering=ordering)


def sor(matrix: SquareMatrix, sweeps: int, *, omega: float = 1.0, ordering: str = "auto") -> Smoother:
    """Return successive over-relaxation: forward and backward sweeps alternate."""
    return make_gauss_seidel(matrix, alternating(sweeps), omega=omega, ordering=ordering)


def block_gauss_seidel(matrix: SquareMatrix, sweeps: int, *, block_size: int = 1, ordering: str = "auto") -> Smoother:
    """Return Gauss-Seidel's method for blocks of rows: forward and backward sweeps alternate."""
    inverses = inverse_blocks(matrix, block_size, "the smoother block_gauss_seidel")
    return make_gauss_seidel(matrix, alternating(sweeps), ordering=ordering, inverses=inverses)


def block_jacobi(matrix: SquareMatrix, sweeps: int, *, block_size: int = 1) -> Smoother:
    """Return Jacobi's method for blocks of rows, with ω = 4/3 divided by the largest eigenvalue of D⁻¹A."""
    inverses = inverse_blocks(matrix, block_size, "the smoother block_jacobi")
    omega = 4 / (3 * largest_block_eigenvalue(matrix, inverses))
    return BlockRelaxation(f"block_jacobi({block_size})", sweeps * ((omega, inverses),))


def gauss_seidel_ne(
    matrix: SquareMatrix, sweeps: int, *, ordering: str = "auto", of_residual: bool = False
) -> Smoother:
    """Return Kaczmarz's method, or gauss_seidel_nr if `of_residual`: forward and backward sweeps alternate."""
    return projections(matrix, alternating(sweeps), of_residual=of_residual, ordering=ordering)


# Functions ``make(matrix, sweeps, **options)`` by the name of the smoother.
SMOOTHERS: dict[str, Callable[..., Smoother]] = {
    "jacobi": jacobi,
    "l1_jacobi": l1_jacobi,
    "chebyshev": chebyshev,
    "gauss_seidel": gauss_seidel,
    "sor": sor,
    "block_jacobi": block_jacobi,
    "block_gauss_seidel": block_gauss_seidel,
    "jacobi_ne": jacobi_ne,
    "gauss_seidel_ne": gauss_seidel_ne,
    "gauss_seidel_nr": partial(gauss_seidel_ne, of_residual=True),
}


def parallel_smoother(matrix: SquareMatrix, sweeps: int, *, hermitian: bool) -> Smoother:
    """Return the best smoother for a matrix, with the work of `sweeps` symmetric Gauss-Seidel sweeps.

    This is a Chebyshev polynomial if the matrix is Hermitian with a positive diagonal, otherwise Gauss-Seidel's method.
    """
    is_positive = hermitian and matrix.has_positive_diagonal()
    return chebyshev(matrix, 2 * sweeps) if is_positive else gauss_seidel(matrix, 2 * sweeps)
