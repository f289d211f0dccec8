"""What SciPy's conftest gives its tests: marks, fixtures and warning rules. (Importing it changes global settings.)"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy._lib._array_api import array_namespace

from tests.scipy_suite import SUITES, replaced

# SciPy's own rules (its pytest.ini), as far as its sparse tests meet them; the last one given wins.
WARNINGS = (
    "error",
    "always::scipy._lib._testutils.FPUModeChangeWarning",
    "ignore::scipy.sparse.SparseEfficiencyWarning",  # what the test made CSC for, we made CSR
    "ignore::gsparse.errors.HostLoanWarning",  # on a GPU: tests of mutation hold A.data over a product
    "ignore:`kron` is switching to the sparse array interface:DeprecationWarning",  # SciPy 1.18's in a test of its own
)
MARKS = (
    "array_api_backends: SciPy's",
    "skip_xp_backends: SciPy's; the only backend here is NumPy",
    "xfail_xp_backends: SciPy's",
    "uses_xp_capabilities: SciPy's",
)


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # First: what a test's own mark says comes later and wins.
            item.add_marker(pytest.mark.filterwarnings(*WARNINGS), append=False)


@pytest.fixture(autouse=True)
def what_tests_name_through_its_package(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replace ``scipy.sparse.linalg.expm`` and the like, which no import has bound, while a test runs."""
    suite = SUITES.get(request.path.stem.removeprefix("test_"))
    with contextlib.nullcontext() if suite is None else replaced(suite):
        yield


@pytest.fixture
def num_parallel_threads() -> int:
    return 1


@pytest.fixture
def xp() -> Any:
    return array_namespace(np.empty(0))


@pytest.fixture
def devices() -> tuple[str | None, ...]:
    return ("cpu", None)
