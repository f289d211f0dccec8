"""What LSQR and LSMR share: Golub–Kahan bidiagonalization, stopping, SciPy's statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import System
from gsparse.linalg.krylov.solve_loop import Iteration
from gsparse.linalg.progress import Watch
from gsparse.linalg.result import BREAKDOWN, MAXITER, SolveResult

__all__ = ["FIRST", "LEFT", "RIGHT", "START", "TESTS", "bidiagonalize", "result_of", "statistics"]

# SciPy's `istop` is a stop code less this, but for the common ones.
_ISTOP = 10
_REASONS = {
    10: "x = 0 (or x0) is the exact solution",
    12: "found a least-squares solution",
    13: "the condition number exceeds conlim",
    14: "as accurate as the arithmetic allows",
    15: "a least-squares solution as accurate as the arithmetic allows",
    16: "the condition number is too large for the arithmetic",
}
_ADVICE = dict.fromkeys((13, 16), "Scale the columns of A, regularize (damp), or raise conlim.")
_ADVICE[MAXITER] = "Allow more iterations (maxiter; iter_lim of lsqr), scale the columns of A, or regularize (damp)."
_INFOS = dict.fromkeys((10, 12, 14, 15), 0)

# The bidiagonalization beta·u = A·v - alfa·u, alfa·v = Aᴴ·u - beta·v, with u and v kept unscaled: times beta and alfa.
# One pass brings the new u and another the new v; that also does to x and the directions what waited for the scalars of
# the iteration before. They move 3 vectors of A's rows and 7 (LSMR: 9) of its columns.
START = Step(
    "start", each="u = b - q", sums="bb = abs2(u)", after="beta = sqrt(bb); by_beta = 1 / beta if bb > 0 else 0"
)
FIRST = """
    alfa = sqrt(vv)
    by_alfa = 1 / alfa
    lag = alfa / beta
    rnorm = beta
    arnorm = alfa * beta
    record(beta)
    stop = 2 if isnan(vv) else 10 if arnorm == 0 or bnorm > 1e308 else 3 if maxiter <= 0 else 0
"""
LEFT = """
    beta = sqrt(bb)
    by_old = by_alfa
    by_beta = 1 / beta if bb > 0 else 0
    back = beta / alfa if bb > 0 else -1
"""
RIGHT = """
    alfa = sqrt(vv)
    by_alfa = 1 / alfa
    lag = alfa / beta
"""
TESTS = """
    iteration += 1
    record(rnorm)
    test1 = rnorm / bnorm
    size = anorm * xnorm / bnorm
    stop = 16 if test3 <= eps / 2 else 3 if iteration >= maxiter else 0
    stop = 14 if test1 <= eps / 2 * (1 + size) else 15 if test2 <= eps / 2 else stop
    stop = 1 if test1 <= btol + atol * size else 12 if test2 <= atol else 13 if test3 <= ctol else stop
    stop = 2 if isnan(rnorm) else stop
"""


def bidiagonalize(
    system: System,
    program: Program,
    damp: float,
    atol: float,
    btol: float,
    conlim: float,
    maxiter: int,
    watch: Watch,
    *,
    variance: bool = False,
    **scalars: float,
) -> Iteration:
    """Run LSQR or LSMR. Synchronizes."""
    rows = system.A.shape[0]
    it = Iteration(system, program, maxiter, sizes={"u": rows, "q": rows}, watch=watch)
    it.state.set(
        bnorm=system.tolerances(1, 0), damp=damp, maxiter=maxiter, eps=float(np.finfo(system.dtype).eps),
        atol=atol, btol=btol, ctol=1 / conlim if conlim > 0 else 0,
        rho=1, **scalars,
    )  # fmt: skip
    begin = [it.apply(system.A, "x", "q")] if system.has_guess else []
    left, right = it.apply(system.A, "v", "q"), it.apply(system.A, "u", "z", adjoint=True)
    begin += [it.step("start"), right, it.step("first")]
    it.run(begin, [left, it.step("left"), right, it.step("right_with_variance" if variance else "right")])
    return it


def result_of(it: Iteration) -> SolveResult:
    """Give what the caller gets who wants the full output. Synchronizes."""
    return it.result(reasons=_REASONS, advice=_ADVICE, infos=_INFOS)


def statistics(it: Iteration, *values: Array) -> tuple[Any, ...]:
    """Give istop, iterations and norms as SciPy does, or arrays of them for several right-hand sides."""
    stop = it.last.stop
    istop = np.select([stop > _ISTOP - 1, (stop == BREAKDOWN) | (stop == MAXITER)], [stop - _ISTOP, 7], stop)
    found = (istop, it.last.iterations, *values)
    return found if len(it.system.shape) == 2 else tuple(value.item() for value in found)
