"""LSQR (Paige and Saunders 1982): least squares by bidiagonalization, in two passes over vectors per iteration.

    pass      equations                                              vectors read and written
    left      u = A·v / alpha - alpha/beta·u;  <u, u>                3 of length M
    right     w = v/alpha - theta/rho·w;  x += phi/rho·w;            7 of length N
              v = Aᴴ·u / beta - beta/alpha·v;  <v, v>, <w, w>

A has M rows and N columns. `gsparse.linalg.krylov.bidiagonalization` explains u and v. The plane rotations that give
theta, rho and phi are scalars with the names of SciPy's `lsqr`; damping is one more rotation. The estimate of the
variances, if wanted, moves two more vectors.
"""

from __future__ import annotations

from dataclasses import replace
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
from gsparse.linalg.krylov.linear_system import make_linear_system
from gsparse.linalg.krylov.outcome import returned, with_true_residual
from gsparse.linalg.registry import register
from gsparse.linalg.result import ConvergenceMonitor

_ADVANCE = """
    w = inverse_alpha_old * v + w_factor * w
    x += phi_over_rho * w
    v = inverse_beta * z - beta_over_alpha * v
"""
_AFTER_RIGHT = f"""
    {RIGHT}
    theta = sn * alpha
    rhobar = -cs * alpha
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
    arnorm = alpha * sqrt(tau * tau)
    test2 = arnorm / (anorm * rnorm) if arnorm > 0 else 0
    test3 = 1 / (acond + eps)
    {TESTS}
"""
PROGRAM = Program(
    "lsqr",
    "x b u v w q z var",
    (
        START,
        Step(
            "first",
            each="v = inverse_beta * z",
            sums="vv = abs2(v)",
            after=f"{FIRST}\nrhobar = alpha; phibar = beta",
        ),
        Step(
            "left",
            each="u = inverse_alpha * q - alpha_over_beta * u",
            sums="bb = abs2(u)",
            after=f"""
                {LEFT}
                anorm2 += alpha * alpha + bb + damp * damp if bb > 0 else 0
                w_factor = -theta / rho
                rhobar1 = sqrt(rhobar * rhobar + damp * damp) if damp > 0 else rhobar
                psi = damp / rhobar1 * phibar if damp > 0 else 0
                phibar = rhobar / rhobar1 * phibar if damp > 0 else phibar
                rho = sqrt(rhobar1 * rhobar1 + bb)
                cs = rhobar1 / rho
                sn = beta / rho
                phi = cs * phibar
                phibar = sn * phibar
                tau = sn * phi
                phi_over_rho = phi / rho
                inverse_rho2 = 1 / (rho * rho)
            """,
        ),
        Step("right", each=_ADVANCE, sums="vv = abs2(v); ww = abs2(w)", after=_AFTER_RIGHT),
        Step(
            "right_with_variance",
            each=f"{_ADVANCE}\nvar += inverse_rho2 * abs2(w)",
            sums="vv = abs2(v); ww = abs2(w)",
            after=_AFTER_RIGHT,
        ),
    ),
)

_NORMS = ("rnorm", "anorm", "acond", "arnorm", "xnorm")


@register("solver", least_squares=True, vectors=(0, 9))
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
        The matrix or operator, SciPy's or CuPy's, of any rank. With a GpuSparseMatrix, or a sparse array, which is
        converted to one, iterations run on the device, on a GPU in CUDA graphs, and do not wait for the host. A
        LinearOperator is called twice per iteration (`matvec` and `rmatvec`).
    b : array, shape (M,) or (M, k)
        The right-hand side: NumPy or CuPy. Several columns are solved at the same time, each with its own scalars.
    damp : float, optional
        Regularization parameter.
    atol, btol : float, optional
        The solve has converged when ``norm(r) <= btol * norm(b) + atol * norm(A) * norm(x)``. If there is no solution,
        it has converged when ``norm(A.H @ r) <= atol * norm(A) * norm(r)``.
    conlim : float, optional
        The solve stops when the estimated condition number of A exceeds this limit; 0 for no limit.
    iter_lim : int, optional
        Maximum number of iterations; 2·N by default.
    show : bool, optional
        Print the residual of each iteration and the reason for stopping, after the solve.
    calc_var : bool, optional
        Estimate the diagonal of ``inv(A.H @ A + damp**2 * I)``.
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
        Why the solve stopped. 0: x0 is the solution. 1: ``A @ x = b`` is solved. 2: x is a least-squares solution.
        3: conlim was exceeded. 4, 5, 6: as 1, 2, 3, but to the accuracy of the arithmetic. 7: iter_lim was reached, a
        value is not a number, or a product shows that rounding errors keep x from what the test says. This value and
        those below are arrays if b has several columns.
    itn : int
        Number of iterations.
    r1norm, r2norm : float
        Norm of ``b - A @ x``, and square root of the function that is minimized.
    anorm, acond : float
        Estimated Frobenius norm and condition number of A extended by the rows damp·I.
    arnorm : float
        Norm of ``A.H @ r - damp**2 * (x - x0)``.
    xnorm : float
        Norm of ``x - x0``.
    var : array, shape (N,)
        The estimated diagonal if `calc_var` is true, otherwise zeros.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. It names the reason and what to try next.

    Notes
    -----
    The number of iterations does not depend on the units of A and b. SciPy's `lsqr` also compares with absolute
    numbers, so that it may stop earlier or later where A or b is far from 1.

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
    monitor = ConvergenceMonitor(progress=progress, bounded=iter_lim is not None)
    system = make_linear_system(A, b, x0, square=False, terms=(damp,))
    with system.solving():
        limit = 2 * system.A.whole_shape[1] if iter_lim is None else iter_lim
        loop = bidiagonalize(system, PROGRAM, damp, atol, btol, conlim, limit, monitor, cs2=-1.0, variance=calc_var)
        result = result_of(loop, atol, btol)
        result = with_true_residual(result, system) if full_output or show else result
        variance = system.deliver(loop.vectors["var"].real, np.array([-2 * system.units.A]))
    if show:
        print(result.log())
    norms = {name: loop.last[name].real for name in _NORMS}
    square = norms["rnorm"] ** 2 - np.maximum(loop.last["damp"].real, 0) ** 2 * loop.last["xxnorm"].real
    norms = {"r1norm": np.copysign(np.sqrt(abs(square)), square), **norms}
    result = replace(result, statistics=(*statistics(loop, norms), variance))
    return returned(result, system, full_output)
