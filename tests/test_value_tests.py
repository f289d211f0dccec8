"""Tests of values: the first one that passes, and how many do, on every device."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.kernels.algebra import TESTS
from gsparse.kernels.backends import kernels_of
from tests.support import on_device

DTYPES = [*COMPUTE_DTYPES, np.dtype(bool)]
# What each test says of a value, written in plain Python.
EXPECTED = {
    "zero": lambda value: value == 0,
    "not zero": lambda value: value != 0,
    "not finite": lambda value: not np.isfinite(value),
    "not positive": lambda value: not value.real > 0,
}
# A block of a GPU looks at 2048 values.
SIZES = (1, 31, 33, 2048, 2049, 70_001)


def special_values(dtype: np.dtype[Any]) -> list[Any]:
    """Return values of which each passes other tests: zeros, NaN, infinities, negative and subnormal numbers."""
    if dtype.kind not in "fc":
        return [False, True] if dtype.kind == "b" else [0, -1, 7]
    tiny = float(np.finfo(dtype).smallest_subnormal)
    real = [0.0, -0.0, np.nan, np.inf, -np.inf, -2.5, tiny, -tiny]
    return real if dtype.kind == "f" else [*real, 1j, -1j, complex(0, np.nan), complex(1, np.inf), complex(-1, np.nan)]


def check(device: Device, values: Any, *tests: str) -> None:
    passing = [any(EXPECTED[test](value) for test in tests) for value in values.ravel()]
    kernels, array = kernels_of(device), on_device(device, values)
    assert kernels.reductions.first_where(device, array, *tests) == (passing.index(True) if any(passing) else None)
    assert kernels.reductions.count_where(device, array, *tests) == sum(passing)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_pass_the_tests_that_plain_python_says(device: Device, dtype: Any) -> None:
    for value in special_values(dtype):
        for count in (1, 2):
            for tests in combinations(TESTS, count):
                check(device, np.array([value], dtype), *tests)
                check(device, np.array([1, value, 1], dtype), *tests)


@pytest.mark.parametrize("size", SIZES)
def test_the_first_of_many_values_is_found(device: Device, size: int, rng: np.random.Generator) -> None:
    places = rng.integers(0, size, 3)
    values = rng.random(size) + 1
    check(device, values, "zero", "not finite")
    values[places] = 0, -1, np.nan
    for test in TESTS:
        check(device, values, test)
    mask = np.zeros(size, bool)
    mask[-1] = True
    check(device, mask, "not zero")
    check(device, ~mask, "zero")


def test_arrays_may_be_empty_or_have_rows(device: Device) -> None:
    for shape in ((0,), (0, 3)):
        check(device, np.zeros(shape), "zero")
    values = np.arange(12.0).reshape(3, 4) - 5
    for rows in (values, values.T, values[::2], values[:, 1:3]):
        check(device, rows, "zero")
        check(device, rows, "not positive")
