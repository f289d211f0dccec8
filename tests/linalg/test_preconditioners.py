"""Preconditioners equal their definitions on every device, and reduce the iterations of solvers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DeviceError, DtypeError, FactorizationError, ShapeError
from gsparse.linalg import (
    amg,
    bicgstab,
    block_jacobi,
    cg,
    chebyshev_polynomial,
    gauss_seidel,
    gmres,
    ic0,
    ilu0,
    isai,
    jacobi,
    sor,
)
from tests.linalg.problems import (
    Count,
    close,
    convection,
    dense,
    laplacian,
    matrix,
    positive,
    residual,
    right_hand_side,
)
from tests.proof.emulated_device import EmulatedDevice
from tests.support import DTYPES, host, on_device

SPD, GENERAL = laplacian(7), convection(7)
BOUNDS = (0.1, 2.0)

# Preconditioners that are Hermitian if A is, and any others.
FOR_CG: dict[str, Callable[[Any], Any]] = {
    "jacobi": jacobi,
    "block_jacobi": lambda A: block_jacobi(A, 5),
    "chebyshev_polynomial": lambda A: chebyshev_polynomial(A, 4),
    "isai": isai,
    "gauss_seidel": gauss_seidel,
    "gauss_seidel, blocks": lambda A: gauss_seidel(A, block_size=4, ordering="multicolor", iterations=2),
    "sor": lambda A: sor(A, 1.2, ordering="wavefront"),
    "ic0, levels": lambda A: ic0(A, solve="levels"),
    "ic0, jacobi": lambda A: ic0(A, solve="jacobi"),
    "ic0, blocks": lambda A: ic0(A, block_size=2),
}
FOR_ANY: dict[str, Callable[[Any], Any]] = {
    "block_jacobi": lambda A: block_jacobi(A, 5),
    "isai": lambda A: isai(A, kind="general"),
    "gauss_seidel": lambda A: gauss_seidel(A, sweep="backward"),
    "gauss_seidel, blocks": lambda A: gauss_seidel(A, block_size=4, ordering="multicolor"),
    "sor": lambda A: sor(A, 1.2, sweep="forward", ordering="wavefront", iterations=2),
    "ilu0, levels": lambda A: ilu0(A, solve="levels"),
    "ilu0, jacobi": lambda A: ilu0(A, solve="jacobi"),
    "ilu0, blocks": lambda A: ilu0(A, block_size=3),
}


# -------------------------------------------------------------------------------------------------- definitions


def test_jacobi_is_the_inverse_diagonal(device: Device) -> None:
    close(dense(jacobi(matrix(device, SPD))), np.diag(1 / SPD.diagonal()))


@pytest.mark.parametrize("size", [1, 5, 7, 60])
def test_block_jacobi_inverts_the_blocks_also_a_smaller_last_one(device: Device, size: int) -> None:
    blocks = [GENERAL[i : i + size, i : i + size].toarray() for i in range(0, 49, size)]
    expected = sp.block_diag([sp.coo_array(np.linalg.inv(block)) for block in blocks]).toarray()
    close(dense(block_jacobi(matrix(device, GENERAL), size)), expected)


@pytest.mark.parametrize("degree", [1, 2, 5, 16])
def test_the_chebyshev_polynomial_damps_each_eigenvalue_as_in_theory(device: Device, degree: int) -> None:
    scaled = laplacian(7) / 4 + sp.diags_array(np.linspace(0, 0.2, 49))
    root = np.sqrt(scaled.diagonal())
    values, vectors = np.linalg.eigh(scaled.toarray() / np.outer(root, root))
    middle, half = (BOUNDS[1] + BOUNDS[0]) / 2, (BOUNDS[1] - BOUNDS[0]) / 2
    chebyshev = np.polynomial.chebyshev.Chebyshev.basis(degree)
    left = chebyshev((middle - values) / half) / chebyshev(middle / half)
    inverse = (vectors * ((1 - left) / values)) @ vectors.T / np.outer(root, root)
    close(dense(chebyshev_polynomial(matrix(device, scaled), degree, BOUNDS)), inverse, 1e-12)


def test_isai_times_the_matrix_is_the_identity_at_its_entries(device: Device) -> None:
    for power in (1, 2):
        W = dense(isai(matrix(device, GENERAL), power))
        places = np.linalg.matrix_power(GENERAL.toarray() != 0, power)
        assert np.all(W[~places] == 0)
        close((W @ GENERAL)[places], np.eye(49)[places], 1e-12)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_isai_of_a_positive_definite_matrix_is_a_product_of_factors(real_device: Device, dtype: str) -> None:
    S = positive(7, dtype).toarray()
    G = np.zeros_like(S)
    for i in range(49):
        J = [j for j in range(i + 1) if S[i, j] != 0]
        column = np.linalg.solve(S[np.ix_(J, J)], np.eye(len(J))[-1])
        G[i, J] = column.conj() / np.sqrt(column[-1].real)
    close(np.diag(G @ S @ G.conj().T), np.ones(49))
    close(dense(isai(matrix(real_device, sp.csr_array(S)))), G.conj().T @ G)


def test_isai_keeps_the_largest_entries_of_long_rows(real_device: Device) -> None:
    rng = np.random.default_rng(0)
    S = sp.lil_array(sp.diags_array(np.full(400, 5.0)))
    S[100, :] = rng.random(400) / 50
    S[100, 100] = 5
    S[100, 7] = 0.1
    W = dense(isai(matrix(real_device, S.tocsr())))
    assert np.count_nonzero(W[100]) == 128
    assert W[100, 7] == pytest.approx(-0.1 / 25)


@pytest.mark.parametrize("kind", ["general", "spd"])
def test_isai_keeps_the_diagonal_of_long_rows_though_others_have_larger_weights(real_device: Device, kind: Any) -> None:
    # In the square of the matrix, the weights of the last row are near 0.01·1e6 beside the diagonal, and 1 on it.
    S = sp.lil_array(sp.diags_array(np.full(200, 1e6)))
    S[199, :] = 0.01
    S[:, 199] = np.full((200, 1), 0.01)
    S[199, 199] = 1
    W = dense(isai(matrix(real_device, S.tocsr()), 2, kind))
    assert W[199, 199] == pytest.approx(1, rel=1e-3)


def reference_ilu0(S: Any) -> tuple[Any, Any]:
    """Return L and U of ILU(0), by Saad's algorithm."""
    A = S.toarray()
    places = A != 0
    for i in range(len(A)):
        for k in np.flatnonzero(places[i, :i]):
            A[i, k] /= A[k, k]
            later = places[i] & places[k] & (np.arange(len(A)) > k)
            A[i, later] -= A[i, k] * A[k, later]
    return np.tril(A, -1) + np.eye(len(A)), np.triu(A)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.few(2)
