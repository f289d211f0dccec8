"""`python -m gsparse bench`: its measurements, its reports, and that a failure of one peer does not stop the others.

The code for GPUs runs on NumPy arrays: streams and events are stand-ins, and cuSPARSE is a small C library with the
same prototypes that computes on the host.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import weakref
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
import scipy.sparse.linalg

import gsparse
from gsparse import GpuSparseMatrix, cli
from gsparse.bench import (
    Settings,
    columns,
    command,
    cpu_peers,
    cusparse,
    gpu_peers,
    measure,
    problems,
    report,
    run,
)
from gsparse.bench.check import ExactProduct, extended_product
from gsparse.bench.command import QUICK_PROBLEMS
from gsparse.bench.peers import Peer, Prepared, SkippedError, load
from gsparse.bench.problems import MODEL_PROBLEMS, Problem, find_problem
from gsparse.bench.records import Record, Run, by_matrix, with_reference
from gsparse.bench.report import summary_lines
from gsparse.bench.timing import GpuClock, Sampler, call_sampler, medians
from gsparse.device.cpu import CpuDevice
from gsparse.device.select import get_device

sys.path.insert(0, str(Path(__file__).parents[1] / "asv_bench"))

import fit_costs
import measure_gathers
import measure_transposed

CPU = get_device("cpu")
QUICK = Settings(CPU, repeats=2, check=True)


def as_matrix(arrays: problems.Arrays) -> sp.csr_array:
    return arrays.to_scipy()


def tiny(name: str = "tiny", points: int = 7) -> Problem:
    return Problem(name, lambda xp: problems.stencil(6, points, variable=True))


def record(what: str, us: float | None, **fields: Any) -> Record:
    kind = "vendor" if what.startswith("cuSPARSE") else "library" if what.startswith("CuPy") else "format"
    known: dict[str, Any] = {"matrix": "m", "rows": 10, "cols": 10, "nnz": 2_000_000, "longest": 3, "dtype": "float64"}
    known |= {"device": "d", "what": what, "kind": kind, "kernel_us": us, "call_us": us}
    return Record(**(known | fields))


# ------------------------------------------------------------------ problems


@pytest.mark.parametrize(
    "name", [name for name in MODEL_PROBLEMS if not any(s in name for s in ("00^3", "128", "2M", "21", "40^3 x 3"))]
)
def test_small_model_problems_have_the_entries_of_their_size_class(name: str) -> None:
    arrays = MODEL_PROBLEMS[name](np)
    A = as_matrix(arrays)
    A.check_format()
    assert A.has_sorted_indices or "uniform" in name or "banded" in name
    assert 1e5 <= A.nnz < 2e6
    assert arrays.indices.dtype == arrays.indptr.dtype == np.int32


def test_stencil_is_the_laplacian() -> None:
    exact = scipy.sparse.linalg.LaplacianNd((5,) * 3, dtype=float, boundary_conditions="dirichlet").tosparse()
    assert abs(as_matrix(problems.stencil(5, 7)) + exact).max() == 0


def test_shuffled_blocks_are_full_and_as_many_as_those_of_the_stencil() -> None:
    S = as_matrix(problems.shuffled_blocks(5, 3))
    assert S.nnz == 9 * problems.stencil(5, 27).data.size
    assert GpuSparseMatrix(S, device="cpu").block_shape == (3, 3)


def test_from_lengths_makes_rows_of_the_requested_lengths() -> None:
    lengths = np.array([0, 5, 0, 1, 90])
    assert np.array_equal(np.diff(problems.from_lengths(lengths, 100).indptr), lengths)


@pytest.mark.parametrize("kind", [".npz", ".mtx", ".mtx.gz"])
def test_a_file_can_be_a_problem(tmp_path: Path, kind: str) -> None:
    S = as_matrix(problems.stencil(4, 7))
    path = tmp_path / f"a{kind}"
    if kind == ".npz":
        sp.save_npz(path, S)
    else:
        plain = tmp_path / "a.mtx"
        scipy.io.mmwrite(plain, S)
        if kind.endswith("gz"):
            path.write_bytes(gzip.compress(plain.read_bytes()))
            plain.unlink()
    assert (as_matrix(find_problem(str(path)).make(np)) != S).nnz == 0


def test_the_folder_is_searched_and_all_problems_omits_small_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(problems.FOLDER_VARIABLE, str(tmp_path))
    sp.save_npz(tmp_path / "large.npz", sp.random_array((600, 600), density=0.5, rng=np.random.default_rng(0)))
    sp.save_npz(tmp_path / "small.npz", sp.eye_array(10, format="csr"))
    (tmp_path / "broken.npz").write_bytes(b"no archive")
    assert find_problem("small").make(np).shape == (10, 10)
    assert [p.name for p in problems.all_problems()] == [*MODEL_PROBLEMS, "large"]
    with pytest.raises(
        FileNotFoundError, match=rf"'smal'.*nor a matrix in {re.escape(str(tmp_path))}; similar names: 'small'"
    ):
        find_problem("smal")


def test_a_missing_matrix_folder_is_explained_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(problems.FOLDER_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(FileNotFoundError, match=r"GSPARSE_MATRICES names a folder of \.npz files") as raised:
        find_problem("G3_circuit")
    assert "absent" not in str(raised.value)  # the variable does not name an existing folder, so no path is shown


@pytest.mark.parametrize("values", [{}, {problems.FOLDER_VARIABLE: ""}], ids=["unset", "empty"])
def test_without_a_folder_in_the_variable_the_one_beside_the_checkout_is_used(
    values: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(problems.FOLDER_VARIABLE, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert problems.matrix_folder() == Path(problems.__file__).resolve().parents[3] / "shared" / "matrices"


@pytest.mark.parametrize("format", ["csr", "bsr", "dia"])
def test_large_matrices_are_found_in_every_format_of_scipy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setenv(problems.FOLDER_VARIABLE, str(tmp_path))
    S = sp.kron(sp.eye_array(12_000), np.ones((3, 3)), format=format)
    sp.save_npz(tmp_path / "large.npz", S)
    assert find_problem("large").make(np).data.size >= problems.MIN_ENTRIES
    assert [p.name for p in problems.all_problems()] == [*MODEL_PROBLEMS, "large"]


def test_damaged_files_do_not_end_the_list_of_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(problems.FOLDER_VARIABLE, str(tmp_path))
    sp.save_npz(tmp_path / "a.npz", sp.eye_array(10, format="csr"))
    intact = (tmp_path / "a.npz").read_bytes()
    data = zipfile.ZipFile(tmp_path / "a.npz").getinfo("data.npy")
    begin = data.header_offset + 30 + len(data.filename)
    (tmp_path / "a.npz").write_bytes(
        intact[:begin] + b"\xff" * data.compress_size + intact[begin + data.compress_size :]
    )
    assert [p.name for p in problems.all_problems(0)] == [*MODEL_PROBLEMS, "a"]


def test_a_matrix_of_several_in_a_file_is_named(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "two.mat", {"A": sp.eye_array(3, format="csc"), "B": sp.eye_array(5, format="csc")})
    options = argparse.ArgumentParser()
    command.add_arguments(options)
    (problem,) = command.problems_of(options.parse_args([str(tmp_path / "two.mat"), "--name", "B"]))
    assert problem.make(np).shape == (5, 5)


def test_different_matrices_have_different_names(tmp_path: Path) -> None:
    paths = [tmp_path / folder / f"{name}.npz" for folder in ("old", "new") for name in ("A", folder)]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        sp.save_npz(path, sp.eye_array(len(path.parent.name), format="csr"))
    result = run([find_problem(str(path)) for path in paths], replace(QUICK, formats=("auto",)))
    assert list(dict.fromkeys(r.matrix for r in result.records)) == [str(paths[0]), "old", str(paths[2]), "new"]


def test_every_name_in_the_examples_of_the_help_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(problems.FOLDER_VARIABLE, str(tmp_path))
    lines = [line.partition(" bench ")[2].split("  ")[0] for line in command.EPILOG.splitlines() if " bench " in line]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    names = [name for line in lines for name in parser.parse_args(shlex.split(line)).names]
    assert len(names) >= 3
    assert set(names) - set(MODEL_PROBLEMS) == {"matrix.mtx.gz"}  # stands for a file of the user


# ------------------------------------------------------------------- timing


def test_samplers_take_turns_and_one_failure_leaves_the_others_unchanged() -> None:
    sampled: list[str] = []

    def sample(name: str) -> float:
        sampled.append(name)
        if name == "c" and len(sampled) > 12:
            raise RuntimeError("gone")
        return {"a": 1.0, "b": 2.0}.get(name, 3.0)

    medians_by_name = medians({name: Sampler(partial(sample, name)) for name in "abc"}, repeats=12)
    assert (medians_by_name["a"], medians_by_name["b"]) == (1.0, 2.0)
    assert isinstance(medians_by_name["c"], RuntimeError)
    assert sampled[:12] == ["a"] * 6 + ["b"] * 6  # a turn drops its first sample and keeps the next five
    assert sampled.count("a") == 12 + 3


def test_slow_samplers_are_sampled_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsparse.bench.timing.SAMPLING_SECONDS", 1e-3)
    calls: list[int] = []
    assert medians({0: Sampler(lambda: (calls.append(1), time.sleep(2e-3), 5.0)[-1])}, 100) == {0: 5.0}
    assert len(calls) == 3 + 1


def test_short_calls_are_timed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsparse.bench.timing.seconds_of_call", lambda call, synchronize: 1e-6)
    calls: list[int] = []
    sampler = call_sampler(lambda: calls.append(1), lambda: None)
    before = len(calls)
    assert sampler.sample() > 0
    assert len(calls) - before == 50


# ----------------------------------------------------------------- measuring


@pytest.mark.whole
def test_every_format_is_measured_and_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsparse.bench.peers.MAX_PREDICTED_RATIO", np.inf)
    records = measure(load(tiny(), CPU, "float32"), QUICK)
    formats = {r.format for r in records if r.kind == "format"}
    assert formats == set(gsparse.FORMATS) - {"auto"}
    assert {"plan", "SciPy"} <= {r.what for r in records if r.us}
    for r in records:
        assert r.status != "failed", r
        if r.status == "measured":
            assert r.correct, r
            assert r.nbytes > 0
            assert r.speedup
            assert r.dtype == "float32"
    assert {r.compressed for r in records if r.kind == "format"} == {True, False}


def test_formats_with_too_much_padding_are_skipped_with_a_reason() -> None:
    lengths = np.full(2000, 2)
    lengths[7] = 1500
    problem = Problem("outlier", lambda xp: problems.from_lengths(lengths, 2000))
    ellpack = next(r for r in measure(load(problem, CPU, "float64"), QUICK) if r.what == "ellpack")
    assert (ellpack.status, ellpack.us) == ("skipped", None)
    assert ellpack.note


def test_several_thread_counts_are_measured_and_the_old_one_restored() -> None:
    before = gsparse.get_num_threads()
    settings = replace(QUICK, threads=(1, 2), formats=("auto",))
    records = measure(load(tiny(), CPU, "float64"), settings)
    assert [r.threads for r in records if r.what == "plan"] == [1, 2]
    assert [r.threads for r in records if r.what == "SciPy"] == [1]
    assert all(r.reference_us for r in records)
    assert gsparse.get_num_threads() == before


def test_the_numbers_of_threads_of_other_libraries_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = {"torch": 6, "sparse_dot_mkl": 7}
    mkl = SimpleNamespace(
        mkl_get_max_threads=lambda: threads["sparse_dot_mkl"],
        mkl_set_num_threads=lambda count: threads.update(sparse_dot_mkl=count),
    )
    torch = SimpleNamespace(
        get_num_threads=lambda: threads["torch"], set_num_threads=lambda count: threads.update(torch=count)
    )
    seen: list[int] = []
    monkeypatch.setattr(cpu_peers, "import_module", {"torch": torch, "sparse_dot_mkl": mkl}.__getitem__)
    peers = [
        Peer(str(number), "vendor", lambda: Prepared(lambda: seen.extend(threads.values()), 1), {}, set_threads)
        for number, set_threads in enumerate((cpu_peers._set_mkl_threads, cpu_peers._set_torch_threads))
    ]
    monkeypatch.setattr(cpu_peers, "library_peers", lambda loaded: peers)
    measure(load(tiny(), CPU, "float64"), replace(QUICK, formats=("auto",), threads=(2, 3), check=False))
    assert set(seen) == {2, 3}
    assert threads == {"torch": 6, "sparse_dot_mkl": 7}


def test_products_with_nan_and_infinity_are_correct_only_where_the_exact_product_has_them() -> None:
    arrays = problems.stencil(6, 7)
    data = arrays.data.copy()
    data[:2] = np.nan, np.inf
    data[arrays.indptr[9]] = -np.inf
    loaded = load(Problem("no numbers", lambda xp: arrays._replace(data=data)), CPU, "float32")
    for several in (loaded, columns.with_columns(loaded, 6)):
        exact = ExactProduct(several)
        right = as_matrix(several.arrays) @ several.x
        error, is_correct = exact.compare(right)
        assert is_correct
        assert error is not None and 0 <= error < 10
        for row, value in ((0, 1.0), (9, 1.0), (20, np.nan), (20, np.inf)):
            wrong = right.copy()
            wrong[row] = value
            assert exact.compare(wrong) == (None, False)


def test_a_failing_peer_is_recorded_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> Any:
        raise RuntimeError("no such library\nand more")

    def skip() -> Prepared:
        raise SkippedError("does not fit")

    peers = [
        Peer("prepare", "library", explode, {}),
        Peer("call", "library", lambda: Prepared(explode, 1, result=lambda: np.zeros(216)), {}),
        Peer("skipped", "library", skip, {}),
        Peer("late", "library", lambda: Prepared(lambda: None, 1, result=lambda: np.zeros(216)), {}),
    ]
    monkeypatch.setattr(cpu_peers, "library_peers", lambda loaded: peers)
    outcomes = {r.what: r for r in measure(load(tiny(), CPU, "float64"), replace(QUICK, formats=("auto",)))}
    assert outcomes["prepare"].note == outcomes["call"].note == "RuntimeError: no such library"
    assert [outcomes[name].status for name in ("prepare", "call", "skipped")] == ["failed", "failed", "skipped"]
    assert outcomes["late"].correct is False
    assert outcomes["plan"].correct is True


def test_a_failing_matrix_is_recorded_and_the_next_is_measured() -> None:
    def broken(xp: Any) -> Any:
        raise ValueError("bad file")

    complex_one = Problem("complex", lambda xp: problems.stencil(3, 7)._replace(data=np.ones(135, complex)))
    result = run([Problem("broken", broken), complex_one, tiny()], replace(QUICK, formats=("auto",)))
    assert result.errors["broken, float64"] == "ValueError: bad file"
    assert "complex" in result.errors["complex, float64"]
    assert {r.matrix for r in result.records} == {"tiny"}


def test_extended_products_are_more_exact_than_double_precision(rng: np.random.Generator) -> None:
    arrays = problems.from_lengths(np.array([0, 3, 25, 0, 0, 4, 9, 0]), 40)
    x = rng.random(40) - 0.5
    exact, bound = extended_product(*arrays[:3], x)
    np.testing.assert_allclose(exact.astype(float), as_matrix(arrays) @ x, rtol=1e-12)
    np.testing.assert_allclose(bound.astype(float), abs(as_matrix(arrays)) @ abs(x), rtol=1e-12)
    assert exact.dtype == bound.dtype == np.longdouble


# ------------------------------------------------------------------- records


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    result = Run({"device": "d"}, {"gpu": 4000.0}, (record("plan", 2.0, nbytes=4_000_000),), {"x": "y"})
    result.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == result
    assert result.copy_share(result.records[0]) == 0.5
    assert "speedup" in json.loads((tmp_path / "run.json").read_text())["records"][0]


def test_the_reference_on_a_gpu_is_the_best_vendor_algorithm() -> None:
    rows = with_reference(
        [record("plan", 1.0), record("cuSPARSE a", 4.0), record("cuSPARSE b", 3.0), record("CuPy", 2.0)]
    )
    assert [(r.reference, r.speedup) for r in rows[:2]] == [("cuSPARSE best-of", 3.0), ("cuSPARSE best-of", 0.75)]


def test_the_reference_on_a_cpu_is_the_best_library_with_the_same_threads() -> None:
    rows = [record("plan", 1.0, threads=t) for t in (1, 2)]
    rows += [record("SciPy", 4.0, kind="library", threads=1), record("MKL x", 3.0, kind="vendor", threads=2)]
    assert [r.speedup for r in with_reference(rows)[:2]] == [4.0, 3.0]


def test_the_summary_takes_means_by_size_and_finds_the_worst() -> None:
    rows: list[Record] = []
    for matrix, nnz, plan in (("a", 2_000_000, 1.0), ("b", 2_000_000, 4.0), ("c", 200_000, 5.0)):
        some = partial(record, matrix=matrix, nnz=nnz)
        rows += with_reference(
            [
                some("plan", plan, kind="plan", format="f"),
                some("f", plan, predicted_us=1.0),
                some("g", 3.0, predicted_us=2.0),
                some("cuSPARSE CSR_ALG1", 4.0),
                some("CuPy A @ x", 10.0),
            ]
        )
    text = "\n".join(summary_lines(rows))
    assert "from 1e6 nonzeros: the plan's speed over cuSPARSE best-of: 2.00 (1.00 to 4.00, 2 figures)" in text
    assert "1e5 to 1e6 nonzeros: the speed of a call over CuPy's: 2.00" in text
    assert "worst: 0.80 of cuSPARSE best-of on c, as f" in text
    assert "within 5 % of the best candidate on 1 of 3; worst factor 1.67 on c" in text
    assert len(by_matrix(rows)) == 3


# ---------------------------------------------------------------- the command


def bench(*arguments: str) -> int:
    return cli.main(["bench", *arguments])


@pytest.fixture
def matrix_file(tmp_path: Path) -> str:
    sp.save_npz(tmp_path / "m.npz", as_matrix(problems.stencil(6, 7)))
    return str(tmp_path / "m.npz")


def test_the_command_prints_a_table_and_writes_json(
    matrix_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    options = ("--device", "cpu", "--threads", "1", "--repeats", "2", "--check", "--json", str(out))
    options += ("--formats", "auto,csr_scalar,ellpack")
    assert bench(matrix_file, *options, "--dtype", "float32", "--dtype", "float64") == 0
    text = capsys.readouterr().out
    assert "m: 216 x 216, 1296 entries, longest row 7, float32" in text
    assert "products are correct in every row" in text
    table, words = text.index("csr_scalar plain"), text.index("plain: the format above without compression")
    assert table < words < text.index("Summary")
    assert {"plan:", "best-of:"} <= set(text[words - 80 : text.index("Summary")].split())
    assert {r.dtype for r in Run.read(out).records} == {"float32", "float64"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch",), "'nosuch' is neither a file nor a model problem"),
        ((), "name a file or a problem"),
        (("x.npz", "--formats", "csr_v2"), "no format csr_v2; there are auto"),
        (("R-MAT 15", "--repeats", "0"), "at least 1"),
        (("R-MAT 15", "--columns", "8", "--formats", "auto"), "leave --formats out"),
        (("R-MAT 15", "--device", "abacus"), "unknown device 'abacus'"),
        (("R-MAT 15", "--json", "/no/such/folder/a.json"), "there is no folder"),
        (("R-MAT 15", "--json", "."), "--json . is a folder: name a file"),
        (("R-MAT 15", "--plot", "out"), "name a file that ends with .png"),
    ],
)
def test_misuse_exits_with_2_and_says_why(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("counts", ["1,0", ",", "two", "inf", "1.5"])
def test_thread_counts_are_positive_integers(counts: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench("R-MAT 15", "--threads", counts)
    assert f"--threads: invalid list of counts value: '{counts}'" in capsys.readouterr().err


def test_the_exit_code_is_1_if_nothing_of_a_matrix_could_be_measured() -> None:
    failed = [record(what, None, status="failed") for what in ("plan", "CuPy A @ x")]
    for records, code in ((failed, 1), ([*failed, record("csr_scalar", 2.0)], 0)):
        assert command.exit_code(Run({}, {}, tuple(records))) == code


def test_plot_without_matplotlib_is_refused_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("gsparse.bench.command.find_spec", lambda name: None)
    assert bench("R-MAT 15", "--device", "cpu", "--plot", str(tmp_path / "out.png")) == 2
    assert "--plot needs matplotlib: pip install 'gsparse-gpu[plot]'" in capsys.readouterr().err


def test_a_terminal_shows_a_progress_bar_and_the_usual_table(
    matrix_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    options = ("--device", "cpu", "--threads", "1", "--repeats", "1", "--formats", "auto")
    assert bench(matrix_file, *options) == 0
    captured = capsys.readouterr()
    assert "m: 216 x 216" in captured.out  # the table, as without a bar
    assert "1/1" in captured.err.rpartition("\r")[2]
    assert "matrix" in captured.err


def test_a_wrong_product_or_a_broken_file_exits_with_1(
    matrix_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    options = ("--device", "cpu", "--threads", "1", "--repeats", "1", "--formats", "auto")
    assert bench(str(tmp_path / "bad.npz"), matrix_file, *options) == 1
    assert "not measured: bad, float64: FileFormatError" in capsys.readouterr().out
    monkeypatch.setattr(ExactProduct, "compare", lambda self, got: (99.0, False))
    assert bench(matrix_file, *options, "--check") == 1
    assert "WRONG: plan on m" in capsys.readouterr().out


def test_the_command_measures_columns(matrix_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--device", "cpu", "--threads", "1", "--repeats", "1", "--check", "--columns", "1,5")
    assert bench(matrix_file, *options) == 0
    text = capsys.readouterr().out
    assert "m × 5: 216 x 216" in text
    assert "plan by columns" in text
    # MKL is measured only with PyTorch installed.
    assert re.search(r"5 columns, float64: the plan's speed over (MKL/)?SciPy", text)


def test_list_names_every_model_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--list") == 0
    assert set(MODEL_PROBLEMS) <= set(capsys.readouterr().out.splitlines())


def test_quick_measures_the_chosen_format_of_model_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {name for names in QUICK_PROBLEMS.values() for name in names} <= set(MODEL_PROBLEMS)
    monkeypatch.setitem(QUICK_PROBLEMS, "cpu", ("7-point 40^3 constant",))
    assert bench("--quick", "--device", "cpu") == 0
    text = capsys.readouterr().out
    assert "7-point 40^3 constant" in text
    assert "speed over SciPy" in text
    assert "csr_scalar  " not in text


# ------------------------------------------------------- a GPU on NumPy arrays

STUB = r"""
#include <stdint.h>
#include <stdlib.h>
typedef struct {
  int sell; int64_t rows, cols, nnz, stored, slice; void *offsets, *columns, *values; int types[4];
  int64_t down, right; int order;  /* of a block; order 0 for matrices of single entries */
} Mat;
typedef struct { int64_t size; void *values; int type; } Vec;
static void *bound;
int preprocessed = 0, destroyed = 0, created = 0;
int cusparseCreate(void **h) { *h = malloc(8); return 0; }
int cusparseDestroy(void *h) { free(h); return 0; }
int cusparseSetStream(void *h, void *s) { bound = s; return h ? 0 : 1; }
int cusparseGetVersion(void *h, int *v) { *v = 12; return 0; }
const char *cusparseGetErrorString(int s) { return "planted"; }
static int make(void **d, Mat m) { Mat *p = malloc(sizeof m); *p = m; *d = p; ++created; return 0; }
int cusparseCreateCsr(void **d, int64_t r, int64_t c, int64_t n, void *o, void *i, void *v,
                      int ot, int it, int b, int t) {
  if (ot != 2 || it != 2 || b != 0 || t > 1) return 3;
  return make(d, (Mat){0, r, c, n, n, 1, o, i, v, {ot, it, b, t}});
}
int cusparseCreateSlicedEll(void **d, int64_t r, int64_t c, int64_t n, int64_t s, int64_t z, void *o, void *i, void *v,
                            int ot, int it, int b, int t) {
  if (ot != 2 || it != 2 || b != 0 || t > 1 || z != 32 || ((int *)o)[(r + z - 1) / z] != s) return 3;
  return make(d, (Mat){1, r, c, n, s, z, o, i, v, {ot, it, b, t}});
}
int cusparseCreateBsr(void **d, int64_t r, int64_t c, int64_t n, int64_t down, int64_t right, void *o, void *i, void *v,
                      int ot, int it, int b, int t, int order) {
  if (ot != 2 || it != 2 || b != 0 || t > 1 || (order != 1 && order != 2) || ((int *)o)[r] != n) return 3;
  return make(d, (Mat){0, r * down, c * right, n, n, 1, o, i, v, {ot, it, b, t}, down, right, order});
}
int cusparseCreateDnVec(void **d, int64_t n, void *v, int t) {
  Vec *p = malloc(sizeof *p); *p = (Vec){n, v, t}; *d = p; ++created; return 0;
}
int cusparseDestroySpMat(void *d) { free(d); ++destroyed; return 0; }
int cusparseDestroyDnVec(void *d) { free(d); ++destroyed; return 0; }
int cusparseSpMV_bufferSize(void *h, int op, void *a, Mat *A, Vec *x, void *b, Vec *y, int t, int alg, size_t *size) {
  *size = 64; return (A->sell != (alg == 5)) || A->cols != x->size || A->rows != y->size || t != A->types[3];
}
int cusparseSpMV_preprocess(void *h, int op, void *a, Mat *A, Vec *x, void *b, Vec *y, int t, int alg, void *buffer) {
  if (alg == 5) return 10;
  ++preprocessed; return buffer ? 0 : 3;
}
#define GET(p, k) (t ? ((double *)(p))[k] : ((float *)(p))[k])
/* The product of a row of blocks with one column of X, whose rows are `step` apart. */
static double blocks(Mat *A, int t, int64_t row, void *x, int64_t first, int64_t step) {
  int *o = A->offsets, *c = A->columns;
  double s = 0;
  int64_t r = row % A->down, by_row = A->order == 2;
  for (int64_t k = o[row / A->down]; k < o[row / A->down + 1]; ++k)
    for (int64_t j = 0; j < A->right; ++j) {
      int64_t place = k * A->down * A->right + (by_row ? r * A->right + j : j * A->down + r);
      s += GET(A->values, place) * GET(x, first + (c[k] * A->right + j) * step);
    }
  return s;
}
int cusparseSpMV(void *h, int op, void *a, Mat *A, Vec *x, void *b, Vec *y, int t, int alg, void *buffer) {
  int *o = A->offsets, *c = A->columns;
  for (int64_t r = 0; r < A->rows; ++r) {
    double s = 0;
    int64_t begin = A->sell ? o[r / 32] + r % 32 : o[r], end = A->sell ? o[r / 32 + 1] : o[r + 1];
    if (A->order) { s = blocks(A, t, r, x->values, 0, 1); begin = end; }
    for (int64_t k = begin; k < end; k += A->slice) if (c[k] >= 0) s += GET(A->values, k) * GET(x->values, c[k]);
    s = GET(a, 0) * s + (GET(b, 0) ? GET(b, 0) * GET(y->values, r) : 0);
    if (t) ((double *)y->values)[r] = s; else ((float *)y->values)[r] = s;
  }
  return buffer ? 0 : 3;
}
typedef struct { Mat *A; int type; } Plan;
int cusparseSpMVOp_bufferSize(void *h, int op, Mat *A, Vec *x, Vec *y, Vec *z, int t, int alg, size_t *size) {
  *size = 32; return op || y != z || alg < 0 || alg > 2 ? 3 : 0;
}
int cusparseSpMVOp_createDescr(void *h, void **d, int op, Mat *A, Vec *x, Vec *y, Vec *z, int t, int alg,
                               void *buffer) {
  Plan *p = malloc(sizeof *p);
  *p = (Plan){A, t}; *d = p; ++created; return buffer ? 0 : 3;
}
int cusparseSpMVOp_createPlan(void *h, Plan *d, void **plan, void *code, size_t size) {
  Plan *p = malloc(sizeof *p);
  *p = *d; *plan = p; ++created; return code || size ? 3 : 0;
}
int cusparseSpMVOp(void *h, Plan *p, void *a, void *b, Vec *x, Vec *y, Vec *z) {
  return cusparseSpMV(h, 0, a, p->A, x, b, z, p->type, 0, z);
}
int cusparseSpMVOp_destroyPlan(void *d) { free(d); ++destroyed; return 0; }
int cusparseSpMVOp_destroyDescr(void *d) { free(d); ++destroyed; return 0; }
typedef struct { int64_t rows, cols, down, right; void *values; int type; } Dense;
int cusparseCreateDnMat(void **d, int64_t r, int64_t c, int64_t ld, void *v, int t, int order) {
  if (order != 1 && order != 2) return 3;
  if (ld < (order == 1 ? r : c)) return 3;
  Dense *p = malloc(sizeof *p);
  *p = (Dense){r, c, order == 1 ? 1 : ld, order == 1 ? ld : 1, v, t}; *d = p; ++created; return 0;
}
int cusparseDestroyDnMat(void *d) { free(d); ++destroyed; return 0; }
int cusparseSpMM_bufferSize(void *h, int opA, int opX, void *a, Mat *A, Dense *x, void *b, Dense *y, int t, int alg,
                            size_t *size) {
  if (A->order ? alg != 0 : alg != 4 && alg != 6 && alg != 12) return 3;
  *size = 64; return opA || opX || A->cols != x->rows || A->rows != y->rows || x->cols != y->cols || t != x->type;
}
int cusparseSpMM_preprocess(void *h, int opA, int opX, void *a, Mat *A, Dense *x, void *b, Dense *y, int t, int alg,
                            void *buffer) {
  ++preprocessed; return buffer ? 0 : 3;
}
int cusparseSpMM(void *h, int opA, int opX, void *a, Mat *A, Dense *x, void *b, Dense *y, int t, int alg,
                 void *buffer) {
  int *o = A->offsets, *c = A->columns;
  for (int64_t r = 0; r < A->rows; ++r)
    for (int64_t j = 0; j < x->cols; ++j) {
      double s = A->order ? blocks(A, t, r, x->values, j * x->right, x->down) : 0;
      for (int64_t k = o[r]; !A->order && k < o[r + 1]; ++k)
        s += GET(A->values, k) * GET(x->values, c[k] * x->down + j * x->right);
      if (t) ((double *)y->values)[r * y->down + j * y->right] = s;
      else ((float *)y->values)[r * y->down + j * y->right] = s;
    }
  return buffer ? 0 : 3;
}
"""


class Stream:
    """A stand-in for a stream and for the graph captured on it: every call runs at once."""

    ptr = 7
    refuses = False

    def __init__(self, non_blocking: bool = False) -> None:
        self.capturing = False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def use(self) -> Stream:
        return self

    def synchronize(self) -> None:
        assert not self.capturing

    def begin_capture(self) -> None:
        if self.refuses:
            raise RuntimeError("planted: operation not permitted when stream is capturing")
        self.capturing = True

    def end_capture(self) -> SimpleNamespace:
        assert self.capturing
        self.capturing = False
        return SimpleNamespace(launch=lambda stream: Event.work(1e-4))


class Event:
    """A stand-in for an event. Only the simulated work advances its clock, so a loaded machine changes no time."""

    now = 0.0

    @classmethod
    def work(cls, seconds: float) -> None:
        cls.now += seconds

    def record(self, stream: Stream) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        pass


class MemoryHook:
    def __enter__(self) -> MemoryHook:
        return self

    def __exit__(self, *_: object) -> None:
        self.malloc_postprocess()  # type: ignore[attr-defined]


class FakeCupy:
    """NumPy under CuPy's name, with the parts of `cupy.cuda` that timing uses."""

    def __init__(self) -> None:
        self.asnumpy = np.asarray
        self.cuda = SimpleNamespace(
            Stream=Stream,
            Event=Event,
            MemoryHook=MemoryHook,
            Device=lambda: SimpleNamespace(synchronize=lambda: None),
            get_current_stream=Stream,
            get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at),
            runtime=SimpleNamespace(memGetInfo=lambda: (1 << 24, 1 << 24), getDevice=lambda: 0),
        )

    def empty_like(self, array: Any) -> Any:
        return SimpleNamespace(data=SimpleNamespace(copy_from_device_async=lambda source, nbytes: Event.work(1e-4)))

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=lambda: None, used_bytes=lambda: 0)


