"""Conjugate gradients behave as SciPy's, on every device."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, ShapeError
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
from tests.linalg.problems import Count, convection, laplacian, matrix, residual, right_hand_side
from tests.support import DTYPES, host, matrix_folder, on_device

S = laplacian(7)
B = right_hand_side(S)
JACOBI = sp.csr_array(sp.diags_array(1 / (1 + S.diagonal() + np.arange(S.shape[0]) % 3)))


FORMS = {"two sums": cg, "one sum": partial(cg, single_reduction=True)}
forms = pytest.mark.parametrize("form", FORMS)


@forms
@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
def test_cg_takes_as_many_iterations_as_scipy_to_the_same_solution(device: Device, M: Any, form: str) -> None:
    count = Count()
    x, info = la.cg(S, B, rtol=1e-10, M=M, callback=count)
    result = FORMS[form](matrix(device, S), B, rtol=1e-10, M=M, full_output=True)
    assert (result.info, info) == (0, 0)
    assert abs(result.iterations - count.calls) <= 2
    assert residual(S, result.x, B) < 1e-9
    np.testing.assert_allclose(result.x, x, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", ["bool", "int8", "int32", "float32", "complex64"])
@pytest.mark.parametrize("name", ["cg", "minres", "gmres", "bicgstab"])
def test_solutions_and_products_have_the_dtypes_of_scipys(name: str, kind: str) -> None:
    T = sp.csr_array(np.eye(4), dtype=kind)
    A = GpuSparseMatrix(T, device="cpu")
    for dtype in ("bool", "int8", "int64", "float32", "float64", "complex64", "complex128"):
        b = np.ones(4, dtype)
        # SciPy's minres is for real systems, and computes in double precision.
        if name != "minres" or ("c" not in T.dtype.kind + b.dtype.kind and (kind, dtype) != ("float32", "float32")):
            x, info = getattr(gsparse.linalg, name)(A, b)
            assert (x.dtype, info) == (getattr(la, name)(T, b)[0].dtype, 0), dtype
        assert (A @ b).dtype == (T @ b).dtype
        assert (A @ b[:, None]).dtype == (T @ b[:, None]).dtype


def test_cg_accepts_all_kinds_of_operators(real_device: Device) -> None:
    expected, _ = la.cg(S, B, rtol=1e-10)
    A = matrix(real_device, S)
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


@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
def test_cg_begins_at_the_preconditioned_right_hand_side(real_device: Device, M: Any) -> None:
    first = cg(matrix(real_device, S), B, "Mb", M=M, maxiter=0, full_output=True)
    np.testing.assert_allclose(first.x, B if M is None else M @ B, rtol=1e-15)
    with pytest.raises(ValueError, match="'Mb'"):
        cg(matrix(real_device, S), B, "b")


@forms
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["A", "b", "x0"])
def test_cg_names_the_argument_that_holds_nan_or_inf(real_device: Device, name: str, value: float, form: str) -> None:
    arguments = {"A": S.copy(), "b": B.copy(), "x0": np.ones_like(B)}
    getattr(arguments[name], "data" if name == "A" else "real")[3] = value
    A = matrix(real_device, arguments["A"])
    result = FORMS[form](A, arguments["b"], arguments["x0"], full_output=True, maxiter=50)
    assert result.info < 0
    assert result.iterations <= 1
    assert result.advice == f"{name} holds NaN or inf."


@forms
def test_cg_leaves_x0_where_the_matrix_is_zero(device: Device, form: str) -> None:
    result = FORMS[form](matrix(device, 0 * S), B, np.ones_like(B), maxiter=50, full_output=True)
    assert (result.info < 0, result.iterations) == (True, 0)
    np.testing.assert_array_equal(result.x, 1)


@pytest.mark.parametrize("name", ["cg", "minres", "bicgstab", "gmres", "fgmres", "lsqr", "lsmr"])
@pytest.mark.few(1)
def test_the_result_of_a_solve_with_nan_can_be_printed(real_device: Device, name: str, capsys: Any) -> None:
    """Check one right-hand side with a NaN, and two of which only one has a NaN, with a progress bar."""
    b = B.copy()
    b[3] = np.nan
    solve, A = getattr(gsparse.linalg, name), matrix(real_device, S)
    result = solve(A, b, full_output=True, progress=True)
    assert "residual nan → nan" in str(result) and str(result).endswith("\nb holds NaN or inf.")
    assert result.log().endswith(str(result))
    both = solve(A, np.stack([b, B], axis=1), full_output=True)
    assert "b holds NaN or inf." in str(both) and "residual nan" not in str(both)
    assert both.log().endswith(str(both))


@forms
def test_cg_reports_that_a_matrix_is_indefinite(device: Device, form: str) -> None:
    T = sp.csr_array(S - 3 * sp.eye_array(S.shape[0]))
    result = FORMS[form](matrix(device, T), B, rtol=1e-14, maxiter=20, full_output=True)
    assert result.info > 0
    assert result.advice.startswith("A is not positive definite: use minres")


@pytest.mark.parametrize("M", [None, sp.eye_array(2)], ids=["plain", "preconditioned"])
def test_a_breakdown_of_cg_leaves_the_x_before_it(device: Device, M: Any) -> None:
    A = matrix(device, sp.csr_array(np.diag([1.0, -1.0])))  # <p, A·p> = 0 for p = (1, 1)
    for guess in (np.zeros(2), np.array([0.5, 1.5])):
        result = cg(A, np.array([1.5, -0.5]) if guess.any() else np.ones(2), guess, M=M, full_output=True)
        assert (result.info, result.iterations, result.x.tolist()) == (-1, 0, guess.tolist())
        assert "not positive definite" in result.advice


def test_a_breakdown_of_cg_names_what_helps_with_an_indefinite_matrix(real_device: Device) -> None:
    A = matrix(real_device, sp.csr_array(np.diag([1.0, 2.0, -3.0])))
    result = cg(A, np.ones(3), full_output=True)
    assert result.info < 0
    assert "A is not positive definite, or is singular: use minres, or gsparse.linalg.solve(A, b)" in result.advice
    assert gsparse.linalg.minres(A, np.ones(3))[1] == 0


def test_cg_solves_a_consistent_singular_system(device: Device) -> None:
    T = sp.csr_array(
        S - sp.diags_array(np.asarray(S.sum(axis=1)).ravel())
    )  # a graph Laplacian: its null space holds constants
    b = B - B.mean()
    x, info = cg(matrix(device, T), b, rtol=1e-8)
    assert info == 0
    assert residual(T, x, b) < 1e-7


def test_cg_refuses_incompatible_arguments(real_device: Device) -> None:
    A = matrix(real_device, S)
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
def test_the_error_for_a_preconditioner_by_name_says_how_to_make_one(real_device: Device, M: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"M must be a matrix or operator, {words}"):
        cg(matrix(real_device, S), B, M=M)


def test_cg_reports_its_history_and_progress(real_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    result = cg(matrix(real_device, S), B, rtol=1e-8, full_output=True, progress=True)
    _, info = result
    assert isinstance(result, SolveResult)
    assert info == 0
    assert result.reason == "converged"
    assert result.advice == ""
    assert result.seconds > 0
    np.testing.assert_allclose(result.residuals[0], np.linalg.norm(B))
    assert result.residuals[-1] < 1e-8 * np.linalg.norm(B) <= result.residuals[-2]
    assert "converged after" in str(result)
    assert f"{result.iterations}it" in capsys.readouterr().err  # without maxiter, the bar has no total
    result = cg(matrix(real_device, S), B, rtol=1e-8, full_output=True, progress=True, maxiter=500)
    assert f"{result.iterations}/500" in capsys.readouterr().err


@pytest.mark.parametrize("solve", [bicgstab, cg, chebyshev, gmres, lsmr, lsqr, minres])
def test_progress_without_tqdm_is_refused_before_any_work(solve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "tqdm.auto", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"progress=True needs tqdm: pip install 'gsparse-gpu\[progress\]'"):
        solve(None, None, progress=True)


# Matrices and tolerances at which rounding hardly changes the number of iterations. With reordered rows or in extended
# precision, SciPy's own counts differ by at most 3 here, but by hundreds for other matrices.
REAL = {
    "CVXQP3_L_P": 1e-5, "bcsstk13": 1e-2, "bcsstk16": 1e-5, "concrete_K": 1e-2, "mhd1280b": 1e-2,
    "polyfem_A_2": 1e-5, "pyamg_airfoil": 1e-5, "pyamg_bar": 1e-5, "pyamg_knot": 1e-5, "pyamg_unit_cube": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
@pytest.mark.few(4)
def test_cg_takes_as_many_iterations_as_scipy_on_application_matrices(real_device: Device, name: str) -> None:
    T = sp.csr_array(sp.load_npz(matrix_folder() / f"{name}.npz"))
    T = sp.csr_array(T.real if T.dtype.kind == "c" else T, dtype=float)
    b, count = T @ np.ones(T.shape[0]), Count()
    _, info = la.cg(T, b, rtol=REAL[name], callback=count)
    result = cg(matrix(real_device, T), b, rtol=REAL[name], full_output=True)
    assert (info, result.info) == (0, 0)
    assert abs(result.iterations - count.calls) <= 3
    assert residual(T, result.x, b) < 1.01 * REAL[name]


NONSYMMETRIC = convection(7)


@pytest.mark.parametrize("solve", [*FORMS.values(), minres])
@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.few(1)
def test_a_failed_solve_names_the_operators_that_are_not_symmetric(
    device: Device, solve: Any, columns: int | None
) -> None:
    b, M_nonsymmetric = right_hand_side(S, columns), ilu0(matrix(device, NONSYMMETRIC), shift=0.01)
    M_jacobi = jacobi(matrix(device, S))
    cases = [
        (S, None, "Allow more"), (S, M_jacobi, "Allow more"), (NONSYMMETRIC, None, "A is not symmetric: "),
        (NONSYMMETRIC, M_jacobi, "A is not symmetric: "), (S, M_nonsymmetric, "M is not symmetric: "),
        (NONSYMMETRIC, M_nonsymmetric, "A and M are not symmetric: "),
    ]  # fmt: skip
    for T, M, advice_start in cases:
        result = solve(matrix(device, T), b, M=M, maxiter=2, full_output=True)
        assert result.info > 0
        assert result.advice.startswith(advice_start)
        assert advice_start == "Allow more" or "gmres" in result.advice


@pytest.mark.parametrize("dtype", [*DTYPES], ids=str)
@pytest.mark.few(2)
def test_a_failed_solve_of_a_hermitian_system_is_not_blamed_on_symmetry(real_device: Device, dtype: Any) -> None:
    T = sp.csr_array(laplacian(20, dtype) + sp.eye_array(400, dtype=dtype))
    A, b = matrix(real_device, T), right_hand_side(T)
    for M in (None, ic0(A), isai(A), chebyshev_polynomial(A)):
        result = cg(A, b, M=M, maxiter=2, rtol=1e-6, full_output=True)
        assert result.info > 0
        assert "more iterations" in result.advice
        assert ("another preconditioner" in result.advice) == (M is not None)
    wrong = (T + sp.diags_array(np.full(399, 0.5), offsets=1)).astype(dtype)
    result = cg(matrix(real_device, sp.csr_array(wrong)), b, maxiter=2, full_output=True)
    assert result.advice.startswith(f"A is not {'Hermitian' if np.dtype(dtype).kind == 'c' else 'symmetric'}")


def test_nan_is_reported_before_missing_symmetry(real_device: Device) -> None:
    result = cg(matrix(real_device, NONSYMMETRIC), right_hand_side(S) * np.nan, full_output=True)
    assert result.advice == "b holds NaN or inf."


def test_symmetry_is_not_checked_after_a_few_iterations_without_full_output(
    real_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.linalg.krylov.outcome.not_hermitian", None)
    with pytest.warns(ConvergenceWarning):
        assert cg(matrix(real_device, NONSYMMETRIC), right_hand_side(S), maxiter=2)[1] == 2
