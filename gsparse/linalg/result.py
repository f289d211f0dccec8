"""The result of a solve: solution, residuals and advice. Also the user's callback and the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gsparse._version import install_command
from gsparse.device.dtypes import Array


class ConvergenceMonitor:
    """Call the user's callback and update the progress bar whenever the host has read the scalars of a solve.

    Parameters
    ----------
    callback : callable, optional
        Called after each iteration with the value of `argument`.
    argument : callable, optional
        ``argument(loop, snapshot)`` computes the argument of `callback`. By default this is the current solution, in
        the library of the right-hand side.
    progress : bool
        Whether to show a progress bar (tqdm) with the number of iterations and the residual.
    bounded : bool
        Whether the caller passed a maximum number of iterations. If not, the bar has no end.

    Raises
    ------
    ModuleNotFoundError
        If `progress` is true and tqdm is not installed.
    """

    def __init__(
        self,
        callback: Callable[[Any], Any] | None = None,
        argument: Callable[[Any, Any], Any] | None = None,
        progress: bool = False,
        bounded: bool = True,
    ) -> None:
        self.callback, self._argument, self._bounded = callback, argument, bounded
        self._make_bar = bars() if progress else None
        self._bar: Any = None

    @property
    def every_iteration(self) -> bool:
        """Whether the host has to read the scalars after each iteration."""
        return self.callback is not None

    @contextmanager
    def showing(self, maxiter: int) -> Iterator[None]:
        """Show the progress bar within this block, if the caller wants one."""
        if self._make_bar is None:
            yield
            return
        with self._make_bar(total=maxiter if self._bounded else None, unit="it") as self._bar:
            yield
        self._bar = None

    def update(self, snapshot: Any, loop: Any) -> None:
        """Update the progress bar and call the callback, after one or several iterations.

        Parameters
        ----------
        snapshot : Snapshot
            The scalars of the solve.
        loop : SolveLoop
            The solve.
        """
        if self._bar is not None:
            residual = largest(loop.residuals[-1:])
            self._bar.set_postfix_str(f"{loop.norm} {residual:.2e}", refresh=False)
            self._bar.update(int(snapshot.iterations.max()) - self._bar.n)
        if self.callback is not None:
            self.callback(self._argument(loop, snapshot) if self._argument else loop.solution())


def bars() -> Callable[..., Any]:
    """Return tqdm's progress bar, or raise an error that says how to install it."""
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tqdm":
            raise
        raise ModuleNotFoundError(f"progress=True needs tqdm: {install_command('progress')}", name="tqdm") from None
    return cast(Callable[..., Any], tqdm)


# Values of the cell `stop` that all methods share. A method may define further ones (`SolveLoop.result`).
CONVERGED, BREAKDOWN, MAXITER = 1, 2, 3
# Codes for a solve that passed its own test but failed: x overflows or underflows its dtype, or b - A·x is too large.
OUT_OF_RANGE, REFUTED = -1, -2
# Values of `info` after a breakdown; SciPy's are negative, too.
BREAKDOWN_INFO = {BREAKDOWN: -1}

_REASONS = {
    0: "stopped by the callback",
    CONVERGED: "converged",
    BREAKDOWN: "broke down: a scalar became zero or not a number",
    MAXITER: "reached maxiter",
    OUT_OF_RANGE: "stopped: x overflows or underflows its dtype, so scale b or A",
    REFUTED: "stopped, but b - A·x is larger than the tolerance, because of rounding errors or an operator's scale",
}
ROUNDING_ADVICE = (
    "The residual is rounding error and becomes no smaller: scale rows and columns of A to similar norms, compute in "
    "double precision, or pass a larger tolerance."
)


@dataclass(frozen=True)
class SolveAttempt:
    """One method that `solve` has tried.

    Attributes
    ----------
    method : str
        The solver and its preconditioner, such as "cg with amg".
    why : str
        Why the method was chosen.
    outcome : str
        "converged", or the reason why the method did not converge.
    iterations : int
    relative_residual : float
        The largest of norm(b - A·x) / norm(b) over all right-hand sides, for the best solution so far.
    seconds : float
        Time for the preconditioner and the iterations.
    """

    method: str
    why: str
    outcome: str
    iterations: int
    relative_residual: float
    seconds: float

    def __str__(self) -> str:
        steps = f", {self.iterations} iterations" if self.iterations else ""
        end = f"{steps}, {self.seconds:.3g} s, residual {self.relative_residual:.1e}"
        return f"{self.method} ({self.why}): {self.outcome}{end}"