def test_ilu0_is_the_incomplete_factorization(device: Device, dtype: str) -> None:
    S = convection(7, dtype)
    L, U = reference_ilu0(S)
    close((L @ U)[S.toarray() != 0], S.toarray()[S.toarray() != 0])
    close(dense(ilu0(matrix(device, S), solve="levels")), np.linalg.inv(L @ U))


@pytest.mark.parametrize("sweeps", [1, 2, 3])
def test_jacobi_sweeps_are_a_sum_of_powers(device: Device, sweeps: int) -> None:
    def inverse(N: Any) -> Any:
        return sum(np.linalg.matrix_power(-N, k) for k in range(sweeps + 1))

    L, U = reference_ilu0(GENERAL)
    D = np.diag(U)
    expected = inverse(U / D[:, None] - np.eye(49)) @ np.diag(1 / D) @ inverse(L - np.eye(49))
    close(dense(ilu0(matrix(device, GENERAL), solve="jacobi", sweeps=sweeps)), expected)


def test_ic0_is_ilu0_of_a_hermitian_matrix(real_device: Device) -> None:
    A = matrix(real_device, positive(7, "complex128"))
    close(dense(ic0(A, solve="levels")), dense(ilu0(A, solve="levels")))


def test_shift_is_added_to_the_diagonal(real_device: Device) -> None:
    shifted = SPD + sp.diags_array(0.1 * abs(SPD).sum(axis=1))
    expected = dense(ilu0(matrix(real_device, shifted)))
    close(dense(ilu0(matrix(real_device, SPD), shift=0.1)), expected)


