"""Generalised minimal residuals, restarted, and flexible."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.errors import DtypeError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.calls import Call
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import System, dtype_of, make_system
from gsparse.linalg.krylov.solve_loop import Iteration, Snapshot
from gsparse.linalg.progress import Watch
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN, MAXITER, SolveResult, more_iterations

__all__ = ["PROGRAM", "fgmres", "gmres"]

# w is what a cycle begins with, and then what the basis has not got yet; u = B·w. Steps of a cycle itself are
# `gsparse.kernels.basis`. `factor` is SciPy's: the preconditioned residual, which a cycle knows, has to become so much
# smaller than the residual has to.
PROGRAM = Program(
    "gmres",
    "x b w u q",
    (
        Step(
            "scale",
            sums="bb = abs2(b); mb = abs2(w)",
            after="""
                bnorm = sqrt(bb)
                part = tolerance / bnorm
                inner_tolerance = sqrt(mb) * (part if part < 1 else 1)
            """,
        ),
        Step(
            "start",
            each="w = b - u",
            sums="rr = abs2(w)",
            after="""
                norm = sqrt(rr)
                record(norm)
                factor = 1
                cycle_end = 0
                stop = 2 if isnan(rr) else 1 if norm < tolerance or rr == 0 else 3 if maxiter <= 0 else 0
            """,
        ),
        # Only before the first iteration is it recorded: then the cycle's estimate of the same is in its place.
        Step(
            "measure",
            sums="ww = abs2(w)",
            after="""
                norm = sqrt(ww)
                record(norm if iteration < 1 else residual)
                stop = 2 if ww == 0 or isnan(ww) else 0
            """,
        ),
        Step(
            "finish",
            each="w = b - u",
            sums="rr = abs2(w)",
            after="""
                norm = sqrt(rr)
                cycles += 1
                stop = 3 if cycles >= maxiter or iteration >= limit else 0
                stop = 2 if cycle_end == 2 or isnan(rr) else stop
                stop = 1 if norm <= tolerance else stop
                smaller = factor / 4 if factor / 4 > epsilon else epsilon
                larger = factor * 1.5 if factor * 1.5 < 1 else 1
                factor = smaller if cycle_end == 1 else larger
                part = tolerance / norm
                inner_tolerance = residual * (part if part < factor else factor)
                cycle_end = 0
            """,
        ),
    ),
)

# Iterations a CUDA graph at least: short cycles are put into one together.
_PER_GRAPH = 8

_ENDED = "The Krylov space has ended before a solution: A or M is singular, or there is a NaN. Try lsqr."


@register("solver")
def gmres(
    A: Any,
    b: Array,
    x0: Array | str | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], Any] | None = None,
    callback_type: str | None = None,
    full_output: bool = False,
    progress: bool = False,
    basis_dtype: npt.DTypeLike | None = None,
    flexible: bool = False,
) -> Any:
    """Solve A·x = b for any square A by generalised minimal residuals, with vectors that stay on the device.

    An iteration reads the basis twice, though every vector is made orthogonal twice (`gsparse.kernels.basis`); whole
    cycles run without any wait for the host. A cycle needs the memory of `restart` vectors.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        Of SciPy or CuPy.
    b : array, shape (N,) or (N, k)
        NumPy or CuPy. Several right-hand sides are solved side by side, each with a basis of its own.
    x0 : array or "Mb", optional
        Where to begin; 0 by default.
    rtol, atol : float, optional
        It has converged when ``norm(b - A @ x) <= max(rtol * norm(b), atol)`` at the end of a cycle. As in SciPy, a
        cycle ends early by the preconditioned residual.
    restart : int, optional
        Iterations a cycle; 20 by default, N at most.
    maxiter : int, optional
        Cycles; 10·N by default. With ``callback_type="legacy"`` iterations.
    M : operator, optional
        Approximates the inverse of A: `gsparse.linalg.jacobi` and its siblings, or anything that A may be. Multiplied
        from the left, as in SciPy; from the right where `flexible`.
    callback : callable, optional
        Called with what `callback_type` says. The host then waits for each cycle.
    callback_type : {"legacy", "pr_norm", "x"}, optional
        "x": the solution, after each cycle. "pr_norm": the preconditioned residual over norm(b), for each iteration,
        at the end of its cycle. "legacy" (default): the same, and `maxiter` counts iterations.
    full_output : bool, optional
        Give a `SolveResult` (which unpacks as ``x, info`` too).
    progress : bool, optional
        Show a bar (tqdm) with the residual.
    basis_dtype : dtype, optional
        What the basis is stored in: ``float32`` halves the traffic of float64 (and of complex128) solves. Each cycle
        begins with the residual in full precision, so the solution is as good; tight tolerances may need a cycle more.
    flexible : bool, optional
        Let M differ from iteration to iteration, such as a solver: the preconditioned vectors are kept too, and the
        residual itself is what a cycle minimises.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    info : int
        0 where it converged, else `maxiter`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    References
    ----------
    .. [1] Y. Saad, M. H. Schultz, "GMRES: a generalized minimal residual algorithm for solving nonsymmetric linear
       systems", SIAM J. Sci. Stat. Comput. 7(3), 1986.
    .. [2] D. Bielich, J. Langou, S. Thomas, K. Świrydowicz, I. Yamazaki, E. Boman, "Low-synch Gram–Schmidt with
       delayed reorthogonalization for Krylov solvers", Parallel Computing 112, 2022.
    .. [3] J. I. Aliaga, H. Anzt, T. Grützmacher, E. S. Quintana-Ortí, A. E. Tomás, "Compressed basis GMRES on
       high-performance graphics processing units", Int. J. High Perform. Comput. Appl. 37(2), 2023.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import gmres
    >>> S = scipy.sparse.diags_array([-1.5, 2.0, -0.5], offsets=[-1, 0, 1], shape=(50, 50))
    >>> x, info = gmres(GpuSparseMatrix(S, device="cpu"), numpy.ones(50), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    if callback is not None and callback_type is None:
        text = "callback_type is 'legacy' by default, until SciPy changes it: pass 'x', 'pr_norm' or 'legacy'"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        callback_type = "legacy"
    if callback_type not in (None, "x", "pr_norm", "legacy"):
        raise ValueError(f"callback_type must be 'x', 'pr_norm' or 'legacy', got {callback_type!r}")
    if restart is not None and restart < 1:
        raise ValueError(f"restart must be at least 1, got {restart}")
    watch = _watch(callback, callback_type, progress, maxiter is not None)
    system = make_system(A, b, x0, M)
    size = system.A.whole_shape[0]
    maxiter = 10 * size if maxiter is None else maxiter
    restart = max(1, min(20 if restart is None else restart, size))
    stored = _stored(system.dtype, basis_dtype)
    limit = maxiter if callback is not None and callback_type == "legacy" else np.inf
    with system.solving():
        found = _solve(system, rtol, atol, restart, maxiter, limit, watch, stored, flexible and M is not None)
    return found if full_output else (found.x, found.info)


@register("solver", accepts=gmres)
def fgmres(A: Any, b: Array, x0: Array | str | None = None, **options: Any) -> Any:
    """Solve A·x = b by flexible GMRES: the preconditioner M may differ from iteration to iteration.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        As for `gmres`.
    b : array, shape (N,) or (N, k)
        As for `gmres`.
    x0 : array or "Mb", optional
        As for `gmres`.
    **options
        The other parameters of `gmres`, of which `flexible` is True.

    Returns
    -------
    x : array
        NumPy or CuPy, as b.
    info : int
        0 where it converged, else `maxiter`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    References
    ----------
    .. [1] Y. Saad, "A flexible inner-outer preconditioned GMRES algorithm", SIAM J. Sci. Comput. 14(2), 1993.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import fgmres
    >>> S = scipy.sparse.diags_array([-1.5, 2.0, -0.5], offsets=[-1, 0, 1], shape=(50, 50))
    >>> x, info = fgmres(S, numpy.ones(50), M=scipy.sparse.eye_array(50) / 2, rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    unknown = [name for name in options if name not in signature(gmres).parameters]
    if unknown:
        raise TypeError(f"fgmres() got an unexpected keyword argument {unknown[0]!r}")
    return gmres(A, b, x0, **{**options, "flexible": True})


def _stored(dtype: np.dtype[Any], asked: npt.DTypeLike | None) -> np.dtype[Any]:
    """Give the dtype of the basis: that of vectors, or half of it, complex where they are."""
    if asked is None:
        return dtype
    given = dtype_of(asked, "basis_dtype")
    stored = np.result_type(given, np.complex64) if dtype.kind == "c" else given
    allowed = {dtype, np.dtype(np.complex64 if dtype.kind == "c" else np.float32)}
    if stored not in allowed:
        raise DtypeError(f"a basis of {dtype} vectors is stored as {dtype} or in single precision, got {stored}")
    return np.dtype(stored)


def _watch(callback: Callable[[Any], Any] | None, callback_type: str | None, progress: bool, bounded: bool) -> Watch:
    if callback is None or callback_type == "x":
        return Watch(callback, progress=progress, bounded=bounded)
    given = 1  # residuals, the first of which is from before the first iteration

    def new_norms(iteration: Iteration, snapshot: Snapshot) -> Array:
        nonlocal given
        begin, given = given, len(iteration.residuals)
        bnorm = snapshot["bnorm"].real
        return iteration.residuals[begin:] / (bnorm[0] if iteration.residuals.ndim == 1 else bnorm)

    def call_with_each(norms: Array) -> None:
        for norm in norms:
            callback(norm)

    return Watch(call_with_each, new_norms, progress, bounded)


def _solve(
    system: System,
    rtol: float,
    atol: float,
    restart: int,
    maxiter: int,
    limit: float,
    watch: Watch,
    stored: np.dtype[Any],
    flexible: bool,
) -> SolveResult:
    M_left = None if flexible else system.M
    per_graph = -(-_PER_GRAPH // restart)
    it = Iteration(
        system,
        PROGRAM,
        maxiter * restart,
        sizes={} if M_left is not None else {"q": 0},
        watch=watch,
        history=max(2, per_graph) * restart + 1,
        norm="residual" if M_left is None else "preconditioned residual norm(M r)",
    )
    it.state.set(
        tolerance=system.tolerances(rtol, atol),
        maxiter=maxiter,
        limit=limit,
        epsilon=float(np.finfo(system.dtype).eps),
    )
    basis = kernels_of(it.device).Arnoldi(
        it.device, it.state, it.vectors["w"], it.vectors["u"], restart, stored, flexible=flexible
    )
    it.vectors.update({f"z{j}": z for j, z in enumerate(basis.preconditioned)})

    def multiply(j: int) -> list[Call]:
        if flexible:
            return [it.apply(system.M, "w", f"z{j}"), it.apply(system.A, f"z{j}", "u")]
        if M_left is not None:
            return [it.apply(system.A, "w", "q"), it.apply(M_left, "q", "u")]
        return [it.apply(system.A, "w", "u")]

    def residual(name: str) -> list[Call]:
        if M_left is None:
            return [it.apply(system.A, "x", "u"), it.step(name)]
        calls = [it.apply(system.A, "x", "u"), it.step(name, w="q"), it.apply(M_left, "q", "w")]
        return [*calls, it.step("measure")]

    scale = [it.step("scale", w="b")] if M_left is None else [it.apply(M_left, "b", "w"), it.step("scale")]
    body: list[Call] = []
    for j in range(restart):
        body += [_unless_over(it, call) for call in multiply(j)]
        body += [basis.project(j), basis.orthogonalize(j), _where_host_looks(it, basis.settle(j))]
    body += [basis.combine(it.vectors["x"]), *residual("finish")]
    it.run([*scale, *residual("start")], body, per_graph)
    more = more_iterations("cycles (maxiter) or longer ones (restart)", "ilu0(A), amg(A)", system.M is not None)
    return it.result(
        advice={BREAKDOWN: _ENDED, MAXITER: more}, infos={BREAKDOWN: max(maxiter, 1), MAXITER: max(maxiter, 1)}
    )


def _unless_over(it: Iteration, call: Call) -> Call:
    """Leave a product out once the cycle is over, where the host can tell without waiting."""

    def guarded() -> None:
        if it.is_queued or _goes_on(it.state.look()):
            call()

    return guarded


def _where_host_looks(it: Iteration, settle: Call) -> Call:
    def guarded() -> None:
        if not it.is_queued:
            settle()

    return guarded


def _goes_on(snapshot: Snapshot) -> bool:
    return bool(((snapshot.stop == 0) & (snapshot["cycle_end"] == 0)).any())
