"""Attempts to solve a problem: one method each, with true residuals and restarts."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gsparse.errors import DeviceMemoryError, FactorizationError
from gsparse.linalg.automatic.direct import solve_directly
from gsparse.linalg.automatic.plan import Trial
from gsparse.linalg.automatic.preconditioners import make_preconditioner
from gsparse.linalg.automatic.problem import LinearProblem
from gsparse.linalg.automatic.properties import MatrixProperties
from gsparse.linalg.norms import norm
from gsparse.linalg.registry import find_method
from gsparse.linalg.result import SolveAttempt, SolveResult

# Cycle length of GMRES. Its basis takes as many vectors.
_RESTART = 60
# A solver monitors a residual of its own (updated, preconditioned, or relative to norm(A)·norm(x)). If it ends and the
# true residual is still too large, it runs again from there, as long as each run reduces the true residual to at most
# this fraction.
_PROGRESS = 0.5
_MAX_RUNS = 4
# A method that ran into its limit of iterations may run again if it reduced the residual to at most this fraction.
_GOOD_PROGRESS = 0.03
# Part of the tolerance that a restarted solver aims at.
_SAFETY = 0.5
# Part of the tolerance that lsmr aims at relative to norm(A)·norm(x), which is larger than norm(b).
_LSMR_SAFETY = 0.01


def try_method(
    problem: LinearProblem,
    candidate: Trial,
    properties: MatrixProperties | None,
    maxiter: int | None,
    progress: bool,
) -> tuple[SolveAttempt, SolveResult | None]:
    """Try one method. The best solution is kept in `problem`. Synchronizes.

    Returns
    -------
    SolveAttempt
        What happened.
    SolveResult or None
        The last result of an iterative solver.
    """
    began = time.perf_counter()
    result, iterations = None, 0
    try:
        if candidate.method == "direct":
            outcome = _solve_with_factors(problem, properties)
        else:
            outcome, result, iterations = _iterate(problem, candidate, properties, maxiter, progress)
    except (FactorizationError, ImportError, DeviceMemoryError) as error:
        outcome = f"impossible: {error}"
    seconds, residual = time.perf_counter() - began, float(problem.relative_residuals.max(initial=0.0))
    return SolveAttempt(candidate.name, candidate.why, outcome, iterations, residual, seconds), result


def _solve_with_factors(problem: LinearProblem, properties: MatrixProperties | None) -> str:
    device, wide = problem.device, np.result_type(problem.system.dtype, np.float64)
    b = device.download(problem.system.b).reshape(problem.columns, -1).T.astype(wide)
    is_singular = properties is not None and (properties.has_constant_null_space or properties.num_empty_rows > 0)
    x = solve_directly(problem.matrix.astype(wide, copy=False), b, least_squares=is_singular)
    better = problem.offer(device.upload(np.ascontiguousarray(x.T.astype(problem.system.dtype)).reshape(-1)))
    return _outcome(problem, "residual no smaller" if not better else "residual still too large")


def _outcome(problem: LinearProblem, otherwise: str) -> str:
    return "converged" if problem.is_solved else otherwise


def _iterate(
    problem: LinearProblem,
    candidate: Trial,
    properties: MatrixProperties | None,
    maxiter: int | None,
    progress: bool,
) -> tuple[str, SolveResult | None, int]:
    """Run an iterative solver until the true residual is small enough, or does not become smaller any more."""
    A, scale = problem.matrix if problem.matrix is not None else problem.A, None
    options: dict[str, Any] = {"progress": progress}
    if candidate.preconditioner == "column_norms":
        A, scale = _scale_columns(problem)
    elif candidate.preconditioner and properties is not None:
        options["M"] = make_preconditioner(candidate.preconditioner, A, properties)
    if candidate.method == "cg" and properties is not None and _is_wider(problem.system.dtype, properties.dtype):
        options["inner_dtype"] = np.float32
    limit, iterations, rtol = candidate.maxiter if maxiter is None else maxiter, 0, problem.rtol
    result: SolveResult | None = None
    for _ in range(_MAX_RUNS):
        before = problem.residuals.copy()
        result = _run(problem, candidate, A, scale, rtol, limit if maxiter is None else limit - iterations, options)
        iterations += result.iterations
        has_no_more = result.info == 0 and result.iterations == 0
        is_least = problem.least_squares and (has_no_more or problem.is_least_squares_solution())
        if problem.is_solved or is_least:
            break
        with np.errstate(invalid="ignore", divide="ignore"):
            reduction = float(np.nanmax(np.where(before <= problem.tolerances, 0, problem.residuals / before)))
            missing = float(np.nanmin(problem.tolerances / problem.residuals))
        has_ended = result.info == 0 or result.is_refuted
        is_stuck = reduction > (_PROGRESS if has_ended else _GOOD_PROGRESS) and result.iterations > 0
        if is_stuck or (maxiter is not None and iterations >= maxiter):
            break
        rtol *= min(_SAFETY * missing, _SAFETY)
    assert result is not None
    return _outcome(problem, result.reason if result.info else "residual still too large"), result, iterations


def _is_wider(dtype: np.dtype[Any], matrix_dtype: np.dtype[Any]) -> bool:
    """Return whether vectors of `dtype` are more precise than the values of the matrix."""
    return bool(np.finfo(dtype).eps < np.finfo(matrix_dtype).eps)


def _run(
    problem: LinearProblem,
    candidate: Trial,
    A: Any,
    scale: Any,
    rtol: float,
    limit: int,
    options: dict[str, Any],
) -> SolveResult:
    """Call the solver once, beginning with the best solution so far."""
    method, b = find_method(candidate.method, "solver"), problem.as_columns(problem.system.b)
    guess = problem.x if scale is None else problem.x / scale
    options = {**options, **method.limits(limit, _RESTART)}
    call = partial(method.function, A, b, x0=problem.as_columns(guess), full_output=True, **options)
    if method.least_squares:
        call = partial(call, atol=_LSMR_SAFETY * rtol, btol=rtol, conlim=0.0)
    else:
        call = partial(call, rtol=rtol)
    with np.errstate(all="ignore"):
        result: SolveResult = call()
        x = problem.as_flat(result.x)
        problem.offer(x if scale is None else x * scale)
    return replace(result, x=problem.x)


def _scale_columns(problem: LinearProblem) -> tuple[Any, Any]:
    """Return the matrix with columns of norm 1, and the factors of the columns, repeated for each right-hand side."""
    matrix, device = problem.matrix, problem.device
    if matrix is None:
        return problem.A, None
    norms = np.asarray(norm(matrix, axis=0), np.float64)
    factors = device.upload((1 / np.where(norms == 0, 1, norms)).astype(problem.system.dtype))
    scaled = matrix.multiply(device.download(factors)[None, :])  # `*` may be the matrix product
    return scaled, device.xp.tile(factors, problem.columns)