class FakeGpu(CpuDevice):
    """The CPU backend, presented as a GPU."""

    description = "fake GPU"

    def __init__(self) -> None:
        self.xp = FakeCupy()


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = next((c for c in ("cc", "gcc", "g++") if shutil.which(c)), None)
    if compiler is None or compiler == "g++":
        pytest.skip("no C compiler")
    if sys.platform == "win32":
        pytest.skip("the stub is a shared library of Linux or macOS")
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.c").write_text(STUB)
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(folder / "libcusparse.so.12"), str(folder / "stub.c")]
    subprocess.run(command, check=True)
    return folder / "libcusparse.so.12"


@pytest.fixture
def context(stub: Path, monkeypatch: pytest.MonkeyPatch) -> cusparse.Context:
    cusparse_context = cusparse.Context(cusparse.declare(ctypes.CDLL(str(stub))), FakeCupy())
    cusparse.check(cusparse_context.library, "cusparseCreate", ctypes.byref(cusparse_context.handle))
    monkeypatch.setattr(cusparse, "address", lambda array: array.ctypes.data)
    monkeypatch.setattr(cusparse, "current_context", lambda: cusparse_context)
    return cusparse_context


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", cusparse.ALGORITHMS)
def test_cusparse_is_called_as_its_prototypes_say(
    context: Any, algorithm: str, dtype: str, rng: np.random.Generator
) -> None:
    arrays = problems.from_lengths(np.array([0, 3, 40, 1] * 17), 50)
    arrays = arrays._replace(data=arrays.data.astype(dtype))
    parts = cusparse.to_sliced_ell(np, arrays[:3], 68) if algorithm == "SELL" else arrays[:3]
    x, y = rng.random(50).astype(dtype), np.full(68, np.nan, dtype)
    product = cusparse.CusparseProduct(parts, arrays.shape, arrays.data.size, algorithm, x, y)
    assert product.preprocessed == (algorithm != "SELL")
    np.testing.assert_allclose(product.result(), as_matrix(arrays) @ x, rtol=1e-5)
    alive = [ctypes.c_int.in_dll(context.library, name) for name in ("created", "destroyed")]
    before = alive[0].value - alive[1].value
    del product
    assert alive[0].value - alive[1].value == before - 3


