"""Iterative refinement reaches the accuracy of the wide dtype with solves in the narrow dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, DtypeError
from gsparse.linalg import cg
from gsparse.linalg.krylov.cg import run as run_cg
from gsparse.linalg.krylov.linear_system import LinearSystem
from tests.linalg.problems import Count, laplacian, matrix, residual, right_hand_side

S = laplacian(10)
B = right_hand_side(S)


@pytest.mark.whole
def test_refined_cg_reaches_an_accuracy_that_float32_cannot(device: Device) -> None:
    result = cg(GpuSparseMatrix(S, device=device), B, rtol=1e-12, inner_dtype=np.float32, full_output=True)
    assert result.info == 0
    assert result.x.dtype == np.float64
    assert residual(S, result.x, B) <= 1.001e-12
    count = Count()
    la.cg(S, B, rtol=1e-12, callback=count)
    assert count.calls <= result.iterations <= 3 * count.calls


def test_refinement_within_the_same_precision_is_the_plain_solve() -> None:
    A, b = GpuSparseMatrix(S.astype(np.float32), device="cpu"), B.astype(np.float32)
    plain, same_precision = (cg(A, b, inner_dtype=inner, full_output=True) for inner in (None, "float32"))
    assert same_precision.iterations == plain.iterations
    np.testing.assert_array_equal(same_precision.x, plain.x)


def test_the_history_counts_inner_iterations_and_ends_with_the_true_residual(real_device: Device) -> None:
    result = cg(GpuSparseMatrix(S, device=real_device), B, rtol=1e-11, inner_dtype="float32", full_output=True)
    assert result.residuals.shape == (result.iterations + 1,)
    np.testing.assert_allclose(result.residuals[0], np.linalg.norm(B))
    np.testing.assert_allclose(result.residuals[-1], np.linalg.norm(B - S @ result.x), rtol=1e-2)


@pytest.mark.whole
def test_right_hand_sides_are_refined_side_by_side(device: Device) -> None:
    b = right_hand_side(S, 3) * [1e-100, 0, 1e100]
    result = cg(GpuSparseMatrix(S, device=device), b, rtol=1e-10, inner_dtype=np.float32, full_output=True)
    assert result.info == 0
    np.testing.assert_array_equal(result.x[:, 1], 0)
    scaled = result.x / [1e-100, 1, 1e100]
    assert np.all(residual(S, scaled[:, ::2], (b / [1e-100, 1, 1e100])[:, ::2]) < 1.1e-10)
    assert result.residuals.shape == (result.iterations + 1, 3)


@pytest.mark.whole
def test_complex_systems_iterate_in_complex64(real_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    C = laplacian(8, complex)
    b = right_hand_side(C)
    dtypes: list[np.dtype[Any]] = []

    def recorded(system: LinearSystem, *arguments: Any) -> Any:
        dtypes.append(system.dtype)
        return run_cg(system, *arguments)

    monkeypatch.setattr("gsparse.linalg.krylov.cg.run", recorded)
    x, info = cg(GpuSparseMatrix(C, device=real_device), b, rtol=1e-11, inner_dtype=np.float32)
    assert info == 0
    assert len(dtypes) >= 2 and set(dtypes) == {np.dtype(np.complex64)}
    assert x.dtype == np.complex128
    assert residual(C, x, b) < 1.1e-11


def test_a_system_that_overflows_float32_is_solved_in_its_own_dtype(real_device: Device) -> None:
    D = sp.diags_array(np.where(np.arange(S.shape[0]) % 2, 1e30, 1.0))
    H = sp.csr_array(D @ S @ D)
    b = H @ np.ones(S.shape[0])
    result = cg(GpuSparseMatrix(H, device=real_device), b, rtol=1e-10, inner_dtype=np.float32, full_output=True)
    assert result.info == 0
    assert residual(H, result.x, b) < 1.1e-10


def test_a_preconditioner_and_a_guess_are_used(real_device: Device) -> None:
    scale = sp.diags_array(np.geomspace(1, 100, S.shape[0]))
    D = sp.csr_array(scale @ S @ scale)
    M = sp.csr_array(sp.diags_array(1 / D.diagonal()))
    A = GpuSparseMatrix(D, device=real_device)
    exact = np.linspace(1, 2, S.shape[0])
    result = cg(A, D @ exact, exact, M=M, inner_dtype=np.float32, full_output=True)
    assert (result.info, result.iterations) == (0, 0)
    plain, with_M, with_guess = (
        cg(A, D @ exact, guess, M=preconditioner, rtol=1e-12, inner_dtype=np.float32, full_output=True)
        for guess, preconditioner in ((None, None), (None, M), ("Mb", M))
    )
    assert with_M.iterations < plain.iterations / 2
    np.testing.assert_allclose(with_guess.residuals[0], np.linalg.norm(D @ exact - D @ (M @ (D @ exact))))
    np.testing.assert_allclose(with_guess.x, exact, rtol=1e-9)


def test_a_callback_sees_each_correction(real_device: Device) -> None:
    count = Count()
    x, _ = cg(GpuSparseMatrix(S, device=real_device), B, rtol=1e-12, inner_dtype=np.float32, callback=count)
    assert 2 <= count.calls <= 5
    np.testing.assert_array_equal(count.last, x)


def test_maxiter_bounds_inner_iterations(real_device: Device) -> None:
    result = cg(GpuSparseMatrix(S, device=real_device), B, rtol=1e-12, maxiter=9, inner_dtype="f4", full_output=True)
    assert (result.info, result.iterations) == (9, 9)


def test_each_right_hand_side_has_the_iterations_of_maxiter(real_device: Device) -> None:
    # The first column takes all iterations for its first correction, the others one for each of two corrections.
    D, b = sp.csr_array(sp.diags_array(np.arange(3.0, 43.0))), np.eye(40, 3)
    b[:, 0] = 1
    result = cg(matrix(real_device, D), b, rtol=1e-12, maxiter=8, inner_dtype=np.float32, full_output=True)
    assert (result.info, result.iterations, result.residuals.shape) == (8, 8, (9, 3))
    assert np.all(residual(D, result.x[:, 1:], b[:, 1:]) < 1e-12)


def test_a_right_hand_side_goes_on_in_its_own_dtype_though_another_has_reached_maxiter(real_device: Device) -> None:
    # The last element is 0 in float32, so that the first correction of column 1 is 0.
    D, b = sp.csr_array(sp.diags_array([*np.arange(3.0, 42.0), 1e-50])), np.zeros((40, 2))
    b[:-1, 0], b[-1, 1] = 1, 1e-50
    result = cg(matrix(real_device, D), b, rtol=1e-12, maxiter=8, inner_dtype=np.float32, full_output=True)
    assert (result.info, result.iterations, result.residuals.shape) == (8, 8, (9, 2))
    np.testing.assert_allclose(result.x[:, 1], np.eye(40)[-1], rtol=1e-12)


def test_nan_and_zero_right_hand_sides_end_at_once(real_device: Device) -> None:
    A = GpuSparseMatrix(S, device=real_device)
    zero = cg(A, 0 * B, np.ones(B.size), inner_dtype=np.float32, full_output=True)
    assert (zero.info, zero.iterations) == (0, 0)
    assert not zero.x.any()
    nan = cg(A, np.full(B.size, np.nan), inner_dtype=np.float32, full_output=True)
    assert nan.info < 0 and nan.iterations == 0
    with pytest.warns(ConvergenceWarning):
        cg(A, np.full(B.size, np.nan), inner_dtype=np.float32)


def test_an_exact_solution_ends_the_refinement_with_a_tolerance_of_zero(real_device: Device) -> None:
    D, b = sp.csr_array(2 * sp.eye_array(8)), np.arange(8.0)
    for guess in (None, b / 2):  # the first correction is exact, and so is the guess
        result = cg(matrix(real_device, D), b, guess, rtol=0, inner_dtype=np.float32, full_output=True)
        assert (result.info, result.residuals[-1]) == (0, 0)
        np.testing.assert_array_equal(result.x, b / 2)


@pytest.mark.parametrize("inner", [np.float16, np.longdouble, np.complex128, int, "float33"])
def test_an_unsupported_inner_dtype_is_refused(inner: object) -> None:
    with pytest.raises(DtypeError, match="inner_dtype must be a dtype"):
        cg(GpuSparseMatrix(S, device="cpu"), B, inner_dtype=inner)
