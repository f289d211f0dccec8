"""Chebyshev iteration, with explicit and estimated bounds, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import chebyshev
from tests.linalg.problems import laplacian, matrix, residual, right_hand_side

S = sp.csr_array(laplacian(7) + 0.1 * sp.eye_array(49))
B = right_hand_side(S)
EIGENVALUES = np.linalg.eigvalsh(S.toarray())
BOUNDS = EIGENVALUES[0], EIGENVALUES[-1]
JACOBI = sp.csr_array(sp.diags_array(1 / (S.diagonal() + np.arange(S.shape[0]) % 3)))


def expected_iterations(low: float, high: float, rtol: float) -> float:
    """Return the k at which 1 / T_k, the bound for each component of the error, falls below rtol."""
    return float(np.arccosh(1 / rtol) / np.arccosh((high + low) / (high - low)))


@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
@pytest.mark.few(1)
def test_chebyshev_converges_at_the_rate_of_its_polynomial(device: Device, M: Any) -> None:
    bounds = BOUNDS
    if M is not None:
        eigenvalues = np.linalg.eigvals((M @ S).toarray()).real
        bounds = eigenvalues.min(), eigenvalues.max()
    result = chebyshev(matrix(device, S), B, bounds=bounds, rtol=1e-9, M=M, full_output=True)
    assert result.info == 0
    assert residual(S, result.x, B) < 1e-8
    np.testing.assert_allclose(result.residuals[-1], np.linalg.norm(B - S @ result.x), rtol=1e-4)
    iteration_bound = expected_iterations(*bounds, 1e-9)
    assert 0.7 * iteration_bound < result.iterations < iteration_bound + 3


@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
@pytest.mark.few(1)
def test_chebyshev_estimates_bounds(device: Device, M: Any) -> None:
    result = chebyshev(matrix(device, S), B, rtol=1e-9, M=M, full_output=True)
    assert result.info == 0
    assert residual(S, result.x, B) < 1e-8
    exact = chebyshev(matrix(device, S), B, bounds=BOUNDS, rtol=1e-9, full_output=True)
    assert result.iterations < 2.5 * exact.iterations


def test_chebyshev_solves_right_hand_sides_side_by_side(device: Device) -> None:
    b = right_hand_side(S, 3)
    b[:, 1] = 0
    for bounds in (BOUNDS, None):
        x, info = chebyshev(matrix(device, S), b, bounds=bounds, rtol=1e-9)
        assert info == 0
        np.testing.assert_array_equal(x[:, 1], 0)
        assert np.all(residual(S, x[:, ::2], b[:, ::2]) < 1e-8)


def test_chebyshev_accepts_any_interval_without_zero(device: Device) -> None:
    x, info = chebyshev(matrix(device, -S), B, bounds=(-BOUNDS[1], -BOUNDS[0]), rtol=1e-9)
    assert info == 0
    assert residual(-S, x, B) < 1e-8
    for point in (sp.csr_array(3 * sp.eye_array(40)), sp.csr_array([[3.0]])):
        b = B[: point.shape[0]]
        for bounds in ((3, 3), None):
            result = chebyshev(matrix(device, point), b, bounds=bounds, full_output=True, rtol=1e-12)
            assert result.info == 0
            np.testing.assert_allclose(result.x, b / 3, rtol=1e-11)
    for bounds in ((2, 1), (-1, 1), (0, 1), (np.nan, 1)):
        with pytest.raises(ValueError, match="interval"):
            chebyshev(matrix(device, S), B, bounds=bounds)


def test_chebyshev_reports_divergence(device: Device) -> None:
    result = chebyshev(matrix(device, S), B, bounds=(0.1, 2.0), full_output=True)
    assert result.info > 0
    assert "diverged" in result.reason
    assert "bounds" in result.advice
    assert result.iterations < 40


def test_chebyshev_refuses_to_estimate_for_an_indefinite_matrix(device: Device) -> None:
    with pytest.raises(ValueError, match="not positive definite"):
        chebyshev(matrix(device, sp.csr_array(S - 3 * sp.eye_array(49))), B)
    with pytest.raises(ShapeError, match="square"):
        chebyshev(matrix(device, S[:, 1:]), B)


def test_chebyshev_stops_on_nan_and_at_maxiter(device: Device) -> None:
    for T, b, bounds in ((S, B * np.nan, BOUNDS), (S * np.nan, B, BOUNDS), (S * np.nan, B, None)):
        result = chebyshev(matrix(device, sp.csr_array(T)), b, bounds=bounds, full_output=True)
        assert result.info < 0
        assert result.iterations <= 1
    for maxiter in (0, 2):
        result = chebyshev(matrix(device, S), B, bounds=BOUNDS, maxiter=maxiter, full_output=True)
        assert (result.iterations, result.info) == (maxiter, max(maxiter, 1))
    x, info = chebyshev(matrix(device, sp.csr_array((0, 0))), np.zeros(0))
    assert (x.shape, info) == ((0,), 0)
