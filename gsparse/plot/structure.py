"""Pictures of a matrix's sparsity pattern and row lengths, and the HTML for notebooks."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from html import escape
from io import BytesIO
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.dtypes import HOST_ONLY
from gsparse.plot.axes import PlotError, axes_of, label_log_axis, matplotlib_module, new_figure

# Default number of cells per side of a sparsity picture: about the resolution of a figure.
CELLS = 256

# Number of entries that are counted at a time, which limits the memory in addition to the matrix.
CHUNK_ENTRIES = 10_000_000

# If no row is longer than this, the axis of row lengths is linear, with one bar per length. (If all lengths are within
# a decade, a logarithmic axis has room for only one or two labels.)
LONGEST_LINEAR = 40
# On the logarithmic axis, each length below this has its own bar. Bars of longer rows span several lengths.
LONGEST_ALONE = 16

# Number of labels that fit on the linear axis of a small picture.
MAX_LABELS = 9


def sparsity(A: Any, ax: Any = None, *, cells: int = CELLS, most: int | None = None, colorbar: bool = True) -> Any:
    """Draw the sparsity pattern of a matrix as the number of entries in each cell of a grid.

    The size of the picture does not depend on the size of the matrix.

    Parameters
    ----------
    A : sparse array or matrix, or a dense array
        A matrix of SciPy or a GpuSparseMatrix. A vector is drawn as a row.
    ax : matplotlib Axes, optional
        The Axes to draw into. By default, those of a new figure.
    cells : int
        Largest number of cells per side.
    most : int, optional
        Approximate number of entries that are counted, see `density`. By default, all entries.
    colorbar : bool
        Whether a colour bar shows the number of entries per cell.

    Returns
    -------
    matplotlib Axes
        The Axes with the picture.

    Raises
    ------
    PlotError
        If matplotlib is not installed.
    TypeError
        If `A` is not a matrix.

    Examples
    --------
    >>> import scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> sparsity(scipy.sparse.eye_array(1000), Figure().subplots(), cells=10).get_xlabel()
    '1000 columns'
    """
    A, ax = _matrix(A), axes_of(ax)
    counts = density(A, cells, most)
    shown = np.ma.masked_equal(counts, 0)
    most_in_cell = max(2, int(counts.max(initial=0)))
    colors = matplotlib_module("colors").LogNorm(vmin=1, vmax=most_in_cell)
    num_rows, num_cols = A.shape
    extent = (0, max(num_cols, 1), max(num_rows, 1), 0)
    image = ax.imshow(shown, norm=colors, cmap="viridis_r", interpolation="nearest", aspect="auto", extent=extent)
    ax.set_xlabel(f"{num_cols} columns", fontsize="small")
    ax.set_ylabel(f"{num_rows} rows", fontsize="small")
    ax.set_xticks([])
    ax.set_yticks([])
    if colorbar:
        bar = ax.figure.colorbar(image, ax=ax)
        bar.set_label("entries per cell", fontsize="small")
        bar.ax.tick_params(labelsize="small")
        label_log_axis(bar.ax.yaxis, 1, most_in_cell)
    return ax


def density(A: Any, cells: int = CELLS, most: int | None = None) -> Any:
    """Count the entries of a matrix in each cell of a grid.

    Parameters
    ----------
    A : sparse array or matrix, or a dense array, shape (M, N)
        A matrix of SciPy or a GpuSparseMatrix, whose arrays are copied to the host. A vector counts as a row.
    cells : int
        Largest number of cells per side.
    most : int, optional
        Approximate number of entries that are counted. In each row of cells (in each column, if the matrix is CSC),
        only the first entries are counted, and the counts are scaled up. By default, all entries are counted.

    Returns
    -------
    ndarray of int64, shape (min(M, cells), min(N, cells)), at least (1, 1)
        Number of entries in each cell. It is an estimate if `most` is less than the number of entries.

    Raises
    ------
    TypeError
        If `A` is not a matrix.

    Examples
    --------
    >>> import scipy.sparse
    >>> from gsparse.plot import density
    >>> density(scipy.sparse.eye_array(6), 3)
    array([[2, 0, 0],
           [0, 2, 0],
           [0, 0, 2]])
    """
    A = _matrix(A)
    if _is_by_columns(A):
        return np.ascontiguousarray(density(A.T, cells, most).T)
    num_rows, num_cols = A.shape
    grid_rows, grid_cols = max(1, min(cells, num_rows)), max(1, min(cells, num_cols))
    counts = np.zeros((grid_rows, grid_cols), np.int64)
    indptr, read_columns = _structure(A)
    edges = indptr[-(-np.arange(grid_rows + 1) * num_rows // grid_rows)].astype(np.int64)
    for grid_row, (begin, end) in enumerate(itertools.pairwise(edges)):
        limit = end if most is None else min(end, begin + max(1, most // grid_rows))
        for start in range(begin, limit, CHUNK_ENTRIES):
            columns = read_columns(start, min(start + CHUNK_ENTRIES, limit)).astype(np.int64)
            counts[grid_row] += np.bincount(columns * grid_cols // num_cols, minlength=grid_cols)
        if limit < end:
            counts[grid_row] = counts[grid_row] * (end - begin) // (limit - begin)
    return counts


def row_lengths(A: Any, ax: Any = None) -> Any:
    """Draw a histogram of the row lengths of a matrix.

    The vertical axis is logarithmic. The bar of the empty rows is on the left, in gray. The horizontal axis is linear
    with one bar per length if no row has more than 40 entries, and logarithmic otherwise.

    Parameters
    ----------
    A : sparse array or matrix, or a dense array
        A matrix of SciPy or a GpuSparseMatrix. A vector counts as a row.
    ax : matplotlib Axes, optional
        The Axes to draw into. By default, those of a new figure.

    Returns
    -------
    matplotlib Axes
        The Axes with the picture.

    Raises
    ------
    PlotError
        If matplotlib is not installed.
    TypeError
        If `A` is not a matrix.

    Examples
    --------
    >>> import scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> row_lengths(scipy.sparse.eye_array(1000), Figure().subplots()).get_ylabel()
    'rows'
    """
    lengths = lengths_of(A)
    ax = axes_of(ax)
    longest = int(lengths.max(initial=1))
    edges = _edges_of_lengths(longest)
    counts, _ = np.histogram(lengths, edges)
    ticker = matplotlib_module("ticker")
    if longest <= LONGEST_LINEAR:
        ax.xaxis.set_major_locator(ticker.MaxNLocator(MAX_LABELS, integer=True))
    else:
        ax.set_xscale("log")
        edges[0] = 0.5  # a logarithmic axis cannot show 0
    # With the outline, bars that are narrower than a pixel remain visible.
    ax.bar(
        edges[:-1], counts, width=np.diff(edges), align="edge", color="tab:blue", edgecolor="tab:blue", linewidth=0.8
    )
    ax.set_ylim(0.5, 2 * max(10, int(counts.max(initial=1))))  # Includes 1 and 10, so that the axis has two labels.
    ax.set_yscale("log")
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())
    if counts[0]:
        empty = ax.patches[0]
        empty.set_color("tab:gray")
        ax.annotate("empty", (empty.get_center()[0], counts[0]), ha="center", va="bottom", fontsize="x-small")
    ax.set_xlabel("entries per row", fontsize="small")
    ax.set_ylabel("rows", fontsize="small")
    return ax


def _edges_of_lengths(longest: int) -> Any:
    """Return the edges of the bars. The first is for empty rows. Bars of long rows look equally wide (log axis)."""
    if longest <= LONGEST_LINEAR:
        return np.arange(longest + 2) - 0.5
    shared = np.geomspace(LONGEST_ALONE, longest + 1, 48).round()
    return np.unique(np.concatenate([np.arange(LONGEST_ALONE + 1), shared])).astype(np.float64)


def lengths_of(A: Any) -> Any:
    """Return the number of entries of each row as a host array."""
    A = _matrix(A)
    if _is_by_columns(A):
        indptr, read_columns = _structure(A.T)
        return np.bincount(read_columns(0, int(indptr[-1])), minlength=A.shape[0])
    return np.diff(_structure(A)[0])


def _matrix(A: Any) -> Any:
    """Return a sparse matrix with two dimensions, or raise a TypeError that says what is needed."""
    if isinstance(A, np.ndarray) and A.ndim in (1, 2) and A.dtype.kind in "biufc":
        return sp.csr_array(np.atleast_2d(A))
    if not sp.issparse(A):
        needed = "a sparse array or matrix, or a dense array of numbers of up to two dimensions"
        got = f"one of {A.ndim} dimensions of {A.dtype}" if isinstance(A, np.ndarray) else type(A).__name__
        raise TypeError(f"a picture of entries needs {needed}, got {got}")
    return A if A.ndim == 2 else A.reshape(1, -1)


def _is_by_columns(A: Any) -> bool:
    return bool(A.format == "csc")


def _structure(A: Any) -> tuple[Any, Callable[[int, int], Any]]:
    """Return the row pointers on the host, and a function that returns a range of column indices on the host.

    A GpuSparseMatrix is read through its device arrays, because `A.indices` would lend a host array.
    """
    if hasattr(A, "device_indptr"):
        return A.device.download(A.device_indptr), lambda begin, end: A.device.download(A.device_indices[begin:end])
    csr = A.tocsr()
    return csr.indptr, lambda begin, end: csr.indices[begin:end]


# CSS that places the thumbnail beside the table.
_SIDE_BY_SIDE = "display: flex; gap: 1em; align-items: flex-start"
# Of the thumbnail: inches per side, cells per side, dots per inch, and the number of entries that are counted.
_INCHES, _CELLS, _DPI, _MAX_ENTRIES = 1.8, 96, 90, 5_000_000


def html(A: Any) -> str:
    """Return the HTML with which a notebook displays a matrix.

    Parameters
    ----------
    A : GpuSparseMatrix or a view of one
        The matrix. A plan is made if it has none yet.

    Returns
    -------
    str
        HTML with a table, the plan, and the thumbnail as an embedded PNG. Without matplotlib there is no thumbnail.

    Examples
    --------
    >>> import scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.plot import html
    >>> "<td>3 × 3</td>" in html(GpuSparseMatrix(scipy.sparse.eye_array(3), device="cpu"))
    True
    """
    rows = {
        "shape": " × ".join(f"{n:,}" for n in A.shape),
        "dtype": str(A.dtype),
        "stored entries": f"{A.nnz:,}",
        "device": A.device.name,
    }
    if A.ndim != 2 or A.dtype.char in HOST_ONLY:
        return _table(type(A).__name__, rows)
    plan = A.plan
    stats = plan.stats
    lengths = (
        f"{stats.min_length:,} to {stats.max_length:,}, mean {stats.mean_length:.2f}, {stats.num_empty:,} rows empty"
    )
    # A transposed view has the plan of the CSR arrays, whose rows are the view's columns.
    rows |= {"entries per column" if A.format == "csc" else "entries per row": lengths}
    rows |= {"format": f"{plan.format}: {plan.reason}"}
    table = _table(type(A).__name__, rows)
    details = f"<details><summary>plan</summary><pre>{escape(str(plan))}</pre></details>"
    return f'<div style="{_SIDE_BY_SIDE}">{_thumbnail(A)}<div>{table}{details}</div></div>'


def _table(caption: str, rows: dict[str, str]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def _thumbnail(A: Any) -> str:
    """Return the picture of the pattern as an HTML element; an empty string without matplotlib."""
    if min(A.shape) == 0:
        return ""
    try:
        figure = new_figure((_INCHES, _INCHES))
    except PlotError:
        return ""
    ax = sparsity(A, figure.subplots(), cells=_CELLS, most=_MAX_ENTRIES, colorbar=False)
    ax.set(xlabel="", ylabel="")
    file = BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    picture = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="sparsity pattern" src="data:image/png;base64,{picture}">'
