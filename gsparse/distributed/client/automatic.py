"""`gsparse.linalg.solve` for a distributed matrix. Methods that work only on a single device are left out."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.distributed.worker import solve_tasks
from gsparse.errors import ConvergenceWarning, FactorizationError
from gsparse.linalg.automatic.plan import Trial, least_squares, methods_for
from gsparse.linalg.automatic.problem import ROUNDING, STRONG, MatrixProperties
from gsparse.linalg.automatic.solver import RTOL
from gsparse.linalg.registry import METHODS
from gsparse.linalg.result import SolveAttempt, SolveResult
from gsparse.matrix.arrays import frames_to_the_caller

# Iterations after which GMRES restarts.
_CYCLE = 50


def solve_on_workers(
    A: Any,
    b: Any,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    x0: Any = None,
    maxiter: int | None = None,
    damp: float = 0.0,
    progress: bool = False,
) -> SolveResult:
    """Solve A·x = b on the workers of A; see `gsparse.linalg.solve`.

    The whole matrix is not factorized, but preconditioners may factorize each worker's diagonal block. Each method
    starts from the solution of the method before it.
    """
    if damp:
        raise TypeError("damp needs a matrix on one device: call lsmr(A, b, damp=damp) for a distributed matrix")
    began, attempts = time.perf_counter(), list[SolveAttempt]()
    result: SolveResult | None = None
    single = np.result_type(A.dtype, b.dtype if hasattr(b, "dtype") else np.asarray(b).dtype).char in "fF"
    rtol = RTOL[4 if single else 8] if rtol is None else rtol
    properties = _examined(A)
    given = {"rtol": rtol, "atol": atol, "progress": progress}
    for trial in _trials(properties):
        start = time.perf_counter()
        try:
            new = _attempt(A, b, x0, trial, given, maxiter or trial.maxiter)
        except FactorizationError as error:
            attempts.append(SolveAttempt(trial.name, trial.why, str(error), 0, np.nan, time.perf_counter() - start))
            continue
        result, x0, outcome = new, new.x, new.reason if new.info else "converged"
        largest, seconds = float(np.max(new.relative_residual)), time.perf_counter() - start
        attempts.append(SolveAttempt(trial.name, trial.why, outcome, new.iterations, largest, seconds))
        if not new.info:
            break
    if result is None:
        raise FactorizationError("; ".join(str(attempt) for attempt in attempts))
    last = attempts[-1]
    result = replace(
        result,
        iterations=sum(attempt.iterations for attempt in attempts),
        seconds=time.perf_counter() - began,
        method=last.method,
        why=last.why,
        attempts=tuple(attempts),
    )
    if result.info:
        warnings.warn(f"solve: {result.reason}. {result.advice}", ConvergenceWarning, stacklevel=frames_to_the_caller())
    return result


def _attempt(A: Any, b: Any, x0: Any, trial: Trial, given: dict[str, Any], maxiter: int) -> SolveResult:
    """Solve with the method and the preconditioner of a trial. `given` has the other arguments of the solver."""
    method, rtol = METHODS[trial.method], given["rtol"]
    if method.least_squares:
        given = {**given, "atol": rtol, "btol": rtol}
    given = {**given, **method.limits(maxiter, _CYCLE), "x0": x0}
    given = {name: value for name, value in given.items() if name in method.signature.parameters and value is not None}
    if trial.preconditioner:
        options = {"block_size": None} if trial.preconditioner == "amg" else {}
        given["M"] = METHODS[trial.preconditioner].function(A, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result: SolveResult = method.function(A, b, full_output=True, **given)
    return result


def _trials(properties: MatrixProperties) -> list[Trial]:
    """Return the methods to try, in this order. All of them run on a distributed matrix."""
    is_square = properties.num_rows == properties.num_cols
    trials = methods_for(properties) if is_square else least_squares(properties)
    return [
        trial
        for trial in trials
        if trial.method in METHODS and (not trial.preconditioner or trial.preconditioner in METHODS)
    ]


def _examined(A: Any) -> MatrixProperties:
    """Return the properties of a matrix from which methods are chosen."""
    base = MatrixProperties(A.shape[0], A.shape[1], A.nnz, A.dtype)
    if A.shape[0] != A.shape[1] or not A.shape[0]:
        return base
    eps = float(np.finfo(A.dtype).eps) if A.dtype.kind in "fc" else 0.0
    diagonal, totals = A.diagonal(), np.abs(A.sum(axis=1))
    with abs(A) as magnitudes, A.real as real, real > 0 as greater:
        sums, positive_entries = magnitudes.sum(axis=1), greater.nnz
    others, rounding = sums - np.abs(diagonal), ROUNDING * eps * sums
    group = A._rank_group
    with group.exclusive():
        group.reconnect()
        is_hermitian = group.call_together(solve_tasks.is_hermitian)
    counts = (
        np.abs(diagonal) >= others - rounding,
        others <= STRONG * np.abs(diagonal),
        totals <= rounding,
        diagonal.real > 0,
        diagonal == 0,
        sums == 0,
    )
    dominant, strong, zero_sums, positive, zero, empty = (int(np.count_nonzero(mask)) for mask in counts)
    negative = A.nnz - positive_entries
    found = base.with_counts(dominant, strong, zero_sums, negative, positive, zero, empty)
    return replace(found, is_hermitian=all(is_hermitian))
