"""LSQR and LSMR return the same results as SciPy's, on every device."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, ShapeError
from gsparse.linalg import SolveResult, lsmr, lsqr
from tests.linalg.problems import matrix, rectangular, right_hand_side
from tests.support import DTYPES, host, on_device

SHAPES = [(90, 40), (40, 90), (60, 60), (1, 1)]
METHODS = [(lsqr, la.lsqr), (lsmr, la.lsmr)]
TIGHT = {"atol": 1e-10, "btol": 1e-10}
methods = pytest.mark.parametrize(("mine", "theirs"), METHODS, ids=["lsqr", "lsmr"])


@methods
@pytest.mark.parametrize("damp", [0.0, 0.7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.few(1)
def test_least_squares_returns_the_same_as_scipy(
    device: Device, mine: Any, theirs: Any, shape: tuple[int, int], damp: float
) -> None:
    S = rectangular(*shape)
    b = right_hand_side(S)
    for x0 in (None, right_hand_side(S.T, seed=1)):
        expected = theirs(S, b, damp=damp, x0=x0)
        result = mine(matrix(device, S), b, damp=damp, x0=x0)
        assert len(result) == len(expected)
        assert [type(value) for value in result[1:8]] == [int, int, *[float] * 5]
        np.testing.assert_allclose(result[0], expected[0], rtol=0, atol=1e-5)
        assert result[1] == expected[1]
        assert abs(result[2] - expected[2]) <= 1
        if result[2] == expected[2] > 1:  # SciPy returns no estimates after one exact iteration
            np.testing.assert_allclose(result[3:7], expected[3:7], rtol=1e-2, atol=1e-4)


@methods
@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_the_normal_residuals_of_many_iterations_are_recorded(
    device: Device, mine: Any, theirs: Any, damp: float
) -> None:
    # 150 iterations are more than the ring buffer of the device holds.
    S = rectangular(180, 160) @ sp.diags_array(np.logspace(0, 1.5, 160))
    B = right_hand_side(S, 2)
    limit = {"iter_lim" if mine is lsqr else "maxiter": 150}
    result = mine(matrix(device, S), B, damp=damp, atol=0, btol=0, conlim=0, full_output=True, **limit)
    assert result.iterations == 150
    assert result.normal_residuals.shape == result.residuals.shape == (151, 2)
    for count in (0, 1, 64, 129):
        limit = {"iter_lim" if mine is lsqr else "maxiter": count}
        X = mine(matrix(device, S), B, damp=damp, atol=0, btol=0, conlim=0, full_output=True, **limit).x
        R = B - S @ X
        normal, residual = S.T @ R - damp**2 * X, np.concatenate([R, -damp * X])
        np.testing.assert_allclose(result.normal_residuals[count], np.linalg.norm(normal, axis=0), rtol=1e-2)
        np.testing.assert_allclose(result.residuals[count], np.linalg.norm(residual, axis=0), rtol=1e-4)


@methods
@pytest.mark.parametrize("columns", [None, 3])
@pytest.mark.few(1)
def test_the_full_output_holds_the_values_that_scipy_returns(
    real_device: Device, mine: Any, theirs: Any, columns: int | None
) -> None:
    S = rectangular(40, 20)
    A, b = matrix(real_device, S), right_hand_side(S, columns)
    values = mine(A, b)
    result = mine(A, b, full_output=True)
    assert len(result.statistics) == len(values) - 1
    for mine_again, value in zip(result.in_scipys_form(), values, strict=True):
        np.testing.assert_array_equal(mine_again, value)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.few(1)
def test_lsqr_solves_the_normal_equations_and_estimates_variances(device: Device, shape: tuple[int, int]) -> None:
    S, damp = rectangular(*shape), 0.5
    b = right_hand_side(S)
    x, istop, _, r1norm, r2norm, _, _, _, xnorm, var = lsqr(matrix(device, S), b, damp, calc_var=True, **TIGHT)
    gram = (S.T @ S).toarray() + damp**2 * np.eye(shape[1])
    np.testing.assert_allclose(x, np.linalg.solve(gram, S.T @ b), rtol=0, atol=1e-7)
    assert istop == 2
    np.testing.assert_allclose(r1norm, np.linalg.norm(b - S @ x), rtol=1e-6)
    np.testing.assert_allclose(r2norm, np.hypot(r1norm, damp * np.linalg.norm(x)), rtol=1e-6)
    np.testing.assert_allclose(xnorm, np.linalg.norm(x), rtol=1e-6)
    np.testing.assert_allclose(var, la.lsqr(S, b, damp, calc_var=True, **TIGHT)[9], rtol=5e-2)
    np.testing.assert_array_equal(lsqr(matrix(device, S), b, damp)[9], np.zeros(shape[1]))


@methods
@pytest.mark.few(1)
def test_least_squares_solves_right_hand_sides_side_by_side(device: Device, mine: Any, theirs: Any) -> None:
    S = rectangular(90, 40)
    b = right_hand_side(S, 3)
    b[:, 1] = 0
    result = mine(matrix(device, S), b, **TIGHT)
    np.testing.assert_array_equal(result[1], [2, 0, 2])
    for column in range(3):
        alone = mine(matrix(device, S), b[:, column], **TIGHT)
        assert result[2][column] == alone[2]
        np.testing.assert_allclose(result[0][:, column], alone[0], rtol=1e-7, atol=1e-9)


@methods
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.whole
def test_least_squares_computes_in_the_dtype_of_the_system(
    real_device: Device, mine: Any, theirs: Any, dtype: np.dtype[Any]
) -> None:
    S = rectangular(60, 30, dtype)
    b = right_hand_side(S)
    result = mine(matrix(real_device, S), on_device(real_device, b), atol=1e-5, btol=1e-5)
    x = host(result[0])
    assert x.dtype == dtype
    assert result[1] == 2
    exact = np.linalg.lstsq(S.toarray(), b)[0]
    assert np.linalg.norm(x - exact) < 1e-3 * np.linalg.norm(exact)


@methods
@pytest.mark.few(1)
def test_least_squares_stops_for_scipys_reasons(device: Device, mine: Any, theirs: Any) -> None:
    S = rectangular(60, 60)
    b = right_hand_side(S)
    limit = "iter_lim" if mine is lsqr else "maxiter"
    # SciPy's estimate of the condition of a matrix with a norm below 1 counts 1 among the numbers that it divides.
    graded = sp.csr_array(sp.diags_array(np.logspace(1, -8, 40)))
    hard = sp.csr_array(sp.diags_array(np.logspace(0, -13, 12)))
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (S, b, {}), (S, b, {limit: 3}), (S, 0 * b, {}), (S, 0 * b, {"x0": b}), (0 * S, b, {}),
        (rectangular(90, 40), right_hand_side(rectangular(90, 40)), {}),
        (graded, np.ones(40), {"conlim": 10, **TIGHT}),
        (hard, np.ones(12), {"atol": 0, "btol": 0, "conlim": 0, limit: 200}),
    ]  # fmt: skip
    with pytest.warns(ConvergenceWarning):
        assert mine(matrix(device, S), b, **{limit: 0})[1:3] == (7, 0)  # SciPy returns istop 0, as if it were solved
    reasons = []
    for T, c, options in cases:
        with np.errstate(all="ignore"):
            expected = theirs(T, c, **options)
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always", ConvergenceWarning)
            result = mine(matrix(device, T), c, **options)
        assert len(issued) == (result[1] in (3, 6, 7))
        reasons.append(int(result[1]))
        if "x0" in options:  # SciPy's lsqr divides by norm(b), which is 0
            np.testing.assert_array_equal(result[0], 0)
        elif T is not hard:
            assert result[1] == expected[1]
            np.testing.assert_allclose(result[0], expected[0], rtol=1e-4, atol=1e-4)
    assert {0, 1, 2, 3, 7} <= {*reasons}
    assert reasons[-1] in {4, 5, 6, 7}


@methods
def test_least_squares_accepts_foreign_operators(real_device: Device, mine: Any, theirs: Any) -> None:
    S = rectangular(90, 40)
    b = right_hand_side(S)
    expected = mine(matrix(real_device, S), b, **TIGHT)
    operator = la.aslinearoperator(S) if real_device.kind == "cpu" else la.aslinearoperator(matrix(real_device, S))
    result = mine(operator, b, **TIGHT)
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-8, atol=1e-10)


@methods
def test_least_squares_handles_empty_systems_and_refuses_incompatible_shapes(
    real_device: Device, mine: Any, theirs: Any
) -> None:
    for shape in ((0, 5), (5, 0), (0, 0)):
        x, istop, itn = mine(matrix(real_device, sp.csr_array(shape)), np.ones(shape[0]))[:3]
        assert (x.shape, istop, itn) == ((shape[1],), 0, 0)
        np.testing.assert_array_equal(x, 0)
    S = rectangular(60, 30)
    with pytest.raises(ShapeError, match="incompatible"):
        mine(matrix(real_device, S), np.ones(30))
    with pytest.raises(ShapeError, match="incompatible"):
        mine(matrix(real_device, S), np.ones(60), x0=np.ones(60))


@methods
def test_least_squares_prints_its_history_and_progress(
    real_device: Device, mine: Any, theirs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    S = rectangular(60, 30)
    result = mine(matrix(real_device, S), right_hand_side(S), show=True, progress=True, full_output=True)
    captured = capsys.readouterr()
    assert isinstance(result, SolveResult)
    assert result.info == 0
    assert result.reason == "found a least-squares solution: norm(Aᴴ·r) <= atol·norm(A)·norm(r)"
    assert np.all(np.diff(result.residuals) <= 1e-12)
    assert captured.out.splitlines()[-1].startswith(f"{result.reason} after")
    assert "it/s" in captured.err or "s/it" in captured.err
