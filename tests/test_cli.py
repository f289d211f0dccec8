"""The command line: what each command prints, for people and for programs, and what its exit code says."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import gsparse
from gsparse import cli, linalg
from gsparse.cli import common, demo, doctor, entry, solve
from gsparse.errors import DeviceError, DeviceMemoryError, FactorizationError
from gsparse.files import read_file, write_file
from tests.support import assert_product

N = 20
LINE = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsr()
UPWIND = sp.diags_array([-2.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsr()
TALL = sp.csr_array(np.vander(np.linspace(0, 1, N), 3))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Give a folder with a matrix for each way of solving."""
    for name, matrix in {"line": LINE, "saddle": -LINE, "upwind": UPWIND, "tall": TALL}.items():
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", matrix)
    np.save(tmp_path / "b.npy", np.arange(N) + 1.0)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = cli.main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def call_json(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> dict[str, Any]:
    found, out, _ = call(capsys, *arguments, "--json")
    assert found == code
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------ info


def test_info_tells_statistics_every_candidate_and_memory(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = call_json(capsys, "info", files / "line.mtx", "--device", "cpu")
    plan = gsparse.GpuSparseMatrix(LINE, device="cpu").plan
    assert (found["shape"], found["entries"], found["dtype"]) == ([N, N], 3 * N - 2, "float64")
    assert found["rows"] == pytest.approx({"shortest": 2, "longest": 3, "mean": 2.9, "std": 0.3, "empty": 0})
    assert (found["bandwidth"], found["diagonal entries"], found["hermitian"]) == (1, N, True)
    assert [c["format"] for c in found["plan"]["candidates"]] == [c.format for c in plan.candidates]
    assert [c["bytes"] for c in found["plan"]["candidates"]] == [c.nbytes for c in plan.candidates]
    assert found["memory"]["scipy csr"] == (3 * N - 2) * 12 + (N + 1) * 4
    assert set(found["memory"]) == {"scipy csr", *(c.format for c in plan.candidates)}
    code, text, _ = call(capsys, "info", files / "line.mtx", "--device", "cpu")
    assert code == 0
    assert str(plan) in text
    assert "equals its conjugate transpose" in text


def test_info_tells_of_rows_without_entries_and_of_rectangles(tmp_path: Path, capsys: Any) -> None:
    for shape in ((4, 3), (0, 3), (3, 0)):
        write_file(tmp_path / "A.npz", sp.csr_array(shape))
        found = call_json(capsys, "info", tmp_path / "A.npz", "--device", "cpu")
        assert (found["shape"], found["rows"]["empty"]) == (list(shape), shape[0])
        assert call(capsys, "info", tmp_path / "A.npz", "--device", "cpu")[0] == 0


def test_info_times_the_candidates_where_asked(files: Path, capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path))
    found = call_json(capsys, "info", files / "line.mtx", "--device", "cpu", "--tune")
    assert sum(c["measured_seconds"] is not None for c in found["plan"]["candidates"]) >= 2


# ----------------------------------------------------------------------------------------------------------- solve


@pytest.mark.parametrize(
    ("name", "method", "why"),
    [
        ("line", "cg", "symmetric with a positive diagonal"),
        ("saddle", "minres", "symmetric, not positive definite"),
        ("upwind", "bicgstab", "square, not symmetric"),
        ("tall", "lsmr", "not square: least squares"),
    ],
)
def test_a_method_is_chosen_by_the_matrix_and_says_why(
    files: Path, capsys: Any, name: str, method: str, why: str
) -> None:
    found = call_json(capsys, "solve", files / f"{name}.mtx", "--device", "cpu", "-o", files / "x.npy")
    assert (found["method"], found["converged"], found["tried"]) == (method, True, [method])
    assert why in found["why"]
    A = read_file(files / f"{name}.mtx")
    x = np.load(files / "x.npy")
    assert np.linalg.norm(A @ x - A @ np.ones(A.shape[1])) <= 1e-6 * np.linalg.norm(A @ np.ones(A.shape[1]))
    assert found["history"][-1] < 1e-6 * found["history"][0]
    assert len(found["history"]) == found["iterations"] + 1


@pytest.mark.parametrize("method", [*solve.SQUARE, *solve.LEAST_SQUARES])
def test_every_method_solves_for_a_right_hand_side_of_a_file(files: Path, capsys: Any, method: str) -> None:
    given = ["--rhs", files / "b.npy", "--method", method, "--rtol", "1e-11", "-o", files / "x.mtx"]
    given += ["--maxiter", "200"]
    code, text, _ = call(capsys, "solve", files / "line.mtx", "--device", "cpu", *given)
    assert code == 0
    assert f"{method}, preconditioner none" in text
    x = scipy.io.mmread(files / "x.mtx").ravel()
    np.testing.assert_allclose(x, np.linalg.solve(LINE.toarray(), np.load(files / "b.npy")), rtol=1e-6)


@pytest.mark.parametrize("precond", solve.PRECONDITIONERS)
def test_every_preconditioner_is_made(files: Path, capsys: Any, precond: str) -> None:
    if precond == "amg":
        pytest.importorskip("pyamg", reason="amg(A) needs PyAMG")
    found = call_json(capsys, "solve", files / "line.mtx", "--device", "cpu", "--precond", precond, "--method", "cg")
    assert (found["precond"], found["converged"]) == (precond, True)
    assert found["relative_residual"] < 1e-6


def test_a_block_of_block_jacobi_has_the_rows_asked_for(files: Path, capsys: Any) -> None:
    given = ["--device", "cpu", "--precond", "block_jacobi", "--method", "cg", "--block-size", str(N)]
    assert call_json(capsys, "solve", files / "line.mtx", *given)["iterations"] == 1  # (one block: the inverse)


@pytest.mark.parametrize("method", ["minres", "lsqr", "lsmr"])
def test_a_residual_above_rtol_of_what_converged_says_by_which_test(tmp_path: Path, capsys: Any, method: str) -> None:
    line, one = (sp.kron(a, b) for a, b in ((LINE, sp.eye_array(N)), (sp.eye_array(N), LINE)))
    write_file(tmp_path / "A.npz", line + one)
    np.save(tmp_path / "b.npy", np.random.default_rng(3).standard_normal(N * N))
    given = ["solve", tmp_path / "A.npz", "--device", "cpu", "--rhs", tmp_path / "b.npy", "--maxiter", "2000"]
    found = call_json(capsys, *given, "--method", method)
    assert (found["reason"], found["relative_residual"] > 1e-8) == ("converged", True)
    why = f"which is above --rtol 1e-08: {method} stops by SciPy's test, relative to |A| |x|: give a smaller --rtol"
    assert why in call(capsys, *given, "--method", method)[1]
    assert "above --rtol" not in call(capsys, *given, "--method", "cg", "--rtol", "1e-6")[1]


def test_a_residual_above_rtol_by_rounding_or_of_least_squares_says_so(
    files: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["solve", files / "tall.mtx", "--device", "cpu", "--rhs", files / "b.npy"]
    np.save(files / "b.npy", np.arange(N) % 2)
    _, text, _ = call(capsys, *given)
    assert "found a least-squares solution" in text and "above --rtol" not in text
    exact = linalg.cg

    def rounded(*arguments: Any, **options: Any) -> Any:
        found = exact(*arguments, **{**options, "full_output": True})
        return replace(found, x=found.x * (1 + 1e-6))

    monkeypatch.setattr(linalg, "cg", rounded)
    code, text, _ = call(capsys, "solve", files / "line.mtx", "--device", "cpu", "--method", "cg")
    assert code == 0
    assert "above --rtol 1e-08: cg updates its residual, from which rounding has parted this one" in text


def test_the_help_says_what_rtol_is_relative_to(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["solve", "--help"])
    assert "lsmr, lsqr, minres: SciPy's test, relative to |A| |x|" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("method", [*solve.SQUARE, *solve.LEAST_SQUARES])
def test_the_seconds_of_a_solve_leave_out_what_is_compiled_for_it(
    files: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    compiled: list[None] = []
    exact = getattr(linalg, method)

    def compiling_first(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        if not compiled:
            time.sleep(0.5)
            compiled.append(None)
        found = exact(*arguments, **options)
        return replace(found, seconds=time.perf_counter() - begin) if options.get("full_output") else found

    monkeypatch.setattr(linalg, method, compiling_first)
    given = ["solve", files / "line.mtx", "--device", "cpu", "--method", method]
    found = call_json(capsys, *given)
    assert found["seconds"] < 0.5 <= found["setup_seconds"]
    compiled.clear()
    ready = re.search(r"made ready in (\S+) s \(kernels compiled or loaded\)", call(capsys, *given)[1])
    assert ready and float(ready[1]) >= 0.5


def test_where_the_first_method_fails_the_next_is_tried(tmp_path: Path, capsys: Any) -> None:
    indefinite = sp.csr_array(np.array([[1.0, 2.0, 0.5], [2.0, 1.0, 0.1], [0.5, 0.1, 3.0]]))
    write_file(tmp_path / "A.mtx", indefinite)
    np.save(tmp_path / "b.npy", [1.0, -1.0, 0.3])
    given = ["solve", tmp_path / "A.mtx", "--device", "cpu", "--rhs", tmp_path / "b.npy", "--maxiter", "40"]
    found = call_json(capsys, *given)
    assert (found["tried"], found["converged"]) in ((["cg", "minres"], True), (["cg"], True))
    if len(found["tried"]) == 2:
        assert "cg: did not converge, next one tried" in call(capsys, *given)[1]


def test_what_has_not_converged_is_exit_code_1_with_advice(files: Path, capsys: Any) -> None:
    given = ["solve", files / "line.mtx", "--device", "cpu", "--method", "cg", "--maxiter", "2"]
    given += ["--rhs", files / "b.npy"]
    found = call_json(capsys, *given, code=1)
    assert (found["converged"], found["iterations"], found["reason"]) == (False, 2, "reached maxiter")
    code, text, _ = call(capsys, *given)
    assert code == 1
    assert "Allow more iterations (--maxiter), or give a preconditioner: --precond jacobi, ilu0, amg." in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--method bicgstab --precond jacobi",
            "(--maxiter), or give another preconditioner: --precond jacobi, ilu0, amg.",
        ),
        ("--method lsmr", "(--maxiter)."),
    ],
)
def test_advice_names_options_of_the_command_not_arguments_of_python(
    files: Path, capsys: Any, options: str, words: str
) -> None:
    given = ["--device", "cpu", "--maxiter", "1", "--rtol", "1e-12", "--rhs", files / "b.npy", *options.split()]
    found = call_json(capsys, "solve", files / "upwind.mtx", *given, code=1)
    assert found["advice"] == f"Allow more iterations {words}"


@pytest.mark.parametrize(
    ("method", "S", "advice"),
    [
        ("bicgstab", np.array([[0.0, 1.0], [-1.0, 0.0]]), "Use --method gmres."),
        ("lsmr", np.vander(np.linspace(1, 2, 30), 20) * 10.0 ** -np.arange(20), "Scale the columns of A; "),
    ],
)
def test_advice_of_a_breakdown_names_no_argument_that_is_no_option(
    tmp_path: Path, capsys: Any, method: str, S: Any, advice: str
) -> None:
    scipy.io.mmwrite(tmp_path / "A.mtx", sp.coo_array(S))
    np.save(tmp_path / "b.npy", np.arange(len(S)) % 2 - 1.0)
    given = ["--device", "cpu", "--method", method, "--rtol", "1e-15", "--rhs", tmp_path / "b.npy"]
    assert call_json(capsys, "solve", tmp_path / "A.mtx", *given, code=1)["advice"].startswith(advice)


def test_a_solution_replaces_a_file_only_where_that_is_asked_for(files: Path, capsys: Any) -> None:
    given = ["solve", files / "line.mtx", "--device", "cpu", "-o", files / "b.npy"]
    assert call(capsys, *given)[0] == 2
    np.testing.assert_array_equal(np.load(files / "b.npy"), np.arange(N) + 1.0)
    assert call(capsys, *given, "--force")[0] == 0
    np.testing.assert_allclose(np.load(files / "b.npy"), 1.0, rtol=1e-6)


def test_several_right_hand_sides_of_integers_in_a_matlab_file(files: Path, capsys: Any) -> None:
    B = np.arange(2 * N).reshape(N, 2)
    scipy.io.savemat(files / "b.mat", {"B": B, "other": B})
    scipy.io.mmwrite(files / "whole.mtx", LINE.astype(np.int64))
    given = ["--rhs", files / "b.mat", "--rhs-name", "B", "-o", files / "x.npy", "--method", "cg"]
    assert call(capsys, "solve", files / "whole.mtx", "--device", "cpu", *given)[0] == 0
    np.testing.assert_allclose(LINE @ np.load(files / "x.npy"), B, atol=1e-5)


def test_workers_solve_what_this_process_would(files: Path) -> None:
    pytest.importorskip("distributed", reason="needs dask")
    command = [sys.executable, "-m", "gsparse", "solve", str(files / "line.mtx"), "--workers", "2", "--device", "cpu"]
    command += ["--precond", "jacobi", "--json", "-o", str(files / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["device"], found["method"], found["converged"]) == ("2 workers", "cg", True)
    np.testing.assert_allclose(np.load(files / "x.npy"), 1.0, rtol=1e-6)


MISUSES: dict[str, tuple[str, str]] = {
    "cg of a rectangle": ("solve tall.mtx --method cg", "cg needs a square matrix.*use lsqr or lsmr"),
    "a preconditioner of a rectangle": ("solve tall.mtx --precond ilu0", "--precond goes with square matrices"),
    "a preconditioner of lsqr": ("solve line.mtx --method lsqr --precond ilu0", "lsqr takes no --precond"),
    "a right-hand side of other rows": ("solve line.mtx --rhs short.npy", r"shape \(3,\): 20 rows are needed"),
    "a right-hand side that is no array": ("solve line.mtx --rhs text.npy", "text.npy is no array.*numpy.save"),
    "a right-hand side that is not there": ("solve line.mtx --rhs none.npy", r"--rhs: no file at none.npy$"),
    "a right-hand side of text": (
        "solve line.mtx --rhs b.txt",
        r"b is read from \.npy, which numpy.save writes, or as",
    ),
    "a right-hand side in an archive": (
        "solve line.mtx --rhs b.npz",
        "it holds b, c; write it with numpy.save, as .npy$",
    ),
    "an archive of no matrix": (
        "info b.npz",
        "b.npz does not contain a sparse matrix: it holds b, c; .* scipy.sparse.save_npz$",
    ),
    "a right-hand side among others": ("solve line.mtx --rhs two.mat", r"holds several matrices.*\(--rhs-name\)$"),
    "a solution that is there": ("solve line.mtx -o short.npy", "is there already: give another name, or --force"),
    "an output of another kind": ("solve line.mtx -o x.csv", "x is written as .npy or .mtx"),
    "an output nowhere": ("solve line.mtx -o nowhere/x.npy", "there is no folder"),
    "no iterations": ("solve line.mtx --maxiter 0", "--maxiter: at least 1, got 0"),
    "no workers": ("solve line.mtx --workers 0", "--workers: at least 1"),
    "a tolerance": ("solve line.mtx --rtol 2", "--rtol: from 0 to 1"),
    "no file": ("info none.mtx", "no file at .*none.mtx"),
    "a file of another kind": ("info text.npy", "unknown kind of file, gsparse reads .npz, .mtx"),
    "a folder": ("info .", r"^gsparse info: \.: unknown kind of file"),
    "a damaged file": ("info bad.mtx", "bad.mtx is truncated or malformed.*scipy.io.mmwrite"),
    "a number that is none": ("info number.mtx", r"[^.]\. Fetch it again"),
    "a banner that is missing": ("info banner.mtx", r"[^.]\. Fetch it again"),
    "a device that is not there": ("info line.mtx --device gpu:77", "GPU"),
    "an unknown device": ("info line.mtx --device tpu", "unknown device 'tpu'"),
    "an output that is there": ("convert line.mtx tall.mtx", "is there already: give another name, or --force"),
    "a kind that is not written": ("convert line.mtx x.csv", "unknown kind of file, written are .npz"),
    "what a kind cannot hold": ("convert complex.mtx x.hb", "cannot be written: .*real and integer"),
    "a block of no block_jacobi": ("solve line.mtx --block-size 7", "--block-size goes with --precond block_jacobi$"),
    "a name in an array": ("solve line.mtx --rhs short.npy --rhs-name B", "--rhs-name goes with --rhs FILE.mat"),
    "a name of no right-hand side": ("solve line.mtx --rhs-name B", "--rhs-name goes with --rhs FILE.mat"),
    "a name in a file of one matrix": (
        "info line.mtx --name B",
        "line.mtx: its kind of file holds one .* leave 'B' out$",
    ),
    "a name for a file of one matrix": ("convert line.mtx o.npz --out-name B", "o.npz: .*leave 'B' out$"),
    "half a symmetric matrix": ("convert line.mtx o.rsa", "written with all its entries, type RUA: name it .rua$"),
    "a name that is none": ("convert line.mtx u.mat --out-name _x", "'_x' is no name of a MATLAB variable: a letter"),
    "a demonstration of nothing": ("demo -n 1", "-n: at least 2, got 1"),
    "a benchmark of nothing": ("bench", "name a file or a problem"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_a_mistake_is_one_line_that_says_what_to_do(
    files: Path, capsys: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    Path("text.npy").write_text("words")
    Path("bad.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 9\n1 1 1\n")
    Path("number.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 x\n")
    Path("banner.mtx").write_text("1 1 1\n1 1 1\n")
    Path("b.txt").write_text("1\n" * 20)
    np.savez("b.npz", b=np.ones(20), c=np.ones(3))
    np.save("short.npy", np.ones(3))
    write_file("complex.mtx", LINE * 1j)
    scipy.io.savemat("two.mat", {"B": np.ones((20, 1)), "C": np.ones((20, 1))})
    line, words = MISUSES[case]
    before = sorted(path.name for path in files.iterdir())
    code, out, error = call(capsys, *line.split())
    assert (code, out) == (2, "")
    assert error.startswith(f"gsparse {line.split()[0]}: ")
    assert "Traceback" not in error and error.count("\n") == 1
    assert re.search(words, error), error
    assert sorted(path.name for path in files.iterdir()) == before


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
        (DeviceError("not there"), 2, "gsparse info: not there\n"),
        (ImportError("needs dask: pip install 'gsparse[dask]'"), 2, "gsparse info: needs dask: pip install"),
        (ZeroDivisionError("ours"), 1, "gsparse info: unexpected ZeroDivisionError: ours; --debug shows where from\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_exit_code_says_whose_turn_it_is(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def fail(_: Any) -> int:
        raise error

    monkeypatch.setitem(entry.COMMANDS, "info", common.Command("", entry.COMMANDS["info"].add_arguments, fail))
    found, out, told = call(capsys, "info", "A.mtx")
    assert (found, out) == (code, "")
    assert told.startswith(words)


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


# --------------------------------------------------------------------------------------------------------- convert


@pytest.mark.parametrize("ending", [".npz", ".mtx.gz", ".mtx.bz2", ".mat", ".hb", ".rua"])
def test_a_matrix_comes_back_from_every_kind_of_file(files: Path, capsys: Any, ending: str) -> None:
    there, back = files / f"there{ending}", files / "back.mtx"
    found = call_json(
        capsys, "convert", files / "upwind.mtx", there, *(["--out-name", "U"] if ending == ".mat" else [])
    )
    assert (found["entries"], found["bytes"]) == (UPWIND.nnz, there.stat().st_size)
    assert call(capsys, "convert", there, back, *(["--name", "U"] if ending == ".mat" else []))[0] == 0
    assert (read_file(back) != UPWIND).nnz == 0
    code, text, _ = call(capsys, "convert", there, back, "--force")
    assert code == 0
    assert f"wrote {back}: 20 x 20, 58 entries of float64" in text


# ---------------------------------------------------------------------------------------------------- demo, doctor


def test_the_demonstration_solves_as_scipy_does(capsys: Any) -> None:
    found = call_json(capsys, "demo", "--n", "12", "--device", "cpu")
    assert found["agree"] is True
    assert found["relative_difference"] < 1e-6
    assert abs(found["iterations"]["gsparse"] - found["iterations"]["scipy"]) <= 1
    assert min(found["solve_seconds"].values()) > 0
    code, text, _ = call(capsys, "demo", "-n", "12", "--device", "cpu")
    assert code == 0
    assert "conjugate gradients" in text and "solutions differ by" in text


def test_a_demonstration_that_disagrees_fails(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_AGREEMENT", 0.0)
    code, text, _ = call(capsys, "demo", "-n", "5", "--device", "cpu")
    assert code == 1
    assert "THEY DISAGREE" in text


def test_doctor_ends_well_where_a_product_works(capsys: Any) -> None:
    found = call_json(capsys, "doctor")
    by_name = {finding["what"]: finding for finding in found["findings"]}
    assert found["works"] is True
    assert by_name["a product on cpu"]["found"] == "right"
    assert by_name["scipy"]["found"] == scipy.__version__
    assert {"GPU", "CuPy", "CPU threads", "g++", "cache: CPU kernels", "cache: gsparse", "tqdm"} <= set(by_name)
    code, text, _ = call(capsys, "doctor")
    assert (code, text.splitlines()[-1]) == (0, "products work on what is here")


def test_doctor_names_what_installs_what_is_missing(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.import_module

    def without(name: str) -> Any:
        if name in ("matplotlib", "distributed"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name)

    monkeypatch.setattr(doctor, "import_module", without)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "_driver", lambda: doctor.Finding("GPU", "H200, 550.1; CUDA 12.4"))
    code, text, _ = call(capsys, "doctor")
    assert code == 0
    remedies = text.partition("to add what is missing:")[2]
    for command in ("gsparse[plot]", "gsparse[dask]", "gsparse[cuda12]"):
        assert f"pip install '{command}'" in remedies


def test_doctor_advises_nobody_to_install_what_only_tests_use(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found = {finding["what"]: finding for finding in call_json(capsys, "doctor")["findings"]}
    for name in ("g++", "clang"):
        assert (found[name]["status"], found[name]["remedy"]) == ("missing", "")


@pytest.mark.parametrize(
    ("driver", "extra"),
    [("H200, 580.0; CUDA 13.0", "cuda13"), ("T4, 535; CUDA 12.2", "cuda12"), ("AMD, by its kernel driver", "rocm")],
)
def test_cupy_is_named_that_fits_the_driver(driver: str, extra: str) -> None:
    assert f"gsparse[{extra}]" in doctor._cupy_remedy(driver)


def graphics_card(is_hip: bool) -> Any:
    """Give what stands for a device of CuPy's, with two GPUs and a compiler."""
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda number: {"name": b"H200", "totalGlobalMem": (139 + number) << 30},
        runtimeGetVersion=lambda: 13050,
        is_hip=is_hip,
    )
    return SimpleNamespace(xp=SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, nvrtc=NVRTC)))


NVRTC = SimpleNamespace(getVersion=lambda: (13, 5))


@pytest.mark.parametrize(
    ("is_hip", "remedy"), [(False, "pip install nvidia-nccl-cu13"), (True, "apt-get install rccl")]
)
def test_doctor_names_each_gpu_and_what_cupy_finds_with_it(
    monkeypatch: pytest.MonkeyPatch, is_hip: bool, remedy: str
) -> None:
    nccl = SimpleNamespace(available=False, get_version=lambda: 22805)
    monkeypatch.setattr(doctor, "find_spec", lambda name: True)
    monkeypatch.setattr(doctor, "get_device", lambda name: graphics_card(is_hip))
    monkeypatch.setattr(doctor, "import_module", lambda name: nccl)
    found = {finding.what: finding for finding in doctor._gpu()}
    assert [found[f"gpu:{n}"].found for n in (0, 1)] == ["H200, 139 GiB", "H200, 140 GiB"]
    assert found["NVRTC or hipRTC"].found == "13.5"
    assert (found["NCCL or RCCL"].status, found["NCCL or RCCL"].remedy) == ("missing", remedy)
    nccl.available = True
    assert {finding.what: finding.found for finding in doctor._gpu()}["NCCL or RCCL"] == "22805"


@pytest.mark.parametrize(
    ("said", "code", "status", "words"),
    [
        ("NVIDIA H200, 580.1\n", 0, "ok", "NVIDIA H200, 580.1; CUDA 13.0"),
        ("couldn't communicate with the NVIDIA driver", 9, "broken", "nvidia-smi fails: couldn't communicate"),
    ],
)
def test_doctor_asks_the_driver(monkeypatch: pytest.MonkeyPatch, said: str, code: int, status: str, words: str) -> None:
    def smi(command: list[str], **_: Any) -> Any:
        head = "| Driver Version: 580.1    CUDA Version: 13.0 |"
        return SimpleNamespace(returncode=code, stdout=said if len(command) > 1 else head, stderr="")

    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(doctor.subprocess, "run", smi)
    found = doctor._driver()
    assert found.status == status
    assert found.found.startswith(words)


def test_doctor_fails_where_no_product_works(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_multiplied", lambda device: 1 / 0)
    found = call_json(capsys, "doctor", code=1)
    broken = next(f for f in found["findings"] if f["what"].startswith("a product on"))
    assert "division by zero" in broken["found"]
    assert call(capsys, "doctor")[1].splitlines()[-1].startswith("NO PRODUCT WORKS HERE")


# --------------------------------------------------------------------------------------------------- signs of life


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_over_a_second_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm", reason="bars are tqdm's")
    for patience, expected in ((1.1, True), (60.0, False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(common, "_PATIENCE", patience)
        monkeypatch.setattr(common, "_TICK", 0.01)
        with common.underway("reading"):
            time.sleep(1.5)
        assert ("reading: 00:01" in terminal.getvalue()) is expected


def test_nothing_is_shown_where_nobody_looks(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_PATIENCE", 0.0)
    with common.underway("reading"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_an_output_that_nobody_reads_any_more_is_no_error(files: Path) -> None:
    info = f"{sys.executable} -W error -m gsparse info {files}/line.mtx --device cpu"
    command = f"{info} | head -n 0; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("0\n", "")


def run_in_shell(line: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of gsparse's as a shell does, with its redirections."""
    command = f"unset PYTHONUNBUFFERED; {sys.executable} -W error -m gsparse {line}"
    return subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=120)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_an_output_that_lacks_a_character_shows_a_question_mark(
    files: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    for command in ("info", "solve"):
        assert cli.main([command, str(files / "line.mtx"), "--device", "cpu"]) == 0
    text = written.getvalue().decode(encoding)
    assert "; ? 0." in text  # (η of the rows' lengths)
    assert re.search(r"residual \S+ \? \S+", text)  # (→)


def test_an_output_or_a_stderr_that_is_closed_is_no_error(files: Path) -> None:
    for closed in ("--json >&-", ">&- 2>&-"):
        done = run_in_shell(f"info {files}/line.mtx --device cpu {closed}")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert run_in_shell(f"info {files}/none.mtx 2>&-").returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_takes_nothing_is_one_line_and_an_exit_code_of_ours(files: Path) -> None:
    done = run_in_shell(f"info {files}/line.mtx --device cpu >/dev/full")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert done.stderr.startswith(b"gsparse info: ") and b"No space left" in done.stderr


def test_the_module_and_the_command_are_the_same(files: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "gsparse", "info", str(files / "line.mtx"), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "line.mtx: 20 x 20" in done.stdout


def test_products_of_a_converted_matrix_are_those_of_the_first(files: Path, capsys: Any) -> None:
    assert call(capsys, "convert", files / "tall.mtx", files / "tall.mat")[0] == 0
    A = gsparse.GpuSparseMatrix.from_file(files / "tall.mat", device="cpu")
    x = np.random.default_rng().standard_normal(3)
    assert_product(A @ x, TALL, x)
