"""The programs that time solves: what they say to who starts them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "asv_bench"))

import measure_ranks
import measure_solvers


@pytest.mark.parametrize("program", [measure_ranks, measure_solvers], ids=lambda program: program.__name__)
def test_a_section_that_does_not_exist_is_named_beside_those_that_do(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program.__name__, "nonsense", "cpu"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"no section is called nonsense; there are {' '.join(program.SECTIONS)}\n" in told


def test_a_goal_is_explained_above_the_figures_and_in_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        measure_solvers.SECTIONS, "cpu", lambda: [measure_solvers.row("CG", 1.0, "SciPy", 3.0, "us", 2.0)]
    )
    monkeypatch.setattr(sys, "argv", ["measure_solvers", "cpu"])
    measure_solvers.main()
    legend, figures = capsys.readouterr().out.splitlines()
    assert "goal: the x that the project has set itself" in legend
    assert figures.endswith("goal 2 met")
    monkeypatch.setattr(sys, "argv", ["measure_solvers", "--help"])
    with pytest.raises(SystemExit):
        measure_solvers.main()
    assert "A goal is the x that the project has" in capsys.readouterr().out
