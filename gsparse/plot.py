"""Pictures of matrices and of what was measured; each function draws into matplotlib Axes and gives them back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gsparse.errors import GsparseError

__all__ = [
    "PlotError",
    "distribution",
    "row_lengths",
    "save_figures",
    "setup_by_format",
    "sparsity",
    "thread_scaling",
    "times_by_format",
]

# Cells a side of a sparsity picture: as many as a figure has points to show them with.
CELLS = 256

# Entries counted at a time, which bounds the memory beside the matrix's own.
CHUNK_ENTRIES = 10_000_000

# A page of its own for each figure of a run.
PAGE_INCHES = (12.0, 6.0)

# Of the ways of multiplying, in turn; with ten colours no two of seventy look the same.
MARKS = "osD^vP*"

# Small pictures in a row of a sheet, inches a picture, and dots an inch.
SHEET_COLUMNS = 6
SHEET_INCHES = 2.6
DOTS = 130


class PlotError(GsparseError, ImportError):
    """matplotlib is not installed."""


class Spread(Protocol):
    """What the picture of a distributed matrix needs to know of it (`gsparse.distributed.DistributedMatrix`)."""

    @property
    def nnz_per_worker(self) -> Sequence[int]: ...
    @property
    def ghosts_per_worker(self) -> Sequence[int]: ...
    @property
    def row_bounds(self) -> Sequence[int]: ...


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


def sparsity(A: Any, ax: Any = None, *, cells: int = CELLS) -> Any:
    """Draw where a matrix has entries: as many as there are in each cell of a grid, so that any size can be seen.

    Parameters
    ----------
    A : sparse array or matrix
        SciPy's, or a GpuSparseMatrix.
    ax : matplotlib Axes, optional
        A new figure's where left out.
    cells : int
        Cells a side, at most.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    PlotError
        Where matplotlib is not installed.

    Examples
    --------
    >>> import scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> sparsity(scipy.sparse.eye_array(1000), Figure().subplots(), cells=10).get_xlabel()
    '1000 columns'
    """
    ax = _axes(ax)
    counts = density(A, cells)
    shown = np.ma.masked_equal(counts, 0)
    colors = _matplotlib("colors").LogNorm(vmin=1, vmax=max(2, int(counts.max(initial=0))))
    num_rows, num_cols = A.shape
    ax.imshow(
        shown, norm=colors, cmap="viridis_r", interpolation="nearest", aspect="auto", extent=(0, num_cols, num_rows, 0)
    )
    ax.set_xlabel(f"{num_cols} columns", fontsize="small")
    ax.set_ylabel(f"{num_rows} rows", fontsize="small")
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def density(A: Any, cells: int = CELLS) -> Any:
    """Count the entries in each cell of a grid over a matrix, at most `cells` a side.

    Examples
    --------
    >>> import scipy.sparse
    >>> density(scipy.sparse.eye_array(6), 3)
    array([[2, 0, 0],
           [0, 2, 0],
           [0, 0, 2]])
    """
    num_rows, num_cols = A.shape
    down, across = max(1, min(cells, num_rows)), max(1, min(cells, num_cols))
    counts = np.zeros(down * across, np.int64)
    indptr, indices = _structure(A)
    begin = 0
    while begin < num_rows:
        reach = int(np.searchsorted(indptr, indptr[begin] + CHUNK_ENTRIES, side="right")) - 1
        end = max(begin + 1, reach)
        lengths = np.diff(indptr[begin : end + 1])
        rows = np.repeat(np.arange(begin, end) * down // num_rows, lengths)
        columns = indices[indptr[begin] : indptr[end]].astype(np.int64) * across // num_cols
        counts += np.bincount(rows * across + columns, minlength=counts.size)
        begin = end
    return counts.reshape(down, across)


def row_lengths(A: Any, ax: Any = None) -> Any:
    """Draw how many rows have how many entries, both axes logarithmic; empty rows stand left of one entry.

    Parameters
    ----------
    A : sparse array or matrix
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> row_lengths(scipy.sparse.eye_array(1000), Figure().subplots()).get_ylabel()
    'rows'
    """
    ax = _axes(ax)
    indptr, _ = _structure(A)
    lengths = np.diff(indptr)
    longest = int(lengths.max(initial=1))
    # Each length below 16 has a bar of its own, longer ones share bars of like width on the axis.
    edges = np.unique(np.concatenate([np.arange(0, min(longest, 16) + 2), np.geomspace(16, longest + 1, 48).round()]))
    edges = edges[edges <= longest + 1]
    counts, _ = np.histogram(lengths, edges)
    left = np.maximum(edges[:-1], 0.5)
    ax.bar(left, counts, width=edges[1:] - left, align="edge", color="tab:blue", edgecolor="white", linewidth=0.3)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.set_xlabel("entries a row", fontsize="small")
    ax.set_ylabel("rows", fontsize="small")
    return ax


def distribution(A: Spread, ax: Any = None) -> Any:
    """Draw what each worker has of a distributed matrix: its entries, and beside them its rows with the ghosts on top.

    Entries are what it multiplies, ghosts the numbers that it waits for in every product: many of them beside few rows
    mean that workers talk more than they compute. Entries are on the left axis, rows and ghosts on the right one.

    Parameters
    ----------
    A : gsparse.distributed.DistributedMatrix
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes
        That of the entries; the legend is on it, and says how uneven they are.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from matplotlib.figure import Figure
    >>> A = SimpleNamespace(nnz_per_worker=[9, 7], ghosts_per_worker=[1, 2], row_bounds=(0, 3, 6))
    >>> [text.get_text() for text in distribution(A, Figure().subplots()).get_legend().get_texts()]
    ['entries (most: 1.12 times the mean)', 'rows', 'ghosts (in all 0.50 a row)']
    """
    ax = _axes(ax)
    entries, ghosts, rows = np.array(A.nnz_per_worker), np.array(A.ghosts_per_worker), np.diff(A.row_bounds)
    unevenness = entries.max() / max(entries.mean(), 1)
    a_row = ghosts.sum() / max(rows.sum(), 1)
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
            label=f"ghosts (in all {a_row:.2f} a row)",
        ),
    ]
    right.set_ylabel("rows, and ghosts on top", fontsize="small")
    ax.set_xlabel("rank", fontsize="small")
    ax.set_ylabel("entries", fontsize="small")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(handles=bars, fontsize="x-small", loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(bars))
    return ax


def times_by_format(records: Iterable[Measured], ax: Any = None) -> Any:
    """Draw each format's time over the vendor's best, matrix by matrix: below 1 is faster.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    found = list(records)
    reference = next((r.reference for r in found if r.reference), "the reference")
    return _by_matrix(found, ax, lambda r: None if not r.speedup else 1 / r.speedup, f"time over {reference}")


