"""Check the suites themselves: SciPy's tests use our class, and every suite has its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy.linalg
import scipy.sparse.linalg

from gsparse import GpuSparseMatrix
from gsparse.device.counters import TOTAL
from tests.scipy_suite import SUITES, load, replaced

# The arguments of the witnesses that need any.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "funm_multiply_krylov": {"f": scipy.linalg.expm, "num_parallel_threads": 1},
    "our_svds": {"dtype": float},
}


def test_suites_and_test_files_correspond() -> None:
    files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert files - {"the_suites", "base_csr"} == SUITES.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, suite in SUITES.items() if suite.witness])
def test_scipys_functions_work_on_our_matrices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, made = SUITES[name], list[GpuSparseMatrix]()
    module, before, make = load(suite), TOTAL.products, GpuSparseMatrix.__init__

    def count(*args: Any, **options: Any) -> None:
        made.append(args[0])
        make(*args, **options)

    monkeypatch.setattr(GpuSparseMatrix, "__init__", count)
    holder, _, method = suite.witness.rpartition(".")
    instance = getattr(module, holder)() if holder else module
    getattr(instance, "setup_method", lambda: None)()
    with replaced(suite):
        getattr(instance, method)(**ARGUMENTS.get(name, {}))
    assert made
    assert TOTAL.products > before or not suite.products


@pytest.mark.parametrize("name", [name for name, suite in SUITES.items() if suite.ours])
def test_the_functions_of_our_suites_are_ours(name: str) -> None:
    module = load(SUITES[name])
    ours = [getattr(module, function, None) for function in SUITES[name].ours]
    found = [f for f in ours if f is not None] or [getattr(module, "spnorm", None)]
    with replaced(SUITES[name]):
        found += [getattr(scipy.sparse.linalg, function) for function in SUITES[name].ours]
    assert all(function.__wrapped__.__module__.startswith("gsparse.") for function in found if function is not None)
    assert len([function for function in found if function is not None]) > 0


@pytest.mark.parametrize("name", [name for name, suite in SUITES.items() if suite.container and name != "interface"])
def test_scipys_containers_are_ours(name: str) -> None:
    assert load(SUITES[name]).csr_array is GpuSparseMatrix