# -------------------------------------------------------------------------------------------------- properties of all


@pytest.mark.parametrize("name", FOR_CG)
@pytest.mark.few(6)
def test_preconditioners_for_cg_are_hermitian_and_positive_definite(real_device: Device, name: str) -> None:
    for dtype in ("float64", "complex128"):
        M = dense(FOR_CG[name](matrix(real_device, positive(7, dtype))))
        close(M, M.conj().T)
        assert np.linalg.eigvalsh(M).min() > 0


@pytest.mark.parametrize("name", FOR_ANY)
@pytest.mark.few(2)
def test_adjoint_is_the_conjugate_transpose(device: Device, name: str) -> None:
    M = FOR_ANY[name](matrix(device, convection(5, "complex128")))
    close(dense(M, "rmatvec"), dense(M).conj().T)


@pytest.mark.parametrize("name", FOR_CG)
def test_cg_needs_fewer_iterations(device: Device, name: str) -> None:
    S = sp.csr_array(laplacian(12) + sp.diags_array(np.arange(144.0) % 5))
    A, b = matrix(device, S), right_hand_side(S)
    plain = cg(A, b, rtol=1e-9, full_output=True)
    found = cg(A, b, M=FOR_CG[name](A), rtol=1e-9, full_output=True)
    assert found.info == 0
    assert found.iterations < plain.iterations
    assert residual(S, found.x, b) < 1e-8


@pytest.mark.parametrize("name", FOR_ANY)
@pytest.mark.few(5)
def test_several_columns_are_preconditioned_as_single_vectors_are(device: Device, name: str) -> None:
    M = FOR_ANY[name](matrix(device, convection(5)))
    X = np.random.default_rng(1).standard_normal((25, 4))
    for k in (4, 2, 0):  # the buffers for four columns cannot be used for two
        for together, alone in (
            (M @ X[:, :k], M.matvec),
            (M.matmat(X[:, :k]), M.matvec),
            (M.rmatmat(X[:, :k]), M.rmatvec),
        ):
            assert together.shape == (25, k)
            for j in range(k):
                close(together[:, j], alone(X[:, j]))
    on_it = on_device(device, X)
    assert device.owns(M @ on_it)
    close(host(M @ on_it), M @ X)
    with pytest.raises(ShapeError, match=r"arrays of shape \(25,\) or \(25, k\), got \(4, 25\)"):
        M @ X.T


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FOR_CG)
def test_every_dtype_gives_the_result_of_the_wide_one(real_device: Device, name: str, dtype: np.dtype[Any]) -> None:
    S = positive(6, dtype)
    M, b = FOR_CG[name](matrix(real_device, S)), right_hand_side(S)
    assert M.dtype == dtype
    found = M @ b
    assert found.dtype == dtype
    wide = FOR_CG[name](matrix(real_device, S.astype(np.result_type(dtype, np.float64)))) @ b
    np.testing.assert_allclose(found, wide, rtol=0, atol=100 * np.finfo(dtype).eps * abs(wide).max())


def test_a_real_preconditioner_is_applied_to_complex_vectors(device: Device) -> None:
    x = right_hand_side(laplacian(7, "complex128"))
    for M in (jacobi(matrix(device, SPD)), ic0(matrix(device, SPD), solve="levels"), isai(matrix(device, SPD))):
        close(M @ x, M @ x.real.copy() + 1j * (M @ x.imag.copy()))


@pytest.mark.parametrize("name", FOR_CG)
def test_scipys_cg_accepts_a_preconditioner_as_M(device: Device, name: str) -> None:
    S, count, plain = laplacian(12), Count(), Count()
    b = right_hand_side(S)
    la.cg(S, b, rtol=1e-9, callback=plain)
    x, info = la.cg(S, b, M=FOR_CG[name](matrix(device, S)), rtol=1e-9, callback=count)
    assert info == 0
    assert count.calls <= plain.calls
    assert residual(S, x, b) < 1e-8