def test_the_plans_of_cusparse_are_called_as_their_prototypes_say(context: Any, rng: np.random.Generator) -> None:
    arrays = problems.from_lengths(np.array([0, 3, 40, 1] * 17), 50)
    x, y = rng.random(50), np.full(68, np.nan)
    alive = [ctypes.c_int.in_dll(context.library, name) for name in ("created", "destroyed")]
    before = alive[0].value - alive[1].value
    for algorithm in gpu_peers.plan_algorithms():
        product = gpu_peers.CusparsePlan(arrays[:3], arrays.shape, arrays.data.size, algorithm, x, y)
        np.testing.assert_allclose(product.result(), as_matrix(arrays) @ x, rtol=1e-12)
        y[:] = np.nan
        del product
    assert alive[0].value - alive[1].value == before
    assert alive[1].value >= 3 * 5


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("algorithm", cusparse.COLUMN_ALGORITHMS)
def test_cusparse_multiplies_columns_as_its_prototypes_say(
    context: Any, algorithm: str, order: Any, rng: np.random.Generator
) -> None:
    arrays = problems.from_lengths(np.array([0, 3, 40, 1] * 17), 50)
    X = np.asarray(rng.random((50, 6)), order=order)
    Y = np.full((68, 6), np.nan, order=order)
    product = cusparse.CusparseProduct(arrays[:3], arrays.shape, arrays.data.size, algorithm, X, Y)
    assert product.preprocessed
    np.testing.assert_allclose(product.result(), as_matrix(arrays) @ X, rtol=1e-10)
    with pytest.raises(cusparse.CusparseError, match="contiguous"):
        cusparse.CusparseProduct(arrays[:3], arrays.shape, arrays.data.size, algorithm, X[:, ::2], Y[:, ::2])


