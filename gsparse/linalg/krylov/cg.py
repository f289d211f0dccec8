"""Conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import make_system
from gsparse.linalg.krylov.refinement import refined
from gsparse.linalg.krylov.solve_loop import Iteration
from gsparse.linalg.krylov.symmetry import explained, more_for_hermitian
from gsparse.linalg.progress import Watch
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN, MAXITER, SolveResult

__all__ = ["PROGRAM", "cg"]

# `weight` is the weighted square of the residual that a direction is made for, `rho` that of the direction before: at
# first infinite, so that the first direction is the residual itself. Whether to go on is decided with the direction, in
# the pass that also takes the step of before: it has to read p anyway. An iteration moves ten vectors. That step none
# of its blocks may leave out, so what it decides is a verdict, and `stop` follows in the next pass.
_DECIDE = """
    record(sqrt(rr))
    verdict = 1 if sqrt(rr) < tolerance or rr == 0 else 0
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
            before="beta = rr / rho",
            each="x += alpha * p; p = r + beta * p",
            after=f"weight = rr {_DECIDE}",
        ),
        Step(
            "preconditioned_direction",
            before="beta = rz / rho",
            each="x += alpha * p; p = z + beta * p",
            after=f"weight = rz {_DECIDE}",
        ),
        Step("curvature", sums="pq = conj(p) * q"),
        Step(
            "update",
            before="length = weight / pq",
            each="r -= length * q",
            sums="rr = abs2(r)",
            after="""
                alpha = weight / pq
                iteration += 1 if verdict == 0 else 0
                rho = weight
                is_indefinite = 1 if pq < 0 and verdict == 0 else is_indefinite
                stop = verdict
            """,
            loose=True,
            backward=True,
        ),
    ),
)


@register("solver")
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
    full_output: bool = False,
    progress: bool = False,
) -> Any:
    """Solve A·x = b for a Hermitian, positive definite A by conjugate gradients, with vectors that stay on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        Of SciPy or CuPy. A GpuSparseMatrix (or what becomes one) runs in CUDA graphs without any wait for the host;
        LinearOperators are called once an iteration.
    b : array, shape (N,) or (N, k)
        NumPy or CuPy. Several right-hand sides are solved side by side, each with scalars of its own.
    x0 : array or "Mb", optional
        Where to begin; 0 by default.
    rtol, atol : float, optional
        It has converged when ``norm(b - A @ x) <= max(rtol * norm(b), atol)``.
    maxiter : int, optional
        10·N by default.
    M : operator, optional
        Approximates the inverse of A: `gsparse.linalg.jacobi` and its siblings, or anything that A may be.
    callback : callable, optional
        ``callback(xk)`` after each iteration. The host then waits for each of them.
    inner_dtype : dtype, optional
        With float32, iterate in float32 and refine the solution in b's dtype (`gsparse.linalg.krylov.refinement`). A
        callback is then called after each correction.
    full_output : bool, optional
        Give a `SolveResult` (which unpacks as ``x, info`` too).
    progress : bool, optional
        Show a bar (tqdm) with the residual.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    info : int
        0 where it converged, else the number of iterations.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    References
    ----------
    .. [1] M. R. Hestenes, E. Stiefel, "Methods of conjugate gradients for solving linear systems", J. Res. Natl.
       Bur. Stand. 49(6), 1952.

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
    watch = Watch(callback, progress=progress, bounded=maxiter is not None)
    system = make_system(A, b, x0, M)
    solve = _solve if inner_dtype is None else partial(refined, _solve, inner_dtype)
    with system.solving():
        found = solve(system, rtol, atol, maxiter, watch)
        found = explained(found, system) if full_output else found
    return found if full_output else (found.x, found.info)


def _solve(system: Any, rtol: float, atol: float, maxiter: int | None, watch: Watch) -> SolveResult:
    maxiter = 10 * system.A.whole_shape[0] if maxiter is None else maxiter
    it = Iteration(system, PROGRAM, maxiter, watch=watch)
    it.state.set(tolerance=system.tolerances(rtol, atol), maxiter=maxiter, rho=np.inf)
    begin = [it.apply(system.A, "x", "q"), it.step("start")]
    if system.M is None:
        decide = [it.step("direction")]
    else:
        decide = [it.apply(system.M, "r", "z"), it.step("weigh"), it.step("preconditioned_direction")]
    advance = [*it.apply_and_sum(system.A, "p", "q", "curvature"), it.step("update")]
    it.run([*begin, *decide], [*advance, *decide])
    if it.last["is_indefinite"].any():
        indefinite = "A is not positive definite: use minres, gmres or bicgstab."
        return it.result(advice=dict.fromkeys((BREAKDOWN, MAXITER), indefinite))
    return it.result(advice={MAXITER: more_for_hermitian(system)})
