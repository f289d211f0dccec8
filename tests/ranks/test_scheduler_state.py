"""Matrices and solves store no secret in dask's scheduler, and leave nothing there when they have ended."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse.errors import CommunicationError
from tests.linalg.problems import laplacian, right_hand_side
from tests.ranks.groups import wait_until

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
da = pytest.importorskip("dask.array")

from gsparse.distributed import distribute  # noqa: E402
from gsparse.distributed.worker import entry_tasks  # noqa: E402
from gsparse.distributed.worker.rank import rank_key  # noqa: E402
from tests.ranks.faults import count_states, is_solving  # noqa: E402

pytestmark = [pytest.mark.timed, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

S = laplacian(8)
B = right_hand_side(S)
# ------------------------------------------------------------------ secrets


def holds(dask_scheduler: Any, secret: bytes) -> list[str]:
    """Return the keys of the scheduler's tasks that hold a secret."""
    return [str(key) for key, task in dask_scheduler.tasks.items() if secret in cloudpickle.dumps(task.run_spec)]


def test_no_task_of_a_matrix_holds_its_secret(client: Any, workers: list[str]) -> None:
    with distribute(S, client=client, workers=workers[:2]) as A:
        secret = A._rank_group.servers.secret
        kept = client.persist([A @ da.from_array(B, chunks=20), A.T @ da.from_array(B, chunks=20)])
        distributed.wait(kept)
        with pytest.raises(ZeroDivisionError):
            gla.cg(A, B, callback=lambda x: 1 / 0)  # a failed solve, after which the ranks connect again
        gla.cg(A, B, M=gla.jacobi(A))
        assert client.run_on_scheduler(holds, secret=secret) == []


def test_a_product_task_that_runs_on_another_worker_is_repeated_on_the_one_with_the_rows(
    client: Any, workers: list[str]
) -> None:
    with distribute(S, client=client, workers=workers[:1]) as A:
        arguments = rank_key(A._rank_group.key, 0), workers[0], B, []
        task = client.submit(entry_tasks.join_and_multiply, *arguments, "plain", workers=workers[2:], pure=False)
        np.testing.assert_allclose(task.result(), S @ B, atol=1e-12)
    task = client.submit(entry_tasks.join_and_multiply, *arguments, "plain", workers=workers[2:], pure=False)
    with pytest.raises(CommunicationError, match=r"has no rows of this matrix, which was closed, or the worker"):
        task.result()


# ------------------------------------------------------------------ leaks


def scheduler_state(dask_scheduler: Any) -> dict[str, int]:
    extensions = dask_scheduler.extensions
    return {
        "queues": len(extensions["queues"].queues),
        "variables": len(extensions["variables"].variables),
        "locks": len(extensions["semaphores"].max_leases),
        "topics": sum(name.startswith("gsparse") for name in dask_scheduler._broker._topics),
        "tasks": sum(str(key).startswith("gsparse") for key in dask_scheduler.tasks),
    }


def worker_state(dask_worker: Any) -> tuple[int, int]:
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("gsparse")]
    return count_states(dask_worker), len(ours)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def use(client: Any) -> None:
    """Make a matrix, solve and multiply in several ways, and close it."""
    with distribute(S, client=client) as A:
        gla.cg(A, B, callback=lambda x: None)
        gla.cg(A, B, progress=True)
        gla.gmres(A, B, callback=lambda norm: None, callback_type="pr_norm", progress=True)
        with pytest.raises(ZeroDivisionError):
            gla.cg(A, B, callback=lambda x: 1 / 0)
        gla.cg(A, B, M=gla.amg(A, max_coarse=20))
        A @ B
        (A @ da.from_array(B, chunks=20)).compute()


def test_matrices_and_solves_leave_nothing_on_the_scheduler_and_the_workers(client: Any) -> None:
    def state() -> tuple[Any, Any]:
        return client.run_on_scheduler(scheduler_state), client.run(worker_state)

    use(client)
    gc.collect()
    clean = {"queues": 0, "variables": 0, "topics": 0, "tasks": 0}
    wait_until(lambda: state()[0].items() >= clean.items(), 10)
    before, threads, files = state(), threading.active_count(), client.run(open_files)
    gc.disable()  # nothing may depend on garbage collection
    try:
        for _ in range(3):
            use(client)
        wait_until(lambda: state() == before and threading.active_count() <= threads, 10)
        assert all(count <= files[worker] + 6 for worker, count in client.run(open_files).items())
    finally:
        gc.enable()


# ------------------------------------------------------------------ waiting


def test_a_wait_for_a_client_that_died_says_why(client: Any, workers: list[str]) -> None:
    lock = distributed.Lock(f"gsparse-{workers[0]}")
    assert lock.acquire(timeout=5)
    lock.refresh_callback.stop()  # the lock looks as if the process had died
    with pytest.warns(UserWarning, match="client has died, dask frees the worker once the lease of 3s.*lease-timeout"):
        A = distribute(S, client=client)
    with A:
        np.testing.assert_allclose(A @ B, S @ B, atol=1e-12)


def test_a_wait_for_another_solve_says_why_and_ends(client: Any) -> None:
    is_over = threading.Event()

    def callback(x: Any) -> None:
        if is_over.is_set():
            raise ZeroDivisionError("over")

    def solve() -> None:
        with pytest.raises(ZeroDivisionError):
            gla.gmres(A, B, rtol=0, maxiter=10**9, callback=callback)

    with distribute(S, client=client) as A:
        thread = threading.Thread(target=solve)
        thread.start()
        try:
            wait_until(lambda: all(client.run(is_solving).values()))
            with (
                pytest.warns(UserWarning, match="which another .* has reserved: one runs at a time"),
                pytest.raises(CommunicationError, match="another solve holds"),
            ):
                distribute(S, client=client, timeout=0.3)
        finally:
            is_over.set()
            thread.join(60)
