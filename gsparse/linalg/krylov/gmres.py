"""Restarted GMRES (Saad and Schultz 1986) and flexible GMRES (Saad 1993).

A cycle builds an orthonormal basis V of a Krylov space of B = M·A and minimizes the preconditioned residual M·(b - A·x)
over it. Iteration j of a cycle, counted from 0 (`gsparse.kernels.basis` derives it):

    pass             equations                                                             vectors read and written
    project          u = B·w;  p = Vᴴu, <w, u>                                             j + 2
    orthogonalize    vⱼ = (w - V·s) / norm;  w = (u - [V vⱼ]·p) / norm;  s = [V vⱼ]ᴴw      j + 4

and at the end of a cycle of m iterations:

    combine          x += V·y                                                              m + 2
    finish           w = b - A·x;  <w, w>                                                  3
    measure          <w, w> of the preconditioned residual, with a preconditioner          1

With `flexible`, u = A·z for z = M·w; the vectors z are stored too, and x += Z·y.
"""

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
from gsparse.kernels.steps import Call, Program, Step
from gsparse.linalg.krylov.linear_system import LinearSystem, make_linear_system, parse_dtype
from gsparse.linalg.krylov.outcome import returned
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.krylov.solve_state import Snapshot
from gsparse.linalg.registry import register
from gsparse.linalg.result import BREAKDOWN, MAXITER, OUT_OF_RANGE, ConvergenceMonitor, SolveResult, more_iterations
from gsparse.matrix.arrays import frames_to_the_caller

