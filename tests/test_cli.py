"""The command line: the text and the JSON that each command prints, and its exit code."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import gsparse
from gsparse import cli
from gsparse._interrupt import is_command
from gsparse.cli import common, doctor, entry, solve, warmup
from gsparse.device import threads
from gsparse.device.cache import UntrustedFolderError
from gsparse.device.compilation import COMPILE_NOTICE
from gsparse.errors import DeviceError, DeviceMemoryError, FactorizationError
from gsparse.files import read_file, write_file
from gsparse.kernels.cpu.compiling import HandOut
from gsparse.linalg.automatic import attempts, plan
from tests.support import closed_pipe

ROOT = Path(__file__).parents[1]
N = 20
LINE = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsr()
UPWIND = sp.diags_array([-2.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsr()
TALL = sp.csr_array(np.vander(np.linspace(0, 1, N), 3))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a matrix for each way of solving, and a right-hand side."""
    for name, matrix in {"line": LINE, "saddle": -LINE, "upwind": UPWIND, "tall": TALL}.items():
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", matrix)
    np.save(tmp_path / "b.npy", np.arange(N) + 1.0)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def call_json(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> dict[str, Any]:
    exit_code, out, _ = call(capsys, *arguments, "--json")
    assert exit_code == code
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------ info


def test_info_prints_statistics_all_candidates_and_memory(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = call_json(capsys, "info", files / "line.mtx", "--device", "cpu")
    plan = gsparse.GpuSparseMatrix(LINE, device="cpu").plan
    assert (report["shape"], report["entries"], report["dtype"]) == ([N, N], 3 * N - 2, "float64")
    assert report["rows"] == pytest.approx({"shortest": 2, "longest": 3, "mean": 2.9, "std": 0.3, "empty": 0})
    assert (report["bandwidth"], report["diagonal entries"], report["hermitian"]) == (1, N, True)
    assert [c["format"] for c in report["plan"]["candidates"]] == [c.format for c in plan.candidates]
    assert [c["bytes"] for c in report["plan"]["candidates"]] == [c.nbytes for c in plan.candidates]
    assert report["memory"]["scipy csr"] == (3 * N - 2) * 12 + (N + 1) * 4
    assert set(report["memory"]) == {"scipy csr", *(c.format for c in plan.candidates)}
    code, text, _ = call(capsys, "info", files / "line.mtx", "--device", "cpu")
    assert code == 0
    assert str(plan) in text
    assert "equals its conjugate transpose" in text


def test_info_reports_empty_rows_and_rectangular_shapes(tmp_path: Path, capsys: Any) -> None:
    for shape in ((4, 3), (0, 3), (3, 0)):
        write_file(tmp_path / "A.npz", sp.csr_array(shape))
        report = call_json(capsys, "info", tmp_path / "A.npz", "--device", "cpu")
        assert (report["shape"], report["rows"]["empty"]) == (list(shape), shape[0])
        code, text, _ = call(capsys, "info", tmp_path / "A.npz", "--device", "cpu")
        assert code == 0
        assert "entries per row 0 to 0, " in text
        assert "; not square\n" in text


def test_info_compares_large_integers_with_their_transpose_exactly(tmp_path: Path, capsys: Any) -> None:
    for above, is_equal in ((1, False), (0, True)):
        write_file(tmp_path / "A.npz", sp.csr_array(np.array([[0, 2**53], [2**53 + above, 0]])))
        assert call_json(capsys, "info", tmp_path / "A.npz", "--device", "cpu")["hermitian"] is is_equal


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_info_tune_times_the_candidates(capsys: Any, monkeypatch: Any, tmp_path: Path, dtype: str) -> None:
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path))
    write_file(tmp_path / "line.npz", LINE.astype(dtype))
    report = call_json(capsys, "info", tmp_path / "line.npz", "--device", "cpu", "--tune")
    assert sum(c["measured_seconds"] is not None for c in report["plan"]["candidates"]) >= 2


# ----------------------------------------------------------------------------------------------------------- solve


