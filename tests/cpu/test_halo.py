"""Sums of values that other ranks send, added on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

from gsparse.kernels.cpu import exchange


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_nan_and_inf_are_added_without_a_warning(dtype: str) -> None:
    y, values = np.array([np.inf, 1, 1e308], dtype), np.array([-np.inf, 1e308], dtype)
    exchange.scatter_add(None, values, np.array([0, 2]), y)  # a warning would be an error
    assert np.isnan(y[0]) and y[1] == 1 and np.isinf(y[2])
