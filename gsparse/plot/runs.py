"""Pictures of measurements: the convergence of solves, the speed of products, and the work of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gsparse.plot.axes import axes_of, label_log_axis


class SolveResultLike(Protocol):
    """The attributes of a `gsparse.linalg.SolveResult` that `convergence` uses."""

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
    """Draw the residual of each iteration relative to the first residual.

    There is a line for each solve and right-hand side. A line ends with a dot if the solve converged, and with a cross
    if it did not. A solve that ended with a factorization has no residuals, and appears only in the legend.

    The residual of a least-squares problem becomes small only if the equations have a solution. A dashed line shows
    norm(A.H @ r), which always goes to zero.

    Parameters
    ----------
    results : SolveResult or dict of str to SolveResult
        The results that solvers of `gsparse.linalg` return with ``full_output=True``. A dict holds several named
        results, which are drawn into the same Axes.
    ax : matplotlib Axes, optional
        The Axes to draw into. By default, those of a new figure.

    Returns
    -------
    matplotlib Axes
        The Axes with the picture. The vertical axis is logarithmic, and the legend says how each solve ended.

    Raises
    ------
    TypeError
        If a result is not a SolveResult, but for example the pair ``(x, info)``.
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
                # Lines whose labels begin with "_" are not in the legend, so only the first right-hand side is.
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


# Markers of the series. With matplotlib's ten colours, seventy series look different.
_MARKS = "osD^vP*"


def times_by_format(records: Iterable[Any], ax: Any = None) -> Any:
    """Draw each format's time, divided by the best time of the other libraries. Below 1, the format is faster.

    The label of the axis names these libraries: on a GPU only the vendor's if they were measured. A single matrix has a
    bar for each format. Several matrices are ordered by size, with a mark for each format.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        The records. Those without a speed-up, such as records of skipped formats, are not drawn.
    ax : matplotlib Axes, optional
        The Axes to draw into. By default, those of a new figure.

    Returns
    -------
    matplotlib Axes
        The Axes with the picture.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from matplotlib.figure import Figure
    >>> from gsparse.plot import times_by_format
    >>> record = SimpleNamespace(matrix="m", nnz=9, dtype="float64", what="ellpack", threads=None, speedup=2.0)
    >>> record.reference = "best"
    >>> times_by_format([record], Figure().subplots()).get_xlabel()
    'time over best (lower is better), m'
    """
    measured = [record for record in records if record.speedup]
    ax = axes_of(ax)
    sizes = {record.matrix: record.nnz for record in measured}
    reference = next((record.reference for record in measured), "the other libraries")
    label = f"time over {reference} (lower is better)"
    ax.set_xscale("log")
    if len(sizes) == 1:
        names = [_name(record) for record in measured]
        times = [1 / record.speedup for record in measured]
        # The bars begin at 1.
        bars = ax.barh(range(len(names)), [time - 1 for time in times], left=1.0)
        ax.bar_label(bars, [f"{time:.3g}" for time in times], padding=2, fontsize="xx-small")
        label += f", {next(iter(sizes))}"
    else:
        names = sorted(sizes, key=lambda name: sizes[name])
        _draw_marks(measured, {name: position for position, name in enumerate(names)}, ax)
    extremes = [1.0, *(1 / record.speedup for record in measured)]
    label_log_axis(ax.xaxis, min(extremes), max(extremes))
    ax.axvline(1.0, color="gray", linewidth=0.8)
    ax.set_yticks(range(len(names)), names, fontsize="x-small")
    ax.invert_yaxis()
    ax.set_xlabel(label)
    return ax


def _draw_marks(records: Sequence[Any], positions: dict[str, int], ax: Any) -> None:
    for number, name in enumerate(dict.fromkeys(map(_name, records))):
        series = [record for record in records if _name(record) == name]
        x, y = [1 / record.speedup for record in series], [positions[record.matrix] for record in series]
        ax.plot(x, y, _MARKS[number % len(_MARKS)], color=f"C{number % 10}", markersize=5, label=name)
    if records:
        ax.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))


def _name(record: Any) -> str:
    threads = "" if record.threads is None else f", {record.threads} thread(s)"
    return f"{record.what}, {record.dtype}{threads}"


@runtime_checkable
class PartitionedMatrix(Protocol):
    """The attributes of a `gsparse.distributed.DistributedMatrix` that `distribution` uses."""

    @property
    def nnz_per_worker(self) -> Sequence[int]: ...
    @property
    def ghosts_per_worker(self) -> Sequence[int]: ...
    @property
    def row_bounds(self) -> Sequence[int]: ...


def distribution(A: PartitionedMatrix, ax: Any = None) -> Any:
    """Draw the entries, rows and ghost entries of each worker of a distributed matrix.

    The entries are the work of a product. The ghosts are the values of x that a worker receives from other workers in
    each product. If a worker has many ghosts compared with its rows, it spends more time on communication than on
    computation. Entries use the left axis. Rows, with the ghosts stacked on top, use the right axis.

    Parameters
    ----------
    A : gsparse.distributed.DistributedMatrix
        The matrix, or an object with the same `nnz_per_worker`, `ghosts_per_worker` and `row_bounds`.
    ax : matplotlib Axes, optional
        The Axes to draw into. By default, those of a new figure.

    Returns
    -------
    matplotlib Axes
        The Axes of the entries, with the legend, which says how unevenly the entries are divided.

    Raises
    ------
    TypeError
        If the matrix is not distributed.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from matplotlib.figure import Figure
    >>> A = SimpleNamespace(nnz_per_worker=[9, 7], ghosts_per_worker=[1, 2], row_bounds=(0, 3, 6))
    >>> [text.get_text() for text in distribution(A, Figure().subplots()).get_legend().get_texts()]
    ['entries (most: 1.12 times the mean)', 'rows', 'ghosts (0.50 per row)']
    """
    if not isinstance(A, PartitionedMatrix):
        raise TypeError(
            f"a distributed matrix is needed, got {type(A).__name__}: pass gsparse.distributed.distribute(A)"
        )
    ax = axes_of(ax)
    entries, ghosts, rows = np.array(A.nnz_per_worker), np.array(A.ghosts_per_worker), np.diff(A.row_bounds)
    unevenness = entries.max() / entries.mean() if entries.any() else 1.0
    ghosts_per_row = ghosts.sum() / max(rows.sum(), 1)
    right = ax.twinx()
    ranks, width = np.arange(entries.size), 0.4
    bars = [
        ax.bar(
            ranks - width / 2,
            entries,
            width,
            color="tab:blue",
            label=f"entries (most: {unevenness:.2f} times the mean)",
        ),
        right.bar(ranks + width / 2, rows, width, color="tab:gray", label="rows"),
        right.bar(
            ranks + width / 2,
            ghosts,
            width,
            bottom=rows,
            color="tab:orange",
            label=f"ghosts ({ghosts_per_row:.2f} per row)",
        ),
    ]
    right.set_ylabel("rows, and ghosts on top", fontsize="small")
    ax.set_xlabel("rank", fontsize="small")
    ax.set_ylabel("entries", fontsize="small")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_title(f"Distribution of {entries.sum():,} entries over {entries.size} ranks", fontsize="medium")
    ax.legend(handles=bars, fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(bars))
    return ax