# The passes before and after the iterations of a cycle. (The passes of iterations are in `gsparse.kernels.basis`.) w is
# the preconditioned residual, with which a cycle begins. A cycle knows only the preconditioned residual, so its
# tolerance is the norm of w times a factor, `ptol_max_factor` (SciPy's name). This factor decreases if a cycle has
# reached its tolerance although the true residual is too large; otherwise the factor increases.
PROGRAM = Program(
    "gmres",
    "x b w u q",
    (
        Step(
            "scale",
            sums="bb = abs2(b); mb = abs2(w)",
            after="""
                bnorm = sqrt(bb)
                reduction = tolerance / bnorm
                inner_tolerance = sqrt(mb) * (reduction if reduction < 1 else 1)
            """,
        ),
        Step(
            "start",
            each="w = b - u",
            sums="rr = abs2(w)",
            after="""
                norm = sqrt(rr)
                record(norm)
                ptol_max_factor = 1
                cycle_end = 0
                stop = 2 if isnan(rr) else 1 if norm < tolerance or rr == 0 else 3 if maxiter <= 0 else 0
            """,
        ),
        # Record only the first residual: the cycles have recorded estimates of all later residuals.
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
                smaller = ptol_max_factor / 4 if ptol_max_factor / 4 > epsilon else epsilon
                larger = ptol_max_factor * 1.5 if ptol_max_factor * 1.5 < 1 else 1
                ptol_max_factor = smaller if cycle_end == 1 else larger
                reduction = tolerance / norm
                inner_tolerance = residual * (reduction if reduction < ptol_max_factor else ptol_max_factor)
                cycle_end = 0
            """,
        ),
    ),
)

# Minimum number of iterations per CUDA graph: a graph contains several cycles if they are shorter.
_MIN_ITERATIONS_PER_GRAPH = 8

_SPACE_ENDED = "The Krylov space ended before a solution was found: A or M is singular, or there is a NaN. Try lsqr."


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
    """Solve A·x = b for any square A by generalized minimal residuals, with vectors that stay on the device.

    Every basis vector is orthogonalized twice, but an iteration reads the basis only twice (`gsparse.kernels.basis`).
    Whole cycles run without waiting for the host. A cycle needs the memory of `restart` vectors.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (N, N)
        The matrix or operator, SciPy's or CuPy's.
    b : array, shape (N,) or (N, k)
        The right-hand side: NumPy or CuPy. Several columns are solved at the same time, each with its own basis.
    x0 : array or "Mb", optional
        Initial guess; zero by default. "Mb" stands for ``M @ b``.
    rtol, atol : float, optional
        The solve has converged when ``norm(b - A @ x) <= max(rtol * norm(b), atol)`` at the end of a cycle. As in
        SciPy, the preconditioned residual decides whether a cycle ends early.
    restart : int, optional
        Iterations per cycle; 20 by default, at most N.
    maxiter : int, optional
        Maximum number of cycles; 10·N by default. With a `callback` of the type "legacy", the maximum number of
        iterations.
    M : operator, optional
        Preconditioner: approximates the inverse of A. `gsparse.linalg.jacobi` and its siblings return one; any type
        that A may have is accepted too. It is applied from the left, as in SciPy, or from the right if `flexible`.
    callback : callable, optional
        Called with the argument that `callback_type` selects. The host then waits for every cycle.
    callback_type : {"legacy", "pr_norm", "x"}, optional
        The argument of `callback`. "x": the solution, after each cycle. "pr_norm":
        the norm of the preconditioned residual divided by norm(b), for each iteration, at the end of its cycle.
        "legacy" (default, with a DeprecationWarning as in SciPy): as "pr_norm", but `maxiter` counts iterations.
    full_output : bool, optional
        Return a `SolveResult`, which also unpacks as ``x, info``.
    progress : bool, optional
        Show a progress bar (tqdm) with the residual.
    basis_dtype : dtype, optional
        The dtype in which the basis is stored: ``float32`` halves the traffic of float64 and complex128 solves. Each
        cycle begins with the residual in full precision, so the solution is as accurate; tight tolerances may need one
        more cycle.
    flexible : bool, optional
        Allow M to differ from iteration to iteration, for example because it is a solver. The preconditioned vectors
        are stored too, and a cycle minimizes the true residual.

    Returns
    -------
    x : array
        The solution: NumPy or CuPy, as b.
    info : int
        0 if the solve converged, otherwise `maxiter`, as in SciPy, also if it broke down.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

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
        warnings.warn(text, DeprecationWarning, stacklevel=frames_to_the_caller())
        callback_type = "legacy"
    if callback_type not in (None, "x", "pr_norm", "legacy"):
        raise ValueError(f"callback_type must be 'x', 'pr_norm' or 'legacy', got {callback_type!r}")
    monitor = _make_monitor(callback, callback_type, progress, maxiter is not None)
    system = make_linear_system(A, b, x0, M)
    size = system.A.whole_shape[0]
    maxiter = 10 * size if maxiter is None else maxiter
    restart = max(1, min(20 if restart is None else restart, size))
    storage_dtype = _parse_basis_dtype(system.dtype, basis_dtype)
    limit = maxiter if callback is not None and callback_type == "legacy" else np.inf
    with system.solving():
        is_flexible = flexible and M is not None
        result = _solve(system, rtol, atol, restart, maxiter, limit, monitor, storage_dtype, is_flexible)
    return returned(result, system, full_output)


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
        The other parameters of `gmres`; `flexible` is always True.

    Returns
    -------
    x : array
        The solution: NumPy or CuPy, as b.
    info : int
        0 if the solve converged, otherwise `maxiter`, as in SciPy, also if it broke down.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    ConvergenceWarning
        If the solve has not converged and `full_output` is false. The warning names the reason and what to try next.

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


def _parse_basis_dtype(dtype: np.dtype[Any], basis_dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the dtype in which the basis is stored. It is complex if `dtype`, that of the vectors, is complex."""
    if basis_dtype is None:
        return dtype
    requested = parse_dtype(basis_dtype, "basis_dtype")
    storage = np.result_type(requested, np.complex64) if dtype.kind == "c" else requested
    allowed = {dtype, np.dtype(np.complex64 if dtype.kind == "c" else np.float32)}
    if storage not in allowed:
        raise DtypeError(f"a basis of {dtype} vectors is stored as {dtype} or in single precision, got {storage}")
    return np.dtype(storage)


def _make_monitor(
    callback: Callable[[Any], Any] | None, callback_type: str | None, progress: bool, bounded: bool
) -> ConvergenceMonitor:
    if callback is None or callback_type == "x":
        return ConvergenceMonitor(callback, progress=progress, bounded=bounded)
    num_reported = 1  # counts the initial residual, which the callback does not get

    def new_norms(loop: SolveLoop, snapshot: Snapshot) -> Array:
        nonlocal num_reported
        begin, num_reported = num_reported, len(loop.residuals)
        bnorm = loop.system.norms_of_caller(snapshot["bnorm"].real)
        return loop.residuals[begin:] / (bnorm[0] if loop.residuals.ndim == 1 else bnorm)

    def call_with_each(norms: Array) -> None:
        for norm in norms:
            callback(norm)

    return ConvergenceMonitor(call_with_each, new_norms, progress, bounded)


def _solve(
    system: LinearSystem,
    rtol: float,
    atol: float,
    restart: int,
    maxiter: int,
    limit: float,
    monitor: ConvergenceMonitor,
    storage_dtype: np.dtype[Any],
    flexible: bool,
) -> SolveResult:
    M_left = None if flexible else system.M
    per_graph = -(-_MIN_ITERATIONS_PER_GRAPH // restart)
    loop = SolveLoop(
        system,
        PROGRAM,
        maxiter * restart,
        sizes={} if M_left is not None else {"q": 0},
        monitor=monitor,
        history=max(2, per_graph) * restart + 1,
        norm="residual" if M_left is None else "preconditioned residual norm(M r)",
        norm_exponent=0 if M_left is None else -system.units.M,
    )
    loop.state.set(
        tolerance=system.tolerances(rtol, atol),
        maxiter=maxiter,
        limit=limit,
        epsilon=float(np.finfo(system.dtype).eps),
    )
    basis = kernels_of(loop.device).basis.Arnoldi(
        loop.device, loop.state, loop.vectors["w"], loop.vectors["u"], restart, storage_dtype, flexible=flexible
    )
    loop.vectors.update({f"z{j}": z for j, z in enumerate(basis.preconditioned)})

    def multiply(j: int) -> list[Call]:
        if flexible:
            return [loop.apply(system.M, "w", f"z{j}"), loop.apply(system.A, f"z{j}", "u")]
        if M_left is not None:
            return [loop.apply(system.A, "w", "q"), loop.apply(M_left, "q", "u")]
        return [loop.apply(system.A, "w", "u")]

    def residual(name: str) -> list[Call]:
        if M_left is None:
            return [loop.apply(system.A, "x", "u"), loop.step(name)]
        calls = [loop.apply(system.A, "x", "u"), loop.step(name, w="q"), loop.apply(M_left, "q", "w")]
        return [*calls, loop.step("measure")]

    scale = [loop.step("scale", w="b")] if M_left is None else [loop.apply(M_left, "b", "w"), loop.step("scale")]
    body: list[Call] = []
    for j in range(restart):
        body += [_skip_after_cycle(loop, call) for call in multiply(j)]
        body += [basis.project(j), basis.orthogonalize(j), _unless_queued(loop, basis.finish_column(j))]
    body += [basis.combine(loop.vectors["x"]), *residual("finish")]
    loop.run([*scale, *residual("start")], body, per_graph)
    at_maxiter = more_iterations("cycles (maxiter) or longer ones (restart)", "ilu0(A), amg(A)", system.M is not None)
    return loop.result(
        advice={BREAKDOWN: _SPACE_ENDED, MAXITER: at_maxiter},
        infos=dict.fromkeys((BREAKDOWN, MAXITER, OUT_OF_RANGE), max(maxiter, 1)),
    )


def _skip_after_cycle(loop: SolveLoop, call: Call) -> Call:
    """Return a call that skips `call` after the end of the cycle, unless the host only queues work."""

    def guarded() -> None:
        if loop.is_queued or _is_cycle_running(loop.state.read()):
            call()

    return guarded


def _unless_queued(loop: SolveLoop, call: Call) -> Call:
    """Return a call that skips `call` if the host only queues work, without reading results."""

    def guarded() -> None:
        if not loop.is_queued:
            call()

    return guarded


def _is_cycle_running(snapshot: Snapshot) -> bool:
    return bool(((snapshot.stop == 0) & (snapshot["cycle_end"] == 0)).any())