def setup_by_format(records: Iterable[Measured], ax: Any = None) -> Any:
    """Draw each format's set-up in products of its own, matrix by matrix.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    return _by_matrix(list(records), ax, lambda r: r.setup_products, "set-up in products")


def thread_scaling(records: Iterable[Measured], ax: Any = None) -> Any:
    """Draw the CPU's times over nonzeros, a line a library and count of threads.

    Parameters
    ----------
    records : iterable of gsparse.bench.Record
        Of one type.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    ax = _axes(ax)
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
    matrices : sequence of (name, callable)
        The names of matrices whose patterns and row lengths are drawn, and what makes each when its turn comes.

    Yields
    ------
    Path
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
    figure = _figure(PAGE_INCHES)
    draw(records, figure.subplots()).set_title(title)
    figure.savefig(path, dpi=DOTS)
    return path


def _save_sheets(folder: Path, matrices: Sequence[tuple[str, Callable[[], Any]]]) -> Iterator[Path]:
    """Draw the patterns of all matrices on one sheet and their row lengths on another, making each matrix once."""
    across = min(SHEET_COLUMNS, len(matrices))
    down = -(-len(matrices) // across)
    sheets = {name: _figure((across * SHEET_INCHES, down * SHEET_INCHES)) for name in ("sparsity", "row_lengths")}
    axes = {name: sheet.subplots(down, across, squeeze=False).ravel() for name, sheet in sheets.items()}
    for place, (title, make) in enumerate(matrices):
        A = make()
        for name, draw in (("sparsity", sparsity), ("row_lengths", row_lengths)):
            draw(A, axes[name][place]).set_title(title, fontsize="small")
    for name, sheet in sheets.items():
        for ax in axes[name][len(matrices) :]:
            ax.set_axis_off()
        sheet.savefig(folder / f"{name}.png", dpi=DOTS)
        yield folder / f"{name}.png"


def _by_matrix(records: Sequence[Measured], ax: Any, value: Callable[[Measured], float | None], label: str) -> Any:
    """Draw a mark for each matrix and way of multiplying, matrices by size; geometric means stand in the legend."""
    ax = _axes(ax)
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
    ax.set_ylabel(label)
    if series:
        ax.legend(
            fontsize="x-small",
            title="geometric mean",
            title_fontsize="x-small",
            loc="upper left",
            bbox_to_anchor=(1, 1),
        )
    return ax


def _structure(A: Any) -> tuple[Any, Any]:
    """Give a matrix's row pointers and columns on the host, without a loan of its arrays where it is gsparse's."""
    if hasattr(A, "device_indptr"):
        return A.device.download(A.device_indptr), A.device.download(A.device_indices)
    csr = A.tocsr()
    return csr.indptr, csr.indices


def _axes(ax: Any) -> Any:
    """Give the Axes asked for, else those of a new figure, which a notebook shows."""
    if ax is not None:
        return ax
    return _matplotlib("pyplot").subplots(layout="constrained")[1]


def _figure(inches: tuple[float, float]) -> Any:
    """Make a figure that no window belongs to, so that it is drawn without a display."""
    return _matplotlib("figure").Figure(figsize=inches, layout="constrained")


def _matplotlib(module: str) -> Any:
    try:
        return import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'gsparse[plot]'") from error
