"""The Axes and figures to draw into. matplotlib is imported only when a picture is drawn."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gsparse._version import install_command
from gsparse.errors import GsparseError

__all__ = ["PlotError", "axes_of", "matplotlib_module", "new_figure"]


class PlotError(GsparseError, ImportError):
    """A picture needs matplotlib, which is not installed."""


def axes_of(ax: Any) -> Any:
    """Return `ax`, or the Axes of a new pyplot figure if `ax` is None. A notebook displays such a figure."""
    if ax is not None:
        return ax
    return matplotlib_module("pyplot").subplots(layout="constrained")[1]


def new_figure(inches: tuple[float, float]) -> Any:
    """Return a figure without a window, which can be drawn on a machine without a display."""
    return matplotlib_module("figure").Figure(figsize=inches, layout="constrained")


def matplotlib_module(name: str) -> Any:
    """Import a submodule of matplotlib.

    Raises
    ------
    PlotError
        If matplotlib is not installed. The message names the command that installs it.
    """
    try:
        return import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise PlotError(f"pictures need matplotlib: {install_command('plot')}") from error
