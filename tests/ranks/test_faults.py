"""Faults of clusters, made with real processes and signals: each raises a clear error in time, and work can go on."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse.errors import CommunicationError, WorkerLostError
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.groups import LONG, SOON, wait_until

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
import dask.array  # noqa: E402

from gsparse.distributed import DistributedMatrix, distribute, from_dask, from_loaders  # noqa: E402
from gsparse.distributed.client import solves  # noqa: E402
from gsparse.distributed.client.rank_group import RankGroup  # noqa: E402
from gsparse.distributed.client.scheduler import known_workers  # noqa: E402
from tests.ranks.faults import (  # noqa: E402
    ERROR_DEADLINE,
    TIMEOUT,
    B,
    S,
    check,
    cluster_of,
    count_states,
    error_within_deadline,
    is_alive,
    is_solving,
    kill_client_in_solve,
    pids,
    scheduler_process,
    start_solve,
    worker_process,
)

pytestmark = [pytest.mark.timed, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn


def test_the_error_of_a_killed_worker_names_it(client: Any) -> None:
    A = distribute(S, client=client)
    solve = start_solve(client, A)
    start = time.monotonic()
    os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
    error = solve.wait()
    assert isinstance(error, WorkerLostError), repr(error)
    assert (error.rank, error.address) == (1, A.workers[1])
    assert "A = A.repartition() makes them again" in str(error)
    assert time.monotonic() - start < ERROR_DEADLINE / 2
    with pytest.raises(CommunicationError):
        gla.cg(A, B)
    client.wait_for_workers(3, timeout=60)
    with A.repartition() as again:
        check(client, again)


@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_a_matrix_is_made_again_at_once_after_a_worker_was_killed(client: Any, delay: float) -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": f"{LONG}s"}):
        A = distribute(S, client=client)
        start = time.monotonic()
        os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
        time.sleep(delay)
        with A.repartition() as again:
            assert A.workers[1] not in again.workers
            check(client, again)
        assert time.monotonic() - start < SOON


def test_killing_the_only_worker_of_a_matrix_is_an_error(client: Any) -> None:
    A = distribute(S, client=client, workers=sorted(pids(client))[:1])
    solve = start_solve(client, A)
    os.kill(pids(client)[A.workers[0]], signal.SIGKILL)
    assert isinstance(solve.wait(), WorkerLostError)
    A.close()


def test_a_worker_killed_between_calls_is_an_error_of_the_next_call(client: Any) -> None:
    A = distribute(S, client=client)
    np.testing.assert_allclose(A @ B, S @ B, atol=1e-12)
    os.kill(pids(client)[A.workers[0]], signal.SIGKILL)
    wait_until(lambda: A.workers[0] not in known_workers(client))
    for call in (lambda: A @ B, lambda: gla.cg(A, B)):
        with pytest.raises(WorkerLostError) as caught:
            call()
        assert caught.value.rank == 0
    client.wait_for_workers(3, timeout=60)
    with A.repartition() as again:
        np.testing.assert_allclose(again @ B, S @ B, atol=1e-12)


def test_a_stopped_worker_is_an_error_within_the_timeout(client: Any) -> None:
    with distribute(S, client=client, timeout=TIMEOUT) as A:
        solve = start_solve(client, A)
        pid = pids(client)[A.workers[2]]
        os.kill(pid, signal.SIGSTOP)
        try:
            error = solve.wait(TIMEOUT + ERROR_DEADLINE)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert isinstance(error, CommunicationError)
        assert "silent" in str(error)
        wait_until(lambda: not any(client.run(is_solving).values()))
        check(client, A)


def _dask_rows(shape: tuple[int, int]) -> Any:
    """Return ones in chunks of rows that the workers make, as a dask array."""
    return dask.array.ones(shape, chunks=(shape[0] // 3, shape[1]))


@pytest.mark.parametrize("stopped_count", [1, 3])
@pytest.mark.parametrize(
    ("make", "step"),
    [
        pytest.param(lambda **x: distribute(S, **x), "_start_servers", id="while its port is opened"),
        pytest.param(lambda **x: distribute(S, **x), "_open_ports", id="while its rank connects"),
        pytest.param(lambda **x: from_dask(_dask_rows((90, 90)), **x), "_start_servers", id="while its rows are made"),
    ],
)
def test_a_stopped_worker_is_an_error_that_names_it(
    client: Any, monkeypatch: pytest.MonkeyPatch, make: Callable[..., DistributedMatrix], step: str, stopped_count: int
) -> None:
    addresses = sorted(pids(client))
    stopped, running = addresses[3 - stopped_count :], addresses[: 3 - stopped_count]
    processes, take_step = [pids(client)[address] for address in stopped], getattr(RankGroup, step)

    def stop_afterwards(*args: Any) -> Any:
        result = take_step(*args)
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        return result

    monkeypatch.setattr(RankGroup, step, stop_afterwards)
    try:
        error = error_within_deadline(lambda: make(client=client, workers=addresses, timeout=TIMEOUT).close())
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
    assert isinstance(error, CommunicationError), repr(error)
    assert any(address in str(error) for address in stopped)
    assert not any(address in str(error) for address in running)
    monkeypatch.undo()
    with distribute(S, client=client) as A:
        check(client, A)


def test_a_stopped_scheduler_is_an_error_that_names_it(tmp_path: Path) -> None:
    with (
        dask.config.set({"distributed.comm.timeouts.connect": f"{TIMEOUT:g}s"}),
        scheduler_process(tmp_path) as scheduler,
    ):
        address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
        with distributed.Client(address) as client, worker_process(address):
            client.wait_for_workers(1, timeout=ERROR_DEADLINE)
            with distribute(S, client=client, timeout=TIMEOUT) as A:
                check(client, A)
                solve = start_solve(client, A)
                scheduler.send_signal(signal.SIGSTOP)
                try:
                    errors = [
                        solve.wait(),
                        error_within_deadline(lambda: gla.cg(A, B)),
                        error_within_deadline(lambda: distribute(S, client=client, timeout=TIMEOUT)),
                    ]
                finally:
                    scheduler.send_signal(signal.SIGCONT)
                for error in errors:
                    assert isinstance(error, CommunicationError), repr(error)
                    assert f"the scheduler at {address} has been silent" in str(error)
                wait_until(lambda: not any(client.run(is_solving).values()))
                check(client, A)


def test_a_restart_of_the_cluster_during_a_solve_is_an_error() -> None:
    # This needs a new cluster: after nannies have restarted workers, dask does not always bring all of them back.
    with cluster_of(2) as client:
        A = distribute(S, client=client)
        solve = start_solve(client, A)
        client.restart(wait_for_workers=False)
        assert isinstance(solve.wait(), CommunicationError)
        with pytest.raises(CommunicationError):
            gla.cg(A, B)
        client.wait_for_workers(2, timeout=120)
        with A.repartition() as again:
            check(client, again)


def load_without_memory(lo: int, hi: int) -> Any:
    if lo > 0:
        raise MemoryError("no room for these rows")
    return S[lo:hi]


def test_a_worker_that_runs_out_of_memory_in_set_up_is_an_error(client: Any) -> None:
    before = client.run(count_states)
    with pytest.raises(MemoryError, match="no room"):
        from_loaders([load_without_memory], S.shape, client=client)
    wait_until(lambda: client.run(count_states) == before)
    with distribute(S, client=client) as A:
        check(client, A)


def test_solves_of_several_threads_wait_for_each_other(client: Any) -> None:
    with distribute(S, client=client) as A, distribute(2 * S, client=client) as twice:
        residuals: dict[int, Any] = {}
        order: list[int] = []  # the number of the solve of each iteration

        def solve(number: int) -> None:
            matrix, own = (twice, 2 * S) if number % 2 else (A, S)
            x, _ = gla.cg(matrix, B, rtol=1e-10, callback=lambda x: order.append(number))
            residuals[number] = residual(own, x, B)

        threads = [threading.Thread(target=solve, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ERROR_DEADLINE)
        assert len(residuals) == 6
        assert len(list(groupby(order))) == 6
        assert max(residuals.values()) < 1e-9


@pytest.mark.parametrize("single_reduction", [False, True])
def test_a_solve_resumes_from_the_copies_of_x_on_the_workers_that_are_left(
    client: Any, monkeypatch: pytest.MonkeyPatch, single_reduction: bool
) -> None:
    starts, run = [], solves.run

    def record(*args: Any) -> Any:
        starts.append(args[3]["x0"])
        return run(*args)

    def has_copy() -> bool:
        from gsparse.distributed.worker.rank import _ranks

        return any(rank.solution_copy is not None for rank in list(_ranks.values()))

    monkeypatch.setattr(solves, "run", record)
    T = laplacian(80)  # of a size for which cg takes thousands of iterations until its residual is zero
    b = right_hand_side(T)
    with distribute(T, client=client) as A:
        victim = pids(client)[A.workers[1]]
        options = {"on_failure": "resume", "checkpoint_every": 20, "single_reduction": single_reduction}
        solve = start_solve(client, A, b=b, solver=gla.cg, maxiter=20_000, **options)
        wait_until(lambda: all(client.run(has_copy).values()))
        os.kill(victim, signal.SIGKILL)
        assert solve.wait(120) is None
        x, _ = solve.result
        assert residual(T, x, b) < 1e-12
        assert len(A.workers) == 2
        assert len(starts) == 2
        assert residual(T, starts[1], b) < 0.1  # that of zeros is 1
        check(client, A, T, b)


def test_a_resume_takes_no_checkpoint_of_an_earlier_solve(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, run = [], solves.run

    def record(*args: Any) -> Any:
        starts.append(args[3]["x0"])
        return run(*args)

    with distribute(S, client=client) as A:
        gla.cg(A, np.stack([B, B], 1), on_failure="resume", checkpoint_every=1, rtol=1e-8)
        os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
        wait_until(lambda: A.workers[1] not in known_workers(client))
        monkeypatch.setattr(solves, "run", record)
        x, info = gla.cg(A, B, on_failure="resume", rtol=1e-8)
        assert starts == [None, None]
        assert info == 0
        assert residual(S, x, B) < 1e-7


def test_a_killed_client_leaves_nothing_on_the_workers(client: Any) -> None:
    before = client.run(count_states)
    kill_client_in_solve(client)
    wait_until(lambda: not any(client.run(is_solving).values()))
    wait_until(lambda: client.run(count_states) == before)
    with distribute(S, client=client) as A:
        check(client, A)


def test_a_killed_scheduler_ends_the_solve_with_an_error(tmp_path: Path) -> None:
    with scheduler_process(tmp_path) as scheduler:
        address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
        with worker_process(address), worker_process(address):
            client = distributed.Client(address, timeout=30)
            client.wait_for_workers(2, timeout=ERROR_DEADLINE)
            A = distribute(S, client=client, device="cpu")
            ranks, solve = list(pids(client).values()), start_solve(client, A)
            scheduler.kill()
            error = solve.wait(30)
            # The workers end with their scheduler, and so do the solves that run on them.
            wait_until(lambda: not any(is_alive(pid) for pid in ranks), 60)
            with suppress(Exception):
                client.close(timeout=5)
    assert isinstance(error, CommunicationError)


# The matrix of 144 rows gets a distributed level, and coarser ones that every worker has.
COARSE = {"max_coarse": 20}


def start_slow_solve(client: Any, A: Any, M: Any, **options: Any) -> Any:
    """Begin a solve whose iterations wait for this process, so that it does not end before the fault."""
    return start_solve(client, A, M=M, callback=lambda x: time.sleep(0.05), **options)


def check_multigrid(A: Any, M: Any) -> None:
    result = gla.cg(A, B, M=M, rtol=1e-10, full_output=True)
    assert result.info == 0
    assert result.iterations < 15
    assert residual(S, result.x, B) < 1e-9


def test_a_worker_killed_in_a_solve_is_named_and_multigrid_is_made_again(client: Any) -> None:
    A = distribute(S, client=client)
    M = gla.amg(A, **COARSE)
    check_multigrid(A, M)
    solve = start_slow_solve(client, A, M)
    os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
    error = solve.wait()
    assert isinstance(error, WorkerLostError), repr(error)
    assert error.rank == 1
    with pytest.raises(CommunicationError):
        M @ B
    client.wait_for_workers(3, timeout=60)
    with A.repartition() as again:
        check_multigrid(again, gla.amg(again, **COARSE))


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
        check_multigrid(A, M)
        assert "Ranks:                 2" in str(M)


SIZE = S.shape[0]


def solution(A: DistributedMatrix) -> Any:
    """Return the solution of a solve, which stays on the workers."""
    return gla.cg(A, A.vector(B), rtol=1e-10)[0].persist()


def kill_worker_of(client: Any, A: DistributedMatrix) -> DistributedMatrix:
    """Kill a worker, and return the matrix, made again on the cluster's new workers."""
    os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
    wait_until(lambda: A.workers[1] not in known_workers(client))
    client.wait_for_workers(3, timeout=120)
    return A.repartition()


