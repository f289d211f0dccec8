"""The end of a solver's call: the true residual of its solution, and one warning if it has not converged."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.errors import ConvergenceWarning
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.krylov.units import ONES, SMALLEST_SQUARES
from gsparse.linalg.result import CONVERGED, SolveResult, first_and_last
from gsparse.matrix.arrays import frames_to_the_caller

# A solution is accepted if b - A·x exceeds the tolerance by at most this factor, because the methods test a residual
# that is found by a recurrence, whose rounding errors are others than those of b - A·x.
_SLACK = 10


def with_true_residual(result: SolveResult, system: LinearSystem) -> SolveResult:
    """Return the result with its `relative_residual`, which takes a product if it is not known yet. Synchronizes.

    The function must be called within `LinearSystem.solving`, and by all ranks that share the vectors.
    """
    if not np.isnan(result.relative_residual).any():
        return result
    return replace(result, relative_residual=_relative(system.residual_norms(), system))


def _relative(norms: npt.NDArray[np.float64], system: LinearSystem) -> float | npt.NDArray[np.float64]:
    """Return norms of b - (A - shift·I)·x divided by norm(b), or undivided where b is zero."""
    relative = norms / system.scales()
    return float(relative[0]) if len(system.shape) == 1 else relative


def refute_by_residuals(
    loop: SolveLoop, tolerances: npt.NDArray[np.float64], claims: Collection[int] = (CONVERGED,)
) -> npt.NDArray[np.float64]:
    """Refute right-hand sides that have converged by the test of the method, but not by b - A·x. Synchronizes.

    Methods compute their residual by a recurrence, which becomes as small as wanted, although b - A·x does not become
    smaller than its rounding errors. The test takes a product. Where b is zero, the tolerance is infinite, and x = 0 is
    the solution.

    Parameters
    ----------
    loop : SolveLoop
    tolerances : ndarray, shape (columns,)
        The norms that the residuals have to reach.
    claims : collection of int
        The stop codes that say that x is a solution.

    Returns
    -------
    ndarray, shape (columns,)
        The norms of the residuals, NaN if no right-hand side has converged.
    """
    system, is_claimed = loop.system, np.isin(loop.last.stop, list(claims)) & np.isfinite(tolerances)
    norms = system.residual_norms() if is_claimed.any() else np.full(system.columns, np.nan)
    loop.is_refuted = is_claimed & ~(norms <= _SLACK * tolerances)
    if system.units is ONES:  # otherwise x may still be rounded
        loop.relative_residual = _relative(norms, system)
    return norms


def refute_by_backward_errors(
    loop: SolveLoop,
    rtol_of_b: float,
    rtol_of_A: float,
    norms_of_A: npt.NDArray[np.float64],
    claims: Collection[int],
    *,
    adjoint: bool,
) -> npt.NDArray[np.bool_]:
    """Refute solutions whose residuals exceed ``rtol_of_b * norm(b) + rtol_of_A * norm(A) * norm(x)``. Synchronizes.

    A residual is refuted if it exceeds this sum by a factor of ten. The second term is limited so that ten times the
    term is at most norm(b), the residual of x = 0: a larger residual is never accepted. In a least-squares solution,
    for which the stop code is not `CONVERGED`, the residual r may be larger if norm(A.H @ r) is at most ten times
    ``rtol_of_A * norm(A) * norm(r)``. This test takes two more products.

    Parameters
    ----------
    loop : SolveLoop
    rtol_of_b, rtol_of_A : float
        The tolerances of the method. Nothing can be more accurate than the machine precision.
    norms_of_A : ndarray, shape (columns,)
        Estimates of the norm of A. Those whose squares over- or underflow count as zero.
    claims : collection of int
        The stop codes that say that x is a solution, also in the sense of least squares.
    adjoint : bool
        Whether A and A.H are different operators.

    Returns
    -------
    ndarray of bool, shape (columns,)
        Whether the residual exceeds its tolerance. If it exceeds ten times that, the solution is refuted as well.
    """
    system, epsilon = loop.system, float(np.finfo(loop.system.dtype).eps)
    is_normal = (norms_of_A > SMALLEST_SQUARES**0.5) & (norms_of_A < SMALLEST_SQUARES**-0.5)
    rtol_of_A, norms_of_A = max(rtol_of_A, epsilon), np.where(is_normal, norms_of_A, 0.0)
    norms_of_b = system.norms_of_b()
    with np.errstate(all="ignore"):
        products = np.nan_to_num(norms_of_A * system.norms(system.x), posinf=0.0)
    tolerances = max(rtol_of_b, epsilon) * norms_of_b + np.minimum(rtol_of_A * products, norms_of_b / _SLACK)
    tolerances[norms_of_b == 0] = np.inf
    norms = refute_by_residuals(loop, tolerances, claims)
    is_doubted = loop.is_refuted & (loop.last.stop != CONVERGED)
    if is_doubted.any():
        loop.is_refuted &= ~(is_doubted & system.is_least_squares(_SLACK * rtol_of_A * norms_of_A, adjoint=adjoint))
    return np.asarray(norms > tolerances)


def returned(result: SolveResult, system: LinearSystem, full_output: bool) -> Any:
    """Return the result in the form that the caller of a solver asked for.

    Without the full output, the caller gets a tuple as from SciPy, and a `ConvergenceWarning` if the solve has not
    converged. A rank does not warn: each rank would repeat the same warning in a process of its own. The process that
    has started the ranks warns instead.
    """
    if full_output:
        return result
    if system.A.ranks is None:
        warn_unless_converged(result)
    return result.in_scipys_form()


def warn_unless_converged(result: SolveResult) -> None:
    """Issue a `ConvergenceWarning` with the reason and the advice, once, if a solve has not converged."""
    if result.info == 0:
        return
    first, last = first_and_last(result.residuals)
    text = (
        f"the solve has not converged: {result.reason} after {result.iterations} iterations; {result.norm} "
        f"{first:.3e} → {last:.3e}. {result.advice} full_output=True returns all residuals and no warning"
    )
    warnings.warn(" ".join(text.split()), ConvergenceWarning, stacklevel=frames_to_the_caller())
