"""Attempts to solve a problem, each with one method: a factorization, or a solver with a preconditioner."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.dtypes import Array
from gsparse.errors import DeviceMemoryError, FactorizationError
from gsparse.linalg.automatic.plan import Trial
from gsparse.linalg.automatic.problem import LinearProblem, MatrixProperties
from gsparse.linalg.direct.factorization import Factorization, choose_library
from gsparse.linalg.direct.host_factors import SUPERLU, estimate_operations
from gsparse.linalg.norms import norm
from gsparse.linalg.preconditioners.diagonal import DiagonalPreconditioner
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, as_matrix, reciprocals
from gsparse.linalg.registry import find_method
from gsparse.linalg.result import SolveAttempt, SolveResult
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

# A least-squares problem with at most this many rows and columns is solved by a dense singular value decomposition, in
# about a second.
_DENSE = 600
# A matrix with at most this many rows is factorized on the host without an estimate of the time. Dense factors of 2 000
# rows take 64 MB and a second.
_SMALL = 2000
# Largest estimated number of operations of a factorization on the host: about a minute at 1 Gflop/s. The estimate is
# for an envelope method, which takes at least as many operations as SuperLU with a minimum degree order.
_MAX_OPERATIONS = 5e10
# Number of steps of iterative refinement.
_REFINEMENTS = 3


def solve_directly(A: Any, b: npt.NDArray[Any], *, least_squares: bool = False) -> npt.NDArray[Any]:
    """Solve A·X = B with a factorization, or minimize the norm of B − A·X. Synchronizes.

    Parameters
    ----------
    A : sparse array, shape (M, N)
        In double precision. Which libraries can factorize it depends on its device.
    b : ndarray, shape (M, k)
        On the host.
    least_squares : bool
        Whether to compute a least-squares solution for a small square matrix, which may be singular.

    Returns
    -------
    ndarray, shape (N, k)
        The solution. For a rectangular matrix, and with `least_squares` for a square one of at most 600 rows, this is
        the least-squares solution with the smallest norm.

    Raises
    ------
    FactorizationError
        If the matrix is singular, or a factorization would take too long.
    DeviceMemoryError
        If the factors do not fit into memory.
    """
    matrix: Any = as_matrix(A, "solve")
    if max(matrix.shape) <= _DENSE and (least_squares or matrix.shape[0] != matrix.shape[1]):
        solution: npt.NDArray[Any] = np.linalg.lstsq(matrix.toarray(), b, rcond=None)[0]
        return solution
    if matrix.shape[0] != matrix.shape[1]:
        return _solve_augmented(sp.csr_array(matrix), b, matrix.device)
    return _solve_square(matrix, b)


def _solve_square(A: Any, b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Solve with a factorization. If a library for GPUs fails, use SuperLU, which exchanges rows.

    Libraries for GPUs exchange rows within small blocks only, and so fail for some regular matrices.
    """
    if choose_library(None, A.device, "general")[0].runs_on_host:
        _check_cost(A)
        return _solve_with(None, A, b)
    try:
        return _solve_with(None, A, b)
    except FactorizationError:
        _check_cost(A)
        return _solve_with(SUPERLU.name, A, b)


def _check_cost(A: Any) -> None:
    """Raise an error if a factorization on the host would take too long."""
    if A.shape[0] <= _SMALL:
        return
    S = sp.csr_array(A)
    S.sum_duplicates()
    if estimate_operations(S) > _MAX_OPERATIONS:
        raise FactorizationError("a factorization would take more than a minute, as estimated from the envelope")


