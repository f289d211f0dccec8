"""What each worker has of a distributed matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gsparse.plot.axes import axes_of

__all__ = ["distribution"]


@runtime_checkable
class Spread(Protocol):
    """What the picture of a distributed matrix needs to know of it (`gsparse.distributed.DistributedMatrix`)."""

    @property
    def nnz_per_worker(self) -> Sequence[int]: ...
    @property
    def ghosts_per_worker(self) -> Sequence[int]: ...
    @property
    def row_bounds(self) -> Sequence[int]: ...


def distribution(A: Spread, ax: Any = None) -> Any:
    """Draw what each worker has of a distributed matrix: its entries, and beside them its rows with the ghosts on top.

    Entries are what it multiplies, ghosts the numbers that it waits for in every product: many of them beside few rows
    mean that workers talk more than they compute. Entries are on the left axis, rows and ghosts on the right one.

    Parameters
    ----------
    A : gsparse.distributed.DistributedMatrix
        Or what else has its `nnz_per_worker`, `ghosts_per_worker` and `row_bounds`.
    ax : matplotlib Axes, optional
        A new figure's where left out.

    Returns
    -------
    matplotlib Axes
        That of the entries; the legend is on it, and says how uneven they are.

    Raises
    ------
    TypeError
        Where the matrix is not distributed.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from matplotlib.figure import Figure
    >>> A = SimpleNamespace(nnz_per_worker=[9, 7], ghosts_per_worker=[1, 2], row_bounds=(0, 3, 6))
    >>> [text.get_text() for text in distribution(A, Figure().subplots()).get_legend().get_texts()]
    ['entries (most: 1.12 times the mean)', 'rows', 'ghosts (in all 0.50 a row)']
    """
    if not isinstance(A, Spread):
        raise TypeError(f"a distributed matrix is needed, got {type(A).__name__}: gsparse.distributed.distribute(A)")
    ax = axes_of(ax)
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
