"""The theory pages show what gsparse prints, and each of their drawings is made, described and small enough to read."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from tests.conftest import make_device

ROOT = Path(__file__).resolve().parents[1]
THEORY = ROOT / "docs" / "theory"
PAGES = sorted(THEORY.glob("*.rst"))
# Inches of 96 pixels: what a telephone of 360 pixels shows without making text smaller than it can be read.
_WIDEST, _SMALLEST_FONT = 4.0, 8.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_print_what_it_shows(page: Path) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=options, encoding="utf-8")
    assert failed == 0


def test_the_page_of_formats_names_the_bytes_of_csr_on_a_gpu() -> None:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(32, 32))
    S, rng = sp.csr_array(sp.kronsum(sp.kronsum(line, line), line)), np.random.default_rng(0)
    sizes = []
    for values in (rng.uniform(1, 2, S.nnz), S.data):
        matrix = sp.csr_array((values, S.indices, S.indptr), shape=S.shape)
        A = GpuSparseMatrix(matrix, device=make_device("emulated:32"), format="csr_scalar")
        sizes.append(f"{A.stored.nbytes / A.nnz:.2f}")
    text = " ".join((THEORY / "formats.rst").read_text().split())
    assert f"CSR with compressed columns takes {sizes[0]} bytes, and {sizes[1]} with constant values" in text


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"^   (\w+)$", (THEORY / "index.rst").read_text(), re.MULTILINE)
    assert sorted([*listed, "index"]) == [page.stem for page in PAGES]
    assert "   theory/index\n" in (ROOT / "docs" / "index.rst").read_text()


def test_pages_show_every_drawing_and_describe_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'gsparse-gpu[plot]'")
    monkeypatch.setattr(sys, "path", [str(THEORY), *sys.path])
    from drawings import DRAWINGS

    figures = re.compile(r"^\.\. figure:: (\w+)\.svg\n(?:   :\w+:.*\n)*?   :alt: (.+)$", re.MULTILINE)
    shown = [name for page in PAGES for name, alt in figures.findall(page.read_text()) if len(alt) > 20]
    assert sorted(shown) == sorted(DRAWINGS)
    assert sum(page.read_text().count(".. figure::") for page in PAGES) == len(shown)


def test_drawings_can_be_read_on_a_telephone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'gsparse-gpu[plot]'")
    monkeypatch.setattr(sys, "path", [str(THEORY), *sys.path])
    from drawings import DRAWINGS
    from matplotlib.text import Text

    for name, make in DRAWINGS.items():
        figure = make()
        figure.draw_without_rendering()  # lays plots out
        sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
        assert figure.get_figwidth() <= _WIDEST, name
        assert min(sizes) >= _SMALLEST_FONT, name
        box, margin = figure.get_tightbbox(), 0.01  # in inches
        assert min(box.x0, box.y0) > -margin, f"{name}: something is beyond the left or lower edge"
        assert box.x1 < figure.get_figwidth() + margin and box.y1 < figure.get_figheight() + margin, name
