"""Pictures of the convergence of solves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gsparse.plot.axes import axes_of


class SolveResultLike(Protocol):
    """The attributes of a `gsparse.linalg.SolveResult` that the picture uses."""

    @property
    def residuals(self) -> npt.NDArray[np.float64]: ...
    @property
    def normal_residuals(self) -> npt.NDArray[np.float64]: ...
    @property
    def reason(self) -> str: ...
    @property
    def iterations(self) -> int: ...
    @property
    def info(self) -> int: ...


def convergence(results: SolveResultLike | Mapping[str, SolveResultLike], ax: Any = None) -> Any:
    """Draw the residual of each iteration relative to the first one.

    There is a line for each solve and right-hand side. A line ends with a dot if the solve converged, and with a cross
    if it did not. A solve that ended with a factorization has no residuals, and is named in the legend alone.

    The residual of a least-squares problem becomes small only if the equations have a solution. A dashed line shows
    norm(A.H @ r), which goes to zero in any case.

    Parameters
    ----------
    results : SolveResult or dict of str to SolveResult
        The results that solvers of `gsparse.linalg` return with ``full_output=True``. A dict names several of them,
        which are drawn into the same Axes.
    ax : matplotlib Axes, optional
        Where to draw. A new figure is made by default.

    Returns
    -------
    matplotlib Axes
        The Axes that were drawn into. The vertical axis is logarithmic, and the legend says how each solve ended.

    Raises
    ------
    TypeError
        If a result is something else, such as the pair ``(x, info)``.
    ValueError
        If `results` is empty.
    PlotError
        If matplotlib is not installed.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> from gsparse.linalg import cg, jacobi
    >>> from gsparse.plot import convergence
    >>> S = scipy.sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> result = cg(S, numpy.ones(50), full_output=True)
    >>> ax = convergence({"cg": result}, Figure().subplots())
    >>> ax.get_legend().get_texts()[0].get_text() == f"cg: converged, {result.iterations} iterations"
    True
    """
    named = results if isinstance(results, Mapping) else {"": results}
    _require_solves(named)
    ax = axes_of(ax)
    for number, (name, result) in enumerate(named.items()):
        prefix, mark = f"{name}{': ' if name else ''}", "o" if result.info == 0 else "x"
        lines = [(result.residuals, f"{result.reason}, {result.iterations} iterations", {"marker": mark})]
        if result.normal_residuals.size:
            lines.append((result.normal_residuals, "norm(A.H @ r)", {"linestyle": "dashed"}))
        for residuals, label, style in lines:
            for index, column in enumerate(_relative(residuals).T):
                last = np.flatnonzero(np.isfinite(column))[-1:].tolist()
                # A line whose label begins with "_" is not in the legend: only the first right-hand side is.
                whole = "_" if index else prefix + label
                ax.plot(column, color=f"C{number}", linewidth=1.2, markevery=last, label=whole, **style)
    ax.set_yscale("log")
    ax.set_xlim(left=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(alpha=0.3, linewidth=0.5)
    ax.set_xlabel("iteration", fontsize="small")
    ax.set_ylabel("residual over the first", fontsize="small")
    ax.set_title("Convergence (circle: success, cross: not converged)", fontsize="medium")
    ax.legend(fontsize="x-small")
    return ax


def _require_solves(named: Mapping[str, Any]) -> None:
    if not named:
        raise ValueError("convergence needs a SolveResult, got an empty dict")
    for result in named.values():
        if not hasattr(result, "residuals"):
            raise TypeError(f"pass the SolveResult of full_output=True, got {type(result).__name__}")


def _relative(residuals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide each column by its first element. Replace zeros, which a logarithmic axis cannot show, by NaN."""
    columns = np.asarray(residuals, float)
    columns = columns[:, None] if columns.ndim == 1 else columns
    first = np.where(columns[:1] > 0, columns[:1], 1.0)
    return np.where(columns > 0, columns, np.nan) / first
