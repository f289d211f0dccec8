"""The drawings of cost_model.rst, computed with the model itself."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from drawings.sheet import BLUE, DARK, FONT_SIZE, GREY, ORANGE, drawing, plot
from gsparse.formats.entries import Values
from gsparse.formats.launch import Launch
from gsparse.formats.registry import Storage, describe_positions, find_format
from gsparse.formats.row_stats import RowStats
from gsparse.plan.choice import count_terms
from gsparse.plan.cost_model import CPU_MODEL, GPU_MODEL


def stencil_stats(n: int) -> RowStats:
    """Return the statistics of a 7-point matrix on n³ points."""
    inner = np.full(n, 2)
    inner[[0, -1]] = 1
    lengths = (1 + inner[:, None, None] + inner[:, None] + inner).ravel()
    stored = 32 * int(lengths.reshape(-1, 32).max(axis=1).sum())
    nnz, mean = int(lengths.sum()), float(lengths.mean())
    return RowStats(n**3, n**3, nnz, 4, 7, mean, float(lengths.std()), 0, stored, stored)


@drawing
def cost_terms() -> Figure:
    """The terms of the predicted times of three formats."""
    stats, values, rows = stencil_stats(200), Values(np.empty(0)), 200**3
    pointers, offsets = 4 * (rows + 1), 8 * (rows // 32 + 1)
    in_csr = describe_positions(np.dtype("int32"), values, stats.nnz, pointers, 32)
    sliced = describe_positions(np.dtype("int32"), values, stats.blocked_stored, offsets, 32)
    shared = Storage("27 rows", "float64", stats.blocked_stored, rows + offsets + 8 * stats.blocked_stored)
    storages = {"row_pattern": shared, "blocked_ellpack": sliced, "csr_scalar": in_csr}
    figure, axes = plot(2.5, "predicted time of a product, µs", "")
    groups = {"launch": ("fixed",), "bytes": ("byte", "stream")}
    for place, (name, storage) in enumerate(storages.items()):
        constants, nbytes = find_format(name).costs["gpu"], storage.nbytes + 16 * rows
        terms = count_terms(name, storage, nbytes, stats, GPU_MODEL, Launch(threads_per_row=2))
        seconds = {term: 1e6 * getattr(constants, term) * count for term, count in terms.items()}
        parts = {group: sum(seconds.pop(term) for term in members) for group, members in groups.items()}
        parts["rows and entries"] = sum(seconds.values())
        left = 0.0
        for (group, length), fill in zip(parts.items(), (DARK, BLUE, ORANGE), strict=True):
            label = group if place == 0 else None
            axes.barh(place, length, left=left, color=fill, label=label, height=0.6, edgecolor=DARK, linewidth=0.5)
            left += length
        axes.text(left + 4, place, f"{left:.0f}", va="center", fontsize=FONT_SIZE)
    axes.set_yticks(range(len(storages)), storages)
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    figure.legend(loc="outside upper center", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return figure


@drawing
def cache_ramp() -> Figure:
    """The share of the bytes that are read from memory and not from the last-level cache."""
    figure, axes = plot(2.1, "bytes of a product, MB", "share from memory")
    for model, name, style, color in ((GPU_MODEL, "GPU", "-", DARK), (CPU_MODEL, "CPU", "--", GREY)):
        first, last = (size / 1e6 for size in model.cache)
        axes.plot([0, first, last, 80], [0, 0, 1, 1], style, color=color, label=name, linewidth=1.8)
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    axes.set_yticks([0, 0.5, 1])
    return figure
