"""How fast products of a matrix are, or could be."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.threads import run_parts
from gsparse.plan.choice import Candidate
from gsparse.plot.axes import axes_of

__all__ = ["copy_bandwidth", "roofline"]

# Bytes of an array that no cache holds, which is copied to learn how fast memory is.
_COPIED_BYTES = 1 << 27

# Of formats, in turn.
_MARKS = "osD^vPX*"

# Operations of a multiply-add, by whether numbers are complex.
_FLOPS = {False: 2, True: 8}

# How far axes reach beyond the points.
_MARGIN = 1.6


def roofline(A: Any, ax: Any = None, *, bandwidth: float | None = None) -> Any:
    """Draw each format's product under the roof that memory sets: operations a second over operations a byte.

    A format further right reads less; one further below the roof loses time to something else than reading. Above it is
    what a cache holds. Hollow marks are predicted, filled ones measured (with ``tune=True``, after the first product),
    the ring is around the chosen.

    Parameters
    ----------
    A : GpuSparseMatrix
        Its plan is drawn, which is made where there is none yet.
    ax : matplotlib Axes, optional
        A new figure's where left out.
    bandwidth : float, optional
        Bytes a second that memory moves; a large copy on A's device is timed where left out. Synchronizes then.

    Returns
    -------
    matplotlib Axes
        Both axes are logarithmic.

    Raises
    ------
    TypeError
        Where A is another library's matrix, which has no plan.
    PlotError
        Where matplotlib is not installed.

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
    roof = copy_bandwidth(A.device) if bandwidth is None else bandwidth
    reach = [flops / c.nbytes for c in plan.candidates if c.nbytes]
    span = np.array([min(reach, default=1) / _MARGIN, max(reach, default=1) * _MARGIN])
    ax.plot(span, span * roof / 1e9, color="gray", linewidth=1, label=f"memory: {roof / 1e9:.3g} GB/s")
    for number, candidate in enumerate(plan.candidates):
        _draw(ax, candidate, flops, number, chosen=candidate.format == plan.format)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(span)
    for axis in (ax.xaxis, ax.yaxis):  # (decades are few here)
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    ax.tick_params(which="both", labelsize="x-small")
    ax.grid(alpha=0.3, linewidth=0.5, which="both")
    ax.set_xlabel("operations a byte", fontsize="small")
    ax.set_ylabel(f"billion operations a second, {plan.device}", fontsize="small")
    note = "hollow: predicted\nfilled: measured\nabove the line: from a cache"
    ax.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1), title=note, title_fontsize="x-small")
    return ax


def _draw(ax: Any, candidate: Candidate, flops: int, number: int, *, chosen: bool) -> None:
    """Draw a format's marks: predicted hollow, measured filled, with a ring around the chosen one's last."""
    intensity = flops / max(candidate.nbytes, 1)
    times = {"predicted": candidate.seconds, "measured": candidate.measured}
    look = {"marker": _MARKS[number % len(_MARKS)], "color": f"C{number}", "linestyle": "none", "markersize": 7}
    known = {kind: flops / seconds / 1e9 for kind, seconds in times.items() if seconds}
    label = f"{candidate.format}{' (chosen)' if chosen else ''}"
    for kind, rate in known.items():
        ax.plot(intensity, rate, fillstyle="none" if kind == "predicted" else "full", label=label, **look)
        label = "_"
    if chosen:
        rate = list(known.values())[-1]
        ax.plot(intensity, rate, marker="o", color="black", fillstyle="none", markersize=15, linestyle="none")


def copy_bandwidth(device: Device) -> float:
    """Time a copy that no cache holds, by all threads on a CPU; give bytes a second, read and written. Synchronizes."""
    with device.active(), device.memory_guard():
        source, target = device.xp.zeros(_COPIED_BYTES, np.uint8), device.xp.ones(_COPIED_BYTES, np.uint8)
        if device.kind == "gpu":
            seconds = device.seconds_of(lambda: device.xp.copyto(target, source))
        else:
            seconds = device.seconds_of(lambda: run_parts(_copy_part, _COPIED_BYTES, target, source))
    return 2 * _COPIED_BYTES / seconds


def _copy_part(part: int, num_parts: int, target: Any, source: Any) -> None:
    begin, end = (source.size * k // num_parts for k in (part, part + 1))
    np.copyto(target[begin:end], source[begin:end])
