"""The quick choice of tests leaves out no test function and no value of a parameter, and hides nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.whole
def test_the_quick_choice_contains_every_test_function_that_is_not_marked() -> None:
    def collected(*options: str) -> tuple[dict[str, int], str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        counts: dict[str, int] = defaultdict(int)
        for line in done.stdout.splitlines():
            if "::" in line:
                counts[line.partition("[")[0]] += 1
        return counts, done.stdout

    left_out = "xslow or whole or timed" + (" or gpu" if find_spec("cupy") is None else "")
    (unmarked, _), (quick, summary) = collected("-m", f"not ({left_out})"), collected()
    assert quick.keys() == unmarked.keys()
    count = re.search(r"quick choice: (\d+) tests were left out; pytest --whole", summary)
    assert count is not None
    assert int(count[1]) > sum(unmarked.values()) - sum(quick.values()) > 0
