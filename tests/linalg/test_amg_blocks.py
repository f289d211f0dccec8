"""Multigrid with several unknowns a node multiplies blocks, and makes the hierarchy that it makes of single entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from asv_bench.tetrahedra import tetrahedral_elasticity
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.kernels.backends import kernels_of
from gsparse.linalg import amg, rigid_body_modes
from gsparse.sparse import arithmetic
from tests.support import host


class CountedKernel:
    """Counts the calls of a kernel, and keeps the sizes of the blocks that it multiplied."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.sizes = kernel, list[tuple[int, int, int]]()

    def __call__(self, device: Device, a_data: Any, b_data: Any, patterns: Any) -> Any:
        self.sizes.append((*patterns[0].blocksize, patterns[1].blocksize[1]))
        return self.kernel(device, a_data, b_data, patterns)


@pytest.fixture
def multiplied(device: Device, monkeypatch: pytest.MonkeyPatch) -> CountedKernel:
    kernels = kernels_of(device)
    counted = CountedKernel(kernels.blocks.multiply_blocks)
    monkeypatch.setattr(kernels.blocks, "multiply_blocks", counted)
    return counted


def without_full_blocks(S: Any) -> sp.csr_array:
    """Return the matrix without the entries of row 9 beside the diagonal, so blocks of its node are not full."""
    S = S.tocsr(copy=True)
    first, last = S.indptr[9], S.indptr[10]
    S.data[first:last][S.indices[first:last] != 9] = 0
    S = sp.csr_array(S)
    S.eliminate_zeros()
    return S


def matrices_of(M: Any) -> list[sp.csr_array]:
    """Return the matrices and the transfers of all levels, and the inverse of the coarsest one."""
    operators = [o for level in M.levels for o in (level.operator, level.restriction, level.prolongation)]
    matrices = [o.matrix for o in (*operators, M.coarse)]
    parts = [tuple(host(part) for part in (A.device_data, A.device_indices, A.device_indptr)) for A in matrices]
    return [sp.csr_array(arrays, shape=A.shape) for arrays, A in zip(parts, matrices, strict=True)]


def assert_same_hierarchies(M: Any, N: Any) -> None:
    made, expected = matrices_of(M), matrices_of(N)
    assert len(made) == len(expected) >= 7
    for S, T in zip(made, expected, strict=True):
        np.testing.assert_array_equal(S.indptr, T.indptr)
        np.testing.assert_array_equal(S.indices, T.indices)
        np.testing.assert_allclose(S.data, T.data, rtol=1e-8, atol=1e-10 * abs(T.data).max())


@pytest.mark.parametrize("kind", ["rigid body modes", "own candidates", "entries are missing", "nonsymmetric"])
@pytest.mark.few(2)
def test_the_hierarchy_made_by_blocks_is_the_one_made_by_entries(
    device: Device, kind: str, monkeypatch: pytest.MonkeyPatch, multiplied: CountedKernel
) -> None:
    S, coordinates = tetrahedral_elasticity(5)
    S = without_full_blocks(S) if kind == "entries are missing" else S
    B = None if kind == "own candidates" else rigid_body_modes(coordinates)
    symmetry = "nonsymmetric" if kind == "nonsymmetric" else None
    A = GpuSparseMatrix(S, device=device)
    options: Any = {"B": B, "block_size": 3, "max_coarse": 1, "max_levels": 3, "symmetry": symmetry}
    expected = amg(A, **options).update(A)  # The update finds the structures that a set-up does not keep.
    assert not multiplied.sizes
    monkeypatch.setattr(arithmetic, "_WORTH_A_LOOK", 0)
    M = amg(A, **options)
    k = 3 if B is None else 6
    of_levels = [(3, 3, k), (k, 3, k), (k, k, k), (k, k, k)]
    if kind == "entries are missing":
        of_levels[:2] = [(k, 1, k)]
    assert multiplied.sizes == of_levels
    assert_same_hierarchies(M, expected)
    changed = A.with_data(1.5 * A.device_data)
    for hierarchy in (M, expected):
        hierarchy.update(changed)
    assert multiplied.sizes == 2 * of_levels
    assert_same_hierarchies(M, expected)


def test_several_candidates_of_scalar_problems_are_blocks(
    device: Device, monkeypatch: pytest.MonkeyPatch, multiplied: CountedKernel
) -> None:
    S, _ = tetrahedral_elasticity(4)
    A = GpuSparseMatrix(sp.csr_array(abs(S.tocsr())[::3, ::3] + 9 * sp.eye_array(S.shape[0] // 3)), device=device)
    B = np.random.default_rng(0).standard_normal((A.shape[0], 3))
    expected = amg(A, B=B, max_coarse=1, max_levels=2)
    monkeypatch.setattr("gsparse.kernels.cpu.blocks._FEWEST_PRODUCTS", 0)
    monkeypatch.setattr(arithmetic, "_WORTH_A_LOOK", 0)
    M = amg(A, B=B, max_coarse=1, max_levels=2)
    assert multiplied.sizes == [(3, 1, 3)]
    for S, T in zip(matrices_of(M), matrices_of(expected), strict=True):
        np.testing.assert_allclose(S.toarray(), T.toarray(), rtol=1e-8, atol=1e-10 * abs(T.data).max())
