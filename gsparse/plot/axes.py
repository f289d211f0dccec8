"""The Axes and figures of pictures. matplotlib is imported only when a picture is drawn."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from gsparse._version import install_command
from gsparse.errors import GsparseError
from gsparse.writing import replacing

# Dots per inch of pictures in files.
_DPI = 130


class PlotError(GsparseError, ImportError):
    """A picture needs matplotlib, which is not installed."""


def axes_of(ax: Any) -> Any:
    """Return `ax`; if it is None, the Axes of a new pyplot figure, which notebooks display."""
    if ax is not None:
        return ax
    return matplotlib_module("pyplot").subplots(layout="constrained")[1]


def new_figure(inches: tuple[float, float]) -> Any:
    """Return a figure without a window, which can be drawn on a machine without a display."""
    return matplotlib_module("figure").Figure(figsize=inches, layout="constrained")


def save_picture(path: Path, draw: Callable[[Any], object], inches: tuple[float, float] = (8.0, 5.0)) -> None:
    """Let `draw` draw into the Axes of a new figure, and write the figure in the format of the file's suffix."""
    figure = new_figure(inches)
    draw(figure.subplots())
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix.lower().removeprefix("."), dpi=_DPI)


def label_log_axis(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis for values from `low` to `high` with plain numbers, such as 0.5 or 20."""
    ticker = matplotlib_module("ticker")
    # At least three labels are visible, even if the axis spans less than a decade.
    multiples = (1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)
    linear = ticker.MaxNLocator(6, steps=[1, 2, 5, 10])
    axis.set_major_locator(linear if high < 6 * low else ticker.LogLocator(subs=multiples))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


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
