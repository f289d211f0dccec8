"""Benchmarks of asv_bench: each runs once on small matrices, and asv stores and publishes the results."""

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
from benchmarks import common, linalg  # noqa: E402

# Cases that benchmarks skip, because the format would store too much for the matrix.
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
    """Run the benchmarks' set-up on small matrices, in the folder that asv would provide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # for the processes that benchmarks start
        patch.chdir(tmp_path_factory.mktemp("asv"))
        assert set(common.MATRICES) == set(SMALL)
        patch.setattr(common, "MATRICES", SMALL)
        common.WithMatrices().setup_cache()
        for size, side in {"small": 4, "large": 8}.items():
            patch.setitem(linalg.SIDES, size, side)
        yield


def run_once(name: str) -> float | None:
    """Return the result of a benchmark, or None if its set-up skips it."""
    benchmark = discovery.get_benchmark_from_name(str(BENCHMARKS), name)
    if benchmark.do_setup():
        return None
    benchmark.number, benchmark.repeat, benchmark.warmup_time = 1, 1, 0  # used only by timed benchmarks
    outcome = benchmark.do_run()
    return outcome["samples"][0] if isinstance(outcome, dict) else outcome


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("written")
@pytest.mark.whole
def test_each_benchmark_returns_a_number_for_each_of_its_parameters(name: str) -> None:
    benchmark = discovery.get_benchmark_from_name(str(BENCHMARKS), name)
    places = range(math.prod(map(len, benchmark.params)))
    cases = [f"{name}-{place}" for place in places] if benchmark.params else [name]
    for case in cases:
        value, parameters = run_once(case), discovery.get_benchmark_from_name(str(BENCHMARKS), case)._current_params
        if parameters in SKIPPED or ("GpuMemory" in name and get_device().kind != "gpu"):
            assert value is None, parameters
        else:
            assert value is not None, parameters
            assert 0 < value < math.inf


@pytest.mark.whole
def test_asv_stores_and_publishes_results_without_folder_or_host_names(tmp_path: Path) -> None:
    pytest.importorskip("asv", reason="benchmarks are run by asv: pip install asv")
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("asv asks git when a commit was made")
    bench = tmp_path / "asv_bench"
    shutil.copytree(BENCHMARKS.parent, bench, ignore=shutil.ignore_patterns("results", ".asv", "__pycache__"))
    config = json.loads((bench / "asv.conf.json").read_text())
    (bench / "asv.conf.json").write_text(json.dumps(config | {"repo": str(ROOT), "branches": ["HEAD"]}))
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()

    def asv(*words: str) -> None:
        environ = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": ""}
        completed = subprocess.run(
            [sys.executable, "-m", "asv", *words], cwd=bench, env=environ, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr

    asv("machine", "--yes", "--machine", "some-machine", "--os", "Linux")
    asv("run", "--machine", "some-machine", "--quick", "--bench", "Call", f"{head}^!")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    result_file = bench / "results" / "some-machine" / f"{head[:8]}-virtualenv-py{python}.json"
    results = json.loads(result_file.read_text())["results"]
    assert all(0 < result[0][0] < 60 for result in results.values())
    assert {name.rpartition(".")[0] for name in results} == {"products.Call"}
    for file in (bench / "results").rglob("*.json"):
        text = file.read_text()
        assert not [word for word in (str(tmp_path), str(ROOT), sys.prefix, f'"{platform.node()}"') if word in text]

    asv("publish")
    pages = bench / config["html_dir"]
    assert (pages / "index.html").is_file()
    (graph,) = pages.glob("graphs/**/machine-some-machine/**/products.Call.time_hundred_products.json")
    ((_, seconds),) = json.loads(graph.read_text())
    assert seconds == pytest.approx(results["products.Call.time_hundred_products"][0][0], rel=1e-3)
