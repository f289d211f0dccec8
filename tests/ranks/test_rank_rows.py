"""Sparse algebra of matrices over ranks, compared with SciPy's on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks
from gsparse.distributed.ranks.rank_rows import RankRows
from tests.support import random_values

WORLD_SIZES = [1, 2, 3, 4]


def random_matrix(rng: np.random.Generator, rows: int, cols: int, density: float, dtype: str) -> sp.csr_array:
    S = sp.random_array((rows, cols), density=density, rng=rng, format="csr")
    S.data = random_values(rng, S.nnz, dtype)
    return sp.csr_array(S, dtype=dtype)


def bounds(rng: np.random.Generator, size: int, world_size: int) -> RowPartition:
    """Return uneven blocks, some of which may be empty."""
    return RowPartition((0, *sorted(rng.integers(0, size + 1, world_size - 1).tolist()), size))


def rank_rows(S: sp.csr_array, rows: RowPartition, columns: RowPartition, c: Communicator, device: Device) -> RankRows:
    own = rows.rows(c.rank)
    return RankRows.of(RankMatrix(S[own.start : own.stop], rows, columns, c, device))


def on_host(part: RankRows) -> sp.csr_array:
    """Return a rank's rows as a SciPy matrix, whose columns are those of the whole matrix."""
    whole, download = part.in_whole_columns(), part.context.device.download
    arrays = download(whole.data), download(whole.indices), download(whole.indptr)
    return sp.csr_array(arrays, shape=whole.shape)


def run(device: Device, work: Callable[..., Any], world_size: int) -> sp.csr_array:
    """Return the rows of all ranks below each other."""

    def on_rank(communicator: Communicator) -> sp.csr_array:
        with device.active():
            return on_host(work(communicator))

    return sp.csr_array(sp.vstack(run_ranks(on_rank, world_size, timeout=1000.0), format="csr"))


def check(result: sp.csr_array, expected: Any, bound: Any, factor: float = 20) -> None:
    """Compare row by row: each element may miss by a few roundings of the sum of magnitudes."""
    assert result.shape == expected.shape
    eps = np.finfo(result.dtype).eps
    error = np.abs((result - expected).toarray())
    assert (error <= factor * eps * bound.toarray()).all()


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ghosts_of_blocks_are_whole_nodes(world_size: int) -> None:
    device, rng = get_device("cpu"), np.random.default_rng(3)
    S = random_matrix(rng, 30, 30, 0.08, "float64")
    nodes = bounds(rng, 10, world_size)
    partition = RowPartition(tuple(3 * bound for bound in nodes.row_bounds))

    def work(communicator: Communicator) -> Any:
        part = rank_rows(S, partition, partition, communicator, device)
        whole = RankRows.of_whole_columns(part.context, part.in_whole_columns(), partition, partition, 3)
        return part.ghosts, whole.ghosts, on_host(whole)

    results = run_ranks(work, world_size)
    for few, many, _ in results:
        assert np.array_equal(many, (3 * np.unique(few // 3)[:, None] + np.arange(3)).reshape(-1))
    assert (sp.vstack([matrix for *_, matrix in results]) != S).nnz == 0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_hermitian_matrix_equals_its_adjoint_up_to_rounding(world_size: int, dtype: str) -> None:
    device, rng = get_device("cpu"), np.random.default_rng(11)
    S = random_matrix(rng, 40, 40, 0.1, dtype)
    H = sp.csr_array(S + S.conj().T)
    rounded = H.copy()
    rounded.data = rounded.data * (1 + 1e-16 * rng.standard_normal(H.nnz))
    changed = H.tolil()
    changed[0, 39] += 1e-3
    partition = bounds(rng, 40, world_size)

    def work(communicator: Communicator, matrix: sp.csr_array, tolerance: float) -> bool:
        return rank_rows(matrix, partition, partition, communicator, device).equals_adjoint(tolerance)

    for matrix, tolerance, expected in ((H, 0.0, True), (rounded, 1e-14, True), (changed.tocsr(), 1e-14, False)):
        assert run_ranks(work, world_size, matrix, tolerance) == [expected] * world_size
