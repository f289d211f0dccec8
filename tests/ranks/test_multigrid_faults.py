"""Faults of clusters while multigrid over the workers is set up and in use, made with real processes and signals."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse.errors import CommunicationError, WorkerLostError
from tests.linalg.problems import residual
from tests.ranks.groups import wait_until
from tests.ranks.test_cluster import count_states

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed import distribute  # noqa: E402
from tests.ranks.faults import (  # noqa: E402
    ERROR_DEADLINE,
    TIMEOUT,
    B,
    S,
    is_alive,
    is_solving,
    kill_client_in_solve,
    pids,
    scheduler_process,
    start_solve,
    worker_process,
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


def test_a_stopped_worker_is_an_error_and_the_next_solve_makes_multigrid_again(client: Any) -> None:
    with distribute(S, client=client, timeout=TIMEOUT) as A:
        M = gla.amg(A, **COARSE)
        solve = start_slow_solve(client, A, M)
        pid = pids(client)[A.workers[2]]
        os.kill(pid, signal.SIGSTOP)
        try:
            error = solve.wait(TIMEOUT + ERROR_DEADLINE)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert isinstance(error, CommunicationError)
        assert "silent" in str(error)
        wait_until(lambda: not any(client.run(is_solving).values()))
        check(A, M)
        assert np.allclose(M @ B, M.H @ B)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_callback_that_raises_leaves_multigrid_usable(client: Any, error: type[BaseException]) -> None:
    def stop(x: Any) -> None:
        raise error("enough")

    with distribute(S, client=client) as A:
        M = gla.amg(A, **COARSE)
        with pytest.raises(error, match="enough"):
            gla.cg(A, B, M=M, callback=stop)
        wait_until(lambda: not any(client.run(is_solving).values()))
        check(A, M)


def test_a_client_killed_in_a_solve_with_multigrid_leaves_nothing_on_the_workers(client: Any) -> None:
    before = client.run(count_states)
    kill_client_in_solve(client, "{'M': amg(A, max_coarse=20), 'callback': lambda x: time.sleep(0.05)}")
    wait_until(lambda: not any(client.run(is_solving).values()))
    wait_until(lambda: client.run(count_states) == before)
    with distribute(S, client=client) as A:
        check(A, gla.amg(A, **COARSE))


def test_a_scheduler_killed_in_a_solve_with_multigrid_is_an_error(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as scheduler:
        address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
        with worker_process(address), worker_process(address):
            client = distributed.Client(address)
            try:
                client.wait_for_workers(2, timeout=ERROR_DEADLINE)
                A = distribute(S, client=client)
                M, ranks = gla.amg(A, **COARSE), list(pids(client).values())
                solve = start_slow_solve(client, A, M)
                scheduler.kill()
                error = solve.wait()
                assert isinstance(error, CommunicationError), repr(error)
                with pytest.raises(CommunicationError):
                    M @ B
                # The workers end with their scheduler, and so do the solves that run on them.
                wait_until(lambda: not any(is_alive(pid) for pid in ranks))
            finally:
                with suppress(Exception):
                    client.close(timeout=5)


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
