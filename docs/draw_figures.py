"""Draw the pictures of README and of the page of benchmarks from the tables of FIGURES.md.

``python docs/draw_figures.py`` writes them to ``docs/_static``, and ``python docs/draw_figures.py FOLDER`` to a folder.
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
BLUE, ORANGE, GREY = "#1f5fa8", "#d97b1c", "#8a8a8a"

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


def first_number(cell: str) -> float:
    """Return the first number in a cell."""
    found = re.search(r"\d[\d.]*", cell)
    assert found, f"no number in {cell!r}"
    return float(found[0])


def speeds() -> dict[str, float]:
    """Return the speed of products with a vector over the best of cuSPARSE's algorithms, by the name of the matrix."""
    rows = table("Products with a vector")
    return {
        row["matrix"]: min(float(row["cuSPARSE CSR"]), float(row["its SELL"])) / float(row["gsparse's choice"])
        for row in rows
    }


def draw_speeds(axes: Axes) -> None:
    """Draw a bar for each matrix of the first table."""
    draw_ratios(axes, dict(sorted(speeds().items(), key=lambda item: item[1])))
    axes.set_xlabel("speed over the best of cuSPARSE's CSR and SELL; higher is better")
    axes.set_title("A @ x, float64, one NVIDIA H200")


def draw_graphs(axes: Axes) -> None:
    """Draw a bar for each R-MAT graph with random values, in float64."""
    rows = [row for row in table("Power-law graphs") if (row["values"], row["dtype"]) == ("random", "float64")]
    draw_ratios(axes, {row["graph"]: first_number(row["ratio"]) for row in reversed(rows)})
    axes.set_xlabel("speed over cuSPARSE's best CSR; higher is better")
    axes.set_title("A @ x on power-law graphs, float64, one NVIDIA H200")


def draw_ratios(axes: Axes, ratios: dict[str, float]) -> None:
    """Draw horizontal bars with their numbers, and a line at 1."""
    bars = axes.barh(list(ratios), list(ratios.values()), color=BLUE, height=0.65)
    axes.bar_label(bars, [f"{ratio:.2f}×" for ratio in ratios.values()], padding=3)
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.1 * max(ratios.values()))
    axes.tick_params(axis="y", length=0)


def draw_columns(axes: Axes) -> None:
    """Draw the speed of products with several columns over the number of columns."""
    for row, colour, mark in zip(table("Dense columns"), (BLUE, ORANGE, GREY), "os^", strict=True):
        name, *cells = row.values()
        label = f"over {name}" if "PyTorch" in name else f"over cuSPARSE, {name}"
        counts = [count for count in row if count != "columns"]
        axes.plot(counts, [first_number(cell) for cell in cells], color=colour, marker=mark, label=label)
    axes.axhline(1, color=GREY, linestyle="--", linewidth=1)
    axes.set_ylim(0)
    axes.set_xlabel("columns of X")
    axes.set_ylabel("times as fast")
    axes.set_title("A @ X, 32 matrices from applications, one NVIDIA H200")
    axes.legend(frameon=False)


def draw_multigrid(axes: Axes) -> None:
    """Draw the times of multigrid beside those of AMGX, set-up and solve in one bar."""
    rows = table("Multigrid that is set up on the device", 1)[:6][::-1]
    names = [name if name == "gsparse" else f"AMGX {name}" for name in (row[""] for row in rows)]
    set_up, solve = ([first_number(row[part]) for row in rows] for part in ("set-up", "solve"))
    axes.barh(names, set_up, color=ORANGE, height=0.65, label="set-up")
    bars = axes.barh(names, solve, left=set_up, color=BLUE, height=0.65, label="solve")
    axes.bar_label(bars, [f"{a + b:.0f}" for a, b in zip(set_up, solve, strict=True)], padding=3)
    axes.set_xlabel("ms, 7-point 200³ to 1e-8; lower is better")
    axes.set_title("Conjugate gradients with multigrid, one NVIDIA H100")
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, loc="upper right")


def draw_ranks(axes: Axes) -> None:
    """Draw how much of the speed of one GPU each of several GPUs has, with 8 million rows each."""
    rows = table("Several GPUs", 0)
    labels = [
        f"{kind} coefficients{method}" for kind in ("constant", "variable") for method in ("", ", a single reduction")
    ]
    for row, label, colour, line in zip(rows, labels, (BLUE, BLUE, ORANGE, ORANGE), ("-", "--") * 2, strict=True):
        percents = [100.0, *(first_number(row[gpus].partition("(")[2]) for gpus in ("2 GPUs", "4 GPUs"))]
        axes.plot(["1", "2", "4"], percents, color=colour, marker="o", linestyle=line, label=label)
    axes.set_ylim(0, 105)
    axes.set_xlabel("GPUs, 8 million rows each")
    axes.set_ylabel("% of the speed on one GPU")
    axes.set_title("An iteration of CG on NVIDIA H200s of one host")
    axes.legend(frameon=False, loc="lower left")


PICTURES: dict[str, Callable[[Axes], None]] = {
    "speed_over_cusparse": draw_speeds,
    "speed_on_graphs": draw_graphs,
    "speed_with_columns": draw_columns,
    "time_of_multigrid": draw_multigrid,
    "speed_of_ranks": draw_ranks,
}


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
