"""Conjugate gradients with one sum over ranks per iteration (Chronopoulos and Gear 1989), in two passes over vectors.

    pass       equations                                     scalars                                        vectors
    weigh      <r, r>;  <z, w>                               rho = <r, z>                                   2
    advance    x += alpha_old·p;  p = z + beta·p;            beta = rho / rho_old                           9
               s = w + beta·s;  r -= alpha·s                 alpha = rho / (<z, w> - beta·rho / alpha_old)

w = A·z is the product of an iteration. Without a preconditioner, z is r. With one, z = M·r, and the passes move 3 and
10 vectors.

Plain conjugate gradients need <p, A·p> before they can compute the new r, and <r, z> afterwards: two sums, or three
with a preconditioner. Each sum makes all ranks wait for each other. Here the vector s stands for A·p, and <p, A·p> is
<z, w> - beta²·<p_old, A·p_old>, because the directions are conjugate. All sums of an iteration are then sums over r, z
and w, and the ranks add them up in one exchange. In return, an iteration moves up to three more vectors.

The sums belong to the iterate x of the previous iteration, whose last update `advance` makes first, as in
`gsparse.linalg.krylov.cg`. All blocks must finish this update, so the decision whether to stop is stored in `verdict`;
`weigh` copies it to `stop` and counts the iteration. The counter starts at -1, because `weigh` also runs for the
initial guess.

Rounding errors of s add up in r, so that r may differ more from b - A·x than in plain conjugate gradients. Therefore b
- A·x is computed when r is small enough. If b - A·x is too large, it replaces r, and the method begins again from the
current x (`_confirm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Call, Program, Step
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.krylov.outcome import has_no_solution, refute_by_residuals
from gsparse.linalg.krylov.solve_loop import IterationLimit, SolveLoop
from gsparse.linalg.krylov.units import SMALLEST_SQUARES
from gsparse.linalg.result import ConvergenceMonitor

# If the norm of b - A·x is too large at the end, the method begins again from x, as long as each attempt divides this
# norm by at least this number. If it does not, rounding errors limit the accuracy.
_PROGRESS = 10

_REMEMBER = """
    iteration += 1 if verdict == 0 else 0
    rho_old = rho
    alpha_old = alpha
    stop = verdict
"""


def _advance(name: str, rho: str, z: str) -> Step:
    """Return the second pass. `rho` and `z` are the names of the sum <r, z> and of the vector z.

    The difference `curvature` stands for <p, A·p>. If it is zero or NaN, the solve ends with the current x. If it is
    negative, A is not positive definite, unless the residual has become rounding error.
    """
    curvature = f"zw - {rho} / rho_old * {rho} / alpha_old"
    return Step(
        name,
        before=f"beta = {rho} / rho_old; alpha = {rho} / ({curvature})",
        each=f"x += alpha_old * p; p = {z} + beta * p; s = w + beta * s; r -= alpha * s",
        after=f"""
            curvature = {curvature}
            rho = {rho}
            alpha = {rho} / curvature
            record(sqrt(rr))
            verdict = 1 if sqrt(rr) < tolerance or rr == 0 else 2 if rr < {SMALLEST_SQUARES} else 0
            verdict = 2 if isnan(rr) else 3 if iteration >= maxiter and (iteration > 0 or verdict == 0) else verdict
            verdict = 2 if verdict == 0 and (isnan(curvature) or curvature == 0) else verdict
            rr_first = rr if iteration == 0 else rr_first
            is_indefinite = 1 if curvature < 0 and verdict == 0 and rr > eps * eps * rr_first else is_indefinite
        """,
    )


PROGRAM = Program(
    "cg_single_reduction",
    "x b r z w p s",
    (
        Step("start", each="r = b - w"),
        Step(
            "weigh",
            sums="rr = abs2(r); zw = real(conj(r) * w)",
            after=_REMEMBER,
            may_stop_early=True,
            backward=True,
        ),
        Step(
            "preconditioned_weigh",
            sums="rr = abs2(r); rz = real(conj(r) * z); zw = real(conj(z) * w)",
            after=_REMEMBER,
            may_stop_early=True,
            backward=True,
        ),
        _advance("advance", "rr", "r"),
        _advance("preconditioned_advance", "rz", "z"),
    ),
)


def run_with_single_reduction(
    system: LinearSystem, rtol: float, atol: float, maxiter: IterationLimit, monitor: ConvergenceMonitor
) -> SolveLoop:
    """Run conjugate gradients with one sum over ranks per iteration. Synchronizes.

    Parameters
    ----------
    system : LinearSystem
        Its matrix is Hermitian and positive definite.
    rtol, atol : float
    maxiter : int, or ndarray of int, shape (columns,)
    monitor : ConvergenceMonitor

    Returns
    -------
    SolveLoop
        Its cell `is_indefinite` is 1 if the matrix is not positive definite.
    """
    tolerances, sizes = system.tolerances(rtol, atol), {"z": 0} if system.M is None else {}
    is_hopeless = partial(has_no_solution, system, tolerances)
    loop = SolveLoop(system, PROGRAM, maxiter, sizes=sizes, monitor=monitor, is_hopeless=is_hopeless)
    loop.state.set(
        tolerance=tolerances, maxiter=maxiter, eps=float(np.finfo(system.dtype).eps),
        iteration=-1, rho=np.inf, alpha=1,
    )  # fmt: skip
    if system.M is None:
        body = [loop.apply(system.A, "r", "w"), loop.step("weigh"), loop.step("advance")]
    else:
        body = [loop.apply(system.M, "r", "z"), loop.apply(system.A, "z", "w")]
        body += [loop.step("preconditioned_weigh"), loop.step("preconditioned_advance")]
    begin = [loop.apply(system.A, "x", "w"), loop.step("start"), *body]
    loop.run(begin, body)
    _confirm(loop, tolerances, begin, body)
    return loop


def _confirm(loop: SolveLoop, tolerances: Array, begin: Sequence[Call], body: Sequence[Call]) -> None:
    """Compute b - A·x after convergence, and continue the right-hand sides for which it is too large.

    This takes one product and one more sum over ranks. Right-hand sides that continue begin with the residual as
    direction (`rho` is infinite). For the others, `stop` is set, so that passes do not change x.
    """
    norms_before = np.full(loop.system.columns, np.inf)
    while True:
        norms, last = refute_by_residuals(loop, tolerances), loop.last
        goes_on = loop.is_refuted & (_PROGRESS * norms < norms_before)
        if not goes_on.any():
            return
        norms_before = norms
        loop.vectors["p"][...] = 0
        loop.state.set(
            stop=np.where(goes_on, 0, last.stop),
            verdict=np.where(goes_on, 0, last.stop),
            iteration=last.iterations - goes_on,
            rho=np.where(goes_on, np.inf, last["rho"]),
            alpha=np.where(goes_on, 1, last["alpha"]),
        )
        loop.run(begin, body)
