"""``gsparse profile``: the program runs as without it, and the table is printed however the program ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gsparse import cli
from gsparse.profiling import recording
from tests.support import closed_pipe

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
import gsparse, numpy, scipy.sparse
A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(100, format="csr"), device="cpu")
assert __name__ == "__main__"
print("arguments", *sys.argv[1:])
y = A @ numpy.ones(100)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = cli.main(["profile", *map(str, arguments)])
    captured = capsys.readouterr()
    assert recording.recorder is None
    return code, captured.out, captured.err


def test_the_program_gets_its_arguments_and_its_output_is_its_own(program: Path, capsys: Any) -> None:
    argv, path = sys.argv, list(sys.path)
    code, out, error = call(capsys, program, "--n", "5", "--json", "--help")
    assert (code, out) == (0, "arguments --n 5 --json --help\n")
    assert "product: A @ x | program.py:7" in error
    assert "outside gsparse" in error
    assert (sys.argv, sys.path) == (argv, path)


def test_a_program_imports_modules_of_its_own_folder(program: Path, capsys: Any) -> None:
    (program.parent / "module_beside_the_program.py").write_text("VALUE = 3\n")
    program.write_text("import module_beside_the_program\nprint(module_beside_the_program.VALUE)\n")
    assert call(capsys, program)[:2] == (0, "3\n")


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("raise ValueError('boom')", 1, "ValueError: boom"),
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_the_table_is_printed_however_the_program_ends(
    program: Path, capsys: Any, end: str, code: int, words: str
) -> None:
    program.write_text(f"{PROGRAM}{end}\n")
    exit_code, _, error = call(capsys, program)
    assert exit_code == code
    assert words in error
    assert "product: A @ x" in error


def test_a_program_that_does_not_exist_is_misuse(tmp_path: Path, capsys: Any) -> None:
    code, _, error = call(capsys, tmp_path / "none.py")
    assert code == 2
    assert "there is no such program" in error


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("--json", "nowhere/p.json", "there is no folder"),
        ("--json", ".", "is a folder: name a file"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_program_runs(
    program: Path, capsys: Any, option: str, name: str, words: str
) -> None:
    code, out, error = call(capsys, option, program.parent / name, program)
    assert (code, out) == (2, "")
    assert words in error


def test_files_are_written_where_the_command_was_called_although_the_program_changes_the_folder(
    program: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)
    (program.parent / "other").mkdir()
    program.write_text(f"{PROGRAM}import os\nos.chdir('other')\n")
    assert call(capsys, "--json", "p.json", program)[0] == 0
    assert {"by_line", "copy_bandwidths"} <= set(json.loads((program.parent / "p.json").read_text()))


def test_files_are_written_and_the_exit_code_is_the_programs_if_nobody_reads_the_table(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text(f"{PROGRAM}sys.exit(7)\n")
    with closed_pipe() as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        assert cli.main(["profile", "--json", str(program.parent / "p.json"), str(program)]) == 7
    assert (program.parent / "p.json").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX are sent")
def test_ctrl_c_ends_the_program_and_prints_the_table(program: Path) -> None:
    program.write_text(f"{PROGRAM}\nprint('ready', flush=True)\nimport time\ntime.sleep(100)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "gsparse", "profile", str(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "product: A @ x | program.py:7" in error
    assert "Traceback" not in error
