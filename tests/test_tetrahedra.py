"""The model problem of elasticity on tetrahedra is what its description says."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from asv_bench.tetrahedra import tetrahedral_elasticity
from gsparse import GpuSparseMatrix
from gsparse.linalg import amg, cg, rigid_body_modes


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.45])
def test_the_stiffness_of_tetrahedra_is_symmetric_and_positive_definite(ratio: float) -> None:
    S, coordinates = tetrahedral_elasticity(4, ratio)
    assert S.shape == (300, 300) and coordinates.shape == (100, 3)
    dense = S.toarray()
    np.testing.assert_allclose(dense, dense.T, rtol=0, atol=1e-14)
    assert np.linalg.eigvalsh(dense)[0] > 0


def test_rigid_body_modes_need_no_force_where_no_neighbour_is_clamped() -> None:
    S, coordinates = tetrahedral_elasticity(4)
    force = S @ rigid_body_modes(coordinates)
    is_free = np.repeat(coordinates[:, 0] > 1.5 / 4, 3)
    assert abs(force[is_free]).max() < 1e-13
    assert abs(force[~is_free]).max() > 1e-3


def test_the_energy_of_a_linear_displacement_is_that_of_its_constant_strain() -> None:
    """A stretch along x by 1 has the energy density (λ + 2μ) / 2, and fulfils the boundary condition u = 0 at x = 0."""
    ratio = 0.3
    S, coordinates = tetrahedral_elasticity(3, ratio)
    u = np.zeros((len(coordinates), 3))
    u[:, 0] = coordinates[:, 0]
    shear, lame = 0.5 / (1 + ratio), ratio / ((1 + ratio) * (1 - 2 * ratio))
    assert u.reshape(-1) @ (S @ u.reshape(-1)) == pytest.approx(lame + 2 * shear, rel=1e-12)


def test_nodes_are_displaced_in_random_order_and_blocks_are_full_and_sorted() -> None:
    S, coordinates = tetrahedral_elasticity(5)
    assert isinstance(S, sp.bsr_array) and S.has_canonical_format
    assert GpuSparseMatrix(S, device="cpu").block_shape == (3, 3)
    inside = ((coordinates > 0.01) & (coordinates < 0.99)).all(axis=1)
    from_grid = abs(5 * coordinates[inside] - np.round(5 * coordinates[inside]))
    assert 0.1 < from_grid.max() <= 0.15 + 1e-12
    rows = np.repeat(np.arange(len(coordinates)), np.diff(S.indptr))
    assert abs(rows - S.indices).mean() > len(coordinates) / 5


def test_multigrid_solves_elasticity_on_tetrahedra() -> None:
    S, coordinates = tetrahedral_elasticity(8)
    A, b = GpuSparseMatrix(S, device="cpu"), np.random.default_rng(0).standard_normal(S.shape[0])
    result = cg(A, b, M=amg(A, B=rigid_body_modes(coordinates)), rtol=1e-8, full_output=True)
    assert result.info == 0 and result.iterations < 20
