"""Singular triplets: equal to LAPACK's for both shapes and both ends, also of singular and graded matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import norm, svds
from gsparse.linalg.eigen import singular_triplets
from tests.linalg.problems import rectangular
from tests.support import DTYPES, host, on_device, random_values

SHAPES = ((160, 90), (90, 160), (120, 120))


def general(shape: tuple[int, int], dtype: Any = float) -> sp.csr_array:
    rng = np.random.default_rng(shape[0])
    S = sp.random_array(shape, density=8 / min(shape), rng=rng, format="csr")
    return sp.csr_array((random_values(rng, S.nnz, dtype), S.indices, S.indptr), shape=shape)


def graded(values: np.ndarray) -> sp.csr_array:
    """Return a matrix with these singular values."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((values.size, values.size)))[0] for _ in range(2))
    return sp.csr_array((U * values) @ V)


def assert_triplets(S: Any, triplets: Any, k: int, which: str, tol: float = 0.0, slack: float = 1.0) -> None:
    """Compare the values with LAPACK's, and check residuals and orthogonality."""
    u, s, vh = triplets
    eps = slack * np.finfo(s.dtype).eps
    A = S.toarray().astype(complex if S.dtype.kind == "c" else float)
    exact = np.linalg.svd(A, compute_uv=False)
    wanted = exact[:k][::-1] if which == "LM" else exact[-k:][::-1]
    np.testing.assert_allclose(s, wanted, rtol=50 * eps + 10 * tol, atol=50 * eps * exact[0])
    assert (np.diff(s) >= 0).all()
    allowed = 300 * eps * exact[0] + 10 * tol * s
    assert (np.linalg.norm(A @ vh.conj().T - u * s, axis=0) <= allowed).all()
    assert (np.linalg.norm(A.conj().T @ u - vh.conj().T * s, axis=0) <= allowed).all()
    np.testing.assert_allclose(u.conj().T @ u, np.eye(k), atol=200 * eps)
    np.testing.assert_allclose(vh @ vh.conj().T, np.eye(k), atol=200 * eps)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("which", ["LM", "SM"])
@pytest.mark.few(8)
def test_svds_finds_both_ends_of_both_shapes(real_device: Device, shape: Any, dtype: Any, which: str) -> None:
    S = general(shape, dtype)
    triplets = svds(GpuSparseMatrix(S, device=real_device), 5, which=which)
    assert (triplets[0].dtype, triplets[1].dtype) == (dtype, np.empty(0, dtype).real.dtype)
    assert (triplets[0].shape, triplets[2].shape) == ((shape[0], 5), (5, shape[1]))
    assert_triplets(S, triplets, 5, which, slack=20 if which == "SM" else 1)


@pytest.mark.few(1)
def test_svds_runs_on_every_device(device: Device) -> None:
    S = rectangular(100, 80)
    assert_triplets(S, svds(GpuSparseMatrix(S, device=device), 3, tol=1e-8), 3, "LM", tol=1e-8)


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("tol", [0, 1e-6])
@pytest.mark.few(1)
def test_the_smallest_are_found_without_factors(shape: Any, tol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singular_triplets, "_MAX_FACTORED", 0)
    S = general(shape)
    assert_triplets(S, svds(GpuSparseMatrix(S, device="cpu"), 4, which="SM", tol=tol), 4, "SM", tol=tol, slack=20)
    operator = sla.aslinearoperator(S)
    assert_triplets(S, svds(operator, 4, which="SM", tol=1e-6), 4, "SM", tol=1e-6, slack=20)


@pytest.mark.parametrize("which", ["LM", "SM"])
@pytest.mark.parametrize("rank", [0, 1, 3, 97])
def test_triplets_of_matrices_of_low_rank_are_those_of_lapack(real_device: Device, which: str, rank: int) -> None:
    rng = np.random.default_rng(rank)
    S = sp.csr_array(rng.standard_normal((130, rank)) @ rng.standard_normal((rank, 100)))
    assert_triplets(S, svds(GpuSparseMatrix(S, device=real_device), 5, which=which), 5, which, slack=20)


