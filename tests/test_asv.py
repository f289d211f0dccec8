"""Benchmarks of asv_bench: each runs once on small matrices, and asv stores and publishes the results."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.bench.problems import from_lengths, rmat, stencil, uniform
from gsparse.device.select import get_device
from gsparse.distributed import run_ranks
from gsparse.formats.registry import names_of
from gsparse.kernels.cpu.compiling import HandOut

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "asv_bench" / "benchmarks"

discovery = pytest.importorskip("asv_runner.discovery", reason="benchmarks are run by asv: pip install asv")
sys.path.insert(0, str(BENCHMARKS.parent))
NAMES = [benchmark.name for benchmark in discovery.disc_benchmarks(str(BENCHMARKS))]
import measure_blocks  # noqa: E402
import measure_exchange  # noqa: E402
import measure_factors  # noqa: E402
import measure_faults  # noqa: E402
import measure_rank_parts  # noqa: E402
import measure_ranks  # noqa: E402
import measure_smoothers  # noqa: E402
import measure_transposed  # noqa: E402
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


def test_measuring_ranks_without_gpus_fails_with_one_line() -> None:
    command = [sys.executable, str(ROOT / "asv_bench" / "measure_ranks.py"), "weak", "cpu", "killed"]
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (2, "", 1), completed.stderr
    assert completed.stderr.startswith("weak killed: needs GPUs")


def test_messages_are_timed_beside_copies(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(measure_exchange, "SIZES", (1, 1000))
    monkeypatch.setattr(
        measure_exchange, "on_ranks", lambda work, size, kind: run_ranks(work, size, get_device(), None)
    )
    monkeypatch.setattr(sys, "argv", ["measure_exchange.py", "cpu"])
    measure_exchange.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (2 + len(measure_exchange.SUMS))
    assert lines[0].startswith("cpu        message of 8 bytes")
    assert " us, a copy " in lines[0]


def test_iterations_over_ranks_are_timed_without_a_part_of_them(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(
        measure_rank_parts, "on_ranks", lambda work, size, kind, *args: run_ranks(work, size, get_device(), None, *args)
    )
    monkeypatch.setattr(sys, "argv", ["measure_rank_parts.py", "--cpu", "2", "--points", "8", "12", "12"])
    measure_rank_parts.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(measure_rank_parts.VARIANTS)
    assert all(f"2 ranks, {name}" in line for name, line in zip(measure_rank_parts.VARIANTS, lines[1:], strict=True))


@pytest.mark.whole
@pytest.mark.timed
def test_faults_are_measured_on_a_cluster_of_cpus(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    arguments = ["--device", "cpu", "--workers", "2", "--size", "12"]
    monkeypatch.setattr(sys, "argv", ["measure_faults.py", *arguments])
    measure_faults.main()
    killed, resumed, stopped = capsys.readouterr().out.splitlines()
    assert "(WorkerLostError" in killed
    assert "on 1 workers; info 0" in resumed
    assert "has been silent for 5 s" in stopped


@pytest.mark.parametrize("goals", [[], ["--goals"]])
def test_project_goals_are_printed_only_with_goals_option(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, goals: list[str]
) -> None:
    figures = {"1e3 rows": 0.1e-3, "1e6 rows": 0.5, "1e6 rows, s": 0.01, "1e6 rows, mean": 0.5}
    monkeypatch.setattr(measure_ranks, "on_ranks", lambda *_: [dict(figures), dict(figures)])
    monkeypatch.setattr(sys, "argv", ["measure_ranks.py", "cpu", *goals])
    measure_ranks.main()
    printed = capsys.readouterr().out
    assert "CG, 1e3 rows: 0.0001" in printed
    assert [word in printed for word in ("goal 0.0004 met", "goal 0.1 MISSED")] == [bool(goals)] * 2


def test_products_of_blocks_are_checked_and_compared_with_their_goals() -> None:
    device = get_device("cpu")
    case = measure_blocks.Case("small", "unstructured", measure_blocks.shuffled(4, 3))
    products = [measure_blocks.measure(device, case, "float64", columns, None) for columns in (1, 8)]
    assert [row["wrong"] for row in products] == [[], []]
    assert products[0]["microseconds"].keys() >= {"bsr", "auto", "auto before", "csr scalar", "SciPy BSR"}
    set_ups = [measure_blocks.measure_set_up(device, case)]
    lines = list(measure_blocks.goals(products, set_ups, "cpu"))
    assert [goal for _, _, goal in lines] == [1.3, 1.3, 1.3, 1.3, 0.97, -60.0]
    S = sp.csr_array(case.blocks.tocsr())
    x = np.ones(S.shape[1])
    assert measure_blocks.is_right(S, x, S @ x)
    wrong = S @ x
    wrong[5] += 1e-6
    assert not measure_blocks.is_right(S, x, wrong)
    assert "bsr" in names_of()


def test_factors_of_rows_and_of_nodes_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(measure_blocks.measure_factors(get_device("cpu"), 3))
    assert [(row["solve"], row["block_size"]) for row in rows] == [
        ("jacobi", 1),
        ("jacobi", 3),
        ("levels", 1),
        ("levels", 3),
    ]
    assert all(row["converged"] and row["iterations"] > 5 for row in rows)
    measure_blocks.print_factors(rows[-1] | {"converged": False})
    assert capsys.readouterr().out.startswith("ic0, levels, block_size=3: set-up ")


@pytest.mark.whole
def test_set_ups_and_updates_of_preconditioners_are_timed() -> None:
    lines = list(measure_smoothers.measure_updates(get_device("cpu"), quick=True))
    names = [line[:24].strip() for line in lines]
    assert names[:2] == ["4096 rows, ms", "ic0"]
    assert {"ilu0", "isai", "amg", "structure of the factors", "factorization"} <= set(names)
    assert all(float(line.split()[-1]) > 0 for line in lines[1:10])


def test_direct_solves_are_checked_and_compared_with_their_goals(capsys: Any) -> None:
    S = measure_factors.poisson(12)
    measure_factors.measure_host("small", S, get_device("cpu"), 9)
    printed = capsys.readouterr().out
    assert "small: 1 right-hand sides" in printed
    assert "small: 9 right-hand sides" in printed
    measure_factors.report("a solve", 10.0, 50.0, 5.0, 8.0)
    assert capsys.readouterr().out.split()[-7:] == ["goal", "5.00", "met", "goal", "8", "ms", "MISSED"]
    x = np.linalg.solve(S.toarray(), np.ones(144))
    measure_factors.check(S, x, np.ones(144))
    with pytest.raises(ArithmeticError, match="relative residual"):
        measure_factors.check(S, 1.01 * x, np.ones(144))


def test_both_directions_of_programs_are_checked_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    S = sp.csr_array(sp.random_array((300, 500), density=0.05, rng=np.random.default_rng(0)))
    sp.save_npz(tmp_path / "program.npz", S)
    monkeypatch.setenv("GSPARSE_MATRICES", str(tmp_path))
    monkeypatch.setattr(HandOut, "num_first", HandOut.num_first)  # `main` changes it
    options = ["programs", "--device", "cpu", "--matrices", "program,program"]
    monkeypatch.setattr(sys, "argv", ["measure_transposed.py", *options])
    measure_transposed.main()
    _, first, *rows = capsys.readouterr().out.splitlines()
    assert first == "program: 300 x 500, 7500 entries, float64"
    heads = ["A @ x", "A.T @ y", "in turn", "bytes"]
    assert [row[2:10].strip() for row in rows[:4]] == heads
    assert [row.split(":")[0] for row in rows[-4:]] == [f"geometric mean of 2 matrices, {head}" for head in heads]
    # Each of the two stores the matrix and its transpose, and gsparse at most twice.
    stored = S.data.nbytes + S.indices.nbytes + 4 * sum(S.shape) // 2
    ours, peers = (int(text.replace(",", "")) for text in re.findall(r"[\d,]{4,}", rows[3]))
    assert 2 * stored <= peers <= 1.1 * 2 * stored
    assert stored < ours < 2.5 * peers
    with pytest.raises(ArithmeticError, match=r"gsparse: the product has the relative error 1\.0e-02"):
        measure_transposed.check("gsparse", 1.01 * np.ones(3), np.ones(3))
