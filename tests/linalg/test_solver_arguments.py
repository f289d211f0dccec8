"""Arguments that all solvers share: limits, tolerances, right-hand sides without columns, and complex guesses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix, linalg
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, DtypeError, ShapeError
from gsparse.linalg.registry import METHODS, names_of
from gsparse.linalg.result import SolveResult
from tests.support import on_device

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
def test_other_arguments_are_checked_for_a_right_hand_side_without_columns(A: GpuSparseMatrix, name: str) -> None:
    for call in (
        lambda: getattr(linalg, name)(A, np.zeros((N + 1, 0))),
        lambda: getattr(linalg, name)(A, np.zeros((N, 0)), x0=np.zeros(N + 1)),
    ):
        with pytest.raises(ShapeError):
            call()


def test_a_rectangular_system_without_columns_has_a_solution_of_its_width() -> None:
    tall = GpuSparseMatrix(S[:, :10], device="cpu")
    assert linalg.lsqr(tall, np.zeros((N, 0)), calc_var=True)[0].shape == (10, 0)
    assert linalg.lsqr(tall, np.zeros((N, 0)), calc_var=True)[9].shape == (10, 0)
    istop, *_, variance = linalg.lsqr(tall, np.zeros((N, 0)), calc_var=True, full_output=True).statistics
    assert (istop.shape, variance.shape) == ((0,), (10, 0))
    assert linalg.lsmr(tall, np.zeros((N, 0)))[0].shape == (10, 0)


def test_columns_may_be_missing_on_every_device(device: Device) -> None:
    A, b = GpuSparseMatrix(S, device=device), on_device(device, np.zeros((N, 0)))
    x, info = linalg.cg(A, b, M=linalg.jacobi(A))
    assert type(x) is type(b)
    assert (x.shape, info) == ((N, 0), 0)


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
    for matrix, b in ((S, np.ones(N, np.longdouble)), (wide, np.ones(N)), (wide, np.ones(N, np.clongdouble))):
        x, *_ = solver(GpuSparseMatrix(matrix, device="cpu"), b)
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
