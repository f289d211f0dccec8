"""Minimum residuals (Paige and Saunders 1975), in two passes over vectors per iteration, three with a preconditioner.

Lanczos vectors are not normalized: r2 is the last one and r1 the one before it; with a preconditioner y = M·r2 and
v = M·r1, otherwise y = r2 and v = r1. beta = sqrt(<r2, y>) is an off-diagonal element of the tridiagonal matrix of
Lanczos, and alpha a diagonal one. An iteration begins with the product q = A·y of the iteration before; A stands for
A - shift·I:

    pass             equations                                                                           vectors
    orthogonalize    r2_new = q/beta - beta/beta_old·r1 - alpha/beta·r2;  <r2, r2>                       5
    update           w_new = (v/beta_old - epsln_old·w_old - delta·w) / gamma;  x += phi·w_new;          9
                     alpha = <y, q/beta - beta/beta_old·r1> / beta;  <x, x>

An iteration moves 14 vectors, besides those of the product q = A·y between the two passes. With a preconditioner,
`orthogonalize` also copies y to v (7 vectors), `weigh` computes <r2, M·r2> (2), and `update` moves 10: 19 in all. The
update of x needs the norm of the next Lanczos vector, on which gamma depends. So it shares a pass with the alpha of the
next row.

The previous rotation (cs, sn) acts on (dbar, alpha, beta), and a new rotation turns (gbar, beta) into (gamma, 0). The
other scalars have the names of SciPy's `minres`, whose alfa, oldb and oldeps are alpha, beta_old and epsln_old here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import LinearSystem, make_linear_system
from gsparse.linalg.krylov.outcome import (
    hermitian_maxiter_advice,
    not_hermitian,
    refute_by_backward_errors,
    returned,
    with_symmetry_advice,
)
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN_INFO, CONVERGED, MAXITER, REFUTED, ConvergenceMonitor, SolveResult

# Stop codes in addition to the common ones. All except _INDEFINITE mean success.
_LEAST_SQUARES, _ACCURATE, _SINGULAR, _EIGENVECTOR, _INDEFINITE = 4, 5, 6, 7, 8

# Compute the new beta, the new rotation, and the scalars that it changes. The first beta is the norm of the first
# residual, so it says nothing about A. SciPy compares this beta with the second one, includes it in tnorm2, and
# compares gamma with eps. So SciPy stops too early if norm(b) is much larger than norm(A), or if norm(A) is small.
_ROTATE = """
    beta_old = beta
    beta = sqrt(bb)
    stop = 2 if isnan(bb) else 8 if bb < 0 else 0
    tnorm2 += alpha * alpha + bb + (beta_old * beta_old if iteration > 0 else 0)
    rounding = eps * sqrt(tnorm2)
    is_eigenvector = 1 if iteration == 0 and beta <= 10 * rounding else 0
    epsln_old = epsln
    delta = cs * dbar + sn * alpha
    gbar = sn * dbar - cs * alpha
    epsln = sn * beta
    dbar = -cs * beta
    root = sqrt(gbar * gbar + dbar * dbar)
    gamma = sqrt(gbar * gbar + bb)
    gamma = gamma if gamma > rounding else rounding if rounding > 0 else eps
    cs = gbar / gamma
    sn = beta / gamma
    phi = cs * phibar
    phibar = sn * phibar
    gmax = gamma if gamma > gmax else gmax
    gmin = gamma if gamma < gmin else gmin
"""
# The diagonal element alpha, and the coefficients of the next orthogonalization.
_DIAGONAL = """
    alpha = real(yt) / beta
    inverse_beta = 1 / beta
    beta_over_beta_old = beta / beta_old
    alpha_over_beta = alpha / beta