@pytest.mark.parametrize(
    ("name", "method", "why"),
    [
        ("line", "cg with amg", "symmetric with a positive, dominant diagonal"),
        ("saddle", "minres with absolute_diagonal", "not positive definite"),
        ("upwind", "fgmres with amg", "not symmetric"),
        ("tall", "lsmr", "least squares"),
    ],
)
def test_solve_chooses_a_method_by_the_matrix_and_says_why(
    files: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, name: str, method: str, why: str
) -> None:
    monkeypatch.setattr(plan, "DIRECT_SIZE", 0)  # small matrices are factorized
    report = call_json(capsys, "solve", files / f"{name}.mtx", "--device", "cpu", "-o", files / "x.npy")
    assert (report["tried"], report["converged"]) == ([method], True)
    assert (report["method"], report["precond"]) == (
        method.split(maxsplit=1)[0],
        method.partition(" with ")[2] or "none",
    )
    assert why in report["why"]
    A = read_file(files / f"{name}.mtx")
    x = np.load(files / "x.npy")
    assert np.linalg.norm(A @ x - A @ np.ones(A.shape[1])) <= 1e-6 * np.linalg.norm(A @ np.ones(A.shape[1]))
    assert report["history"][-1] < 1e-6 * max(report["history"])


@pytest.mark.parametrize("method", solve.SOLVERS)
def test_every_method_solves_for_a_right_hand_side_of_a_file(files: Path, capsys: Any, method: str) -> None:
    options = ["--rhs", files / "b.npy", "--method", method, "--rtol", "1e-11", "-o", files / "x.mtx"]
    options += ["--maxiter", "200"]
    code, text, _ = call(capsys, "solve", files / "line.mtx", "--device", "cpu", *options)
    assert code == 0
    assert f"\n{method}, preconditioner none: " in text
    x = scipy.io.mmread(files / "x.mtx").ravel()
    np.testing.assert_allclose(x, np.linalg.solve(LINE.toarray(), np.load(files / "b.npy")), rtol=1e-6)


@pytest.mark.parametrize("precond", solve.PRECONDITIONERS)
def test_solve_accepts_every_preconditioner(files: Path, capsys: Any, precond: str) -> None:
    report = call_json(capsys, "solve", files / "line.mtx", "--device", "cpu", "--precond", precond, "--method", "cg")
    assert (report["precond"], report["converged"]) == (precond, True)
    assert report["relative_residual"] < 1e-6


@pytest.mark.parametrize("method", ["gmres", "fgmres", "cg", "lsqr"])
@pytest.mark.parametrize("maxiter", [3, 47])
def test_maxiter_counts_iterations_and_not_cycles(files: Path, capsys: Any, method: str, maxiter: int) -> None:
    write_file(files / "long.npz", sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(500, 500)))
    options = ["--device", "cpu", "--method", method, "--maxiter", maxiter]
    iterations = call_json(capsys, "solve", files / "long.npz", *options, code=1)["iterations"]
    assert maxiter - 20 < iterations <= maxiter  # a cycle of gmres has 20 iterations


def test_relative_residuals_are_those_of_each_right_hand_side_with_and_without_a_method(
    files: Path, capsys: Any
) -> None:
    np.save(files / "B.npy", np.arange(2.0 * N).reshape(N, 2))
    command = ["solve", files / "line.mtx", "--device", "cpu", "--rhs", files / "B.npy"]
    for options in ([], ["--method", "cg"]):
        assert np.shape(call_json(capsys, *command, *options)["relative_residual"]) == (2,)
    assert "norm(b - A·x) / norm(b) =" in call(capsys, *command, "--method", "cg")[1]


def test_a_matrix_with_one_row_takes_several_right_hand_sides(files: Path, capsys: Any) -> None:
    write_file(files / "A.npz", 2 * sp.eye_array(1, format="csr"))
    np.save(files / "row.npy", [[2.0, 4.0, 6.0]])
    options = ["--device", "cpu", "--rhs", files / "row.npy", "-o", files / "x.mtx"]
    assert call(capsys, "solve", files / "A.npz", *options)[0] == 0
    np.testing.assert_allclose(scipy.io.mmread(files / "x.mtx"), [[1.0, 2.0, 3.0]])


def test_the_solution_of_an_empty_system_is_written(files: Path, capsys: Any) -> None:
    write_file(files / "A.npz", sp.csr_array((0, 0)))
    assert call(capsys, "solve", files / "A.npz", "--device", "cpu", "-o", files / "x.mtx")[0] == 0
    assert (files / "x.mtx").read_text().splitlines()[-1] == "0 1"