def test_graded_singular_values_are_accurate_at_both_ends(real_device: Device) -> None:
    # Squares of these are below the rounding errors of the square of the largest one.
    largest = graded(np.r_[10.0 ** -np.arange(0, 16, 2), np.zeros(92)])
    assert_triplets(largest, svds(GpuSparseMatrix(largest, device=real_device), 7), 7, "LM")
    smallest = graded(np.r_[np.ones(92), 10.0 ** -np.arange(0, 16, 2)])
    # The rounding errors depend on the LAPACK of NumPy: up to 57 was seen.
    assert_triplets(smallest, svds(GpuSparseMatrix(smallest, device=real_device), 6, which="SM"), 6, "SM", slack=100)


@pytest.mark.parametrize("which", ["LM", "SM"])
def test_all_copies_of_multiple_values_are_found(real_device: Device, which: str) -> None:
    B = general((50, 40))
    S = sp.csr_array(sp.block_diag([B, B, B]))
    assert_triplets(S, svds(GpuSparseMatrix(S, device=real_device), 6, which=which), 6, which, slack=20)


@pytest.mark.parametrize("shape", [*SHAPES, (12, 9)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(4)
def test_rows_are_centered_without_being_formed(real_device: Device, shape: Any, dtype: Any) -> None:
    S = general(shape, dtype)
    center = S.toarray().mean(axis=0) + dtype.type(3)  # no singular value of the difference is that of S
    triplets = svds(GpuSparseMatrix(S, device=real_device), 5, center=center)
    assert_triplets(sp.csr_array(S.toarray() - center), triplets, 5, "LM")
    with pytest.raises(ShapeError, match="center must have shape"):
        svds(GpuSparseMatrix(S, device=real_device), 5, center=center[1:])


@pytest.mark.parametrize("shape", [(160, 90), (90, 160), (12, 9)])
def test_only_the_wanted_vectors_are_returned(real_device: Device, shape: Any) -> None:
    A = GpuSparseMatrix(general(shape), device=real_device)
    u, s, vh = svds(A, 3)
    np.testing.assert_allclose(svds(A, 3, return_singular_vectors=False), s, rtol=1e-13)
    left = svds(A, 3, return_singular_vectors="u")
    right = svds(A, 3, return_singular_vectors="vh")
    assert left[2] is None
    assert right[0] is None
    np.testing.assert_array_equal(left[0], u)
    np.testing.assert_array_equal(right[2], vh)


def test_the_same_v0_or_seed_gives_the_same_bits(device: Device) -> None:
    A = GpuSparseMatrix(rectangular(90, 70), device=device)
    v0 = on_device(device, np.random.default_rng(0).standard_normal(70))
    first, second = (svds(A, 2, v0=v0, tol=1e-6) for _ in range(2))
    assert all(device.owns(part) for part in first)
    assert all(np.array_equal(host(a), host(b)) for a, b in zip(first, second, strict=True))
    seeded = [svds(A, 2, rng=seed, tol=1e-6)[2] for seed in (1, 1, 2)]
    assert np.array_equal(seeded[0], seeded[1])
    assert not np.array_equal(seeded[0], seeded[2])


@pytest.mark.parametrize("shape", [(160, 90), (90, 160)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("which", ["LM", "SM"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(shape: Any, dtype: Any, which: str, value: float) -> None:
    S = general(shape, dtype)
    S.data[3] = value
    with pytest.raises(ValueError, match=r"the products of A contain NaN or infinity: check the values of A"):
        svds(GpuSparseMatrix(S, device="cpu"), 3, which=which)


def test_no_convergence_raises_scipys_error() -> None:
    S = sp.csr_array(sp.diags_array(np.linspace(1, 2, 400)))
    with pytest.raises(sla.ArpackNoConvergence):
        svds(GpuSparseMatrix(S, device="cpu"), 3, maxiter=1)


@pytest.mark.parametrize("shape", [(160, 90), (1, 30), (30, 1), (20, 20)])
@pytest.mark.parametrize("dtype", [float, complex, int])
def test_the_two_norm_is_the_largest_singular_value(real_device: Device, shape: Any, dtype: Any) -> None:
    S = rectangular(*shape, dtype=float)
    S = sp.csr_array((10 * S).astype(int) if dtype is int else S.astype(dtype))
    expected = np.linalg.norm(S.toarray(), 2)
    assert norm(GpuSparseMatrix(S, device=real_device), 2) == pytest.approx(expected, rel=1e-12)
