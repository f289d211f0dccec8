"""Stabilized biconjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import make_system
from gsparse.linalg.krylov.solve_loop import Iteration
from gsparse.linalg.progress import Watch
from gsparse.linalg.registry import register
from gsparse.linalg.result import SolveResult

__all__ = ["PROGRAM", "bicgstab"]

_RHO, _OMEGA = 4, 5  # stop codes: which scalar vanished

# `r` is the residual, and between `half` and `update` that of the half step, s. The next rho, which the direction
# needs, comes from products with s and t before r = s - omega*t is known: so two passes become one, and the four move
# 16 vectors. Where the half step is good enough, omega = 0 lets the rest of the iteration finish it. Whether to go on
# is decided in the next pass, which need not wait for the sums of all blocks.
PROGRAM = Program(
    "bicgstab",
    "x b r shadow p v t p_hat s_hat",
    (
        Step(
            "start",
            each="r = b - t; shadow = r; p = r",
            sums="rr = abs2(r)",
            after="rho = rr; smallest = tiny * rr",
        ),
        Step(
            "project",
            sums="rv = conj(shadow) * v",
            after="""
                record(sqrt(rr))
                stop = 4 if sqrt(abs2(rho)) < smallest else 5 if is_stuck > 0 else 0
                stop = 3 if iteration >= maxiter else stop
                stop = 1 if (sqrt(rr) < tolerance or rr == 0) and (stop != 3 or iteration == 0) else stop
                stop = 2 if isnan(rr) else 1 if is_half > 0 else stop
            """,
            loose=True,
        ),
        Step(
            "half",
            before="alpha = rho / rv",
            each="r -= alpha * v",
            sums="ss = abs2(r)",
            after="alpha = rho / rv; stop = 5 if abs2(rv) == 0 else 0",
            loose=True,
        ),
        Step(
            "stabilize",
            sums="ts = conj(t) * r; tt = abs2(t); shadow_s = conj(shadow) * r; shadow_t = conj(shadow) * t",
            after="""
                is_half = 1 if sqrt(ss) < tolerance or ss == 0 else 0
                is_stuck = 1 if sqrt(abs2(ts)) <= tiny * sqrt(tt) * sqrt(ss) else 0
                omega = 0 if is_half > 0 else ts / tt
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
    _OMEGA: "broke down: the stabilizing step became zero (omega = 0)",
}
_ADVICE = dict.fromkeys(_REASONS, "Begin elsewhere (x0), or use gmres.")


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
        Of SciPy or CuPy. A GpuSparseMatrix (or what becomes one) runs in CUDA graphs without any wait for the host;
        LinearOperators are called twice an iteration.
    b : array, shape (N,) or (N, k)
        NumPy or CuPy. Several right-hand sides are solved side by side, each with scalars of its own.
    x0 : array or "Mb", optional
        Where to begin; 0 by default.
    rtol, atol : float, optional
        It has converged when ``norm(b - A @ x) <= max(rtol * norm(b), atol)``.
    maxiter : int, optional
        10·N by default.
    M : operator, optional
        Approximates the inverse of A, from the right: `gsparse.linalg.ilu0` and its siblings, or what A may be.
    callback : callable, optional
        ``callback(xk)`` after each iteration, a last half one included. The host then waits for each of them.
    full_output : bool, optional
        Give a `SolveResult` (which unpacks as ``x, info`` too).
    progress : bool, optional
        Show a bar (tqdm) with the residual.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    info : int
        0 where it converged, the number of iterations where it did not, -10 or -11 where it broke down. Both are told
        relative to the first residual and to A, so that the scale of neither matters.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

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
    watch = Watch(callback, progress=progress, bounded=maxiter is not None)
    system = make_system(A, b, x0, M)
    with system.solving():
        found = _solve(system, rtol, atol, maxiter, watch)
    return found if full_output else (found.x, found.info)


def _solve(system: Any, rtol: float, atol: float, maxiter: int | None, watch: Watch) -> SolveResult:
    maxiter = 10 * system.A.whole_shape[0] if maxiter is None else maxiter
    unused = {"p_hat": 0, "s_hat": 0} if system.M is None else {}
    it = Iteration(system, PROGRAM, maxiter, sizes=unused, watch=watch)
    tiny = float(np.finfo(system.dtype).eps) ** 2
    it.state.set(tolerance=system.tolerances(rtol, atol), maxiter=maxiter, tiny=tiny)
    if system.M is None:
        update = "update"
        first, second = [it.apply(system.A, "p", "v")], [it.apply(system.A, "r", "t")]
    else:
        update = "preconditioned_update"
        first = [it.apply(system.M, "p", "p_hat"), it.apply(system.A, "p_hat", "v")]
        second = [it.apply(system.M, "r", "s_hat"), it.apply(system.A, "s_hat", "t")]
    begin = [it.apply(system.A, "x", "t")] if system.has_guess else []
    begin += [it.step("start"), *first, it.step("project")]
    body = [it.step("half"), *second, it.step("stabilize"), it.step(update), *first, it.step("project")]
    it.run(begin, body)
    return it.result(reasons=_REASONS, advice=_ADVICE, infos={_RHO: -10, _OMEGA: -11})
