"""PyAMG's smoothers as relaxations that run on a device."""

from __future__ import annotations

from functools import partial
from inspect import getclosurevars
from typing import Any

import numpy as np

from gsparse.linalg.preconditioners.relaxation import (
    Relaxation,
    chebyshev_sizes,
    in_leja_order,
    largest_eigenvalue,
)
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, first_where

__all__ = ["SMOOTHERS", "device_smoother", "relaxation_like"]

# Where the smallest eigenvalue aimed at is, over the largest: a coarse grid takes care of what is below.
_SMOOTHING_RATIO = 0.25


def jacobi(matrix: SquareMatrix, sweeps: int) -> Relaxation:
    """Damp by 4/3 over the largest eigenvalue of D⁻¹A: the best for those from half of it on."""
    inverse = matrix.inverse_diagonal("the smoother jacobi")
    return Relaxation.scaled(
        matrix.device, sweeps * (4 / (3 * largest_eigenvalue(matrix, inverse)),), inverse, "jacobi"
    )


def l1_jacobi(matrix: SquareMatrix, sweeps: int) -> Relaxation:
    """Divide by the sum of a row's magnitudes, with the diagonal's sign: converges for any positive definite A."""
    phases = matrix.inverse_diagonal("the smoother l1_jacobi")
    phases = phases / matrix.device.xp.abs(phases)
    return Relaxation.scaled(matrix.device, sweeps * (1.0,), phases / matrix.row_sums(), "l1_jacobi")


def chebyshev(matrix: SquareMatrix, sweeps: int) -> Relaxation:
    """Take Chebyshev's polynomial of this degree in D⁻¹A."""
    inverse = matrix.inverse_diagonal("the smoother chebyshev")
    high = largest_eigenvalue(matrix, inverse)
    return Relaxation.scaled(
        matrix.device, chebyshev_sizes(_SMOOTHING_RATIO * high, high, sweeps), inverse, "chebyshev"
    )


# By name: ``make(matrix, sweeps)``.
SMOOTHERS = {"jacobi": jacobi, "l1_jacobi": l1_jacobi, "chebyshev": chebyshev}


def device_smoother(matrix: SquareMatrix, sweeps: int, *, hermitian: bool) -> Relaxation:
    """Give what stands for a smoother that goes from row to row: Chebyshev where that is sound, else l1-Jacobi."""
    is_positive = hermitian and first_where(matrix.device, ~(matrix.diagonal.real > 0)) is None
    return chebyshev(matrix, 2 * sweeps) if is_positive else l1_jacobi(matrix, 2 * sweeps)


def relaxation_like(matrix: SquareMatrix, smoother: Any, *, hermitian: bool) -> Relaxation:
    """Give the relaxation that does as a smoother of a PyAMG hierarchy, or what stands for it.

    Parameters
    ----------
    matrix : SquareMatrix
        Of the level.
    smoother : callable
        ``levels[i].presmoother`` or ``postsmoother``.
    hermitian : bool
        Whether the matrix is.
    """
    options = smoother.keywords if isinstance(smoother, partial) else getclosurevars(smoother).nonlocals
    name, iterations = getattr(smoother, "__name__", ""), int(options.get("iterations", 1))
    if name == "none":
        return Relaxation(())
    if name == "jacobi":
        inverse = matrix.inverse_diagonal("the smoother jacobi")
        return Relaxation.scaled(matrix.device, iterations * (float(options["omega"]),), inverse, "jacobi")
    if name == "richardson":
        return Relaxation(iterations * (float(options["omega"]),), name="richardson")
    if name == "chebyshev":
        roots = np.roots([*(-np.asarray(options["coefficients"])), 1.0])  # of what remains of an error
        return Relaxation(iterations * tuple((1 / in_leja_order(roots.real)).tolist()), name="chebyshev")
    sweeps = 2 if options.get("sweep") == "symmetric" else 1
    return device_smoother(matrix, max(1, sweeps * iterations // 2), hermitian=hermitian)
