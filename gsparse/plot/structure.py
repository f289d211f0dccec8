"""Where a matrix has its entries, and how many a row."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.plot.axes import axes_of, matplotlib_module

__all__ = ["CELLS", "density", "lengths_of", "row_lengths", "sparsity"]

# Cells a side of a sparsity picture: as many as a figure has points to show them with.
CELLS = 256

# Entries counted at a time, which bounds the memory beside the matrix's own.
CHUNK_ENTRIES = 10_000_000

# Rows up to this length are shown on a linear axis, of one bar a length: where all lengths lie within a decade or so,
# a logarithmic one has room for a label or two. On that, lengths below the second have bars of their own.
LONGEST_LINEAR, LONGEST_ALONE = 40, 16

# Labels of that axis: a small picture of a sheet has room for as many.
MOST_LABELS = 9


def sparsity(A: Any, ax: Any = None, *, cells: int = CELLS, most: int | None = None) -> Any:
    """Draw where a matrix has entries: as many as there are in each cell of a grid, so that any size can be seen.

    Parameters
    ----------
    A : sparse array or matrix, or a dense array
        SciPy's, or a GpuSparseMatrix; a vector is a row.
    ax : matplotlib Axes, optional
        A new figure's where left out.
    cells : int
        Cells a side, at most.
    most : int, optional
        Entries to look at, see `density`; all where left out.

    Returns
    -------
    matplotlib Axes
        `ax` where it was given.

    Raises
    ------
    PlotError
        Where matplotlib is not installed.
    TypeError
        Where `A` is no matrix.

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
    colors = matplotlib_module("colors").LogNorm(vmin=1, vmax=max(2, int(counts.max(initial=0))))
    num_rows, num_cols = A.shape
    extent = (0, max(num_cols, 1), max(num_rows, 1), 0)
    ax.imshow(shown, norm=colors, cmap="viridis_r", interpolation="nearest", aspect="auto", extent=extent)
    ax.set_xlabel(f"{num_cols} columns", fontsize="small")
    ax.set_ylabel(f"{num_rows} rows", fontsize="small")
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def density(A: Any, cells: int = CELLS, most: int | None = None) -> Any:
    """Count the entries in each cell of a grid over a matrix, at most `cells` a side.

    Parameters
    ----------
    A : sparse array or matrix, or a dense array, shape (M, N)
        SciPy's, or a GpuSparseMatrix, whose arrays are copied to the host; a vector is a row.
    cells : int
        Cells a side, at most.
    most : int, optional
        Entries to look at, about: of each row of cells the first ones, whose counts stand for the others.

    Returns
    -------
    ndarray of int64, shape (min(M, cells), min(N, cells)), at least (1, 1)
        Entries of each cell, estimated where `most` left some out.

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
    down, across = max(1, min(cells, num_rows)), max(1, min(cells, num_cols))
    counts = np.zeros((down, across), np.int64)
    indptr, part = _structure(A)
    edges = indptr[-(-np.arange(down + 1) * num_rows // down)].astype(np.int64)
    for band, (begin, end) in enumerate(itertools.pairwise(edges)):
        enough = end if most is None else min(end, begin + max(1, most // down))
        for start in range(begin, enough, CHUNK_ENTRIES):
            columns = part(start, min(start + CHUNK_ENTRIES, enough)).astype(np.int64)
            counts[band] += np.bincount(columns * across // num_cols, minlength=across)
        if enough < end:
            counts[band] = counts[band] * (end - begin) // (enough - begin)
    return counts


def row_lengths(A: Any, ax: Any = None) -> Any:
    """Draw how many rows have how many entries; the vertical axis is logarithmic, empty rows stand leftmost, in gray.

    The horizontal axis is linear where no row has more than 40 entries, a bar a length, else logarithmic.

    Parameters
    ----------
    A : sparse array or matrix, or a dense array
        SciPy's, or a GpuSparseMatrix; a vector is a row.
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes
        `ax` where it was given.

    Examples
    --------
    >>> import scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> row_lengths(scipy.sparse.eye_array(1000), Figure().subplots()).get_ylabel()
    'rows'
    """
    ax = axes_of(ax)
    lengths = lengths_of(A)
    longest = int(lengths.max(initial=1))
    edges = _edges_of_lengths(longest)
    counts, _ = np.histogram(lengths, edges)
    ticker = matplotlib_module("ticker")
    if longest <= LONGEST_LINEAR:
        ax.xaxis.set_major_locator(ticker.MaxNLocator(MOST_LABELS, integer=True))
    else:
        ax.set_xscale("log")
        edges[0] = 0.5  # (0 has no place)
    # (an outline of their own keeps bars visible that are narrower than a dot)
    ax.bar(
        edges[:-1], counts, width=np.diff(edges), align="edge", color="tab:blue", edgecolor="tab:blue", linewidth=0.8
    )
    ax.set_ylim(0.5, 2 * max(10, int(counts.max(initial=1))))  # (two decades have their labels)
    ax.set_yscale("log")
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())
    if counts[0]:
        empty = ax.patches[0]
        empty.set_color("tab:gray")
        ax.annotate("empty", (empty.get_center()[0], counts[0]), ha="center", va="bottom", fontsize="x-small")
    ax.set_xlabel("entries a row", fontsize="small")
    ax.set_ylabel("rows", fontsize="small")
    return ax


def _edges_of_lengths(longest: int) -> Any:
    """Give the edges of bars, the first of which is that of empty rows; long rows share bars of like width."""
    if longest <= LONGEST_LINEAR:
        return np.arange(longest + 2) - 0.5
    shared = np.geomspace(LONGEST_ALONE, longest + 1, 48).round()
    return np.unique(np.concatenate([np.arange(LONGEST_ALONE + 1), shared])).astype(np.float64)


def lengths_of(A: Any) -> Any:
    """Count the entries of each row, on the host."""
    A = _matrix(A)
    if _is_by_columns(A):
        indptr, part = _structure(A.T)
        return np.bincount(part(0, int(indptr[-1])), minlength=A.shape[0])
    return np.diff(_structure(A)[0])


def _matrix(A: Any) -> Any:
    """Give what has two dimensions and a format of SciPy's, or say what is needed."""
    if isinstance(A, np.ndarray) and A.ndim in (1, 2) and A.dtype.kind in "biufc":
        return sp.csr_array(np.atleast_2d(A))
    if not sp.issparse(A):
        needed = "a sparse array or matrix, or a dense array of numbers of up to two dimensions"
        raise TypeError(f"a picture of entries needs {needed}, got {type(A).__name__}")
    return A if A.ndim == 2 else A.reshape(1, -1)


def _is_by_columns(A: Any) -> bool:
    return bool(A.format == "csc")


def _structure(A: Any) -> tuple[Any, Callable[[int, int], Any]]:
    """Give a matrix's row pointers on the host, and what gives columns, without a loan of arrays that are gsparse's."""
    if hasattr(A, "device_indptr"):
        return A.device.download(A.device_indptr), lambda begin, end: A.device.download(A.device_indices[begin:end])
    csr = A.tocsr()
    return csr.indptr, lambda begin, end: csr.indices[begin:end]
