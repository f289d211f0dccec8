"""Benchmarks of asv_bench: each runs once on small matrices, and asv keeps and publishes what a run found."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gsparse.bench.problems import from_lengths, rmat, stencil, uniform
from gsparse.device.select import get_device

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "asv_bench" / "benchmarks"

discovery = pytest.importorskip("asv_runner.discovery", reason="benchmarks are run by asv: pip install asv")
sys.path.insert(0, str(BENCHMARKS.parent))
NAMES = [benchmark.name for benchmark in discovery.disc_benchmarks(str(BENCHMARKS))]
import measure_ranks  # noqa: E402
from benchmarks import common, linalg  # noqa: E402

# What does not fit: two formats that would store too much, and what only a GPU has.
SKIPPED = {("ellpack", "R-MAT"), ("ellpack", "long rows")}
SKIPPED |= {("row_pattern", name) for name in ("uniform", "R-MAT", "long rows")}

SMALL = {
    "7-point": lambda: stencil(12, 7, variable=True),
    "uniform": lambda: uniform(5000, 24),
    "R-MAT": lambda: rmat(14, 16),
    "long rows": lambda: from_lengths(np.array([6] * 5000 + [3000]), 5000),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder that asv would give to benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # (of what is run in a process of its own)
        patch.chdir(tmp_path_factory.mktemp("asv"))
        assert set(common.MATRICES) == set(SMALL)
        patch.setattr(common, "MATRICES", SMALL)
        common.WithMatrices().setup_cache()
        for size, side in {"small": 4, "large": 8}.items():
            patch.setitem(linalg.SIDES, size, side)
        yield


def run_once(name: str) -> float | None:
    """Give what a benchmark finds, None where it says that it does not fit."""
    benchmark = discovery.get_benchmark_from_name(str(BENCHMARKS), name)
    if benchmark.do_setup():
        return None
    benchmark.number, benchmark.repeat, benchmark.warmup_time = 1, 1, 0  # (of those that are timed)
    found = benchmark.do_run()
    return found["samples"][0] if isinstance(found, dict) else found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("written")
def test_each_benchmark_finds_a_number_for_each_of_its_parameters(name: str) -> None:
    benchmark = discovery.get_benchmark_from_name(str(BENCHMARKS), name)
    places = range(math.prod(map(len, benchmark.params)))
    cases = [f"{name}-{place}" for place in places] if benchmark.params else [name]
    for case in cases:
        found, of = run_once(case), discovery.get_benchmark_from_name(str(BENCHMARKS), case)._current_params
        if of in SKIPPED or ("GpuMemory" in name and get_device().kind != "gpu"):
            assert found is None, of
        else:
            assert found is not None, of
            assert 0 < found < math.inf


def test_asv_keeps_results_that_name_neither_folders_nor_hosts_and_publishes_them(tmp_path: Path) -> None:
    pytest.importorskip("asv", reason="benchmarks are run by asv: pip install asv")
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("asv asks git when a commit was made")
    bench = tmp_path / "asv_bench"
    shutil.copytree(BENCHMARKS.parent, bench, ignore=shutil.ignore_patterns("results", ".asv", "__pycache__"))
    config = json.loads((bench / "asv.conf.json").read_text())
    (bench / "asv.conf.json").write_text(json.dumps(config | {"repo": str(ROOT), "branches": ["HEAD"]}))
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()

    def asv(*words: str) -> None:
        environ = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "asv", *words], cwd=bench, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    asv("machine", "--yes", "--machine", "some-machine", "--os", "Linux")
    asv("run", "--machine", "some-machine", "--set-commit-hash", head, "--quick", "--bench", "Call")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    kept = bench / "results" / "some-machine" / f"{head[:8]}-this-py{python}.json"
    found = json.loads(kept.read_text())["results"]
    assert all(0 < result[0][0] < 60 for result in found.values())
    assert {name.rpartition(".")[0] for name in found} == {"products.Call"}
    for file in (bench / "results").rglob("*.json"):
        text = file.read_text()
        assert not [word for word in (str(tmp_path), str(ROOT), sys.prefix, f'"{platform.node()}"') if word in text]

    asv("publish")
    pages = bench / config["html_dir"]
    assert (pages / "index.html").is_file()
    (graph,) = pages.glob("graphs/**/machine-some-machine/**/products.Call.time_hundred_products.json")
    ((_, seconds),) = json.loads(graph.read_text())
    assert seconds == pytest.approx(found["products.Call.time_hundred_products"][0][0], rel=1e-3)


def test_ranks_on_gpus_need_gpus_and_say_so_in_a_line() -> None:
    command = [sys.executable, str(ROOT / "asv_bench" / "measure_ranks.py"), "weak", "cpu", "killed"]
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("weak killed: needs GPUs")


@pytest.mark.parametrize("goals", [[], ["--goals"]])
def test_goals_of_the_project_are_told_only_where_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, goals: list[str]
) -> None:
    figures = {"1e3 rows": 0.1e-3, "1e6 rows": 0.5, "1e6 rows, s": 0.01, "1e6 rows, mean": 0.5}
    monkeypatch.setattr(measure_ranks, "on_ranks", lambda *_: [dict(figures), dict(figures)])
    monkeypatch.setattr(sys, "argv", ["measure_ranks.py", "cpu", *goals])
    measure_ranks.main()
    told = capsys.readouterr().out
    assert "CG, 1e3 rows: 0.0001" in told
    assert [word in told for word in ("goal 0.0004 met", "goal 0.1 MISSED")] == [bool(goals)] * 2
