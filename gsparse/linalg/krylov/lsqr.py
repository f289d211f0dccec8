"""LSQR: least squares by bidiagonalization."""

from __future__ import annotations

from typing import Any

import numpy as np

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

__all__ = ["PROGRAM", "lsqr"]

_ADVANCE = "w = by_old * v + turn * w; x += step * w; v = by_beta * z - back * v"
_AFTER_RIGHT = f"""
    {RIGHT}
    theta = sn * alfa
    rhobar = -cs * alfa
    ddnorm += ww / (rho * rho)
    delta = sn2 * rho
    gambar = -cs2 * rho
    rhs = phi - delta * zeta
    zbar = rhs / gambar
    xnorm = sqrt(xxnorm + zbar * zbar)
    gamma = sqrt(gambar * gambar + theta * theta)
    cs2 = gambar / gamma
    sn2 = theta / gamma
    zeta = rhs / gamma
    xxnorm += zeta * zeta
    anorm = sqrt(anorm2)
    acond = anorm * sqrt(ddnorm)
    res2 += psi * psi
    rnorm = sqrt(phibar * phibar + res2)
    arnorm = alfa * sqrt(tau * tau)
    test2 = arnorm / (anorm * rnorm + eps)
    test3 = 1 / (acond + eps)
    {TESTS}
"""
PROGRAM = Program(
    "lsqr",
    "x b u v w q z var",
    (
        START,
        Step("first", each="v = by_beta * z", sums="vv = abs2(v)", after=f"{FIRST}\nrhobar = alfa; phibar = beta"),
        Step(
            "left",
            each="u = by_alfa * q - lag * u",
            sums="bb = abs2(u)",
            after=f"""
                {LEFT}
                anorm2 += alfa * alfa + bb + damp * damp if bb > 0 else 0
                turn = -theta / rho
                rhobar1 = sqrt(rhobar * rhobar + damp * damp) if damp > 0 else rhobar
                psi = damp / rhobar1 * phibar if damp > 0 else 0
                phibar = rhobar / rhobar1 * phibar if damp > 0 else phibar
                rho = sqrt(rhobar1 * rhobar1 + bb)
                cs = rhobar1 / rho
                sn = beta / rho
                phi = cs * phibar
                phibar = sn * phibar
                tau = sn * phi
                step = phi / rho
                by_square = 1 / (rho * rho)
            """,
        ),
        Step("right", each=_ADVANCE, sums="vv = abs2(v); ww = abs2(w)", after=_AFTER_RIGHT),
        Step(
            "right_with_variance",
            each=f"{_ADVANCE}; var += by_square * abs2(w)",
            sums="vv = abs2(v); ww = abs2(w)",
            after=_AFTER_RIGHT,
        ),
    ),
)

_NORMS = ("anorm", "acond", "arnorm", "xnorm")


@register("solver", least_squares=True, relative_to_matrix=True, vectors=(0, 9))
def lsqr(
    A: Any,
    b: Array,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    conlim: float = 1e8,
    iter_lim: int | None = None,
    show: bool = False,
    calc_var: bool = False,
    x0: Array | None = None,
    *,
    full_output: bool = False,
    progress: bool = False,
) -> Any:
    """Minimize ``norm(A @ x - b)**2 + damp**2 * norm(x - x0)**2`` by LSQR, with vectors that stay on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (M, N)
        Of SciPy or CuPy, of any rank. A GpuSparseMatrix (or what becomes one) runs in CUDA graphs without any wait for
        the host; LinearOperators are called twice an iteration (`matvec` and `rmatvec`).
    b : array, shape (M,) or (M, k)
        NumPy or CuPy. Several right-hand sides are solved side by side, each with scalars of its own.
    damp : float, optional
        Regularization.
    atol, btol : float, optional
        It has converged when ``norm(r) <= btol * norm(b) + atol * norm(A) * norm(x)``, or where there is no solution,
        when ``norm(A.H @ r) <= atol * norm(A) * norm(r)``.
    conlim : float, optional
        It stops when the condition number of A seems to exceed this; 0 for no limit.
    iter_lim : int, optional
        Iterations; 2·N by default.
    show : bool, optional
        Print the residual of each iteration, and why it stopped, when all is done.
    calc_var : bool, optional
        Estimate the diagonal of ``inv(A.H @ A + damp**2 * I)``.
    x0 : array, optional
        Where to begin; 0 by default.
    full_output : bool, optional
        Give a `SolveResult` instead.
    progress : bool, optional
        Show a bar (tqdm) with the residual.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    istop : int
        0: x0 is the solution. 1: ``A @ x = b`` is solved. 2: a least-squares solution. 3: conlim. 4, 5, 6: as 1, 2, 3,
        where the arithmetic is no more accurate. 7: iter_lim, or not a number. Here and below an array where b has
        several columns.
    itn : int
        Iterations.
    r1norm, r2norm : float
        Norm of ``b - A @ x``, and square root of what is minimized.
    anorm, acond : float
        Estimated Frobenius norm and condition number of A with damp·I below.
    arnorm : float
        Norm of ``A.H @ r - damp**2 * (x - x0)``.
    xnorm : float
        Norm of ``x - x0``.
    var : array, shape (N,)
        As `calc_var` says, else 0.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    References
    ----------
    .. [1] C. C. Paige, M. A. Saunders, "LSQR: an algorithm for sparse linear equations and sparse least squares", ACM
       Trans. Math. Softw. 8(1), 1982.

    Examples
    --------
    >>> import numpy
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import lsqr
    >>> A = GpuSparseMatrix(numpy.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), device="cpu")
    >>> x, istop, itn, r1norm = lsqr(A, numpy.array([1.0, 0.01, -1.0]))[:4]
    >>> istop, numpy.round(x, 4).tolist(), round(r1norm, 4)
    (2, [1.0033, -0.9967], 0.0058)
    """
    watch = Watch(progress=progress, bounded=iter_lim is not None)
    system = make_system(A, b, x0, square=False)
    with system.solving():
        limit = 2 * system.A.whole_shape[1] if iter_lim is None else iter_lim
        it = bidiagonalize(system, PROGRAM, damp, atol, btol, conlim, limit, watch, cs2=-1.0, variance=calc_var)
        found = result_of(it)
        variance = system.deliver(it.vectors["var"].real)
    if show:
        print(found.log())
    if full_output:
        return found
    rnorm, xx = it.last["rnorm"].real, it.last["xxnorm"].real
    square = rnorm**2 - max(damp, 0) ** 2 * xx
    values = (np.copysign(np.sqrt(abs(square)), square), rnorm, *(it.last[name].real for name in _NORMS))
    return (found.x, *statistics(it, *values), variance)
