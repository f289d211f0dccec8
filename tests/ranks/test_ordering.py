"""Orders and partitions of rows: permutations that lose no row, parts of even size, and few ghosts."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LaplacianNd

from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks, split_columns
from gsparse.errors import ShapeError
from tests.seeds import num_examples

pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed.client.row_sources import HostRows


def grid(n: int) -> sp.csr_array:
    """Return the 5-point problem on n×n points, with its rows in random order."""
    S = sp.csr_array(-LaplacianNd((n, n), dtype=np.float64).tosparse())
    order = np.random.default_rng(0).permutation(n * n)
    return S[order][:, order]


def num_ghosts(S: sp.csr_array, partition: RowPartition) -> int:
    return sum(split_columns(S[own], own).ghosts.size for own in map(partition.rows, range(partition.world_size)))


def order_rows(S: sp.csr_array, reorder: str | None, partition: Any, world_size: int) -> tuple[Any, RowPartition]:
    """Return the permutation and the partition that a distributed matrix gets."""
    _, permutation, rows = HostRows(sp.csr_array(S)).arrange(partition, reorder, world_size)
    return permutation, rows


def test_rows_keep_their_order_without_reordering_and_metis() -> None:
    S = sp.random_array((30, 20), density=0.2, rng=np.random.default_rng(0), format="csr")
    for partition, expected in {
        "rows": RowPartition.by_rows(30, 4),
        "nnz": RowPartition.by_nnz(S.indptr, 4),
        (0, 1, 1, 9, 30): RowPartition((0, 1, 1, 9, 30)),
    }.items():
        assert order_rows(S, None, partition, 4) == (None, expected)


@pytest.mark.parametrize("partition", ["rows", "nnz", "metis", (0, 20, 20, 60)])
@pytest.mark.parametrize("reorder", [None, "rcm"])
def test_a_permuted_matrix_multiplies_permuted_vectors(reorder: Any, partition: Any) -> None:
    if partition == "metis":
        pytest.importorskip("pymetis")
    rng = np.random.default_rng(0)
    S = sp.random_array((60, 60), density=0.05, rng=rng, format="csr")
    x = rng.standard_normal(60)
    p, cut = order_rows(S, reorder, partition, 3)
    assert (p is None) == (reorder is None and partition != "metis")
    p = np.arange(60) if p is None else p
    np.testing.assert_array_equal(np.sort(p), np.arange(60))
    assert cut.num_rows == 60
    assert cut.world_size == 3
    moved = S[p][:, p]
    if partition == "nnz":
        assert cut == RowPartition.by_nnz(moved.indptr, 3)

    def multiply(communicator: Communicator) -> Any:
        own = cut.rows(communicator.rank)
        return RankMatrix(moved[own], cut, cut, communicator, device="cpu").matvec(x[p][own])

    y = np.empty(60)
    y[p] = np.concatenate(run_ranks(multiply, 3))
    np.testing.assert_allclose(y, S @ x, atol=1e-13)


def test_rcm_narrows_the_band() -> None:
    S = grid(20)
    p, cut = order_rows(S, "rcm", "rows", 4)
    row, col = S[p][:, p].nonzero()
    assert abs(row - col).max() <= 30
    assert num_ghosts(S[p][:, p], cut) < num_ghosts(S, cut) / 4


def test_rcm_uses_the_structure_of_both_triangles() -> None:
    lower = sp.diags_array([-1.0], offsets=[-1], shape=(9, 9)).tocsr()
    order = np.random.default_rng(0).permutation(9)
    for S in (lower, lower - lower.T):  # for the second, S + Sᵀ is zero, but its structure is not empty
        shuffled = sp.csr_array(S[order][:, order])
        p, _ = order_rows(shuffled, "rcm", "rows", 2)
        row, col = shuffled[p][:, p].nonzero()
        assert abs(row - col).max() == 1


def test_metis_cuts_even_parts_with_few_ghosts() -> None:
    pytest.importorskip("pymetis")
    S = grid(24)
    by_rows = order_rows(S, "rcm", "nnz", 6)
    p, cut = order_rows(S, None, "metis", 6)
    moved = S[p][:, p]
    assert num_ghosts(moved, cut) < 0.8 * num_ghosts(S[by_rows[0]][:, by_rows[0]], by_rows[1])
    work = np.diff(moved.indptr[list(cut.row_bounds)]) + np.diff(cut.row_bounds)
    assert work.max() <= 1.05 * work.mean()
    for own in map(cut.rows, range(6)):
        assert (np.diff(p[own]) > 0).all()  # METIS keeps the order within a part
    again, _ = order_rows(S, None, "metis", 6)
    np.testing.assert_array_equal(p, again)
    ranks, order = order_rows(S, "rcm", "rows", 6)[0], order_rows(S, "rcm", "metis", 6)[0]
    place = np.argsort(ranks)
    for own in map(cut.rows, range(6)):
        assert (np.diff(place[order[own]]) > 0).all()  # each part has the order of RCM


def test_metis_weighs_rows_by_their_entries() -> None:
    pytest.importorskip("pymetis")
    lengths = np.where(np.arange(400) < 40, 60, 3)
    rng = np.random.default_rng(0)
    indices = np.concatenate([rng.choice(400, length, replace=False) for length in lengths])
    S = sp.csr_array((np.ones(indices.size), indices, np.concatenate([[0], np.cumsum(lengths)])), shape=(400, 400))
    p, cut = order_rows(S, None, "metis", 4)
    work = [lengths[p[own]].sum() + own.stop - own.start for own in map(cut.rows, range(4))]
    assert max(work) <= 1.1 * np.mean(work)


@settings(max_examples=num_examples(60), deadline=None)
@given(st.integers(0, 9), st.integers(1, 12), st.floats(0, 0.5), st.sampled_from([None, "rcm"]), st.booleans())
def test_every_row_has_one_owner_even_if_there_are_few_rows(
    n: int, world_size: int, density: float, reorder: str | None, metis: bool
) -> None:
    if metis:
        pytest.importorskip("pymetis")
    S = sp.random_array((n, n), density=density, rng=np.random.default_rng(n), format="csr")
    p, cut = order_rows(S, reorder, "metis" if metis else "nnz", world_size)
    assert cut.world_size == world_size
    assert cut.num_rows == n
    if p is not None:
        assert p.dtype == np.int64
        np.testing.assert_array_equal(np.sort(p), np.arange(n))


def test_matrices_that_cannot_be_ordered_are_refused(monkeypatch: Any) -> None:
    wide = sp.csr_array((3, 4))
    for reorder, partition in (("rcm", "rows"), (None, "metis")):
        with pytest.raises(ShapeError, match=r"square matrix .* got shape \(3, 4\)"):
            order_rows(wide, reorder, partition, 2)
    with pytest.raises(ShapeError, match="row bounds are those of 2 workers, but the matrix has 3"):
        order_rows(wide, None, (0, 1, 3), 3)
    with pytest.raises(ShapeError, match="end at 4"):
        order_rows(wide, None, (0, 1, 4), 2)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match="pip install 'pymetis"):
        order_rows(sp.eye_array(4), None, "metis", 2)
