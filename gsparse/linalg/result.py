"""What a solve gives: the solution, how it went, and what to try where it did not go well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array

__all__ = ["BREAKDOWN", "CONVERGED", "MAXITER", "SolveResult", "largest", "more_iterations"]

# What the cell `stop` says; methods may have further reasons (`SolveResult.reasons`).
CONVERGED, BREAKDOWN, MAXITER = 1, 2, 3

_REASONS = {
    0: "stopped by the callback",
    CONVERGED: "converged",
    BREAKDOWN: "broke down: a scalar became zero or not a number",
    MAXITER: "reached maxiter",
}


@dataclass(frozen=True)
class SolveResult:
    """A finished solve; unpacks as ``x, info``.

    Attributes
    ----------
    x : array
        NumPy or CuPy, as the right-hand side was.
    info : int
        As SciPy's: 0 where it converged, the number of iterations where it did not, negative where it broke down.
    iterations : int
        Of the slowest right-hand side.
    residuals : ndarray, shape (iterations + 1,) or (iterations + 1, k)
        The norm that the method watches, before the first iteration and after each; NaN once a right-hand side is done.
    reason : str
        Why it stopped.
    advice : str
        What to try next; empty where it converged.
    seconds : float
        From the call to the solution, set-up included.
    norm : str
        What `residuals` are: "residual" is the norm of r = b - A·x; with a preconditioner, some methods watch another.
    """

    x: Array
    info: int
    iterations: int
    residuals: npt.NDArray[np.float64]
    reason: str
    advice: str
    seconds: float
    norm: str = "residual"

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.info))

    def __str__(self) -> str:
        text = f"{self.reason} after {self.iterations} iterations, {self.seconds:.3g} s"
        if self.residuals.size:
            text += f"; {self.norm} {largest(self.residuals[0]):.3e} → {largest(_last(self.residuals)):.3e}"
        return f"{text}\n{self.advice}" if self.advice else text

    def log(self) -> str:
        """Give the residual of each iteration, a line each, and the summary.

        Returns
        -------
        str
            Of several right-hand sides the largest residual.
        """
        lines = [f"{i:7d}  {largest(residual):.6e}" for i, residual in enumerate(self.residuals)]
        return "\n".join([*lines, str(self)])


def _last(residuals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Give the last residual of each right-hand side; NaN where it has none."""
    columns = residuals.reshape(len(residuals), -1)
    return np.array([[np.nan, *column[~np.isnan(column)]][-1] for column in columns.T])


def largest(residuals: npt.ArrayLike) -> float:
    """Give the largest of residuals that are numbers; NaN where none is, as of a right-hand side with a NaN."""
    return float(np.fmax.reduce(np.asarray(residuals), axis=None, initial=np.nan))


def more_iterations(which: str, preconditioners: str, has_one: bool) -> str:
    """Return the advice for a solve that reached its limit: `which` to allow more of, and what to try for M."""
    other = "try another preconditioner" if has_one else f"give a preconditioner: M=gsparse.linalg.{preconditioners}"
    return f"Allow more {which}, or {other}."


def describe(stop: int, extra: dict[int, str]) -> str:
    """Say what a stop code means."""
    return extra.get(stop, _REASONS.get(stop, f"stopped with code {stop}"))
