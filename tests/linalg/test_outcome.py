"""A solve says what it has tested, what the true residual is, and warns once if it has not converged."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse import linalg as gla
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, GsparseError
from gsparse.linalg.krylov import solve_loop
from tests.linalg.problems import convection, laplacian, right_hand_side

S, C = laplacian(9), convection(9)
# Each solver with a matrix that it is made for, and the name of its limit.
SOLVERS: dict[str, tuple[Any, sp.csr_array, str]] = {
    "cg": (gla.cg, S, "maxiter"),
    "cg, refined": (partial(gla.cg, inner_dtype=np.float32), S, "maxiter"),
    "minres": (gla.minres, S, "maxiter"),
    "chebyshev": (partial(gla.chebyshev, bounds=(0.1, 8)), S, "maxiter"),
    "gmres": (partial(gla.gmres, restart=4), C, "maxiter"),
    "fgmres": (partial(gla.fgmres, restart=4), C, "maxiter"),
    "bicgstab": (gla.bicgstab, C, "maxiter"),
    "lsqr": (gla.lsqr, C, "iter_lim"),
    "lsmr": (gla.lsmr, C, "maxiter"),
}
RELATIVE_TO_MATRIX = ("minres", "lsqr", "lsmr")
# Its recurrence promises MINRES a small residual, but it holds for symmetric matrices only.
BIDIAGONAL = sp.diags_array([1.0, 1.0], offsets=[0, 1], shape=(600, 600)).tocsr()


@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.few(1)
def test_the_full_output_says_the_true_residual_of_every_solver(device: Device, name: str, columns: int | None) -> None:
    solve, T, _ = SOLVERS[name]
    b = right_hand_side(T, columns)
    result = solve(GpuSparseMatrix(T, device=device), b, full_output=True)
    assert result.info == 0
    true = np.linalg.norm(b - T @ result.x, axis=0) / np.linalg.norm(b, axis=0)
    np.testing.assert_allclose(result.relative_residual, true, rtol=1e-3)
    assert f"norm(b - A·x) / norm(b) = {true.max():.1e}" in str(result)
    assert ("converged" in str(result)) == (name not in RELATIVE_TO_MATRIX)
    assert ("passed the test norm(r) <= " in str(result)) == (name in RELATIVE_TO_MATRIX)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solve_that_has_not_converged_warns_once_a_call_with_reason_and_advice(
    real_device: Device, name: str
) -> None:
    solve, T, limit = SOLVERS[name]
    A, b = GpuSparseMatrix(T, device=real_device), right_hand_side(T, 3)
    with pytest.warns(ConvergenceWarning) as issued:
        solve(A, b, **{limit: 2})
    assert [warning.filename for warning in issued] == [__file__]
    result = solve(A, b, **{limit: 2}, full_output=True)  # a warning would be an error
    text = str(issued[0].message)
    assert f"has not converged: reached maxiter after {result.iterations} iterations" in text
    assert result.advice and result.advice in text
    solve(A, b)


def test_the_warning_names_a_matrix_that_is_not_symmetric(real_device: Device) -> None:
    A = GpuSparseMatrix(C, device=real_device)
    for solve in (gla.cg, gla.minres):
        with pytest.warns(ConvergenceWarning, match="A is not symmetric: use gmres or bicgstab"):
            assert solve(A, right_hand_side(C), maxiter=60, rtol=1e-12)[1] > 0


def test_minres_is_no_success_if_only_a_symmetric_matrix_would_have_passed_the_test(device: Device) -> None:
    A, b = GpuSparseMatrix(BIDIAGONAL, device=device), np.ones(600)
    result = gla.minres(A, b, rtol=1e-6, full_output=True)
    assert result.relative_residual > 1e-3
    assert result.info == result.iterations > 0
    assert "converged" not in str(result) and "A is not symmetric: use gmres or bicgstab" in str(result)
    with pytest.warns(ConvergenceWarning, match="b - A·x is larger than the tolerance"):
        assert gla.minres(A, b, rtol=1e-6)[1] == result.info


def test_a_symmetric_matrix_is_not_checked_where_the_test_of_minres_holds(
    real_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.linalg.krylov.outcome.not_hermitian", None)
    assert gla.minres(GpuSparseMatrix(S, device=real_device), right_hand_side(S), rtol=1e-6)[1] == 0


def test_the_residual_of_a_zero_right_hand_side_is_zero(real_device: Device) -> None:
    A = GpuSparseMatrix(S, device=real_device)
    for name in ("cg", "minres", "lsqr"):
        solve, _, _ = SOLVERS[name]
        assert solve(A, np.zeros(S.shape[0]), full_output=True).relative_residual == 0


PRECONDITIONERS = {
    "none": lambda A: None,
    **{make.__name__: make for make in (gla.jacobi, gla.gauss_seidel, gla.isai, gla.ic0, gla.ilu0, gla.amg)},
}
RECURRENCES = {
    **{name: solver for name, (solver, _, _) in SOLVERS.items() if not name.startswith("ls")},
    "cg, one reduction": partial(gla.cg, single_reduction=True),
}


def norm_of(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector.astype(np.longdouble)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*RECURRENCES, "lsqr", "lsmr"])
@pytest.mark.filterwarnings("ignore:the (set-up|smoother|coarsening)")
def test_the_true_residual_confirms_every_success_whatever_the_scales_of_rows_and_columns(
    name: str, dtype: str
) -> None:
    size, rtol, solved = 120, 1e-5, set()
    solve = RECURRENCES.get(name) or partial(getattr(gla, name), atol=rtol, btol=rtol)
    line, b = sp.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(size, size)), np.ones(size, dtype)
    for power, other_power in ((0, 0), (1, 1), (3, 3), (8, 8), (2, -3)):
        rows, columns = (10.0 ** (p * np.cos(np.arange(size))) for p in (power, other_power))
        T = sp.csr_array(sp.diags_array(rows) @ line @ sp.diags_array(columns)).astype(dtype)
        A = GpuSparseMatrix(T, device="cpu")
        for kind, make in PRECONDITIONERS.items() if name in RECURRENCES else [("none", None)]:
            try:
                options = {"rtol": rtol, "M": make(A), "maxiter": 150} if make else {}
                result = solve(A, b, full_output=True, **options)
            except (GsparseError, ValueError, ArithmeticError):
                continue  # a preconditioner or an operator that the method has to refuse
            x = result.x.astype(np.longdouble)
            residual, tolerance = norm_of(b - T.astype(np.longdouble) @ x), 10 * rtol * norm_of(b)
            if name in RELATIVE_TO_MATRIX:
                of_A = 10 * rtol * np.linalg.norm(T.toarray().astype(float)) * float(np.linalg.norm(x))
                tolerance += min(of_A, norm_of(b))
            if result.info == 0 and "least-squares" not in result.reason:
                assert residual <= 1.1 * tolerance, (power, kind)
                solved.add((power, kind))
            else:
                assert result.reason and (result.advice or result.info == 0), (power, kind)
    assert (0, "none") in solved


def laplacian_of_a_grid(device: Device, size: int) -> GpuSparseMatrix:
    """Make the Laplacian of a grid of size x size nodes, whose rows add up to zero."""
    degrees = np.r_[1.0, np.full(size - 2, 2.0), 1.0]
    line = sp.diags_array([-np.ones(size - 1), degrees, -np.ones(size - 1)], offsets=[-1, 0, 1])
    return GpuSparseMatrix(sp.csr_array(sp.kronsum(line, line)), device=device)


@pytest.mark.parametrize("columns", [None, 2])
def test_the_advice_for_a_laplacian_is_to_subtract_the_mean_of_b(real_device: Device, columns: int | None) -> None:
    A = laplacian_of_a_grid(real_device, 20)
    b = np.zeros(400) if columns is None else np.zeros((400, columns))
    b[3] = 1.0
    result = gla.cg(A, b, maxiter=60, full_output=True)
    assert result.info and result.advice.endswith("subtract the mean of b.")
    assert gla.cg(A, b - b.mean(axis=0), rtol=1e-8)[1] == 0


@pytest.fixture
def early_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a solve look after 50 iterations whether it can converge."""
    monkeypatch.setattr(solve_loop, "_MANY_ITERATIONS", 50)


