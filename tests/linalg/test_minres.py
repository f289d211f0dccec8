"""MINRES behaves as SciPy's, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse.device.base import Device
from gsparse.linalg import minres
from tests.linalg.problems import Count, indefinite, laplacian, matrix, residual, right_hand_side

S = indefinite(7)
B = right_hand_side(S)
JACOBI = sp.csr_array(sp.diags_array(1 / (abs(S.diagonal()) + np.arange(S.shape[0]) % 3)))
EYE = sp.eye_array(S.shape[0])


@pytest.mark.parametrize("shift", [0.0, 0.25])
@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
@pytest.mark.few(1)
def test_minres_takes_as_many_iterations_as_scipy_to_the_same_solution(device: Device, M: Any, shift: float) -> None:
    count = Count()
    x, info = la.minres(S, B, rtol=1e-9, M=M, shift=shift, check=True, callback=count)
    result = minres(matrix(device, S), B, rtol=1e-9, M=M, shift=shift, check=True, full_output=True)
    assert (result.info, info) == (0, 0)
    assert abs(result.iterations - count.calls) <= 1
    assert residual(S - shift * EYE, result.x, B) < 1e-7
    np.testing.assert_allclose(result.x, x, rtol=0, atol=1e-7)


def test_minres_records_the_norm_of_the_residual(device: Device) -> None:
    result = minres(matrix(device, S), B, rtol=1e-6, full_output=True)
    np.testing.assert_allclose(result.residuals[0], np.linalg.norm(B))
    np.testing.assert_allclose(result.residuals[-1], np.linalg.norm(B - S @ result.x), rtol=1e-6)
    assert np.all(np.diff(result.residuals) <= 0)


@pytest.mark.whole
def test_minres_finds_a_least_squares_solution_of_a_singular_system(device: Device) -> None:
    T = sp.csr_array(S - sp.diags_array(np.asarray(S.sum(axis=1)).ravel()))  # its null space: constant vectors
    result = minres(matrix(device, T), B, rtol=1e-8, full_output=True)
    assert result.info == la.minres(T, B, rtol=1e-8)[1] == 0
    assert result.reason == "found a least-squares solution: norm(A·r) <= rtol·norm(A)·norm(r)"
    r = B - T @ result.x
    assert np.linalg.norm(T @ r) < 1e-6 * np.linalg.norm(r)


def test_minres_begins_at_x0_with_a_shift(device: Device) -> None:
    guess = right_hand_side(S, seed=1)
    result = minres(matrix(device, S), B, guess, rtol=1e-10, shift=0.25, full_output=True)
    assert result.info == 0
    assert residual(S - 0.25 * EYE, result.x, B) < 1e-8
    first = np.linalg.norm(B - (S - 0.25 * EYE) @ guess)  # SciPy omits the shift in the first residual
    np.testing.assert_allclose(result.residuals[0], first, rtol=1e-12)


def test_minres_needs_one_iteration_for_an_eigenvector(device: Device) -> None:
    T = sp.csr_array(sp.diags_array(np.full(40, 3.0)))
    result = minres(matrix(device, T), B[:40], full_output=True)
    assert (result.info, result.iterations) == (0, 1)
    np.testing.assert_allclose(result.x, B[:40] / 3, rtol=1e-14)


def test_minres_checks_symmetry_and_definiteness(device: Device) -> None:
    T = sp.csr_array(S + sp.diags_array(np.ones(S.shape[0] - 1), offsets=1))
    with pytest.raises(ValueError, match="non-symmetric matrix"):
        minres(matrix(device, T), B, check=True)
    M = sp.csr_array(JACOBI + sp.diags_array(np.ones(S.shape[0] - 1), offsets=1))
    with pytest.raises(ValueError, match="non-symmetric preconditioner"):
        minres(matrix(device, S), B, M=M, check=True)
    with pytest.raises(ValueError, match="indefinite preconditioner"):
        minres(matrix(device, S), B, M=sp.csr_array(-1.0 * EYE))


def test_minres_prints_its_history_and_progress(real_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    result = minres(matrix(real_device, laplacian(7)), B, show=True, progress=True, full_output=True)
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == f"{0:7d}  {np.linalg.norm(B):.6e}"
    assert len(lines) == result.iterations + 2
    assert lines[-1].startswith("passed the test norm(r) <= rtol·norm(A)·norm(x) after")
    assert f"{result.iterations}it " in captured.err
