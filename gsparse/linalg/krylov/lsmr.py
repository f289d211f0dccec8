"""LSMR: least squares by bidiagonalization, with a normal residual that always falls."""

from __future__ import annotations

from typing import Any

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.bidiagonalization import (
    FIRST,
    LEFT,
    RIGHT,
    START,
    TESTS,
    bidiagonalize,
    result_of,
    statistics,
)
from gsparse.linalg.krylov.linear_system import make_system
from gsparse.linalg.progress import Watch
from gsparse.linalg.registry import register

__all__ = ["PROGRAM", "lsmr"]

# x waits for a scalar that only the new v tells, so norm(x) comes from products with what x waits for.
PROGRAM = Program(
    "lsmr",
    "x b u v h hbar q z",
    (
        START,
        Step(
            "first",
            each="v = by_beta * z",
            sums="vv = abs2(v)",
            after=f"{FIRST}\nalfabar = alfa; zetabar = arnorm; betadd = beta; anorm2 = vv; anorm = alfa",
        ),
        Step(
            "left",
            each="u = by_alfa * q - lag * u",
            sums="bb = abs2(u)",
            after=f"""
                {LEFT}
                step = due
                turn = -thetanew / rho
                alfahat = sqrt(alfabar * alfabar + damp * damp)
                chat = alfabar / alfahat
                shat = damp / alfahat
                rhoold = rho
                rho = sqrt(alfahat * alfahat + bb)
                c = alfahat / rho
                s = beta / rho
                thetabar = sbar * rho
                rhotemp = cbar * rho
                fold = thetabar * rho / (rhoold * rhobar)
            """,
        ),
        Step(
            "right",
            each="""
                x += step * hbar
                h = by_old * v + turn * h
                hbar = h - fold * hbar
                v = by_beta * z - back * v
            """,
            sums="vv = abs2(v); xx = abs2(x); xh = real(conj(x) * hbar); hh = abs2(hbar)",
            after=f"""
                {RIGHT}
                thetanew = s * alfa
                alfabar = c * alfa
                rhobarold = rhobar
                zetaold = zeta
                rhobar = sqrt(rhotemp * rhotemp + thetanew * thetanew)
                cbar = rhotemp / rhobar
                sbar = thetanew / rhobar
                zeta = cbar * zetabar
                zetabar = -sbar * zetabar
                due = zeta / (rho * rhobar)
                xnorm = sqrt(xx + 2 * due * xh + due * due * hh)
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
                maxrbar = rhobarold if rhobarold > maxrbar else maxrbar
                minrbar = rhobarold if iteration > 0 and rhobarold < minrbar else minrbar
                acond = maxrbar if maxrbar > rhotemp else rhotemp
                acond = acond / (minrbar if minrbar < rhotemp else rhotemp)
                arnorm = sqrt(zetabar * zetabar)
                test2 = arnorm / (anorm * rnorm) if anorm * rnorm > 0 else 1e300
                test3 = 1 / acond
                {TESTS}
            """,
        ),
        Step("finish", each="x += due * hbar"),
    ),
)

_NORMS = ("rnorm", "arnorm", "anorm", "acond", "xnorm")


@register("solver", least_squares=True, relative_to_matrix=True, vectors=(0,))
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

    ``norm(A.H @ r)`` falls with every iteration, so it can be stopped earlier than `lsqr`.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (M, N)
        As in `lsqr`.
    b : array, shape (M,) or (M, k)
        As in `lsqr`.
    damp, atol, btol, conlim : float, optional
        As in `lsqr`.
    maxiter : int, optional
        The most iterations: ``min(M, N)`` by default.
    show : bool, optional
        As in `lsqr`.
    x0 : array, optional
        As in `lsqr`.
    full_output, progress : bool, optional
        As in `lsqr`.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    istop, itn : int
        As in `lsqr`; here and below arrays where b has several columns.
    normr, normar : float
        Norms of r and of ``A.H @ r``, of the system with damp·I below.
    norma, conda : float
        Estimated Frobenius norm and condition number of A.
    normx : float
        Norm of x.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

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
    watch = Watch(progress=progress, bounded=maxiter is not None)
    system = make_system(A, b, x0, square=False)
    with system.solving():
        limit = min(system.A.whole_shape) if maxiter is None else maxiter
        it = bidiagonalize(
            system, PROGRAM, damp, atol, btol, conlim, limit, watch,
            rhobar=1, cbar=1, rhodold=1, minrbar=1e100, acond=1,
        )  # fmt: skip
        it.state.set(stop=0)
        it.step("finish")()
        found = result_of(it)
    if show:
        print(found.log())
    if full_output:
        return found
    return (found.x, *statistics(it, *(it.last[name].real for name in _NORMS)))