@pytest.mark.usefixtures("early_look")
@pytest.mark.parametrize("options", [{}, {"single_reduction": True}, {"inner_dtype": "float32"}, {"M": gla.jacobi}])
def test_cg_does_not_take_ten_iterations_a_row_for_a_system_without_a_solution(
    real_device: Device, options: dict[str, Any]
) -> None:
    A = laplacian_of_a_grid(real_device, 40)
    b = np.zeros((1600, 2))
    b[3] = 1.0
    M = options["M"](A) if "M" in options else None
    result = gla.cg(A, b, full_output=True, **{**options, "M": M})
    assert 0 < result.iterations < 500
    assert result.info == result.iterations and result.reason == "stopped: no x reaches the tolerance"
    assert result.advice.endswith("subtract the mean of b.")


@pytest.mark.usefixtures("early_look")
def test_cg_goes_on_as_long_as_one_right_hand_side_may_converge(real_device: Device) -> None:
    A = laplacian_of_a_grid(real_device, 60)
    b = np.zeros((3600, 2))
    b[3], b[4, 1] = 1.0, -1.0  # the mean of the second column is zero
    result = gla.cg(A, b, rtol=1e-12, maxiter=600, full_output=True)
    assert result.iterations == 600
    assert result.relative_residual[1] <= 1e-11 < result.relative_residual[0]


