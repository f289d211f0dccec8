"""Draw README's picture from the first table of FIGURES.md: ``python docs/make_readme_picture.py [FILE]``.

The picture shows how much faster gsparse multiplies a matrix by a vector than the best of cuSPARSE's algorithms in the
same run. The file's suffix, ``.svg`` or ``.png``, decides its format.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "_static" / "speed_over_cusparse.svg"
FIGURES = DOCS.parent / "FIGURES.md"
# Number of columns of the table: matrix, entries, gsparse's choice, cuSPARSE CSR, cuSPARSE SELL, chosen format.
COLUMNS = 6
BLUE, GREY = "#1f5fa8", "#8a8a8a"


def speeds() -> dict[str, float]:
    """Return the speed over the best of cuSPARSE's algorithms for each matrix of the table.

    Returns
    -------
    dict of str to float
        The speed by the matrix's name. Where it is above 1, gsparse is faster.
    """
    table = FIGURES.read_text().partition("| --- ")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    assert rows and all(len(row) == COLUMNS for row in rows), "the first table of FIGURES.md has other columns"
    return {matrix: min(float(csr), float(sell)) / float(gsparse) for matrix, _, gsparse, csr, sell, _ in rows}


def draw(path: Path) -> None:
    """Draw a bar for each matrix.

    Parameters
    ----------
    path : Path
        The file to write.
    """
    speed_by_matrix = dict(sorted(speeds().items(), key=lambda item: item[1]))
    # Text is written as text, so that the file is small and its numbers can be searched. The file has no date, so that
    # the same table gives the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gsparse", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.2)  # In inches. The font of a viewer may be wider.
        axes = figure.subplots()
        bars = axes.barh(list(speed_by_matrix), list(speed_by_matrix.values()), color=BLUE, height=0.65)
        axes.bar_label(bars, [f"{speed:.2f}×" for speed in speed_by_matrix.values()], padding=3)
        axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
        axes.set_xlim(0, 1.1 * max(speed_by_matrix.values()))
        axes.set_xlabel("speed over the best of cuSPARSE's CSR and SELL; higher is better")
        axes.set_title("A @ x, float64, one NVIDIA H200")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=PICTURE)
    draw(parser.parse_args().file)