@pytest.mark.gpu
def test_cupys_cg_accepts_a_preconditioner_as_M(real_device: Device) -> None:
    if real_device.kind != "gpu":
        pytest.skip("CuPy's solvers need a GPU")
    from cupyx.scipy.sparse.linalg import LinearOperator
    from cupyx.scipy.sparse.linalg import cg as cupy_cg

    A, b = matrix(real_device, SPD), on_device(real_device, right_hand_side(SPD))
    M = ic0(A)
    operators = [LinearOperator(SPD.shape, matvec=o.matvec, dtype=b.dtype) for o in (A, M)]
    x, info = cupy_cg(operators[0], b, M=operators[1], rtol=1e-9)
    assert info == 0
    assert residual(SPD, x, host(b)) < 1e-8


def test_preconditioners_accept_any_sparse_matrix() -> None:
    expected = dense(ilu0(SPD))
    rng = np.random.default_rng(0)
    twice = sp.coo_array(SPD)
    order = rng.permutation(2 * twice.nnz)
    row, col = (np.tile(part, 2)[order] for part in twice.coords)
    unsorted = sp.coo_array((np.tile(twice.data / 2, 2)[order], (row, col)), shape=SPD.shape)
    raw = sp.csr_array(SPD.shape)
    by_row = np.argsort(row, kind="stable")
    raw.data, raw.indices = unsorted.data[by_row], col[by_row].astype(np.int64)
    raw.indptr = np.searchsorted(row[by_row], np.arange(50)).astype(np.int64)
    for A in (SPD.tocsc(), SPD.toarray(), GpuSparseMatrix(SPD, device="cpu").T, GpuSparseMatrix(raw, device="cpu")):
        close(dense(ilu0(A)), expected)


@pytest.mark.parametrize("name", [*FOR_CG, "ilu0"])
@pytest.mark.parametrize("size", [0, 1])
def test_preconditioners_of_the_smallest_matrices_are_right(device: Device, name: str, size: int) -> None:
    make = ilu0 if name == "ilu0" else FOR_CG[name]
    M = make(matrix(device, sp.csr_array(4 * np.eye(size))))
    # What is left of the error. The polynomial of degree 4 is made for eigenvalues from 1/30 to 1.
    left = {"sor": (1 - 1.2) ** 2, "chebyshev_polynomial": 1 / np.polynomial.Chebyshev.basis(4)(31 / 29)}.get(name, 0.0)
    close(M @ np.ones(size), np.full(size, 0.25 * (1 - left)), 1e-14) if size else None
    assert (M @ np.ones(size)).shape == (size,)


# -------------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize(
    "S",
    [
        sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(700, 700), format="csr"),
        sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1300, 0, 1300], shape=(3900, 3900), format="csr"),
        sp.csr_array(sp.diags_array(np.full(200, 9.0)) + sp.csr_array((np.ones(200), (np.full(200, 199), range(200))))),
    ],
    ids=["a chain of rows", "wide levels", "a dense row"],
)
def test_levels_of_any_width_solve_the_factors(device: Device, S: Any) -> None:
    A, x = matrix(device, S), right_hand_side(S)
    close(S @ host(ilu0(A, solve="levels") @ x), x, 1e-12)  # for this matrix, ILU(0) is exact


# -------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize("make", [jacobi, lambda A: block_jacobi(A, 2), chebyshev_polynomial, isai, ic0, ilu0])
def test_a_matrix_that_is_not_square_is_refused(make: Any) -> None:
    with pytest.raises(ShapeError, match="needs a square matrix, got shape"):
        make(sp.csr_array((3, 4)))


@pytest.mark.parametrize("make", [jacobi, chebyshev_polynomial])
def test_a_zero_on_the_diagonal_is_refused(device: Device, make: Any) -> None:
    S = sp.lil_array(SPD)
    S[3, 3] = 0
    with pytest.raises(FactorizationError, match="0 in row 3"):
        make(matrix(device, S.tocsr()))


