"""Chebyshev iteration (Saad 2003, algorithm 12.1), in one pass over vectors per iteration.

It needs no inner products: the only sum is the norm of the residual, which decides convergence. All eigenvalues of A
(of M·A) have to lie within theta ± delta. tau is rho/delta in Saad's notation, which is finite for delta = 0 too.

    pass       equations                                          scalars                                    vectors
    advance                                                       tau = 1 / (2·theta - delta²·tau_old)       0
    update     x += d;  r -= A·d;  <r, r>;                        d_factor = delta²·tau·tau_old              7
               d = d_factor·d + r_factor·r                        r_factor = 2·tau

With a preconditioner, z = M·r takes the place of r in d, and the pass is split in two: `residual` moves 6 vectors and
`direct` 3. In the first iteration, `factor` is 1 in place of the 2 in these formulas, as in Chebyshev's T₁ = t and Tₖ₊₁
= 2t·Tₖ - Tₖ₋₁. `advance` reads no vectors. It is a separate pass because a pass cannot change scalars that it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.cg import run
from gsparse.linalg.krylov.linear_system import LinearSystem, make_linear_system
from gsparse.linalg.krylov.outcome import refute_by_residuals, returned
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.krylov.solve_state import Snapshot
from gsparse.linalg.krylov.units import ONES
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN_INFO, CONVERGED, ConvergenceMonitor, SolveResult

_DIVERGED = 4

PROGRAM = Program(
    "chebyshev",
    "x b r z d q",
    (
        Step("start", each="r = b - q", sums="rr = abs2(r)"),
        Step(
            "advance",
            after="""
                record(sqrt(rr))
                rr_first = rr if iteration == 0 else rr_first
                stop = 3 if iteration >= maxiter else 4 if rr > 1e20 * rr_first else 0
                stop = 2 if isnan(rr) else 1 if sqrt(rr) < tolerance or rr == 0 else stop
                d_factor = delta2 * tau
                tau = 1 / (factor * theta - delta2 * tau)
                d_factor *= tau
                r_factor = factor * tau
                factor = 2
            """,
        ),
        Step("direct", each="d = d_factor * d + r_factor * z"),
        Step(
            "update",
            each="x += d; r -= q; d = d_factor * d + r_factor * r",
            sums="rr = abs2(r)",
            after="iteration += 1",
        ),
        Step("residual", each="x += d; r -= q", sums="rr = abs2(r)", after="iteration += 1"),
    ),
)

# Number of steps of conjugate gradients by which the smallest and the largest eigenvalue are estimated.
_ESTIMATE_STEPS = 50
# The bounds of the spectrum are these factors times the estimates of the smallest and the largest eigenvalue. The
# largest eigenvalue is known to a few percent. The estimate of the smallest eigenvalue may be far too high; too low a
# bound costs less time than too high a bound.
_MARGINS = 0.3, 1.05
# The factors in place of `_MARGINS` if the residual became zero in these steps, so that the estimates are eigenvalues.
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
        The matrix or operator, SciPy's or CuPy's. With a GpuSparseMatrix, or a sparse array, which is converted to one,
        iterations run on the device, on a GPU in CUDA graphs or in one kernel, and do not wait for the host unless
        `callback` or M needs it. A LinearOperator is called once per iteration.
    b : array, shape (N,) or (N, k)
        The right-hand side: NumPy or CuPy. Several columns are solved at the same time.
    x0 : array or "Mb", optional
        Initial guess; zero by default. "Mb" stands for ``M @ b``.
    bounds : (float, float), optional
        An interval that contains all eigenvalues of A, or of M·A with a preconditioner; both ends are positive or both
        negative. By default the bounds are estimated by 50 steps of conjugate gradients, for which A has to be
        Hermitian and positive definite.
    rtol, atol : float, optional
        The solve has converged when ``norm(b - A @ x) <= max(rtol * norm(b), atol)``.
    maxiter : int, optional
        Maximum number of iterations; 10·N by default.
    M : operator, optional
        Preconditioner: approximates the inverse of A. `gsparse.linalg.jacobi` and its siblings return one; any type
        that A may have is accepted too.
    callback : callable, optional
        Called as ``callback(xk)`` after each iteration. The host then waits for every iteration.
    full_output : bool, optional
        Return a `SolveResult`, which also unpacks as ``x, info``.
    progress : bool, optional
        Show a progress bar (tqdm) with the residual.

    Returns
    -------
    x : array
        The solution: NumPy or CuPy, as b.
    info : int
        0 if the solve converged, the number of iterations if it did not, negative if it broke down. The solve stops
        early if the norm of the residual grows by a factor of 1e10. `info` is 0 only if ``b - A @ x``, computed with
        one more product, exceeds the tolerance by at most a factor of ten.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError
    ValueError
        If `bounds` is not an interval, or contains 0; or if the bounds are to be estimated and A or M is not positive
        definite.

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

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
    if bounds is not None and not (0 < bounds[0] <= bounds[1] or bounds[0] <= bounds[1] < 0):
        raise ValueError(f"bounds must be an interval (low, high) without 0, got {bounds}")
    monitor = ConvergenceMonitor(callback, progress=progress, bounded=maxiter is not None)
    system = make_linear_system(A, b, x0, M, terms=() if bounds is None or M is not None else bounds)
    with system.solving():
        low, high = _estimate(system) if bounds is None else np.ldexp(bounds, _exponent(system)).tolist()
        result = _solve(system, low, high, rtol, atol, maxiter, monitor)
    return returned(result, system, full_output)


def _solve(
    system: LinearSystem,
    low: float,
    high: float,
    rtol: float,
    atol: float,
    maxiter: int | None,
    monitor: ConvergenceMonitor,
) -> SolveResult:
    maxiter = 10 * system.A.whole_shape[0] if maxiter is None else maxiter
    loop = SolveLoop(system, PROGRAM, maxiter, sizes={"z": 0} if system.M is None else {}, monitor=monitor)
    theta, delta = (high + low) / 2, (high - low) / 2
    tolerance = system.tolerances(rtol, atol)
    loop.state.set(tolerance=tolerance, maxiter=maxiter, theta=theta, delta2=delta * delta, factor=1)
    begin = [loop.apply(system.A, "x", "q")] if system.has_guess else []
    multiply = loop.apply(system.A, "d", "q")
    start = loop.step("start")
    if system.M is None:
        advance, direct = loop.step("advance"), loop.step("direct", z="r")
        begin += [start, advance, direct, advance]
        body = [multiply, loop.step("update"), advance]
    else:
        next_direction = [loop.step("advance"), loop.apply(system.M, "r", "z"), loop.step("direct")]
        begin += [start, *next_direction]
        body = [multiply, loop.step("residual"), *next_direction]
    loop.run(begin, body)
    refute_by_residuals(loop, tolerance)
    low, high = np.ldexp((low, high), -_exponent(system))
    wider_bounds = f"Pass wider bounds than ({low:.3g}, {high:.3g}), or use cg, gmres or bicgstab."
    reasons = {_DIVERGED: "diverged: there are eigenvalues outside of the bounds"}
    return loop.result(reasons=reasons, advice={_DIVERGED: wider_bounds}, infos=BREAKDOWN_INFO)


def _exponent(system: LinearSystem) -> int:
    """Return the exponent of the power of two by which the eigenvalues of A, or of M·A with an M, are scaled."""
    return system.units.M - system.units.A


def _estimate(system: LinearSystem) -> tuple[float, float]:
    """Return bounds for the smallest and the largest eigenvalue of the scaled M·A. Synchronizes.

    The scalars of conjugate gradients are the elements of Lanczos's tridiagonal matrix, whose eigenvalues approximate
    the outermost eigenvalues of M·A.
    """
    xp, columns = system.device.xp, system.columns
    # The right-hand side must contain all eigenvectors. A chirp contains all frequencies.
    chirp = xp.sin(xp.arange(1, system.x.size + 1, dtype=np.float64) ** 2).astype(system.dtype)
    # Report the residuals of this solve without converting them to the user's units.
    system = replace(system, b=chirp, x=xp.zeros_like(chirp), has_guess=False, units=ONES, b_norms=None)
    scalars: list[list[tuple[float, float]]] = [[] for _ in range(columns)]

    def keep(loop: SolveLoop, snapshot: Snapshot) -> Snapshot:
        old, new, alpha = (snapshot[name].real for name in ("rho_old", "rho", "alpha"))
        if (old < 0).any() or (new < 0).any() or (alpha <= 0).any():
            raise ValueError("A (or M) is not positive definite, so its eigenvalues cannot be estimated: give bounds")
        for column in np.flatnonzero(snapshot.iterations > [*map(len, scalars)]):
            scalars[column].append((1 / alpha[column], new[column] / old[column]))
        return snapshot

    epsilon = float(np.finfo(system.dtype).eps)
    loop = run(system, epsilon, 0.0, _ESTIMATE_STEPS, ConvergenceMonitor(lambda _: None, keep))
    ritz = np.concatenate([_ritz_values(np.array(column).reshape(-1, 2)) for column in scalars])
    if not ritz.size:
        return 1.0, 1.0
    margins = _EXACT_MARGINS if np.all(loop.last.stop == CONVERGED) else _MARGINS
    return margins[0] * float(ritz.min()), margins[1] * float(ritz.max())


def _ritz_values(scalars: npt.NDArray[np.float64]) -> npt.NDArray[np.floating]:
    """Return the eigenvalues of the tridiagonal Lanczos matrix. A row of `scalars` holds 1/alpha and the next beta."""
    inverse_alpha, beta = scalars[:, 0], scalars[:-1, 1]
    diagonal, off_diagonal = inverse_alpha.copy(), np.sqrt(beta) * inverse_alpha[:-1]
    diagonal[1:] += beta * inverse_alpha[:-1]
    return np.linalg.eigvalsh(np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
