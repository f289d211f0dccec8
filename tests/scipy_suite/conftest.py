"""What SciPy's conftest gives its tests: marks, fixtures and warning rules. (Importing it changes global settings.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy._lib._array_api import array_namespace

from tests.scipy_suite import SUITES, converted_functions

# SciPy's own rules (its pytest.ini), as far as its sparse tests meet them; the last one given wins.
WARNINGS = ("error", "always::scipy._lib._testutils.FPUModeChangeWarning")

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
            for rule in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(rule), append=False)


@pytest.fixture(autouse=True)
def functions_called_through_their_package(request: pytest.FixtureRequest) -> Iterator[None]:
    """Convert for calls such as ``scipy.sparse.linalg.expm(A)`` too, that no import has bound."""
    suite = SUITES.get(request.path.stem.removeprefix("test_"))
    if suite is None or suite.container:
        yield
        return
    with converted_functions():
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