@pytest.mark.parametrize("dtype", [float, complex])
def test_a_zero_pivot_names_its_row_and_the_remedy(device: Device, dtype: type) -> None:
    S = sp.csr_array(np.array([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]], dtype))
    with pytest.raises(FactorizationError, match=r"the pivot in row 1 is zero or not finite: try ilu0\(A, shift="):
        ilu0(matrix(device, S))
    assert np.all(np.isfinite(dense(ilu0(matrix(device, S), shift=0.01))))
    empty = sp.csr_array(np.array([[0.0, 1], [1, 0]]))
    with pytest.raises(FactorizationError, match="the pivot in row 0 is zero"):
        ilu0(matrix(device, empty))
    assert np.all(np.isfinite(dense(ilu0(matrix(device, empty), shift=0.1))))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (ilu0, {"sweeps": 2.5}),
        (ic0, {"block_size": "2"}),
        (isai, {"power": 1.5}),
        (block_jacobi, {"block_size": 2.0}),
        (chebyshev_polynomial, {"degree": None}),
        (amg, {"max_levels": 2.5}),
    ],
)
def test_an_option_that_must_be_an_integer_is_named(make: Any, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(TypeError, match=f"{name} must be an integer, got {value!r}: convert it with int"):
        make(SPD, **options)


@pytest.mark.parametrize("make", [jacobi, ilu0, ic0, isai])
def test_an_empty_row_is_named(device: Device, make: Any) -> None:
    S = sp.csr_array(np.diag([1.0, 2, 0, 3, 4]))
    S.eliminate_zeros()
    with pytest.raises(FactorizationError, match="row 2 has no entries, so A is singular: remove this row and its co"):
        make(matrix(device, S))


TWO = [[1.0, 2], [2, 1]]
PAIRS = np.kron(np.diag([1.0, 0]), np.eye(2)) + np.kron(np.diag([0.0, 1]), np.ones((2, 2)))


@pytest.mark.parametrize(
    ("make", "dense", "message"),
    [
        (ic0, TWO, "pivot in row 1 is not positive"),
        (partial(isai, kind="spd"), TWO, "not positive definite, seen at row 1"),
        (partial(block_jacobi, block_size=2), PAIRS, "block of rows 2 to 3 is singular"),
        (partial(isai, kind="general"), PAIRS, "system of row 2 is singular"),
        (chebyshev_polynomial, np.diag([1.0, -2.0]), "positive diagonal, row 1 has -2"),
    ],
)
def test_matrices_that_do_not_suit_are_refused(device: Device, make: Any, dense: Any, message: str) -> None:
    with pytest.raises(FactorizationError, match=message):
        make(matrix(device, sp.csr_array(np.array(dense))))


def test_options_are_checked() -> None:
    for call, match in (
        (lambda: block_jacobi(SPD, 0), "block_size must be at least 1, got 0"),
        (lambda: chebyshev_polynomial(SPD, 0), "degree must be at least 1, got 0"),
        (lambda: chebyshev_polynomial(SPD, 2, (2.0, 1.0)), "bounds must be"),
        (lambda: isai(SPD, 0), "power must be at least 1, got 0"),
        (lambda: isai(SPD, kind="best"), "kind must be"),
        (lambda: ilu0(SPD, solve="exact"), "solve must be one of 'levels', 'jacobi', got 'exact'"),
        (lambda: ic0(SPD, sweeps=0), "sweeps must be at least 1"),
        (lambda: ic0(SPD, shift=-1.0), "shift must not be negative"),
        (lambda: sor(SPD, 2), "omega must be a number between 0 and 2, got 2"),
        (lambda: sor(SPD, "x"), "omega must be a number between 0 and 2, got 'x'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(TypeError, match="reads the entries of a matrix"):
        jacobi(la.aslinearoperator(SPD))


def test_real_vectors_for_a_complex_preconditioner_are_refused_by_solvers(real_device: Device) -> None:
    M = jacobi(matrix(real_device, laplacian(7, "complex128")))
    with pytest.raises(DtypeError, match="solve in complex128"):
        cg(matrix(real_device, SPD), np.ones(49), M=M)


@pytest.mark.parametrize(("make", "what"), [(jacobi, "preconditioner"), (lambda A: A, "matrix")])
def test_a_preconditioner_of_another_device_is_refused(make: Callable[[Any], Any], what: str) -> None:
    M = make(GpuSparseMatrix(SPD, device=EmulatedDevice(32)))
    with pytest.raises(DeviceError, match=f"{what} lives on emulated:32, the vectors on cpu: bring one to the other"):
        cg(GpuSparseMatrix(SPD, device="cpu"), np.ones(SPD.shape[0]), M=M)


# ------------------------------------------------------------------------------------------------------- symmetry


def rounded(S: Any) -> sp.csr_array:
    """Return a symmetric matrix that is scaled from both sides, so that it is symmetric up to rounding."""
    entries = S.tocoo()
    weights = (1 + 0.05 * np.cos(entries.row + entries.col)).astype(S.dtype)
    S = sp.csr_array((entries.data * weights, (entries.row, entries.col)), shape=S.shape)
    d = sp.diags_array(np.exp(0.3 * np.random.default_rng(0).standard_normal(S.shape[0])).astype(S.dtype))
    T = sp.csr_array(d @ S @ d)
    assert 0 < abs(T - T.T.conj()).max() < 1e-6 * abs(T).max()
    return T


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_isai_treats_a_matrix_that_is_hermitian_up_to_rounding_as_hermitian(device: Device, dtype: str) -> None:
    T = rounded(positive(9, dtype))
    M = isai(matrix(device, T))
    close(dense(M), dense(isai(matrix(device, T), kind="spd")), 0.0)
    assert repr(M).startswith("<isai")


def test_preconditioners_do_not_check_a_declared_symmetry(real_device: Device) -> None:
    S = laplacian(9)
    rough = sp.csr_array(S + sp.diags_array(np.full(80, 1e-3), offsets=1))
    declared, plain, denied = (
        GpuSparseMatrix(T, device=real_device, symmetric=said) for T, said in ((rough, True), (rough, None), (S, False))
    )
    close(dense(isai(declared)), dense(isai(declared, kind="spd")), 0.0)
    close(dense(isai(plain)), dense(isai(plain, kind="general")), 0.0)
    close(dense(isai(denied)), dense(isai(denied, kind="general")), 0.0)
    assert ic0(declared).shape == S.shape
    for A in (plain, denied):
        with pytest.raises(FactorizationError, match="symmetric"):
            ic0(A)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_ic0_refuses_a_matrix_that_is_not_hermitian(device: Device, dtype: str) -> None:
    S = positive(7, dtype)
    for T in (sp.tril(S), sp.triu(S), convection(7, dtype)):
        with pytest.raises(FactorizationError, match=r"ic0 needs a symmetric.*ilu0"):
            ic0(matrix(device, sp.csr_array(T)))
    # A matrix counts as symmetric if it is up to rounding, or to the precision of float32.
    noise = 1 + 1e-10 * np.random.default_rng(0).standard_normal(S.nnz)
    assert ic0(matrix(device, sp.csr_array((S.data * noise, S.indices, S.indptr)))).shape == S.shape


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", {**FOR_CG, **FOR_ANY})
def test_nan_and_inf_in_the_matrix_are_refused(real_device: Device, name: str, value: float) -> None:
    T = positive(7, float)
    T.data[T.indptr[5]] = value
    with pytest.raises(FactorizationError, match=rf"{name.partition(',')[0]} needs finite values, row 5"):
        {**FOR_CG, **FOR_ANY}[name](matrix(real_device, T))


@pytest.mark.parametrize("solver", [gmres, bicgstab, cg])
@pytest.mark.few(1)
def test_a_preconditioner_that_writes_to_its_argument_changes_no_vector_of_the_solver(
    device: Device, solver: Callable[..., Any]
) -> None:
    S = laplacian(8)
    b = right_hand_side(S)

    def halve(v: Any) -> Any:
        v *= 0.5
        return v

    M = la.LinearOperator(S.shape, matvec=halve, dtype=float)
    x, info = solver(GpuSparseMatrix(S, device=device), b, M=M, rtol=1e-8)
    assert info == 0
    assert residual(S, x, b) < 1e-7
