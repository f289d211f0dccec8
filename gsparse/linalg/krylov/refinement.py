"""Iterative refinement in mixed precision (Wilkinson 1963): corrections are computed in a narrower dtype.

    pass        equations                                   vectors read and written
    scale       w = r / norm(r)                             2
                z ≈ A⁻¹·w, an inner solve in the narrow dtype
    correct     x += norm(r)·z                              3
    residual    r = b - A·x;  <r, r>                        3

The residual and the solution stay in the wide dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.device.interchange import DenseInput
from gsparse.errors import DtypeError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.linear_system import LinearSystem, parse_dtype
from gsparse.linalg.krylov.solve_loop import IterationLimit, SolveLoop
from gsparse.linalg.krylov.solve_state import Snapshot, SolveState
from gsparse.linalg.krylov.units import ONES
from gsparse.linalg.operators import Apply, Operator
from gsparse.linalg.result import BREAKDOWN_INFO, ConvergenceMonitor, SolveResult

# The signature of a solver: ``solve(system, rtol, atol, maxiter, monitor)``. `maxiter` is one number for all right-hand
# sides, an array with one for each, or None for the default.
Solve = Callable[[LinearSystem, float, float, IterationLimit | None, ConvergenceMonitor], SolveResult]

_STAGNATED = 4

# Relative tolerance of an inner solve. float32 can reach it for condition numbers up to about 1e3. A larger tolerance
# would need more corrections, each of which begins a new Krylov space.
_INNER_RTOL = 1e-5
# A correction that is expected to be the last one aims at this fraction of the tolerance. If a correction takes no
# iteration, or does not reduce the residual to this fraction, the solve stagnates and ends.
_SAFETY = 0.5

# `num_inner` is the number of inner iterations of the last correction.
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
                stop = 1 if norm < tolerance or norm == 0 else 3 if maxiter <= 0 else 0
                stop = 2 if isnan(norm - norm) else stop  # also an infinite norm, by which r cannot be scaled
            """,
        ),
        # The correction is computed for a residual of norm 1, whose elements the narrow dtype represents.
        Step("scale", before="factor = 1 / norm", each="w = factor * r", after="norm_old = norm"),
        Step("correct", before="factor = norm", each="x += factor * z"),
        Step(
            "residual",
            each="r = b - q",
            sums="rr = abs2(r)",
            after=f"""
                iteration += num_inner
                norm = sqrt(rr)
                record(norm)
                stop = 0 if num_inner > 0 and norm <= {_SAFETY} * norm_old else {_STAGNATED}
                stop = 1 if norm < tolerance or norm == 0 else 3 if iteration >= maxiter else stop
                stop = 2 if isnan(norm - norm) else stop
            """,
        ),
    ),
)


