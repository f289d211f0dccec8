"""Products with several dense columns, written as with SciPy, return SciPy's results for operands of every kind."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import gsparse
from gsparse import GpuSparseMatrix, spmm
from gsparse.device.base import Device
from gsparse.errors import DtypeError, ShapeError
from tests.seeds import num_examples
from tests.support import assert_product, exact_product, from_lengths, host, on_device, random_values

# Products as a user writes them, each with the matrix by which X is multiplied.
PRODUCTS: dict[str, tuple[Any, Any]] = {
    "A @ X": (lambda A, X: A @ X, lambda S: S),
    "A.dot(X)": (lambda A, X: A.dot(X), lambda S: S),
    "X @ A": (lambda A, X: (X.T @ A).T, lambda S: S.T),
    "A.T @ X": (lambda A, X: A.T @ X, lambda S: S.T),
    "A.H @ X": (lambda A, X: A.H @ X, lambda S: S.conj().T),
    "A.conj() @ X": (lambda A, X: A.conj() @ X, lambda S: S.conj()),
    "X @ A.T": (lambda A, X: (X.T @ A.T).T, lambda S: S),
    "rmatmat": (lambda A, X: A.rmatmat(X), lambda S: S.conj().T),
}
VIEWS: dict[str, tuple[Any, Any]] = {
    "A": (lambda A: A, lambda S: S),
    "A.T": (lambda A: A.T, lambda S: S.T),
    "A.H": (lambda A: A.H, lambda S: S.conj().T),
    "A.conj()": (lambda A: A.conj(), lambda S: S.conj()),
}
# Memory layouts of an array of a given shape: part of a larger array, in any order of axes, or reversed.
LAYOUTS: dict[str, Any] = {
    "row-major": np.empty,
    "column-major": lambda shape, dtype: np.empty(shape[::-1], dtype).T,
    "every other row": lambda shape, dtype: np.empty((2 * shape[0], shape[1]), dtype)[::2],
    "columns backwards": lambda shape, dtype: np.empty(shape, dtype)[:, ::-1],
    "some columns of column-major": lambda shape, dtype: np.empty((shape[1] + 2, shape[0]), dtype).T[:, 1:-1],
    "one of a pair": lambda shape, dtype: np.empty((*shape, 2), dtype)[..., 1],
}
STORED = ("bool", "int8", "uint16", "int64", "float32", "float64", "complex64", "complex128")
MULTIPLIED = (*STORED, "uint64", ">f8", ">i4")
COMPUTED = ("float32", "float64", "complex64", "complex128")

examples = settings(
    max_examples=num_examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
sizes = st.integers(0, 40)
seeds = st.integers(0, 2**32 - 1)
columns = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 32, 33, 65, 130])


def laid_out(layout: str, values: Any) -> Any:
    array = LAYOUTS[layout](values.shape, values.dtype)
    array[...] = values
    return array


def matrix_of(rng: np.random.Generator, rows: int, cols: int, dtype: str) -> Any:
    """Return a matrix with unsorted and repeated columns; sometimes one row is far longer than the others."""
    lengths = rng.integers(0, 7, rows) if cols else np.zeros(rows, int)
    if rows and cols and rng.random() < 0.3:
        lengths[rng.integers(rows)] = 300
    S = from_lengths(lengths, cols, rng)
    typed = sp.csr_array(S.shape, dtype=dtype)
    typed.indptr, typed.indices, typed.data = S.indptr, S.indices, random_values(rng, S.nnz, dtype)
    return typed


@examples
@given(sizes, sizes, columns, *map(st.sampled_from, (list(PRODUCTS), list(LAYOUTS), STORED, MULTIPLIED)), seeds)
def test_every_way_to_write_a_product_is_right(
    device: Device, m: int, n: int, k: int, product: str, layout: str, stored: str, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    write, view = PRODUCTS[product]
    S = matrix_of(rng, m, n, stored)
    X = laid_out(layout, random_values(rng, (view(S).shape[1], k), dtype))
    got = write(GpuSparseMatrix(S, device=device), X)
    assert_product(got, view(S), X, dtype=np.result_type(S.dtype, X.dtype).newbyteorder("="))


@examples
@given(
    sizes, sizes, columns, *map(st.sampled_from, (list(VIEWS), list(LAYOUTS), list(LAYOUTS), COMPUTED, COMPUTED)), seeds
)
@pytest.mark.whole
def test_scaled_products_are_added_to_an_array_of_any_layout(
    device: Device, m: int, n: int, k: int, view: str, x_as: str, y_as: str, stored: str, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    of_ours, of_scipys = VIEWS[view]
    S = matrix_of(rng, m, n, stored)
    V, result = of_scipys(S), np.result_type(stored, dtype)
    X, Y = (random_values(rng, (size, k), d) for size, d in zip(V.shape[::-1], (dtype, result), strict=True))
    alpha, beta = rng.integers(-3, 4, 2).tolist()  # exact in every dtype
    out = laid_out(y_as, Y)
    assert spmm(of_ours(GpuSparseMatrix(S, device=device)), laid_out(x_as, X), alpha, beta, out=out) is out
    exact, bound = exact_product(V, X)
    lengths = np.diff(V.tocsr().indptr).reshape(-1, 1) + 8
    allowed = 2 * lengths * np.finfo(result).eps * (abs(alpha) * bound + abs(beta) * abs(Y))
    assert np.all(abs(out - (alpha * exact + beta * Y.astype(exact.dtype))) <= allowed)


@examples
@given(sizes, columns, *map(st.sampled_from, (list(LAYOUTS), ("bool", "uint8", "int16", "int64", "uint64"))), seeds)
def test_integers_are_scaled_and_added_as_in_numpy(
    device: Device, n: int, k: int, layout: str, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    S = matrix_of(rng, n, n + 1, dtype)
    X, Y = (random_values(rng, (size, k), dtype) for size in S.shape[::-1])
    out = laid_out(layout, Y)
    spmm(GpuSparseMatrix(S, device=device), X, beta=1, out=out)
    np.testing.assert_array_equal(out, S @ X + Y)


@pytest.mark.parametrize("order", ["C", "F"])
def test_ten_thousand_columns_are_right(device: Device, order: Any, rng: np.random.Generator) -> None:
    S = matrix_of(rng, 31, 17, "float32")
    X = np.asarray(random_values(rng, (17, 10_000), "float32"), order=order)
    A = GpuSparseMatrix(S, device=device)
    assert_product(A @ X, S, X)
    Z = np.asarray(random_values(rng, (31, 10_000), "float32"), order=order)
    assert_product(A.T @ Z, S.T, Z)


@pytest.mark.parametrize("shape", [(0, 0), (0, 7), (7, 0), (7, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "complex64"])
@pytest.mark.whole
def test_empty_products_have_the_shape_and_dtype_of_scipy(device: Device, shape: tuple[int, int], dtype: str) -> None:
    S = sp.csr_array(shape, dtype=np.float32)
    A = GpuSparseMatrix(S, device=device)
    for k in (0, 1, 3):
        X, Z = np.ones((shape[1], k), dtype), np.ones((k, shape[0]), dtype)
        for got, expected in ((A @ X, S @ X), (Z @ A, Z @ S), (A.T @ Z.T, S.T @ Z.T)):
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_array_equal(got, expected)
        out = np.full((shape[0], k), np.nan, np.float32)
        assert not np.any(spmm(A, np.ones((shape[1], k), np.float32), out=out))  # an empty sum is 0


def test_a_column_major_x_on_the_cpu_needs_the_memory_of_a_few_more_vectors(rng: np.random.Generator) -> None:
    S = from_lengths(np.full(3000, 5), 3000, rng)
    A, X, out = (
        GpuSparseMatrix(S, device="cpu"),
        laid_out("column-major", rng.random((3000, 128))),
        np.empty((3000, 128)),
    )
    spmm(A, X, out=out)
    tracemalloc.start()
    spmm(A, X, out=out)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < X.nbytes / 10
    assert_product(out, S, X)


def test_device_columns_stay_on_the_device_in_any_layout(device: Device, rng: np.random.Generator) -> None:
    S = matrix_of(rng, 40, 30, "float64")
    A = GpuSparseMatrix(S, device=device)
    for layout in LAYOUTS:
        X = laid_out(layout, random_values(rng, (30, 6), float))
        device_x = on_device(device, X)
        got = A @ device_x
        assert device.owns(got)
        assert_product(host(got), S, X)
        out = device.xp.full((40, 6), np.nan)
        assert spmm(A, device_x, out=out) is out
        assert_product(host(out), S, X)
        assert_product(host(on_device(device, np.ascontiguousarray(X.T)) @ A.T).T, S, X)


# ------------------------------------------------------------------------------------------------ what is refused

BOTH = np.ones((12, 9))
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "X @ A, rows and columns exchanged": (
        lambda A: np.ones((6, 2)) @ A,
        ShapeError,
        r"X @ A with A of shape \(6, 4\) takes X of shape \(6,\) or \(k, 6\), got \(6, 2\)",
    ),
    "X @ A of three dimensions": (lambda A: np.ones((2, 2, 6)) @ A, ShapeError, r"got \(2, 2, 6\)"),
    "spmm of a sparse X": (
        lambda A: spmm(A, sp.eye_array(4)),
        TypeError,
        r"x must be dense, got a sparse .*: use A @ x, or x\.toarray\(\)",
    ),
    "out within X": (lambda A: spmm(A[:4], BOTH[:4, :4], out=BOTH[:4, 2:6]), ValueError, "x and out overlap"),
    "columns of out that are one": (
        lambda A: spmm(A, np.ones((4, 3)), out=as_strided(np.zeros((6, 1)), (6, 3), (8, 0))),
        ValueError,
        r"elements of out share memory, got strides \(8, 0\): pass an array with separate elements",
    ),
    "columns of out that overlap": (
        lambda A: spmm(A, np.ones((4, 3)), out=as_strided(np.zeros(8), (6, 3), (8, 8))),
        ValueError,
        "elements of out share memory",
    ),
    "out is X": (lambda A: spmm(A[:4], BOTH[:4], out=BOTH[:4]), ValueError, "x and out overlap"),
    "out of one column": (lambda A: spmm(A, np.ones((4, 2)), out=np.ones(6)), ShapeError, r"\(6, 2\), got \(6,\)"),
    "out transposed": (lambda A: spmm(A, np.ones((4, 2)), out=np.ones((2, 6))), ShapeError, r"\(6, 2\), got \(2, 6\)"),
    "out too narrow": (lambda A: spmm(A, np.ones((4, 2), complex), out=np.ones((6, 2))), DtypeError, "complex128"),
    "out of another byte order": (
        lambda A: spmm(A, np.ones((4, 2)), out=np.ones((6, 2), ">f8")),
        DtypeError,
        "dtype float64, got >f8",
    ),
    "beta without out": (lambda A: spmm(A, np.ones((4, 2)), beta=1), ShapeError, "pass out="),
    "A of SciPy": (lambda A: spmm(sp.eye_array(4), np.ones((4, 2))), TypeError, r"use GpuSparseMatrix\(A\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_operands_that_cannot_be_multiplied_are_refused_with_the_remedy(device: Device, case: str) -> None:
    call, error, words = REFUSED[case]
    A = GpuSparseMatrix(np.arange(24.0).reshape(6, 4), device=device)
    with pytest.raises(error, match=words):
        call(A)
    np.testing.assert_array_equal(BOTH, np.ones((12, 9)))
    np.testing.assert_array_equal(gsparse.spmm(A, np.eye(4)), np.arange(24.0).reshape(6, 4))


@pytest.mark.parametrize(
    "layout",
    [
        lambda: np.empty((12, 9))[::2, ::3],
        lambda: np.empty((9, 12)).T[::2, ::3],
        lambda: np.empty((12, 9))[::-2, ::-3],
        lambda: np.empty((6, 3), order="F"),
        lambda: np.empty((6, 1, 3)).transpose(0, 2, 1)[:, :, 0],
    ],
)
def test_out_may_be_any_slice_of_an_array(layout: Any) -> None:
    A, X, out = GpuSparseMatrix(np.arange(24.0).reshape(6, 4), device="cpu"), np.arange(12.0).reshape(4, 3), layout()
    assert spmm(A, X, out=out) is out
    np.testing.assert_array_equal(out, np.arange(24.0).reshape(6, 4) @ X)


def test_interleaved_columns_do_not_overlap(device: Device) -> None:
    S = matrix_of(np.random.default_rng(3), 50, 50, "float64")
    A = GpuSparseMatrix(S, device=device)
    both = np.random.default_rng(4).standard_normal((50, 24))
    X = both[:, :24:3].copy()
    assert_product(spmm(A, both[:, ::3], out=both[:, 1::3]), S, X)
    np.testing.assert_array_equal(both[:, ::3], X)
