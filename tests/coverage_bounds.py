"""Fail if coverage is below the bound of ``pyproject.toml``: lines and branches, each on its own.

Run it in the repository root after ``coverage combine``, as ``.ci/whole tests`` does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

# Percent that may be missing, because whether some branches run depends on timing, or on whether the
# matrices from applications are there.
_TOLERANCE = 1


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        command = [sys.executable, "-m", "coverage", "json", "-q", "--fail-under=0", "-o", str(report)]
        subprocess.run(command, check=True)
        totals = json.loads(report.read_text())["totals"]
    bound = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["coverage"]["report"]["fail_under"]
    covered = {kind: totals[f"percent_{kind}_covered"] for kind in ("statements", "branches")}
    print(f"{covered}; each must be at least {bound - _TOLERANCE}, which is fail_under - {_TOLERANCE}")
    return min(covered.values()) < bound - _TOLERANCE


if __name__ == "__main__":
    sys.exit(main())
