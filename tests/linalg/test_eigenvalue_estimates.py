"""Estimates of the largest eigenvalue of D⁻¹A, for smoothers and prolongators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from asv_bench.elliptic_problems import convection_diffusion, elliptic_problems, poisson
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import SmootherWarning
from gsparse.linalg import amg
from gsparse.linalg.multigrid import level_setup
from gsparse.linalg.preconditioners import polynomial
from gsparse.linalg.preconditioners.polynomial import estimated_eigenvalue, largest_eigenvalue, spectral_radius
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.small_matrices import hashed_vector
from tests.linalg.problems import laplacian
from tests.support import DTYPES, host

# LAPACK takes long for the thin beam.
HERMITIAN = {p.name: p for p in elliptic_problems(16) if p.solver == "cg" and "beam" not in p.name}


def estimates(S: Any, device: Device) -> tuple[float, float, float]:
    """Return a lower bound of the largest eigenvalue, an estimate without a margin, and an upper bound."""
    with SquareMatrix.of(GpuSparseMatrix(S, device=device), "test") as matrix:
        args = matrix, matrix.inverse_diagonal("test")
        return estimated_eigenvalue(*args), largest_eigenvalue(*args, safety=1.0), largest_eigenvalue(*args)


def exact(S: Any) -> float:
    """Return the largest eigenvalue of D⁻¹A by LAPACK."""
    size = S.shape[0]
    last = [size - 1, size - 1]
    return float(scipy.linalg.eigh(S.toarray(), np.diag(S.diagonal()), eigvals_only=True, subset_by_index=last)[0])


@pytest.mark.parametrize("name", HERMITIAN)
def test_the_estimates_are_near_the_largest_eigenvalue(name: str) -> None:
    S = sp.csr_array(HERMITIAN[name].make()[0])
    lower, estimate, upper = estimates(S, get_device("cpu"))
    want, eps = exact(S), 1e-12
    assert 0.92 * want <= lower <= (1 + eps) * want
    assert 0.97 * want <= estimate <= 1.04 * want
    assert (1 - eps) * want <= upper <= 1.1 * want


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_the_estimates_suit_every_dtype(device: Device, dtype: Any) -> None:
    S = sp.csr_array(laplacian(9) + sp.diags_array(np.linspace(0, 5, 81)))
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(81)) if np.dtype(dtype).kind == "c" else np.ones(81)
    scaled = sp.csr_array(sp.diags_array(phases.conj()) @ S @ sp.diags_array(phases), dtype=dtype)
    lower, estimate, _ = estimates(scaled, device)
    want = exact(S)
    assert 0.92 * want <= lower <= 1.0001 * want
    assert 0.97 * want <= estimate <= 1.04 * want


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.few(2)
def test_a_small_space_is_searched_to_its_end(device: Device, size: int) -> None:
    diagonal = sp.csr_array(sp.diags_array(np.arange(1.0, size + 1)))
    np.testing.assert_allclose(estimates(diagonal, device)[:2], 1, rtol=1e-12)
    chain = sp.csr_array(sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(size, size)))
    np.testing.assert_allclose(estimates(chain, device)[:2], exact(chain), rtol=1e-6)


def test_a_single_eigenvalue_above_all_others_is_found(real_device: Device) -> None:
    # A dense block of four rows, in which D⁻¹A has the eigenvalue 3.7, and a mesh of 22 500 rows, in which it has 2.
    block = 0.9 * np.ones((4, 4)) + 0.1 * np.eye(4)
    S = sp.csr_array(sp.block_diag([laplacian(150), block]))
    _, estimate, bound = estimates(S, real_device)
    assert 0.99 * 3.7 <= estimate <= 1.01 * 3.7
    assert 3.7 <= bound <= 1.06 * 3.7


@pytest.mark.parametrize("peclet", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("recirculates", [False, True])
def test_the_spectral_radius_of_a_nonsymmetric_matrix_is_not_underestimated(peclet: float, recirculates: bool) -> None:
    S = sp.csr_array(convection_diffusion(20, peclet, recirculating=recirculates))
    with SquareMatrix.of(GpuSparseMatrix(S, device="cpu"), "test") as matrix:
        estimate = spectral_radius(matrix, matrix.inverse_diagonal("test"))
    want = abs(np.linalg.eigvals(S.toarray() / S.diagonal()[:, None])).max()
    assert want <= estimate <= 2 * want


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_the_spectral_radius_of_a_small_matrix_is_exact_but_for_its_margin(device: Device, dtype: Any) -> None:
    values = np.array([4.0, 1.0, -2.0, 3.0]) * (1 + 1j if np.dtype(dtype).kind == "c" else 1)
    S = sp.csr_array((np.triu(np.ones((4, 4)), 1) + np.diag(values)).astype(dtype))
    with SquareMatrix.of(GpuSparseMatrix(S, device=device), "test") as matrix:
        ones = device.xp.ones(4, dtype)
        rel = 1e-2 if np.finfo(dtype).eps > 1e-10 else 1e-6
        assert spectral_radius(matrix, ones) == pytest.approx(1.05 * abs(S.diagonal()).max(), rel=rel)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_the_spectral_radius_may_be_so_large_that_its_powers_overflow(real_device: Device, dtype: str) -> None:
    S = sp.csr_array(sp.diags_array([-1.0, 2.0, -0.5], offsets=[-1, 0, 1], shape=(60, 60)), dtype=dtype)
    S[30, 30] = 1e-7
    with SquareMatrix.of(GpuSparseMatrix(S, device=real_device), "test") as matrix:
        estimate = spectral_radius(matrix, matrix.inverse_diagonal("test"))
    want = abs(np.linalg.eigvals(S.toarray() / S.diagonal()[:, None])).max()
    assert want <= estimate < np.inf
    with pytest.warns(SmootherWarning, match="diverges"):
        M = amg(GpuSparseMatrix(S, device=real_device), max_coarse=10)
    assert np.isfinite(host(M @ np.ones(60, dtype))).all()


@pytest.mark.parametrize(
    ("smoother", "symmetry"),
    [("chebyshev", "hermitian"), ("jacobi", "symmetric"), ("auto", "hermitian"), ("gauss_seidel", "nonsymmetric")],
)
def test_smoothers_and_prolongators_of_a_level_share_one_estimate(
    monkeypatch: pytest.MonkeyPatch, smoother: str, symmetry: str
) -> None:
    sizes: list[int] = []
    for module, name in ((polynomial, "_run_lanczos"), (level_setup, "spectral_radius")):
        original = getattr(module, name)

        def counted(matrix: Any, inverse: Any, original: Any = original) -> Any:
            sizes.append(matrix.size)
            return original(matrix, inverse)

        monkeypatch.setattr(module, name, counted)
    options: dict[str, Any] = {"smoother": smoother, "symmetry": symmetry, "max_coarse": 10}
    M = amg(GpuSparseMatrix(poisson(20, 5), device="cpu"), **options)
    assert len(M.levels) == 2
    assert sizes == [level.size for level in M.levels]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("number", [0, 3])
def test_hashed_vectors_are_hashes_of_the_row_numbers(device: Device, dtype: str, number: int) -> None:
    expected = []
    for row in range(300):
        h = (row + 1 + number * 1640531527) % 2**32
        for odd in (2654435761, 0x85EBCA6B):
            h = h * odd % 2**32
            h ^= h >> 16
        expected.append(h / 2**32 - 0.5)
    vector = host(hashed_vector(device, 300, np.dtype(dtype), number))
    np.testing.assert_array_equal(vector, np.array(expected).astype(dtype))


def test_hashed_vectors_of_other_numbers_are_independent(device: Device) -> None:
    vectors = [host(hashed_vector(device, 999, np.dtype(np.float64), number)) for number in range(3)]
    gram = 12 / 999 * np.array(vectors) @ np.transpose(vectors)
    assert np.abs(gram - np.eye(3)).max() < 0.1  # three times the deviation of random numbers
    assert max(np.abs(vector).max() for vector in vectors) <= 0.5
    # Nor do neighbours depend on each other, as the frequencies of the vector show.
    spectrum = np.abs(np.fft.rfft(vectors[0])) ** 2 / (999 / 12)
    assert spectrum.max() < 12
