"""BiCGSTAB behaves as SciPy's, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import bicgstab
from tests.linalg.problems import Count, convection, matrix, residual, right_hand_side
from tests.support import DTYPES

S = convection(7)
B = right_hand_side(S)
JACOBI = sp.csr_array(sp.diags_array(1 / (S.diagonal() + np.arange(S.shape[0]) % 3)))


@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
@pytest.mark.few(1)
def test_bicgstab_takes_as_many_iterations_as_scipy_to_the_same_solution(device: Device, M: Any) -> None:
    count = Count()
    x, info = la.bicgstab(S, B, rtol=1e-9, M=M, callback=count)
    result = bicgstab(matrix(device, S), B, rtol=1e-9, M=M, full_output=True)
    assert (result.info, info) == (0, 0)
    assert abs(result.iterations - count.calls) <= 2  # SciPy does not count a final half iteration
    assert residual(S, result.x, B) < 1e-8
    np.testing.assert_allclose(result.residuals[-1], np.linalg.norm(B - S @ result.x), rtol=1e-3)
    np.testing.assert_allclose(result.x, x, rtol=0, atol=1e-7)


def test_bicgstab_solves_right_hand_sides_side_by_side(device: Device) -> None:
    b = right_hand_side(S, 3)
    b[:, 1] = 0
    x, info = bicgstab(matrix(device, S), b, rtol=1e-9)
    assert info == 0
    np.testing.assert_array_equal(x[:, 1], 0)
    assert np.all(residual(S, x[:, ::2], b[:, ::2]) < 1e-8)
    for column in (0, 2):
        np.testing.assert_allclose(x[:, column], bicgstab(matrix(device, S), b[:, column], rtol=1e-9)[0], atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_bicgstab_computes_in_the_dtype_of_the_system(real_device: Device, dtype: np.dtype[Any]) -> None:
    T = convection(7, dtype)
    b = right_hand_side(T)
    x, info = bicgstab(matrix(real_device, T), b, rtol=1e-4)
    assert (info, x.dtype) == (0, dtype)
    assert residual(T, x, b) < 2e-4


def test_bicgstab_accepts_foreign_operators_and_x0(real_device: Device) -> None:
    guess = right_hand_side(S, seed=1)
    inverse = la.LinearOperator(S.shape, matvec=lambda x: JACOBI @ x, dtype=float)
    x, info = bicgstab(matrix(real_device, S), B, guess, M=inverse, rtol=1e-9)
    assert info == 0
    assert residual(S, x, B) < 1e-8
    again = bicgstab(matrix(real_device, S), B, x, rtol=1e-7, full_output=True)
    assert (again.iterations, again.info) == (0, 0)
    x, info = bicgstab(la.aslinearoperator(matrix(real_device, S)), B, "Mb", rtol=1e-9)
    assert info == 0
    assert residual(S, x, B) < 1e-8


def test_bicgstab_calls_back_after_each_iteration(real_device: Device) -> None:
    count = Count()
    result = bicgstab(matrix(real_device, S), B, rtol=1e-8, callback=count, full_output=True)
    assert count.calls == result.iterations
    np.testing.assert_array_equal(count.last, result.x)


def test_bicgstab_can_converge_after_the_first_half_step(device: Device) -> None:
    T = sp.csr_array(sp.diags_array(np.full(40, 3.0)))  # the first half step is exact
    result = bicgstab(matrix(device, T), B[:40], full_output=True)
    assert (result.info, result.iterations) == (0, 1)
    np.testing.assert_allclose(result.x, B[:40] / 3, rtol=1e-15)


@pytest.mark.parametrize(("T", "info"), [([[0, 1], [-1, 0]], -11), ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], -11)])
def test_bicgstab_reports_breakdowns_as_scipy_does(device: Device, T: Any, info: int) -> None:
    T, b = sp.csr_array(np.array(T, float)), np.eye(len(T))[0]
    assert la.bicgstab(T, b)[1] == info
    result = bicgstab(matrix(device, T), b, full_output=True)
    assert result.info == info
    assert "broke down" in result.reason
    assert "gmres" in result.advice
    assert np.all(np.isfinite(result.x))


def test_a_step_that_cannot_be_stabilized_leaves_the_half_step_before_it(device: Device) -> None:
    T = sp.csr_array(np.array([[1.0, 1.0], [0.0, 0.0]]))  # s = (-1, 1) after the first half step, and A·s = 0
    result = bicgstab(matrix(device, T), np.ones(2), full_output=True)
    assert result.info in (-10, -11)
    assert "broke down" in result.reason
    np.testing.assert_array_equal(result.x, [1, 1])


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("scale", [1e-140, 1e-100, 1e100, 1e140])
def test_right_hand_sides_may_be_so_small_or_large_that_powers_are_out_of_range(
    real_device: Device, scale: float, dtype: Any
) -> None:
    T = convection(7, dtype)
    b = right_hand_side(T)
    expected = bicgstab(matrix(real_device, T), b, rtol=1e-9, full_output=True)
    result = bicgstab(matrix(real_device, T), b * scale, rtol=1e-9, full_output=True)
    assert (result.info, result.iterations) == (0, expected.iterations)
    np.testing.assert_allclose(result.x / scale, expected.x, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_bicgstab_does_not_depend_on_the_scale(real_device: Device, scale: float) -> None:
    expected = bicgstab(matrix(real_device, S), B, rtol=1e-9, full_output=True)
    result = bicgstab(matrix(real_device, S * scale), B * scale, rtol=1e-9, full_output=True)
    assert (result.info, result.iterations) == (0, expected.iterations)
    result = bicgstab(matrix(real_device, S * scale), B, rtol=1e-9, full_output=True)
    assert (result.info, result.iterations) == (0, expected.iterations)


def test_bicgstab_returns_zero_for_a_zero_right_hand_side(device: Device) -> None:
    for guess in (None, B):
        result = bicgstab(matrix(device, S), np.zeros_like(B), guess, full_output=True)
        assert (result.info, result.iterations) == (0, 0)
        np.testing.assert_array_equal(result.x, 0)


def test_bicgstab_stops_at_maxiter(device: Device) -> None:
    for maxiter in (0, 1, 3):
        result = bicgstab(matrix(device, S), B, maxiter=maxiter, rtol=1e-12, full_output=True)
        x, _ = la.bicgstab(S, B, maxiter=maxiter, rtol=1e-12)
        assert (result.iterations, result.info) == (maxiter, max(maxiter, 1))
        np.testing.assert_allclose(result.x, x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("where", ["matrix", "right-hand side"])
def test_bicgstab_stops_within_one_iteration_on_nan(device: Device, where: str) -> None:
    T, b = S.copy(), B.copy()
    (T.data if where == "matrix" else b)[3] = np.nan
    result = bicgstab(matrix(device, T), b, full_output=True, maxiter=50)
    assert result.info < 0
    assert result.iterations <= 1


def test_bicgstab_solves_tiny_systems_and_refuses_rectangular_ones(real_device: Device) -> None:
    x, info = bicgstab(matrix(real_device, sp.csr_array([[4.0]])), np.array([2.0]))
    assert (x.tolist(), info) == ([0.5], 0)
    x, info = bicgstab(matrix(real_device, sp.csr_array((0, 0))), np.zeros(0))
    assert (x.shape, info) == ((0,), 0)
    with pytest.raises(ShapeError, match="square"):
        bicgstab(matrix(real_device, S[:, 1:]), B)
