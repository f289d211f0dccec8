"""Requests for elements that a loop needs later: one for each cache line, and none for an array that does not exist."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from gsparse.kernels.cpu.instructions import prefetch


def number_of_requests(array: Any, count: int) -> int:
    """Return the number of requests in the code that asks for `count` elements."""

    def request(array: Any, place: Any) -> None:
        prefetch(array, np.uint64(place), count)

    compiled: Any = numba.njit(request)
    compiled(array, 10**6)  # The place is beyond the end, which is no error.
    (code,) = compiled.inspect_llvm().values()
    return int(code.count("call void @llvm.prefetch"))


@pytest.mark.parametrize(
    ("dtype", "count", "lines"),
    [("float64", 8, 1), ("float64", 32, 4), ("int32", 32, 2), ("uint16", 32, 1), ("complex128", 8, 2), ("bool", 8, 1)],
)
def test_each_cache_line_is_requested_once(dtype: str, count: int, lines: int) -> None:
    assert number_of_requests(np.ones(3, dtype), count) == lines


def test_an_array_that_does_not_exist_is_not_requested() -> None:
    assert number_of_requests(None, 32) == 0
