"""A few rounds of the faults that `tests.ranks.scenarios` repeats on a cluster of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

pytestmark = pytest.mark.timed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("scenario", ["interrupted-product", "strangers", "no-columns", "silent-workers"])
def test_a_few_rounds_end_without_a_wrong_result(scenario: str) -> None:
    command = [sys.executable, "-m", "tests.ranks.scenarios", scenario, "--times", "6"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith(f"{scenario}: 6 ")
