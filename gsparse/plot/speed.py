"""A picture of the records of a `gsparse.bench` run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gsparse.plot.axes import axes_of, label_log_axis

# Markers of the series, used in turn. With matplotlib's ten colours, seventy series look different.
_MARKS = "osD^vP*"


def times_by_format(records: Iterable[Any], ax: Any = None) -> Any:
    """Draw each format's time relative to the best time of the other libraries. Values below 1 are faster.

    The label of the axis names these libraries: on a GPU those of the vendor if they were measured. A single matrix has
    a bar for each format. Several matrices are ordered by size, and have a mark for each format.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Records without a speed-up, such as those of formats that were left out, are not drawn.
    ax : matplotlib Axes, optional
        Where to draw. A new figure is made by default.

    Returns
    -------
    matplotlib Axes
        The Axes that were drawn into.

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
        # Bars begin at 1.
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
