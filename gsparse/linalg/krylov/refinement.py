"""Mixed precision: corrections solved for in a narrow dtype, the residual and the solution kept in the wide one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dense import DenseInput
from gsparse.device.dtypes import Array
from gsparse.errors import DtypeError
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import System, dtype_of
from gsparse.linalg.krylov.solve_loop import Iteration, State
from gsparse.linalg.operators import Apply, Operator
from gsparse.linalg.progress import Watch
from gsparse.linalg.result import SolveResult

__all__ = ["Solve", "refined"]

# What a solver does with a system: ``solve(system, rtol, atol, maxiter, watch)``.
Solve = Callable[[System, float, float, int | None, Watch], SolveResult]

_STAGNATED = 4

# By how much a correction reduces the residual: as far as float32 can follow it on problems of condition 1e3 or so, and
# no less, because each correction begins its Krylov space anew. The last one stops a little below what is asked for.
_INNER_RTOL = 1e-5
_SAFETY = 0.5

# `count` is the number of inner iterations of the last correction.
PROGRAM = Program(
    "refinement",
    "x b r w z q",
    (
        Step(
            "start",
            each="r = b - q",
            sums="rr = abs2(r)",
            after="""
                norm = sqrt(rr)
                record(norm)
                stop = 2 if isnan(norm) else 1 if norm < tolerance else 3 if maxiter <= 0 else 0
            """,
        ),
        # The correction is sought for a residual of length 1, so that narrow numbers do not underflow.
        Step("scale", before="factor = 1 / norm", each="w = factor * r", after="previous = norm"),
        Step("correct", before="factor = norm", each="x += factor * z"),
        Step(
            "residual",
            each="r = b - q",
            sums="rr = abs2(r)",
            after=f"""
                iteration += count
                norm = sqrt(rr)
                record(norm)
                stop = {_STAGNATED} if norm > {_SAFETY} * previous else 0
                stop = 1 if norm < tolerance else 3 if iteration >= maxiter else stop
                stop = 2 if isnan(norm) else stop
            """,
        ),
    ),
)


def refined(
    solve: Solve, inner_dtype: Any, system: System, rtol: float, atol: float, maxiter: int | None, watch: Watch
) -> SolveResult:
    """Solve a system by iterative refinement: corrections in `inner_dtype`, everything else in the system's dtype.

    Where corrections no longer bring the residual down (the matrix is too ill-conditioned for the narrow dtype, or its
    values do not fit), the system's own dtype finishes the solve.

    Parameters
    ----------
    solve : callable
        The method: ``solve(system, rtol, atol, maxiter, watch)``.
    inner_dtype : dtype
        float32; complex systems take the complex dtype of that precision.
    system, rtol, atol, maxiter, watch
        As `solve` takes them. Iterations are the inner ones; a callback is called after each correction.

    Returns
    -------
    SolveResult
        Its residuals are those that the inner solves watched, and after each correction the true one.

    Raises
    ------
    DtypeError

    References
    ----------
    .. [1] J. H. Wilkinson, "Rounding errors in algebraic processes", 1963.
    .. [2] H. Anzt, B. Rocker, V. Heuveline, "Energy efficiency of mixed precision iterative refinement methods using
       hybrid hardware platforms", Comput. Sci. Res. Dev. 25, 2010.
    """
    narrow = _narrow_dtype(inner_dtype, system.dtype)
    if narrow == system.dtype:
        return solve(system, rtol, atol, maxiter, watch)
    maxiter = 10 * system.A.whole_shape[0] if maxiter is None else maxiter
    it = Iteration(system, PROGRAM, maxiter, watch=watch)
    it.state.set(tolerance=system.tolerances(rtol, atol), maxiter=maxiter)
    correction = _Correction(solve, system, narrow, it.state, maxiter)
    product = it.apply(system.A, "x", "q")
    body = [it.step("scale"), it.apply(correction, "w", "z"), it.step("correct"), product, it.step("residual")]
    it.run([product, it.step("start")], body)
    correction.note(it.last["norm"].real)
    found = it.result()
    if (it.last.stop == _STAGNATED).any():
        rest = solve(dataclasses.replace(system, has_guess=True), rtol, atol, maxiter - found.iterations, watch)
        correction.add(rest.residuals)
        iterations = found.iterations + rest.iterations
        info = rest.info if rest.info <= 0 else iterations
        found = dataclasses.replace(rest, info=info, iterations=iterations, seconds=found.seconds + rest.seconds)
    return dataclasses.replace(found, residuals=correction.residuals(found.residuals.ndim))


class _Correction(Operator):
    """A solve in the narrow dtype as an approximate inverse, which keeps the history of residuals."""

    is_resident = False

    def __init__(self, solve: Solve, system: System, narrow: np.dtype[Any], state: State, maxiter: int) -> None:
        self.shape, self.dtype = system.A.shape, narrow
        self._solve, self._state, self._maxiter = solve, state, maxiter
        x, b = (system.device.xp.zeros(system.x.size, narrow) for _ in range(2))
        # Corrections stay on the device, whatever kind of array the caller passed.
        on_device = DenseInput(b, system.device)
        self._inner = dataclasses.replace(system, dtype=narrow, x=x, b=b, has_guess=False, given=on_device)
        self._history: list[list[float]] = [[] for _ in range(system.columns)]

    def bind(self, device: Any, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        return self._apply

    def _apply(self, w: Array, z: Array) -> None:
        inner, before = self._inner, self._state.look()
        norms, goes_on = before["norm"].real, before.stop == 0
        self.note(norms)
        wanted = _SAFETY * float((before["tolerance"].real[goes_on] / norms[goes_on]).min())
        inner.x[...], inner.b[...] = 0, w
        for column in np.flatnonzero(~goes_on):
            inner.b.reshape(inner.columns, -1)[column] = 0
        left = self._maxiter - int(before.iterations.max())
        with np.errstate(over="ignore", invalid="ignore"):  # numbers too large for the narrow dtype
            found = self._solve(inner, max(_INNER_RTOL, wanted), 0.0, left, Watch())
        # (all ranks keep the correction, or none)
        is_finite = inner.total(np.array([0.0 if inner.device.xp.isfinite(inner.x).all() else 1.0]))[0] == 0
        z[...] = inner.x if is_finite else 0
        self._state.set(count=self.add(found.residuals, np.where(goes_on, norms, np.nan)))

    def add(self, residuals: npt.NDArray[np.float64], norms: Any = 1.0) -> list[int]:
        """Take over the residuals of a solve, relative to `norms`, and give the iterations of each column."""
        columns = (np.broadcast_to(norms, len(self._history)) * residuals.reshape(len(residuals), -1)).T[:, 1:]
        counts = []
        for history, column in zip(self._history, columns, strict=True):
            kept = column[~np.isnan(column)]
            history.extend(kept.tolist())
            counts.append(len(kept))
        return counts

    def note(self, norms: npt.NDArray[np.float64]) -> None:
        """Put true residuals in the place of the last ones."""
        for history, norm in zip(self._history, norms, strict=True):
            history[-1:] = [float(norm)]

    def residuals(self, ndim: int) -> npt.NDArray[np.float64]:
        """Give the whole history, NaN where a right-hand side was done."""
        found = np.full((max(map(len, self._history)), len(self._history)), np.nan)
        for column, history in enumerate(self._history):
            found[: len(history), column] = history
        return found[:, 0] if ndim == 1 else found


def _narrow_dtype(inner: Any, wide: np.dtype[Any]) -> np.dtype[Any]:
    dtype = dtype_of(inner, "inner_dtype")
    if wide.kind == "c" and dtype.kind == "f":
        dtype = np.dtype(np.result_type(dtype, np.complex64))
    if dtype.kind != wide.kind or dtype.char not in "fdFD" or dtype.itemsize > wide.itemsize:
        raise DtypeError(f"inner_dtype must be a dtype that kernels compute in, no wider than {wide}, got {inner!r}")
    return dtype
