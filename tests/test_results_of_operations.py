"""Matrices that operations return: cheap until they have been multiplied often."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse.linalg
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.kernels.backends import kernels_of
from gsparse.products.transposing import MAX_BY_COLUMNS
from tests.support import assert_product, host, on_device


@pytest.fixture
def S() -> sp.csr_array:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(150, 150))
    return sp.csr_array(sp.kronsum(line, line))


def sum_of(S: sp.csr_array, device: Device | str = "cpu") -> GpuSparseMatrix:
    return GpuSparseMatrix(S, device=device) + GpuSparseMatrix(sp.eye_array(S.shape[0]), device=device)


def test_a_result_gets_a_better_format_when_it_has_been_multiplied_often(S: sp.csr_array) -> None:
    A, want = sum_of(S), GpuSparseMatrix(S + sp.eye_array(S.shape[0]), device="cpu").plan.format
    x = np.random.default_rng(0).standard_normal(S.shape[0])
    first = A.plan
    assert first.format.startswith("csr_")
    assert first.format != want
    assert "result of an operation" in first.reason
    products = [A @ x for _ in range(60)]
    assert A.plan.format == want
    assert "result of an operation" not in A.plan.reason
    for product in products:
        assert_product(product, sp.csr_array(S + sp.eye_array(S.shape[0])), x)


def test_first_products_of_a_transposed_copy_do_not_examine_its_rows(
    device: Device, S: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = sp.csr_array(sp.hstack([sp.eye_array(2000), np.ones((2000, 1))]))  # The last row of its transpose is long.
    S.data = np.random.default_rng(3).standard_normal(S.nnz)
    copies = [(T, GpuSparseMatrix(T, device=device).T.tocsr()) for T in (S, arrow)]
    monkeypatch.setattr(kernels_of(device).layout, "survey", None)
    for T, copy in copies:
        x = np.random.default_rng(2).standard_normal(T.shape[0])
        assert_product(copy @ x, sp.csr_array(T.T), x)


def test_a_solver_asks_for_the_better_format_at_once(device: Device, S: sp.csr_array) -> None:
    small = sp.csr_array(S[:300, :300])
    A, b = sum_of(small, device), on_device(device, np.ones(300))
    A @ b
    assert A._prepared(transpose=False)[0].is_new
    _, info = gsparse.linalg.cg(A, b, rtol=1e-10)
    assert info == 0
    assert not A._prepared(transpose=False)[0].is_new


@pytest.mark.parametrize(
    "derive", [lambda A: A.T, lambda A: A * 2.0, abs, lambda A: A.copy()], ids=["T", "2A", "abs", "copy"]
)
def test_matrices_derived_from_a_result_are_cheap_too(derive, S: sp.csr_array) -> None:
    U = sp.csr_array(sp.triu(S))
    A, x = derive(sum_of(U)), np.random.default_rng(1).standard_normal(S.shape[0])
    assert "result of an operation" in A.plan.reason
    want = sp.csr_array(derive(sp.csr_array(U + sp.eye_array(S.shape[0]))))
    for _ in range(60):
        assert_product(A @ x, want, x)
    assert "result of an operation" not in A.plan.reason


def test_the_first_product_of_a_result_does_not_look_at_its_rows(
    device: Device, S: sp.csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = sp.csr_array(S[:300, :300])
    A, x = GpuSparseMatrix(small, device=device), on_device(device, np.ones(300))
    monkeypatch.setattr(kernels_of(device).layout, "survey", None)
    for operation in (abs, lambda A: A * 2.0, lambda A: A[10:200], lambda A: A + A, lambda A: A.multiply(A)):
        assert_product(host(operation(A) @ x), sp.csr_array(operation(small)), np.ones(300))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128], ids=str)
@pytest.mark.parametrize("columns", [(), (1,), (3,), (11,)], ids=str)
def test_first_products_with_the_transpose_read_the_matrix_by_columns(columns, dtype) -> None:
    rng = np.random.default_rng(2)
    S = sp.random_array((400, 60), density=0.1, rng=rng, format="csr").astype(dtype)
    S.data += dtype(1j) if dtype is np.complex128 else 0
    A = GpuSparseMatrix(S, device="cpu")
    for turn in range(MAX_BY_COLUMNS + 2):
        X = np.asarray(rng.standard_normal((400, *columns)), order="F" if turn % 2 else "C").astype(dtype)
        assert (A._prepared()[0]._transposed is None) == (turn <= MAX_BY_COLUMNS)
        assert_product(A.H @ X, sp.csr_array(S.conj().T), X)


@pytest.mark.parametrize("options", [{"format": "csr_vector"}, {"expected_products": 5}], ids=str)
def test_results_inherit_options_that_leave_no_choice(options, S: sp.csr_array) -> None:
    A = GpuSparseMatrix(S, device="cpu", **options)
    assert "result of an operation" not in (A + A).plan.reason


def multiply(A: GpuSparseMatrix) -> None:
    A @ np.ones(A.shape[0])


def multiply_transposed(A: GpuSparseMatrix) -> None:
    A.T @ np.ones(A.shape[0])


@pytest.mark.parametrize("use", [multiply, multiply_transposed])
@pytest.mark.parametrize(
    "make",
    [
        sum_of,
        lambda S: GpuSparseMatrix(S, device="cpu"),  # which turns out to be symmetric
        lambda S: GpuSparseMatrix(S, device="cpu", symmetric=True),
        lambda S: GpuSparseMatrix(S, device="cpu", tune="lazy"),
    ],
    ids=["result", "symmetric", "declared symmetric", "lazily tuned"],
)
def test_a_matrix_is_freed_with_its_last_reference(S: sp.csr_array, make, use) -> None:
    A = make(S)
    use(A)
    gc.collect()
    gc.disable()
    try:
        prepared = weakref.ref(A._prepared(transpose=False)[0])
        del A
        assert prepared() is None
    finally:
        gc.enable()
