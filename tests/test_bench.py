"""`python -m gsparse bench`: its measurements, its reports, and that a failure of one peer does not stop the others.

The code for GPUs runs on NumPy arrays: streams and events are stand-ins, and SciPy computes cuSPARSE's products.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shlex
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
from gsparse.bench.check import ExactProduct
from gsparse.bench.command import QUICK_PROBLEMS
from gsparse.bench.peers import Peer, Prepared, SkippedError, load
from gsparse.bench.problems import MODEL_PROBLEMS, Problem, find_problem
from gsparse.bench.records import Record, Run, by_matrix, with_reference
from gsparse.bench.report import summary_lines
from gsparse.device.cpu import CpuDevice
from gsparse.device.select import get_device

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
    assert "MKL (PyTorch)" in text
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


class Stream:
    """A stand-in for a stream and for the graph captured on it: every call runs at once."""

    ptr = 7

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


class FakeProduct:
    """The product of `CusparseProduct`, computed by SciPy."""

    def __init__(
        self, arrays: Any, shape: Any, nnz: int, algorithm: str, x: Any, y: Any, preprocess: bool = True
    ) -> None:
        self.preprocessed, self._x = preprocess, x
        self._matrix = sp.csr_array(arrays, shape=shape)

    def launch(self) -> None:
        Event.work(1e-5)

    def result(self) -> Any:
        return self._matrix @ self._x


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    for name in ("__init__", "launch", "result"):
        monkeypatch.setattr(cusparse.CusparseProduct, name, vars(FakeProduct)[name])
    monkeypatch.setattr(gpu_peers, "to_sliced_ell", lambda xp, arrays, num_rows: arrays)
    monkeypatch.setattr(gpu_peers, "plan_algorithms", tuple)
    monkeypatch.setattr(FakeGpu, "kind", "gpu")
    return FakeGpu()


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
    assert rows["CuPy A @ x"].status in ("skipped", "failed")  # CuPy is not installed, or cannot use these arrays.
    assert rows["cuSPARSE CSR_ALG1"].setup_us is not None
    assert rows["cuSPARSE default"].setup_us is None
    assert rows["plan"].reference == "cuSPARSE best-of"
    assert set(result.copy_gbytes_per_second) == {"gpu"}
    assert "kernel µs" in report.matrix_table(result.records, result)


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
