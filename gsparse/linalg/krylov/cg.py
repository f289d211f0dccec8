"""Conjugate gradients (Hestenes and Stiefel 1952), in three passes over vectors per iteration.

    pass         equations                              scalars                              vectors read and written
    direction    x += alpha·p;  p = r + beta·p          beta = rho / rho_old                 5
    curvature    q = A·p;  <p, q>                       alpha = rho / <p, q>                 2
    update       r -= alpha·q;  <r, r>                  rho = <r, r>                         3

An iteration reads or writes ten vectors, besides the product. Many kernels compute <p, q> together with the product;
then there is no pass `curvature`, and eight vectors remain. With a preconditioner, z = M·r takes the place of r in the
direction, rho is <r, z>, and the pass `weigh`, which computes it, reads two more vectors.

The update of x is postponed to the direction pass of the next iteration, because that pass reads p anyway. Convergence
is decided in the direction pass too. All of its blocks must finish the postponed update, so the decision is stored in
`verdict` first, and the next pass copies it to `stop`. `rho_old` starts at infinity, which makes beta zero and the
first direction equal to the residual.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import LinearSystem, make_linear_system
from gsparse.linalg.krylov.outcome import (
    has_no_solution,
    hermitian_maxiter_advice,
    refute_by_residuals,
    returned,
    with_advice_for_cg,
)
from gsparse.linalg.krylov.refinement import refined
from gsparse.linalg.krylov.single_reduction import run_with_single_reduction
from gsparse.linalg.krylov.solve_loop import IterationLimit, SolveLoop
from gsparse.linalg.krylov.units import SMALLEST_SQUARES
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN, BREAKDOWN_INFO, MAXITER, ROUNDING_ADVICE, ConvergenceMonitor, SolveResult

_BREAKDOWN_ADVICE = (
    "A is not positive definite, or is singular: use minres, or gsparse.linalg.solve(A, b), which finds out whether "
    "b has a solution."
)

# The end of both direction passes: record the residual, and decide whether to stop.
_DECIDE = f"""
    record(sqrt(rr))
    verdict = 1 if sqrt(rr) < tolerance or rr == 0 else 2 if rr < {SMALLEST_SQUARES} else 0
    verdict = 2 if isnan(rr) else 3 if iteration >= maxiter and (iteration > 0 or verdict == 0) else verdict
"""
PROGRAM = Program(
    "cg",
    "x b r z p q",
    (
        Step("start", each="r = b - q", sums="rr = abs2(r)"),
        Step("weigh", sums="rz = conj(r) * z"),
        Step(
            "direction",
            before="beta = rr / rho_old",
            each="x += alpha * p; p = r + beta * p",
            after=f"rho = rr {_DECIDE}",
        ),
        Step(
            "preconditioned_direction",
            before="beta = rz / rho_old",
            each="x += alpha * p; p = z + beta * p",
            after=f"rho = rz {_DECIDE}",
        ),
        Step("curvature", sums="pq = conj(p) * q"),
        Step(
            "update",
            before="alpha = rho / pq if pq != 0 else 0",
            each="r -= alpha * q",
            sums="rr = abs2(r)",
            after="""
                alpha = rho / pq if pq != 0 else 0
                verdict = 2 if verdict == 0 and pq == 0 else verdict
                iteration += 1 if verdict == 0 else 0
                rho_old = rho
                is_indefinite = 1 if pq < 0 and verdict == 0 else is_indefinite
                stop = verdict
            """,
            may_stop_early=True,
            backward=True,
        ),
    ),
)


@register("solver", hermitian=True)
def cg(
    A: Any,
    b: Array,
    x0: Array | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Array], Any] | None = None,
    inner_dtype: Any = None,
    single_reduction: bool = False,
    full_output: bool = False,
    progress: bool = False,
) -> Any:
    """Solve A·x = b for a Hermitian, positive definite A by conjugate gradients, with vectors that stay on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        The matrix or operator, SciPy's or CuPy's. With a GpuSparseMatrix, or a sparse array, which is converted to one,
        iterations run on the device, on a GPU in CUDA graphs or in one kernel, and do not wait for the host unless
        `callback` or M needs it. A LinearOperator is called once per iteration.
    b : array, shape (N,) or (N, k)
        The right-hand side: NumPy or CuPy. Several columns are solved at the same time, each with its own scalars.
    x0 : array or "Mb", optional
        Initial guess; zero by default. "Mb" stands for ``M @ b``.
    rtol, atol : float, optional
        The solve has converged when ``norm(b - A @ x) < max(rtol * norm(b), atol)``. As in SciPy, this is not tested
        after iteration number `maxiter`.
    maxiter : int, optional
        Maximum number of iterations; 10·N by default.
    M : operator, optional
        Preconditioner: approximates the inverse of A. `gsparse.linalg.jacobi` and its siblings return one; any type
        that A may have is accepted too.
    callback : callable, optional
        Called as ``callback(xk)`` after each iteration. The host then waits for every iteration.
    inner_dtype : dtype, optional
        With float32, iterate in float32 (complex64 for a complex system) and refine the solution in the dtype of A and
        b together (`gsparse.linalg.krylov.refinement`). The callback is then called after each correction, and after
        each iteration in that dtype, if corrections no longer help.
    single_reduction : bool, optional
        Compute all inner products of an iteration in one sum over rows and ranks. With a distributed matrix,
        the ranks then wait for each other once per iteration instead of twice, or three times with a preconditioner.
        On one device it saves nothing. See the notes on rounding errors.
    full_output : bool, optional
        Return a `SolveResult`, which also unpacks as ``x, info``.
    progress : bool, optional
        Show a progress bar (tqdm) with the residual.

    Returns
    -------
    x : array
        The solution: NumPy or CuPy, as b.
    info : int
        0 if the solve converged, the number of iterations if it did not, negative if it broke down. `info` is 0 only if
        ``b - A @ x``, computed with one more product, exceeds the tolerance by at most a factor of ten.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

    Notes
    -----
    ``single_reduction=True`` selects the method of Chronopoulos and Gear [2]_, which computes the same x in exact
    arithmetic. <p, A·p> and A·p follow from recurrences [3]_, which move up to three vectors more per
    iteration and which are more sensitive to rounding errors. The difference between the residual that the method
    tracks and b - A·x can become larger than without the option [4]_. If so, b - A·x replaces the tracked
    residual, as in [5]_: it is computed when the tracked residual has reached the tolerance, which takes one more
    product. If it is more than ten times the tolerance, the method begins anew from x, and continues to do so as long
    as this divides the norm of b - A·x by ten.

    An example is the 7-point matrix of a 12×12×12 grid with coefficients that jump by 1e6, whose condition number is
    4e6. Without a preconditioner and with ``rtol=1e-12``, norm(b - A·x) / norm(b) becomes 1e-12 without the option.
    With it, the tracked residual reaches the tolerance where norm(b - A·x) / norm(b) is 4e-11, and the method goes on
    until that is 1e-12 too. With ``M=jacobi(A)``, both take the same number of iterations.

    References
    ----------
    .. [1] M. R. Hestenes, E. Stiefel, "Methods of conjugate gradients for solving linear systems", J. Res. Natl.
       Bur. Stand. 49(6), 1952.
    .. [2] A. T. Chronopoulos, C. W. Gear, "s-step iterative methods for symmetric linear systems", J. Comput. Appl.
       Math. 25(2), 1989.
    .. [3] E. F. D'Azevedo, V. L. Eijkhout, C. H. Romine, "Conjugate gradient algorithms with reduced synchronization
       overhead on distributed memory multiprocessors", LAPACK Working Note 56, 1993.
    .. [4] P. Ghysels, W. Vanroose, "Hiding global synchronization latency in the preconditioned conjugate gradient
       algorithm", Parallel Comput. 40(7), 2014.
    .. [5] H. A. van der Vorst, Q. Ye, "Residual replacement strategies for Krylov subspace iterative methods for the
       convergence of true residuals", SIAM J. Sci. Comput. 22(3), 2000.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> x, info = cg(GpuSparseMatrix(S, device="cpu"), numpy.ones(50), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    monitor = ConvergenceMonitor(callback, progress=progress, bounded=maxiter is not None)
    system = make_linear_system(A, b, x0, M, inner_dtype=inner_dtype)
    solve = partial(_solve, run_with_single_reduction if single_reduction else run)
    solve = solve if inner_dtype is None else partial(refined, solve, inner_dtype)
    with system.solving():
        result = solve(system, rtol, atol, maxiter, monitor)
        result = with_advice_for_cg(result, system, full_output, rtol, atol)
    return returned(result, system, full_output)


