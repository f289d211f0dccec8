"""A matrix in a notebook: what it is like, its plan, and a thumbnail of its pattern."""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO
from typing import Any

from gsparse.device.dtypes import HOST_ONLY
from gsparse.plot.axes import PlotError, new_figure
from gsparse.plot.structure import sparsity

__all__ = ["html"]

# A thumbnail: inches a side, cells a side, dots an inch, and entries that are looked at for it.
_BESIDE = "display: flex; gap: 1em; align-items: flex-start"
_INCHES, _CELLS, _DOTS, _MOST = 1.8, 96, 90, 5_000_000


def html(A: Any) -> str:
    """Give what a notebook shows of a matrix.

    Parameters
    ----------
    A : GpuSparseMatrix or a view of one
        Its plan is made where that has not been done yet.

    Returns
    -------
    str
        HTML; the thumbnail is a PNG within it, and left out where matplotlib is not installed.

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
    # (the plan is that of the arrays, which a transposed view reads by columns)
    rows |= {"entries a column" if A.format == "csc" else "entries a row": lengths}
    rows |= {"format": f"{plan.format}: {plan.reason}"}
    table = _table(type(A).__name__, rows)
    details = f"<details><summary>plan</summary><pre>{escape(str(plan))}</pre></details>"
    return f'<div style="{_BESIDE}">{_thumbnail(A)}<div>{table}{details}</div></div>'


def _table(caption: str, rows: dict[str, str]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def _thumbnail(A: Any) -> str:
    """Give a picture of the pattern as an element of HTML; nothing where matplotlib is not installed."""
    if min(A.shape) == 0:
        return ""
    try:
        figure = new_figure((_INCHES, _INCHES))
    except PlotError:
        return ""
    ax = sparsity(A, figure.subplots(), cells=_CELLS, most=_MOST)
    ax.set(xlabel="", ylabel="")
    file = BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS)
    picture = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="where entries are" src="data:image/png;base64,{picture}">'
