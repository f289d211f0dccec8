"""Fail if a benchmark is more than 20 % slower than at the commit that was stored last, both measured here in turns.

python check_regressions.py [--base COMMIT] [--machine NAME]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The benchmarks that are measured for many commits. A run of all takes ten minutes a commit on two cores.
HISTORY = r"products\.(Call|Types)|algebra\.Operations|linalg\.(Solve|Preconditioned)\.time|making\.Start\.time"
FACTOR = 1.2
# Each round runs every benchmark of both commits in a process of its own.
ROUNDS = 3


def stored_last(machine: str) -> str:
    """Return the newest commit that has results of a machine and is part of the history of HEAD."""
    files = (HERE / "results" / machine).glob("*-*.json")
    commits = {json.loads(file.read_text())["commit_hash"] for file in files}
    history = subprocess.check_output(["git", "rev-list", "HEAD"], cwd=HERE, text=True).split()
    return next((commit for commit in history if commit in commits), "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="cpu-2-cores", help="whose stored results name the commit")
    parser.add_argument("--base", help="the commit to compare with")
    options = parser.parse_args()
    base = options.base or stored_last(options.machine)
    if not base:
        print(f"no results of {options.machine} are stored: pass --base", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((HERE / "asv.conf.json").read_text())
        config |= {"repo": str(HERE.parent), "branches": ["HEAD"], "results_dir": f"{folder}/results"}
        config |= {"benchmark_dir": str(HERE / config["benchmark_dir"]), "env_dir": str(HERE / config["env_dir"])}
        (Path(folder) / "asv.conf.json").write_text(json.dumps(config))
        asv = [sys.executable, "-m", "asv"]
        subprocess.run([*asv, "machine", "--yes", "--machine", "here"], cwd=folder, check=True)
        command = [*asv, "continuous", "--machine", "here", "--factor", str(FACTOR), "--interleave-rounds", "--split"]
        command += ["--attribute", f"rounds={ROUNDS}", "--bench", HISTORY, base, "HEAD"]
        return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
