"""The programs that time solves: their messages on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "asv_bench"))

import measure_ranks
import measure_solvers


@pytest.mark.parametrize("program", [measure_ranks, measure_solvers], ids=lambda program: program.__name__)
def test_the_error_for_an_unknown_section_lists_the_known_ones(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program.__name__, "nonsense", "cpu"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"unknown section nonsense; there are {' '.join(program.SECTIONS)}\n" in told


def test_a_goal_is_explained_above_the_figures_and_in_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        measure_solvers.SECTIONS, "cpu", lambda: [measure_solvers.row("CG", 1.0, "SciPy", 3.0, "us", 2.0)]
    )
    monkeypatch.setattr(sys, "argv", ["measure_solvers", "cpu"])
    measure_solvers.main()
    legend, figures = capsys.readouterr().out.splitlines()
    assert "goal: the x that the project aims at" in legend
    assert figures.endswith("goal 2 met")
    monkeypatch.setattr(sys, "argv", ["measure_solvers", "--help"])
    with pytest.raises(SystemExit):
        measure_solvers.main()
    assert "A goal is the x that the" in capsys.readouterr().out
