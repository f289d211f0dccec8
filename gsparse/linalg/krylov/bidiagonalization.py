"""The common part of LSQR and LSMR: Golub–Kahan bidiagonalization, stopping tests and SciPy's statistics.

The vectors u and v are not normalized, which saves passes: the program's u is beta·u of the paper, and its v is
alpha·v. The bidiagonalization then is, with the new scalars on the left of each line:

    beta = norm(u):      u = A·v / alpha - alpha/beta·u          (pass `left`;  q = A·v)
    alpha = norm(v):     v = Aᴴ·u / beta - beta/alpha·v          (pass `right`; z = Aᴴ·u)

The pass `right` also applies the updates of x and of the directions, which wait for scalars of `left`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.krylov.outcome import refute_by_backward_errors
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.result import BREAKDOWN_INFO, CONVERGED, MAXITER, ConvergenceMonitor, SolveResult

# SciPy's `istop` plus this is our stop code, except for the common codes.
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

# Parts of the two programs: the first steps, and the scalars after each pass.
START = Step(
    "start", each="u = b - q", sums="bb = abs2(u)", after="beta = sqrt(bb); inverse_beta = 1 / beta if bb > 0 else 0"
)
# `SolveLoop` reads a second value of each iteration half a ring buffer after the first one.
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
    """Run LSQR or LSMR, and return the finished loop. Synchronizes."""
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
    # With damping, x is no least-squares solution of the system itself.
    claims = (CONVERGED, 14) if (loop.last["damp"].real > 0).any() else (CONVERGED, 10, 12, 14, 15)
    refute_by_backward_errors(loop, btol, atol, loop.last["anorm"].real, claims, adjoint=True)
    result = loop.result(reasons=_REASONS, advice=_ADVICE, infos=_INFOS, takes_preconditioner=False)
    return replace(result, normal_residuals=loop.normal_residuals)


def statistics(loop: SolveLoop, norms: Mapping[str, npt.NDArray[np.float64]]) -> tuple[Any, ...]:
    """Return istop, iterations and the norms as SciPy does; each is an array if b has several columns.

    The function must be called after `result_of`. It returns the norms in the units of the caller.
    """
    stop, units = loop.stop, loop.system.units
    istop = np.select([stop > _ISTOP - 1, stop == CONVERGED], [stop - _ISTOP, 1], 7)
    exponents: dict[str, Any] = {"anorm": units.A, "acond": 0, "xnorm": units.x, "arnorm": units.b + units.A}
    with np.errstate(over="ignore", under="ignore"):
        values = [np.ldexp(norm, exponents.get(name, units.b)) for name, norm in norms.items()]
    columns = (istop, loop.last.iterations, *values)
    return columns if len(loop.system.shape) == 2 else tuple(column.item() for column in columns)