def _solve(
    run: Callable[[LinearSystem, float, float, IterationLimit, ConvergenceMonitor], SolveLoop],
    system: LinearSystem,
    rtol: float,
    atol: float,
    maxiter: IterationLimit | None,
    monitor: ConvergenceMonitor,
) -> SolveResult:
    """Run the function `run`, one of the two forms of the method, and return the `SolveResult`."""
    loop = run(system, rtol, atol, 10 * system.A.whole_shape[0] if maxiter is None else maxiter, monitor)
    if loop.last["is_indefinite"].any():
        indefinite = "A is not positive definite: use minres, gmres or bicgstab."
        return loop.result(advice=dict.fromkeys((BREAKDOWN, MAXITER), indefinite), infos=BREAKDOWN_INFO)
    advice = {MAXITER: hermitian_maxiter_advice(system), BREAKDOWN: _BREAKDOWN_ADVICE}
    if _ended_in_rounding_errors(loop):
        advice = dict.fromkeys(advice, ROUNDING_ADVICE)
    return loop.result(advice=advice, infos=BREAKDOWN_INFO)


def _ended_in_rounding_errors(loop: SolveLoop) -> bool:
    """Return whether every failed right-hand side reached a residual of at most eps times its first residual."""
    has_failed = np.isin(loop.last.stop, (BREAKDOWN, MAXITER))
    residuals = loop.residuals.reshape(-1, loop.system.columns)[:, has_failed]
    bounds = np.finfo(loop.system.dtype).eps * residuals[0]
    return bool(has_failed.any() and (np.fmin.reduce(residuals) <= bounds).all())


def run(
    system: LinearSystem, rtol: float, atol: float, maxiter: IterationLimit, monitor: ConvergenceMonitor
) -> SolveLoop:
    """Run conjugate gradients, and return the finished loop. Synchronizes."""
    tolerances = system.tolerances(rtol, atol)
    loop = SolveLoop(
        system, PROGRAM, maxiter, monitor=monitor, is_hopeless=partial(has_no_solution, system, tolerances)
    )
    loop.state.set(tolerance=tolerances, maxiter=maxiter, rho_old=np.inf)
    begin = [loop.apply(system.A, "x", "q"), loop.step("start")]
    if system.M is None:
        decide = [loop.step("direction")]
    else:
        decide = [loop.apply(system.M, "r", "z"), loop.step("weigh"), loop.step("preconditioned_direction")]
    advance = [*loop.apply_and_sum(system.A, "p", "q", "curvature"), loop.step("update")]
    loop.run([*begin, *decide], [*advance, *decide])
    refute_by_residuals(loop, tolerances)
    return loop
