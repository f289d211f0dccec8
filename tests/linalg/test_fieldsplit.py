"""Block preconditioners: the same as dense block matrices, and few iterations for saddle points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DtypeError, FactorizationError, ShapeError, StructureError
from gsparse.linalg import factorized, fgmres, fieldsplit, gmres, jacobi, minres
from gsparse.linalg.preconditioners.fieldsplit import FORMS
from tests.linalg.problems import laplacian, matrix, right_hand_side
from tests.support import DTYPES, host, on_device, random_values


def coupled(sizes: tuple[int, ...], dtype: Any = float) -> tuple[sp.csr_array, list[np.ndarray]]:
    """Return a matrix with a dominant diagonal, and fields of these sizes whose unknowns are mixed."""
    rng, n = np.random.default_rng(4), sum(sizes)
    S = sp.random_array((n, n), density=0.2, rng=rng, format="csr").astype(dtype)
    S.data[:] = random_values(rng, S.data.shape, S.dtype)
    S = sp.csr_array(S + sp.diags_array(np.linspace(4, 9, n).astype(dtype)), dtype=dtype)
    return S, [np.sort(part) for part in np.split(rng.permutation(n), np.cumsum(sizes)[:-1])]


def dense_inverse(S: Any, fields: list[np.ndarray], form: str, inverses: list[np.ndarray]) -> np.ndarray:
    """Return the preconditioner as a dense matrix: (D + L)⁻¹ and the like, with the inverses of D."""
    dense, n = S.toarray().astype(np.result_type(S.dtype, np.float64)), S.shape[0]
    D, L, U = (np.zeros((n, n), dense.dtype) for _ in range(3))
    for i, rows in enumerate(fields):
        D[np.ix_(rows, rows)] = np.linalg.inv(inverses[i])
        for j, columns in enumerate(fields):
            if i != j:
                (L if j < i else U)[np.ix_(rows, columns)] = dense[np.ix_(rows, columns)]
    lower, upper = np.linalg.inv(D + L), np.linalg.inv(D + U)
    return {"diagonal": np.linalg.inv(D), "lower": lower, "upper": upper, "full": upper @ D @ lower}[form]


def stokes(n: int) -> tuple[sp.csr_array, list[slice], sp.csr_array]:
    """Return the Stokes equations on staggered grids of n×n cells, and the mass matrix of the pressure."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n - 1, n - 1))
    wall = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tolil()
    wall[0, 0] = wall[-1, -1] = 3
    gradient = sp.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n - 1, n))
    eye, inner = sp.eye_array(n), sp.eye_array(n - 1)
    velocity = sp.block_diag([sp.kron(line, eye) + sp.kron(inner, wall), sp.kron(wall, inner) + sp.kron(eye, line)])
    divergence = sp.vstack([sp.kron(gradient, eye), sp.kron(eye, gradient)]).T
    # The pressure is known up to a constant: it is zero in one cell.
    divergence = sp.csr_array(divergence)[1:]
    S = sp.block_array([[velocity, divergence.T], [divergence, None]], format="csr")
    m = velocity.shape[0]
    return sp.csr_array(S), [slice(m), slice(m, m + n * n - 1)], sp.eye_array(n * n - 1, format="csr")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(13, 8), (9, 1, 7)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_sweep_is_that_of_dense_blocks(device: Device, form: str, sizes: tuple[int, ...], dtype: Any) -> None:
    S, fields = coupled(sizes, dtype)
    M = fieldsplit(matrix(device, S), fields, form=form, solvers="jacobi")
    expected = dense_inverse(S, fields, form, [np.diag(1 / S.diagonal()[rows]) for rows in fields])
    tolerance = 100 * float(np.finfo(dtype).eps) * np.linalg.norm(expected, 2)
    for columns in (None, 1, 3):
        x = right_hand_side(S, columns)
        forward, adjoint = (M.matmat, M.rmatmat) if columns else (M.matvec, M.rmatvec)
        for product, dense in ((forward, expected), (adjoint, expected.conj().T)):
            error = np.linalg.norm(host(product(on_device(device, x))) - dense @ x)
            assert error <= tolerance * np.linalg.norm(x)


@pytest.mark.parametrize("form", FORMS)
def test_solvers_are_names_functions_or_operators(real_device: Device, form: str) -> None:
    S, fields = coupled((13, 8))
    A = matrix(real_device, S)
    first = matrix(real_device, S[fields[0]][:, fields[0]])
    blocks = [S[rows][:, rows].toarray() for rows in fields]
    expected = dense_inverse(S, fields, form, [np.linalg.inv(block) for block in blocks])
    x = right_hand_side(S)
    for solvers in ("direct", ["direct", factorized], [factorized(first), "direct"], factorized):
        M = fieldsplit(A, fields, form=form, solvers=solvers)
        np.testing.assert_allclose(host(M @ x), expected @ x, rtol=1e-10, atol=1e-12)


