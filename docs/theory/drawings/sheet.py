"""The sheet of paper for a drawing: cells, notes and arrows at places in inches, from the top left corner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

__all__ = [
    "BLUE",
    "DARK",
    "DRAWINGS",
    "FILLS",
    "FONT_SIZE",
    "GREY",
    "LIGHT",
    "ORANGE",
    "PALE",
    "WHITE",
    "WIDTH",
    "arrow",
    "cell",
    "cells",
    "drawing",
    "note",
    "plot",
    "sheet",
]

# Width of a drawing in inches. A telephone of 360 pixels shows it at almost this size, so that text can be read there.
WIDTH = 4.0
FONT_SIZE = 8.5  # in points
# The colours have different lightness, so that they differ in grey too.
DARK, BLUE, LIGHT, ORANGE = "#16365c", "#5b9bd5", "#d6e6f5", "#f6b26b"
GREY, PALE, WHITE = "#6b6b6b", "#ededed", "#ffffff"
FILLS = LIGHT, ORANGE, BLUE, PALE


# The functions that make the drawings, by the names of their files.
DRAWINGS: dict[str, Callable[[], Figure]] = {}


def drawing(function: Callable[[], Figure]) -> Callable[[], Figure]:
    """Register the function that makes a drawing."""
    DRAWINGS[function.__name__] = function
    return function


def sheet(height: float) -> tuple[Figure, Axes]:
    """Return an empty sheet. Its coordinates are inches; y points down."""
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return figure, axes


def plot(height: float, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Return a sheet with the axes of a plot."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label, fontsize=FONT_SIZE)
    axes.set_ylabel(y_label, fontsize=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def cell(
    axes: Axes,
    place: tuple[float, float],
    size: tuple[float, float],
    text: object = "",
    fill: str = WHITE,
    hatch: str = "",
) -> None:
    """Draw a rectangle from its top left corner, with a text in its centre."""
    (x, y), (width, height) = place, size
    axes.add_patch(Rectangle(place, width, height, facecolor=fill, edgecolor=DARK, linewidth=0.7))
    if hatch:
        axes.add_patch(Rectangle(place, width, height, fill=False, edgecolor=GREY, linewidth=0, hatch=hatch))
    note(axes, x + width / 2, y + height / 2, text, align="center", color=WHITE if fill == DARK else "black")


def cells(
    axes: Axes,
    place: tuple[float, float],
    size: tuple[float, float],
    texts: Sequence[object],
    fills: Sequence[str] = (),
) -> None:
    """Draw cells side by side. A cell whose text is None is padding, which is hatched."""
    for number, text in enumerate(texts):
        fill = fills[number] if fills else WHITE
        corner = (place[0] + number * size[0], place[1])
        cell(axes, corner, size, "" if text is None else text, WHITE if text is None else fill, "////" * (text is None))


def note(
    axes: Axes, x: float, y: float, text: object, align: str = "left", color: str = "black", weight: str = "normal"
) -> None:
    """Write a text, which is centred vertically at y."""
    axes.text(x, y, str(text), ha=align, va="center", fontsize=FONT_SIZE, color=color, weight=weight)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = DARK, style: str = "-|>"
) -> None:
    """Draw an arrow."""
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=8, color=color, linewidth=1, shrinkA=0, shrinkB=0)
    )
