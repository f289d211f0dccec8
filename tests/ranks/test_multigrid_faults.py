"""Faults of clusters while multigrid over the workers is set up and in use, made with real processes and signals."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import gsparse.linalg as gla
from gsparse.errors import CommunicationError, WorkerLostError
from tests.linalg.problems import residual
from tests.ranks.groups import wait_until
from tests.ranks.test_cluster import count_states

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed import distribute  # noqa: E402
from tests.ranks.faults import (  # noqa: E402
    B,
    S,
    pids,
    start_solve,
)

pytestmark = [pytest.mark.timed, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

# The matrix of 144 rows gets a distributed level, and coarser ones that every worker has.
COARSE = {"max_coarse": 20}


def start_slow_solve(client: Any, A: Any, M: Any, **options: Any) -> Any:
    """Begin a solve whose iterations wait for this process, so that it does not end before the fault."""
    return start_solve(client, A, M=M, callback=lambda x: time.sleep(0.05), **options)


def check(A: Any, M: Any) -> None:
    result = gla.cg(A, B, M=M, rtol=1e-10, full_output=True)
    assert result.info == 0
    assert result.iterations < 15
    assert residual(S, result.x, B) < 1e-9


def test_a_worker_killed_in_a_solve_is_named_and_multigrid_is_made_again(client: Any) -> None:
    A = distribute(S, client=client)
    M = gla.amg(A, **COARSE)
    check(A, M)
    solve = start_slow_solve(client, A, M)
    os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
    error = solve.wait()
    assert isinstance(error, WorkerLostError), repr(error)
    assert error.rank == 1
    with pytest.raises(CommunicationError):
        M @ B
    client.wait_for_workers(3, timeout=60)
    with A.repartition() as again:
        check(again, gla.amg(again, **COARSE))


def test_a_solve_resumes_with_multigrid_on_the_workers_that_are_left(client: Any) -> None:
    with distribute(S, client=client) as A:
        M = gla.amg(A, **COARSE)
        victim = pids(client)[A.workers[1]]
        options = {"on_failure": "resume", "checkpoint_every": 2, "maxiter": 40}
        solve = start_slow_solve(client, A, M, solver=gla.cg, **options)
        os.kill(victim, signal.SIGKILL)
        assert solve.wait(120) is None
        x, _ = solve.result
        assert residual(S, x, B) < 1e-12
        assert len(A.workers) == 2
        check(A, M)
        assert "Ranks:                 2" in str(M)


def test_many_set_ups_leave_threads_files_and_matrices_as_they_were(client: Any) -> None:
    def held() -> tuple[int, int]:
        import threading

        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    def cycle() -> None:
        with distribute(S, client=client) as A:
            M = gla.amg(A, **COARSE)
            gla.cg(A, B, M=M, rtol=1e-8)

    for _ in range(5):
        cycle()
    before, at_home, matrices = client.run(held), held(), client.run(count_states)
    for _ in range(20):
        cycle()

    def is_back() -> bool:
        now = client.run(held)
        return all(now[w][0] <= before[w][0] + 2 and now[w][1] <= before[w][1] + 4 for w in before)

    wait_until(is_back)
    wait_until(lambda: client.run(count_states) == matrices)
    wait_until(lambda: held()[1] <= at_home[1] + 4)
