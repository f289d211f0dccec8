"""Krylov decompositions: orthogonal vectors and an exact projected matrix, over restarts, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.kernels.gpu import basis
from gsparse.linalg.eigen.krylov_space import KrylovSpace, Projection, Space, random_vector
from gsparse.linalg.eigen.transforms import Filter, Solve, Transform
from gsparse.linalg.operators import as_operator
from tests.support import DTYPES, host, on_device, random_values

# More than two blocks of an emulated device have in flight, and not a multiple of a warp.
SIZE, STEPS, KEPT = 331, 20, 8


def problem(dtype: Any, hermitian: bool) -> np.ndarray:
    A = random_values(np.random.default_rng(0), (SIZE, SIZE), dtype)
    return A + A.conj().T if hermitian else A


def make_space(device: Device, A: np.ndarray, hermitian: bool, steps: int = STEPS, **options: Any) -> Any:
    space = KrylovSpace(Space(device, A.dtype, SIZE, SIZE, **options), steps, hermitian)
    operator = as_operator(GpuSparseMatrix(sp.csr_array(A), device=device), device)
    return space, Transform(operator.bind(device, A.dtype), True)


def assert_decomposition(space: KrylovSpace, found: Projection, B: np.ndarray, mass: np.ndarray | None = None) -> None:
    """Check B·V = V·H + v·hᴴ and the orthogonality of [V v]."""
    end, eps = len(found.matrix), np.finfo(B.dtype).eps
    V = host(space.vectors)[:end].T
    v = (host(space.w) - V @ found.leftover.astype(B.dtype)) / B.dtype.type(found.remainder)
    whole = np.column_stack([V, v])
    gram = whole.conj().T @ (whole if mass is None else mass[:, None] * whole)
    assert abs(gram - np.eye(end + 1)).max() <= 50 * eps
    error = B @ V - V @ found.matrix
    error[:, -1] -= found.remainder * v
    assert abs(error).max() <= 10 * eps * np.linalg.norm(B, 2)


def restart(space: KrylovSpace, found: Projection, hermitian: bool) -> None:
    """Keep Ritz vectors, or Schur vectors, of eigenvalues of one end of the spectrum."""
    H = found.matrix
    if hermitian:
        values, Y = np.linalg.eigh((H + H.conj().T) / 2)
        S, Y = np.diag(values[:KEPT]), Y[:, :KEPT]
    else:
        middle = np.median(abs(np.linalg.eigvals(H)))
        form = "complex" if H.dtype.kind == "c" else "real"
        S, Y, count = scipy.linalg.schur(H, form, sort=lambda x, y=0: abs(complex(x) + 1j * y) > middle)
        S, Y = S[:count, :count], Y[:, :count]
    space.keep(found, Y)
    space.begin(np.vstack([S, found.remainder * Y[-1]]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hermitian", [True, False])
@pytest.mark.few(1)
def test_restarted_cycles_keep_a_decomposition(device: Device, dtype: Any, hermitian: bool) -> None:
    A = problem(dtype, hermitian)
    space, product = make_space(device, A, hermitian)
    assert space.start(random_vector(space.space, 1))
    space.begin(np.zeros((1, 0)))
    for _ in range(3):
        found = space.cycle(product, STEPS)
        assert_decomposition(space, found, A)
        if hermitian:
            assert abs(found.matrix - found.matrix.conj().T).max() <= 100 * np.finfo(dtype).eps * found.scale
        restart(space, found, hermitian)


@pytest.mark.whole
def test_steps_of_a_hermitian_process_read_the_basis_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    # No projection: `predict` computes its result from coefficients.
    space, product = make_space(device, problem(np.dtype(float), True), True)
    monkeypatch.setattr(type(space.decomposition), "project", lambda *args: pytest.fail("a second pass"))
    space.start(random_vector(space.space, 1))
    space.begin(np.zeros((1, 0)))
    space.cycle(product, STEPS)


@pytest.mark.parametrize("hermitian", [True, False])
def test_bases_that_registers_cannot_hold_are_right(
    device: Device, hermitian: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(basis, "_TEAMS", 1)  # 8 vectors
    A = problem(np.dtype(float), hermitian)
    space, product = make_space(device, A, hermitian)
    space.start(random_vector(space.space, 2))
    space.begin(np.zeros((1, 0)))
    assert_decomposition(space, space.cycle(product, STEPS), A)


@pytest.mark.whole
def test_vectors_are_orthonormal_in_the_inner_product_of_a_mass_matrix(device: Device) -> None:
    A, rng = problem(np.dtype(float), True), np.random.default_rng(1)
    mass = 1 + rng.random(SIZE)
    on = on_device(device, mass)

    def times_mass(x: Any, y: Any) -> None:
        y[...] = on * x

    def solve(x: Any, y: Any) -> None:
        y[...] = x / on

    space, product = make_space(device, A, True, multiply_mass=times_mass)
    transform = Solve(product.product, False, solve=solve, kind="mass")
    assert space.start(random_vector(space.space, 1), transform)
    space.begin(np.zeros((1, 0)))
    for _ in range(3):
        found = space.cycle(transform, STEPS)
        assert_decomposition(space, found, A / mass[:, None], mass)
        restart(space, found, hermitian=True)


@pytest.mark.parametrize("degree", [3, 7])
@pytest.mark.few(1)
def test_a_filter_is_a_chebyshev_polynomial_of_the_matrix(device: Device, degree: int) -> None:
    A = problem(np.dtype(float), True)
    values, vectors = np.linalg.eigh(A)
    space, product = make_space(device, A, True)
    options = {"low": -20.0, "high": 15.0, "degree": degree, "ends": (values[0], values[-1])}
    transform = Filter(product.product, True, **options)
    p = transform.inverse_values(values)
    space.start(random_vector(space.space, 1))
    space.begin(np.zeros((1, 0)))
    found = space.cycle(transform, STEPS)
    assert_decomposition(space, found, (vectors * p) @ vectors.T)
    outside = (values < -20) | (values > 15)
    np.testing.assert_allclose(transform.values(p)[outside], values[outside], rtol=1e-12)
    assert (transform.values(p)[~outside] == -2.5).all()


def test_an_invariant_subspace_ends_the_decomposition(device: Device) -> None:
    A = np.diag(np.repeat([1.0, 2.0, 5.0], [300, 30, 1]))
    space, product = make_space(device, A, True)
    space.start(random_vector(space.space, 1))
    space.begin(np.zeros((1, 0)))
    found = space.cycle(product, STEPS)
    assert found.remainder == 0
    np.testing.assert_allclose(np.linalg.eigvalsh(found.matrix), [1, 2, 5], rtol=1e-13)
    assert np.isfinite(host(space.vectors)).all()


def test_random_vectors_depend_on_places_only() -> None:
    for dtype in DTYPES:
        whole = random_vector(Space(get_device("cpu"), dtype, 1000, 1000), 3)
        part = random_vector(Space(get_device("cpu"), dtype, 400, 1000, first_index=600), 3)
        assert np.array_equal(whole[600:], part)
        assert abs(whole.real).max() <= 1
        assert abs(whole.mean()) < 0.1
        assert abs(np.corrcoef(whole[:-1].real, whole[1:].real)[0, 1]) < 0.1
        assert not np.array_equal(whole, random_vector(Space(get_device("cpu"), dtype, 1000, 1000), 4))