def test_fields_may_be_masks_and_slices(device: Device) -> None:
    S, _ = coupled((13, 8))
    rows = np.arange(21)
    x = right_hand_side(S)
    expected = fieldsplit(matrix(device, S), [rows[:13], rows[13:]], solvers="jacobi") @ x
    for fields in ([slice(13), slice(13, None)], [rows < 13, rows >= 13], [rows[:13][::-1], list(range(13, 21))]):
        np.testing.assert_array_equal(fieldsplit(matrix(device, S), fields, solvers="jacobi") @ x, expected)


@pytest.mark.parametrize("form", ["full", "lower", "upper"])
def test_with_exact_solves_a_saddle_point_needs_three_iterations(device: Device, form: str) -> None:
    S, fields, _ = stokes(6)
    b, A = right_hand_side(S), matrix(device, S)
    velocity, D = S[fields[0]][:, fields[0]], S[fields[1]][:, fields[0]]
    schur = sp.csr_array(-D.toarray() @ np.linalg.solve(velocity.toarray(), D.T.toarray()))
    M = fieldsplit(A, fields, form=form, solvers="direct", schur=schur)
    result = gmres(A, b, M=M, rtol=1e-10, full_output=True)
    assert result.info == 0
    assert result.iterations <= 3
    assert np.linalg.norm(b - S @ host(result.x)) <= 1e-9 * np.linalg.norm(b)


def test_with_the_mass_matrix_of_the_pressure_iterations_hardly_grow_with_the_mesh(real_device: Device) -> None:
    counts = {"minres": [], "fgmres": []}
    for n in (16, 24):
        S, fields, mass = stokes(n)
        A, b = matrix(real_device, S), right_hand_side(S)
        for solver, form in ((minres, "diagonal"), (fgmres, "lower")):
            M = fieldsplit(A, fields, form=form, schur=mass, solvers=["amg", "jacobi"])
            result = solver(A, b, M=M, rtol=1e-8, full_output=True)
            assert result.info == 0
            counts[solver.__name__].append(result.iterations)
    for name, (first, last) in counts.items():
        assert last <= first + 6, (name, counts)
    assert counts["fgmres"][-1] <= counts["minres"][-1]


@pytest.mark.parametrize("form", ["diagonal", "lower"])
def test_without_schur_a_zero_diagonal_is_replaced_by_an_approximation(real_device: Device, form: str) -> None:
    S, fields, _ = stokes(10)
    A, b = matrix(real_device, S), right_hand_side(S)
    solve = minres if form == "diagonal" else gmres
    M = fieldsplit(A, fields, form=form)
    result = solve(A, b, M=M, rtol=1e-8, maxiter=200, full_output=True)
    assert result.info == 0
    explicit = fieldsplit(A, fields, form=form, schur="diagonal", solvers="amg")
    np.testing.assert_array_equal(host(explicit @ b), host(M @ b))
    K, D = S[fields[0]][:, fields[0]], S[fields[1]][:, fields[0]]
    schur = -D @ sp.diags_array(1 / K.diagonal()) @ D.T
    np.testing.assert_allclose(M._targets[1].toarray(), -schur.toarray(), rtol=1e-12, atol=1e-12)


def test_the_diagonal_form_is_positive_definite(real_device: Device) -> None:
    S, fields, _ = stokes(5)
    M = fieldsplit(matrix(real_device, S), fields, form="diagonal", solvers=["direct", "direct"])
    dense = host(M @ np.eye(S.shape[0]))
    np.testing.assert_allclose(dense, dense.T, rtol=0, atol=1e-10 * abs(dense).max())
    assert np.linalg.eigvalsh((dense + dense.T) / 2).min() > 0


def test_an_operator_of_the_caller_is_applied_as_it_is(real_device: Device) -> None:
    S, fields, mass = stokes(5)
    m = fields[0].stop
    S = sp.csr_array(S - sp.block_diag([sp.csr_array((m, m)), 0.5 * mass]))  # its second block is negative
    K, D = (S[rows][:, fields[0]].toarray() for rows in fields)
    inverses = np.linalg.inv(K), np.linalg.inv(S[fields[1]][:, fields[1]].toarray() - D @ np.linalg.solve(K, D.T))
    for schur in (None, mass):
        M = fieldsplit(matrix(real_device, S), fields, form="full", schur=schur, solvers=[
            GpuSparseMatrix(inverse, device=real_device) for inverse in inverses
        ])  # fmt: skip
        x = right_hand_side(S)
        np.testing.assert_allclose(S @ host(M @ x), x, rtol=0, atol=1e-10 * np.linalg.norm(x))


