from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gsparse import threads
from gsparse.errors import FormatError
from gsparse.kernels import cpu


def slowly_padded(csr: Any, slice_size: int) -> tuple[Any, Any, Any]:
    """Give the offsets, columns and values that the formats' docstrings ask for, one entry at a time."""
    lengths = np.diff(csr.indptr)
    offsets, indices, data = [0], [], []
    for begin in range(0, csr.num_rows, max(slice_size, 1)):
        width = int(lengths[begin : begin + slice_size].max())
        for column in range(width):
            for row in range(begin, begin + slice_size):
                length = int(lengths[row]) if row < csr.num_rows else 0
                start = int(csr.indptr[row]) if length else 0
                indices.append(int(csr.indices[start + min(column, length - 1)]) if length else 0)
                data.append(csr.data[start + column] if column < length else 0)
        offsets.append(len(indices))
    return np.array(offsets), np.array(indices, csr.indices.dtype), np.array(data, csr.data.dtype)


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_conversions_equal_a_slow_reference(dtype: str, index_dtype: str, cases: Any) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, dtype, index_dtype)
        width = max(lengths, default=0)
        ellpack = cpu.csr_to_ellpack(None, csr, width)
        _, indices, data = slowly_padded(csr, csr.num_rows)
        assert (ellpack.width, ellpack.nnz, ellpack.shape) == (width, csr.nnz, csr.shape)
        assert ellpack.indptr is csr.indptr
        assert ellpack.indices.dtype == csr.indices.dtype
        np.testing.assert_array_equal(ellpack.indices, indices)
        np.testing.assert_array_equal(ellpack.data, data)
        for slice_size in (1, 8, 32, 64):
            blocked = cpu.csr_to_blocked_ellpack(None, csr, slice_size)
            offsets, indices, data = slowly_padded(csr, slice_size)
            assert blocked.slice_offsets.dtype == np.int64
            assert blocked.indices.dtype == csr.indices.dtype
            np.testing.assert_array_equal(blocked.slice_offsets, offsets)
            np.testing.assert_array_equal(blocked.indices, indices)
            np.testing.assert_array_equal(blocked.data, data)


def test_a_width_below_the_longest_row_is_an_error(cases: Any) -> None:
    csr = cases.make_csr([1, 4], 5, "float32", "int32")
    with pytest.raises(FormatError, match="longest row, 4, got 3"):
        cpu.csr_to_ellpack(None, csr, 3)


def test_conversions_do_not_depend_on_the_number_of_threads(cases: Any) -> None:
    csr = cases.make_csr(list(np.random.default_rng(0).integers(0, 12, 60_000)), 1000, "float32", "int32")
    converted = []
    for num_threads in (1, 3):
        threads.set_num_threads(num_threads)
        converted.append((cpu.csr_to_ellpack(None, csr, 11), cpu.csr_to_blocked_ellpack(None, csr, 32)))
    for one, three in zip(*converted, strict=True):
        np.testing.assert_array_equal(one.indices, three.indices)
        np.testing.assert_array_equal(one.data, three.data)
