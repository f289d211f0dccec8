"""LSQR and LSMR give what SciPy's give, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import SolveResult, lsmr, lsqr
from tests.linalg.problems import rectangular, right_hand_side
from tests.support import DTYPES, host, on_device

SHAPES = [(90, 40), (40, 90), (60, 60), (1, 1)]
METHODS = [(lsqr, la.lsqr), (lsmr, la.lsmr)]
TIGHT = {"atol": 1e-10, "btol": 1e-10}
methods = pytest.mark.parametrize(("mine", "theirs"), METHODS, ids=["lsqr", "lsmr"])


def matrix(device: Device, S: Any) -> GpuSparseMatrix:
    return GpuSparseMatrix(S, device=device)


@methods
@pytest.mark.parametrize("damp", [0.0, 0.7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_least_squares_gives_what_scipy_gives(
    device: Device, mine: Any, theirs: Any, shape: tuple[int, int], damp: float
) -> None:
    S = rectangular(*shape)
    b = right_hand_side(S)
    for x0 in (None, right_hand_side(S.T, seed=1)):
        expected = theirs(S, b, damp=damp, x0=x0)
        found = mine(matrix(device, S), b, damp=damp, x0=x0)
        assert len(found) == len(expected)
        assert [type(value) for value in found[1:8]] == [int, int, *[float] * 5]
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-5)
        assert found[1] == expected[1]
        assert abs(found[2] - expected[2]) <= 1
        if found[2] == expected[2] > 1:  # (estimates of the last iteration; SciPy gives none for a single exact one)
            np.testing.assert_allclose(found[3:7], expected[3:7], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_lsqr_solves_exactly_enough_and_estimates_variances(device: Device, shape: tuple[int, int]) -> None:
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
def test_least_squares_solves_right_hand_sides_side_by_side(device: Device, mine: Any, theirs: Any) -> None:
    S = rectangular(90, 40)
    b = right_hand_side(S, 3)
    b[:, 1] = 0
    found = mine(matrix(device, S), b, **TIGHT)
    np.testing.assert_array_equal(found[1], [2, 0, 2])
    for column in range(3):
        alone = mine(matrix(device, S), b[:, column], **TIGHT)
        assert found[2][column] == alone[2]
        np.testing.assert_allclose(found[0][:, column], alone[0], rtol=1e-7, atol=1e-9)


@methods
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_least_squares_computes_in_the_dtype_of_the_system(
    real_device: Device, mine: Any, theirs: Any, dtype: np.dtype[Any]
) -> None:
    S = rectangular(60, 30, dtype)
    b = right_hand_side(S)
    found = mine(matrix(real_device, S), on_device(real_device, b), atol=1e-5, btol=1e-5)
    x = host(found[0])
    assert x.dtype == dtype
    assert found[1] == 2
    exact = np.linalg.lstsq(S.toarray(), b)[0]
    assert np.linalg.norm(x - exact) < 1e-3 * np.linalg.norm(exact)


@methods
def test_least_squares_stops_for_scipys_reasons(device: Device, mine: Any, theirs: Any) -> None:
    S = rectangular(60, 60)
    b = right_hand_side(S)
    limit = "iter_lim" if mine is lsqr else "maxiter"
    graded = sp.csr_array(sp.diags_array(np.logspace(0, -9, 40)))
    hard = sp.csr_array(sp.diags_array(np.logspace(0, -13, 12)))
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (S, b, {}), (S, b, {limit: 3}), (S, 0 * b, {}), (S, 0 * b, {"x0": b}), (0 * S, b, {}),
        (rectangular(90, 40), right_hand_side(rectangular(90, 40)), {}),
        (graded, np.ones(40), {"conlim": 10, **TIGHT}),
        (hard, np.ones(12), {"atol": 0, "btol": 0, "conlim": 0, limit: 200}),
    ]  # fmt: skip
    assert mine(matrix(device, S), b, **{limit: 0})[1:3] == (7, 0)  # (SciPy says 0, as if it were solved)
    reasons = []
    for T, c, options in cases:
        with np.errstate(all="ignore"):
            expected = theirs(T, c, **options)
        found = mine(matrix(device, T), c, **options)
        reasons.append(int(found[1]))
        if "x0" in options:  # (SciPy's lsqr divides by norm(b) here)
            np.testing.assert_array_equal(found[0], 0)
        elif T is not hard:
            assert found[1] == expected[1]
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
    assert {0, 1, 2, 3, 7} <= {*reasons}
    assert reasons[-1] in {4, 5, 6, 7}


@methods
def test_least_squares_ends_where_numbers_are_not(device: Device, mine: Any, theirs: Any) -> None:
    S = rectangular(60, 30)
    b = right_hand_side(S)
    b[3] = np.nan
    _, istop, itn = mine(matrix(device, S), b)[:3]
    assert (istop, itn) == (7, 0)


@methods
def test_least_squares_takes_foreign_operators(real_device: Device, mine: Any, theirs: Any) -> None:
    S = rectangular(90, 40)
    b = right_hand_side(S)
    expected = mine(matrix(real_device, S), b, **TIGHT)
    operator = la.aslinearoperator(S) if real_device.kind == "cpu" else la.aslinearoperator(matrix(real_device, S))
    found = mine(operator, b, **TIGHT)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-8, atol=1e-10)


@methods
def test_least_squares_handles_empty_and_refuses_misfits(real_device: Device, mine: Any, theirs: Any) -> None:
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
def test_least_squares_tells_how_it_went(
    real_device: Device, mine: Any, theirs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    S = rectangular(60, 30)
    found = mine(matrix(real_device, S), right_hand_side(S), show=True, progress=True, full_output=True)
    shown = capsys.readouterr()
    assert isinstance(found, SolveResult)
    assert (found.info, found.reason) == (0, "found a least-squares solution")
    assert np.all(np.diff(found.residuals) <= 1e-12)
    assert "found a least-squares solution after" in shown.out.splitlines()[-1]
    assert "it/s" in shown.err or "s/it" in shown.err
