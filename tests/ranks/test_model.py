"""The model of an iteration's time: its terms, and its constants when they are fitted to records."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LaplacianNd

from examples.thousand_gpus import CostModel, RankWork, fit
from gsparse.distributed import RowPartition, split_columns

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["measured_cg.json", "measured_cg_h200.json"])
def test_the_model_fits_the_measured_runs_and_predicts_each_of_them_from_the_others(name: str) -> None:
    measured = json.loads((EXAMPLES / name).read_text())["records"]
    model = fit(measured)
    for number, record in enumerate(measured):
        work, seconds = RankWork.from_record(record), record["seconds_per_iteration"]
        of_others = fit(measured[:number] + measured[number + 1 :])
        assert model.seconds(work) == pytest.approx(seconds, rel=0.03)
        assert of_others.seconds(work) == pytest.approx(seconds, rel=0.07)


@pytest.mark.parametrize(("cut", "world_size"), [("slabs", 4), ("boxes", 64)])
def test_the_partitions_of_the_example_have_the_ghosts_of_the_matrix_itself(cut: str, world_size: int) -> None:
    work = runpy.run_path(str(EXAMPLES / "thousand_gpus.py"))[cut](16**3, world_size)
    S = sp.csr_array(LaplacianNd((16,) * 3).tosparse())
    side = 16 // round(world_size ** (1 / 3))
    if cut == "boxes":  # points box after box
        place = np.indices((16,) * 3).reshape(3, -1)
        order = np.lexsort((*(place % side), *(place // side)))
        S = S[order][:, order]
    partition = RowPartition.by_rows(16**3, world_size)
    ghosts = [split_columns(S[own], own).ghosts for own in map(partition.rows, range(world_size))]
    assert max(found.size for found in ghosts) == pytest.approx(work.ghosts)
    assert max(np.unique(partition.owners(found)).size for found in ghosts) == work.neighbours


def test_the_example_draws_its_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runpy.run_path(str(EXAMPLES / "thousand_gpus.py"))["plot"](CostModel(), str(tmp_path / "scaling.svg"))
    assert (tmp_path / "scaling.svg").stat().st_size > 10_000
