"""The kernel `count_numbers` counts how often each number occurs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gsparse.device.base import Device
from gsparse.kernels.backends import kernels_of
from tests.support import INDEX_DTYPES, host, on_device


@pytest.mark.parametrize("index", INDEX_DTYPES)
@pytest.mark.parametrize(("count", "size"), [(0, 0), (0, 5), (1, 1), (4097, 3), (9000, 20_000)])
def test_each_number_is_counted(device: Device, rng: np.random.Generator, index: Any, count: int, size: int) -> None:
    numbers = rng.integers(0, max(size, 1), count).astype(index)
    counts = host(kernels_of(device).sparse_rows.count_numbers(device, on_device(device, numbers), size))
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, np.bincount(numbers, minlength=size)[:size])
