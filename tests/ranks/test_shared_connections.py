"""A matrix and the results that are computed from it share the connections between the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.groups import wait_until

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed import distribute  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # dask and tornado warn

NUM_WORKERS = 2

S = laplacian(12)
B = right_hand_side(S)


def connections() -> tuple[int, int]:
    """Return the number of matrices, and of communicators, of this worker."""
    from gsparse.distributed.worker.rank import _ranks

    ranks = [rank for rank in list(_ranks.values()) if rank.matrix is not None]
    return len(ranks), len({id(rank.communicator) for rank in ranks})


def counts(client: Any) -> set[tuple[int, int]]:
    return set(client.run(connections).values())


def check(A: Any, expected: Any) -> None:
    np.testing.assert_allclose(A @ B, expected @ B, atol=1e-10)
    x, info = gla.bicgstab(A, B, rtol=1e-8, maxiter=2000)
    assert info == 0
    assert residual(expected, x, B) < 1e-7


@pytest.mark.parametrize("first", ["operand", "result"])
@pytest.mark.few(1)
def test_results_share_connections_until_the_last_one_is_closed(client: Any, first: str) -> None:
    with distribute(S, client=client) as A, A.with_data(2 * S.data) as twice:
        assert counts(client) == {(2, 1)}
        check(twice, 2 * S)
        check(A, S)
        check(twice, 2 * S)
        closed, left, expected = (A, twice, 2 * S) if first == "operand" else (twice, A, S)
        closed.close()
        wait_until(lambda: counts(client) == {(1, 1)})
        check(left, expected)
        with left.with_data(S.data) as again:
            check(again, S)
    assert counts(client) == {(0, 0)}


def fail_in_a_solve(A: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        gla.cg(A, B, callback=lambda x: 1 / 0)


@pytest.mark.timed
@pytest.mark.parametrize("failing", ["operand", "result"])
def test_a_failed_solve_is_followed_by_new_connections_for_all(client: Any, failing: str) -> None:
    with distribute(S, client=client) as A, A.with_data(2 * S.data) as twice:
        M = gla.amg(A, max_coarse=20)
        epoch = A._rank_group.servers.epoch
        fail_in_a_solve(A if failing == "operand" else twice)
        for matrix, expected in ((twice, 2 * S), (A, S)):
            check(matrix, expected)
            assert matrix._rank_group.servers.epoch == epoch + 1
            assert counts(client) == {(2, 1)}
        x, info = gla.cg(A, B, M=M, rtol=1e-8)  # multigrid is made again
        assert info == 0
        assert residual(S, x, B) < 1e-7
        product = M @ B
        fail_in_a_solve(A if failing == "operand" else twice)
        M.update(twice)
        np.testing.assert_allclose(M @ B, product / 2, rtol=1e-10)
        assert residual(2 * S, gla.cg(twice, B, M=M, rtol=1e-8)[0], B) < 1e-7
        fail_in_a_solve(A if failing == "operand" else twice)
        with A.with_data(3 * S.data) as thrice:
            A.close()
            fail_in_a_solve(twice)
            check(thrice, 3 * S)
            check(twice, 2 * S)
    assert counts(client) == {(0, 0)}


@pytest.mark.timed
def test_a_result_that_cannot_be_computed_leaves_its_operand_usable(client: Any) -> None:
    def fail(self: Any) -> Any:
        raise MemoryError("no room for the result")

    def patch() -> None:
        from gsparse.distributed.worker import group_tasks

        group_tasks._OPERATIONS = {**group_tasks._OPERATIONS, "transpose": fail}

    with distribute(S, client=client) as A:
        client.run(patch, workers=A.workers[:1])
        with pytest.raises(MemoryError, match="no room"):
            A.T.tomatrix()
        wait_until(lambda: counts(client) == {(1, 1)})
        check(A, S)
        with 2 * A as twice:
            check(twice, 2 * S)
    assert counts(client) == {(0, 0)}
