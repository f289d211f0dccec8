"""Pictures of multigrid hierarchies: the size of the levels, and the aggregates of a grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.errors import ShapeError
from gsparse.plot.axes import axes_of, matplotlib_module

# Number of colours, and step between the colours of consecutive aggregates, which are mostly neighbours.
_NUM_COLORS, _STEP = 20, 7


def hierarchy(M: Any, ax: Any = None, *, shape: Any = None, level: int = 0) -> Any:
    """Draw the aggregates of a grid. Without `shape`, draw the number of rows and entries of each level.

    Parameters
    ----------
    M : MultigridPreconditioner
        The result of `gsparse.linalg.amg`. Aggregates are known if it was made from a matrix.
    ax : matplotlib Axes, optional
        The Axes to draw into. By default, those of a new figure.
    shape : tuple of int, optional
        The number of nodes along each axis of a rectangular grid, in two or three dimensions. Along the last axis, the
        nodes have consecutive numbers. In three dimensions, the middle layer of the first axis is drawn.
    level : int, optional
        The level whose aggregates are drawn, as groups of nodes of the finest level.

    Returns
    -------
    matplotlib Axes
        The Axes with the picture.

    Raises
    ------
    PlotError
        If matplotlib is not installed.
    TypeError
        If `M` is not a multigrid preconditioner.
    ShapeError
        If the shape does not fit the number of nodes.
    ValueError
        If the level has no aggregates.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> from gsparse.linalg import amg
    >>> line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(30, 30))
    >>> M = amg(scipy.sparse.csr_array(scipy.sparse.kronsum(line, line)))
    >>> hierarchy(M, Figure().subplots(), shape=(30, 30)).get_title()
    '900 nodes in 158 aggregates'
    """
    if not hasattr(M, "sizes"):
        raise TypeError(f"a multigrid preconditioner is needed, got {type(M).__name__}: pass gsparse.linalg.amg(A)")
    if shape is None:
        return _draw_levels(M, axes_of(ax))
    groups = _groups(M, level)
    ax = _draw_grid(groups, shape, ax)
    ax.set_title(f"{groups.size} nodes in {groups.max(initial=-1) + 1} aggregates", fontsize="small")
    return ax


def _draw_levels(M: Any, ax: Any) -> Any:
    """Draw bars of rows and entries of each level."""
    rows, entries = (np.array(part) for part in zip(*M.sizes, strict=True))
    places = np.arange(rows.size)
    ax.bar(places - 0.2, entries, 0.4, color="tab:blue", label="entries")
    ax.bar(places + 0.2, rows, 0.4, color="tab:orange", label="rows")
    ax.set_yscale("log")
    ax.set_xticks(places)
    ax.set_xlabel("level", fontsize="small")
    ax.legend(fontsize="small")
    title = f"operator complexity {M.operator_complexity:.2f}, grid complexity {M.grid_complexity:.2f}"
    ax.set_title(title, fontsize="small")
    return ax


def _groups(M: Any, level: int) -> npt.NDArray[np.int64]:
    """Return the aggregate (of level `level`) of each node of the finest level, -1 for none."""
    aggregates = getattr(M, "aggregates", [])
    if not 0 <= level < len(aggregates):
        raise ValueError(
            f"level must be one of the {len(aggregates)} finest levels, from 0 on, that have aggregates, got {level}"
        )
    groups: npt.NDArray[np.int64] = M.device.download(aggregates[0]).astype(np.int64)
    for coarser in aggregates[1 : level + 1]:
        numbers = M.device.download(coarser)
        groups = np.where(groups < 0, -1, numbers[groups])
    return groups


def _colors(groups: npt.NDArray[np.int64]) -> Any:
    """Return a colour for each node; nodes without an aggregate are black."""
    colors = matplotlib_module("cm").tab20((groups * _STEP) % _NUM_COLORS)
    colors[groups < 0] = 0, 0, 0, 1
    return colors


def _draw_grid(groups: npt.NDArray[np.int64], shape: Any, ax: Any) -> Any:
    shape = tuple(int(length) for length in shape)
    if len(shape) not in (2, 3) or math.prod(shape) != groups.size:
        raise ShapeError(f"shape must be two or three lengths whose product is {groups.size}, got {shape}")
    grid = groups.reshape(shape) if len(shape) == 2 else groups.reshape(shape)[shape[0] // 2]
    ax = axes_of(ax)
    ax.imshow(_colors(grid), interpolation="nearest")
    for axis, (first, second) in enumerate(((grid[:, 1:], grid[:, :-1]), (grid[1:], grid[:-1]))):
        _draw_borders(ax, first != second, axis)
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def _draw_borders(ax: Any, differs: npt.NDArray[np.bool_], axis: int) -> None:
    """Draw lines between neighbouring cells of different aggregates, in the same row (axis 0) or column (1)."""
    rows, columns = np.nonzero(differs)
    if axis == 0:
        lines = np.stack([columns + 0.5, rows - 0.5, columns + 0.5, rows + 0.5], axis=1)
    else:
        lines = np.stack([columns - 0.5, rows + 0.5, columns + 0.5, rows + 0.5], axis=1)
    collection = matplotlib_module("collections").LineCollection(
        lines.reshape(-1, 2, 2), colors="white", linewidths=0.8
    )
    ax.add_collection(collection)