def test_a_solve_that_does_not_converge_exits_with_1_and_advice(files: Path, capsys: Any) -> None:
    command = ["solve", files / "line.mtx", "--device", "cpu", "--method", "cg", "--maxiter", "2"]
    command += ["--rhs", files / "b.npy"]
    report = call_json(capsys, *command, code=1)
    assert (report["converged"], report["iterations"], report["reason"]) == (False, 2, "reached maxiter")
    code, text, _ = call(capsys, *command)
    assert code == 1
    assert report["advice"] in text and "Allow more iterations (maxiter), or give a preconditioner" in text


def test_an_automatic_solve_that_does_not_converge_lists_what_was_tried(
    files: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "DIRECT_SIZE", 0)
    monkeypatch.setattr(attempts, "_SMALL", 0)
    monkeypatch.setattr(attempts, "_MAX_OPERATIONS", 0)
    command = ["solve", files / "line.mtx", "--device", "cpu", "--maxiter", "1", "--rtol", "1e-20"]
    report = call_json(capsys, *command, "--rhs", files / "b.npy", code=1)
    assert report["converged"] is False
    assert len(report["tried"]) == len(report["outcomes"]) > 3
    assert "Increase rtol or maxiter" in report["advice"]


def test_a_solution_replaces_an_existing_file_only_with_force(files: Path, capsys: Any) -> None:
    command = ["solve", files / "line.mtx", "--device", "cpu", "-o", files / "b.npy"]
    assert call(capsys, *command)[0] == 2
    np.testing.assert_array_equal(np.load(files / "b.npy"), np.arange(N) + 1.0)
    assert call(capsys, *command, "--force")[0] == 0
    np.testing.assert_allclose(np.load(files / "b.npy"), 1.0, rtol=1e-6)


def test_solve_takes_several_integer_right_hand_sides_from_a_matlab_file(files: Path, capsys: Any) -> None:
    B = np.arange(2 * N).reshape(N, 2)
    scipy.io.savemat(files / "b.mat", {"B": B, "other": B})
    scipy.io.mmwrite(files / "whole.mtx", LINE.astype(np.int64))
    options = ["--rhs", files / "b.mat", "--rhs-name", "B", "-o", files / "x.npy", "--method", "cg"]
    assert call(capsys, "solve", files / "whole.mtx", "--device", "cpu", *options)[0] == 0
    np.testing.assert_allclose(LINE @ np.load(files / "x.npy"), B, atol=1e-5)


@pytest.mark.few(4)
@pytest.mark.parametrize("options", [(), ("--method", "lsqr"), ("--method", "lsmr")], ids=" ".join)
@pytest.mark.parametrize("name", ["line", "tall"])
def test_damping_is_that_of_ridge_regression(files: Path, capsys: Any, name: str, options: tuple[str, ...]) -> None:
    command = ["solve", files / f"{name}.mtx", "--damp", "1.5", "--rtol", "1e-12", "--device", "cpu", *options]
    report = call_json(capsys, *command, "-o", files / "x.npy")
    assert report["converged"]
    A = read_file(files / f"{name}.mtx").toarray()
    b = A @ np.ones(A.shape[1])
    expected = np.linalg.solve(A.T @ A + 2.25 * np.eye(A.shape[1]), A.T @ b)
    np.testing.assert_allclose(np.load(files / "x.npy"), expected, rtol=0, atol=1e-8)


