"""The picture of how a distributed matrix is divided among its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gsparse.plot.axes import axes_of


@runtime_checkable
class PartitionedMatrix(Protocol):
    """The attributes of a `gsparse.distributed.DistributedMatrix` that the picture uses."""

    @property
    def nnz_per_worker(self) -> Sequence[int]: ...
    @property
    def ghosts_per_worker(self) -> Sequence[int]: ...
    @property
    def row_bounds(self) -> Sequence[int]: ...


def distribution(A: PartitionedMatrix, ax: Any = None) -> Any:
    """Draw the entries, rows and ghost entries of each worker of a distributed matrix.

    The entries are the work of a product. The ghosts are the values of x that a worker receives from others in each
    product: if they are many compared with its rows, workers spend more time on communication than on computation.
    Entries use the left axis; rows, with the ghosts stacked on top, use the right one.

    Parameters
    ----------
    A : gsparse.distributed.DistributedMatrix
        The matrix, or an object with the same `nnz_per_worker`, `ghosts_per_worker` and `row_bounds`.
    ax : matplotlib Axes, optional
        Where to draw. A new figure is made by default.

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
