"""The action of the exponential, its table of norms, estimates of 1-norms, and the spectral radius."""

from __future__ import annotations

import warnings
from decimal import Decimal, localcontext
from math import comb, factorial
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import expm_multiply, onenormest, spectral_radius
from gsparse.linalg.functions.onenormest import THETA, ShiftedNorms
from tests.linalg.problems import convection, laplacian
from tests.support import DTYPES, host, on_device, random_values


@pytest.mark.parametrize("kind", [float, complex])
def test_complex_times_and_numbers_that_are_not_finite_are_refused(kind: Any) -> None:
    S = sp.csr_array(np.array([[0, 1], [-1, 0]], dtype=kind))
    A, b = GpuSparseMatrix(S, device="cpu"), np.array([1.0, 0])
    with pytest.raises(TypeError):
        sla.expm_multiply(S, b, start=0, stop=1j, num=2)
    for name in ("start", "stop"):
        for time in (1j, 1 + 0j, np.complex64(2), np.array(1j), complex(np.nan, 1)):
            with pytest.raises(TypeError, match=f"{name} must be a real number.*pass z \\* A"):
                expm_multiply(A, b, **{"start": 0, "stop": 1, name: time}, num=2)
        for time in (np.nan, np.inf, -np.inf, np.float32(np.nan)):
            with pytest.raises(ValueError, match=f"{name} must be finite, got"):
                expm_multiply(A, b, **{"start": 0, "stop": 1, name: time}, num=2)
    with pytest.raises(ValueError, match="stop - start must be finite"):
        expm_multiply(A, b, start=-1e308, stop=1e308, num=2)
    for trace in (np.nan, np.inf, complex(0, np.nan)):
        for times in ({}, {"start": 0, "stop": 1, "num": 3}):
            with pytest.raises(ValueError, match="traceA must be finite, got"):
                expm_multiply(A, b, traceA=trace, **times)
    expected = scipy.linalg.expm(1j * S.toarray()) @ b
    np.testing.assert_allclose(expm_multiply(GpuSparseMatrix(1j * S, device="cpu"), b), expected, atol=1e-14)


@pytest.mark.parametrize("name", ["start", "stop", "traceA"])
def test_an_argument_that_is_no_number_is_named(name: str) -> None:
    S, b = sp.csr_array(np.eye(2)), np.ones(2)
    values = ["1", [0, 1], b"1", {}]
    for value in values if name == "traceA" else [None, *values]:
        arguments = {"start": 0, "stop": 1, "num": 3, name: value}
        with pytest.raises(TypeError, match=f"{name} (must be a number|is missing)"):
            expm_multiply(GpuSparseMatrix(S, device="cpu"), b, **arguments)
    if name != "traceA":
        with pytest.raises(TypeError):
            sla.expm_multiply(S, b, **{"start": 0, "stop": 1, "num": 3, name: None})
    one = {"start": 0, "stop": 1, "endpoint": None, "num": 3}
    np.testing.assert_allclose(expm_multiply(S, b, **one), sla.expm_multiply(S, b, **one))


@pytest.mark.filterwarnings("ignore:Casting complex values:numpy.exceptions.ComplexWarning")  # from SciPy
@pytest.mark.parametrize("trace", [None, 3, 3.0, 3 + 0j, 3 + 1j])
@pytest.mark.parametrize("dtypes", [("float64", "float64"), ("bool", "float32"), ("int8", "complex64")], ids=str)
def test_the_result_has_the_dtype_of_scipys(dtypes: tuple[str, str], trace: complex | None) -> None:
    S, b = sp.csr_array(np.eye(3), dtype=dtypes[0]), np.ones(3, dtypes[1])
    for times in ({}, {"start": 0, "stop": 1, "num": 3}):
        found = expm_multiply(GpuSparseMatrix(S, device="cpu"), b, traceA=trace, **times)
        assert found.dtype == sla.expm_multiply(S, b, traceA=trace, **times).dtype
        exact = np.exp(np.linspace(0, 1, 3))[:, None] * np.ones(3) if times else np.full(3, np.e)
        np.testing.assert_allclose(found, exact, rtol=1e-12)


