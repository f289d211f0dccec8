"""Warnings that are errors in tests: those of gsparse, with an option those of libraries, none of pytest's plugins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import SOURCE_ROOT

# As pytest-benchmark, which warns beside pytest-xdist before any test runs.
PLUGIN = """
import warnings
import pytest

class PluginWarning(pytest.PytestWarning):
    pass

def pytest_configure(config):
    warnings.warn(PluginWarning("this plugin has no use beside another"))
"""

TESTS = """
import warnings
import numpy as np
import scipy.sparse as sp

def test_nothing():
    pass

def test_division():
    np.ones(1) / np.zeros(1)

def test_own_warning():
    warnings.warn("of the tests", RuntimeWarning)

def test_warning_of_scipy():
    sp.csr_array(np.eye(2))[0, 1] = 1

def test_unraisable():
    class Ill:
        def __del__(self):
            raise ValueError
    Ill()
"""


def outcomes(folder: Path, *options: str) -> list[str]:
    """Return the outcomes of these tests in a project with this one's settings and such a plugin."""
    (folder / "pyproject.toml").write_text((SOURCE_ROOT / "pyproject.toml").read_text())
    (folder / "pytest_plugin_of_a_user.py").write_text(PLUGIN)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_some.py").write_text(TESTS)
    (folder / "tests" / "library_warnings.py").write_text((SOURCE_ROOT / "tests" / "library_warnings.py").read_text())
    plugins = ("-p", "pytest_plugin_of_a_user", "-p", "tests.library_warnings")
    command = [sys.executable, "-m", "pytest", *plugins, "-rA", "-q", "tests/test_some.py", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "INTERNAL"))]
    return sorted(line.partition(" - ")[0].replace("tests/test_some.py::test_", "") for line in lines)


def test_only_our_own_warnings_are_errors_by_default(tmp_path: Path) -> None:
    assert outcomes(tmp_path) == [
        "FAILED division",
        "FAILED own_warning",
        "PASSED nothing",
        "PASSED unraisable",
        "PASSED warning_of_scipy",
    ]


def test_with_the_option_warnings_of_libraries_are_errors_but_none_of_a_plugin(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "--library-warnings") == [
        "FAILED division",
        "FAILED own_warning",
        "FAILED unraisable",
        "FAILED warning_of_scipy",
        "PASSED nothing",
    ]