def test_an_empty_coupling_decouples_the_fields(device: Device) -> None:
    K = laplacian(4)
    S = sp.csr_array(sp.block_diag([K, 2 * K]))
    x = right_hand_side(S)
    for form in FORMS:
        M = fieldsplit(matrix(device, S), [slice(16), slice(16, 32)], form=form, solvers="direct")
        np.testing.assert_allclose(S @ host(M @ x), x, rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------------------------------------------------- update


def test_update_takes_other_values(device: Device) -> None:
    S, fields, _ = stokes(5)
    A, x = matrix(device, S), right_hand_side(S)
    values = np.random.default_rng(2).uniform(1, 2, S.nnz)
    M = fieldsplit(A, fields, solvers=["ic0", "direct"])
    before = host(M @ x)
    new = A.with_data(A.device_data * 2)
    assert M.update(new) is M
    np.testing.assert_allclose(host(M @ x), host(fieldsplit(new, fields, solvers=["ic0", "direct"]) @ x), rtol=1e-10)
    with pytest.raises(FactorizationError):
        bad = values.copy()
        bad[0] = np.nan
        M.update(A.with_data(bad))
    M.update(A)
    np.testing.assert_allclose(host(M @ x), before, rtol=1e-12)
    with pytest.raises(StructureError):
        M.update(matrix(device, sp.csr_array(S + sp.eye_array(S.shape[0]))))


@pytest.mark.parametrize("solver", ["direct", "ilu0", None])
def test_an_update_may_change_where_values_of_the_schur_complement_cancel(real_device: Device, solver: Any) -> None:
    coupling = np.array([[1.0, 1.0], [1.0, -1.0]])  # beside the diagonal, the Schur complement is 1/d1 - 1/d0
    S = [sp.csr_array(np.block([[np.diag(d), coupling], [coupling, np.zeros((2, 2))]])) for d in ([2.0, 2.0], [2, 5.0])]
    fields, x = [slice(2), slice(2, 4)], np.arange(4.0)
    for first, second in (S, S[::-1]):
        M = fieldsplit(matrix(real_device, first), fields, solvers=solver)
        for T in (second, first):
            M.update(matrix(real_device, T))
            np.testing.assert_array_equal(M @ x, fieldsplit(matrix(real_device, T), fields, solvers=solver) @ x)


def test_an_update_that_fails_leaves_everything_as_it_was(real_device: Device) -> None:
    S, fields = coupled((13, 8))
    A, x = matrix(real_device, S), right_hand_side(S)
    M = fieldsplit(A, fields, solvers="jacobi")
    before = host(M @ x)
    row = fields[1][0]
    begin, end = S.indptr[row : row + 2]
    values = 3 * S.data
    values[begin + np.flatnonzero(S.indices[begin:end] == row)] = 0  # the diagonal of the second field has no inverse
    with pytest.raises(FactorizationError, match="divides by the diagonal"):
        M.update(A.with_data(values))
    np.testing.assert_array_equal(host(M @ x), before)


def test_solvers_without_update_cannot_be_updated(real_device: Device) -> None:
    S, fields = coupled((13, 8))
    A = matrix(real_device, S)
    M = fieldsplit(A, fields, solvers=lambda block: GpuSparseMatrix(block, device=real_device))
    with pytest.raises(TypeError, match="has no update"):
        M.update(A)
    operators = [jacobi(matrix(real_device, S[rows][:, rows])) for rows in fields]
    M = fieldsplit(A, fields, solvers=operators)
    x = right_hand_side(S)
    before = host(M @ x)
    np.testing.assert_array_equal(host(M.update(A) @ x), before)  # operators of the caller remain


# ---------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"form": "block"}, ValueError, "form must be one of 'diagonal'"),
        ({"fields": [slice(21)]}, ValueError, "two fields or more"),
        ({"fields": [slice(21), []]}, ValueError, "field 1 of 2 is empty: leave it out"),
        ({"fields": [slice(13), slice(12, 21)]}, ValueError, "12 belongs to 2"),
        ({"fields": [slice(13), slice(14, 21)]}, ValueError, "13 belongs to 0"),
        ({"fields": [slice(13), [13, 99]]}, ValueError, "indices of 21 unknowns"),
        ({"solvers": ["jacobi"]}, ValueError, "1 elements for 2 fields"),
        ({"solvers": "nonsense"}, ValueError, "nonsense"),
        ({"solvers": ["jacobi", GpuSparseMatrix(laplacian(3), device="cpu")]}, ShapeError, "8 unknowns"),
        ({"schur": "nonsense"}, ValueError, "schur must be 'diagonal'"),
        ({"schur": laplacian(3)}, ShapeError, r"the shape \(8, 8\)"),
        ({"schur": sp.linalg.aslinearoperator(np.eye(8))}, TypeError, "pass an operator in solvers"),
        ({"fields": [slice(5), slice(5, 9), slice(9, 21)], "schur": "diagonal"}, ValueError, "3 fields"),
    ],
)
def test_misuse_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    S, _ = coupled((13, 8))
    options = {"fields": [slice(13), slice(13, 21)], **options}
    with pytest.raises(error, match=message):
        fieldsplit(matrix_on_cpu(S), options.pop("fields"), **options)


def matrix_on_cpu(S: Any) -> GpuSparseMatrix:
    return GpuSparseMatrix(S, device="cpu")


def test_real_vectors_of_a_complex_matrix_are_refused() -> None:
    S, fields = coupled((13, 8), complex)
    M = fieldsplit(matrix_on_cpu(S), fields, solvers="jacobi")
    with pytest.raises(DtypeError, match="complex"):
        M.bind(M.device, np.dtype(np.float64))
