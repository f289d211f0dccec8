"""Minimum residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import make_system
from gsparse.linalg.krylov.solve_loop import Iteration
from gsparse.linalg.krylov.symmetry import explained, more_for_hermitian, not_hermitian
from gsparse.linalg.progress import Watch
from gsparse.linalg.registry import register
from gsparse.linalg.result import MAXITER, SolveResult

__all__ = ["PROGRAM", "minres"]

# Stop codes beside the common ones; all but the last are successes.
_LEAST_SQUARES, _ACCURATE, _SINGULAR, _EIGENVECTOR, _INDEFINITE = 4, 5, 6, 7, 8

# beta is the norm of the next Lanczos vector, alfa the diagonal of its row. The rotation before, (cs, sn), acts on
# (dbar, alfa, beta), and a new one brings (gbar, beta) to (gamma, 0).
_ROTATE = """
    oldb = beta
    beta = sqrt(bb)
    stop = 2 if isnan(bb) else 8 if bb < 0 else 0
    tnorm2 += alfa * alfa + oldb * oldb + bb
    is_eigenvector = 1 if iteration == 0 and beta <= 10 * eps * beta1 else 0
    oldeps = epsln
    delta = cs * dbar + sn * alfa
    gbar = sn * dbar - cs * alfa
    epsln = sn * beta
    dbar = -cs * beta
    root = sqrt(gbar * gbar + dbar * dbar)
    gamma = sqrt(gbar * gbar + bb)
    gamma = gamma if gamma > eps else eps
    cs = gbar / gamma
    sn = beta / gamma
    phi = cs * phibar
    phibar = sn * phibar
    gmax = gamma if gamma > gmax else gmax
    gmin = gamma if gamma < gmin else gmin
"""
_DIAGONAL = """
    alfa = real(yt) / beta
    scale = 1 / beta
    back = beta / oldb
    ahead = alfa / beta
"""

# Lanczos vectors are kept unscaled: r2 is the last, r1 the one before; y = M·r2, and v the y before. What an iteration
# does to x waits for the norm of the next Lanczos vector, and goes in one pass with the diagonal of the next row: two
# passes (three with M), which move 14 vectors.
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
                stop = 2 if isnan(bb) else 8 if bb < 0 else 1 if bb == 0 or tolerance > 0 else 3 if maxiter <= 0 else 0
            """,
        ),
        Step(
            "project",
            before="inverse = 1 / beta",
            each="u = inverse * (q - shift * y)",
            sums="yt = conj(y) * u",
            after=_DIAGONAL,
        ),
        Step(
            "orthogonalize",
            each="u = scale * (q - shift * r2) - back * r1 - ahead * r2; r1 = r2; r2 = u",
            sums="bb = abs2(r2)",
            after=_ROTATE,
        ),
        Step(
            "preconditioned_orthogonalize",
            each="u = scale * (q - shift * y) - back * r1 - ahead * r2; r1 = r2; r2 = u; v = y",
        ),
        Step("weigh", sums="bb = real(conj(r2) * y)", after=_ROTATE),
        Step(
            "update",
            before="inverse = 1 / beta; inverse_old = 1 / oldb; lag = beta / oldb; by_gamma = 1 / gamma",
            each="""
                d = by_gamma * (inverse_old * v - oldeps * w_old - delta * w)
                w_old = w
                w = d
                x += phi * d
                u = inverse * (q - shift * y) - lag * r1
            """,
            sums="xx = abs2(x); yt = conj(y) * u",
            after=f"""
                {_DIAGONAL}
                iteration += 1
                record(phibar)
                anorm = sqrt(tnorm2)
                size = anorm * sqrt(xx)
                test1 = phibar / size if size > 0 else 1e300
                test2 = root / anorm if anorm > 0 else 1e300
                stop = 1 if test1 <= eps / 2 else 4 if test2 <= eps / 2 else 0
                stop = 6 if gmax >= 0.1 * gmin / eps else 3 if iteration >= maxiter else stop
                stop = 1 if test1 <= rtol else 4 if test2 <= rtol else 5 if size * eps >= beta1 else stop
                stop = 7 if is_eigenvector > 0 else stop
            """,
        ),
        Step(
            "compare",
            sums="square = abs2(v); product = conj(r1) * r2",
            after="extent = square; mismatch = sqrt(abs2(square - product))",
        ),
    ),
)

_REASONS = {
    _LEAST_SQUARES: "found a least-squares solution",
    _ACCURATE: "as accurate as the arithmetic allows",
    _SINGULAR: "A is nearly singular: x has converged to an eigenvector",
    _EIGENVECTOR: "the right-hand side is an eigenvector",
}