def refined(
    solve: Solve,
    inner_dtype: Any,
    system: LinearSystem,
    rtol: float,
    atol: float,
    maxiter: int | None,
    monitor: ConvergenceMonitor,
) -> SolveResult:
    """Solve a system by iterative refinement: corrections in `inner_dtype`, everything else in the system's dtype.

    If a correction no longer reduces the residual, because the matrix is too ill-conditioned for the narrow dtype or
    its values are out of range, the solve continues in the system's own dtype.

    Parameters
    ----------
    solve : callable
        The method: ``solve(system, rtol, atol, maxiter, monitor)``.
    inner_dtype : dtype
        float32; for complex systems this selects the complex dtype of the same precision.
    system, rtol, atol, maxiter, monitor
        The arguments of `solve`. maxiter counts inner iterations; the callback is called after each correction.

    Returns
    -------
    SolveResult
        Its residuals are those of the inner solves, but the last one of each correction is the true residual.

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
        return solve(system, rtol, atol, maxiter, monitor)
    maxiter = 10 * system.A.whole_shape[0] if maxiter is None else maxiter
    loop = SolveLoop(system, PROGRAM, maxiter, monitor=monitor)
    loop.state.set(tolerance=system.tolerances(rtol, atol), maxiter=maxiter)
    correction = _Correction(solve, system, narrow, loop.state, maxiter)
    product = loop.apply(system.A, "x", "q")
    body = [loop.step("scale"), loop.apply(correction, "w", "z"), loop.step("correct"), product, loop.step("residual")]
    loop.run([product, loop.step("start")], body)
    correction.replace_last(loop.last)
    result = loop.result(infos=BREAKDOWN_INFO)
    if (loop.last.stop == _STAGNATED).any():
        wide = solve(dataclasses.replace(system, has_guess=True), rtol, atol, maxiter - loop.last.iterations, monitor)
        iterations = int((loop.last.iterations + correction.append(wide.residuals)).max())
        info = wide.info if wide.info <= 0 else iterations
        result = dataclasses.replace(wide, info=info, iterations=iterations, seconds=result.seconds + wide.seconds)
    return dataclasses.replace(result, residuals=correction.residuals(result.residuals.ndim))


class _Correction(Operator):
    """The inner solve as an operator that approximates the inverse of A, with the residuals of all its solves."""

    is_resident = False

    def __init__(
        self, solve: Solve, system: LinearSystem, narrow: np.dtype[Any], state: SolveState, maxiter: int
    ) -> None:
        self.shape, self.dtype = system.A.shape, narrow
        self._solve, self._state, self._maxiter = solve, state, maxiter
        x, b = (system.device.xp.zeros(system.x.size, narrow) for _ in range(2))
        # The inner solve returns a device array, even if the user passed host arrays.
        on_device, self._system = DenseInput(b, system.device), system
        # The inner solve needs no scaling of its own: w has norm 1.
        self._inner = dataclasses.replace(
            system, dtype=narrow, x=x, b=b, has_guess=False, b_input=on_device, units=ONES, b_norms=None
        )
        self._history: list[list[float]] = [[] for _ in range(system.columns)]

    def bind(self, device: Any, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        return self._apply

    def _apply(self, w: Array, z: Array) -> None:
        inner, snapshot = self._inner, self._state.read()
        norms, is_active = snapshot["norm"].real, snapshot.stop == 0
        self.replace_last(snapshot)
        rtol = _SAFETY * float((snapshot["tolerance"].real[is_active] / norms[is_active]).min())
        inner.x[...], inner.b[...] = 0, w
        for column in np.flatnonzero(~is_active):
            inner.b.reshape(inner.columns, -1)[column] = 0
        left = self._maxiter - snapshot.iterations
        with np.errstate(over="ignore", invalid="ignore"):  # values may be out of range in the narrow dtype
            result = self._solve(inner, max(_INNER_RTOL, rtol), 0.0, left, ConvergenceMonitor())
        # All ranks must make the same decision whether to apply the correction.
        bad = kernels_of(inner.device).reductions.first_where(inner.device, inner.x.reshape(-1), "not finite")
        is_finite = inner.sum_over_ranks(np.array([bad is not None], float))[0] == 0
        z[...] = inner.x if is_finite else 0
        self._state.set(
            num_inner=self.append(result.residuals, np.where(is_active, self._system.norms_of_caller(norms), np.nan))
        )

    def append(self, residuals: npt.NDArray[np.float64], norms: Any = 1.0) -> npt.NDArray[np.int64]:
        """Append the residuals of an inner solve, times `norms`; return the number of iterations of each column."""
        columns = (np.broadcast_to(norms, len(self._history)) * residuals.reshape(len(residuals), -1)).T[:, 1:]
        counts = []
        for history, column in zip(self._history, columns, strict=True):
            residuals_of_column = column[~np.isnan(column)]
            history.extend(residuals_of_column.tolist())
            counts.append(len(residuals_of_column))
        return np.array(counts)

    def replace_last(self, snapshot: Snapshot) -> None:
        """Replace the last residual of each column by the true residual."""
        norms = self._system.norms_of_caller(snapshot["norm"].real)
        for history, norm in zip(self._history, norms, strict=True):
            history[-1:] = [float(norm)]

    def residuals(self, ndim: int) -> npt.NDArray[np.float64]:
        """Return the residuals of all iterations, with NaN after a right-hand side has stopped."""
        result = np.full((max(map(len, self._history)), len(self._history)), np.nan)
        for column, history in enumerate(self._history):
            result[: len(history), column] = history
        return result[:, 0] if ndim == 1 else result


def _narrow_dtype(inner: Any, wide: np.dtype[Any]) -> np.dtype[Any]:
    dtype = parse_dtype(inner, "inner_dtype")
    if wide.kind == "c" and dtype.kind == "f":
        dtype = np.dtype(np.result_type(dtype, np.complex64))
    if dtype.kind != wide.kind or dtype.char not in "fdFD" or dtype.itemsize > wide.itemsize:
        raise DtypeError(f"inner_dtype must be a dtype that kernels compute in, no wider than {wide}, got {inner!r}")
    return dtype
