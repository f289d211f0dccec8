"""Estimates of the largest eigenvalue of D⁻¹A, for smoothers and prolongators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.bench.elliptic_problems import elliptic_problems, poisson
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.linalg import amg
from gsparse.linalg.multigrid import level_setup
from gsparse.linalg.preconditioners import eigenvalue
from gsparse.linalg.preconditioners.eigenvalue import estimated_eigenvalue, largest_eigenvalue
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from tests.linalg.problems import laplacian
from tests.support import DTYPES

HERMITIAN = {problem.name: problem for problem in elliptic_problems(16) if problem.solver == "cg"}


def estimates(S: Any, device: Device) -> tuple[float, float]:
    """Return the estimate and the upper bound."""
    with SquareMatrix.of(GpuSparseMatrix(S, device=device), "test") as matrix:
        inverse = matrix.inverse_diagonal("test")
        return estimated_eigenvalue(matrix, inverse), largest_eigenvalue(matrix, inverse)


def exact(S: Any) -> float:
    """Return the largest eigenvalue of D⁻¹A by LAPACK."""
    size = S.shape[0]
    last = [size - 1, size - 1]
    return float(scipy.linalg.eigh(S.toarray(), np.diag(S.diagonal()), eigvals_only=True, subset_by_index=last)[0])


@pytest.mark.parametrize("name", HERMITIAN)
def test_the_estimate_is_near_the_largest_eigenvalue_and_the_bound_above_it(name: str) -> None:
    S = sp.csr_array(HERMITIAN[name].make()[0])
    estimate, bound = estimates(S, get_device("cpu"))
    want = exact(S)
    assert 0.96 * want <= estimate <= 1.05 * want
    assert (1 - 1e-12) * want <= bound <= 1.1 * want


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_the_estimate_is_the_same_for_every_dtype_and_device(device: Device, dtype: Any) -> None:
    S = sp.csr_array(laplacian(9) + sp.diags_array(np.linspace(0, 5, 81)))
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(81)) if np.dtype(dtype).kind == "c" else np.ones(81)
    estimate, _ = estimates(
        sp.csr_array(sp.diags_array(phases.conj()) @ S @ sp.diags_array(phases), dtype=dtype), device
    )
    assert estimate == pytest.approx(exact(S), rel=0.04)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 33])
@pytest.mark.few(2)
def test_a_small_space_is_searched_to_its_end(device: Device, size: int) -> None:
    assert estimates(sp.csr_array(sp.diags_array(np.arange(1.0, size + 1))), device)[0] == pytest.approx(1, rel=1e-12)
    chain = sp.csr_array(sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(size, size)))
    assert estimates(chain, device)[0] == pytest.approx(exact(chain), rel=1e-6 if size <= 8 else 0.04)


def test_a_single_eigenvalue_above_all_others_is_found(real_device: Device) -> None:
    # A dense block of four rows, in which D⁻¹A has the eigenvalue 3.7, and a mesh of 22 500 rows, in which it has 2.
    block = 0.9 * np.ones((4, 4)) + 0.1 * np.eye(4)
    S = sp.csr_array(sp.block_diag([laplacian(150), block]))
    _, bound = estimates(S, real_device)
    assert 3.7 <= bound <= 1.06 * 3.7


@pytest.mark.parametrize(
    ("smoother", "symmetry"),
    [("chebyshev", "hermitian"), ("jacobi", "symmetric"), ("auto", "hermitian"), ("gauss_seidel", "nonsymmetric")],
)
def test_smoothers_and_prolongators_of_a_level_share_one_estimate(
    monkeypatch: pytest.MonkeyPatch, smoother: str, symmetry: str
) -> None:
    sizes: list[int] = []
    for module, name in ((eigenvalue, "_estimate"), (level_setup, "spectral_radius")):
        original = getattr(module, name)

        def counted(matrix: Any, inverse: Any, original: Any = original) -> float:
            sizes.append(matrix.size)
            return float(original(matrix, inverse))

        monkeypatch.setattr(module, name, counted)
    options: dict[str, Any] = {"smoother": smoother, "symmetry": symmetry, "max_coarse": 10}
    M = amg(GpuSparseMatrix(poisson(20, 5), device="cpu"), **options)
    assert len(M.levels) == 2
    assert sizes == [level.size for level in M.levels]