@register("solver", relative_to_matrix=True)
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
        Of SciPy or CuPy. A GpuSparseMatrix (or what becomes one) runs in CUDA graphs without any wait for the host;
        LinearOperators are called once an iteration.
    b : array, shape (N,) or (N, k)
        NumPy or CuPy. Several right-hand sides are solved side by side, each with scalars of its own.
    x0 : array or "Mb", optional
        Where to begin; 0 by default.
    rtol : float, optional
        It has converged when ``norm(r) <= rtol * norm(A) * norm(x)``, or ``norm(A @ r) <= rtol * norm(A) * norm(r)``
        where there is no solution; norm(A) is estimated.
    shift : float, optional
        Taken off A's diagonal.
    maxiter : int, optional
        5·N by default.
    M : operator, optional
        Approximates the inverse of A, Hermitian and positive definite.
    callback : callable, optional
        ``callback(xk)`` after each iteration. The host then waits for each of them.
    show : bool, optional
        Print the residual of each iteration, and why it stopped, when all is done.
    check : bool, optional
        Check that A and M are Hermitian, with three products.
    full_output : bool, optional
        Give a `SolveResult` (which unpacks as ``x, info`` too).
    progress : bool, optional
        Show a bar (tqdm) with the residual.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    info : int
        0 where it converged, to a least-squares solution too, else the number of iterations.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError
    ValueError
        If M proves indefinite, or `check` finds A or M not Hermitian.

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
    watch = Watch(callback, progress=progress, bounded=maxiter is not None)
    system = make_system(A, b, x0, M)
    with system.solving():
        found = _solve(system, rtol, shift, maxiter, check, watch)
        found = explained(found, system) if full_output or show else found
    if show:
        print(found.log())
    return found if full_output else (found.x, found.info)


def _solve(system: Any, rtol: float, shift: float, maxiter: int | None, check: bool, watch: Watch) -> SolveResult:
    maxiter = 5 * system.A.whole_shape[0] if maxiter is None else maxiter
    unused = {"y": 0, "v": 0} if system.M is None and not check else {}
    norm = "residual" if system.M is None else "preconditioned residual sqrt(<r, M r>)"
    it = Iteration(system, PROGRAM, maxiter, sizes=unused, watch=watch, norm=norm)
    info = np.finfo(system.dtype)
    it.state.set(
        tolerance=np.isinf(system.tolerances(0, 0)), maxiter=maxiter, rtol=rtol, shift=shift, eps=float(info.eps),
        oldb=np.inf, cs=-1, gmin=float(info.max),
    )  # fmt: skip
    begin = [it.apply(system.A, "x", "q")] if system.has_guess else []
    begin += [it.step("start")]
    if system.M is None:
        y, expand, precondition = {"y": "r2"}, [it.step("orthogonalize")], []
    else:
        y, precondition = {}, [it.apply(system.M, "r2", "y")]
        expand = [it.step("preconditioned_orthogonalize"), *precondition, it.step("weigh")]
    if check:
        _check_symmetry(it, [*begin, *precondition], y.get("y", "y"))
    multiply = it.apply(system.A, y.get("y", "y"), "q")
    begin += [*precondition, it.step("begin", **y), multiply, it.step("project", **y)]
    update = it.step("update", **({"y": "r2", "v": "r1"} if system.M is None else {}))
    it.run(begin, [*expand, multiply, update])
    if np.any(it.last.stop == _INDEFINITE):
        names = not_hermitian(system)
        cause = f"{' and '.join(names)} not Hermitian" if names else "indefinite preconditioner"
        raise ValueError(f"{cause}: use gmres or bicgstab")
    return it.result(reasons=_REASONS, advice={MAXITER: more_for_hermitian(system)}, infos=dict.fromkeys(_REASONS, 0))


def _check_symmetry(it: Iteration, begin: list[Callable[[], None]], y: str) -> None:
    """Compare <u, u> with <r, B·u>, u = B·r, for B = A and B = M. Synchronizes."""
    eps = float(np.finfo(it.system.dtype).eps)

    def compare(name: str, calls: list[Callable[[], None]], **renamed: str) -> None:
        for call in (*calls, it.step("compare", **renamed)):
            call()
        seen = it.state.look()
        if np.any(seen["mismatch"].real > (seen["extent"].real + eps) * eps ** (1 / 3)):
            raise ValueError(f"non-symmetric {name}: use gmres or bicgstab")

    A, M = it.system.A, it.system.M
    for call in begin:
        call()
    compare("matrix", [it.apply(A, y, "v"), it.apply(A, "v", "w")], r1=y, r2="w")
    if M is not None:
        compare("preconditioner", [it.apply(M, "y", "w")], v="y", r1="r2", r2="w")
    it.vectors["w"][...] = 0
