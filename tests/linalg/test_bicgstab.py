"""BiCGSTAB behaves as SciPy's, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse.device.base import Device
from gsparse.linalg import bicgstab
from tests.linalg.problems import Count, convection, matrix, residual, right_hand_side

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