"""

PROGRAM = Program(
    "minres",
    "x b r1 r2 y v w w_old q",
    (
        Step("start", each="r2 = b - q + shift * x"),
        Step(
            "begin",
            sums="bb = conj(r2) * y",
            after="""
                beta = sqrt(bb)
                beta1 = beta
                phibar = beta
                record(beta)
                stop = 2 if isnan(bb) else 8 if bb < 0 else 1 if bb == 0 or b_is_zero > 0 else 3 if maxiter <= 0 else 0
            """,
        ),
        Step(
            "project",
            before="inverse_beta = 1 / beta",
            each="u = inverse_beta * (q - shift * y)",
            sums="yt = conj(y) * u",
            after=_DIAGONAL,
        ),
        Step(
            "orthogonalize",
            each="""
                u = inverse_beta * (q - shift * r2) - beta_over_beta_old * r1 - alpha_over_beta * r2
                r1 = r2
                r2 = u
            """,
            sums="bb = abs2(r2)",
            after=_ROTATE,
        ),
        Step(
            "preconditioned_orthogonalize",
            each="""
                u = inverse_beta * (q - shift * y) - beta_over_beta_old * r1 - alpha_over_beta * r2
                r1 = r2
                r2 = u
                v = y
            """,
        ),
        Step("weigh", sums="bb = real(conj(r2) * y)", after=_ROTATE),
        Step(
            "update",
            before="""
                inverse_beta = 1 / beta
                inverse_beta_old = 1 / beta_old
                beta_over_beta_old = beta / beta_old
                inverse_gamma = 1 / gamma
            """,
            each="""
                w_new = inverse_gamma * (inverse_beta_old * v - epsln_old * w_old - delta * w)
                w_old = w
                w = w_new
                x += phi * w_new
                u = inverse_beta * (q - shift * y) - beta_over_beta_old * r1
            """,
            sums="xx = abs2(x); yt = conj(y) * u",
            after=f"""
                {_DIAGONAL}
                iteration += 1
                record(phibar)
                anorm = sqrt(tnorm2)
                anorm_xnorm = anorm * sqrt(xx)
                test1 = phibar / anorm_xnorm if anorm_xnorm > 0 else 1e300
                test2 = root / anorm if anorm > 0 else 1e300
                stop = 1 if test1 <= eps / 2 else 4 if test2 <= eps / 2 else 0
                stop = 6 if gmax >= 0.1 * gmin / eps else 3 if iteration >= maxiter else stop
                stop = 1 if test1 <= rtol else 4 if test2 <= rtol else 5 if anorm_xnorm * eps >= beta1 else stop
                stop = 7 if is_eigenvector > 0 else stop
            """,
        ),
    ),
)

_REASONS = {
    CONVERGED: "passed the test norm(r) <= rtol·norm(A)·norm(x)",
    _LEAST_SQUARES: "found a least-squares solution: norm(A·r) <= rtol·norm(A)·norm(r)",
    _ACCURATE: "as accurate as the arithmetic allows",
    _SINGULAR: "A is nearly singular: x has converged to an eigenvector",
    _EIGENVECTOR: "the right-hand side is an eigenvector",
}


_REFUTED_ADVICE = (
    "norm(A)·norm(x) is too large to measure the residual by: pass a smaller rtol, scale rows and columns of A to "
    "similar norms, or use cg or gmres."
)


@register("solver", hermitian=True)
def minres(
    A: Any,
    b: Array,
    x0: Array | None = None,
    *,
    rtol: float = 1e-5,
    shift: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Array], Any] | None = None,
    show: bool = False,
    check: bool = False,
    full_output: bool = False,
    progress: bool = False,
) -> Any:
    """Solve (A - shift·I)·x = b for a Hermitian A, indefinite or singular too, by minimum residuals on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        The matrix or operator, SciPy's or CuPy's. With a GpuSparseMatrix, or a sparse array, which is converted to one,
        iterations run on the device, on a GPU in CUDA graphs, and do not wait for the host unless `callback` or M
        needs it. A LinearOperator is called once per iteration.
    b : array, shape (N,) or (N, k)
        The right-hand side: NumPy or CuPy. Several columns are solved at the same time, each with its own scalars.
    x0 : array or "Mb", optional
        Initial guess; zero by default. "Mb" stands for ``M @ b``.
    rtol : float, optional
        The solve has converged when ``norm(r) <= rtol * norm(A) * norm(x)``. If there is no solution, it has converged
        to a least-squares solution when ``norm(A @ r) <= rtol * norm(A) * norm(r)``. norm(A) is estimated.
    shift : float, optional
        Subtracted from the diagonal of A.
    maxiter : int, optional
        Maximum number of iterations; 5·N by default.
    M : operator, optional
        Preconditioner: approximates the inverse of A. It must be Hermitian and positive definite.
    callback : callable, optional
        Called as ``callback(xk)`` after each iteration. The host then waits for every iteration.
    show : bool, optional
        Print the residual of each iteration and the reason for stopping, after the solve.
    check : bool, optional
        Check that A and M are Hermitian, which takes two more products with A (three with an initial guess) and two
        more with M.
    full_output : bool, optional
        Return a `SolveResult`, which also unpacks as ``x, info``.
    progress : bool, optional
        Show a progress bar (tqdm) with the residual.

    Returns
    -------
    x : array
        The solution: NumPy or CuPy, as b.
    info : int
        0 if x passed the test, also as a least-squares solution, or cannot become more accurate because of rounding
        errors or a nearly singular A (see `reason`). Otherwise the number of iterations, or a negative number if the
        solve broke down. The test is confirmed with one more product: `info` is not 0 if norm(r) is larger than
        norm(b), or ten times larger than the test says, or larger than that if A or M is not Hermitian.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError
    ValueError
        If M turns out to be indefinite, or `check` finds that A or M is not Hermitian.

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

    Notes
    -----
    The number of iterations does not depend on the units of A and b. SciPy's `minres` also compares with absolute
    numbers, so that it may stop earlier or later where A or b is far from 1.

    References
    ----------
    .. [1] C. C. Paige, M. A. Saunders, "Solution of sparse indefinite systems of linear equations", SIAM J. Numer.
       Anal. 12(4), 1975.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import minres
    >>> S = scipy.sparse.diags_array([1.0, -0.5, 1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> x, info = minres(GpuSparseMatrix(S, device="cpu"), numpy.ones(50), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    monitor = ConvergenceMonitor(callback, progress=progress, bounded=maxiter is not None)
    system = make_linear_system(A, b, x0, M, terms=(shift,))
    system.shift = float(np.ldexp(shift, -system.units.A))
    with system.solving():
        if check and (names := not_hermitian(system)):
            what = "matrix" if "A" in names else "preconditioner"
            raise ValueError(f"non-symmetric {what}: use gmres or bicgstab")
        result = _solve(system, rtol, maxiter, monitor)
        result = with_symmetry_advice(result, system, full_output or show)
    return returned(result, system, full_output, show)


def _solve(system: LinearSystem, rtol: float, maxiter: int | None, monitor: ConvergenceMonitor) -> SolveResult:
    maxiter = 5 * system.A.whole_shape[0] if maxiter is None else maxiter
    unused = {"y": 0, "v": 0} if system.M is None else {}
    norm = "residual" if system.M is None else "preconditioned residual sqrt(<r, M r>)"
    exponent = -system.units.M // 2  # the exponent of M is even
    loop = SolveLoop(system, PROGRAM, maxiter, sizes=unused, monitor=monitor, norm=norm, norm_exponent=exponent)
    info = np.finfo(system.dtype)
    # The tolerance is infinite for each column of b that is zero, because x = 0 is its solution.
    b_is_zero = np.isinf(system.tolerances(0, 0))
    loop.state.set(
        b_is_zero=b_is_zero, maxiter=maxiter, rtol=rtol, shift=system.shift, eps=float(info.eps), beta_old=np.inf,
        cs=-1, gmin=float(info.max),
    )  # fmt: skip
    begin = [loop.apply(system.A, "x", "q")] if system.has_guess else []
    begin += [loop.step("start")]
    if system.M is None:
        y, expand, precondition = {"y": "r2"}, [loop.step("orthogonalize")], []
    else:
        y, precondition = {}, [loop.apply(system.M, "r2", "y")]
        expand = [loop.step("preconditioned_orthogonalize"), *precondition, loop.step("weigh")]
    multiply = loop.apply(system.A, y.get("y", "y"), "q")
    begin += [*precondition, loop.step("begin", **y), multiply, loop.step("project", **y)]
    update = loop.step("update", **({"y": "r2", "v": "r1"} if system.M is None else {}))
    loop.run(begin, [*expand, multiply, update])
    if np.any(loop.last.stop == _INDEFINITE):
        names = not_hermitian(system)
        cause = f"{' and '.join(names)} not Hermitian" if names else "indefinite preconditioner"
        raise ValueError(f"{cause}: use gmres or bicgstab")
    # With a preconditioner, the recurrence estimates the norm of the preconditioned matrix, not of A.
    norms_of_A = loop.last["anorm"].real if system.M is None else system.estimated_norms_of_A()
    exceeds = refute_by_backward_errors(loop, rtol, rtol, norms_of_A, _REASONS, adjoint=False)
    # Unless A is Hermitian, the scalars of the recurrence are wrong, and A @ r is not A.H @ r.
    if (exceeds & ~loop.is_refuted).any() and not_hermitian(system):
        loop.is_refuted |= exceeds
    advice = {MAXITER: hermitian_maxiter_advice(system), REFUTED: _REFUTED_ADVICE}
    return loop.result(reasons=_REASONS, advice=advice, infos={**BREAKDOWN_INFO, **dict.fromkeys(_REASONS, 0)})
