"""The CPU's product with several vectors is exact in every layout, and has the bits of products with one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gsparse.formats.launch import Launch
from gsparse.kernels import cpu
from tests.cpu.stored import DEVICE, store

# The quick choice leaves these tests out: tests/test_products.py and tests/test_columns.py run the same kernels.
pytestmark = pytest.mark.whole

LAYOUTS = {
    "row_major": np.empty,
    "column_major": lambda shape, dtype: np.empty(shape, dtype, order="F"),
    "strided": lambda shape, dtype: np.empty((2 * shape[0], 3 * shape[1]), dtype)[::2, ::-3],
}


def multiply(
    csr: Any, x: Any, layout: str, alpha: Any = 1, beta: Any = 0, y: Any = None, conjugate: bool = False
) -> Any:
    out = LAYOUTS[layout]((csr.num_rows, x.shape[1]), x.dtype)
    out[...] = y if y is not None else np.nan if x.dtype.kind != "i" else -7
    laid_out = LAYOUTS[layout](x.shape, x.dtype)
    laid_out[...] = x
    scalar = x.dtype.type
    cpu.csr_spmm(None, csr, x.dtype, None, None)(laid_out, out, scalar(alpha), scalar(beta), conjugate)
    return out


@pytest.mark.parametrize(
    ("layout", "index_dtype"), [("row_major", "int64"), ("column_major", "int32"), ("strided", "int32")]
)
def test_spmm_is_exact_row_by_row_for_every_structure_and_layout(
    layout: str, index_dtype: str, cases: Any, assert_row_by_row: Any
) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, "float64", index_dtype)
        for num_columns in (0, 1, 3, 7, 13, 21):
            x = np.random.default_rng(1).standard_normal((num_cols, num_columns))
            assert_row_by_row(csr, multiply(csr, x, layout), *cases.exact_product(csr, x))


@pytest.mark.parametrize(
    ("stored", "dtype", "num_columns"),
    [("float32", "float32", 5), ("complex64", "complex64", 17), ("int64", "int64", 17), ("float32", "complex128", 5)],
)
def test_spmm_computes_in_every_dtype(
    stored: str, dtype: str, num_columns: int, cases: Any, assert_row_by_row: Any
) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], stored, "int32")
    x = cases.random_values(np.random.default_rng(1), (csr.num_cols, num_columns), dtype)
    assert_row_by_row(csr, multiply(csr, x, "row_major"), *cases.exact_product(csr, x))


@pytest.mark.parametrize("num_columns", [5, 17])
def test_spmm_conjugates_scales_and_accumulates(num_columns: int, cases: Any, assert_row_by_row: Any) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], "complex128", "int32")
    x = cases.random_values(np.random.default_rng(1), (csr.num_cols, num_columns), "complex128")
    start = cases.random_values(np.random.default_rng(2), (csr.num_rows, num_columns), "complex128")
    exact, bound = cases.exact_product(csr, x, conjugate=True)
    y = multiply(csr, x, "row_major", 2 - 1j, 3, start, conjugate=True)
    assert_row_by_row(csr, y, (2 - 1j) * exact + 3 * start, 3 * bound + 3 * np.abs(start))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_column_has_the_same_bits_as_a_product_with_that_column_alone(layout: str, cases: Any) -> None:
    csr = cases.make_csr([5, 0, 90, 12] * 30, 50, "float64", "int32")
    x = np.random.default_rng(1).standard_normal((50, 19))
    together = multiply(csr, x, layout)
    for column in range(19):
        alone = np.empty(csr.num_rows)
        entries = store("csr_scalar", csr, "float64")
        multiply_alone = cpu.csr_scalar(DEVICE, entries, np.dtype("float64"), Launch())
        multiply_alone(x[:, column].copy(), alone, np.float64(1), np.float64(0), False)
        np.testing.assert_array_equal(together[:, column], alone)
