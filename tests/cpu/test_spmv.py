"""The CPU's products in every format and encoding are exact row by row, with the same bits on any number of threads."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gsparse.device import threads
from gsparse.formats import Csr
from gsparse.formats.launch import Launch
from gsparse.kernels import cpu
from tests.cpu.stored import store

# The quick choice leaves these tests out: tests/test_products.py and tests/test_columns.py run the same kernels.
pytestmark = pytest.mark.whole

IN_ORDER = [
    "csr_scalar",
    "ellpack",
    "blocked_ellpack",
    "blocked_ellpack+sorted",
    "blocked_ellpack+long",
    "blocked_ellpack+sorted+long",
]
FORMATS = [*IN_ORDER, "csr_vector"]
PATTERNS = ["row_pattern", "row_pattern+values"]
LAUNCH = Launch(threads_per_row=8)

# The stored dtype, the compute dtype, the dtype of indices, the encodings of columns and values, and the formats with
# which they are tested. A case takes a second to compile, so there are only as many as cover all pairs of choices. All
# formats are tested with float64, without encoding.
WRITTEN: list[tuple[str, str, str, str, str, list[str]]] = [
    ("float64", "float64", "int32", "plain", "plain", FORMATS),
    ("float64", "float64", "int64", "uint8", "equal", ["csr_scalar", "blocked_ellpack"]),
    ("float64", "float64", "int32", "uint16", "uint16", ["csr_vector", "blocked_ellpack+long"]),
    ("float32", "float64", "int64", "uint16", "plain", ["csr_scalar", "blocked_ellpack+sorted+long"]),
    ("float32", "float32", "int32", "plain", "uint8", ["csr_vector", "ellpack"]),
    ("complex64", "complex64", "int32", "uint8", "plain", ["csr_vector", "blocked_ellpack"]),
    ("complex128", "complex128", "int64", "plain", "uint16", ["csr_scalar", "blocked_ellpack+sorted"]),
    ("float32", "complex128", "int32", "uint16", "plain", ["csr_vector"]),
    ("complex64", "complex128", "int32", "uint16", "equal", ["ellpack"]),
    ("int64", "int64", "int64", "uint16", "plain", ["csr_scalar", "ellpack"]),
]
WRITTEN_EACH = [(format, *case) for *case, formats in WRITTEN for format in formats]


def product(format: str, matrix: Any, x: Any, alpha: Any = 1, beta: Any = 0, y: Any = None, **options: Any) -> Any:
    """Run a kernel and return its output, which is full of NaN (or -7, for integers) before, unless `y` is given."""
    if y is None:
        y = np.full(matrix.num_rows, np.nan if x.dtype.kind != "i" else -7).astype(x.dtype)
    scalar = x.dtype.type
    launch, conjugate = options.get("launch", LAUNCH), options.get("conjugate", False)
    multiply = cpu.SPMV[format.partition("+")[0]](None, matrix, x.dtype, launch)
    multiply(x, y, scalar(alpha), scalar(beta), conjugate)
    return y


@pytest.mark.parametrize(("format", "stored", "compute", "index", "columns", "values"), WRITTEN_EACH)
def test_spmv_is_exact_row_by_row_in_every_encoding(
    format: str, stored: str, compute: str, index: str, columns: str, values: str, cases: Any, assert_row_by_row: Any
) -> None:
    distinct = {"plain": 0, "equal": 1, "uint8": 200, "uint16": 300}[values]
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, stored, index, distinct=distinct)
        matrix = store(format, csr, compute, columns, values)
        x = cases.random_values(np.random.default_rng(1), num_cols, compute)
        for conjugate in {False, np.dtype(stored).kind == "c"}:
            exact = cases.exact_product(csr, x, conjugate)
            assert_row_by_row(csr, product(format, matrix, x, conjugate=conjugate), *exact)


@pytest.mark.parametrize(
    ("format", "stored", "compute", "values"),
    [
        ("row_pattern", "float64", "float64", "plain"),
        ("row_pattern", "complex128", "complex128", "plain"),
        ("row_pattern", "int64", "int64", "plain"),
        ("row_pattern+values", "float64", "float64", "plain"),
        ("row_pattern+values", "float32", "float64", "plain"),
        ("row_pattern+values", "float64", "float64", "uint16"),
        ("row_pattern+values", "complex64", "complex64", "uint8"),
        ("row_pattern+values", "int64", "int64", "equal"),
    ],
)
def test_row_patterns_are_exact_row_by_row(
    format: str, stored: str, compute: str, values: str, cases: Any, assert_row_by_row: Any
) -> None:
    distinct = {"plain": 0, "equal": 1, "uint8": 200, "uint16": 300}[values]
    for num_rows, offsets in (
        (1000, [-40, -1, 0, 1, 40]),
        (33, [-3, 2]),
        (7, [0]),
        (96, [200]),
        (700, [650, -1, -699]),
    ):
        csr = cases.make_stencil(num_rows, offsets, stored, varying=format != "row_pattern")
        if distinct:
            table = cases.random_values(np.random.default_rng(0), distinct, stored)
            csr = csr.with_data(table[np.arange(csr.nnz) % distinct])
        matrix = store(format, csr, compute, values=values)
        x = cases.random_values(np.random.default_rng(1), num_rows, compute)
        for conjugate in {False, np.dtype(stored).kind == "c"}:
            exact = cases.exact_product(csr, x, conjugate)
            assert_row_by_row(csr, product(format, matrix, x, conjugate=conjugate), *exact)


@pytest.mark.parametrize("format", PATTERNS)
def test_row_patterns_store_any_rows(format: str, cases: Any, assert_row_by_row: Any) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths[:2000], num_cols, "float64", "int64")
        x = np.random.default_rng(1).standard_normal(num_cols)
        y = product(format, store(format, csr, "float64"), x)
        assert_row_by_row(csr, y, *cases.exact_product(csr, x))
        np.testing.assert_array_equal(y, product("csr_scalar", store("csr_scalar", csr, "float64"), x))


@pytest.mark.parametrize(
    ("format", "dtype"),
    [
        *((format, "float64") for format in FORMATS + PATTERNS),
        ("csr_vector", "int64"),
        ("blocked_ellpack+long", "complex128"),
        ("row_pattern", "complex128"),
    ],
)
def test_spmv_scales_and_accumulates(format: str, dtype: str, cases: Any, assert_row_by_row: Any) -> None:
    for name in ("mixed", "long_rows", "many_rows"):
        lengths, num_cols = cases.structures[name]
        csr = cases.make_csr(lengths[-300:], num_cols, dtype)
        x = cases.random_values(np.random.default_rng(1), csr.num_cols, dtype)
        start = cases.random_values(np.random.default_rng(2), csr.num_rows, dtype)
        exact, bound = cases.exact_product(csr, x)
        matrix = store(format, csr, dtype)
        for alpha, beta in ((3, -2), (1, 1), (0, 5), (-1, 0)):
            y = product(format, matrix, x, alpha, beta, start.copy())
            wide = exact.dtype.type
            expected = wide(alpha) * exact + wide(beta) * start.astype(exact.dtype)
            assert_row_by_row(csr, y, expected, abs(alpha) * bound + abs(beta) * np.abs(start))


@pytest.mark.parametrize("format", FORMATS + PATTERNS)
def test_spmv_writes_empty_rows_and_reads_y_only_for_beta(format: str, cases: Any) -> None:
    for lengths in ([0] * 50, [0] * 40 + [4000] + [0] * 9):
        csr = cases.make_csr(lengths, 4, "float64")
        matrix, x = store(format, csr, "float64"), np.zeros(4)
        np.testing.assert_array_equal(product(format, matrix, x), np.zeros(50))
        np.testing.assert_array_equal(product(format, matrix, x, 1, 2, np.full(50, 3.0)), np.full(50, 6.0))
        assert np.isnan(product(format, matrix, x, 1, 2, np.full(50, np.nan))).all()


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("format", FORMATS + PATTERNS)
def test_spmv_treats_inf_and_nan_as_scipy_does(format: str, special: float, cases: Any) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    for name in ("mixed", "one_dense_row", "many_rows", "all_empty"):
        csr = cases.make_csr(*cases.structures[name], "float64")
        x = np.random.default_rng(1).standard_normal(csr.num_cols)
        x[::97] = special  # also in x[0], which kernels read for padding
        expected = scipy_sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape) @ x
        y = product(format, store(format, csr, "float64"), x)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(y[~finite], expected[~finite])
        np.testing.assert_allclose(y[finite], expected[finite], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("columns", ["plain", "uint16"])
@pytest.mark.parametrize("format", ["ellpack", "blocked_ellpack", "blocked_ellpack+long"])
def test_padding_does_not_add_elements_of_x(format: str, columns: str, cases: Any) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], "float64")
    csr.indices[csr.indices == 0] = 1
    x = np.ones(csr.num_cols)
    x[0] = np.nan
    assert np.isfinite(product(format, store(format, csr, "float64", columns), x)).all()


@pytest.mark.parametrize("format", IN_ORDER + PATTERNS)
def test_rows_that_are_summed_in_order_have_the_same_bits_as_scipys(format: str, cases: Any) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    for name in ("mixed", "multiple_of_64", "one_column", "one_row"):
        csr = cases.make_csr(*cases.structures[name], "float64")
        x = np.random.default_rng(1).standard_normal(csr.num_cols)
        expected = scipy_sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape) @ x
        np.testing.assert_array_equal(product(format, store(format, csr, "float64"), x), expected)


@pytest.mark.parametrize("format", FORMATS + PATTERNS)
def test_spmv_keeps_subnormals(format: str, cases: Any) -> None:
    csr = cases.make_csr(*cases.structures["mixed"], "float64")
    tiny = np.finfo("float64").smallest_subnormal
    csr = csr.with_data((np.arange(csr.nnz) % 5 + 1) * tiny)
    exact, _ = cases.exact_product(csr, np.ones(csr.num_cols))
    y = product(format, store(format, csr, "float64"), np.ones(csr.num_cols))
    np.testing.assert_array_equal(y, exact.astype("float64"))


@pytest.mark.parametrize("format", FORMATS + PATTERNS)
def test_bits_do_not_depend_on_the_number_of_threads(format: str, cases: Any) -> None:
    if format in PATTERNS:
        csr = cases.make_stencil(200_000, [-400, -1, 0, 1, 400], "float64", varying=format != "row_pattern")
    else:
        lengths = np.random.default_rng(0).integers(0, 14, 120_000)
        lengths[[0, 70_000, 119_999]] = 200_000, 30_000, 2000
        lengths = np.minimum(lengths, 14) if format == "ellpack" else lengths
        csr = cases.make_csr(list(lengths), 5000, "float64")
    matrix, x = store(format, csr, "float64"), np.random.default_rng(1).standard_normal(csr.num_cols)
    results = []
    for num_threads in (1, 2, 16):
        threads.set_num_threads(num_threads)
        results.append(product(format, matrix, x).tobytes())
    assert results[0] == results[1] == results[2]


def test_products_of_one_matrix_in_many_threads_do_not_interfere(cases: Any) -> None:
    csr = cases.make_csr(*cases.structures["many_rows"], "float64")
    vectors = np.random.default_rng(1).standard_normal((40, csr.num_cols))
    for format in ("csr_vector", "blocked_ellpack+sorted+long"):
        matrix = store(format, csr, "float64")
        alone = [product(format, matrix, x) for x in vectors]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda x, format=format, matrix=matrix: product(format, matrix, x), vectors))
        np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("format", ["csr_scalar", "blocked_ellpack", "row_pattern"])
def test_spmv_accepts_read_only_arrays(format: str, cases: Any) -> None:
    csr = cases.make_stencil(100, [-1, 0, 1], "float64")
    x = np.ones(csr.num_cols)
    expected = product(format, store(format, csr, "float64"), x)
    frozen = Csr(csr.shape, *(array.copy() for array in (csr.indptr, csr.indices, csr.data)))
    for array in (frozen.indptr, frozen.indices, frozen.data, x):
        array.flags.writeable = False
    matrix = store(format, frozen, "float64")
    for part in dataclasses.fields(matrix):
        if isinstance(array := getattr(matrix, part.name), np.ndarray):
            array.flags.writeable = False
    np.testing.assert_array_equal(product(format, matrix, x), expected)
