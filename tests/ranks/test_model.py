"""The model of an iteration's time: its terms, and its constants when they are fitted to records."""

from __future__ import annotations

import json
import runpy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LaplacianNd

from examples.thousand_gpus import CostModel, RankWork, fit
from gsparse.distributed import RowPartition, split_columns

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROUND = CostModel(
    launch=1e-6,
    bandwidth=1e12,
    reduce_start=1e-6,
    reduce_step=2e-6,
    reduce_step_across=5e-6,
    exchange_start=3e-6,
    latency=1e-6,
    latency_across=7e-6,
    link_bandwidth=1e11,
    link_bandwidth_across=1e10,
)


def test_a_single_rank_spends_no_time_on_communication() -> None:
    costs = ROUND.costs(RankWork(rows=1e6, nnz=7e6))
    # 12 bytes per entry, 4 bytes of indptr per row, and eleven vectors with 8 bytes per row.
    assert costs == pytest.approx((1e-6 + (84 + 4 + 88) * 1e6 / 1e12, 0, 0))
    assert ROUND.seconds(RankWork(1e6, 7e6, entry_bytes=2)) == pytest.approx(1e-6 + (14 + 4 + 88) * 1e6 / 1e12)


@pytest.mark.parametrize(
    ("world_size", "us"), [(1, 0), (2, 3), (3, 5), (4, 5), (8, 7), (9, 12), (16, 12), (17, 17), (1024, 42)]
)
def test_two_reductions_take_twice_as_long_within_and_across_hosts(world_size: int, us: float) -> None:
    assert ROUND.costs(RankWork(1e6, 7e6, world_size)).reductions == pytest.approx(2 * us * 1e-6)


def test_the_exchange_of_ghosts_overlaps_with_the_product() -> None:
    inside = RankWork(1e5, 7e5, 8, ghosts=1e4, neighbours=2, overlap=False)
    assert ROUND.costs(inside).halo == pytest.approx(3e-6 + 2e-6 + 8e4 / 1e11)
    assert ROUND.costs(replace(inside, overlap=True)).halo == 0
    across = replace(inside, world_size=16)
    seconds = 3e-6 + 1e-6 + 7e-6 + 4e4 / 1e11 + 4e4 / 1e10
    assert ROUND.costs(across).halo == pytest.approx(seconds)
    many = replace(across, ghosts=1e6, overlap=True)
    hidden = (84 + 4 + 16) * 1e5 / 1e12
    assert ROUND.costs(many).halo == pytest.approx(3e-6 + 8e-6 + 4e6 / 1e11 + 4e6 / 1e10 - hidden)
    assert ROUND.costs(replace(inside, ghosts=0, neighbours=0)).halo == 0


def records(world_sizes: list[int], model: CostModel, noise: float = 0.0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for world_size in world_sizes:
        for rows in (1e3, 1e5, 1e7):
            halos = [(0, 0), (2, rows ** (2 / 3)), (6, rows / 5), (2, 10)]
            for neighbours, ghosts in halos if world_size > 1 else halos[:1]:
                work = RankWork(rows, 7 * rows, world_size, ghosts, neighbours, overlap=False)
                seconds = model.seconds(work) * np.exp(noise * rng.standard_normal())
                made.append(asdict(work) | {"seconds_per_iteration": seconds, "machine": "imagined"})
    return made


def test_a_fit_recovers_the_constants_of_simulated_records() -> None:
    found = fit(records([1, 2, 4, 8, 16, 64], ROUND))
    assert asdict(found) == pytest.approx(asdict(ROUND), rel=1e-3)
    noisy = fit(records([1, 2, 4, 8, 16, 64], ROUND, noise=0.02))
    assert asdict(noisy) == pytest.approx(asdict(ROUND), rel=0.25)


def test_a_fit_keeps_constants_that_the_records_do_not_determine() -> None:
    start = replace(CostModel(), reduce_step_across=0.5, ranks_per_host=4)
    found = fit(records([1, 2, 4], ROUND), start)
    across = ("reduce_step_across", "latency_across", "link_bandwidth_across", "ranks_per_host")
    assert {name: getattr(found, name) for name in across} == pytest.approx(
        {name: getattr(start, name) for name in across}
    )
    assert found.bandwidth == pytest.approx(ROUND.bandwidth, rel=1e-3)
    alone = fit(records([1], ROUND))
    assert replace(alone, launch=1, bandwidth=1) == replace(CostModel(), launch=1, bandwidth=1)


@pytest.mark.parametrize("name", ["measured_cg.json", "measured_cg_h200.json"])
def test_the_model_fits_the_measured_runs_and_predicts_each_of_them_from_the_others(name: str) -> None:
    measured = json.loads((EXAMPLES / name).read_text())["records"]
    model = fit(measured)
    for number, record in enumerate(measured):
        work, seconds = RankWork.from_record(record), record["seconds_per_iteration"]
        of_others = fit(measured[:number] + measured[number + 1 :])
        assert model.seconds(work) == pytest.approx(seconds, rel=0.03)
        assert of_others.seconds(work) == pytest.approx(seconds, rel=0.07)


def test_records_without_a_time_are_refused() -> None:
    for refused in ([], [{"rows": 1, "nnz": 1, "seconds_per_iteration": 0.0}]):
        with pytest.raises(ValueError, match="more than 0 seconds"):
            fit(refused)


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
