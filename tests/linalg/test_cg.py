"""Conjugate gradients behave as SciPy's, on every device."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import (
    SolveResult,
    bicgstab,
    cg,
    chebyshev,
    chebyshev_polynomial,
    gmres,
    ic0,
    ilu0,
    isai,
    jacobi,
    lsmr,
    lsqr,
    minres,
)
from tests.linalg.problems import Count, convection, laplacian, residual, right_hand_side
from tests.support import DTYPES, host, matrix_folder, on_device

S = laplacian(7)
B = right_hand_side(S)
JACOBI = sp.csr_array(sp.diags_array(1 / (1 + S.diagonal() + np.arange(S.shape[0]) % 3)))


def matrix(device: Device, S: Any = S) -> GpuSparseMatrix:
    return GpuSparseMatrix(S, device=device)


@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
def test_cg_takes_as_many_iterations_as_scipy_to_the_same_solution(device: Device, M: Any) -> None:
    count = Count()
    x, info = la.cg(S, B, rtol=1e-10, M=M, callback=count)
    found = cg(matrix(device), B, rtol=1e-10, M=M, full_output=True)
    assert (found.info, info) == (0, 0)
    assert abs(found.iterations - count.calls) <= 2
    assert residual(S, found.x, B) < 1e-9
    np.testing.assert_allclose(found.x, x, rtol=0, atol=1e-8)


def test_cg_solves_right_hand_sides_side_by_side(device: Device) -> None:
    b = right_hand_side(S, 3)
    b[:, 1] = 0
    x, info = cg(matrix(device), b, rtol=1e-9)
    assert info == 0
    assert x.shape == b.shape
    np.testing.assert_array_equal(x[:, 1], 0)
    assert np.all(residual(S, x[:, ::2], b[:, ::2]) < 1e-8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cg_computes_in_the_dtype_of_the_system(real_device: Device, dtype: np.dtype[Any]) -> None:
    T = laplacian(7, dtype)
    b = right_hand_side(T)
    x, info = cg(matrix(real_device, T), b, rtol=1e-4)
    assert info == 0
    assert x.dtype == dtype
    assert residual(T, x, b) < 2e-4


def test_cg_promotes_integers(real_device: Device) -> None:
    x, info = cg(matrix(real_device, S.astype(int)), np.ones(S.shape[0], int))
    assert info == 0
    assert x.dtype == float


def test_cg_takes_all_kinds_of_operators(real_device: Device) -> None:
    expected, _ = la.cg(S, B, rtol=1e-10)
    A = matrix(real_device)
    operator = la.aslinearoperator(S)
    inverse = la.LinearOperator(S.shape, matvec=lambda x: JACOBI @ x, dtype=float)
    with_device = on_device(real_device, B)
    cases: list[tuple[Any, Any, Any]] = [
        (A, B, None), (A, with_device, None), (A, B, inverse), (A, B, JACOBI), (A, B, JACOBI.toarray()),
    ]  # fmt: skip
    if real_device.kind == "cpu":
        cases += [(T, B, None) for T in (S, sp.csr_matrix(S), S.tocoo(), S.toarray(), operator)]
    for T, b, M in cases:
        x, info = cg(T, b, rtol=1e-10, M=M)
        assert info == 0
        assert type(x) is type(b)
        np.testing.assert_allclose(host(x), expected, rtol=0, atol=1e-8)


def test_cg_begins_at_x0_and_leaves_it_alone(real_device: Device) -> None:
    A, guess = matrix(real_device), right_hand_side(S, seed=1)
    kept = guess.copy()
    x, info = cg(A, B, guess, rtol=1e-10)
    assert info == 0
    assert residual(S, x, B) < 1e-9
    np.testing.assert_array_equal(guess, kept)
    again = cg(A, B, x, rtol=1e-8, full_output=True)
    assert (again.iterations, again.info) == (0, 0)
    np.testing.assert_array_equal(again.x, x)


@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
def test_cg_begins_at_the_preconditioned_right_hand_side(real_device: Device, M: Any) -> None:
    first = cg(matrix(real_device), B, "Mb", M=M, maxiter=0, full_output=True)
    np.testing.assert_allclose(first.x, B if M is None else M @ B, rtol=1e-15)
    with pytest.raises(ValueError, match="'Mb'"):
        cg(matrix(real_device), B, "b")


def test_cg_gives_zero_for_a_zero_right_hand_side(device: Device) -> None:
    for guess in (None, B):
        found = cg(matrix(device), np.zeros_like(B), guess, full_output=True)
        assert (found.info, found.iterations) == (0, 0)
        np.testing.assert_array_equal(found.x, 0)


def test_cg_stops_at_maxiter(device: Device) -> None:
    for maxiter in (0, 1, 3):
        found = cg(matrix(device), B, maxiter=maxiter, rtol=1e-12, full_output=True)
        x, _ = la.cg(S, B, maxiter=maxiter, rtol=1e-12)
        assert found.iterations == maxiter
        assert found.info == max(maxiter, 1)  # (SciPy gives 0 for maxiter=0, as if it had converged)
        assert found.reason == "reached maxiter"
        assert "maxiter" in found.advice
        assert len(found.residuals) == maxiter + 1
        np.testing.assert_allclose(found.x, x, rtol=1e-12, atol=1e-12)


def test_cg_calls_back_after_each_iteration(real_device: Device) -> None:
    mine, theirs = Count(), Count()
    x, _ = cg(matrix(real_device), B, rtol=1e-8, callback=mine)
    la.cg(S, B, rtol=1e-8, callback=theirs)
    assert abs(mine.calls - theirs.calls) <= 1
    np.testing.assert_array_equal(mine.last, x)


@pytest.mark.parametrize("where", ["matrix", "right-hand side"])
def test_cg_ends_where_numbers_are_not(device: Device, where: str) -> None:
    T, b = S.copy(), B.copy()
    (T.data if where == "matrix" else b)[3] = np.nan
    found = cg(matrix(device, T), b, full_output=True, maxiter=50)
    assert found.info > 0
    assert found.iterations <= 1
    assert "not a number" in found.reason


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["A", "b", "x0"])
def test_cg_names_what_holds_no_number(real_device: Device, name: str, value: float) -> None:
    given = {"A": S.copy(), "b": B.copy(), "x0": np.ones_like(B)}
    getattr(given[name], "data" if name == "A" else "real")[3] = value
    found = cg(matrix(real_device, given["A"]), given["b"], given["x0"], full_output=True, maxiter=50)
    assert found.info > 0
    assert found.advice == f"{name} holds NaN or inf."


@pytest.mark.parametrize("name", ["cg", "minres", "bicgstab", "gmres", "fgmres", "lsqr", "lsmr"])
def test_a_solve_that_met_no_numbers_is_printed(real_device: Device, name: str, capsys: Any) -> None:
    """Of one right-hand side and of two, where only one has a NaN, with a bar."""
    b = B.copy()
    b[3] = np.nan
    solve, A = getattr(gsparse.linalg, name), matrix(real_device)
    found = solve(A, b, full_output=True, progress=True)
    assert "residual nan → nan\nb holds NaN or inf." in str(found)
    assert found.log().endswith(str(found))
    both = solve(A, np.stack([b, B], axis=1), full_output=True)
    assert "b holds NaN or inf." in str(both) and "residual nan" not in str(both)
    assert both.log().endswith(str(both))


def test_cg_says_that_a_matrix_is_indefinite(device: Device) -> None:
    T = sp.csr_array(S - 3 * sp.eye_array(S.shape[0]))
    found = cg(matrix(device, T), B, rtol=1e-14, maxiter=20, full_output=True)
    assert found.info > 0
    assert "minres" in found.advice


def test_cg_solves_a_consistent_singular_system(device: Device) -> None:
    T = sp.csr_array(S - sp.diags_array(np.asarray(S.sum(axis=1)).ravel()))  # a graph's Laplacian: ones are its kernel
    b = B - B.mean()
    x, info = cg(matrix(device, T), b, rtol=1e-8)
    assert info == 0
    assert residual(T, x, b) < 1e-7


def test_cg_solves_small_systems(device: Device) -> None:
    x, info = cg(matrix(device, sp.csr_array([[4.0]])), np.array([2.0]))
    assert (x.tolist(), info) == ([0.5], 0)
    x, info = cg(matrix(device, sp.csr_array((0, 0))), np.zeros(0))
    assert (x.shape, info) == ((0,), 0)
    x, info = cg(matrix(device), B[:, None], rtol=1e-9)
    assert info == 0
    assert residual(S, x.ravel(), B) < 1e-8


def test_cg_refuses_what_does_not_fit(real_device: Device) -> None:
    A = matrix(real_device)
    with pytest.raises(ShapeError, match="square"):
        cg(matrix(real_device, S[:, 1:]), B)
    with pytest.raises(ShapeError, match="incompatible"):
        cg(A, B[1:])
    with pytest.raises(ShapeError, match="incompatible"):
        cg(A, B, B[1:])
    with pytest.raises(ShapeError, match="preconditioner"):
        cg(A, B, M=JACOBI[1:, 1:])
    with pytest.raises(ValueError, match="non-negative"):
        cg(A, B, atol=-1)
    with pytest.raises(TypeError, match="A must be a matrix or operator, got str"):
        cg("A", B)


@pytest.mark.parametrize(
    ("M", "words"),
    [
        ("jacobi", r"got str: M=gsparse\.linalg\.jacobi\(A\)"),
        ("ilu0", r"got str: M=gsparse\.linalg\.ilu0\(A\)"),
        (ilu0, r"got function: M=gsparse\.linalg\.ilu0\(A\)"),
        (np.ones(3), r"got ndarray of float64 with shape \(3,\)"),
    ],
    ids=["a name", "another name", "a function", "a vector"],
)
def test_cg_says_how_a_preconditioner_is_made(real_device: Device, M: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"M must be a matrix or operator, {words}"):
        cg(matrix(real_device), B, M=M)


def test_cg_tells_how_it_went(real_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    found = cg(matrix(real_device), B, rtol=1e-8, full_output=True, progress=True)
    _, info = found
    assert isinstance(found, SolveResult)
    assert info == 0
    assert found.reason == "converged"
    assert found.advice == ""
    assert found.seconds > 0
    np.testing.assert_allclose(found.residuals[0], np.linalg.norm(B))
    assert found.residuals[-1] < 1e-8 * np.linalg.norm(B) <= found.residuals[-2]
    assert "converged after" in str(found)
    assert f"{found.iterations}it" in capsys.readouterr().err  # the bar, without an end where none was given
    found = cg(matrix(real_device), B, rtol=1e-8, full_output=True, progress=True, maxiter=500)
    assert f"{found.iterations}/500" in capsys.readouterr().err


@pytest.mark.parametrize("solve", [bicgstab, cg, chebyshev, gmres, lsmr, lsqr, minres])
def test_a_bar_without_tqdm_is_refused_before_any_work(solve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "tqdm.auto", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"progress=True needs tqdm: pip install 'gsparse\[progress\]'"):
        solve(None, None, progress=True)


# Matrices and tolerances at which the count of iterations hardly hangs on roundings: SciPy's own counts, with the rows
# in other orders or in extended precision, differ by 3 at most (on others by hundreds).
REAL = {
    "CVXQP3_L_P": 1e-5, "bcsstk13": 1e-2, "bcsstk16": 1e-5, "concrete_K": 1e-2, "mhd1280b": 1e-2,
    "polyfem_A_2": 1e-5, "pyamg_airfoil": 1e-5, "pyamg_bar": 1e-5, "pyamg_knot": 1e-5, "pyamg_unit_cube": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_cg_takes_as_many_iterations_as_scipy_on_real_matrices(real_device: Device, name: str) -> None:
    T = sp.csr_array(sp.load_npz(matrix_folder() / f"{name}.npz"))
    T = sp.csr_array(T.real if T.dtype.kind == "c" else T, dtype=float)
    b, count = T @ np.ones(T.shape[0]), Count()
    _, info = la.cg(T, b, rtol=REAL[name], callback=count)
    found = cg(matrix(real_device, T), b, rtol=REAL[name], full_output=True)
    assert (info, found.info) == (0, 0)
    assert abs(found.iterations - count.calls) <= 3
    assert residual(T, found.x, b) < 1.01 * REAL[name]


NONSYMMETRIC = convection(7)


@pytest.mark.parametrize("solve", [cg, minres])
@pytest.mark.parametrize("columns", [None, 2])
def test_a_failed_solve_names_the_operators_that_are_not_symmetric(
    device: Device, solve: Any, columns: int | None
) -> None:
    b, skew = right_hand_side(S, columns), ilu0(matrix(device, NONSYMMETRIC), shift=0.01)
    steady = jacobi(matrix(device))
    cases = [
        (S, None, "Allow more"), (S, steady, "Allow more"), (NONSYMMETRIC, None, "A is not symmetric: "),
        (NONSYMMETRIC, steady, "A is not symmetric: "), (S, skew, "M is not symmetric: "),
        (NONSYMMETRIC, skew, "A and M are not symmetric: "),
    ]  # fmt: skip
    for T, M, begin in cases:
        found = solve(matrix(device, T), b, M=M, maxiter=2, full_output=True)
        assert found.info > 0
        assert found.advice.startswith(begin)
        assert begin == "Allow more" or "gmres" in found.advice


@pytest.mark.parametrize("dtype", [*DTYPES], ids=str)
def test_a_failed_solve_of_a_hermitian_system_is_not_laid_to_symmetry(real_device: Device, dtype: Any) -> None:
    T = sp.csr_array(laplacian(20, dtype) + sp.eye_array(400, dtype=dtype))
    A, b = matrix(real_device, T), right_hand_side(T)
    for M in (None, ic0(A), isai(A), chebyshev_polynomial(A)):
        found = cg(A, b, M=M, maxiter=2, rtol=1e-6, full_output=True)
        assert found.info > 0
        assert "more iterations" in found.advice
        assert ("another preconditioner" in found.advice) == (M is not None)
    wrong = (T + sp.diags_array(np.full(399, 0.5), offsets=1)).astype(dtype)
    found = cg(matrix(real_device, sp.csr_array(wrong)), b, maxiter=2, full_output=True)
    assert found.advice.startswith(f"A is not {'Hermitian' if np.dtype(dtype).kind == 'c' else 'symmetric'}")


def test_numbers_that_are_none_are_named_before_symmetry(real_device: Device) -> None:
    found = cg(matrix(real_device, NONSYMMETRIC), right_hand_side(S) * np.nan, full_output=True)
    assert found.advice == "b holds NaN or inf."


def test_a_caller_who_gets_no_advice_does_not_wait_for_its_products(
    real_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.linalg.krylov.symmetry.not_hermitian", None)
    assert cg(matrix(real_device, NONSYMMETRIC), right_hand_side(S), maxiter=2)[1] == 2
