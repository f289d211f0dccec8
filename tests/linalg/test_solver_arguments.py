"""What all solvers share: limits, tolerances, right-hand sides without columns, guesses, dtypes, ends on NaN."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix, linalg
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, DtypeError, ShapeError
from gsparse.linalg.registry import METHODS, names_of
from gsparse.linalg.result import SolveResult
from tests.linalg.problems import Count, laplacian, matrix, residual, right_hand_side
from tests.support import DTYPES

N = 30
S = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(N, N)).tocsr()
SOLVERS = (*names_of("solver"), "solve")
TOLERANCES = ("rtol", "atol", "btol", "conlim")


def limit_of(name: str) -> str:
    return "iter_lim" if name == "lsqr" else "maxiter"


def tolerances_of(name: str) -> tuple[str, ...]:
    accepted = METHODS[name].signature.parameters if name in METHODS else ("rtol", "atol")
    return tuple(tolerance for tolerance in TOLERANCES if tolerance in accepted)


@pytest.fixture(scope="module")
def A() -> GpuSparseMatrix:
    return GpuSparseMatrix(S, device="cpu")


@pytest.mark.parametrize("name", SOLVERS)
def test_a_limit_must_be_a_number_of_iterations(A: GpuSparseMatrix, name: str) -> None:
    solver, limit = getattr(linalg, name), limit_of(name)
    for value in (1.5, 100.0, "3", np.nan, np.float64(2)):
        with pytest.raises(TypeError, match=rf"{limit} must be an integer, got .*: convert it with int\(\)"):
            solver(A, np.ones(N), **{limit: value})
    for number in (-1, -3, np.int64(-1)):
        with pytest.raises(ValueError, match=f"{limit} must be at least 0, got "):
            solver(A, np.ones(N), **{limit: number})


def test_the_length_of_a_cycle_must_be_a_positive_integer(A: GpuSparseMatrix) -> None:
    for solver in (linalg.gmres, linalg.fgmres):
        with pytest.raises(ValueError, match="restart must be at least 1, got 0"):
            solver(A, np.ones(N), restart=0)
        with pytest.raises(TypeError, match=r"restart must be an integer, got 2.5"):
            solver(A, np.ones(N), restart=2.5)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_tolerance_must_be_a_real_number_that_is_not_negative(A: GpuSparseMatrix, name: str) -> None:
    tolerances = tolerances_of(name)
    assert tolerances
    for tolerance in tolerances:
        for value in (np.nan, np.float32("nan"), -1e-3, -1, "1e-3", 1j, np.complex128(1), [1e-3]):
            with pytest.raises(ValueError, match=f"{tolerance} must be a real, non-negative number, got "):
                getattr(linalg, name)(A, np.ones(N), **{tolerance: value})


@pytest.mark.parametrize("name", SOLVERS)
def test_the_old_name_of_the_tolerance_is_refused_with_the_new_one(A: GpuSparseMatrix, name: str) -> None:
    new = "atol and btol" if name in ("lsqr", "lsmr") else "rtol"
    with pytest.raises(TypeError, match=rf"{name}\(\) takes no argument 'tol', as in SciPy: use {new}"):
        getattr(linalg, name)(A, np.ones(N), tol=1e-3)


@pytest.mark.parametrize(
    ("name", "argument", "new"),
    [
        ("lsqr", "rtol", "atol and btol"),
        ("lsqr", "maxiter", "iter_lim"),
        ("lsmr", "iter_lim", "maxiter"),
        ("lsmr", "alpha", "damp"),
        ("lsqr", "damping", "damp"),
    ],
)
def test_the_name_of_an_argument_of_another_function_is_refused_with_the_right_one(
    A: GpuSparseMatrix, name: str, argument: str, new: str
) -> None:
    with pytest.raises(TypeError, match=rf"{name}\(\) takes no argument '{argument}', as in SciPy: use {new} instead"):
        getattr(linalg, name)(A, np.ones(N), **{argument: 1})


@pytest.mark.parametrize("name", SOLVERS)
def test_a_right_hand_side_without_columns_has_a_solution_without_columns(A: GpuSparseMatrix, name: str) -> None:
    solver = getattr(linalg, name)
    for dtype, x0 in ((np.float64, None), (np.float32, np.zeros((N, 0), np.float32))):
        b = np.zeros((N, 0), dtype)
        x, *others = solver(A, b, x0=x0)
        exact = solver(A, np.zeros((N, 2), dtype), x0=None)
        assert isinstance(x, np.ndarray)
        assert (x.shape, x.dtype) == ((N, 0), next(iter(exact)).dtype)
        if name not in ("lsqr", "lsmr"):
            assert others == [0]
            continue
        assert len(others) == len(exact) - 1
        for value, columns in zip(others, exact[1:], strict=True):
            assert (value.shape, value.dtype) == (columns[..., :0].shape, columns.dtype)
    result = solver(A, b) if name == "solve" else solver(A, b, full_output=True)
    assert isinstance(result, SolveResult)
    assert (result.x.shape, result.info, result.residuals.shape[1:]) == ((N, 0), 0, (0,))
    assert any(word in str(result) for word in ("converged", "solution", "passed the test"))


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.whole
def test_a_complex_guess_keeps_its_imaginary_part(A: GpuSparseMatrix, name: str, rng: Any) -> None:
    b = rng.standard_normal(N)
    exact = np.linalg.solve(S.toarray(), b)
    limit = {} if name == "solve" else {limit_of(name): 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)  # No iteration is allowed at first.
        guess = exact + 1j * rng.standard_normal(N)
        x = next(iter(getattr(linalg, name)(A, b, x0=guess, **limit)))
        assert x.dtype == np.complex128
        if limit:
            np.testing.assert_array_equal(x, guess)
        tight = {tolerance: 1e-12 for tolerance in tolerances_of(name) if tolerance != "conlim"}
        x = next(iter(getattr(linalg, name)(A, b, x0=guess, **tight, **({limit_of(name): 500} if limit else {}))))
    np.testing.assert_allclose(x, exact, atol=1e-8)


BREAKDOWNS = ("cg", "minres", "bicgstab", "chebyshev", "lsqr", "lsmr")


@pytest.mark.parametrize("name", BREAKDOWNS)
def test_info_is_negative_after_a_breakdown(A: GpuSparseMatrix, name: str) -> None:
    assert {*BREAKDOWNS, "gmres", "fgmres"} == set(names_of("solver"))  # these two return maxiter, as in SciPy
    b = np.ones(N)
    b[3] = np.nan
    options = {"bounds": (0.5, 4.5)} if name == "chebyshev" else {}
    result = getattr(linalg, name)(A, b, full_output=True, **options)
    assert result.info < 0
    assert (result.reason[:10], result.advice) == ("broke down", "b holds NaN or inf.")


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.few(2)
def test_solvers_round_extended_precision_to_double(name: str) -> None:
    solver, wide = getattr(linalg, name), S.astype(np.longdouble)
    for operator, b in ((S, np.ones(N, np.longdouble)), (wide, np.ones(N)), (wide, np.ones(N, np.clongdouble))):
        x, *_ = solver(GpuSparseMatrix(operator, device="cpu"), b)
        assert x.dtype == (np.complex128 if b.dtype.kind == "c" else np.float64)
        np.testing.assert_allclose(S @ x, 1, rtol=1e-3)


@pytest.mark.parametrize("name", names_of("preconditioner"))
def test_preconditioners_round_extended_precision_to_double(name: str) -> None:
    options: dict[str, Any] = {"block_jacobi": {"block_size": 5}, "fieldsplit": {"fields": [10]}}.get(name, {})
    M = getattr(linalg, name)(GpuSparseMatrix(S.astype(np.longdouble), device="cpu"), **options)
    assert M.dtype == np.float64
    x, info = linalg.gmres(S, np.ones(N), M=M)
    assert info == 0
    np.testing.assert_allclose(S @ x, 1, rtol=1e-3)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_right_hand_side_is_a_dense_array_of_numbers(A: GpuSparseMatrix, name: str) -> None:
    solver = getattr(linalg, name)
    with pytest.raises(DtypeError, match=r"vectors must consist of numbers, got object: use astype\(float\)"):
        solver(A, np.ones(N, object))
    with pytest.raises(
        TypeError, match=r"b is a sparse matrix, but solvers take dense right-hand sides: pass b.toarray\(\)"
    ):
        solver(A, sp.csc_array(np.ones((N, 1))))


def test_a_guess_without_dimensions_is_refused(device: Device) -> None:
    A = GpuSparseMatrix(sp.csr_array([[2.0]]), device=device)
    with pytest.raises(
        ShapeError, match=r"shapes of A \(1, 1\) and x0 \(\) are incompatible: x0 must have shape \(1,\)"
    ):
        linalg.cg(A, np.ones(1), x0=np.array(1.0))


# ------------------------------------------------------------------------ what every solver of square systems promises

SQUARE: dict[str, Any] = {
    **{name: getattr(linalg, name) for name in ("cg", "minres", "bicgstab", "gmres", "fgmres", "chebyshev")},
    "cg, single reduction": partial(linalg.cg, single_reduction=True),
}
T = sp.csr_array(laplacian(7) + sp.eye_array(49))
B = right_hand_side(T)
square = pytest.mark.parametrize("name", SQUARE)


@square
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_right_hand_sides_are_solved_side_by_side_in_the_dtype_of_the_system(
    device: Device, name: str, dtype: np.dtype[Any]
) -> None:
    system = sp.csr_array(laplacian(7, dtype) + sp.eye_array(49, dtype=dtype))
    b = right_hand_side(system, 3)
    b[:, 1] = 0
    x, info = SQUARE[name](matrix(device, system), b, rtol=1e-4)
    assert (info, x.dtype, x.shape) == (0, dtype, b.shape)
    np.testing.assert_array_equal(x[:, 1], 0)
    assert np.all(residual(system, x[:, ::2], b[:, ::2]) < 1e-3)
    alone, _ = SQUARE[name](matrix(device, system), b[:, 2], rtol=1e-4)
    np.testing.assert_allclose(x[:, 2], alone, atol=1e-4 * np.linalg.norm(b[:, 2]))


@square
def test_a_solve_begins_at_x0_and_does_not_change_it(real_device: Device, name: str) -> None:
    guess = right_hand_side(T, seed=1)
    original = guess.copy()
    x, info = SQUARE[name](matrix(real_device, T), B, guess, rtol=1e-10)
    assert info == 0
    assert residual(T, x, B) < 1e-8
    np.testing.assert_array_equal(guess, original)
    again = SQUARE[name](matrix(real_device, T), B, x, rtol=1e-7, full_output=True)
    assert again.info == 0
    assert again.iterations <= (name == "minres")  # whose test also asks for the norm of A
    np.testing.assert_allclose(again.x, x, rtol=1e-6)


@square
def test_the_solution_for_zero_is_zero(device: Device, name: str) -> None:
    for guess in (None, B):
        result = SQUARE[name](matrix(device, T), np.zeros_like(B), guess, full_output=True)
        assert (result.info, result.iterations) == (0, 0)
        np.testing.assert_array_equal(result.x, 0)


@square
@pytest.mark.parametrize("where", ["matrix", "right-hand side"])
@pytest.mark.few(1)
def test_a_solve_stops_within_one_iteration_on_nan(device: Device, name: str, where: str) -> None:
    system, b = T.copy(), B.copy()
    (system.data if where == "matrix" else b)[3] = np.nan
    result = SQUARE[name](matrix(device, system), b, full_output=True, maxiter=50)
    assert result.info != 0
    assert result.iterations <= 1
    assert result.advice == f"{'A' if where == 'matrix' else 'b'} holds NaN or inf."


@square
def test_operators_of_scipy_are_accepted(real_device: Device, name: str) -> None:
    M = la.LinearOperator(T.shape, matvec=lambda x: x / T.diagonal(), dtype=float)
    x, info = SQUARE[name](la.aslinearoperator(matrix(real_device, T)), B, rtol=1e-9, M=M)
    assert info == 0
    assert residual(T, x, B) < 1e-7


@square
def test_tiny_systems_are_solved_and_rectangular_ones_refused(device: Device, name: str) -> None:
    solver = SQUARE[name]
    x, info = solver(matrix(device, sp.csr_array([[4.0]])), np.array([2.0]))
    assert (x.tolist(), info) == ([0.5], 0)
    x, info = solver(matrix(device, sp.csr_array((0, 0))), np.zeros(0))
    assert (x.shape, info) == ((0,), 0)
    with pytest.raises(ShapeError, match="square"):
        solver(matrix(device, T[:, 1:]), B)


@pytest.mark.parametrize("name", [name for name in SQUARE if "gmres" not in name])  # that counts cycles
def test_a_callback_sees_each_iteration_and_maxiter_limits_them(real_device: Device, name: str) -> None:
    for maxiter in (0, 1, 3, None):
        count = Count()
        result = SQUARE[name](matrix(real_device, T), B, rtol=1e-8, maxiter=maxiter, callback=count, full_output=True)
        assert count.calls == result.iterations
        if maxiter != 0:
            np.testing.assert_array_equal(count.last, result.x)
        if maxiter is not None:
            assert (result.iterations, result.info, result.reason) == (maxiter, max(maxiter, 1), "reached maxiter")
