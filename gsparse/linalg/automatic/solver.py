"""`solve`: examine A, try methods in order until one converges, and report which one and why."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.interchange import DenseInput
from gsparse.errors import ConvergenceWarning
from gsparse.linalg.automatic.attempts import try_method
from gsparse.linalg.automatic.plan import Trial, least_squares, methods_for, methods_for_operator
from gsparse.linalg.automatic.problem import LinearProblem, MatrixProperties, examine
from gsparse.linalg.krylov.linear_system import LinearSystem, make_linear_system, parse_right_hand_side
from gsparse.linalg.krylov.units import ONES
from gsparse.linalg.operators import MatrixOperator, Operator, as_operator, device_for, solve_dtype
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, as_matrix
from gsparse.linalg.registry import ask_matrix, checked
from gsparse.linalg.result import OUT_OF_RANGE, SolveAttempt, SolveResult, describe
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.matrix.assembly import vstack
from gsparse.matrix.simple_matrices import eye_array

# Default of rtol, from the bytes of a real number; and the smallest rtol that single precision can reach.
RTOL = {8: 1e-8, 4: 1e-5}
_SINGLE_RTOL = 2e-6


@checked
def solve(
    A: Any,
    b: Array,
    *,
    rtol: float | None = None,
    atol: float = 0.0,
    x0: Array | None = None,
    maxiter: int | None = None,
    damp: float = 0.0,
    progress: bool = False,
) -> SolveResult:
    """Solve A·x = b, with a method and a preconditioner that are chosen for the matrix.

    The choice depends on the shape, on symmetry up to rounding, on the diagonal (its signs, zeros and dominance), on
    the number of unknowns per node, and on whether A maps constant vectors to zero. If a method breaks down, stagnates,
    reaches its limit of iterations, or cannot be set up for this matrix, the next one continues from the best solution
    so far:

    ======================================  =======================================================================
    A                                       methods, in this order
    ======================================  =======================================================================
    up to 2 000 rows and columns            a factorization, and then as below (a square matrix that has an empty
                                            row, or that maps constant vectors to zero, begins below)
    symmetric, positive and strongly        cg with jacobi, and then as below
    dominant diagonal
    symmetric, positive diagonal            cg with amg; cg with ic0; minres with jacobi; factorization; gmres with
                                            ilu0; lsmr with scaled columns
    symmetric, indefinite                   minres with the magnitude of the diagonal (and of the Schur complement's,
                                            where the diagonal is zero); factorization; gmres with ilu0; minres; lsmr
                                            with scaled columns
    not symmetric, an M-matrix (such as     fgmres with amg, and then as below
    convection–diffusion)
    not symmetric                           gmres with ilu0; factorization; bicgstab with ilu0; gmres with ilu0 of
                                            exchanged rows (instead of the first method if the diagonal has zeros);
                                            gmres with gauss_seidel; lsmr with scaled columns
    rectangular, or damped                  lsmr; lsmr with scaled columns; factorization of the augmented system
    an operator without entries             gmres; bicgstab; or lsmr if it is rectangular
    ======================================  =======================================================================

    Factorizations are those of `factorized`: by cuDSS on a GPU if it is installed, otherwise on the host. On the host,
    a matrix of more than 2 000 rows is factorized only if this is estimated to take less than a minute. Everything else
    runs on A's device, except for the choice of the rows to exchange.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array, DistributedMatrix or LinearOperator, shape (M, N)
        The matrix or operator, SciPy's or CuPy's. A distributed matrix is not factorized as a whole, and takes no
        `damp`. If it is rectangular, norm(b - A·x) is minimized. Integers are
        converted to float64.
    b : array, shape (M,) or (M, k)
        The right-hand side: NumPy or CuPy. Several columns are solved at the same time.
    rtol, atol : float, optional
        The solve has converged when ``norm(b - A @ x) <= max(rtol * norm(b), atol)`` for every column; rtol is 1e-8 by
        default, or 1e-5 if A and b are in single precision. This is checked with a product, not with a solver's own
        estimate. If A is rectangular, the solve has also converged when x minimizes the residual r = b - A·x: when
        ``norm(A.H @ r) <= max(rtol, 1e-7) * norm(A) * norm(r)``. If `damp` is not 0, A and r in this test have the rows
        of damping, damp·I and -damp·x.
    x0 : array, shape (N,) or (N, k), optional
        Initial guess; zero by default.
    maxiter : int, optional
        Maximum number of iterations of each method; by default, each has its own limit. For `gmres`, too, it counts
        iterations and not cycles.
    damp : float, optional
        Minimize ``norm(b - A @ x)**2 + damp**2 * norm(x)**2``, which is ridge regression with the parameter damp²,
        instead of solving A·x = b. A may have any shape, and is copied with the rows damp·I below it. 0 by default.
    progress : bool, optional
        Show a progress bar (tqdm) of each method.

    Returns
    -------
    SolveResult
        Unpacks as ``x, info``. Its attributes `method` and `why` name the choice, `attempts` lists what was tried, and
        `relative_residual` is norm(b - A·x) / norm(b) of x as it is returned. `info` is 0 if the solve converged,
        otherwise the number of all iterations, at least 1. x is NumPy or CuPy, as b, and has the dtype of A and b, or
        double precision if rtol is smaller than 2e-6.

    Raises
    ------
    ValueError
        If A, b or x0 holds NaN or infinity, rtol is not between 0 and 1, atol, damp or maxiter is negative, or damp is
        not finite.
    TypeError
        If A is no matrix or operator, or maxiter is no integer, or if damp is not 0 for an
        operator, whose entries cannot be read.
    ShapeError, DeviceError, DeviceMemoryError

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged. This includes a square, singular A with a b that is not in its range: x then
        minimizes the residual, if a method has found that x.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import solve
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> result = solve(GpuSparseMatrix(S, device="cpu"), numpy.ones(50))
    >>> result.info, result.method, bool(result.relative_residual < 1e-8)
    (0, 'direct', True)
    >>> print(result.why)
    50 rows: a factorization takes milliseconds
    """
    options = {"rtol": rtol, "atol": atol, "x0": x0, "maxiter": maxiter, "damp": damp, "progress": progress}
    result = ask_matrix(A, "solve", (b,), options)
    if result is not NotImplemented:
        return cast(SolveResult, result)
    began = time.perf_counter()
    problem, properties = _make_problem(A, b, rtol, atol, x0, damp)
    with problem.device.active(), problem.device.memory_guard():
        removed = _remove_constant(problem, properties)
        attempts, result = _try_all(problem, _candidates(problem, properties), properties, maxiter, progress)
        finished = _finish(problem, properties, attempts, result, removed, began)
    if finished.info:
        warnings.warn(
            f"solve: {finished.reason}. {finished.advice}", ConvergenceWarning, stacklevel=frames_to_the_caller()
        )
    return finished


def _make_problem(
    A: Any, b: Any, rtol: float | None, atol: float, x0: Any, damp: float
) -> tuple[LinearProblem, MatrixProperties | None]:
    """Check the arguments. Return the problem, and the properties of A (None for an operator). Synchronizes."""
    if hasattr(A, "__gsparse_call__"):
        raise TypeError("solve reads the entries of a matrix on one device: call cg, gmres or another solver instead")
    b_input = parse_right_hand_side(b)
    device = device_for(A, b_input.array)
    operator, matrix = _as_operator(A, device)
    num_equations, num_unknowns = operator.shape
    if not 0 <= damp < np.inf:
        raise ValueError(f"damp must be a finite number that is not negative, got {damp!r}")
    if damp:
        if matrix is None:
            raise TypeError("damp needs a matrix, and A is an operator without entries: call lsmr(A, b, damp=...)")
        with device.active(), device.memory_guard():
            matrix, b_input = _add_damping(matrix, b_input, damp)
        operator = MatrixOperator(matrix)
    least_squares = bool(damp) or num_equations != num_unknowns
    dtype = solve_dtype(operator, b_input)
    single = dtype.char in "fF"
    rtol = RTOL[4 if single else 8] if rtol is None else float(rtol)
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol must be at least 0 and less than 1, got {rtol}")
    if single and rtol < _SINGLE_RTOL:
        dtype = np.dtype(np.result_type(dtype, np.float64))
    system = make_linear_system(operator, b_input, x0, square=False, dtype=dtype)
    with device.active(), device.memory_guard():
        culprits = system.nonfinite_inputs()
        if culprits:
            verb = "holds" if len(culprits) == 1 else "hold"
            raise ValueError(f"solve needs finite values: {' and '.join(culprits)} {verb} NaN or infinity")
        tolerances = system.tolerances(rtol, atol)
        tolerances = np.where(np.isinf(tolerances), 0.0, tolerances)  # if b = 0, the exact solution is 0
        rtol = _common_rtol(system, tolerances, rtol)
        if isinstance(system.A, MatrixOperator):
            matrix = system.A.matrix  # the scaled matrix
        problem = LinearProblem(system.A, matrix, system, tolerances, rtol, least_squares, num_equations)
        properties = None
        if matrix is not None and not least_squares:
            with SquareMatrix.of(matrix, "solve") as square:
                properties = examine(square)
        elif matrix is not None:
            properties = MatrixProperties(num_equations, num_unknowns, int(matrix.nnz), np.dtype(matrix.dtype))
    return problem, properties


def _add_damping(matrix: Any, b: DenseInput, damp: float) -> tuple[Any, DenseInput]:
    """Return A with the rows damp·I appended, and b with zeros appended for these rows. Synchronizes."""
    size = matrix.shape[1]
    dtype = matrix.dtype if matrix.dtype.kind in "fc" else np.dtype(np.float64)
    rows = eye_array(size, dtype=dtype, device=matrix.device).multiply(damp)
    xp = np if b.gpu is None else b.gpu.xp
    padding = [(0, size), *[(0, 0)] * (b.ndim - 1)]
    return vstack([matrix, rows], format="csr"), replace(b, array=xp.pad(b.array, padding))


def _as_operator(A: Any, device: Any) -> tuple[Operator, Any]:
    """Return A as an operator, and A as a matrix or None if its entries cannot be read."""
    if isinstance(A, MatrixOperator):
        return A, A.matrix
    if isinstance(A, Operator) or (hasattr(A, "matvec") and not hasattr(A, "tocsr")):
        return as_operator(A, device), None
    matrix = as_matrix(A, "solve")
    return MatrixOperator(matrix), matrix


def _common_rtol(system: LinearSystem, tolerances: Any, rtol: float) -> float:
    """Return the largest rtol with which a solver, which gets no atol, meets the tolerance of every column."""
    norms = system.norms_of_b()
    ratios = [tolerance / norm for tolerance, norm in zip(tolerances, norms, strict=True) if norm]
    return max(min(ratios, default=rtol), rtol)


def _candidates(problem: LinearProblem, properties: MatrixProperties | None) -> tuple[Trial, ...]:
    if properties is None:
        return methods_for_operator(*problem.A.shape)
    return least_squares(properties) if problem.least_squares else methods_for(properties)


def _remove_constant(problem: LinearProblem, properties: MatrixProperties | None) -> float:
    """Remove the mean of b if A is Hermitian and maps constants to zero, as in a pure Neumann problem.

    Return the norm of the removed part divided by norm(b), the largest of all columns. A norm within the tolerance
    counts as 0. Synchronizes.
    """
    if not _has_free_constant(properties):
        return 0.0
    columns = problem.system.b.reshape(problem.columns, -1)
    means = columns.mean(axis=1, keepdims=True)
    norms = np.abs(problem.device.download(means)).reshape(-1) * np.sqrt(columns.shape[1])  # synchronizes
    shares, is_larger = norms / np.where(problem.norms == 0, 1, problem.norms), norms > problem.tolerances
    # The removed part of b remains in the final residual if its norm is within the tolerance. It is orthogonal to the
    # rest of the residual, and the squares of both norms add up; so the rest has a smaller tolerance.
    part = np.where(is_larger, 0, norms / np.where(problem.tolerances == 0, 1, problem.tolerances))
    problem.replace_b((columns - means).reshape(-1), problem.tolerances * np.sqrt(1 - part**2))
    return float(np.where(is_larger, shares, 0).max())


def _has_free_constant(properties: MatrixProperties | None) -> bool:
    """Return whether solutions are determined only up to a constant, so that b must have the mean 0."""
    return properties is not None and properties.has_constant_null_space and properties.is_hermitian


def _try_all(
    problem: LinearProblem,
    candidates: tuple[Trial, ...],
    properties: MatrixProperties | None,
    maxiter: int | None,
    progress: bool,
) -> tuple[list[SolveAttempt], SolveResult | None]:
    """Try methods until one solves the problem. Return all attempts, and the last result of an iterative solver."""
    attempts: list[SolveAttempt] = []
    last = None
    for candidate in candidates:
        attempt, result = try_method(problem, candidate, properties, maxiter, progress)
        is_least = problem.least_squares and not problem.is_solved and problem.is_least_squares_solution()
        attempts.append(replace(attempt, outcome="least-squares solution") if is_least else attempt)
        last = result or last
        if problem.is_solved or is_least:
            break
    return attempts, last


def _finish(
    problem: LinearProblem,
    properties: MatrixProperties | None,
    attempts: list[SolveAttempt],
    result: SolveResult | None,
    removed: float,
    began: float,
) -> SolveResult:
    """Return the best solution, with its true residual and the verdict whether it has converged. Synchronizes."""
    last, why = attempts[-1], attempts[-1].why
    is_solved_without_removed_part = problem.is_solved
    if _has_free_constant(properties):
        why += "; the matrix is singular: solutions differ by a constant, and x has the mean 0"
        columns = problem.x.reshape(problem.columns, -1)
        problem.accept((columns - columns.mean(axis=1, keepdims=True)).reshape(-1))
    problem.system.x = problem.x
    is_out_of_range = bool(problem.system.columns_out_of_range().any())  # rounds x
    if problem.system.units is not ONES:
        problem.accept(problem.system.x)
    info, reason, advice = _verdict(problem, attempts, removed, is_solved_without_removed_part)
    if is_out_of_range:
        info, reason, advice = attempts[0].iterations + 1, describe(OUT_OF_RANGE, {}), ""
    result = result if last.iterations else None
    relative, in_units = problem.relative_residuals, problem.system.norms_of_caller
    return SolveResult(
        problem.system.deliver(problem.x),
        info,
        sum(attempt.iterations for attempt in attempts),
        np.zeros(0) if result is None else in_units(result.residuals),
        reason,
        advice,
        time.perf_counter() - began,
        norm="residual" if result is None else result.norm,
        method=last.method,
        why=why,
        attempts=(*attempts[:-1], replace(last, why=why)),
        relative_residual=float(relative[0]) if problem.columns == 1 else relative,
        normal_residuals=np.zeros(0)
        if result is None or not result.normal_residuals.size
        else in_units(result.normal_residuals, problem.system.units.A),
    )


def _verdict(
    problem: LinearProblem, attempts: list[SolveAttempt], removed: float, is_solved_without_removed_part: bool
) -> tuple[int, str, str]:
    """Return `info`, the reason for the end of the solve, and advice. Synchronizes."""
    failed = max(sum(attempt.iterations for attempt in attempts), 1)
    if removed:
        reason = f"the matrix is singular, and {removed:.1e} of b is constant, for which there is no solution"
        if is_solved_without_removed_part:
            return failed, reason, "x solves the system without that part of b. Subtract the mean of b."
        reason += f"; without that part, no method reached rtol={problem.rtol:.1e}"
        return failed, reason, "Subtract the mean of b, and increase rtol or maxiter."
    if problem.is_solved:
        return 0, "converged", ""
    if problem.is_least_squares_solution():
        if problem.least_squares:
            minimized = "norm(b - A·x)² + damp²·norm(x)²" if problem.is_damped else "norm(b - A·x)"
            return 0, f"converged: x minimizes {minimized}", ""
        reason = "A is singular and b is not in its range: x minimizes norm(b - A·x)"
        return failed, reason, "Check b, or the equations that make A singular."
    largest_residual = float(problem.relative_residuals.max())
    reason = f"no method reached rtol={problem.rtol:.1e}, the residual is {largest_residual:.1e}"
    return failed, reason, "Increase rtol or maxiter, or scale the equations and unknowns."