@dataclass(frozen=True)
class SolveResult:
    """The result of a solve; unpacks as ``x, info``.

    Attributes
    ----------
    x : array
        The solution: NumPy or CuPy, as the right-hand side.
    info : int
        As in SciPy: 0 if the solve converged, the number of iterations if it did not, negative after a breakdown. GMRES
        returns its maxiter in the last two cases.
    iterations : int
        Number of iterations of the slowest right-hand side.
    residuals : ndarray, shape (iterations + 1,) or (iterations + 1, k)
        The norm that the method monitors, before the first iteration and after each one. NaN after a right-hand side
        has stopped.
    reason : str
        Why the solve stopped. "converged" means that norm(b - A·x) / norm(b) reached the tolerance. Solvers with other
        tests (`minres`, `lsqr` and `lsmr`, as in SciPy) name the test that x has passed.
    advice : str
        What to try next; empty if the solve converged.
    seconds : float
        Time of the iterations and of preparing and returning the vectors, without the conversion of the arguments. For
        `solve`, the time of the whole call.
    norm : str
        Which norm `residuals` contains: "residual" is the norm of r = b - A·x. With a preconditioner, some methods
        monitor another norm.
    method, why : str
        The solver and preconditioner that `solve` has chosen, such as "cg with amg", and why; empty if the caller chose
        the solver. If no method has converged, `method` and `residuals` are those of the last method, but x may come
        from an earlier one.
    attempts : tuple of SolveAttempt
        All methods that `solve` has tried; `method` is the last one.
    relative_residual : float, or ndarray of shape (k,)
        norm(b - A·x) / norm(b) of the x that is returned, computed with a product after the solve; where b is zero, the
        norm of the residual itself.
    normal_residuals : ndarray, shape (iterations + 1,) or (iterations + 1, k)
        norm(A.H @ r) for each of the `residuals` of `lsqr` and `lsmr`, which converges to zero even if the residual
        does not. With damping, A is extended by the rows damp·I, and r by the rows -damp·x. Empty for other solvers.
    statistics : tuple
        The values that SciPy's `lsqr` and `lsmr` return after x: istop, the number of iterations, norms, and for `lsqr`
        the variance. Empty for other solvers.
    """

    x: Array
    info: int
    iterations: int
    residuals: npt.NDArray[np.float64]
    reason: str
    advice: str
    seconds: float
    norm: str = "residual"
    method: str = ""
    why: str = ""
    attempts: tuple[SolveAttempt, ...] = ()
    relative_residual: float | npt.NDArray[np.float64] = float("nan")
    normal_residuals: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    statistics: tuple[Any, ...] = ()

    @property
    def is_refuted(self) -> bool:
        """Whether x passed the test of the method, but norm(b - A·x) is larger than the tolerance."""
        return self.reason == _REASONS[REFUTED]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.info))

    def __getitem__(self, place: int) -> Any:
        return (self.x, self.info)[place]

    def __str__(self) -> str:
        text = f"{self.reason} after {self.iterations} iterations, {self.seconds:.3g} s"
        if self.residuals.size:
            first, last = first_and_last(self.residuals)
            text += f"; {self.norm} {first:.3e} → {last:.3e}"
        if self.normal_residuals.size:
            first, last = first_and_last(self.normal_residuals)
            text += f"; norm(A.H @ r) {first:.3e} → {last:.3e}"
        if not np.isnan(relative := largest(self.relative_residual)):
            text += f"; norm(b - A·x) / norm(b) = {relative:.1e}"
        tried = [f"tried {attempt}" for attempt in self.attempts]
        return "\n".join([text, *tried, *([self.advice] if self.advice else [])])

    def in_scipys_form(self) -> tuple[Any, ...]:
        """Return the tuple that SciPy's solver of the same name returns.

        Returns
        -------
        tuple
            ``(x, info)``; for `lsqr` and `lsmr`, ``(x, *statistics)``.
        """
        return (self.x, *(self.statistics or (self.info,)))

    def log(self) -> str:
        """Return a text with the residual of each iteration, one per line, and a summary.

        Returns
        -------
        str
            For several right-hand sides, each line contains the largest residual.
        """
        lines = [f"{i:7d}  {largest(residual):.6e}" for i, residual in enumerate(self.residuals)]
        return "\n".join([*lines, str(self)])


def first_and_last(residuals: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the largest first residual and the largest last residual of all right-hand sides; NaN if unknown."""
    columns = residuals.reshape(len(residuals), -1)
    last = [[np.nan, *column[~np.isnan(column)]][-1] for column in columns.T]
    return largest(columns[:1]), largest(last)


def largest(residuals: npt.ArrayLike) -> float:
    """Return the largest residual, ignoring NaN; NaN if all of them are NaN."""
    return float(np.fmax.reduce(np.asarray(residuals), axis=None, initial=np.nan))


def more_iterations(which: str, preconditioners: str, has_one: bool) -> str:
    """Return the advice for a solve that reached its limit of `which` ("iterations", for instance).

    `has_one` says whether the solve had a preconditioner. If not, the advice names `preconditioners`.
    """
    other = "try another preconditioner" if has_one else f"give a preconditioner: M=gsparse.linalg.{preconditioners}"
    return f"Allow more {which}, or {other}."


def describe(stop: int, extra: dict[int, str]) -> str:
    """Return the meaning of a stop code. `extra` are the meanings of codes that only one method has."""
    return extra.get(stop, _REASONS.get(stop, f"stopped with code {stop}"))
