"""A picture of a profile: where the seconds of a program go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gsparse.plot.axes import axes_of
from gsparse.profiling.rows import OUTSIDE, Row

__all__ = ["profile"]

# Characters of a label at most.
_WIDEST = 44
# Grey levels and hatches, because the picture has to be readable without colours.
_WAITING, _DEVICE = {"color": "0.35"}, {"color": "0.85", "edgecolor": "0.35", "hatch": "////"}


class ProfileLike(Protocol):
    """What the picture needs of a `gsparse.profile()`."""

    @property
    def seconds(self) -> float: ...

    def rows(self, by: str = "operation") -> list[Row]: ...


def profile(p: ProfileLike, ax: Any = None, *, by: str = "operation", most: int = 12) -> Any:
    """Draw for each operation how long the caller waited for it, and how long the device worked.

    The dark bars, those of the caller, add up to the wall-clock time. Operations of other threads than the one that
    opened the profile are left out. The picture is grey, to be read in print.

    Parameters
    ----------
    p : Profile
        What `gsparse.profile` returned. If it has ended, the figures no longer change.
    ax : matplotlib Axes, optional
        Where to draw. A new figure is made by default.
    by : {"operation", "matrix", "line"}, optional
        Whether rows are operations, operations with each matrix, or operations at each line of the program.
    most : int, optional
        Number of rows. One more bar adds up the others, and the time outside of gsparse always has its own.

    Returns
    -------
    matplotlib Axes
        The Axes that were drawn into.

    Raises
    ------
    TypeError
        If `p` is no profile.
    ValueError
        If `by` is something else.
    PlotError
        If matplotlib is not installed.

    Examples
    --------
    >>> import gsparse, numpy, scipy.sparse
    >>> from matplotlib.figure import Figure
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(100, format="csr"), device="cpu")
    >>> with gsparse.profile() as p:
    ...     y = A @ numpy.ones(100)
    >>> ax = gsparse.plot.profile(p, Figure().subplots())
    >>> "product: A @ x" in [label.get_text() for label in ax.get_yticklabels()]
    True
    """
    if not hasattr(p, "rows"):
        raise TypeError(f"profile needs what gsparse.profile() returned, got {type(p).__name__}")
    rows = [row for row in p.rows(by) if not row.is_other_thread]
    labels, waiting, device = _bars(rows, most)
    ax = axes_of(ax)
    places = range(len(labels))
    ax.barh([place - 0.2 for place in places], waiting, 0.4, label="the caller waited", **_WAITING)
    ax.barh([place + 0.2 for place in places], device, 0.4, label="the device worked", **_DEVICE)
    ax.set_yticks(list(places), labels, fontsize="x-small")
    ax.invert_yaxis()
    ax.set_xlabel("seconds", fontsize="small")
    ax.set_title(f"Where {p.seconds:.3g} s of wall-clock time go", fontsize="medium")
    ax.grid(axis="x", alpha=0.3, linewidth=0.5)
    ax.legend(fontsize="x-small", loc="lower right")
    return ax


def _bars(rows: Sequence[Row], most: int) -> tuple[list[str], list[float], list[float]]:
    """Return the labels, the seconds of the caller and those of the device, with one bar for all further rows."""
    first, rest = list(rows[:most]), list(rows[most:])
    if any(row.kind == OUTSIDE for row in rest):  # It is always shown.
        first.append(next(row for row in rest if row.kind == OUTSIDE))
        rest = [row for row in rest if row.kind != OUTSIDE]
    if rest:
        seconds, device_seconds = (sum(getattr(row, name) for row in rest) for name in ("seconds", "device_seconds"))
        first.append(Row(f"{len(rest)} other rows", "", seconds=seconds, device_seconds=device_seconds))
    return [_label(row) for row in first], [row.seconds for row in first], [row.device_seconds for row in first]


def _label(row: Row) -> str:
    operation = f"{row.kind}: {row.name}" if row.name else row.kind
    label = ", ".join(part for part in (row.place, operation, row.matrix) if part)
    return label if len(label) <= _WIDEST else f"{label[: _WIDEST - 1]}…"
