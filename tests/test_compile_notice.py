"""On a terminal, one line says that kernels are being compiled, once, and only if it takes long."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from gsparse.device import compilation
from gsparse.device.compilation import COMPILE_NOTICE, MESSAGE, CompileNotice

MAX_WAIT = 60.0


class Terminal(io.StringIO):
    """A terminal that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.has_line = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        super().flush()
        self.has_line.set()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("GSPARSE_QUIET", raising=False)
    monkeypatch.setattr(compilation, "_DELAY", 0.0)
    return Terminal()


def test_a_long_compilation_prints_one_line_for_the_whole_process(terminal: Terminal) -> None:
    notice = CompileNotice()
    with redirect_stderr(terminal):
        with notice, notice:
            assert terminal.has_line.wait(MAX_WAIT)
        with notice:
            assert notice._timer is None
    assert notice.compilations == 2
    assert terminal.getvalue().strip() == MESSAGE
    for words in (
        "compiling kernels, once for this machine",
        "To compile ahead, run: gsparse warmup",
        "GSPARSE_QUIET=1",
    ):
        assert words in MESSAGE


@pytest.mark.parametrize("reason", ["quiet", "no terminal", "no stream"])
def test_nothing_is_printed_if_quiet_or_not_on_a_terminal(
    terminal: Terminal, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "quiet":
        monkeypatch.setenv("GSPARSE_QUIET", "1")
    stream = {"quiet": terminal, "no terminal": io.StringIO(), "no stream": None}[reason]
    notice = CompileNotice()
    with redirect_stderr(stream), notice:
        assert notice._timer is None
    assert not terminal.getvalue()


def test_numba_reports_the_functions_of_this_package_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numba = pytest.importorskip("numba")
    import gsparse.kernels.cpu.jit  # noqa: F401 - registers the listener

    begun: list[Any] = []

    def begin(self: CompileNotice) -> None:
        begun.append(self)

    monkeypatch.setattr(CompileNotice, "__enter__", begin)
    monkeypatch.setattr(CompileNotice, "__exit__", lambda self, *error: None)
    for module, count in (("another", 0), ("gsparse.example", 1), ("gsparse_cg_0123456789abcdef", 2)):

        def function(x: float) -> float:
            return x + 1

        function.__module__ = module
        assert numba.njit(function)(1.0) == 2.0
        assert begun == [COMPILE_NOTICE] * count


@pytest.mark.whole
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("quiet", ["", "1"])
def test_the_first_product_on_a_terminal_says_that_it_compiles(tmp_path: Path, quiet: str) -> None:
    code = (
        "import os, pty, sys\n"
        "program = 'import numpy, scipy.sparse, gsparse; import gsparse.device.compilation as n; n._DELAY = 0.0; '"
        " 'gsparse.GpuSparseMatrix(scipy.sparse.eye_array(9), device=\"cpu\") @ numpy.ones(9)'\n"
        "sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, '-c', program])))\n"
    )

    root = str(Path(__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"GSPARSE_CACHE_DIR": str(tmp_path), "GSPARSE_QUIET": quiet, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("compiling kernels, once for this machine") == (0 if quiet else 1)