MISUSES: dict[str, tuple[str, str]] = {
    "cg of a rectangle": ("solve tall.mtx --method cg", "expected square matrix.*use lsqr or lsmr"),
    "damping with cg": ("solve line.mtx --method cg --damp 1", "--damp goes with --method lsqr or lsmr, or without"),
    "damping with a preconditioner": ("solve line.mtx --method cg --precond jacobi --damp 1", "--damp goes with"),
    "negative damping": ("solve line.mtx --damp -1", "damp must be a finite number that is not negative, got -1.0$"),
    "a preconditioner without a method": (
        "solve line.mtx --precond ilu0",
        "--precond goes with a --method",
    ),
    "a preconditioner of lsqr": (
        "solve line.mtx --method lsqr --precond ilu0",
        "--precond goes with a --method",
    ),
    "a right-hand side of other rows": (
        "solve line.mtx --rhs short.npy",
        r"shapes \(20, 20\) and \(3,\): b must have shape",
    ),
    "a right-hand side that is not an array": ("solve line.mtx --rhs text.npy", "text.npy is not an array.*numpy.save"),
    "a right-hand side in an archive with the name of an array": (
        "solve line.mtx --rhs zip.npy",
        r"zip.npy is not an array: write one with numpy.save$",
    ),
    "a damaged archive with the name of an array": ("solve line.mtx --rhs cut.npy", "cut.npy is not an array: "),
    "NaN in the matrix": ("solve nan.mtx", "needs finite values: .*A hold NaN or infinity"),
    "infinity in the right-hand side": (
        "solve line.mtx --rhs inf.npy",
        "needs finite values: b holds NaN or infinity",
    ),
    "a right-hand side of one row": ("solve line.mtx --rhs row.npy", r"shapes \(20, 20\) and \(3,\): b must have"),
    "a missing right-hand side": ("solve line.mtx --rhs none.npy", "none.npy"),
    "a right-hand side of text": (
        "solve line.mtx --rhs b.txt",
        "b.txt: unknown kind of file, gsparse reads",
    ),
    "a right-hand side of strings": (
        "solve line.mtx --rhs words.npy",
        r"must consist of numbers, got <U.*: use astype\(float\)$",
    ),
    "an array of one dimension": (
        "info vector.npz",
        r"vector.npz holds an array of one dimension, of shape \(20,\), .* needed: save A.reshape\(1, -1\)",
    ),
    "an array of one dimension to solve with": ("solve vector.npz", "of one dimension"),
    "a right-hand side in an archive": (
        "solve line.mtx --rhs b.npz",
        "b.npz does not contain a sparse matrix: it holds b, c",
    ),
    "an archive without a matrix": (
        "info b.npz",
        "b.npz does not contain a sparse matrix: it holds b, c; .* scipy.sparse.save_npz$",
    ),
    "a right-hand side among others": ("solve line.mtx --rhs two.mat", "holds several matrices"),
    "the matrix itself as a right-hand side": (
        "solve line.mtx --rhs case.mat",
        r"has the shape of the matrix, \(20, 20\); .* --rhs-name$",
    ),
    "a solution file that exists": ("solve line.mtx -o short.npy", "exists already: give another name, or --force"),
    "an output of another kind": ("solve line.mtx -o x.csv", "x is written as .npy or .mtx"),
    "an output in a missing folder": ("solve line.mtx -o nowhere/x.npy", "there is no folder"),
    "a tolerance": ("solve line.mtx --rtol 2", "rtol must be at least 0 and less than 1"),
    "no file": ("info none.mtx", "no file at .*none.mtx"),
    "a file of another kind": ("info text.npy", "unknown kind of file, gsparse reads .npz, .mtx"),
    "a folder": ("info .", r"^gsparse info: \.: unknown kind of file"),
    "a damaged file": ("info bad.mtx", "bad.mtx is truncated or malformed.*scipy.io.mmwrite"),
    "a value that is not a number": ("info number.mtx", r"[^.]\. Fetch it again"),
    "a missing banner": ("info banner.mtx", r"[^.]\. Fetch it again"),
    "a missing device": ("info line.mtx --device gpu:77", "GPU"),
    "an unknown device": ("info line.mtx --device tpu", "unknown device 'tpu'"),
    "a variable name for a file of one matrix": (
        "info line.mtx --name B",
        "line.mtx: its kind of file holds one .* leave 'B' out$",
    ),
    "a benchmark without a matrix": ("bench", "name a file or a problem"),
}


def test_the_right_hand_side_of_a_laplacian_is_not_zero(tmp_path: Path, capsys: Any) -> None:
    S = LINE.tolil()
    S[0, 0] = S[N - 1, N - 1] = 1.0
    scipy.io.mmwrite(tmp_path / "graph.mtx", sp.csr_array(S))
    report = call_json(capsys, "solve", tmp_path / "graph.mtx", "--device", "cpu", "-o", tmp_path / "x.npy")
    assert report["iterations"] > 0
    x, b = np.load(tmp_path / "x.npy"), S @ np.cos(np.arange(N))
    assert np.linalg.norm(S @ x - b) < 1e-6 * np.linalg.norm(b)


