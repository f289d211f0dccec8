from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gsparse.kernels import Launch, cpu

KERNELS = list(cpu.SPMV)
DTYPES = ["float32", "float64", "complex64", "complex128", "int64"]
WIDENED = [
    ("float32", "float64", KERNELS),
    ("complex64", "complex128", KERNELS),
    ("float32", "complex64", ["csr_scalar"]),
    ("float32", "complex128", ["csr_scalar", "blocked_ellpack"]),
    ("float64", "complex128", ["csr_scalar", "csr_vector"]),
]
LAUNCH = Launch(threads_per_row=8)
NARROW = ["mixed", "all_empty", "one_row"]
WIDE = ["one_dense_row", "long_rows"]
PADDED = ["ellpack", "blocked_ellpack"]


def product(kernel: str, matrix: Any, x: Any, alpha: Any = 1, beta: Any = 0, y: Any = None, **options: Any) -> Any:
    """Run a kernel on a `y` of NaN, unless one is given."""
    if y is None:
        y = np.full(matrix.num_rows, np.nan if x.dtype.kind != "i" else -7).astype(x.dtype)
    scalar = x.dtype.type
    launch, conjugate = options.get("launch", LAUNCH), options.get("conjugate", False)
    cpu.SPMV[kernel](None, matrix, x, y, scalar(alpha), scalar(beta), conjugate, launch)
    return y


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_spmv_is_exact_row_by_row_for_every_structure(
    kernel: str, dtype: str, index_dtype: str, cases: Any, assert_row_by_row: Any
) -> None:
    for name, (lengths, num_cols) in cases.structures.items():
        if (kernel, index_dtype) == ("ellpack", "int64") and dtype != "float64" and name in WIDE:
            continue  # its second loop takes a second to compile; float64 stands for it
        csr = cases.make_csr(lengths, num_cols, dtype, index_dtype)
        x = cases.random_values(np.random.default_rng(1), num_cols, dtype)
        assert_row_by_row(csr, product(kernel, cases.store_as(kernel, csr), x), *cases.exact_product(csr, x))


@pytest.mark.parametrize(
    ("stored", "dtype", "kernel"), [(stored, dtype, kernel) for stored, dtype, kernels in WIDENED for kernel in kernels]
)
def test_spmv_widens_stored_values_before_it_multiplies(
    stored: str, dtype: str, kernel: str, cases: Any, assert_row_by_row: Any
) -> None:
    for name in NARROW:
        csr = cases.make_csr(*cases.structures[name], stored, "int32")
        x = cases.random_values(np.random.default_rng(1), csr.num_cols, dtype)
        assert_row_by_row(csr, product(kernel, cases.store_as(kernel, csr), x), *cases.exact_product(csr, x))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_spmv_conjugates_the_matrix_only(kernel: str, dtype: str, cases: Any, assert_row_by_row: Any) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], dtype, "int32")
    x = cases.random_values(np.random.default_rng(1), csr.num_cols, dtype)
    y = product(kernel, cases.store_as(kernel, csr), x, conjugate=True)
    assert_row_by_row(csr, y, *cases.exact_product(csr, x, conjugate=True))


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_spmv_scales_and_accumulates(kernel: str, dtype: str, cases: Any, assert_row_by_row: Any) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], dtype, "int32")
    x = cases.random_values(np.random.default_rng(1), csr.num_cols, dtype)
    start = cases.random_values(np.random.default_rng(2), csr.num_rows, dtype)
    exact, bound = cases.exact_product(csr, x)
    for alpha, beta in ((3, -2), (1, 1), (0, 5), (-1, 0)):
        y = product(kernel, cases.store_as(kernel, csr), x, alpha, beta, start.copy())
        wide = exact.dtype.type
        expected = wide(alpha) * exact + wide(beta) * start.astype(exact.dtype)
        assert_row_by_row(csr, y, expected, abs(alpha) * bound + abs(beta) * np.abs(start))


@pytest.mark.parametrize("kernel", KERNELS)
def test_spmv_writes_empty_rows_and_reads_y_only_for_beta(kernel: str, cases: Any) -> None:
    csr = cases.make_csr([0] * 50, 4, "float64", "int32")
    matrix, x = cases.store_as(kernel, csr), np.ones(4)
    np.testing.assert_array_equal(product(kernel, matrix, x), np.zeros(50))
    np.testing.assert_array_equal(product(kernel, matrix, x, 1, 2, np.full(50, 3.0)), np.full(50, 6.0))
    assert np.isnan(product(kernel, matrix, x, 1, 2, np.full(50, np.nan))).all()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("structure", ["mixed", "one_dense_row"])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_spmv_meets_inf_and_nan_as_scipy_does(
    kernel: str, dtype: str, structure: str, special: float, cases: Any
) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    csr = cases.make_csr(*cases.structures[structure], dtype, "int32")
    x = cases.random_values(np.random.default_rng(1), csr.num_cols, dtype)
    x[::7] = special
    expected = scipy_sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape) @ x
    y = product(kernel, cases.store_as(kernel, csr), x)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(y[~finite], expected[~finite])
    np.testing.assert_allclose(y[finite], expected[finite], rtol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spmv_keeps_subnormals(kernel: str, dtype: str, cases: Any, assert_row_by_row: Any) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], dtype, "int32")
    tiny = np.finfo(dtype).smallest_subnormal
    csr = csr.with_data((np.arange(csr.nnz) % 5 + 1).astype(dtype) * tiny)
    x = np.ones(csr.num_cols, dtype)
    exact, _ = cases.exact_product(csr, x)
    np.testing.assert_array_equal(product(kernel, cases.store_as(kernel, csr), x), exact.astype(dtype))


@pytest.mark.parametrize("threads_per_row", [2, 4, 8, 16, 32])
def test_csr_vector_takes_every_number_of_partial_sums(
    threads_per_row: int, cases: Any, assert_row_by_row: Any
) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, "float64", "int32")
        x = np.random.default_rng(1).standard_normal(num_cols)
        y = product("csr_vector", csr, x, launch=Launch(threads_per_row=threads_per_row))
        assert_row_by_row(csr, y, *cases.exact_product(csr, x))


def test_csr_scalar_gives_scipys_bits(cases: Any) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    csr = cases.make_csr([7] * 1000, 1000, "float64", "int32")
    x = np.random.default_rng(1).standard_normal(1000)
    expected = scipy_sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape) @ x
    np.testing.assert_array_equal(product("csr_scalar", csr, x), expected)


@pytest.mark.parametrize("kernel", PADDED)
def test_padded_rows_are_summed_in_the_order_of_csr(kernel: str, cases: Any) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, "float64", "int32")
        x = np.random.default_rng(1).standard_normal(num_cols)
        expected = product("csr_scalar", csr, x)
        np.testing.assert_array_equal(product(kernel, cases.store_as(kernel, csr), x), expected)


@pytest.mark.parametrize("kernel", ["csr_scalar", "blocked_ellpack"])
def test_spmv_takes_read_only_arrays(kernel: str, cases: Any) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], "float64", "int32")
    matrix, x = cases.store_as(kernel, csr), np.ones(csr.num_cols)
    expected = product(kernel, matrix, x)
    for array in (matrix.indptr, matrix.indices, matrix.data, x):
        array.flags.writeable = False
    np.testing.assert_array_equal(product(kernel, matrix, x), expected)