@pytest.mark.parametrize("size", [(3, 3), (2, 4)])
@pytest.mark.parametrize("algorithm", cusparse.BLOCK_ALGORITHMS)
def test_cusparse_multiplies_blocks_as_its_prototypes_say(
    context: Any, algorithm: str, size: tuple[int, int], rng: np.random.Generator
) -> None:
    pattern = problems.from_lengths(np.array([0, 3, 40, 1] * 5), 50)
    data = rng.standard_normal((pattern.indices.size, *size))
    B = sp.bsr_array((data, pattern.indices, pattern.indptr), shape=(20 * size[0], 50 * size[1]))
    x, X = rng.random(B.shape[1]), rng.random((B.shape[1], 6))
    for operand in (x, X, np.asfortranarray(X)):
        y = np.full((B.shape[0], *operand.shape[1:]), np.nan, order="F" if operand.flags.f_contiguous else "C")
        parts = (B.data, B.indices, B.indptr)
        product = cusparse.CusparseProduct(parts, B.shape, B.nnz, algorithm, operand, y)
        np.testing.assert_allclose(product.result(), B @ operand, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_full_blocks_are_converted_to_bsr(size: int, rng: np.random.Generator) -> None:
    pattern = problems.from_lengths(np.array([0, 3, 40, 1] * 5), 50)
    numbers = sp.csr_array((np.ones(pattern.indices.size), pattern.indices, pattern.indptr), shape=(20, 50))
    numbers.sum_duplicates()
    data = rng.standard_normal((numbers.nnz, size, size))
    B = sp.bsr_array((data, numbers.indices, numbers.indptr), shape=(20 * size, 50 * size))
    S = sp.csr_array(B.tocsr())
    for one, other in zip(
        cusparse.to_blocks(np, (S.data, S.indices, S.indptr), size), (B.data, B.indices, B.indptr), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_cusparse_errors_name_the_call_and_the_cause(context: Any) -> None:
    arrays = problems.stencil(3, 7)
    x, y = np.zeros(5), np.zeros(27)
    with pytest.raises(cusparse.CusparseError, match=r"cusparseSpMV_bufferSize: planted \(status 1\)"):
        cusparse.CusparseProduct(arrays[:3], arrays.shape, 135, "CSR_ALG1", x, y)
    with pytest.raises(cusparse.CusparseError, match="only float32 and float64"):
        cusparse.CusparseProduct((arrays.data.astype(int), *arrays[1:3]), arrays.shape, 135, "CSR_ALG1", x, y)


def test_a_missing_library_error_lists_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cusparse, "import_module", lambda name: (_ for _ in ()).throw(ImportError("no pathfinder")))
    with pytest.raises(cusparse.CusparseError, match=r"install nvidia-cusparse.*no attribute 'device'.*no pathfinder"):
        cusparse.load_library(SimpleNamespace(cuda=SimpleNamespace()))


@pytest.fixture
def fake_gpu(context: Any, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    device = FakeGpu()
    monkeypatch.setattr(FakeGpu, "kind", "gpu")
    return device


def test_gpu_measurements_run_and_missing_libraries_are_recorded(fake_gpu: FakeGpu) -> None:
    result = run([tiny()], Settings(fake_gpu, repeats=2, check=True))
    assert not result.errors
    rows = {r.what: r for r in result.records}
    for name in ("plan", "csr_vector", *(f"cuSPARSE {algorithm}" for algorithm in cusparse.ALGORITHMS)):
        assert rows[name].status == "measured", rows[name]
        assert rows[name].kernel_us == pytest.approx(10)  # the stand-in graph of ten calls takes 100 µs
        assert rows[name].call_us
        assert rows[name].correct
        assert not rows[name].note
    assert rows["CuPy A @ x"].status == "failed"
    assert rows["cuSPARSE CSR_ALG1"].setup_us is not None
    assert rows["cuSPARSE default"].setup_us is None
    assert rows["plan"].reference == "cuSPARSE best-of"
    assert set(result.copy_gbytes_per_second) == {"gpu"}
    assert "kernel µs" in report.matrix_table(result.records, result)


def test_the_peer_of_programs_is_the_best_of_cusparse_for_each_direction(
    fake_gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sp.save_npz(tmp_path / "program.npz", sp.csr_array(np.triu(np.ones((20, 30)))))
    monkeypatch.setenv("GSPARSE_MATRICES", str(tmp_path))
    monkeypatch.setattr(measure_transposed, "with_held_bytes", lambda device, build: (build(), 1000))
    ratios = measure_transposed.measure_program("program", fake_gpu, "float64", 2)
    assert ratios == pytest.approx({"A @ x": 1, "A.T @ y": 1, "in turn": 1, "bytes": ratios["bytes"]})
    printed = capsys.readouterr().out.splitlines()
    names = [line.split("; ")[1].rsplit(" ", 3)[0] for line in printed if line.startswith(("  A @ x", "  A.T @ y"))]
    known = [peer.what for peer in gpu_peers.library_peers(load(tiny(), fake_gpu, "float64")) if peer.kind == "vendor"]
    assert len(names) == 2
    assert set(names) <= set(known)


def test_a_gpu_has_a_clock_of_its_own_if_none_is_given(fake_gpu: FakeGpu) -> None:
    records = measure(load(tiny(), fake_gpu, "float64"), Settings(fake_gpu, repeats=1, formats=("auto",)))
    plan = next(r for r in records if r.what == "plan")
    assert plan.kernel_us == pytest.approx(10)
    assert plan.threads is None


@pytest.mark.parametrize("count", [1, 8])
def test_the_bytes_of_products_with_columns_are_those_that_are_stored(count: int) -> None:
    loaded = load(Problem("blocks", lambda xp: problems.shuffled_blocks(8, 3)), CPU, "float64")
    records = measure(columns.with_columns(loaded, count), replace(QUICK, columns=(count,)))
    plan, scipy_product = (next(r for r in records if r.what == what) for what in ("plan", "SciPy"))
    vectors = 2 * loaded.shape[0] * count * 8
    assert plan.nbytes - vectors < 0.8 * (scipy_product.nbytes - vectors)  # blocks of 3 x 3 have fewer indices


def test_columns_are_measured_for_every_count_and_layout(fake_gpu: FakeGpu) -> None:
    settings = Settings(fake_gpu, ("float32",), repeats=1, check=True, columns=(1, 8))
    result = run([tiny()], settings)
    assert not result.errors
    assert {r.matrix for r in result.records} == {"tiny × 1", "tiny × 8"}
    rows = {r.what: r for r in result.records if r.columns == 8}
    layouts = [f"{name} by {side}" for name in cusparse.COLUMN_ALGORITHMS for side in ("rows", "columns")]
    for name in ("plan", "plan by columns", *(f"cuSPARSE {n}" for n in layouts)):
        assert rows[name].status == "measured", rows[name]
        assert rows[name].correct
    assert rows["plan"].nbytes == 1296 * 8 + 217 * 4 + 2 * 216 * 8 * 4
    text = "\n".join(summary_lines(result.records))
    assert "8 columns, float32: the plan's speed over cuSPARSE best-of: " in text


def test_a_wrong_column_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = columns.with_columns(load(tiny(), CPU, "float32"), 6)
    exact = ExactProduct(loaded)
    right = as_matrix(loaded.arrays) @ loaded.x
    assert exact.compare(right)[1]
    assert not exact.compare(right[:, [0, 2, 1, 3, 4, 5]])[1]
    right[7, 3] *= 1 + 1e-3
    assert not exact.compare(right)[1]


def test_peers_are_measured_one_at_a_time_when_memory_is_short(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.bench.runner.MAX_ENTRIES_TOGETHER", {"gpu": 0, "cpu": 0})
    groups: list[int] = []
    runner = sys.modules["gsparse.bench.runner"]
    plain = runner._measure_group
    monkeypatch.setattr(
        runner, "_measure_group", lambda loaded, peers, *args: groups.append(len(peers)) or plain(loaded, peers, *args)
    )
    result = run([tiny()], Settings(fake_gpu, repeats=1, formats=("auto", "csr_vector")))
    assert groups == [1] * len(result.records)
    assert {r.what for r in result.records if r.us} >= {"plan", "csr_vector", "cuSPARSE SELL"}


def test_a_call_that_cannot_be_captured_is_timed_eagerly_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "refuses", True)
    sampler = GpuClock(FakeCupy()).kernel_sampler(lambda: Event.work(1e-5))
    assert sampler.sample() == pytest.approx(1e-5)
    assert "10 eager calls, not captured (RuntimeError: planted" in sampler.note


def test_a_sampler_keeps_what_its_graph_reads() -> None:
    """A captured launch holds addresses alone, and the caller may drop the matrix."""

    class Matrix:
        def multiply(self) -> None:
            Event.work(1e-5)

    matrix = Matrix()
    alive = weakref.ref(matrix)
    sampler = GpuClock(FakeCupy()).kernel_sampler(matrix.multiply)
    del matrix
    gc.collect()
    assert alive() is not None
    del sampler
    gc.collect()
    assert alive() is None


def test_a_launch_that_fails_during_capture_ends_the_capture() -> None:
    clock, calls = GpuClock(FakeCupy()), []

    def launch() -> None:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("synchronizes")

    sampler = clock.kernel_sampler(launch)
    assert "not captured (RuntimeError: synchronizes" in sampler.note
    assert not any(stream.capturing for stream in clock._streams)


def test_sliced_ell_refuses_entries_beyond_the_range_of_its_offsets() -> None:
    with pytest.raises(cusparse.CusparseError, match="more than int8 slice offsets can count"):
        cusparse.to_sliced_ell(np, (np.ones(8), np.zeros(8, np.int8), np.array([0, 8])), 1)


@pytest.mark.gpu
def test_all_peers_are_measured_and_correct_on_a_gpu() -> None:
    pytest.importorskip("cupy")
    try:
        device = get_device("gpu")
    except gsparse.GsparseError as error:
        pytest.skip(str(error))
    problem = Problem("uniform", lambda xp: problems.uniform(3000, 20, xp=xp))
    result = run([problem], Settings(device, dtypes=("float32", "float64"), repeats=3, check=True))
    assert not result.errors
    failed = [(r.what, r.note) for r in result.records if r.status == "failed" or r.correct is False]
    assert not failed
    assert {"cuSPARSE SELL", "cuSPARSE CSR_ALG2", "CuPy A @ x", "plan"} <= {
        r.what for r in result.records if r.kernel_us
    }


@pytest.mark.gpu
def test_columns_are_measured_and_correct_on_a_gpu() -> None:
    pytest.importorskip("cupy")
    try:
        device = get_device("gpu")
    except gsparse.GsparseError as error:
        pytest.skip(str(error))
    problem = Problem("uniform", lambda xp: problems.uniform(3000, 20, xp=xp))
    settings = Settings(device, ("float32", "float64"), repeats=2, check=True, columns=(1, 6, 64))
    result = run([problem], settings)
    assert not result.errors
    ours = [r for r in result.records if r.kind in ("plan", "layout")]
    assert not [(r.what, r.note) for r in ours if r.status == "failed"]
    assert not [(r.matrix, r.what) for r in result.records if r.correct is False]
    assert {"cuSPARSE CSR_ALG2 by rows", "CuPy A @ X", "plan"} <= {r.what for r in result.records if r.kernel_us}


def test_gpu_peers_name_every_algorithm() -> None:
    names = [peer.what for peer in gpu_peers.library_peers(load(tiny(), CPU, "float64"))]
    assert names[:4] == ["cuSPARSE default", "cuSPARSE CSR_ALG1", "cuSPARSE CSR_ALG2", "cuSPARSE SELL"]
    assert names[4:7] == ["cuSPARSE BSR by rows", "cuSPARSE BSR by columns", "CuPy A @ x"]


def test_measuring_the_costs_of_formats_leaves_the_number_of_threads_as_it_was() -> None:
    before = gsparse.get_num_threads()
    rows = list(fit_costs.measure(load(tiny(), CPU, "float64"), (before + 1, before + 2), None))
    assert {row["threads"] for row in rows} == {before + 1, before + 2}
    assert {row["format"] for row in rows} >= {"csr_scalar", "ellpack"}
    assert gsparse.get_num_threads() == before


def test_the_constants_of_one_format_are_fitted_to_matrices_of_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_costs, "BLOCKS", ((4, 2), (5, 3), (5, 6)))
    monkeypatch.setattr(fit_costs, "ROUNDS", 2)
    monkeypatch.setattr(fit_costs, "STEPS", 20)
    monkeypatch.setattr(fit_costs, "assembled_names", list)
    monkeypatch.setenv(problems.FOLDER_VARIABLE, str(tmp_path))  # without armadillo13k_elast_P1
    times = tmp_path / "times.json"
    command = ["fit_costs.py", "blocks", str(times), "--device", "cpu", "--threads", "1", "--dtype", "float64"]
    monkeypatch.setattr(sys, "argv", [*command, "--largest", "4e4"])
    fit_costs.main()
    printed = capsys.readouterr().out
    rows = json.loads(times.read_text())
    assert {row["matrix"] for row in rows} == {
        f"27-point {n}{o}" for n in ("4^3 x 2", "5^3 x 3") for o in ("", ", shuffled")
    }
    assert all(("setup" in row) is (row["format"] == "bsr") for row in rows)
    [line] = [line for line in printed.splitlines() if line.startswith("cpu ")]
    assert line.startswith("cpu bsr ")
    assert "setup=" in line
    kept = fit_costs.Fit(rows, "bsr")
    kept.solve()
    today = {row["format"]: fit_costs.constants_of(row["format"], row) for row in rows}
    assert {name for name, constants in kept.constants.items() if constants != today[name]} == {"bsr"}


def test_matrices_without_blocks_say_nothing_about_the_costs_of_blocks() -> None:
    rows = list(fit_costs.measure(load(tiny(), CPU, "float64"), (1,), None))
    assert "bsr" not in {row["format"] for row in rows}


def test_the_time_of_a_sector_is_found_in_the_errors_of_predictions() -> None:
    rng = np.random.default_rng(0)
    sectors = rng.integers(1000, 100_000, 30)
    predicted = rng.uniform(3, 9, 30)
    times = [(p + 0.5 + 4e-6 * n, p, int(n)) for p, n in zip(predicted, sectors, strict=True)]
    time, gain = measure_gathers.fit_gathers(times)
    assert time == pytest.approx(4e-6, rel=1e-6) and gain > 0.99


def test_sectors_are_counted_once_for_neighbouring_rows(tmp_path: Path) -> None:
    n = 2 * measure_gathers.NEIGHBOURS
    path = tmp_path / "eye.npz"
    sp.save_npz(path, sp.eye_array(n, format="csr"))
    assert measure_gathers.count_sectors(str(path), 8) == n * 8 // measure_gathers.SECTOR_BYTES
