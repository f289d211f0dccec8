"""Copies of x in the memory of other ranks, from which a solve goes on after the loss of a rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse.distributed import Communicator, RankMatrix, RowPartition
from tests.linalg.problems import laplacian
from tests.ranks.groups import run_memory, run_sockets

pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
from gsparse.distributed.worker import solve_tasks

S = laplacian(10)


@pytest.mark.parametrize("columns", [1, 2])
def test_solution_copies_survive_the_loss_of_one_rank(columns: int) -> None:
    sizes = (3, 0, 4, 2)
    x = [rank + np.arange(float(columns * size)) for rank, size in enumerate(sizes)]
    whole = np.concatenate([part.reshape(columns, -1).T if columns > 1 else part for part in x])
    copies = {rank: (40, x[rank], x[rank - 1]) for rank in range(4)}
    for lost_rank in range(4):
        parts = solve_tasks.assemble({rank: part for rank, part in copies.items() if rank != lost_rank}, sizes)
        assert parts is not None
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    # If some ranks have a newer copy than the others, the newest one with all parts is used.
    newer = {rank: (80, x[rank] + 100, x[rank - 1] + 100) for rank in range(4)}
    for ranks, expected in (((1,), whole), ((0, 2), whole + 100), ((0, 1, 2), whole + 100)):
        parts = solve_tasks.assemble({**copies, **{rank: newer[rank] for rank in ranks}}, sizes)
        assert parts is not None
        np.testing.assert_array_equal(np.concatenate(parts), expected)
    assert solve_tasks.assemble({0: copies[0], 1: newer[1]}, sizes) is None
    assert solve_tasks.assemble({0: copies[0]}, sizes) is None
    assert solve_tasks.assemble({}, sizes) is None


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("run", [run_sockets, run_memory])
def test_a_rank_without_rows_stores_the_part_of_its_neighbour(run: Any, columns: int) -> None:
    partition = RowPartition((0, 0, 30, 30, S.shape[0]))
    b = np.random.default_rng(0).random((S.shape[0], columns))

    def work(communicator: Communicator) -> tuple[Any, Any]:
        own = partition.rows(communicator.rank)
        state: Any = SimpleNamespace(
            matrix=RankMatrix(S[own], partition, partition, communicator, device="cpu"), communicator=communicator
        )
        state.require_matrix = lambda: state.matrix
        state.matrix.observer = lambda iteration: solve_tasks.store_copies(state, "a solve", iteration)
        x, _ = gla.cg(state.matrix, b[own] if columns > 1 else b[own, 0], rtol=1e-8)
        return x, state.solution_copy

    parts, copies = zip(*run(work, 4), strict=True)
    sizes = np.diff(partition.row_bounds).tolist()
    for lost in range(4):
        assembled = solve_tasks.assemble({r: copy for r, (_, copy) in enumerate(copies) if r != lost}, sizes)
        assert assembled is not None
        np.testing.assert_array_equal(np.concatenate(assembled), np.concatenate(parts))


def test_a_copy_belongs_to_the_solve_that_has_stored_it() -> None:
    rank: Any = SimpleNamespace(solution_copy=None)
    assert solve_tasks.latest_copy(rank, "first") is None
    rank.solution_copy = "first", (50, np.ones(3), np.ones(2))
    copy = solve_tasks.latest_copy(rank, "first")
    assert copy is not None
    assert copy[0] == 50
    assert solve_tasks.latest_copy(rank, "second") is None
