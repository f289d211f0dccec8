"""Pictures of the records of a `gsparse.bench` run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, Protocol

import numpy as np

from gsparse.plot.axes import axes_of, label_log_axis, new_figure
from gsparse.plot.structure import row_lengths, sparsity
from gsparse.writing import replacing

__all__ = ["save_figures", "setup_by_format", "thread_scaling", "times_by_format"]

# Width and height of a figure that shows times or set-up, in inches.
PAGE_INCHES = (12.0, 6.0)

# Markers of the series, used in turn. With matplotlib's ten colours, seventy series look different.
MARKS = "osD^vP*"

# What a picture says of a record without a time, and the largest number of characters of a line that says why.
_LEFT_OUT = {"skipped": "left out", "failed": "FAILED"}
_NOTE_WIDTH = 140

# A sheet of small pictures: pictures per row, inches per picture, and dots per inch.
SHEET_COLUMNS = 6
SHEET_INCHES = 2.6
DPI = 130


class RecordLike(Protocol):
    """The attributes of a `gsparse.bench.Record` that the pictures use."""

    @property
    def matrix(self) -> str: ...
    @property
    def nnz(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def us(self) -> float | None: ...
    @property
    def speedup(self) -> float | None: ...
    @property
    def setup_products(self) -> float | None: ...
    @property
    def reference(self) -> str: ...
    @property
    def note(self) -> str: ...
    @property
    def status(self) -> str: ...


def times_by_format(records: Iterable[RecordLike], ax: Any = None) -> Any:
    """Draw each format's time relative to the best time of the other libraries. Values below 1 are faster.

    The label of the axis names these libraries: on a GPU those of the vendor if they were measured.

    Several matrices are ordered by size and have a mark per format; a single matrix has a bar per format. A format that
    was left out, or that failed, is named, for a single matrix with the reason.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Records of one dtype, or other objects with the same attributes.
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
    >>> record = SimpleNamespace(matrix="m", nnz=9, what="ellpack", threads=None, speedup=2.0, status="measured")
    >>> record.reference = "best"
    >>> times_by_format([record], Figure().subplots()).get_xlabel()
    'time over best (lower is better), m'
    """
    rows = list(records)
    reference = next((r.reference for r in rows if r.reference), "the reference")
    return _draw_by_matrix(
        rows, ax, lambda r: None if not r.speedup else 1 / r.speedup, f"time over {reference} (lower is better)"
    )


def setup_by_format(records: Iterable[RecordLike], ax: Any = None) -> Any:
    """Draw the set-up time of each format, in units of the time of one product in that format.

    Several matrices are ordered by size and have a mark per format; a single matrix has a bar per format.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Records of one dtype, or other objects with the same attributes.
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
    >>> from gsparse.plot import setup_by_format
    >>> record = SimpleNamespace(matrix="m", nnz=9, what="ellpack", threads=None, setup_products=9.0)
    >>> record.status = "measured"
    >>> setup_by_format([record], Figure().subplots()).get_xlabel()
    'set-up in products (lower is better), m'
    """
    return _draw_by_matrix(list(records), ax, lambda r: r.setup_products, "set-up in products (lower is better)")


def thread_scaling(records: Iterable[RecordLike], ax: Any = None) -> Any:
    """Draw the time of a product on the CPU against the number of nonzeros.

    There is a line for each number of threads of gsparse's own choice and of each library. Formats that were requested
    by name are left out.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Records of one dtype.
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
    >>> from gsparse.plot import thread_scaling
    >>> plan = SimpleNamespace(what="the plan", kind="plan", nnz=1000, threads=2, us=4.0)
    >>> ax = thread_scaling([plan], Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['gsparse, 2 thread(s)']
    """
    ax = axes_of(ax)
    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for record in records:
        if record.us and record.threads and record.kind != "format":
            name = "gsparse" if record.kind == "plan" else record.what
            lines.setdefault((name, record.threads), []).append((record.nnz, record.us))
    styles = dict(zip(dict.fromkeys(name for name, _ in lines), ("-", ":", "--", "-."), strict=False))
    colors = {threads: f"C{i}" for i, threads in enumerate(sorted({threads for _, threads in lines}))}
    for (name, threads), points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        ax.plot(x, y, styles.get(name, "-"), color=colors[threads], marker=".", label=f"{name}, {threads} thread(s)")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("nonzeros")
    ax.set_ylabel("µs per product (lower is better)")
    if lines:
        sizes, times = zip(*itertools.chain(*lines.values()), strict=True)
        label_log_axis(ax.xaxis, min(sizes), max(sizes))
        label_log_axis(ax.yaxis, min(times), max(times))
        ax.legend(fontsize="x-small")
    return ax


def save_figures(
    folder: Path, records: Sequence[RecordLike], matrices: Sequence[tuple[str, Callable[[], Any]]]
) -> Iterator[Path]:
    """Draw the figures of a run into a folder, and yield the path of each.

    Parameters
    ----------
    folder : Path
        The folder, which is made if it does not exist.
    records : sequence of gsparse.bench.Record
        The records of the run. Each dtype has figures of its own.
    matrices : sequence of (name, callable)
        The matrices whose patterns and row lengths are drawn: their names, and functions that make them. Each function
        is called once, when its matrix is drawn.

    Yields
    ------
    Path
        A PNG file that has been written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import scipy.sparse
    >>> from gsparse.plot import save_figures
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = save_figures(Path(folder), [], [("identity", lambda: scipy.sparse.eye_array(50))])
    ...     [path.name for path in paths]
    ['sparsity.png', 'row_lengths.png']
    """
    folder.mkdir(parents=True, exist_ok=True)
    for dtype in dict.fromkeys(r.dtype for r in records):
        rows = [r for r in records if r.dtype == dtype]
        yield _save(folder / f"times_{dtype}.png", times_by_format, rows, dtype)
        yield _save(folder / f"setup_{dtype}.png", setup_by_format, rows, dtype)
        if any(r.threads for r in rows) and len({r.nnz for r in rows}) > 1:
            yield _save(folder / f"threads_{dtype}.png", thread_scaling, rows, dtype)
    if matrices:
        yield from _save_sheets(folder, matrices)


def _save(path: Path, draw: Callable[[Any, Any], Any], records: Sequence[RecordLike], title: str) -> Path:
    figure = new_figure(PAGE_INCHES)
    draw(records, figure.subplots()).set_title(title)
    return _write(figure, path)


def _write(figure: Any, path: Path) -> Path:
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=DPI)
    return path


def _save_sheets(folder: Path, matrices: Sequence[tuple[str, Callable[[], Any]]]) -> Iterator[Path]:
    """Draw the patterns of all matrices on one sheet and their row lengths on another. Make each matrix once."""
    num_cols = min(SHEET_COLUMNS, len(matrices))
    num_rows = -(-len(matrices) // num_cols)
    size = (num_cols * SHEET_INCHES, num_rows * SHEET_INCHES)
    sheets = {name: new_figure(size) for name in ("sparsity", "row_lengths")}
    axes = {name: sheet.subplots(num_rows, num_cols, squeeze=False).ravel() for name, sheet in sheets.items()}
    for index, (title, make) in enumerate(matrices):
        A = make()
        for name, draw in (("sparsity", sparsity), ("row_lengths", row_lengths)):
            draw(A, axes[name][index]).set_title(title, fontsize="small")
    for name, sheet in sheets.items():
        for ax in axes[name][len(matrices) :]:
            ax.set_axis_off()
        yield _write(sheet, folder / f"{name}.png")


def _draw_by_matrix(
    records: Sequence[RecordLike], ax: Any, value_of: Callable[[RecordLike], float | None], label: str
) -> Any:
    """Draw a value of each record: as bars for a single matrix, as marks over the matrices for several."""
    ax = axes_of(ax)
    names = {r.matrix for r in records}
    if len(names) == 1:
        rows = [(r, value) for r in records if (value := value_of(r)) is not None and value > 0]
        _draw_bars(rows, [r for r in records if r.status != "measured"], dict.fromkeys(r.what for r in records), ax)
        ax.set_xlabel(f"{label}, {names.pop()}")
    else:
        _draw_marks(records, ax, value_of)
        ax.set_ylabel(label)
    return ax


def _draw_bars(
    rows: Sequence[tuple[RecordLike, float]], left_out: Sequence[RecordLike], order: Iterable[str], ax: Any
) -> None:
    """Draw a group of bars for each way of multiplying, with a bar for each thread count.

    Bars begin at 1. The first group is at the top, in the order that is given. A way that was left out has the reason
    in place of its bars.
    """
    measured = {r.what for r, _ in rows}
    shown = measured | {r.what for r in left_out}
    positions = {what: position for position, what in enumerate(what for what in order if what in shown)}
    thread_counts = list(dict.fromkeys(r.threads for r, _ in rows))
    height = 0.8 / max(1, len(thread_counts))
    for number, threads in enumerate(thread_counts):
        series = [(positions[r.what], value) for r, value in rows if r.threads == threads]
        centres = [position - 0.4 + (number + 0.5) * height for position, _ in series]
        values = np.array([value for _, value in series])
        bars = ax.barh(centres, values - 1, height, left=1.0, color=f"C{number}", label=f"{threads} thread(s)")
        ax.bar_label(bars, [f"{value:.3g}" for value in values], padding=2, fontsize="xx-small")
    for record in left_out:
        if record.what not in measured:
            note = "\n".join(wrap(f"{_LEFT_OUT[record.status]}: {record.note}", _NOTE_WIDTH))
            place = ax.get_yaxis_transform()  # x in parts of the width, y in data
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            ax.text(0.01, positions[record.what], note, va="center", fontsize="xx-small", transform=place, bbox=box)
    ax.axvline(1.0, color="gray", linewidth=0.8)
    ax.set_xscale("log")
    low, high = (bound([1.0, *(value for _, value in rows)]) for bound in (min, max))
    margin = max((high / low) ** 0.1, 1.1)  # for the numbers beside the bars
    ax.set_xlim(low / margin, high * margin)
    label_log_axis(ax.xaxis, low, high)
    ax.set_yticks(range(len(positions)), list(positions), fontsize="x-small")
    ax.set_ylim(len(positions) - 0.4, -0.6)
    if any(thread_counts):
        ax.legend(fontsize="x-small")


def _draw_marks(records: Sequence[RecordLike], ax: Any, value_of: Callable[[RecordLike], float | None]) -> None:
    """Draw a mark for each matrix and way of multiplying, matrices ordered by size. The legend has geometric means."""
    sizes = {r.matrix: r.nnz for r in records}
    positions = {name: position for position, name in enumerate(sorted(sizes, key=lambda name: sizes[name]))}
    series: dict[str, list[tuple[int, Any]]] = {}
    for record in records:
        value = value_of(record)
        is_measured = value is not None and value > 0
        if is_measured or record.status != "measured":
            name = record.what if record.threads is None else f"{record.what}, {record.threads} thread(s)"
            points = series.setdefault(name, [])
        if is_measured:
            points.append((positions[record.matrix], value))
    for number, (name, points) in enumerate(series.items()):
        x, y = zip(*points, strict=True) if points else ((), ())
        mean = f"{math.exp(float(np.mean(np.log(y)))):.2f}" if points else "left out"
        share = f" ({len(points)} of {len(positions)})" if 0 < len(points) < len(positions) else ""
        label = f"{name}: {mean}{share}"
        ax.plot(x, y, MARKS[number % len(MARKS)], color=f"C{number % 10}", markersize=5, label=label)
    values = [1.0, *(value for points in series.values() for _, value in points)]
    ax.axhline(1.0, color="gray", linewidth=0.8)
    ax.set_xticks(range(len(positions)), list(positions), rotation=90, fontsize="x-small")
    ax.set_yscale("log")
    label_log_axis(ax.yaxis, min(values), max(values))
    if series:
        ax.legend(
            fontsize="x-small",
            title="geometric mean (matrices measured)",
            title_fontsize="x-small",
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