@pytest.mark.usefixtures("early_look")
@pytest.mark.parametrize("name", [name for name in SOLVERS if name not in RELATIVE_TO_MATRIX])
@pytest.mark.parametrize("columns", [None, 2])
def test_the_advice_names_a_row_that_no_x_solves(real_device: Device, name: str, columns: int | None) -> None:
    solver, matrix, limit = SOLVERS[name]
    keep = sp.diags_array((np.arange(81) != 40).astype(float))
    T = sp.csr_array(keep @ matrix @ keep)
    b = np.ones(81 if columns is None else (81, columns))
    b[:20] = 0
    for is_stored in (True, False):  # zeros, or a row without entries
        if not is_stored:
            T.eliminate_zeros()
        A = GpuSparseMatrix(T, device=real_device)
        for M in (None, gla.amg(A, max_coarse=10)):
            result = solver(A, b, M=M, full_output=True, **{limit: 50})
            assert result.info != 0
            assert "Row 40 of A is zero and b is not" in result.advice


@pytest.mark.parametrize("solver", [gla.cg, gla.minres, gla.gmres, gla.bicgstab])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_or_a_column_of_zeros_is_named_also_without_the_other(solver: Any, axis: int) -> None:
    keep = sp.diags_array((np.arange(81) != 40).astype(float))
    A = GpuSparseMatrix(sp.csr_array(keep @ S if axis == 0 else S @ keep), device="cpu")
    for M in (None, gla.amg(A, max_coarse=10)):
        result = solver(A, np.ones(81), M=M, maxiter=50, full_output=True)
        assert result.info != 0
        assert ("Row 40 of A is zero and b is not", "Column 40 of A is zero")[axis] in result.advice


def test_a_loose_tolerance_is_reached_despite_a_mean(real_device: Device) -> None:
    A, b = laplacian_of_a_grid(real_device, 80), np.zeros(6400)
    b[0], b[-1] = 1.0, -1 + 1e-3
    result = gla.cg(A, b, rtol=1e-4, full_output=True)
    assert result.info == 0 and result.iterations > 100


def test_a_result_is_a_pair() -> None:
    S = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(20, 20), format="csr")
    result = gla.cg(S, np.ones(20), full_output=True)
    x, info = result
    assert result[0] is x and result[1] == result[-1] == info == 0
    with pytest.raises(IndexError):
        result[2]
