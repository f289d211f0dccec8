"""Chebyshev iteration: no dot products, so nothing to wait for but the residual's norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import System, make_system
from gsparse.linalg.krylov.solve_loop import Iteration
from gsparse.linalg.progress import Watch
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN, CONVERGED, SolveResult

__all__ = ["ESTIMATE", "PROGRAM", "chebyshev"]

_DIVERGED = 4

# With eigenvalues within center ± spread, tau is rho/spread in Saad's notation, where that stays finite for spread = 0.
# Only its first value has one term. One pass moves 7 vectors (with M, two move 9); `advance` touches no vector: a pass
# cannot change scalars that it uses.
PROGRAM = Program(
    "chebyshev",
    "x b r z d q",
    (
        Step("start", each="r = b - q", sums="rr = abs2(r)"),
        Step(
            "advance",
            after="""
                record(sqrt(rr))
                first = rr if iteration == 0 else first
                stop = 3 if iteration >= maxiter else 4 if rr > 1e20 * first else 0
                stop = 2 if isnan(rr) else 1 if sqrt(rr) < tolerance or rr == 0 else stop
                fade = spread2 * tau
                tau = 1 / (terms * center - spread2 * tau)
                fade *= tau
                gain = terms * tau
                terms = 2
            """,
        ),
        Step("direct", each="d = fade * d + gain * z"),
        Step(
            "update",
            each="x += d; r -= q; d = fade * d + gain * r",
            sums="rr = abs2(r)",
            after="iteration += 1",
        ),
        Step("residual", each="x += d; r -= q", sums="rr = abs2(r)", after="iteration += 1"),
    ),
)

# Conjugate gradients from an arbitrary r. They leave beta and 1/alpha in the history, by turns, of which the
# tridiagonal matrix of Lanczos consists: its eigenvalues approximate the outermost ones of M·A.
ESTIMATE = Program(
    "chebyshev_estimate",
    "x b r z p q",
    (
        Step("weigh", sums="rz = real(conj(r) * z)"),
        Step(
            "direction",
            before="beta = rz / rho",
            each="p = z + beta * p",
            after="""
                iteration += 1
                record(rz / rho)
                weight = rz
                least = tiny * rz if iteration == 1 else least
                stop = 2 if rz < 0 else 3 if iteration >= maxiter or isnan(rz) else 1 if rz <= least else 0
            """,
        ),
        Step("curvature", sums="pq = real(conj(p) * q)"),
        Step(
            "update",
            before="alpha = weight / pq",
            each="r -= alpha * q",
            after="""
                iteration += 1
                record(pq / weight)
                rho = weight
                stop = 2 if pq <= 0 else 0
            """,
        ),
    ),
)
# Steps of the estimate, and what its outermost eigenvalues are multiplied by: the largest is found to a few percent and
# may be exceeded by as much as the smallest; the smallest is found much later, and too low costs less than too high.
# Where the residual vanishes before, all eigenvalues are found.
_STEPS = 50
_MARGINS = 0.3, 1.05
_EXACT_MARGINS = 0.99, 1.01


@register("solver")
def chebyshev(
    A: Any,
    b: Array,
    x0: Array | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Array], Any] | None = None,
    full_output: bool = False,
    progress: bool = False,
) -> Any:
    """Solve A·x = b for an A with positive eigenvalues by Chebyshev iteration, with vectors that stay on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        Of SciPy or CuPy. A GpuSparseMatrix (or what becomes one) runs in CUDA graphs without any wait for the host;
        LinearOperators are called once an iteration.
    b : array, shape (N,) or (N, k)
        NumPy or CuPy. Several right-hand sides are solved side by side.
    x0 : array or "Mb", optional
        Where to begin; 0 by default.
    bounds : (float, float), optional
        Between which all eigenvalues of A are, of M·A with a preconditioner; both positive or both negative. Estimated
        where not given, by 50 steps of conjugate gradients: then A has to be Hermitian and positive definite.
    rtol, atol : float, optional
        It has converged when ``norm(b - A @ x) <= max(rtol * norm(b), atol)``.
    maxiter : int, optional
        10·N by default.
    M : operator, optional
        Approximates the inverse of A: `gsparse.linalg.jacobi` and its siblings, or anything that A may be.
    callback : callable, optional
        ``callback(xk)`` after each iteration. The host then waits for each of them.
    full_output : bool, optional
        Give a `SolveResult` (which unpacks as ``x, info`` too).
    progress : bool, optional
        Show a bar (tqdm) with the residual.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    info : int
        0 where it converged, else the number of iterations; it stops early where the residual has grown by 1e10.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError
    ValueError
        If `bounds` are no interval without 0, or are to be estimated and A or M is not positive definite.

    References
    ----------
    .. [1] Y. Saad, "Iterative methods for sparse linear systems", 2nd ed., SIAM, 2003, algorithm 12.1.
    .. [2] G. H. Golub, R. S. Varga, "Chebyshev semi-iterative methods, successive overrelaxation iterative methods, and
       second order Richardson iterative methods", Numer. Math. 3, 1961.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import chebyshev
    >>> S = scipy.sparse.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> x, info = chebyshev(GpuSparseMatrix(S, device="cpu"), numpy.ones(50), bounds=(1, 5), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    if bounds is not None and not (bounds[0] <= bounds[1] and bounds[0] * bounds[1] > 0):
        raise ValueError(f"bounds must be an interval (low, high) without 0, got {bounds}")
    watch = Watch(callback, progress=progress, bounded=maxiter is not None)
    system = make_system(A, b, x0, M)
    with system.solving():
        low, high = _estimate(system) if bounds is None else bounds
        found = _solve(system, low, high, rtol, atol, maxiter, watch)
    return found if full_output else (found.x, found.info)


def _solve(
    system: System, low: float, high: float, rtol: float, atol: float, maxiter: int | None, watch: Watch
) -> SolveResult:
    maxiter = 10 * system.A.whole_shape[0] if maxiter is None else maxiter
    it = Iteration(system, PROGRAM, maxiter, sizes={"z": 0} if system.M is None else {}, watch=watch)
    center, spread = (high + low) / 2, (high - low) / 2
    tolerance = system.tolerances(rtol, atol)
    it.state.set(tolerance=tolerance, maxiter=maxiter, center=center, spread2=spread * spread, terms=1)
    begin = [it.apply(system.A, "x", "q")] if system.has_guess else []
    multiply = it.apply(system.A, "d", "q")
    start = it.step("start")
    if system.M is None:
        advance, direct = it.step("advance"), it.step("direct", z="r")
        begin += [start, advance, direct, advance]
        body = [multiply, it.step("update"), advance]
    else:
        rest = [it.step("advance"), it.apply(system.M, "r", "z"), it.step("direct")]
        begin += [start, *rest]
        body = [multiply, it.step("residual"), *rest]
    it.run(begin, body)
    wide = f"Give wider bounds than ({low:.3g}, {high:.3g}), or use cg, gmres or bicgstab."
    reasons = {_DIVERGED: "diverged: there are eigenvalues outside of the bounds"}
    return it.result(reasons=reasons, advice={_DIVERGED: wide})


def _estimate(system: System) -> tuple[float, float]:
    """Estimate the smallest and the largest eigenvalue of M·A. Synchronizes."""
    it = Iteration(system, ESTIMATE, 2 * _STEPS, sizes={"z": 0} if system.M is None else {})
    it.state.set(maxiter=2 * _STEPS, rho=np.inf, tiny=float(np.finfo(system.dtype).eps) ** 2)
    xp = system.device.xp
    # Any vector will do that is not rich in few eigenvectors: a chirp.
    it.vectors["r"][...] = xp.sin(xp.arange(1, system.x.size + 1, dtype=np.float64) ** 2)
    renamed = {"z": "r"} if system.M is None else {}
    begin = [] if system.M is None else [it.apply(system.M, "r", "z")]
    begin += [it.step("weigh", **renamed), it.step("direction", **renamed)]
    body = [it.apply(system.A, "p", "q"), it.step("curvature"), it.step("update"), *begin]
    it.run(begin, body, per_graph=8)
    if np.any(it.last.stop == BREAKDOWN):
        raise ValueError("A (or M) is not positive definite, so its eigenvalues cannot be estimated: give bounds")
    ritz = np.concatenate([_ritz_values(column) for column in it.residuals.reshape(-1, system.columns).T])
    if not ritz.size:
        return 1.0, 1.0
    margins = _EXACT_MARGINS if np.all(it.last.stop == CONVERGED) else _MARGINS
    return margins[0] * float(ritz.min()), margins[1] * float(ritz.max())


def _ritz_values(history: Any) -> Any:
    """Give the eigenvalues of Lanczos's tridiagonal matrix out of 0, 0, 1/alpha, beta, 1/alpha, beta, ..."""
    history = history[~np.isnan(history)]
    inverse = history[2::2]
    beta = history[3::2][: max(len(inverse) - 1, 0)]
    diagonal, beside = inverse.copy(), np.sqrt(beta) * inverse[:-1]
    diagonal[1:] += beta * inverse[:-1]
    return np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
