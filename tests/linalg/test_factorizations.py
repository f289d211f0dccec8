"""Factorizations: the same solutions, figures and errors, whichever library has computed the factors."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la
from hypothesis import given, settings
from hypothesis import strategies as st

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import (
    DeviceMemoryError,
    DtypeError,
    FactorizationError,
    ShapeError,
    SingularMatrixError,
    StructureError,
)
from gsparse.linalg import bicgstab, cg, cholesky, factorized, splu, spsolve
from gsparse.linalg.direct import factorization, host_factors
from gsparse.linalg.direct.factors import find_kind
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from tests.conftest import make_device
from tests.linalg.problems import convection, indefinite, laplacian, matrix, right_hand_side
from tests.seeds import num_examples
from tests.support import DTYPES, host, on_device, random_values

# Rounding errors of a solve with factors, in units of eps·(|A|·|x| + |b|), where pivots hardly grow.
GROWTH = 400


def symmetric(n: int, dtype: Any = complex) -> sp.csr_array:
    """Return a complex symmetric matrix, which is not Hermitian."""
    return sp.csr_array(laplacian(n) + (0.3 - 0.4j) * sp.eye_array(n * n), dtype=dtype)


EXCHANGED = sp.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
PROBLEMS = {"dominant": laplacian, "hermitian": indefinite, "general": convection}


def transposed(S: Any, trans: str) -> Any:
    return {"N": S, "T": S.T, "H": S.conj().T}[trans]


def assert_solution(S: Any, x: Any, b: Any, dtype: Any = None) -> None:
    """Check that |b - S·x| is within rounding errors, row by row."""
    wide = np.clongdouble if np.result_type(S.dtype, x.dtype).kind == "c" else np.longdouble
    A, x = S.toarray().astype(wide), np.asarray(x).astype(wide)
    error, scale = abs(b - A @ x), abs(A) @ abs(x) + abs(b)
    assert (error <= GROWTH * np.finfo(dtype or S.dtype).eps * scale).all(), (error / np.maximum(scale, 1e-300)).max()


# ------------------------------------------------------------------------------------------------------- solutions


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("columns", [None, 1, 3, 40])
def test_solves_equal_the_inverse_of_the_matrix_and_of_its_transposes(
    device: Device, problem: str, dtype: Any, columns: int | None
) -> None:
    S = PROBLEMS[problem](7, dtype)
    factors = factorized(matrix(device, S))
    for trans in "NTH":
        b = right_hand_side(S, columns)
        before = b.copy()
        x = factors.solve(b, trans)
        assert (type(x), x.dtype, x.shape) == (np.ndarray, b.dtype, b.shape)
        assert_solution(transposed(S, trans), x, b)
        np.testing.assert_array_equal(b, before)


def test_a_solution_is_where_the_right_hand_side_is(device: Device) -> None:
    S = convection(6)
    factors, b = factorized(matrix(device, S)), right_hand_side(S, 10)
    for right in (b, on_device(device, b), np.asfortranarray(b), b[:, ::2], b.tolist()):
        x = factors(right)
        assert type(x) is type(np.zeros(0) if isinstance(right, list) else right)
        assert_solution(S, host(x), np.asarray(host(right)))


@pytest.mark.parametrize("columns", [None, 2, 9])
@pytest.mark.parametrize(
    ("stored", "right", "factored"),
    [("float64", "complex128", "float64"), ("float32", "float64", "float32"), ("int8", "int64", "float64")],
)
def test_a_solution_has_the_dtype_of_both(
    device: Device, stored: str, right: str, factored: str, columns: int | None
) -> None:
    S = (2 * convection(6)).astype(stored)
    b = (4 * right_hand_side(S.astype(np.result_type(right, np.float64)), columns)).astype(right)
    factors = factorized(matrix(device, S))
    x = factors.solve(b)
    assert (factors.dtype, x.dtype) == (factored, np.result_type(factored, right))
    assert_solution(S, x, b, dtype=factored)


@given(st.integers(0, 40), st.integers(0, 2**32), st.sampled_from(["d", "D"]), st.integers(0, 11))
@settings(max_examples=num_examples(40), deadline=None)
def test_random_structures_with_int64_unsorted_and_repeated_entries_are_solved(
    n: int, seed: int, dtype: str, columns: int
) -> None:
    rng = np.random.default_rng(seed)
    nnz = int(rng.integers(0, 4 * n + 1))
    places = rng.integers(0, max(n, 1), (2, nnz))
    values = random_values(rng, nnz, dtype)
    if n:
        places = np.concatenate([places, np.tile(np.arange(n), (2, 1)), [[n // 2] * n, np.arange(n)]], axis=1)
        values = np.concatenate([values, np.full(n, 60), rng.standard_normal(n)])
    coo = sp.coo_array((values, places.astype(np.int64)), shape=(n, n))
    order = np.argsort(coo.coords[0], kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(coo.coords[0], minlength=n))]).astype(np.int64)
    raw = sp.csr_array((coo.data[order], coo.coords[1][order].astype(np.int64), indptr), shape=(n, n))
    A, b = GpuSparseMatrix(raw.copy(), device="cpu"), random_values(rng, (n, columns), dtype)
    assert_solution(raw, factorized(A).solve(b), b)


def test_no_rows_and_no_columns(device: Device) -> None:
    empty = factorized(matrix(device, sp.csr_array((0, 0))))
    assert empty.solve(np.zeros(0)).shape == (0,)
    assert empty.solve(np.zeros((0, 4))).shape == (0, 4)
    assert (empty.nnz, empty.logdet(), empty.inertia()) == (0, 0.0, (0, 0))
    empty.update(matrix(device, sp.csr_array((0, 0))))
    S = laplacian(3)
    assert factorized(matrix(device, S)).solve(np.zeros((9, 0))).shape == (9, 0)


def test_views_are_factorized_as_what_they_show(real_device: Device) -> None:
    S = convection(5, complex)
    A, b = matrix(real_device, S), right_hand_side(S)
    assert_solution(S.T, factorized(A.T).solve(b), b)
    assert_solution(S.conj(), factorized(A.conj()).solve(b), b)
    assert_solution(S.conj().T, factorized(A.H).solve(b), b)
    assert_solution(S, factorized(S).solve(b), b)  # SciPy's matrix


def test_the_same_input_gives_the_same_bits(device: Device) -> None:
    S = convection(7)
    b = right_hand_side(S, 12)
    first, second = (factorized(matrix(device, S), deterministic=True).solve(b) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_many_right_hand_sides_are_solved_on_the_gpu(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    S = convection(6)
    factors, b = factorized(matrix(device, S), library="superlu"), right_hand_side(S, host_factors.MIN_COLUMNS)
    x = factors.solve(b)

    class NoSolve:
        perm_r = perm_c = L = U = nnz = None

        def solve(self, *args: Any) -> Any:
            raise AssertionError("solved on the host")

    monkeypatch.setattr(factors._factors, "superlu", NoSolve())
    if device.is_host:
        with pytest.raises(AssertionError, match="solved on the host"):
            factors.solve(b)
        return
    np.testing.assert_array_equal(factors.solve(b), x)
    with pytest.raises(AssertionError, match="solved on the host"):
        factors.solve(b[:, 1:])


@pytest.mark.parametrize("function", ["__init__", "solve"])
def test_factors_that_do_not_fit_on_the_gpu_are_used_on_the_host(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    device, S = make_device("emulated:32"), convection(6)
    A, calls = matrix(device, S), []
    factors, b = factorized(A, library="superlu"), right_hand_side(S, 20)

    def no_memory(*args: Any) -> None:
        calls.append(args)
        raise DeviceMemoryError("too little memory")

    with monkeypatch.context() as patch:
        patch.setattr(host_factors.LevelSolves, function, no_memory)
        for _ in range(2):
            assert_solution(S, factors.solve(b), b)
    assert_solution(S, factors.solve(b), b)
    assert len(calls) == 1  # the GPU is tried again after an update
    assert factors._factors._on_device is None
    factors.update(A)
    assert_solution(S, factors.solve(b), b)
    assert factors._factors._on_device is not None


# ---------------------------------------------------------------------------------------------------------- update


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_update_solves_with_the_new_values(device: Device, problem: str, dtype: Any) -> None:
    S = PROBLEMS[problem](6, dtype)
    A = matrix(device, S)
    factors = factorized(A)
    for round_number in range(1, 3):
        scaled = sp.csr_array(S + round_number * sp.diags_array(np.arange(36) + 0.5), dtype=dtype)
        factors.update(A.with_data(scaled.data))
        for columns in (None, 9):
            for trans in "NTH":
                b = right_hand_side(S, columns)
                assert_solution(transposed(scaled, trans), factors.solve(b, trans), b)
        expected = np.linalg.slogdet(scaled.toarray())[1]
        assert factors.logdet() == pytest.approx(expected, rel=1e-4 if np.dtype(dtype).char in "fF" else 1e-12)


def test_an_update_keeps_the_order_of_elimination(real_device: Device) -> None:
    S = sp.csr_array(laplacian(25))
    A = matrix(real_device, S)
    for make in (factorized, splu):
        factors = make(A, library="superlu")
        nnz, order = factors.nnz, factors.perm_c
        factors.update(A.with_data(S.data * 3))
        assert factors.nnz <= 1.02 * nnz
        assert np.corrcoef(order, factors.perm_c)[0, 1] > 0.99


def test_an_update_with_values_of_another_kind_gives_factors_of_that_kind(real_device: Device) -> None:
    S = laplacian(6)
    A = matrix(real_device, S)
    factors = factorized(A)
    assert factors.kind == "positive definite"
    rng = np.random.default_rng(3)
    other = sp.csr_array((S.data + 0.5 * rng.random(S.nnz), S.indices, S.indptr), shape=S.shape)
    factors.update(A.with_data(other.data))
    assert factors.kind == "general"
    b = right_hand_side(S)
    assert_solution(other, factors.solve(b), b)
    factors.update(A)  # the more general factors serve the first matrix too
    assert factors.kind == "general"
    assert_solution(S, factors.solve(b), b)


def test_an_update_refuses_another_structure_shape_or_dtype(real_device: Device) -> None:
    S = laplacian(5)
    factors, b = factorized(matrix(real_device, S)), right_hand_side(S)
    moved = sp.csr_array((S.data, (S.indices + 1) % 25, S.indptr), shape=S.shape)
    for other in (S + sp.eye_array(25, k=3), moved, laplacian(4)):
        with pytest.raises(StructureError, match=r"at other places: use factorized\(A\)"):
            factors.update(matrix(real_device, other))
    with pytest.raises(DtypeError, match="make new ones"):
        factors.update(matrix(real_device, S.astype(complex)))
    factors.update(matrix(real_device, S.astype(np.float32)))
    assert_solution(S, factors.solve(b), b)


@pytest.mark.parametrize("S", [sp.eye_array(6) + sp.eye_array(6, k=1), laplacian(3)], ids=["general", "dominant"])
def test_after_an_update_that_failed_each_solve_raises_until_one_succeeds(real_device: Device, S: Any) -> None:
    S = sp.csr_array(S)
    A, b = matrix(real_device, S), np.ones(S.shape[0])
    factors = factorized(A)  # of a kind that includes zeros for the first matrix, but not for the second one
    with pytest.raises(SingularMatrixError):
        factors.update(A.with_data(np.zeros(S.nnz)))
    for use in (lambda: factors.solve(b), lambda: factors @ b, factors.logdet, factors.inertia):
        with pytest.raises(FactorizationError, match="an update has failed"):
            use()
    for scale in (1, -3):
        factors.update(A.with_data(scale * S.data))
        assert_solution(scale * S, factors.solve(b), b)


# --------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_logdet_and_inertia_are_those_of_the_eigenvalues(real_device: Device, dtype: str) -> None:
    for make in (laplacian, indefinite):
        S = make(6, dtype)
        values = np.linalg.eigvalsh(S.toarray())
        factors = factorized(matrix(real_device, S), library="superlu")
        assert factors.inertia() == ((values > 0).sum(), (values < 0).sum())
        assert factors.logdet() == pytest.approx(np.log(abs(values)).sum(), rel=1e-12)
    with pytest.raises(FactorizationError, match="general factors have no inertia"):
        factorized(matrix(real_device, convection(4))).inertia()
    factors = factorized(matrix(real_device, EXCHANGED), library="superlu")
    with pytest.raises(FactorizationError, match="exchanged rows"):
        factors.inertia()
    assert factors.logdet() == 0


def test_the_kind_is_what_is_declared_or_certain(real_device: Device) -> None:
    def kind(S: Any, **options: Any) -> str:
        with SquareMatrix.of(GpuSparseMatrix(S, device=real_device, **options), "a test") as square:
            return find_kind(square)

    assert kind(laplacian(4)) == "positive definite"
    assert kind(laplacian(4) - 0.1 * sp.eye_array(16)) == "hermitian"
    assert kind(-laplacian(4)) == "hermitian"
    assert kind(indefinite(4, complex)) == "hermitian"
    assert kind(symmetric(4)) == "symmetric"
    assert kind(convection(4)) == "general"
    assert kind(convection(4), symmetric=True) == "positive definite"  # a declaration is not checked
    assert kind(symmetric(4), symmetric="hermitian") == "positive definite"
    assert factorized(laplacian(4), assume_a="gen").kind == "general"
    assert factorized(laplacian(4), assume_a="sym").kind == "hermitian"
    assert factorized(symmetric(4), assume_a="symmetric").kind == "symmetric"
    assert factorized(laplacian(4), assume_a="pos").kind == "positive definite"


def test_a_real_matrix_of_a_complex_dtype_is_symmetric_as_well_as_hermitian(real_device: Device) -> None:
    S, b = sp.csr_array(laplacian(4), dtype=complex), np.ones(16)
    A = matrix(real_device, S)
    factors = factorized(A, assume_a="symmetric")
    assert factors.kind == "symmetric"
    assert_solution(S, factors.solve(b), b)
    factors.update(A.with_data(symmetric(4).data))
    factors.update(A)
    assert_solution(S, factors.solve(b), b)
    with pytest.raises(FactorizationError, match="is symmetric, but it is not symmetric"):
        factorized(matrix(real_device, laplacian(4, complex)), assume_a="symmetric")


def test_repr_names_the_library_in_one_line(real_device: Device) -> None:
    text = repr(factorized(matrix(real_device, laplacian(5)), library="superlu"))
    assert text.startswith("<SuperLU factors of a positive definite matrix of shape (25, 25), dtype float64, ")
    assert text.endswith(f", on {real_device.name}>")
    assert "\n" not in text


def test_splu_has_the_attributes_of_scipys_object(real_device: Device) -> None:
    S = convection(6)
    A = matrix(real_device, S)
    factors = splu(A, permc_spec="COLAMD", diag_pivot_thresh=0.5, relax=1, panel_size=4, options={"Equil": True})
    for _ in range(2):
        n = np.arange(36)
        Pr, Pc = sp.csc_array((np.ones(36), (factors.perm_r, n))), sp.csc_array((np.ones(36), (n, factors.perm_c)))
        product = Pr.T @ (factors.L @ factors.U) @ Pc.T
        np.testing.assert_allclose(product.toarray(), S.toarray(), atol=1e-13)
        factors.update(A)
    assert factors.nnz == la.splu(sp.csc_array(S), "COLAMD", 0.5, 1, 4).nnz
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = factors.other


# --------------------------------------------------------------------------------------------- use by other methods


def test_factors_precondition_our_solvers_and_scipys(device: Device) -> None:
    S = laplacian(7)
    A, b = matrix(device, S), right_hand_side(S)
    M = factorized(A)
    for solver in (cg, la.cg):
        x, info = solver(A, b, M=M, rtol=1e-12, maxiter=2)
        assert info == 0
        np.testing.assert_allclose(S @ x, b, atol=1e-10)
    G = convection(7)
    near = sp.csr_array(G + 0.05 * sp.eye_array(49))
    x, info = bicgstab(matrix(device, G), b, M=factorized(matrix(device, near)), rtol=1e-12, maxiter=20)
    assert info == 0
    np.testing.assert_allclose(G @ x, b, atol=1e-9)


def test_factors_are_an_operator(device: Device) -> None:
    S = convection(5, complex)
    M, b = factorized(matrix(device, S)), right_hand_side(S, 2)
    inverse = np.linalg.inv(S.toarray())
    np.testing.assert_allclose(M @ b, inverse @ b, atol=1e-12)
    np.testing.assert_allclose(M.rmatmat(b), inverse.conj().T @ b, atol=1e-12)
    np.testing.assert_allclose(la.aslinearoperator(M).matvec(b[:, 0]), inverse @ b[:, 0], atol=1e-12)
    with pytest.raises(DtypeError, match="need complex vectors"):
        M.bind(device, np.dtype(float))


# ----------------------------------------------------------------------------------------------------------- errors


def test_a_singular_matrix_is_refused_with_a_remedy(real_device: Device) -> None:
    for S in (sp.csr_array((4, 4)), sp.csr_array(np.ones((3, 3)))):
        for make in (factorized, splu):
            with pytest.raises(SingularMatrixError, match=r"singular.*lsmr"):
                make(matrix(real_device, S))
    for kind in (RuntimeError, np.linalg.LinAlgError, ArithmeticError, FactorizationError):
        assert issubclass(SingularMatrixError, kind)


SMALL = laplacian(4)
REFUSED: dict[str, tuple[Any, Any, type[Exception]]] = {
    r"not positive definite.*factorized": (cholesky, indefinite(4), FactorizationError),
    "not positive definite": (partial(cholesky, library="superlu"), EXCHANGED, FactorizationError),
    r"cholesky was told .* not symmetric: add the other triangle": (
        cholesky, sp.tril(SMALL, format="csr"), FactorizationError,
    ),
    "not Hermitian": (partial(factorized, assume_a="hermitian"), symmetric(4), FactorizationError),
    "not symmetric": (partial(factorized, assume_a="symmetric"), indefinite(4, complex), FactorizationError),
    "finite": (factorized, SMALL * np.inf, FactorizationError),
    "square": (factorized, sp.csr_array((3, 4)), ShapeError),
    r"assume_a must be one of 'general'.*got 'banded'": (partial(factorized, assume_a="banded"), SMALL, ValueError),
    r"library must be one of .*'superlu'.*got 'mumps'": (partial(factorized, library="mumps"), SMALL, ValueError),
    "permc_spec are options of SuperLU": (partial(splu, permc_spec="NATURAL", library="cudss"), SMALL, ValueError),
    "permc_spec is an option of SuperLU": (
        partial(spsolve, b=np.ones(16), permc_spec="NATURAL", library="cudss"), SMALL, ValueError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_factorized_is_refused(real_device: Device, message: str) -> None:
    make, S, error = REFUSED[message]
    with pytest.raises(error, match=message):
        make(matrix(real_device, S))


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((np.zeros(15),), ShapeError, r"b must have shape \(16,\) or \(16, k\).* got \(15,\)"),
        ((1.0,), ShapeError, r"got \(\)"),
        ((np.zeros(16), "C"), ValueError, "trans must be 'N', 'T' or 'H', got 'C'"),
        ((np.array([None] * 16),), DtypeError, "vectors must consist of numbers"),
    ],
)
def test_wrong_right_hand_sides_are_refused(real_device: Device, args: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        factorized(matrix(real_device, laplacian(4))).solve(*args)
    with pytest.raises(TypeError, match="reads the entries of a matrix"):
        factorized(la.aslinearoperator(laplacian(4)))


def test_more_entries_than_superlu_counts_are_refused(monkeypatch: pytest.MonkeyPatch, real_device: Device) -> None:
    monkeypatch.setattr(host_factors, "_MAX_ENTRIES", 10)
    with pytest.raises(FactorizationError, match="at most 10 entries, got 64: use library='cudss'"):
        factorized(matrix(real_device, laplacian(4)), library="superlu")


def test_too_little_memory_of_the_host_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, real_device: Device
) -> None:
    def splu_without_memory(*args: Any, **options: Any) -> Any:
        raise MemoryError("no memory")

    monkeypatch.setattr(host_factors, "splu", splu_without_memory)
    with pytest.raises(MemoryError, match=r"too little memory for the factors of 16 rows .*library='cudss'"):
        factorized(matrix(real_device, laplacian(4)), library="superlu")


# --------------------------------------------------------------------------------------------------------- spsolve


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_spsolve_solves_in_the_dtype_of_both(real_device: Device, dtype: Any) -> None:
    S = convection(6, dtype)
    for b in (right_hand_side(S), right_hand_side(S, 3).astype(complex), right_hand_side(S.real.astype(float), 1)):
        for options in ({}, {"permc_spec": "MMD_ATA"}):
            x = spsolve(matrix(real_device, S), b, **options)
            expected = la.spsolve(sp.csc_array(S), b)
            assert (x.dtype, x.shape) == (expected.dtype, expected.shape)
            assert_solution(S, x, b.reshape(x.shape), dtype=x.dtype)


def test_spsolve_of_a_sparse_right_hand_side_is_sparse(real_device: Device) -> None:
    S = sp.csr_array(sp.block_diag([convection(3)] * 3))
    B = sp.csc_array(sp.random_array((27, 70), density=0.02, rng=np.random.default_rng(0)))
    expected = np.linalg.solve(S.toarray(), B.toarray())
    A = matrix(real_device, S)
    X = spsolve(A, B)
    assert isinstance(X, GpuSparseMatrix)
    assert X.device is A.device
    assert X.nnz == np.count_nonzero(abs(expected) > 0)
    np.testing.assert_allclose(X.toarray(), expected, atol=1e-13)
    X = spsolve(S, GpuSparseMatrix(B, device=real_device))
    assert not isinstance(X, GpuSparseMatrix)
    np.testing.assert_allclose(X.toarray(), expected, atol=1e-13)
    x = spsolve(A, B[:, [3]])
    np.testing.assert_allclose(x, expected[:, 3], atol=1e-13)
    assert spsolve(A, sp.csc_array((27, 0))).shape == (27, 0)
    b = sp.coo_array(B[:, [3]].toarray().ravel())  # SciPy too returns a vector
    np.testing.assert_allclose(spsolve(A, b), la.spsolve(sp.csc_array(S), b), atol=1e-13)


def test_spsolve_of_a_singular_matrix_warns_and_returns_nan(device: Device) -> None:
    A = matrix(device, sp.csr_array((4, 4)))
    for b in (np.ones(4), on_device(device, np.ones((4, 2))), np.ones((4, 1))):
        with pytest.warns(la.MatrixRankWarning, match="singular"):
            x = spsolve(A, b)
        assert x.shape == ((4,) if b.shape[1:] in ((), (1,)) else b.shape)
        assert np.isnan(host(x)).all()
    with pytest.warns(la.MatrixRankWarning, match="singular"):
        X = spsolve(A, sp.eye_array(4, format="csc"))
    assert isinstance(X, GpuSparseMatrix)
    assert X.device is device
    assert np.isnan(X.toarray()).all()
    with pytest.warns(la.MatrixRankWarning, match="singular"):
        assert not isinstance(spsolve(sp.csr_array((4, 4)), sp.eye_array(4, format="csc")), GpuSparseMatrix)
    with pytest.raises(ShapeError, match="incompatible"):
        spsolve(A, np.ones(3))


def test_a_matrix_that_only_seems_positive_definite_gets_hermitian_factors(
    monkeypatch: pytest.MonkeyPatch, real_device: Device
) -> None:
    S = indefinite(4)
    monkeypatch.setattr(factorization, "find_kind", lambda matrix: "positive definite")
    factors = factorized(matrix(real_device, S))
    assert factors.kind == "hermitian"
    b = right_hand_side(S)
    assert_solution(S, factors.solve(b), b)


def test_zeros_on_the_diagonal_do_not_multiply_the_entries_of_the_factors(real_device: Device) -> None:
    """The symmetric order of elimination would, because pivots have to be taken from other rows."""
    rng = np.random.default_rng(0)
    n, m = 400, 100
    columns = np.stack([rng.choice(n, 3, replace=False) for _ in range(m)])
    B = sp.csr_array((rng.standard_normal(3 * m), (np.repeat(np.arange(m), 3), columns.ravel())), shape=(m, n))
    S = sp.csr_array(sp.block_array([[laplacian(20), B.T], [B, None]]))
    factors = factorized(matrix(real_device, S), library="superlu")
    assert factors.kind == "hermitian"
    assert factors.nnz <= 1.1 * la.splu(sp.csc_array(S)).nnz
    b = right_hand_side(S)
    assert np.linalg.norm(b - S @ factors.solve(b)) <= 1e-11 * np.linalg.norm(b)
    factors.update(matrix(real_device, 2 * S))
    assert np.linalg.norm(b - 2 * (S @ factors.solve(b))) <= 1e-11 * np.linalg.norm(b)