def test_solve_says_which_right_hand_side_it_used_and_draws_the_residuals(files: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    command = ["solve", files / "line.mtx", "--device", "cpu"]
    for options, words in (
        ((), "\nb is A times a vector of ones (--rhs FILE reads another)\n"),
        (("--rhs", files / "b.npy"), f"\nb is read from {files / 'b.npy'}\n"),
    ):
        for method in ((), ("--method", "cg", "--plot", files / "residuals.png")):
            assert words in call(capsys, *command, *options, *method)[1]
    assert (files / "residuals.png").read_bytes().startswith(b"\x89PNG")


def test_options_are_not_abbreviated(files: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        call(capsys, "solve", files / "line.mtx", "--rh", "b.npy")  # not --rhs
    assert "unrecognized arguments: --rh b.npy" in capsys.readouterr().err


@pytest.mark.parametrize("case", MISUSES)
def test_misuse_prints_one_line_that_says_what_to_do(
    files: Path, capsys: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    Path("text.npy").write_text("words")
    Path("bad.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 9\n1 1 1\n")
    Path("number.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 x\n")
    Path("banner.mtx").write_text("1 1 1\n1 1 1\n")
    Path("b.txt").write_text("1\n" * 20)
    np.savez("b.npz", b=np.ones(20), c=np.ones(3))
    Path("zip.npy").write_bytes(Path("b.npz").read_bytes())
    Path("cut.npy").write_bytes(Path("b.npz").read_bytes()[:50])
    scipy.io.mmwrite("nan.mtx", LINE * np.nan)
    np.save("inf.npy", np.full(20, np.inf))
    np.save("row.npy", np.ones((1, 3)))
    np.save("short.npy", np.ones(3))
    np.save("words.npy", np.full(20, "1"))
    sp.save_npz("vector.npz", sp.coo_array(np.arange(20.0)))
    write_file("complex.mtx", LINE * 1j)
    scipy.io.savemat("case.mat", {"A": LINE, "b": np.ones((20, 2))})
    scipy.io.savemat("two.mat", {"B": np.ones((20, 1)), "C": np.ones((20, 1))})
    line, words = MISUSES[case]
    before = sorted(path.name for path in files.iterdir())
    code, out, error = call(capsys, *line.split())
    assert (code, out) == (2, "")
    assert error.startswith(f"gsparse {line.split()[0]}: ")
    assert "Traceback" not in error and error.count("\n") == 1
    assert re.search(words, error), error
    assert sorted(path.name for path in files.iterdir()) == before


def test_an_array_of_one_dimension_is_a_right_hand_side(files: Path, capsys: Any) -> None:
    exact = np.arange(N) + 1.0
    sp.save_npz(files / "b.npz", sp.coo_array(LINE @ exact))
    code, _, error = call(capsys, "solve", files / "line.mtx", "--rhs", files / "b.npz", "-o", files / "x.npy")
    assert code == 0, error
    np.testing.assert_allclose(np.load(files / "x.npy"), exact, rtol=1e-6)


def test_debug_shows_where_an_error_comes_from(files: Path, capsys: Any) -> None:
    code, _, error = call(capsys, "info", files / "none.mtx", "--debug")
    assert code == 2
    assert "Traceback" in error and "read_file" in error and "FileNotFoundError" in error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FactorizationError("zero pivot"), 1, "gsparse info: zero pivot\n"),
        (DeviceMemoryError("full"), 1, "gsparse info: full\n"),
        (MemoryError("full"), 1, "gsparse info: full\n"),
        (TimeoutError("no workers"), 1, "gsparse info: no workers\n"),
        (DeviceError("not there"), 2, "gsparse info: not there\n"),
        (ImportError("needs dask: pip install 'gsparse-gpu[dask]'"), 2, "gsparse info: needs dask: pip install"),
        (
            ZeroDivisionError("ours"),
            1,
            "gsparse info: unexpected ZeroDivisionError: ours; --debug prints the traceback\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_the_exit_code_distinguishes_misuse_from_failure(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def fail(_: Any) -> int:
        raise error

    monkeypatch.setitem(entry.COMMANDS, "info", common.Command("", entry.COMMANDS["info"].add_arguments, fail))
    exit_code, out, stderr = call(capsys, "info", "A.mtx")
    assert (exit_code, out) == (code, "")
    assert stderr.startswith(words)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GSPARSE_NUM_THREADS", "GSPARSE_NUM_THREADS must be an integer of at least 1, got 'abc': correct or unset it"),
        ("GSPARSE_DEVICE", "unknown device 'abc' in the environment variable GSPARSE_DEVICE: use 'auto', 'cpu'"),
    ],
)
def test_an_invalid_environment_variable_ends_the_command_as_misuse(
    files: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setenv(name, "abc")
    code, _, error = call(capsys, "solve", files / "line.mtx")
    assert (code, error.startswith(f"gsparse solve: {message}")) == (2, True)
    code, _, error = call(capsys, "doctor")
    assert (code, error.startswith(f"gsparse doctor: {message}")) == (2, True)


# A program that sends Ctrl-C to its own process when Python first looks for a module.
INTERRUPT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX are sent")
@pytest.mark.parametrize(
    ("module", "how", "code"),
    [
        ("scipy.sparse", "script", -signal.SIGINT),
        ("gsparse.cli.bench", "module", -signal.SIGINT),
        ("numba", "module", 130),
    ],
)
@pytest.mark.few(1)
def test_ctrl_c_ends_the_command_without_a_traceback(files: Path, module: str, how: str, code: int) -> None:
    # The first two modules are imported before the command begins, and numba while it runs.
    (files / "sitecustomize.py").write_text(INTERRUPT.format(module=module))
    script = files / "gsparse"  # what pip writes for the entry point
    script.write_text("import sys\nfrom gsparse.cli import main\nsys.exit(main())\n")
    command = [
        sys.executable,
        *([str(script)] if how == "script" else ["-m", "gsparse"]),
        "info",
        str(files / "line.mtx"),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{files}{os.pathsep}{ROOT}", "GSPARSE_DEVICE": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_only_the_command_itself_gives_up_pythons_handling_of_ctrl_c() -> None:
    assert is_command(["python", "-m", "gsparse", "info"], "-m")
    assert is_command(["python", "/usr/bin/gsparse", "info"], "/usr/bin/gsparse")
    assert not is_command(["python", "-c", "import gsparse"], "-c")
    assert not is_command(["python", "-m", "pytest", "gsparse"], "-m")
    # A process that the command has started has its `sys.argv`, and other arguments.
    assert not is_command(["python", "-c", "from multiprocessing.spawn import spawn_main"], "/usr/bin/gsparse")
    code = "import signal, gsparse; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "True\n"


def test_the_command_alone_shows_its_help(capsys: Any) -> None:
    code, out, error = call(capsys)
    assert (code, out) == (2, "")
    assert all(command.help in error for command in entry.COMMANDS.values())


def test_exit_codes_are_in_the_help_of_every_command(capsys: Any) -> None:
    for name in entry.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0
        assert "exit code: 0" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------- warmup


def test_warmup_runs_each_step_for_each_dtype_and_says_what_it_has_compiled(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[tuple[int, int], str]] = []

    def observe(A: Any) -> None:
        seen.append((A.shape, A.dtype.name))
        with COMPILE_NOTICE:
            pass

    monkeypatch.setattr(HandOut, "num_first", 7)
    monkeypatch.setattr(warmup, "_SIDE", 4)
    monkeypatch.setattr(warmup, "_ROWS", 60)
    monkeypatch.setattr(warmup, "STEPS", {"compiled": observe, "cached": lambda A: None})
    report = call_json(capsys, "warmup", "--device", "cpu", "--dtype", "float32", "--dtype", "float64")
    expected = [(what, dtype, n) for dtype in ("float32", "float64") for what, n in (("compiled", 3), ("cached", 0))]
    assert [(step["what"], step["dtype"], step["kernels"]) for step in report["steps"]] == expected
    assert seen == [(shape, dtype) for dtype in ("float32", "float64") for shape in ((64, 64), (64, 64), (60, 60))]
    code, text, _ = call(capsys, "warmup", "--device", "cpu")
    assert code == 0
    assert re.search(r"^compiled +float64 +3 kernels compiled +\d+\.\d s$", text, re.MULTILINE)
    assert re.search(r"^cached +float64 +nothing left to compile +\d+\.\d s$", text, re.MULTILINE)
    assert report["folder"] in text
    assert HandOut.num_first == 7


def test_warmup_says_that_the_cache_cannot_be_used(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UntrustedFolderError("others may write to it")

    monkeypatch.setattr(warmup, "make_private_code_folder", refuse)
    monkeypatch.setattr(warmup, "STEPS", {})
    assert "the cache folder cannot be used: others may write to it" in call(capsys, "warmup", "--device", "cpu")[1]


@pytest.mark.whole
def test_after_a_warmup_a_new_process_compiles_nothing(tmp_path: Path) -> None:
    uses = (
        "import numpy, scipy.sparse as sp; from gsparse import GpuSparseMatrix, linalg; "
        "from gsparse.device.compilation import COMPILE_NOTICE; "
        "n = 1700; S = sp.diags_array([-1.0, -1.0, 4.0, -1.0, -1.0], offsets=[-40, -1, 0, 1, 40], shape=(n, n)); "
        "A = GpuSparseMatrix(S, device='cpu'); b = numpy.ones(n); A @ b; A @ numpy.ones((n, 3)); A @ A; "
        "[getattr(linalg, name)(A, b) for name in ('cg', 'gmres', 'bicgstab')]; linalg.cg(A, b, M=linalg.amg(A)); "
        "print(COMPILE_NOTICE.compilations)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"GSPARSE_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    counts = []
    for code in (uses, "from gsparse.cli import main; main(['warmup', '--device', 'cpu'])", uses):
        if counts:
            environment |= {"GSPARSE_CACHE_DIR": str(tmp_path / "warm"), "NUMBA_DEBUG_CACHE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
        counts.append(done.stdout.split()[-1])
    assert int(counts[0]) > 20
    # Numba prints what it saves, so that an error names the kernels that were not compiled ahead.
    assert counts[2] == "0", [line for line in done.stdout.splitlines() if "saved" in line]


# ---------------------------------------------------------------------------------------------------------- doctor


def test_doctor_succeeds_when_a_product_works(capsys: Any) -> None:
    report = call_json(capsys, "doctor")
    by_name = {finding["what"]: finding for finding in report["findings"]}
    assert report["works"] is True
    assert by_name["a product on cpu"]["found"] == "its result is correct"
    assert by_name["scipy"]["found"] == scipy.__version__
    assert {"GPU", "CuPy", "CPU threads", "cache: CPU kernels", "cache: gsparse", "tqdm"} <= set(by_name)
    code, text, _ = call(capsys, "doctor")
    assert (code, text.splitlines()[-1]) == (0, "products work on this machine")


@pytest.mark.whole
def test_doctor_names_the_command_that_installs_a_missing_package(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.import_module

    def without(name: str) -> Any:
        if name in ("matplotlib", "distributed"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name)

    monkeypatch.setattr(doctor, "import_module", without)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "_check_driver", lambda: doctor.CheckResult("GPU", "H200, 550.1; CUDA 12.4"))
    code, text, _ = call(capsys, "doctor")
    assert code == 0
    remedies = text.partition("to add or repair:")[2]
    for command in ("gsparse-gpu[plot]", "gsparse-gpu[dask]", "gsparse-gpu[cuda12]"):
        assert f"pip install '{command}'" in remedies


@pytest.mark.parametrize(
    ("driver", "extra"),
    [("H200, 580.0; CUDA 13.0", "cuda13"), ("T4, 535; CUDA 12.2", "cuda12"), ("AMD, by its kernel driver", "rocm")],
)
def test_doctor_names_the_cupy_extra_for_the_driver(driver: str, extra: str) -> None:
    assert f"gsparse-gpu[{extra}]" in doctor._cupy_remedy(driver)


def graphics_card(is_hip: bool) -> Any:
    """Return a stand-in for a CuPy device with two GPUs and a compiler."""
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda number: {"name": b"H200", "totalGlobalMem": (139 + number) << 30},
        runtimeGetVersion=lambda: 13050,
        is_hip=is_hip,
    )
    cuda = SimpleNamespace(runtime=runtime, nvrtc=NVRTC)
    return SimpleNamespace(xp=SimpleNamespace(cuda=cuda, __version__="14.0"))


NVRTC = SimpleNamespace(getVersion=lambda: (13, 5))


@pytest.mark.parametrize(
    ("is_hip", "remedy"), [(False, "pip install nvidia-nccl-cu13"), (True, "apt-get install rccl")]
)
def test_doctor_lists_each_gpu_and_its_libraries(monkeypatch: pytest.MonkeyPatch, is_hip: bool, remedy: str) -> None:
    nccl = SimpleNamespace(available=False, get_version=lambda: 22805)
    monkeypatch.setattr(doctor, "find_spec", lambda name: True)
    monkeypatch.setattr(doctor, "get_device", lambda name: graphics_card(is_hip))
    monkeypatch.setattr(doctor, "import_module", lambda name: nccl)
    checks = {finding.what: finding for finding in doctor._check_gpu()}
    assert [checks[f"gpu:{n}"].found for n in (0, 1)] == ["H200, 139 GiB", "H200, 140 GiB"]
    assert checks["NVRTC or hipRTC"].found == "13.5"
    assert (checks["NCCL or RCCL"].status, checks["NCCL or RCCL"].remedy) == ("missing", remedy)
    nccl.available = True
    assert {finding.what: finding.found for finding in doctor._check_gpu()}["NCCL or RCCL"] == "22805"


@pytest.mark.parametrize(
    ("printed", "code", "status", "words"),
    [
        ("NVIDIA H200, 580.1\n", 0, "ok", "1 x NVIDIA H200, 580.1; CUDA 13.0"),
        ("H200, 580.1\nT4, 580.1\nH200, 580.1\n", 0, "ok", "2 x H200, 580.1; 1 x T4, 580.1; CUDA 13.0"),
        ("couldn't communicate with the NVIDIA driver", 9, "broken", "nvidia-smi fails: couldn't communicate"),
    ],
)
def test_doctor_reports_what_nvidia_smi_prints(
    monkeypatch: pytest.MonkeyPatch, printed: str, code: int, status: str, words: str
) -> None:
    def smi(command: list[str], **_: Any) -> Any:
        head = "| Driver Version: 580.1    CUDA Version: 13.0 |"
        if code:
            raise subprocess.CalledProcessError(code, command, printed)
        return SimpleNamespace(returncode=code, stdout=printed if len(command) > 1 else head, stderr="")

    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor.subprocess, "run", smi)
    result = doctor._check_driver()
    assert result.status == status
    assert result.found.startswith(words)


@pytest.mark.whole
def test_doctor_fails_when_no_product_works(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_multiply_on", lambda device: 1 / 0)
    report = call_json(capsys, "doctor", code=1)
    broken = next(f for f in report["findings"] if f["what"].startswith("a product on"))
    assert "division by zero" in broken["found"]
    assert broken["status"] == "broken"
    assert call(capsys, "doctor")[1].splitlines()[-1].startswith("NO PRODUCT WORKS HERE")


# ---------------------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_failure_keeps_its_exit_code_if_the_pipe_is_closed(
    files: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    arguments = ["solve", str(files / "line.mtx"), "--device", "cpu", "--method", "cg", "--maxiter", "2"]
    arguments += ["--rhs", str(files / "b.npy"), *options.split()]
    with closed_pipe() as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        assert cli.main(arguments) == 1
    with closed_pipe() as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        assert cli.main(["info", "/no/such/file.mtx"]) == 2


@pytest.mark.skipif(os.name != "posix", reason="needs a shell of POSIX")
@pytest.mark.whole
def test_a_closed_pipe_is_no_error(files: Path) -> None:
    info = f"{sys.executable} -W error -m gsparse info {files}/line.mtx --device cpu"
    command = f"{info} | head -n 0; echo ${{PIPESTATUS[0]}}"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert (completed.stdout, completed.stderr) == ("0\n", "")


def run_in_shell(line: str) -> subprocess.CompletedProcess[bytes]:
    """Run a gsparse command line, with its redirections, in a shell."""
    command = f"unset PYTHONUNBUFFERED; {sys.executable} -W error -m gsparse {line}"
    return subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=120)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_characters_outside_the_output_encoding_become_question_marks(
    files: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    for command, *options in (("info",), ("solve", "--method", "cg")):
        assert cli.main([command, str(files / "line.mtx"), "--device", "cpu", *options]) == 0
    text = written.getvalue().decode(encoding)
    assert re.search(r"^\? [a-z]", text, re.MULTILINE)  # in place of the arrow at the chosen format
    assert re.search(r"residual \S+ \? \S+", text)  # in place of the arrow


@pytest.mark.skipif(os.name != "posix", reason="needs a shell of POSIX")
@pytest.mark.whole
def test_a_closed_stdout_or_stderr_is_no_error(files: Path) -> None:
    for closed in ("--json >&-", ">&- 2>&-"):
        completed = run_in_shell(f"info {files}/line.mtx --device cpu {closed}")
        assert (completed.returncode, completed.stdout, completed.stderr) == (0, b"", b"")
    assert run_in_shell(f"info {files}/none.mtx 2>&-").returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.whole
def test_a_full_device_as_output_prints_one_line_and_exits_with_2(files: Path) -> None:
    completed = run_in_shell(f"info {files}/line.mtx --device cpu >/dev/full")
    assert (completed.returncode, completed.stderr.count(b"\n")) == (2, 1)
    assert completed.stderr.startswith(b"gsparse info: ") and b"No space left" in completed.stderr


def test_python_m_gsparse_runs_the_command(files: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "gsparse", "info", str(files / "line.mtx"), "--device", "cpu"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert "line.mtx: 20 x 20" in completed.stdout
