"""Warnings that are errors in tests: those of gsparse and its dependencies, but none of a user's plugins of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def outcomes(tmp_path: Path) -> list[str]:
    """Outcomes of tests in a project with this one's settings and such a plugin."""
    (tmp_path / "pyproject.toml").write_text((SOURCE_ROOT / "pyproject.toml").read_text())
    (tmp_path / "pytest_plugin_of_a_user.py").write_text(PLUGIN)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "pytest_plugin_of_a_user", "-rA", "-q", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "INTERNAL"))]


def test_a_plugin_that_warns_breaks_no_test_and_our_own_warnings_are_errors(outcomes: list[str]) -> None:
    assert sorted(line.partition(" - ")[0].replace("tests/test_some.py::test_", "") for line in outcomes) == [
        "FAILED division",
        "FAILED own_warning",
        "FAILED unraisable",
        "FAILED warning_of_scipy",
        "PASSED nothing",
    ]
