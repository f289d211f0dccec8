"""Products of two sparse matrices: made again for other values, and made in parts if memory does not suffice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DtypeError, ShapeError, StructureError
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.arithmetic import product, product_in_parts
from gsparse.sparse.canonical import canonical
from tests.support import STRUCTURES, from_lengths, host
from tests.test_sparse_algebra import assert_same, on, whole_numbers


def two(rng: np.random.Generator, longest: int = 9) -> tuple[sp.csr_array, sp.csr_array]:
    A, B = from_lengths(rng.integers(0, longest, 60), 45, rng), from_lengths(rng.integers(0, longest, 45), 80, rng)
    for S in (A, B):
        S.sum_duplicates()
    return A, B


@pytest.mark.parametrize("longest", [4, 9, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, np.int32])
def test_a_product_is_made_again_for_other_values(
    device: Device, longest: int, dtype: Any, rng: np.random.Generator
) -> None:
    S, T = two(rng, longest)
    A, B = (GpuSparseMatrix(whole_numbers(part, rng, dtype), device=device) for part in (S, T))
    with gsparse.strict():
        known = gsparse.sparse.MatrixProduct(A, B)
        structure = known.result.device_indices
        assert_is_product(known.result, A, B)
        for _ in range(2):
            A, B = (M.with_data(whole_numbers(part, rng, dtype).data) for M, part in ((A, S), (B, T)))
            again = known.update(A, B)
            assert again is known.result
            assert again.device_indices is structure
            assert_is_product(again, A, B)
            assert again.dtype == dtype
    assert known.nbytes >= again.nnz * (4 + np.dtype(dtype).itemsize)


def assert_is_product(C: GpuSparseMatrix, A: GpuSparseMatrix, B: GpuSparseMatrix) -> None:
    """Check that C is A @ B to the last bit, for matrices of whole numbers."""
    with_values = (sp.csr_array((host(M.device_data), host(M.device_indices), host(M.device_indptr)), shape=M.shape)
                   for M in (A, B, C))  # fmt: skip
    a, b, c = with_values
    np.testing.assert_array_equal(c.toarray(), a.toarray() @ b.toarray())


def test_what_a_user_does_to_a_result_does_not_change_the_next_one(device: Device, rng: np.random.Generator) -> None:
    S, T = two(rng)
    A, B = (GpuSparseMatrix(whole_numbers(part, rng, float), device=device) for part in (S, T))
    known = gsparse.sparse.MatrixProduct(A, B)
    for _ in range(2):
        with pytest.warns(sp.SparseEfficiencyWarning):
            known.result[0, :] = 7.0  # new entries
        known.result.data[::2] = 0
        known.result.eliminate_zeros()
        A, B = (M.with_data(whole_numbers(part, rng, float).data) for M, part in ((A, S), (B, T)))
        assert_is_product(known.update(A, B), A, B)


def test_entries_stay_where_products_add_up_to_0(device: Device) -> None:
    A = GpuSparseMatrix(sp.csr_array([[1.0, -1.0]]), device=device)
    B = GpuSparseMatrix(sp.csr_array([[1.0], [1.0]]), device=device)
    known = gsparse.sparse.MatrixProduct(A, B)
    assert known.result.nnz == 1
    assert (A @ B).nnz == 0
    assert known.update(A.with_data([2.0, 3.0]), B).toarray() == [[5.0]]


def test_views_scipys_matrices_and_unsorted_rows_are_operands(device: Device, rng: np.random.Generator) -> None:
    S, T = two(rng)
    T.data[:] = 1
    U = T.copy()
    for begin, end in zip(U.indptr[:-1], U.indptr[1:], strict=True):
        U.indices[begin:end] = U.indices[begin:end][::-1]
    A = GpuSparseMatrix(sp.csr_array(S.T), device=device).T
    known = gsparse.sparse.MatrixProduct(A, sp.csr_array((U.data, U.indices, U.indptr), shape=U.shape))
    np.testing.assert_allclose(known.result.toarray(), (S @ T).toarray(), rtol=1e-13, atol=1e-13)
    assert known.result.format == "csr"
    np.testing.assert_allclose(known.update(2 * A, T).toarray(), 2 * (S @ T).toarray(), rtol=1e-13, atol=1e-13)


def test_other_structures_and_what_cannot_be_multiplied_are_refused(device: Device, rng: np.random.Generator) -> None:
    S, T = two(rng)
    A, B = (GpuSparseMatrix(part, device=device) for part in (S, T))
    known = gsparse.sparse.MatrixProduct(A, B)
    with pytest.raises(ShapeError, match="cannot be multiplied"):
        gsparse.sparse.MatrixProduct(B, B)
    with pytest.raises(DtypeError, match="astype"):
        gsparse.sparse.MatrixProduct(A, T.astype(np.longdouble))
    with pytest.raises(TypeError, match="GpuSparseMatrix"):
        gsparse.sparse.MatrixProduct(S, B)
    moved = S.copy()
    moved.indices = (moved.indices + 1) % S.shape[1]
    for other in (moved, S[:, ::-1], sp.csr_array(S.shape)):
        with pytest.raises(StructureError, match="A has another structure"):
            known.update(other, B)
    with pytest.raises(StructureError, match="B has another structure"):
        known.update(A, sp.csr_array(T.shape))


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.few(8)
def test_a_product_in_parts_is_the_product(device: Device, name: str, rng: np.random.Generator) -> None:
    S = whole_numbers(STRUCTURES[name](rng), rng)
    T = whole_numbers(from_lengths(rng.integers(0, 9, S.shape[1]), 70, rng), rng)
    a, b = on(device, S), canonical(device, on(device, T))
    assert_same(product_in_parts(device, a, b), S @ T)


def test_a_product_is_made_in_parts_if_memory_does_not_suffice(
    device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    S, T = (whole_numbers(part, rng) for part in two(rng))
    kernels, rows = kernels_of(device), list[int]()
    spgemm = kernels.sparse_products.spgemm

    def fails_for_many_rows(home: Device, a: Any, b: Any) -> Any:
        rows.append(a.num_rows)
        if a.num_rows > 5:
            raise MemoryError
        return spgemm(home, a, b)

    monkeypatch.setattr(kernels.sparse_products, "spgemm", fails_for_many_rows)
    assert_same(product(device, on(device, S), on(device, T)), S @ T)
    assert rows[0] == 60
    assert max(rows[-12:]) <= 5
    monkeypatch.setattr(kernels.sparse_products, "spgemm", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        product(device, on(device, S), on(device, T))


def test_an_update_with_complex_values_is_refused_if_the_first_product_was_real(device: Device) -> None:
    S = sp.eye_array(4, format="csr")
    A = GpuSparseMatrix(S, device=device)
    product = gsparse.sparse.MatrixProduct(A, A)
    with pytest.raises(DtypeError, match="cannot become complex128: make a new MatrixProduct"):
        product.update(A, A.with_data(np.full(4, 1j)))
    assert product.update(A.with_data(np.full(4, 3, np.float32)), A).diagonal().tolist() == [3.0] * 4
