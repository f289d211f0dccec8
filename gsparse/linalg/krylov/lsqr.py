"""LSQR (Paige and Saunders 1982), and its parts that LSMR uses: bidiagonalization, stopping tests and statistics.

The vectors u and v of Golub and Kahan are not normalized, which saves passes: the program's u is beta·u of the paper,
and the program's v is alpha·v of the paper. The bidiagonalization then is, with the new scalars on the left of each
line:

    beta = norm(u):      u = A·v / alpha - alpha/beta·u          (pass `left`;  q = A·v)
    alpha = norm(v):     v = Aᴴ·u / beta - beta/alpha·v          (pass `right`; z = Aᴴ·u)

The pass `right` also applies the updates of x and of the directions, which wait for scalars of `left`. LSQR takes two
passes over vectors per iteration:

    pass      equations                                              vectors read and written
    left      u = A·v / alpha - alpha/beta·u;  <u, u>                3 of length M
    right     w = v/alpha - theta/rho·w;  x += phi/rho·w;            7 of length N
              v = Aᴴ·u / beta - beta/alpha·v;  <v, v>, <w, w>

A has M rows and N columns. The plane rotations that give theta, rho and phi are scalars with the names of SciPy's
`lsqr`; damping is one more rotation. The estimate of the variances, if wanted, moves two more vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import LinearSystem, make_linear_system
from gsparse.linalg.krylov.outcome import refute_by_backward_errors, returned
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN_INFO, CONVERGED, MAXITER, ConvergenceMonitor, SolveResult

# The stop code is SciPy's `istop` plus this number, except for the codes that all methods share.
_ISTOP = 10
_REASONS = {
    CONVERGED: "passed the test norm(r) <= btol·norm(b) + atol·norm(A)·norm(x)",
    10: "x = 0 (or x0) is a solution, at least in the sense of least squares",
    12: "found a least-squares solution: norm(Aᴴ·r) <= atol·norm(A)·norm(r)",
    13: "the condition number exceeds conlim",
    14: "as accurate as the arithmetic allows",
    15: "a least-squares solution as accurate as the arithmetic allows",
    16: "the condition number is too large for the arithmetic",
}
_ADVICE = dict.fromkeys((13, 16), "Scale the columns of A, regularize (damp), or raise conlim.")
_ADVICE[MAXITER] = "Allow more iterations (maxiter; iter_lim of lsqr), scale the columns of A, or regularize (damp)."
_INFOS = {**BREAKDOWN_INFO, **dict.fromkeys((10, 12, 14, 15), 0)}

# Parts of the programs of LSQR and LSMR: the first steps, and the scalars after each pass.
START = Step(
    "start", each="u = b - q", sums="bb = abs2(u)", after="beta = sqrt(bb); inverse_beta = 1 / beta if bb > 0 else 0"
)
# `SolveLoop` reads norm(A.H @ r) of an iteration half a ring buffer after norm(r).
RECORD = """
    record(rnorm)
    iteration += half_buffer
    record(arnorm)
    iteration -= half_buffer
"""
FIRST = f"""
    alpha = sqrt(vv)
    inverse_alpha = 1 / alpha
    alpha_over_beta = alpha / beta
    rnorm = beta
    arnorm = alpha * beta
    {RECORD}
    stop = 2 if isnan(vv) else 10 if arnorm == 0 or bnorm > 1e308 else 3 if maxiter <= 0 else 0
"""
LEFT = """
    beta = sqrt(bb)
    inverse_alpha_old = inverse_alpha
    inverse_beta = 1 / beta if bb > 0 else 0
    beta_over_alpha = beta / alpha if bb > 0 else -1
"""
RIGHT = """
    alpha = sqrt(vv)
    inverse_alpha = 1 / alpha
    alpha_over_beta = alpha / beta
