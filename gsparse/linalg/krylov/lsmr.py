"""LSMR (Fong and Saunders 2011): least squares by bidiagonalization, in two passes over vectors per iteration.

    pass      equations                                                               vectors read and written
    left      u = A·v / alpha - alpha/beta·u;  <u, u>                                 3 of length M
    right     x += zeta/(rho·rhobar)·hbar;  h = v/alpha - thetanew/rho·h;             9 of length N
              hbar = h - thetabar·rho/(rhoold·rhobar)·hbar;
              v = Aᴴ·u / beta - beta/alpha·v;  <v, v>, <x, x>, <x, hbar>, <hbar, hbar>

A has M rows and N columns. `gsparse.linalg.krylov.lsqr` explains u and v. The scalars have the names of SciPy's `lsmr`.
The update of x needs zeta, which depends on the norm of the new v, so it is applied in the pass `right` of the next
iteration, or by `finish` after the last one. norm(x) is computed from the products with hbar as if the update had been
applied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import make_linear_system
from gsparse.linalg.krylov.lsqr import (
    FIRST,
    LEFT,
    RIGHT,
    START,
    TESTS,
    bidiagonalize,
    result_of,
    statistics,
)
from gsparse.linalg.krylov.outcome import returned
from gsparse.linalg.registry import register
from gsparse.linalg.result import ConvergenceMonitor

PROGRAM = Program(
    "lsmr",
    "x b u v h hbar q z",
    (
        START,
        Step(
            "first",
            each="v = inverse_beta * z",
            sums="vv = abs2(v)",
            after=f"{FIRST}\nalphabar = alpha; zetabar = arnorm; betadd = beta; anorm2 = vv; anorm = alpha",
        ),
        Step(
            "left",
            each="u = inverse_alpha * q - alpha_over_beta * u",
            sums="bb = abs2(u)",
            after=f"""
                {LEFT}
                x_factor = next_x_factor
                h_factor = -thetanew / rho
                alphahat = sqrt(alphabar * alphabar + damp * damp)
                chat = alphabar / alphahat
                shat = damp / alphahat
                rhoold = rho
                rho = sqrt(alphahat * alphahat + bb)
                c = alphahat / rho
                s = beta / rho
                thetabar = sbar * rho
                rhotemp = cbar * rho
                hbar_factor = thetabar * rho / (rhoold * rhobar)
            """,
        ),
        Step(
            "right",
            each="""
                x += x_factor * hbar
                h = inverse_alpha_old * v + h_factor * h
                hbar = h - hbar_factor * hbar
                v = inverse_beta * z - beta_over_alpha * v
            """,
            sums="vv = abs2(v); xx = abs2(x); xh = real(conj(x) * hbar); hh = abs2(hbar)",
            after=f"""
                {RIGHT}
                thetanew = s * alpha
                alphabar = c * alpha
                rhobarold = rhobar
                zetaold = zeta
                rhobar = sqrt(rhotemp * rhotemp + thetanew * thetanew)
                cbar = rhotemp / rhobar
                sbar = thetanew / rhobar
                zeta = cbar * zetabar
                zetabar = -sbar * zetabar
                next_x_factor = zeta / (rho * rhobar)
                xnorm = sqrt(xx + 2 * next_x_factor * xh + next_x_factor * next_x_factor * hh)
                betaacute = chat * betadd
                betacheck = -shat * betadd
                betahat = c * betaacute
                betadd = -s * betaacute
                thetatildeold = thetatilde
                rhotildeold = sqrt(rhodold * rhodold + thetabar * thetabar)
                ctildeold = rhodold / rhotildeold
                stildeold = thetabar / rhotildeold
                thetatilde = stildeold * rhobar
                rhodold = ctildeold * rhobar
                betad = -stildeold * betad + ctildeold * betahat
                tautildeold = (zetaold - thetatildeold * tautildeold) / rhotildeold
                taud = (zeta - thetatilde * tautildeold) / rhodold
                d += betacheck * betacheck
                rnorm = sqrt(d + (betad - taud) * (betad - taud) + betadd * betadd)
                anorm2 += beta * beta
                anorm = sqrt(anorm2)
                anorm2 += vv
                maxrbar = rhobarold if iteration > 0 and rhobarold > maxrbar else maxrbar
                minrbar = rhobarold if iteration > 0 and rhobarold < minrbar else minrbar
                acond = maxrbar if maxrbar > rhotemp else rhotemp
                acond = acond / (minrbar if minrbar < rhotemp else rhotemp)
                arnorm = sqrt(zetabar * zetabar)
                test2 = arnorm / (anorm * rnorm) if anorm * rnorm > 0 else 1e300
                test3 = 1 / acond
                {TESTS}
            """,
        ),
        Step("finish", each="x += next_x_factor * hbar"),
    ),
)

_NORMS = ("rnorm", "arnorm", "anorm", "acond", "xnorm")


@register("solver", least_squares=True, vectors=(0,))
def lsmr(
    A: Any,
    b: Array,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    conlim: float = 1e8,
    maxiter: int | None = None,
    show: bool = False,
    x0: Array | None = None,
    *,
    full_output: bool = False,
    progress: bool = False,
) -> Any:
    """Minimize ``norm(A @ x - b)**2 + damp**2 * norm(x - x0)**2`` by LSMR, with vectors that stay on the device.

    ``norm(A.H @ r)`` decreases in every iteration, so LSMR can be stopped earlier than `lsqr`.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (M, N)
        The matrix or operator, SciPy's or CuPy's, of any rank, as in `lsqr`.
    b : array, shape (M,) or (M, k)
        The right-hand side: NumPy or CuPy. Several columns are solved at the same time, each with its own scalars.
    damp : float, optional
        Regularization parameter.
    atol, btol : float, optional
        The solve has converged when ``norm(r) <= btol * norm(b) + atol * norm(A) * norm(x)``. If there is no solution,
        it has converged when ``norm(A.H @ r) <= atol * norm(A) * norm(r)``.
    conlim : float, optional
        The solve stops when the estimated condition number of A exceeds this limit; 0 for no limit.
    maxiter : int, optional
        Maximum number of iterations; ``min(M, N)`` by default.
    show : bool, optional
        Print the residual of each iteration and the reason for stopping, after the solve.
    x0 : array, optional
        Initial guess; zero by default.
    full_output : bool, optional
        Return a `SolveResult` instead.
    progress : bool, optional
        Show a progress bar (tqdm) with the residual.

    Returns
    -------
    x : array
        The solution: NumPy or CuPy, as b.
    istop : int
        Why the solve stopped, by the numbers of `lsqr`. This value and those below are arrays if b has several columns.
    itn : int
        Number of iterations.
    normr, normar : float
        Norms of r and of ``A.H @ r``, where A is extended by the rows damp·I.
    norma, conda : float
        Estimated Frobenius norm and condition number of A.
    normx : float
        Norm of x.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

    Notes
    -----
    The number of iterations does not depend on the units of A and b. SciPy's `lsmr` also compares with absolute
    numbers, so that it may stop earlier or later where A or b is far from 1.

    References
    ----------
    .. [1] D. C.-L. Fong, M. A. Saunders, "LSMR: an iterative algorithm for sparse least-squares problems", SIAM J. Sci.
       Comput. 33(5), 2011.

    Examples
    --------
    >>> import numpy
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import lsmr
    >>> A = GpuSparseMatrix(numpy.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), device="cpu")
    >>> x, istop, itn, normr = lsmr(A, numpy.array([1.0, 0.01, -1.0]))[:4]
    >>> istop, numpy.round(x, 4).tolist(), round(normr, 4)
    (2, [1.0033, -0.9967], 0.0058)
    """
    monitor = ConvergenceMonitor(progress=progress, bounded=maxiter is not None)
    system = make_linear_system(A, b, x0, square=False, terms=(damp,))
    with system.solving():
        limit = min(system.A.whole_shape) if maxiter is None else maxiter
        loop = bidiagonalize(
            system, PROGRAM, damp, atol, btol, conlim, limit, monitor,
            rhobar=1, cbar=1, rhodold=1, minrbar=1e100, acond=1,
        )  # fmt: skip
        loop.state.set(stop=0)
        loop.step("finish")()
        result = result_of(loop, atol, btol)
    norms = {name: loop.last[name].real for name in _NORMS}
    result = replace(result, statistics=statistics(loop, norms))
    return returned(result, system, full_output, show)
