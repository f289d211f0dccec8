"""The profiles of ranks: the slowest rank, the mean, and the waits for other ranks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import gsparse
from gsparse.distributed import Communicator, RankMatrix, RankProfile, RowPartition, profile_of_ranks
from gsparse.linalg import cg
from tests.linalg.problems import laplacian
from tests.ranks.groups import GROUPS

SLOW_RANK, SECONDS = 1, 0.3


def solve_and_profile(communicator: Communicator) -> tuple[RankProfile, float]:
    """Solve a system on all ranks, of which one begins late, and profile it."""
    S = laplacian(12)
    rows = RowPartition.by_rows(S.shape[0], communicator.world_size)
    own = rows.rows(communicator.rank)
    A = RankMatrix(S[own], rows, rows, communicator, device="cpu")
    b = np.ones(S.shape[0])[own]
    cg(A, b)
    communicator.allreduce(np.zeros(1))  # All ranks begin at the same time.
    with gsparse.profile() as p:
        if communicator.rank == SLOW_RANK:
            time.sleep(SECONDS)
        cg(A, b)
    return profile_of_ranks(p, communicator), p.seconds


@pytest.mark.timed
@pytest.mark.parametrize("group", GROUPS)
def test_waits_stand_apart_and_the_slow_rank_is_named(group: str) -> None:
    results: list[Any] = GROUPS[group](solve_and_profile, 2)
    profiles, seconds = zip(*results, strict=True)
    assert profiles[0] == profiles[1]
    found = profiles[0]
    assert found.seconds == seconds
    rows = {(row.kind, row.name): row for row in found.rows}
    halo, total = rows["wait for ranks", "halo exchange"], rows["wait for ranks", "sum"]
    assert min(halo.calls, total.calls) > 5
    # The other rank waits for the one that began late; that is no work of its own.
    assert found.waiting_seconds[1 - SLOW_RANK] > 0.5 * SECONDS
    assert found.working_seconds[SLOW_RANK] > SECONDS
    assert max((halo, total), key=lambda row: row.slowest_seconds).slowest_rank == 1 - SLOW_RANK
    assert 1 < found.imbalance <= 2
    assert f"imbalance: rank {SLOW_RANK} works" in str(found)
    assert all(row.mean_seconds <= row.slowest_seconds for row in found.rows)


@pytest.mark.parametrize("group", GROUPS)
def test_a_rank_that_ran_no_such_operation_counts_as_zero(group: str) -> None:
    for found in GROUPS[group](multiply_on_the_first_rank, 2):
        (row,) = [row for row in found.rows if row.name == "A @ x"]
        assert (row.calls, row.slowest_rank) == (3, 0)
        assert row.mean_seconds == pytest.approx(row.slowest_seconds / 2)
        assert found.waiting_seconds == (0, 0)


def multiply_on_the_first_rank(communicator: Communicator) -> RankProfile:
    """Profile products that only one rank computes."""
    A = gsparse.GpuSparseMatrix(laplacian(4), device="cpu")
    x = np.ones(A.shape[1])
    A @ x
    with gsparse.profile() as p:
        for _ in range(3 if communicator.rank == 0 else 0):
            A @ x
    return profile_of_ranks(p, communicator)
