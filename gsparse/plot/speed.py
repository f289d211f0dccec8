"""The roofline picture: the speed of each format's product, and the limit that memory bandwidth sets."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.plan.choice import Candidate
from gsparse.plot.axes import axes_of

__all__ = ["roofline"]

# Markers of the formats, used in turn.
_MARKS = "osD^vPX*"

# Floating-point operations of one multiply-add, by whether the numbers are complex.
_FLOPS = {False: 2, True: 8}

# Factor by which the horizontal axis extends beyond the outermost points.
_MARGIN = 1.6


def roofline(A: Any, ax: Any = None, *, bandwidth: float | None = None) -> Any:
    """Draw a roofline: operations per second of each format's product against its operations per byte [1]_.

    The line is the limit that memory bandwidth sets. A format further right reads fewer bytes. A format further below
    the line loses time to something other than reading memory. A mark above the line means that data come from a cache.
    Hollow marks are predicted times and filled marks measured ones (with ``tune=True``, after the first product). A
    ring marks the chosen format.

    Parameters
    ----------
    A : GpuSparseMatrix
        The matrix whose plan is drawn. The plan is made if there is none yet.
    ax : matplotlib Axes, optional
        Where to draw. A new figure is made by default.
    bandwidth : float, optional
        Bandwidth of the memory in bytes per second. By default a large copy on A's device is timed, which synchronizes
        the device.

    Returns
    -------
    matplotlib Axes
        The Axes that were drawn into. Both axes are logarithmic.

    Raises
    ------
    TypeError
        If A is a matrix of another library, which has no plan.
    PlotError
        If matplotlib is not installed.

    References
    ----------
    .. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
       architectures", Commun. ACM 52(4), 2009.

    Examples
    --------
    >>> import scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.plot import roofline
    >>> A = GpuSparseMatrix(scipy.sparse.eye_array(1000), device="cpu")
    >>> ax = roofline(A, Figure().subplots(), bandwidth=20e9)
    >>> ax.get_legend().get_texts()[0].get_text()
    'memory: 20 GB/s'
    """
    if not hasattr(A, "plan"):
        raise TypeError(f"roofline needs a GpuSparseMatrix, got {type(A).__name__}: pass GpuSparseMatrix(A)")
    ax = axes_of(ax)
    plan = A.plan
    flops = _FLOPS[A.dtype.kind == "c"] * max(plan.stats.nnz, 1)
    roof = A.device.copy_bandwidth if bandwidth is None else bandwidth
    intensities = [flops / c.nbytes for c in plan.candidates if c.nbytes]
    span = np.array([min(intensities, default=1) / _MARGIN, max(intensities, default=1) * _MARGIN])
    ax.plot(span, span * roof / 1e9, color="gray", linewidth=1, label=f"memory: {roof / 1e9:.3g} GB/s")
    for number, candidate in enumerate(plan.candidates):
        _draw(ax, candidate, flops, number, chosen=candidate.format == plan.format)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(span)
    for axis in (ax.xaxis, ax.yaxis):  # The axes span few decades, so minor ticks need labels too.
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    ax.tick_params(which="both", labelsize="x-small")
    ax.grid(alpha=0.3, linewidth=0.5, which="both")
    ax.set_xlabel("operations per byte", fontsize="small")
    ax.set_ylabel(f"billion operations per second, {plan.device}", fontsize="small")
    note = "hollow: predicted\nfilled: measured\nabove the line: from a cache"
    ax.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1), title=note, title_fontsize="x-small")
    return ax


def _draw(ax: Any, candidate: Candidate, flops: int, number: int, *, chosen: bool) -> None:
    """Draw a format's predicted mark hollow and its measured one filled. Ring the last one of the chosen format."""
    intensity = flops / max(candidate.nbytes, 1)
    times = {"predicted": candidate.seconds, "measured": candidate.measured}
    style = {"marker": _MARKS[number % len(_MARKS)], "color": f"C{number}", "linestyle": "none", "markersize": 7}
    rates = {kind: flops / seconds / 1e9 for kind, seconds in times.items() if seconds}
    label = f"{candidate.format}{' (chosen)' if chosen else ''}"
    for kind, rate in rates.items():
        ax.plot(intensity, rate, fillstyle="none" if kind == "predicted" else "full", label=label, **style)
        label = "_"
    if chosen:
        rate = list(rates.values())[-1]
        ax.plot(intensity, rate, marker="o", color="black", fillstyle="none", markersize=15, linestyle="none")