def _solve_with(library: str | None, A: Any, b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Factorize A with a library (None: the fastest), solve A·X = B, and refine the solutions."""
    factors = Factorization(A, library=library, name="solve")
    with np.errstate(all="ignore"):
        x = factors.solve(b)
        best, smallest = x, np.linalg.norm(b - A @ x)
        for _ in range(_REFINEMENTS):
            x = x + factors.solve(b - A @ x)
            norm = np.linalg.norm(b - A @ x)
            if not norm < smallest / 2:
                break
            best, smallest = x, norm
    if not np.isfinite(best).all():
        raise FactorizationError("the matrix is singular to working precision")
    solution: npt.NDArray[Any] = best
    return solution


def _solve_augmented(S: sp.csr_array, b: npt.NDArray[Any], device: Any) -> npt.NDArray[Any]:
    """Solve a least-squares problem of full rank as a square system (Björck 1967).

    With more equations than unknowns, solve s·y + A·x = b and Aᴴ·y = 0, where s·y is the residual. With fewer
    equations, find the solution with the smallest norm: x − Aᴴ·y = 0 and A·x = b.
    """
    rows, columns = S.shape
    scale = float(np.median(abs(S.data))) if S.nnz else 1.0
    is_tall, zeros = rows >= columns, np.zeros((columns, b.shape[1]), b.dtype)
    tall = S if is_tall else S.conj().T
    system = sp.block_array([[scale * sp.eye_array(tall.shape[0]), tall], [tall.conj().T, None]], format="csr")
    right = np.concatenate([b, zeros] if is_tall else [zeros, b])
    x = _solve_square(GpuSparseMatrix(system, device=device), right)
    return x[rows:] if is_tall else x[:columns]


def make_preconditioner(name: str, A: Any, properties: MatrixProperties) -> Any:
    """Return the preconditioner `name` for a matrix, with options that suit its properties. Synchronizes.

    Raises
    ------
    FactorizationError
        If the preconditioner cannot be computed for this matrix.
    """
    if name == "absolute_diagonal":
        return absolute_diagonal(A)
    method = find_method(name, "preconditioner")
    options: dict[str, Any] = {}
    if properties.block_size > 1 and "block_size" in method.signature.parameters:
        options["block_size"] = properties.block_size
    if properties.dtype.char in "fF" and name == "amg":
        options["dtype"] = np.float32
    return method.function(A, **options)


def absolute_diagonal(A: Any) -> DiagonalPreconditioner:
    """Return a diagonal preconditioner: 1/|d| for each element d of the diagonal of A, also if some d are zero.

    Where d is zero, the diagonal of B·D⁻¹·Bᴴ takes its place, which approximates the Schur complement of a saddle point
    [[D, Bᴴ], [B, 0]]. The preconditioner is positive definite, as `minres` requires (A. Wathen, "Preconditioning", Acta
    Numerica 24, 2015).
    """

    def invert(matrix: SquareMatrix, _: Any) -> Array:
        xp = matrix.device.xp
        inverse = reciprocals(xp, magnitude := xp.abs(matrix.diagonal))
        squares = matrix.csr.with_data(xp.abs(matrix.csr.data) ** 2)
        schur, dtype = xp.empty_like(inverse), np.dtype(inverse.dtype)
        matrix.operator_of(squares, products=1).bind(matrix.device, dtype)(inverse, schur)
        return xp.where(magnitude == 0, reciprocals(xp, schur, 1), inverse).astype(matrix.dtype, copy=False)

    with SquareMatrix.of(A, "absolute_diagonal") as matrix:
        return DiagonalPreconditioner(matrix, "absolute_diagonal", invert)


# Iterations per cycle of GMRES. The basis of a cycle has as many vectors.
_RESTART = 60
# A solver tests a residual of its own (updated, preconditioned, or relative to norm(A)·norm(x)). If the solver ends,
# but the true residual is too large, the solver continues from its solution. This is repeated as long as each run
# multiplies the true residual by at most this factor.
_PROGRESS = 0.5
_MAX_RUNS = 4
# A method that reached its limit of iterations may run again if it reduced the residual to at most this fraction.
_GOOD_PROGRESS = 0.03
# A solver that runs again aims at this fraction of the tolerance.
_SAFETY = 0.5
# lsmr gets the tolerance times this factor, because its test is relative to norm(A)·norm(x), which exceeds norm(b).
_LSMR_SAFETY = 0.01


def try_method(
    problem: LinearProblem,
    candidate: Trial,
    properties: MatrixProperties | None,
    maxiter: int | None,
    progress: bool,
) -> tuple[SolveAttempt, SolveResult | None]:
    """Try one method, and store the best solution in `problem`. Synchronizes.

    Returns
    -------
    SolveAttempt
        The record of the attempt.
    SolveResult or None
        The result of the iterative solver's last run; None for factors, or if the method is impossible.
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
    """Run an iterative solver until the true residual is small enough or stagnates.

    Return the outcome, the result of the last run, and the number of iterations of all runs.
    """
    A, scale = problem.matrix if problem.matrix is not None else problem.A, None
    options: dict[str, Any] = {"progress": progress}
    if candidate.preconditioner == "column_norms":
        A, scale = _scale_columns(problem)
    elif candidate.preconditioner and properties is not None:
        options["M"] = make_preconditioner(candidate.preconditioner, A, properties)
    if candidate.method == "cg" and properties is not None:
        # The vectors are more precise than the values of the matrix.
        is_wider = np.finfo(problem.system.dtype).eps < np.finfo(properties.dtype).eps
        options |= {"inner_dtype": np.float32} if is_wider else {}
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


def _run(
    problem: LinearProblem,
    candidate: Trial,
    A: Any,
    scale: Any,
    rtol: float,
    limit: int,
    options: dict[str, Any],
) -> SolveResult:
    """Call the solver once, starting from the best solution so far."""
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
    """Return the matrix with columns scaled to norm 1, and their scale factors, one copy per right-hand side."""
    matrix, device = problem.matrix, problem.device
    if matrix is None:
        return problem.A, None
    norms = np.asarray(norm(matrix, axis=0), np.float64)
    factors = device.upload((1 / np.where(norms == 0, 1, norms)).astype(problem.system.dtype))
    scaled = matrix.multiply(device.download(factors)[None, :])  # `*` would be the matrix product if A is an spmatrix
    return scaled, device.xp.tile(factors, problem.columns)
