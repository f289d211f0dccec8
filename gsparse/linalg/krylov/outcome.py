"""The end of a solver's call: the true residual of its solution, and one warning if it has not converged."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.errors import ConvergenceWarning
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.krylov.units import SMALLEST_SQUARES
from gsparse.linalg.result import CONVERGED, SolveResult, first_and_last
from gsparse.matrix.arrays import frames_to_the_caller

__all__ = [
    "refute_beyond_squares",
    "refute_by_residuals",
    "returned",
    "warn_unless_converged",
    "with_true_residual",
]

# Factor by which b - A·x may exceed the tolerance, where a recurrence says that it does not.
_SLACK = 10


def with_true_residual(result: SolveResult, system: LinearSystem) -> SolveResult:
    """Return the result with its `relative_residual`, which takes a product to compute. Synchronizes.

    It is norm(b - (A - shift·I)·x) / norm(b), or the numerator alone where b is zero. The function must be called
    within `LinearSystem.solving`, and by all ranks that share the vectors.
    """
    relative = system.residual_norms() / system.scales()
    return replace(result, relative_residual=float(relative[0]) if len(system.shape) == 1 else relative)


def refute_by_residuals(
    loop: SolveLoop, tolerances: npt.NDArray[np.float64], per_norm_of_x: npt.ArrayLike = 0.0
) -> None:
    """Let true residuals decide where the recurrence of a residual may have lost touch with b - A·x.

    That is where rounding errors of the first residual may be larger than the tolerance: the residual of a recurrence
    becomes as small as wanted. It takes a product if a right-hand side that has converged is such a case. Synchronizes.
    `per_norm_of_x` times norm(x) is added to the tolerances.
    """
    system, has_converged = loop.system, loop.last.stop == CONVERGED
    if not has_converged.any():
        return
    is_doubted = has_converged & (loop.last.iterations > 0)
    first_norms = np.ldexp(loop.residuals[:1].reshape(-1), -system.units.b)
    has_lost_digits = np.finfo(system.dtype).eps * first_norms > tolerances
    is_doubted &= has_lost_digits | (system.has_doubtful_x() & np.isfinite(tolerances))
    if is_doubted.any():
        with np.errstate(all="ignore"):
            tolerances = tolerances + np.asarray(per_norm_of_x) * system.norms(system.x)
            loop.is_refuted |= is_doubted & ~(system.residual_norms() <= _SLACK * tolerances)


def refute_beyond_squares(loop: SolveLoop, rtol: float, *names: str, adjoint: bool) -> None:
    """Let a product decide about a solution if the square of one of these norms over- or underflows. Synchronizes.

    `rtol` and `adjoint` are those of `LinearSystem.solves`.
    """
    norms = np.array([loop.last[name].real for name in names])
    is_inside = ((norms > SMALLEST_SQUARES**0.5) & (norms < SMALLEST_SQUARES**-0.5)).all(axis=0)
    is_doubted = (~is_inside | loop.system.has_doubtful_x()) & (loop.system.norms_of_b() != 0)
    if is_doubted.any():
        loop.is_refuted |= is_doubted & ~loop.system.solves(rtol, adjoint=adjoint)


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
