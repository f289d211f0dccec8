"""The drawings of multigrid.rst."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from drawings.sheet import BLUE, DARK, FILLS, GREY, LIGHT, ORANGE, PALE, WHITE, arrow, cell, drawing, note, plot, sheet
from gsparse.linalg.multigrid.coarsening import OMEGA

__all__ = ["aggregated_grid"]

_SIDE = 8


def aggregated_grid(n: int) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the aggregate of each node of a grid of n x n points with equal connections, and the roots."""
    near = [
        [i + step for step, is_inside in ((-n, i >= n), (-1, i % n), (1, (i + 1) % n), (n, i < n * n - n)) if is_inside]
        for i in range(n * n)
    ]
    labels, roots = np.full(n * n, -1), list[int]()
    is_decided = np.zeros(n * n, bool)
    for i in range(n * n):  # roots in the order of the nodes, no two of them within distance two
        if not is_decided[i]:
            labels[[i, *near[i]]] = len(roots)
            roots.append(i)
            is_decided[[i, *near[i], *(k for j in near[i] for k in near[j])]] = True
    joined = labels.copy()
    for i in np.flatnonzero(labels < 0):  # the others join the aggregate to which they have most connections
        joined[i] = np.bincount([labels[j] for j in near[i] if labels[j] >= 0]).argmax()
    return joined, roots


@drawing
def aggregates() -> Figure:
    """The aggregates of a small grid."""
    figure, axes = sheet(3.85)
    joined, roots = aggregated_grid(_SIDE)
    grid, size, left, top = joined.reshape(_SIDE, _SIDE), 0.38, 0.48, 0.15
    colors: dict[int, int] = {}
    for aggregate in range(len(roots)):  # neighbouring aggregates have different colours
        mask = grid == aggregate
        wide = np.zeros_like(mask)
        for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1)):
            wide |= np.roll(mask, shift, axis)
        used = {colors[other] for other in np.unique(grid[wide]) if other in colors}
        colors[aggregate] = min({*range(len(FILLS) + 1)} - used)
    fills = (*FILLS, WHITE)
    for i in range(_SIDE**2):
        corner = left + i % _SIDE * size, top + i // _SIDE * size
        cell(axes, corner, (size, size), "root" if i in roots else "", fills[colors[int(joined[i])]])
    for i in range(_SIDE):
        for j in range(_SIDE):
            x, y = left + j * size, top + i * size
            if j and grid[i, j] != grid[i, j - 1]:
                axes.plot([x, x], [y, y + size], color="black", linewidth=2.2)
            if i and grid[i, j] != grid[i - 1, j]:
                axes.plot([x, x + size], [y, y], color="black", linewidth=2.2)
    note(axes, 0.48, 3.35, f"{_SIDE * _SIDE} nodes, {len(roots)} aggregates: each root with its")
    note(axes, 0.48, 3.58, "neighbours, and the nodes left in between")
    return figure


@drawing
def prolongators() -> Figure:
    """A column of the tentative prolongator, and of the smoothed one, on a line of nodes."""
    figure, axes = plot(2.3, "node", "value")
    n, size = 15, 3
    line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    tentative = np.repeat(np.eye(n // size), size, axis=0) / size**0.5
    largest = np.linalg.eigvalsh(line / 2).max()
    smoothed = tentative - OMEGA / largest * (line / 2) @ tentative
    nodes = np.arange(n)
    axes.step(nodes, tentative[:, 2], where="mid", color=ORANGE, linewidth=2.2, label="tentative T")
    axes.plot(nodes, smoothed[:, 2], "o-", color=DARK, linewidth=1.5, markersize=4, label="smoothed P")
    axes.plot(nodes, smoothed[:, 1], ":", color=GREY, linewidth=1.5)
    axes.plot(nodes, smoothed[:, 3], ":", color=GREY, linewidth=1.5, label="its neighbours")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False, columnspacing=1)
    return figure


@drawing
def v_cycle() -> Figure:
    """A V-cycle over three levels."""
    figure, axes = sheet(3.5)
    boxes = (
        (0.1, 0.2, "smooth", LIGHT), (0.6, 1.2, "smooth", LIGHT), (1.5, 2.2, "inverse", ORANGE),
        (2.4, 1.2, "smooth", LIGHT), (2.9, 0.2, "smooth", LIGHT),
    )  # fmt: skip
    for x, y, text, fill in boxes:
        cell(axes, (x, y), (1.0, 0.4), text, fill)
    for (x, y, *_), (next_x, next_y, *_) in pairwise(boxes):
        is_down = next_y > y
        arrow(axes, (x + 0.5, y + 0.4 * is_down), (next_x + 0.5, next_y + 0.4 * (not is_down)))
    note(axes, 0.97, 0.85, "R·(b - A·x)")
    note(axes, 1.4, 2.0, "R·(b - A·x)", "right")
    note(axes, 2.95, 1.85, "x += P·e")
    note(axes, 2.95, 0.85, "x += P·e", "right")
    for level, y in enumerate((0.4, 1.4, 2.4)):
        note(axes, 2.0, y, f"level {level}" if level < 2 else "", "center", GREY)
    note(axes, 0.2, 2.4, "level 2", "left", GREY)
    note(axes, 0.1, 3.0, "R: restriction of the residual; P: prolongation of")
    note(axes, 0.1, 3.22, "the correction e that the coarser level returns")
    return figure


@drawing
def nodes() -> Figure:
    """The Galerkin product of matrices with several unknowns a node, as blocks."""
    figure, axes = sheet(2.7)
    note(axes, 2.0, 0.15, "plane elasticity: 2 unknowns a node, 3 candidates", "center")
    shapes = (("R", 0.1, 3, 8), ("A", 1.2, 8, 8), ("P", 2.3, 8, 3), ("R·A·P", 3.2, 3, 3))
    unit = 0.12
    heights = {"R": (3, 2), "A": (2, 2), "P": (2, 3), "R·A·P": (3, 3)}
    for name, left, rows, columns in shapes:
        height, width = heights[name]
        num_rows, num_columns = (2 if rows == 3 else 4), (2 if columns == 3 else 4)
        for i in range(num_rows):
            for j in range(num_columns):
                corner = left + j * width * unit, 0.7 + i * height * unit
                is_near = abs(i * (4 // num_rows) - j * (4 // num_columns)) <= 2
                fill = {"A": BLUE, "R·A·P": ORANGE}.get(name, LIGHT) if is_near else PALE
                cell(axes, corner, (width * unit, height * unit), "", fill)
        note(axes, left + num_columns * width * unit / 2, 0.5, name, "center", weight="bold")
    note(axes, 0.1, 1.95, "blocks of P are 2 × 3: every aggregate becomes a node")
    note(axes, 0.1, 2.18, "with 3 unknowns, one for each candidate. The coarser")
    note(axes, 0.1, 2.41, "matrix has blocks of 3 × 3.")
    return figure
