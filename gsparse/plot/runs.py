"""What a run of `gsparse.bench` has measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gsparse.plot.axes import axes_of, new_figure
from gsparse.plot.structure import row_lengths, sparsity
from gsparse.writing import replacing

__all__ = ["save_figures", "setup_by_format", "thread_scaling", "times_by_format"]

# A page of its own for each figure of a run.
PAGE_INCHES = (12.0, 6.0)

# Of the ways of multiplying, in turn; with ten colours no two of seventy look the same.
MARKS = "osD^vP*"

# Small pictures in a row of a sheet, inches a picture, and dots an inch.
SHEET_COLUMNS = 6
SHEET_INCHES = 2.6
DOTS = 130


class Measured(Protocol):
    """What the pictures of a run need to know of its records (`gsparse.bench.Record`)."""

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


def times_by_format(records: Iterable[Measured], ax: Any = None) -> Any:
    """Draw each format's time over the vendor's best, matrix by matrix: below 1 is faster. One alone has bars.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Of one type, or what else has the same attributes.
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes
        `ax` where it was given.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from matplotlib.figure import Figure
    >>> from gsparse.plot import times_by_format
    >>> record = SimpleNamespace(matrix="m", nnz=9, what="ellpack", threads=None, speedup=2.0, reference="best")
    >>> times_by_format([record], Figure().subplots()).get_xlabel()
    'time over best, m'
    """
    found = list(records)
    reference = next((r.reference for r in found if r.reference), "the reference")
    return _by_matrix(found, ax, lambda r: None if not r.speedup else 1 / r.speedup, f"time over {reference}")


def setup_by_format(records: Iterable[Measured], ax: Any = None) -> Any:
    """Draw each format's set-up in products of its own, matrix by matrix. One alone has bars.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Of one type, or what else has the same attributes.
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes
        `ax` where it was given.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from matplotlib.figure import Figure
    >>> from gsparse.plot import setup_by_format
    >>> record = SimpleNamespace(matrix="m", nnz=9, what="ellpack", threads=None, setup_products=9.0)
    >>> setup_by_format([record], Figure().subplots()).get_xlabel()
    'set-up in products, m'
    """
    return _by_matrix(list(records), ax, lambda r: r.setup_products, "set-up in products")


def thread_scaling(records: Iterable[Measured], ax: Any = None) -> Any:
    """Draw the CPU's times over nonzeros, a line a library and count of threads.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Of one type.
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes
        `ax` where it was given.

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
    for (name, threads), points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        color = f"C{threads.bit_length() - 1}"
        ax.plot(x, y, styles.get(name, "-"), color=color, marker=".", label=f"{name}, {threads} thread(s)")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("nonzeros")
    ax.set_ylabel("µs a product")
    if lines:
        ax.legend(fontsize="x-small")
    return ax


def save_figures(
    folder: Path, records: Sequence[Measured], matrices: Sequence[tuple[str, Callable[[], Any]]]
) -> Iterator[Path]:
    """Draw a run's figures into a folder, and give their paths one by one.

    Parameters
    ----------
    folder : Path
        Made where it is not there.
    records : sequence of gsparse.bench.Record
        What was measured: a page a dtype.
    matrices : sequence of (name, callable)
        The names of matrices whose patterns and row lengths are drawn, and what makes each when its turn comes.

    Yields
    ------
    Path
        A PNG that has been written.

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


def _save(path: Path, draw: Callable[[Any, Any], Any], records: Sequence[Measured], title: str) -> Path:
    figure = new_figure(PAGE_INCHES)
    draw(records, figure.subplots()).set_title(title)
    return _write(figure, path)


def _write(figure: Any, path: Path) -> Path:
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=DOTS)
    return path


def _save_sheets(folder: Path, matrices: Sequence[tuple[str, Callable[[], Any]]]) -> Iterator[Path]:
    """Draw the patterns of all matrices on one sheet and their row lengths on another, making each matrix once."""
    across = min(SHEET_COLUMNS, len(matrices))
    down = -(-len(matrices) // across)
    sheets = {name: new_figure((across * SHEET_INCHES, down * SHEET_INCHES)) for name in ("sparsity", "row_lengths")}
    axes = {name: sheet.subplots(down, across, squeeze=False).ravel() for name, sheet in sheets.items()}
    for place, (title, make) in enumerate(matrices):
        A = make()
        for name, draw in (("sparsity", sparsity), ("row_lengths", row_lengths)):
            draw(A, axes[name][place]).set_title(title, fontsize="small")
    for name, sheet in sheets.items():
        for ax in axes[name][len(matrices) :]:
            ax.set_axis_off()
        yield _write(sheet, folder / f"{name}.png")


def _by_matrix(records: Sequence[Measured], ax: Any, value: Callable[[Measured], float | None], label: str) -> Any:
    ax = axes_of(ax)
    names = {r.matrix for r in records}
    if len(names) == 1:
        known = [(r, found) for r in records if (found := value(r)) is not None and found > 0]
        _draw_bars(known, ax)
        ax.set_xlabel(f"{label}, {names.pop()}")
    else:
        _draw_marks(records, ax, value)
        ax.set_ylabel(label)
    return ax


def _draw_bars(known: Sequence[tuple[Measured, float]], ax: Any) -> None:
    """Draw a bar from 1 for each way of multiplying, the first on top, and beside each other those of its threads."""
    places = {what: place for place, what in enumerate(dict.fromkeys(r.what for r, _ in known))}
    counts = list(dict.fromkeys(r.threads for r, _ in known))
    height = 0.8 / max(1, len(counts))
    for number, threads in enumerate(counts):
        part = [(places[r.what], found) for r, found in known if r.threads == threads]
        middles = [place - 0.4 + (number + 0.5) * height for place, _ in part]
        values = np.array([found for _, found in part])
        bars = ax.barh(middles, values - 1, height, left=1.0, color=f"C{number}", label=f"{threads} thread(s)")
        ax.bar_label(bars, [f"{found:.3g}" for found in values], padding=2, fontsize="xx-small")
    ax.axvline(1.0, color="gray", linewidth=0.8)
    ax.set_xscale("log")
    ax.margins(x=0.1)  # (of the numbers beside the bars)
    ax.set_yticks(range(len(places)), list(places), fontsize="x-small")
    ax.invert_yaxis()
    if any(counts):
        ax.legend(fontsize="x-small")


def _draw_marks(records: Sequence[Measured], ax: Any, value: Callable[[Measured], float | None]) -> None:
    """Draw a mark for each matrix and way of multiplying, matrices by size; geometric means stand in the legend."""
    sizes = {r.matrix: r.nnz for r in records}
    places = {name: place for place, name in enumerate(sorted(sizes, key=lambda name: sizes[name]))}
    series: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        found = value(record)
        if found is not None and found > 0:
            name = record.what if record.threads is None else f"{record.what}, {record.threads} thread(s)"
            series.setdefault(name, []).append((places[record.matrix], found))
    for number, (name, points) in enumerate(series.items()):
        x, y = zip(*points, strict=True)
        mean = math.exp(float(np.mean(np.log(y))))
        ax.plot(x, y, MARKS[number % len(MARKS)], color=f"C{number % 10}", markersize=5, label=f"{name}: {mean:.2f}")
    ax.axhline(1.0, color="gray", linewidth=0.8)
    ax.set_xticks(range(len(places)), list(places), rotation=90, fontsize="x-small")
    ax.set_yscale("log")
    if series:
        ax.legend(
            fontsize="x-small",
            title="geometric mean",
            title_fontsize="x-small",
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
