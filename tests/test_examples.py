"""Every example runs and prints the expected output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"
GUIDES = sorted((FOLDER / "guides").glob("*.py"))  # each guide asserts its own statements

# Arguments that make each example small enough for a test, and its expected output; every example must be listed.
EXAMPLES = {
    "cells_on_workers.py": (
        ["--cells", "300", "--genes", "600", "--chosen", "150", "--kinds", "3", "--check"],
        r"on 2 workers.*\n9\d\.\d% of the edges.*of a row: components \d\.\de-1[1-6], ranks \d\.\de-(09|1\d)",
    ),
    "cluster_across_hosts.py": (
        ["--n", "5000"],
        r"on 2 workers.*\nconverged .*residual \d\.\de-(09|1\d).* 100\.0",
    ),
    "convection_diffusion.py": (["--n", "40"], r"GMRES\(30\) with ILU\(0\).* converged .*down the wind"),
    "conductivity.py": (
        ["--n", "24", "--steps", "30"],
        r"576 unknown conductivities, 1296 measurements.*mean error of the conductivity \d\d\.\d% → \d\.\d%",
    ),
    "cooling_plate.py": (
        ["--n", "40", "--steps", "3"],
        r"SciPy +3 steps with 1600 points.*gsparse +3 steps.*temperatures differ by (0\.0e\+00|\d\.\de-(0[89]|1\d))",
    ),
    "eigenvalues.py": (
        ["--n", "31"],
        r"SciPy's LOBPCG, ours +705 points, 4\d iterations.*IC\(0\) +705 .*tones: 9\.\d+ 15\.\d+ 19\.\d+ 29\.",
    ),
    "graph_neural_network.py": (
        ["--nodes", "2000"],
        r"without the graph +found +[3-6]\d.*gsparse +found +9\d\.\d%.*learned weights +found +9\d",
    ),
    "heat_on_workers.py": (
        ["--n", "12", "--steps", "4", "--every", "2", "--check"],
        r"on 2 workers.*Δt = 2\.0e-03: \d iterations.* 2 chunks on.*error of a row: \d\.\de-(09|1\d)",
    ),
    "latent_semantics.py": (
        [],
        r"differ by\nrandomized .*e.*\narpack .*e-1\d\n.*9\d\.\d% right.*\? .*linalg\.eig",
    ),
    "many_gpus_poisson.py": (["--n", "16"], r"on 2 workers.*AMG +converged .*centre: 0\.05.* info 0, 2 chunks"),
    "markov_clustering.py": (["--groups", "20"], r"SciPy +20 groups.*gsparse +20 groups.*\n100\.0% of the nodes"),
    "pagerank.py": (["--graph", "R-MAT 15"], r"the ranks differ by \d\.\de-(09|1\d).*1\. page"),
    "partitioned_files.py": (["--n", "8"], r"rows-3\.mtx: converged.* one worker: converged.* function: converged"),
    "poisson_amg.py": (["--n", "16"], r"CG with AMG +converged after \d iterations"),
    "poisson_cg.py": (
        ["--n", "16"],
        r"compiled or loaded.*GpuSparseMatrix +4096 .*linalg\.cg\(A, b\) +4096 unknowns.*u at the centre 0\.05",
    ),
    "profiled_plate.py": (
        ["--n", "60", "--steps", "3"],
        r"slow: .*A\.data.*fast: .*preconditioner: amg.*temperatures differ by \d\.\de-(0[6-9]|1\d)",
    ),
    "resistor_network.py": (
        ["--n", "30"],
        r"900 nodes, 16\d\d wires.*16 loads: 1\d iterations.*worst drop: \d\.\d\d mV.*resistance: \d+, by .* 899",
    ),
    "ridge_regression.py": (
        ["--texts", "2000", "--words", "500"],
        r"1600 texts.*weights differ by \d\.\de-(0[6-9]|1\d).*\n     0\.1 .*best α: 10; .* [23]\.\d\d\nsolve: direct, ",
    ),
    "single_cell.py": (
        ["--cells", "600", "--genes", "1500"],
        r"projections differ by (0\.0e\+00|\d\.\de-1\d)\n(9\d|100)\.\d% of the cells",
    ),
    "soap_film.py": (
        ["--n", "24"],
        r"SciPy +625 points.*gsparse +625 points.*films differ by (0\.0e\+00|\d\.\de-(09|1\d))",
    ),
    "thousand_gpus.py": ([], r"measured µs .*weak scaling.*\n 1024 +\d+%.*a billion rows.*\n 1024 +\d+%"),
}

# The examples that need packages besides gsparse, by package.
NEEDED = {
    "distributed": "cells_on_workers cluster_across_hosts coming_from_dask heat_on_workers many_gpus many_gpus_poisson "
    "partitioned_files",
    "matplotlib": "first_ten_minutes how_gsparse_chooses solvers_and_preconditioners",
    "networkx": "other_libraries",
    "pyamg": "other_libraries",
    "skfem": "other_libraries soap_film",
    "sklearn": "latent_semantics other_libraries",
    "torch": "conductivity graph_neural_network",
    "tqdm": "many_gpus_poisson",
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.whole
def test_an_example_runs(name: str) -> None:
    arguments, expected = EXAMPLES[name]
    device = [] if name == "thousand_gpus.py" else ["--device", "cpu"]  # thousand_gpus.py computes nothing on a device
    printed = run(FOLDER / name, *arguments, *device)
    assert re.search(expected, printed, re.DOTALL), printed


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
@pytest.mark.whole
def test_the_assertions_of_a_guide_hold(guide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSPARSE_DEVICE", "cpu")
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert "\nassert " in guide.read_text().replace("    ", "")
    run(guide)


def run(script: Path, *arguments: str) -> str:
    """Run a script and return its output, or skip if a package that it needs is not installed."""
    for package in (package for package, names in NEEDED.items() if script.stem in names.split()):
        pytest.importorskip(package, reason=f"needs {package}")
    command = [sys.executable, "-W", "error", str(script), *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout
