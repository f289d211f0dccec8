"""matplotlib, imported when a picture is drawn; Axes and figures to draw into."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gsparse.errors import GsparseError

__all__ = ["PlotError", "axes_of", "matplotlib_module", "new_figure"]


class PlotError(GsparseError, ImportError):
    """The package matplotlib, which draws, is not installed."""


def axes_of(ax: Any) -> Any:
    """Give the Axes asked for, else those of a new figure, which a notebook shows."""
    if ax is not None:
        return ax
    return matplotlib_module("pyplot").subplots(layout="constrained")[1]


def new_figure(inches: tuple[float, float]) -> Any:
    """Make a figure that no window belongs to, so that it is drawn without a display."""
    return matplotlib_module("figure").Figure(figsize=inches, layout="constrained")


def matplotlib_module(name: str) -> Any:
    """Import a part of matplotlib.

    Raises
    ------
    PlotError
        Naming what installs it.
    """
    try:
        return import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'gsparse[plot]'") from error
