"""The drawings of determinism.rst."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from drawings.sheet import BLUE, DARK, GREY, LIGHT, ORANGE, arrow, cell, cells, drawing, note, plot, sheet

_EPS = float(np.finfo(np.float32).eps)


@drawing
def sum_orders() -> Figure:
    """A sum whose order depends on which thread arrives first, and a sum in a fixed order."""
    figure, axes = sheet(3.9)
    note(axes, 0.2, 0.15, "atomic additions: in the order of arrival", weight="bold")
    for run, order in enumerate(("2 0 3 1", "0 3 1 2")):
        left = 0.3 + 1.85 * run
        cells(axes, (left, 0.35), (0.38, 0.28), [f"p{k}" for k in order.split()], [LIGHT] * 4)
        arrow(axes, (left + 0.76, 0.66), (left + 0.76, 0.92))
        cell(axes, (left + 0.38, 0.95), (0.76, 0.28), "sum", ORANGE)
        note(axes, left + 0.76, 1.38, f"run {run + 1}", "center")
    note(axes, 0.2, 1.65, "The bits of the two sums may differ.")
    note(axes, 0.2, 2.05, "gsparse: in the order of their places", weight="bold")
    cells(axes, (0.7, 2.25), (0.65, 0.28), [f"p{k}" for k in range(4)], [LIGHT] * 4)
    for pair in range(2):
        cell(axes, (1.02 + 1.3 * pair, 2.8), (0.65, 0.28), f"p{2 * pair} + p{2 * pair + 1}", BLUE)
        for k in range(2):
            arrow(axes, (1.02 + 0.65 * (2 * pair + k), 2.53), (1.25 + 1.3 * pair + 0.2 * k, 2.8))
        arrow(axes, (1.34 + 1.3 * pair, 3.08), (1.8 + 0.4 * pair, 3.32))
    cell(axes, (1.62, 3.32), (0.76, 0.28), "sum", ORANGE)
    note(axes, 0.2, 3.75, "Only the counter of arrivals is atomic: an integer.")
    return figure


@drawing
def error_bound() -> Figure:
    """Errors of float32 products with rows of many lengths, in two orders of the sum, and the bound."""
    figure, axes = plot(2.9, "entries of the row", "error over eps·(|A|·|x|)")
    rng = np.random.default_rng(0)
    lengths = np.unique(np.geomspace(2, 4096, 40).astype(int))
    one, lanes = [], []
    for length in lengths:
        a, x = rng.standard_normal((2, length)).astype(np.float32)
        products, exact = a * x, a.astype(float) @ x.astype(float)
        scale = _EPS * float(np.abs(a.astype(float)) @ np.abs(x.astype(float)))
        one.append(abs(float(np.cumsum(products)[-1]) - exact) / scale)
        padded = np.zeros(-(-length // 32) * 32, np.float32)
        padded[:length] = products
        sums = np.cumsum(padded.reshape(-1, 32), axis=0)[-1]
        while sums.size > 1:
            sums = sums[: sums.size // 2] + sums[sums.size // 2 :]
        lanes.append(abs(float(sums[0]) - exact) / scale)
    axes.loglog(lengths, lengths, color=DARK, linewidth=1.8, label="bound")
    axes.loglog(lengths, one, "o", color=ORANGE, markeredgecolor=DARK, markersize=4, label="one after the other")
    axes.loglog(lengths, lanes, "x", color=GREY, markersize=4, label="32 lanes, then a tree")
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure
