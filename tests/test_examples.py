"""Every example runs and prints the expected output."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"
GUIDES = sorted((FOLDER / "guides").glob("*.py"))  # each guide asserts its own statements

# Arguments that make each example small enough for a test, and its expected output; every example must be listed.
EXAMPLES = {
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

# The packages that examples need besides gsparse.
NEEDED = {
    "cluster_across_hosts.py": ["distributed"],
    "conductivity.py": ["torch"],
    "graph_neural_network.py": ["torch"],
    "first_ten_minutes.py": ["matplotlib"],
    "how_gsparse_chooses.py": ["matplotlib"],
    "latent_semantics.py": ["sklearn"],
    "many_gpus.py": ["distributed"],
    "many_gpus_poisson.py": ["distributed", "tqdm"],
    "other_libraries.py": ["skfem", "pyamg", "networkx", "sklearn"],
    "partitioned_files.py": ["distributed"],
    "soap_film.py": ["skfem"],
    "solvers_and_preconditioners.py": ["matplotlib"],
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


@pytest.mark.whole
def test_single_cell_needs_a_hundred_genes_for_each_kind_and_may_have_fewer_cells_than_genes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run(FOLDER / "single_cell.py", "--cells", "300", "--genes", "1500", "--device", "cpu")
    assert re.search(r"300 cells.*differ by (0\.0e\+00|\d\.\de-1\d)", printed, re.DOTALL), printed
    monkeypatch.setattr(sys, "argv", ["single_cell.py", "--genes", "400"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(FOLDER / "single_cell.py"), run_name="__main__")
    assert "--genes must be at least 500 for 5 kinds, got 400" in capsys.readouterr().err


def run(script: Path, *arguments: str) -> str:
    """Run a script and return its output, or skip if a package that it needs is not installed."""
    for package in NEEDED.get(script.name, []):
        pytest.importorskip(package, reason=f"needs {package}")
    command = [sys.executable, "-W", "error", str(script), *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_the_extra_of_the_examples_installs_what_they_need() -> None:
    extras = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shared = re.search(r"\[(.*)\]", extras["examples"][0])
    assert shared
    parts = [*extras["examples"], *(part for extra in shared[1].split(",") for part in extras[extra])]
    installed = {re.split(r"[>\[]", part)[0].replace("scikit-", "sk") for part in parts}
    # PyTorch is too large for the extra.
    assert {package for packages in NEEDED.values() for package in packages} - installed == {"torch"}


@pytest.mark.parametrize(("name", "package"), [("many_gpus_poisson.py", "tqdm")])
def test_an_example_without_a_needed_package_stops_at_once(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("many"):
        distributed = pytest.importorskip("gsparse.distributed", reason="needs distributed")
        pytest.importorskip("distributed", reason="needs distributed")
        monkeypatch.setattr(distributed, "LocalGpuCluster", None)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("gsparse.GpuSparseMatrix", None)
    with pytest.raises(SystemExit, match=rf"needs {package}: pip install 'gsparse-gpu\[examples\]'"):
        runpy.run_path(str(FOLDER / name), run_name="__main__")