@pytest.mark.parametrize("vector", [solution, lambda A: A.vector(B)], ids=["solution", "numpy"])
def test_a_vector_of_which_a_part_is_lost_is_an_error_that_names_it(
    client: Any, vector: Callable[[DistributedMatrix], Any]
) -> None:
    with distribute(S, client=client) as A:
        x = vector(A)
        distributed.wait(x)
        with kill_worker_of(client, A) as again:
            for name, call in (
                ("b", lambda: gla.cg(again, x)),
                ("x0", lambda: gla.cg(again, B, x0=x)),
                ("the vector", lambda: again.vector(x)),
            ):
                error = error_within_deadline(call)
                assert isinstance(error, CommunicationError)
                words = f"a part of {name} is lost with the worker that had it: .*make .* again"
                assert re.search(words, str(error)), str(error)
            y, info = gla.cg(again, again.vector(B), rtol=1e-10)
            assert info == 0
            assert residual(S, y.compute(), B) < 1e-9


def test_what_dask_can_compute_again_is_waited_for(client: Any) -> None:
    with distribute(S, client=client) as A:
        b = dask.array.from_array(B, chunks=SIZE // 3).persist()
        distributed.wait(b)
        with kill_worker_of(client, A) as again:
            x, info = gla.cg(again, b, rtol=1e-10)
            assert info == 0
            assert residual(S, x.compute(), B) < 1e-9