"""
TESTS = f"""
    iteration += 1
    {RECORD}
    test1 = rnorm / bnorm
    size = anorm * xnorm / bnorm
    stop = 16 if test3 <= eps / 2 else 3 if iteration >= maxiter else 0
    stop = 14 if test1 <= eps / 2 * (1 + size) else 15 if test2 <= eps / 2 else stop
    stop = 1 if test1 <= btol + atol * size else 12 if test2 <= atol else 13 if test3 <= ctol else stop
    stop = 2 if isnan(rnorm) else stop
"""


def bidiagonalize(
    system: LinearSystem,
    program: Program,
    damp: float,
    atol: float,
    btol: float,
    conlim: float,
    maxiter: int,
    monitor: ConvergenceMonitor,
    *,
    variance: bool = False,
    **scalars: float,
) -> SolveLoop:
    """Run LSQR or LSMR, whose `program` has the given initial `scalars`; return the finished loop. Synchronizes."""
    rows = system.A.shape[0]
    loop = SolveLoop(system, program, maxiter, sizes={"u": rows, "q": rows}, monitor=monitor, has_normal_residuals=True)
    loop.state.set(
        bnorm=system.tolerances(1, 0), damp=float(np.ldexp(damp, -system.units.A)), maxiter=maxiter,
        eps=float(np.finfo(system.dtype).eps),
        atol=atol, btol=btol, ctol=1 / conlim if conlim > 0 else 0,
        half_buffer=loop.state.capacity // 2, rho=1, **scalars,
    )  # fmt: skip
    begin = [loop.apply(system.A, "x", "q")] if system.has_guess else []
    left, right = loop.apply(system.A, "v", "q"), loop.apply(system.A, "u", "z", adjoint=True)
    begin += [loop.step("start"), right, loop.step("first")]
    loop.run(begin, [left, loop.step("left"), right, loop.step("right_with_variance" if variance else "right")])
    return loop


def result_of(loop: SolveLoop, atol: float, btol: float) -> SolveResult:
    """Return the `SolveResult` for ``full_output=True``. Synchronizes."""
    # With damping, x is no least-squares solution of A·x = b, so stop codes that claim one are not checked.
    claims = (CONVERGED, 14) if (loop.last["damp"].real > 0).any() else (CONVERGED, 10, 12, 14, 15)
    refute_by_backward_errors(loop, btol, atol, loop.last["anorm"].real, claims, adjoint=True)
    result = loop.result(reasons=_REASONS, advice=_ADVICE, infos=_INFOS, takes_preconditioner=False)
    return replace(result, normal_residuals=loop.normal_residuals)


def statistics(loop: SolveLoop, norms: Mapping[str, npt.NDArray[np.float64]]) -> tuple[Any, ...]:
    """Return istop, iterations and the norms in the user's units, as SciPy does. Call this function after `result_of`.

    Each number is an array if b has several columns.
    """
    stop, units = loop.stop, loop.system.units
    istop = np.select([stop > _ISTOP - 1, stop == CONVERGED], [stop - _ISTOP, 1], 7)
    exponents: dict[str, Any] = {"anorm": units.A, "acond": 0, "xnorm": units.x, "arnorm": units.b + units.A}
    with np.errstate(over="ignore", under="ignore"):
        values = [np.ldexp(norm, exponents.get(name, units.b)) for name, norm in norms.items()]
    columns = (istop, loop.last.iterations, *values)
    return columns if len(loop.system.shape) == 2 else tuple(column.item() for column in columns)


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
        value is not a number, or the true residual is larger than the test says, because of rounding errors. This value
        and those below are arrays if b has several columns.
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
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

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
        variance = system.deliver(loop.vectors["var"].real, np.array([-2 * system.units.A]))
    norms = {name: loop.last[name].real for name in _NORMS}
    square = norms["rnorm"] ** 2 - np.maximum(loop.last["damp"].real, 0) ** 2 * loop.last["xxnorm"].real
    norms = {"r1norm": np.copysign(np.sqrt(abs(square)), square), **norms}
    result = replace(result, statistics=(*statistics(loop, norms), variance))
    return returned(result, system, full_output, show)
