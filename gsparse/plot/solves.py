"""How solves went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gsparse.plot.axes import axes_of

__all__ = ["convergence"]


class Solved(Protocol):
    """What the picture needs to know of a solve (`gsparse.linalg.SolveResult`)."""

    @property
    def residuals(self) -> npt.NDArray[np.float64]: ...
    @property
    def reason(self) -> str: ...
    @property
    def iterations(self) -> int: ...
    @property
    def info(self) -> int: ...


def convergence(results: Solved | Mapping[str, Solved], ax: Any = None) -> Any:
    """Draw the residual of each iteration over the first one, a line a solve and right-hand side.

    A line ends with a dot where the solve has converged, with a cross where it has not.

    Parameters
    ----------
    results : SolveResult or dict of str to SolveResult
        What solvers of `gsparse.linalg` give with ``full_output=True``; several are drawn over each other.
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes
        The vertical axis is logarithmic; the legend says how each solve ended.

    Raises
    ------
    TypeError
        Where something else is given, such as the pair ``(x, info)``.
    ValueError
        Where `results` is empty.
    PlotError
        Where matplotlib is not installed.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> from gsparse.linalg import cg, jacobi
    >>> from gsparse.plot import convergence
    >>> S = scipy.sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> found = cg(S, numpy.ones(50), full_output=True)
    >>> ax = convergence({"cg": found}, Figure().subplots())
    >>> ax.get_legend().get_texts()[0].get_text() == f"cg: converged, {found.iterations} iterations"
    True
    """
    named = results if isinstance(results, Mapping) else {"": results}
    _require_solves(named)
    ax = axes_of(ax)
    for number, (name, result) in enumerate(named.items()):
        label = f"{name}{': ' if name else ''}{result.reason}, {result.iterations} iterations"
        for column in _relative(result.residuals).T:
            last = np.flatnonzero(np.isfinite(column))[-1:].tolist()
            mark = "o" if result.info == 0 else "x"
            ax.plot(column, color=f"C{number}", linewidth=1.2, marker=mark, markevery=last, label=label)
            label = "_"  # (one line in the legend for all right-hand sides)
    ax.set_yscale("log")
    ax.set_xlim(left=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(alpha=0.3, linewidth=0.5)
    ax.set_xlabel("iteration", fontsize="small")
    ax.set_ylabel("residual over the first", fontsize="small")
    ax.legend(fontsize="x-small")
    return ax


def _require_solves(named: Mapping[str, Any]) -> None:
    if not named:
        raise ValueError("convergence needs a SolveResult at least, got none")
    for result in named.values():
        if not hasattr(result, "residuals"):
            raise TypeError(f"pass the SolveResult of full_output=True, got {type(result).__name__}")


def _relative(residuals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Give columns over their first element; what is 0, which a logarithm has no place for, as missing."""
    columns = np.asarray(residuals, float).reshape(len(residuals), -1)
    first = np.where(columns[:1] > 0, columns[:1], 1.0)
    return np.where(columns > 0, columns, np.nan) / first
