"""The end of a solver's call: the true residual of its solution, and one warning if it has not converged."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from gsparse.errors import ConvergenceWarning
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.result import SolveResult, first_and_last
from gsparse.matrix.arrays import frames_to_the_caller

__all__ = ["returned", "warn_unless_converged", "with_true_residual"]


def with_true_residual(result: SolveResult, system: LinearSystem, shift: float = 0.0) -> SolveResult:
    """Return the result with its `relative_residual`, which takes a product to compute. Synchronizes.

    It is norm(b - (A - shift·I)·x) / norm(b), or the numerator alone where b is zero. The function must be called
    within `LinearSystem.solving`, and by all ranks that share the vectors.
    """
    relative = system.residual_norms(shift) / system.scales()
    return replace(result, relative_residual=float(relative[0]) if len(system.shape) == 1 else relative)


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
