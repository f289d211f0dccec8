"""`M.update(A)`: preconditioners of other values equal new ones, and keep what depends on the structure alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DtypeError, FactorizationError, StructureError
from gsparse.linalg import chebyshev_polynomial, gauss_seidel, ic0, ilu0, isai, jacobi
from tests.linalg.problems import convection, laplacian, matrix, right_hand_side
from tests.linalg.test_preconditioners import FOR_ANY, FOR_CG
from tests.support import host

MAKERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    **{f"{name}, for cg": (make, True) for name, make in FOR_CG.items()},
    **{name: (make, False) for name, make in FOR_ANY.items()},
    "chebyshev_polynomial, bounds": (lambda A: chebyshev_polynomial(A, 3, (0.1, 2.0)), True),
    "isai, power 2": (lambda A: isai(A, 2), True),
    "ic0, shift": (lambda A: ic0(A, shift=0.01), True),
    "ilu0, blocks by levels": (lambda A: ilu0(A, block_size=3, solve="levels"), False),
    "gauss_seidel, natural": (lambda A: gauss_seidel(A, ordering="natural"), False),
}


def other_values(S: Any, rng: np.random.Generator, *, hermitian: bool) -> Any:
    """Return a matrix of the same structure with other values, with D·S·D if it is to be Hermitian."""
    T = sp.csr_array(S, copy=True)
    d = rng.uniform(1, 2, S.shape[0])
    rows, columns = S.tocoo().coords
    T.data = (T.data * d[columns] * (d if hermitian else rng.uniform(1, 1.1, S.shape[0]))[rows]).astype(S.dtype)
    return T


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_an_updated_preconditioner_equals_a_new_one_to_the_bit(device: Device, dtype: str, name: str, rng: Any) -> None:
    make, hermitian = MAKERS[name]
    S = sp.csr_array(laplacian(7, dtype) + sp.eye_array(49)).astype(dtype) if hermitian else convection(7, dtype)
    A, b = matrix(device, S), right_hand_side(S)
    M = make(A)
    before = [host(product(b)) for product in (M.matvec, M.rmatvec)]
    for _ in range(2):
        data = other_values(S, rng, hermitian=hermitian).data
        B = A.with_data(device.upload(data))
        assert M.update(B) is M
        new = make(A.with_data(device.upload(data)))
        for product in ("matvec", "rmatvec"):
            for vector in (b, np.stack([b, 2 * b], axis=1)):
                np.testing.assert_array_equal(*(host(getattr(m, product)(vector)) for m in (M, new)))
        assert repr(M) == repr(new)
    M.update(A)
    for product, expected in zip((M.matvec, M.rmatvec), before, strict=True):
        np.testing.assert_array_equal(host(product(b)), expected)


@pytest.mark.parametrize("name", ["ilu0", "ic0"])
def test_factors_of_a_matrix_without_a_stored_diagonal_are_updated(device: Device, name: str) -> None:
    T = sp.csr_array(laplacian(5).tolil())
    T[7, 7] = 0
    T.eliminate_zeros()
    A, b = matrix(device, T), right_hand_side(T)
    make = {"ilu0": ilu0, "ic0": lambda A: ic0(A, shift=3.0)}[name]  # without a shift, a pivot of ic0 is negative
    M = make(A)
    B = A.with_data(A.device_data * 3)
    np.testing.assert_array_equal(host(M.update(B) @ b), host(make(B) @ b))
    np.testing.assert_allclose(host(M @ b), host(make(A) @ b) / 3, rtol=1e-12)


@pytest.mark.parametrize("name", ["jacobi", "gauss_seidel", "isai", "ic0, levels", "chebyshev_polynomial"])
def test_a_matrix_of_another_structure_or_dtype_is_refused(name: str) -> None:
    M, b = FOR_CG[name](matrix(None, laplacian(5))), right_hand_side(laplacian(5))
    before = M @ b
    function = name.partition(",")[0]
    with pytest.raises(StructureError, match=rf"update needs the structure of the set-up.*use {function}\(A\)"):
        M.update(matrix(None, laplacian(6)))
    moved = laplacian(5).tolil()
    moved[0, 3], moved[0, 1] = 1, 0
    with pytest.raises(StructureError, match="update needs the structure"):
        M.update(matrix(None, sp.csr_array(moved)))
    with pytest.raises(DtypeError, match="update needs a matrix of float64, got float32"):
        M.update(matrix(None, laplacian(5).astype(np.float32)))
    np.testing.assert_array_equal(M @ b, before)


@pytest.mark.parametrize("name", ["jacobi", "block_jacobi", "ic0, levels", "ic0, blocks", "gauss_seidel"])
def test_a_failed_update_leaves_the_preconditioner_as_it_was(device: Device, name: str) -> None:
    S = laplacian(5)
    A, b = matrix(device, S), right_hand_side(S)
    M = FOR_CG[name](A)
    before = host(M @ b)
    for data in (np.zeros(S.nnz), np.full(S.nnz, np.nan)):
        with pytest.raises(FactorizationError):
            M.update(A.with_data(device.upload(data)))
    np.testing.assert_array_equal(host(M @ b), before)


def test_ic0_refuses_values_that_are_not_symmetric() -> None:
    A = matrix(None, laplacian(5))
    M = ic0(A)
    with pytest.raises(FactorizationError, match="needs a symmetric"):
        M.update(A.with_data(np.arange(1.0, 1 + A.nnz)))


@pytest.mark.parametrize("name", ["ilu0", "ic0", "ilu0, blocks"])
def test_an_update_computes_no_levels_and_finds_no_entries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.conftest import make_device

    device = make_device("emulated:32")
    S = laplacian(6)
    A = matrix(device, S)
    M = {"ilu0": ilu0, "ic0": ic0, "ilu0, blocks": lambda A: ilu0(A, block_size=2)}[name](A)
    for kernel in ("triangular.triangular_levels", "edits.find_entries", "transpose.csr_transpose"):
        monkeypatch.setattr(f"gsparse.kernels.gpu.{kernel}", None)
    for kernel in ("triangle", "keep_entries"):
        monkeypatch.setattr(f"gsparse.kernels.gpu.sparse_rows.{kernel}", None)
    M.update(A.with_data(2 * A.device_data))


@pytest.mark.few(2)
def test_levels_found_on_the_device_are_those_found_row_by_row(device: Device, rng: Any) -> None:
    from gsparse.kernels.backends import kernels_of

    chain = sp.diags_array([np.ones(299)], offsets=[-1], shape=(300, 300))
    problems = [
        chain,
        sp.tril(sp.random_array((200, 200), density=0.05, rng=rng), -1),
        sp.tril(laplacian(15), -1),
        sp.csr_array((5, 5)),
        sp.csr_array((0, 0)),
    ]
    for N in map(sp.csr_array, problems):
        for T, upper in ((N, False), (sp.csr_array(N.T), True)):
            T.sort_indices()
            with device.active():
                csr = matrix(device, T)._prepared()[0].csr
                levels = kernels_of(device).triangular.triangular_levels(device, csr, upper)
            expected = np.zeros(T.shape[0], int)
            for row in range(T.shape[0])[:: -1 if upper else 1]:
                columns = T.indices[T.indptr[row] : T.indptr[row + 1]]
                expected[row] = 1 + expected[columns].max(initial=-1)
            np.testing.assert_array_equal(host(levels.order), np.argsort(expected, kind="stable"))
            np.testing.assert_array_equal(levels.bounds, np.r_[0, np.cumsum(np.bincount(expected))])
            assert host(levels.order).dtype == np.int32


def test_an_update_of_a_hermitian_declaration_is_accepted() -> None:
    A = GpuSparseMatrix(laplacian(5), device="cpu", symmetric=True)
    M, b = jacobi(A), right_hand_side(laplacian(5))
    np.testing.assert_allclose(M.update(2 * A) @ b, b / 8)
