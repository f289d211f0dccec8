"""Draw the picture of README from a table of FIGURES.md.

``python docs/draw_figures.py`` writes it to ``docs/_static``, and ``python docs/draw_figures.py FOLDER`` to a folder.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent
STATIC = DOCS / "_static"
FIGURES = DOCS.parent / "FIGURES.md"
BLUE, GREY = "#1f5fa8", "#8a8a8a"

Table = list[dict[str, str]]


def table(heading: str, number: int = 0) -> Table:
    """Return a table of FIGURES.md.

    Parameters
    ----------
    heading : str
        The heading of the section, without its marks.
    number : int
        The position of the table among those of the section.

    Returns
    -------
    list of dict
        The cells of each row, by the names of the columns. The first column may have an empty name.
    """
    _, found, section = FIGURES.read_text().partition(f"# {heading}\n")
    assert found, f"FIGURES.md has no section {heading!r}"
    section = section.partition("\n#")[0]
    blocks = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in blocks[number].splitlines()]
    assert rows and all(len(row) == len(names) for row in rows), f"a row of the table in {heading!r} has other columns"
    return [dict(zip(names, row, strict=True)) for row in rows]


def speeds() -> dict[str, float]:
    """Return the speed of products with a vector over the best of cuSPARSE's algorithms, by the name of the matrix."""
    peers = ("cuSPARSE CSR", "its SELL", "its SpMVOp")
    return {
        row["matrix"]: min(float(row[peer]) for peer in peers) / float(row["gsparse"])
        for row in table("Products with a vector")
    }


def draw_speeds(axes: Axes) -> None:
    """Draw a bar for each matrix of the first table."""
    draw_ratios(axes, dict(sorted(speeds().items(), key=lambda item: item[1])))
    axes.set_xlabel("speed over the best of cuSPARSE's CSR, SELL and SpMVOp; higher is better")
    axes.set_title("A @ x, float64, one NVIDIA H200")


def draw_ratios(axes: Axes, ratios: dict[str, float]) -> None:
    """Draw horizontal bars with their numbers, and a line at 1."""
    bars = axes.barh(list(ratios), list(ratios.values()), color=BLUE, height=0.65)
    axes.bar_label(bars, [f"{ratio:.2f}×" for ratio in ratios.values()], padding=3)
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.1 * max(ratios.values()))
    axes.tick_params(axis="y", length=0)


PICTURES: dict[str, Callable[[Axes], None]] = {"speed_over_cusparse": draw_speeds}


def draw(name: str, path: Path) -> None:
    """Draw a picture into a file, whose suffix decides the format: ``.svg`` or ``.png``."""
    # Text is written as text, so that the file is small and its numbers can be searched. The file has no date, so that
    # the same table gives the same file.
    settings: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "gsparse", "font.family": "sans-serif"}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.2)  # In inches. The font of a viewer may be wider.
        axes = figure.subplots()
        PICTURES[name](axes)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=STATIC)
    parser.add_argument("--png", action="store_true", help="write .png in place of .svg")
    options = parser.parse_args()
    for picture in PICTURES:
        draw(picture, options.folder / f"{picture}.{'png' if options.png else 'svg'}")
