"""What a notebook displays of a matrix: statistics, the plan, and a thumbnail of the sparsity pattern."""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO
from typing import Any

from gsparse.device.dtypes import HOST_ONLY
from gsparse.plot.axes import PlotError, new_figure
from gsparse.plot.structure import sparsity

# CSS that places the thumbnail beside the table.
_SIDE_BY_SIDE = "display: flex; gap: 1em; align-items: flex-start"
# The thumbnail: inches per side, cells per side, dots per inch, and the most entries that are counted for it.
_INCHES, _CELLS, _DPI, _MAX_ENTRIES = 1.8, 96, 90, 5_000_000


def html(A: Any) -> str:
    """Return the HTML that a notebook displays for a matrix.

    Parameters
    ----------
    A : GpuSparseMatrix or a view of one
        Its plan is made if it has none yet.

    Returns
    -------
    str
        HTML with a table, the plan, and the thumbnail as an embedded PNG. Without matplotlib there is no thumbnail.

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
    # A transposed view has the plan of the underlying CSR arrays, whose rows are the view's columns.
    rows |= {"entries per column" if A.format == "csc" else "entries per row": lengths}
    rows |= {"format": f"{plan.format}: {plan.reason}"}
    table = _table(type(A).__name__, rows)
    details = f"<details><summary>plan</summary><pre>{escape(str(plan))}</pre></details>"
    return f'<div style="{_SIDE_BY_SIDE}">{_thumbnail(A)}<div>{table}{details}</div></div>'


def _table(caption: str, rows: dict[str, str]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def _thumbnail(A: Any) -> str:
    """Return the picture of the pattern as an HTML element, or an empty string if matplotlib is not installed."""
    if min(A.shape) == 0:
        return ""
    try:
        figure = new_figure((_INCHES, _INCHES))
    except PlotError:
        return ""
    ax = sparsity(A, figure.subplots(), cells=_CELLS, most=_MAX_ENTRIES, colorbar=False)
    ax.set(xlabel="", ylabel="")
    file = BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    picture = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="sparsity pattern" src="data:image/png;base64,{picture}">'
