"""Draw the pictures of the theory pages: ``python docs/theory/draw.py [FOLDER]``.

Sphinx calls `draw_all` before it reads the pages. Each picture is a function of the folder `drawings`, in the module of
its page, and has the name of its file. Text is stored as curves, so that it looks the same in every viewer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
from drawings import DRAWINGS

__all__ = ["draw_all"]


def draw_all(folder: Path, suffix: str = ".svg") -> None:
    """Write all drawings to a folder. The same sources give the same files."""
    for name, make in DRAWINGS.items():
        with mpl.rc_context({"svg.hashsalt": name, "font.family": "DejaVu Sans", "hatch.linewidth": 0.5}):
            metadata = {"Date": None} if suffix == ".svg" else None
            make().savefig(folder / f"{name}{suffix}", metadata=metadata, facecolor="white", dpi=192)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--suffix", choices=(".svg", ".png"), default=".svg")
    arguments = parser.parse_args()
    draw_all(arguments.folder, arguments.suffix)
