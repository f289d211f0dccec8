"""Stabilized biconjugate gradients (van der Vorst 1992), in four passes over vectors per iteration.

    pass         equations                                         scalars                              vectors
    project      v = A·p;  <r̂, v>                                                                       2
    half         s = r - alpha·v;  <s, s>                          alpha = rho / <r̂, v>                 3
    stabilize    t = A·s;  <t, s>, <t, t>, <r̂, s>, <r̂, t>          omega = <t, s> / <t, t>              3
    update       x += alpha·p + omega·s;  r = s - omega·t;         rho = <r̂, s> - omega·<r̂, t>          8
                 p = r + beta·(p - omega·v);  <r, r>               beta = alpha/omega · rho / rho_old

An iteration reads or writes 16 vectors, besides the two products. In the program, r̂ is `shadow`, and s is stored in
`r`. With a preconditioner the products are v = A·M·p and t = A·M·s, and M·p and M·s take the places of p and s in the
update of x.

The new rho is computed from products with s and t, before r = s - omega·t is known: this saves a pass, because the
direction p needs rho. If s is already small enough, omega = 0 makes the rest of the iteration finish the half step.
Convergence is tested in `project`, the pass after `update`, so that `update` does not wait for the sums of all blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import make_linear_system
from gsparse.linalg.krylov.outcome import refute_by_residuals, returned
from gsparse.linalg.krylov.solve_loop import IterationLimit, SolveLoop
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN_INFO, ConvergenceMonitor, SolveResult

_RHO, _OMEGA = 4, 5  # stop codes, named after the scalar that became zero

PROGRAM = Program(
    "bicgstab",
    "x b r shadow p v t p_hat s_hat",
    (
        Step(
            "start",
            each="r = b - t; shadow = r; p = r",
            sums="rr = abs2(r)",
            after="rho = rr; rr_first = rr",
        ),
        Step(
            "project",
            sums="rv = conj(shadow) * v",
            after="""
                record(sqrt(rr))
                stop = 4 if sqrt(abs2(rho / rr_first)) < tiny else 5 if is_stagnant > 0 else 0
                stop = 3 if iteration >= maxiter else stop
                stop = 1 if (sqrt(rr) < tolerance or rr == 0) and (stop != 3 or iteration == 0) else stop
                stop = 2 if isnan(rr) else 1 if is_half_step > 0 else stop
            """,
            may_stop_early=True,
        ),
        Step(
            "half",
            before="alpha = rho / rv",
            each="r -= alpha * v",
            sums="ss = abs2(r)",
            after="alpha = rho / rv; stop = 5 if abs2(rv / rr_first) == 0 else 0",
            may_stop_early=True,
        ),
        Step(
            "stabilize",
            sums="ts = conj(t) * r; tt = abs2(t); shadow_s = conj(shadow) * r; shadow_t = conj(shadow) * t",
            after="""
                is_half_step = 1 if sqrt(ss) < tolerance or ss == 0 else 0
                is_stagnant = 0 if tt > 0 and sqrt(abs2(ts / sqrt(tt) / sqrt(ss))) > tiny else 1
                omega = 0 if is_half_step > 0 or is_stagnant > 0 else ts / tt
                beta = alpha / (rho * omega)
                rho = shadow_s - omega * shadow_t
                beta *= rho
            """,
        ),
        Step(
            "update",
            each="x += alpha * p + omega * r; r -= omega * t; p = r + beta * (p - omega * v)",
            sums="rr = abs2(r)",
            after="iteration += 1",
        ),
        Step(
            "preconditioned_update",
            each="x += alpha * p_hat + omega * s_hat; r -= omega * t; p = r + beta * (p - omega * v)",
            sums="rr = abs2(r)",
            after="iteration += 1",
        ),
    ),
)

_REASONS = {
    _RHO: "broke down: the residual became orthogonal to the first one (rho = 0)",
    _OMEGA: "broke down: a step has a zero denominator, or the stabilizing step became zero (omega = 0)",
}
_ADVICE = dict.fromkeys(_REASONS, "Start from another x0, or use gmres.")


@register("solver")
def bicgstab(
    A: Any,
    b: Array,
    x0: Array | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Array], Any] | None = None,
    full_output: bool = False,
    progress: bool = False,
) -> Any:
    """Solve A·x = b for a general square A by stabilized biconjugate gradients, with vectors that stay on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        The matrix or operator, SciPy's or CuPy's. With a GpuSparseMatrix, or a sparse array, which is converted to one,
        iterations run on the device, on a GPU in CUDA graphs or in one kernel, and do not wait for the host unless
        `callback` or M needs it. A LinearOperator is called twice per iteration.
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
        Right preconditioner: approximates the inverse of A. `gsparse.linalg.ilu0` and its siblings return one; any
        type that A may have is accepted too.
    callback : callable, optional
        Called as ``callback(xk)`` after each iteration, including a final half iteration. The host then waits for every
        iteration.
    full_output : bool, optional
        Return a `SolveResult`, which also unpacks as ``x, info``.
    progress : bool, optional
        Show a progress bar (tqdm) with the residual.

    Returns
    -------
    x : array
        The solution: NumPy or CuPy, as b.
    info : int
        0 if the solve converged, the number of iterations if it did not. If it broke down, -10 because rho became zero,
        or -11 because omega or the denominator of alpha did. These numbers are compared with the first residual and
        with A, so the scaling of the problem does not matter. `info` is 0 only if ``b - A @ x``, computed with one more
        product, exceeds the tolerance by at most a factor of ten.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

    References
    ----------
    .. [1] H. A. van der Vorst, "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG for the solution of
       nonsymmetric linear systems", SIAM J. Sci. Stat. Comput. 13(2), 1992.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import bicgstab
    >>> S = scipy.sparse.diags_array([-1.5, 2.5, -0.5], offsets=[-1, 0, 1], shape=(50, 50))
    >>> x, info = bicgstab(GpuSparseMatrix(S, device="cpu"), numpy.ones(50), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    monitor = ConvergenceMonitor(callback, progress=progress, bounded=maxiter is not None)
    system = make_linear_system(A, b, x0, M)
    with system.solving():
        result = _solve(system, rtol, atol, maxiter, monitor)
    return returned(result, system, full_output)


def _solve(
    system: Any, rtol: float, atol: float, maxiter: IterationLimit | None, monitor: ConvergenceMonitor
) -> SolveResult:
    maxiter = 10 * system.A.whole_shape[0] if maxiter is None else maxiter
    unused = {"p_hat": 0, "s_hat": 0} if system.M is None else {}
    loop = SolveLoop(system, PROGRAM, maxiter, sizes=unused, monitor=monitor)
    tiny = float(np.finfo(system.dtype).eps) ** 2
    loop.state.set(tolerance=system.tolerances(rtol, atol), maxiter=maxiter, tiny=tiny)
    if system.M is None:
        update = "update"
        first, second = [loop.apply(system.A, "p", "v")], [loop.apply(system.A, "r", "t")]
    else:
        update = "preconditioned_update"
        first = [loop.apply(system.M, "p", "p_hat"), loop.apply(system.A, "p_hat", "v")]
        second = [loop.apply(system.M, "r", "s_hat"), loop.apply(system.A, "s_hat", "t")]
    begin = [loop.apply(system.A, "x", "t")] if system.has_guess else []
    begin += [loop.step("start"), *first, loop.step("project")]
    body = [loop.step("half"), *second, loop.step("stabilize"), loop.step(update), *first, loop.step("project")]
    loop.run(begin, body)
    refute_by_residuals(loop, loop.last["tolerance"].real)
    return loop.result(reasons=_REASONS, advice=_ADVICE, infos={**BREAKDOWN_INFO, _RHO: -10, _OMEGA: -11})