@pytest.mark.parametrize("times", [{}, {"start": 0, "stop": -1e3, "num": 4}, {"start": 1e3, "stop": 1e3 + 1, "num": 2}])
def test_a_warning_comes_before_very_many_products(times: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    A = GpuSparseMatrix(-1.0 * laplacian(4) * (1 if times else 1e3), device="cpu")
    expm_multiply(A, np.zeros(16), **times)  # no warning
    monkeypatch.setattr(f"{ShiftedNorms.__module__.rpartition('.')[0]}.expm_multiply._MANY_PRODUCTS", 1000)
    with pytest.warns(UserWarning, match=r"takes up to .e\+04 products with A, because a step covers only") as caught:
        expm_multiply(A, np.zeros(16), **times)
    assert (len(caught), caught[0].filename) == (1, __file__)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_a_norm_whose_powers_overflow_is_used_or_refused(dtype: Any) -> None:
    A = GpuSparseMatrix(sp.diags_array([-6e4, 0.0]).astype(dtype), device="cpu")  # the powers overflow in float32
    np.testing.assert_allclose(expm_multiply(A, np.ones(2, dtype)), [0, 1], rtol=1e-2)
    for factor in (1e16, 1e26):
        with pytest.raises(ValueError, match="leave no correct digit"):
            expm_multiply(A * dtype(factor), np.ones(2, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor", [1, 1j, -1], ids=["skew", "unitary", "negative"])
def test_errors_are_proportional_to_the_norm(dtype: Any, factor: complex) -> None:
    sides, b = np.ones(49), np.linspace(-1, 2, 50).astype(dtype)
    middle = [1, *[2] * 48, 1]  # with an eigenvalue 0, so that the result does not vanish
    if np.dtype(dtype).kind != "c" and factor == 1j:
        pytest.skip("the matrix is complex")
    shape = [-sides, np.zeros(50), sides] if factor == 1 else [sides, middle, sides]
    dense = (0.25 if factor == -1 else 0.5) * np.asarray(factor * sp.diags_array(shape, offsets=[-1, 0, 1]).toarray())
    # The eigenvalues of a Hermitian matrix, which are multiplied by 1, or by the imaginary unit.
    turn = 1 if factor == -1 else 1j
    limit = 2 if np.finfo(dtype).eps > 1e-10 else 100
    for norm in (1, 30, 1e3, 2e4):
        S = sp.csr_array((norm * dense).astype(dtype))
        values, vectors = np.linalg.eigh(S.toarray().astype(complex) / turn)
        expected = vectors @ (np.exp(turn * values) * (vectors.conj().T @ b))
        error = np.linalg.norm(expm_multiply(GpuSparseMatrix(S, device="cpu"), b) - expected) / np.linalg.norm(expected)
        assert error <= limit * np.finfo(dtype).eps * (1 + norm)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("scale", [0.02, 3.0])
@pytest.mark.few(6)
def test_the_action_equals_that_of_the_dense_exponential(
    real_device: Device, dtype: Any, columns: int | None, scale: float
) -> None:
    S = sp.csr_array(-scale * convection(7, dtype), dtype=dtype)
    shape = 49 if columns is None else (49, columns)
    B = random_values(np.random.default_rng(0), shape, dtype)
    expected = scipy.linalg.expm(S.toarray().astype(complex)) @ B
    found = expm_multiply(GpuSparseMatrix(S, device=real_device), B)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    np.testing.assert_allclose(found, expected, atol=300 * np.finfo(dtype).eps * abs(B).max())


@pytest.mark.few(1)
def test_expm_multiply_runs_on_every_device(device: Device) -> None:
    S = sp.csr_array(-0.4 * laplacian(6))
    B = on_device(device, random_values(np.random.default_rng(0), (36, 2), float))
    found = expm_multiply(GpuSparseMatrix(S, device=device), B)
    assert device.owns(found)
    np.testing.assert_allclose(host(found), scipy.linalg.expm(S.toarray()) @ host(B), atol=1e-13)


@pytest.mark.parametrize("num", [2, 5, 60])
@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("span", [(0, 1), (0.5, 2.0), (1.0, -0.5)])
def test_results_at_evenly_spaced_times_are_those_of_expm(
    real_device: Device, num: int, endpoint: bool, span: tuple[float, float]
) -> None:
    S = -0.5 * convection(6)
    B = random_values(np.random.default_rng(1), (36, 2), float)
    A = GpuSparseMatrix(S, device=real_device)
    for b in (B, B[:, 0]):
        found = expm_multiply(A, b, *span, num, endpoint)
        assert found.shape == (num, *b.shape)
        for t, X in zip(np.linspace(*span, num, endpoint), found, strict=True):
            expected = scipy.linalg.expm(t * S.toarray()) @ b
            np.testing.assert_allclose(X, expected, atol=1e-12 * max(abs(expected).max(), 1))


def test_huge_and_tiny_values_are_not_mistaken_for_convergence(real_device: Device) -> None:
    A = GpuSparseMatrix(sp.csr_array(sp.diags_array([4.0, 3.0, 1.0])), device=real_device)
    for scale in (1.0, 1e-170, 1e170):
        np.testing.assert_allclose(expm_multiply(A, np.full(3, scale)), scale * np.exp([4.0, 3.0, 1.0]), rtol=1e-12)
    zero = expm_multiply(GpuSparseMatrix(sp.csr_array((5, 5)), device=real_device), np.arange(5.0))
    np.testing.assert_array_equal(zero, np.arange(5.0))


def test_an_operator_without_its_trace_warns_and_misuse_is_refused() -> None:
    S, b = sp.csr_array(-1.0 * laplacian(5)), np.ones(25)
    operator = sla.aslinearoperator(S)
    expected = scipy.linalg.expm(S.toarray()) @ b
    with pytest.warns(UserWarning, match="Trace of LinearOperator"):
        np.testing.assert_allclose(expm_multiply(operator, b), expected, rtol=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(expm_multiply(operator, b, traceA=-100), expected, rtol=1e-10)
        np.testing.assert_allclose(expm_multiply(S.toarray(), b), expected, rtol=1e-10)
    with pytest.raises(ShapeError):
        expm_multiply(S, np.ones(24))
    with pytest.raises(ShapeError, match="square"):
        expm_multiply(sp.csr_array((3, 4)), np.ones(4))
    with pytest.raises(ValueError, match="at least two"):
        expm_multiply(S, b, 0, 1, 1)


def test_results_are_the_same_to_the_bit(device: Device) -> None:
    A, b = GpuSparseMatrix(-0.3 * laplacian(6), device=device), np.linspace(0, 1, 36)
    assert np.array_equal(expm_multiply(A, b), expm_multiply(A, b))


@pytest.mark.parametrize(("dtype", "bits"), [(np.float64, 53), (np.float32, 24)])
def test_the_table_of_norms_follows_from_the_series(dtype: Any, bits: int) -> None:
    table = THETA[np.dtype(dtype)]
    assert list(table) == sorted(table)
    assert list(table.values()) == sorted(table.values())
    for degree in (1, 2, 5, 13, max(table)):
        below, above = (backward_error(degree, table[degree] * factor) for factor in (1, 1.002))
        assert below <= Decimal(2) ** -bits < above


def backward_error(degree: int, theta: float) -> Decimal:
    """Return Σ |c_k|·θ^(k-1), where log(exp(-x)·T(x)) = Σ c_k·x^k for the Taylor polynomial T of this degree."""
    last = degree + 120
    with localcontext() as context:
        context.prec = 60
        a = {k: Decimal((-1) ** (k + degree) * comb(k - 1, degree)) / factorial(k) for k in range(degree + 1, last)}
        c: dict[int, Decimal] = {}
        for k in range(degree + 1, last):
            products = (j * c[j] * a[k - j] for j in range(degree + 1, k - degree))
            c[k] = a[k] - sum(products, Decimal(0)) / k
        return sum((abs(value) * Decimal(theta) ** (k - 1) for k, value in c.items()), Decimal(0))


# ---------------------------------------------------------------- norms


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("t", [1, 2, 5])
@pytest.mark.few(3)
def test_estimates_are_lower_bounds_within_a_factor_of_three(real_device: Device, dtype: Any, t: int) -> None:
    for seed in range(8):
        S = sp.csr_array(random_values(np.random.default_rng(seed), (40, 40), dtype))
        exact = np.linalg.norm(S.toarray(), 1)
        estimate, v, w = onenormest(GpuSparseMatrix(S, device=real_device), t, compute_v=True, compute_w=True)
        assert exact / 3 <= estimate <= exact * (1 + 1e-5)
        np.testing.assert_allclose(w, S @ v, rtol=1e-5, atol=1e-5)
        assert np.linalg.norm(w, 1) == pytest.approx(estimate, rel=1e-5)
        assert np.count_nonzero(v) == 1


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_image_is_that_of_the_vector_also_where_no_column_is_larger(real_device: Device, dtype: str) -> None:
    rng = np.random.default_rng(0)
    stochastic = rng.random((40, 40))
    for dense in (np.eye(40), np.eye(40)[rng.permutation(40)], stochastic / stochastic.sum(axis=0)):
        S = sp.csr_array(dense.astype(dtype))
        estimate, v, w = onenormest(GpuSparseMatrix(S, device=real_device), compute_v=True, compute_w=True)
        _, theirs, image = sla.onenormest(S, compute_v=True, compute_w=True)
        np.testing.assert_allclose(image, S @ theirs)
        np.testing.assert_array_equal(w, S @ v)
        assert estimate == pytest.approx(1)


def test_large_matrices_of_one_sign_are_estimated_exactly(device: Device) -> None:
    S = abs(convection(9))
    assert onenormest(GpuSparseMatrix(S, device=device)) == pytest.approx(np.linalg.norm(S.toarray(), 1))


def test_norms_of_small_matrices_are_exact_and_misuse_is_refused() -> None:
    S = sp.csr_array(np.arange(4.0).reshape(2, 2))
    assert onenormest(GpuSparseMatrix(S, device="cpu")) == 4
    assert onenormest(sla.aslinearoperator(laplacian(5))) == 8
    with pytest.raises(ValueError, match="square"):
        onenormest(sp.csr_array((3, 4)))
    with pytest.raises(ValueError, match="at least 1"):
        onenormest(S, 0)


def test_spectral_radii_are_those_of_lapack(real_device: Device) -> None:
    for S in (laplacian(14), convection(14), sp.csr_array(1j * convection(12)), -laplacian(3), sp.csr_array((20, 20))):
        exact = abs(np.linalg.eigvals(S.toarray())).max()
        assert spectral_radius(GpuSparseMatrix(S, device=real_device)) == pytest.approx(exact, rel=1e-5, abs=1e-12)
    assert spectral_radius(laplacian(14), hermitian=True) == pytest.approx(7.9124, rel=1e-4)
    assert spectral_radius(sp.csr_array((0, 0))) == 0
    with pytest.raises(ShapeError):
        spectral_radius(sp.csr_array((3, 4)))
