"""The marks, fixtures and warning rules of SciPy's conftest, which is not imported as that changes global settings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy._lib._array_api import array_namespace

from gsparse.device.dtypes import HOST_ONLY
from gsparse.matrix import host_operations, in_place, indexing, writes
from tests.scipy_suite import SUITES, replaced

# The rules of SciPy's pytest.ini that concern its sparse tests; the last rule that matches applies.
WARNINGS = (
    "error",
    "always::scipy._lib._testutils.FPUModeChangeWarning",
    "ignore::scipy.sparse.SparseEfficiencyWarning",  # our matrix is CSR where the test made CSC
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
            # Prepend these rules, so that a later mark of the test itself takes precedence.
            item.add_marker(pytest.mark.filterwarnings(*WARNINGS), append=False)
            if item.get_closest_marker("timeout"):  # of two seconds, which a busy machine exceeds
                item.add_marker(pytest.mark.timeout(120), append=False)
            suite = SUITES.get(item.path.stem.removeprefix("test_"))
            if suite is not None and not suite.container:
                item.add_marker(pytest.mark.whole)  # test_the_suites.py always runs one witness of each suite


@pytest.fixture(autouse=True)
def replace_functions_called_by_full_name(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replace functions that a test calls by their full name, such as ``scipy.sparse.linalg.expm``, while it runs."""
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


# The operations that SciPy's tests of the container may run on the host.
LEAVE_THE_DEVICE = ("todia", "tobsr", "tolil", "todok")
EXTENDED = (np.longdouble, np.clongdouble)


@pytest.fixture(autouse=True)
def all_else_runs_on_the_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if an operation without extended precision runs on the host, in the suites of the container."""
    name = request.path.stem.removeprefix("test_")
    is_container = name == "base_csr" or (name in SUITES and SUITES[name].container)
    left: list[str] = []

    def watched(function: Any) -> Any:
        def watch(matrix: Any, operation: str, *args: Any, **options: Any) -> Any:
            operands: list[Any] = []
            frame: Any = sys._getframe(1)
            for _ in range(3):  # the callers, one of which has both operands
                operands += [frame.f_locals.get(name) for name in ("matrix", "args", "options", "other")]
                frame = frame.f_back
            if not has_extended_precision(matrix, args, options, *operands):
                left.append(operation)
            return function(matrix, operation, *args, **options)

        return watch

    for name in ("counted_scipy_array", "write_on_host"):
        watching = watched(getattr(host_operations, name))
        for module in (host_operations, indexing, in_place, writes):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, watching)
    yield
    assert not is_container or not set(left).difference(LEAVE_THE_DEVICE)


def has_extended_precision(*values: Any) -> bool:
    """Tell whether one of these values, or of the values in one of these collections, has extended precision."""
    for value in values:
        if isinstance(value, (tuple, dict)):
            if has_extended_precision(*(value.values() if isinstance(value, dict) else value)):
                return True
            continue
        dtype = np.dtype(value) if isinstance(value, type) and value in EXTENDED else getattr(value, "dtype", value)
        if isinstance(dtype, np.dtype) and dtype.char in HOST_ONLY:
            return True
    return False
