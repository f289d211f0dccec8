"""What goes wrong on clusters, with real processes and signals: a clear error in time, and a cluster that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse.errors import CommunicationError, WorkerLost
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.test_cluster import kept_here

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse[dask]'")
import dask  # noqa: E402

from gsparse.distributed import DistributedMatrix, LocalGpuCluster, distribute, from_loaders  # noqa: E402
from gsparse.distributed.client.cluster import known_workers  # noqa: E402
from gsparse.distributed.worker import solution_copies as checkpoints  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # (dask's and tornado's own)

ROOT = Path(__file__).parents[2]
S = laplacian(12)
B = right_hand_side(S)
# Seconds that an error may take, on a busy machine: connections tell at once, silence after TIMEOUT.
SOON, TIMEOUT = 90.0, 5.0
# Seconds after which dask takes a lock from a client that is gone; 30 by default.
LEASE = {
    "distributed.scheduler.locks.lease-timeout": "3s",
    "distributed.scheduler.locks.lease-validation-interval": "1s",
}


@contextmanager
def cluster_of(size: int) -> Iterator[Any]:
    with (
        dask.config.set(LEASE),
        LocalGpuCluster(size, device="cpu") as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(size)
        yield client


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    with cluster_of(3) as client:
        yield client


@pytest.fixture
def client(shared: Any) -> Any:
    shared.wait_for_workers(3, timeout=120)
    return shared


def pids(client: Any) -> dict[str, int]:
    return client.run(os.getpid)


class Endless:
    """A solve that does not end by itself, in a thread."""

    def __init__(self, A: DistributedMatrix, **options: Any) -> None:
        self.error: BaseException | None = None
        self.found: Any = None
        self.started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(A,), kwargs=options, daemon=True)
        self._thread.start()

    def _run(self, A: DistributedMatrix, **options: Any) -> None:
        try:
            self.found = gla.cg(A, B, **{"rtol": 0, "maxiter": 10**9, **options})
        except BaseException as error:
            self.error = error

    def wait(self, seconds: float = SOON) -> BaseException | None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the solve hangs"
        return self.error


def wait_until(condition: Callable[[], bool], seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def is_solving() -> bool:
    """Tell whether a rank's solve runs on this worker (and how its matrix is watched)."""
    from gsparse.distributed.worker import registry as resident

    return any(kept.matrix.observer is not None for kept in resident._residents.values())


def begun(client: Any, A: DistributedMatrix, **options: Any) -> Endless:
    solve = Endless(A, **options)
    wait_until(lambda: all(client.run(is_solving, workers=list(A.workers)).values()))
    time.sleep(0.3)
    return solve


def check(client: Any, A: DistributedMatrix) -> None:
    """Solve, and look that nothing is left of what went wrong."""
    x, info = gla.cg(A, B, rtol=1e-10)
    assert info == 0
    assert residual(S, x, B) < 1e-9
    assert not any(client.run(is_solving).values())


def test_a_killed_worker_is_named(client: Any) -> None:
    A = distribute(S, client=client)
    solve = begun(client, A)
    began = time.monotonic()
    os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
    error = solve.wait()
    assert isinstance(error, WorkerLost), repr(error)
    assert (error.rank, error.address) == (1, A.workers[1])
    assert "A = A.repartition() makes them again" in str(error)
    assert time.monotonic() - began < SOON / 2
    with pytest.raises(CommunicationError):
        gla.cg(A, B)
    client.wait_for_workers(3, timeout=60)
    with A.repartition() as again:
        check(client, again)


def test_the_only_worker_of_a_matrix_is_killed(client: Any) -> None:
    A = distribute(S, client=client, workers=sorted(pids(client))[:1])
    solve = begun(client, A)
    os.kill(pids(client)[A.workers[0]], signal.SIGKILL)
    assert isinstance(solve.wait(), WorkerLost)
    A.close()


def test_a_worker_killed_between_solves_and_products(client: Any) -> None:
    A = distribute(S, client=client)
    np.testing.assert_allclose(A @ B, S @ B, atol=1e-12)
    os.kill(pids(client)[A.workers[0]], signal.SIGKILL)
    wait_until(lambda: A.workers[0] not in known_workers(client))
    for call in (lambda: A @ B, lambda: gla.cg(A, B)):
        with pytest.raises(WorkerLost) as found:
            call()
        assert found.value.rank == 0
    client.wait_for_workers(3, timeout=60)
    with A.repartition() as again:
        np.testing.assert_allclose(again @ B, S @ B, atol=1e-12)


def test_a_stopped_worker_is_an_error_within_the_timeout(client: Any) -> None:
    with distribute(S, client=client, timeout=TIMEOUT) as A:
        solve = begun(client, A)
        pid = pids(client)[A.workers[2]]
        os.kill(pid, signal.SIGSTOP)
        try:
            error = solve.wait(TIMEOUT + SOON)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert isinstance(error, CommunicationError)
        assert "silent" in str(error)
        wait_until(lambda: not any(client.run(is_solving).values()))
        check(client, A)


def test_a_cancelled_solve_ends_on_all_workers(client: Any) -> None:
    with distribute(S, client=client) as A:
        solve = begun(client, A)
        running = [
            key for key, state in list(client.futures.items()) if "gsparse-cg" in str(key) and state.status == "pending"
        ]
        assert len(running) == 3
        client.cancel([distributed.Future(key, client) for key in running])
        assert solve.wait() is not None
        wait_until(lambda: not any(client.run(is_solving).values()))
        check(client, A)


def test_a_restart_of_the_cluster_during_a_solve() -> None:
    # (on a cluster of its own: where nannies have started workers again before, dask does not always bring all back)
    with cluster_of(2) as client:
        A = distribute(S, client=client)
        solve = begun(client, A)
        client.restart(wait_for_workers=False)
        assert isinstance(solve.wait(), CommunicationError)
        with pytest.raises(CommunicationError):
            gla.cg(A, B)
        client.wait_for_workers(2, timeout=120)
        with A.repartition() as again:
            check(client, again)


def too_large(lo: int, hi: int) -> Any:
    if lo > 0:
        raise MemoryError("no room for these rows")
    return S[lo:hi]


def test_a_worker_without_memory_in_set_up(client: Any) -> None:
    before = client.run(kept_here)
    with pytest.raises(MemoryError, match="no room"):
        from_loaders([too_large], S.shape, client=client)
    wait_until(lambda: client.run(kept_here) == before)
    with distribute(S, client=client) as A:
        check(client, A)


def test_two_solves_at_once_wait_for_each_other(client: Any) -> None:
    with distribute(S, client=client) as A, distribute(2 * S, client=client) as twice:
        found: dict[int, Any] = {}

        def solve(number: int) -> None:
            matrix, own = (twice, 2 * S) if number % 2 else (A, S)
            found[number] = residual(own, gla.cg(matrix, B, rtol=1e-10)[0], B)

        threads = [threading.Thread(target=solve, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 6
        assert max(found.values()) < 1e-9


def test_a_callback_that_raises_ends_the_solve_everywhere(client: Any) -> None:
    with distribute(S, client=client) as A:
        calls = []

        def callback(x: Any) -> None:
            calls.append(x)
            if len(calls) == 3:
                raise KeyError("enough")

        with pytest.raises(KeyError, match="enough"):
            gla.cg(A, B, callback=callback)
        assert len(calls) == 3
        wait_until(lambda: not any(client.run(is_solving).values()))
        check(client, A)


def test_a_solve_resumes_on_the_workers_that_are_left(client: Any) -> None:
    with distribute(S, client=client) as A:
        victim = pids(client)[A.workers[1]]
        solve = begun(client, A, on_failure="resume", checkpoint_every=20, maxiter=8_000)
        os.kill(victim, signal.SIGKILL)
        assert solve.wait(120) is None
        x, _ = solve.found
        assert residual(S, x, B) < 1e-12
        assert len(A.workers) == 2
        check(client, A)


@pytest.mark.parametrize("columns", [1, 2])
def test_checkpoints_outlive_one_rank(columns: int) -> None:
    sizes = (3, 0, 4)
    x = [rank + np.arange(float(columns * size)) for rank, size in enumerate(sizes)]
    whole = [part.reshape(columns, -1).T if columns > 1 else part for part in x]
    kept = {rank: (40, x[rank], x[rank - 1]) for rank in range(3)}
    for lost in range(3):
        parts = checkpoints.assembled({rank: part for rank, part in kept.items() if rank != lost}, sizes)
        assert parts is not None
        np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(whole))
    # Ranks that have gone on alone: the newest that all of them have.
    newer = {**kept, 1: (80, x[1], x[0])}
    assert checkpoints.assembled(newer, sizes) is not None
    assert checkpoints.assembled({0: kept[0], 1: newer[1]}, sizes) is None
    assert checkpoints.assembled({0: kept[0]}, sizes) is None
    assert checkpoints.assembled({}, sizes) is None


CLIENT = """
import sys, numpy as np
from distributed import Client
from gsparse.distributed import distribute
from gsparse.linalg import cg
from tests.linalg.problems import laplacian
if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        A = distribute(laplacian(12), client=client)
        print("solving", flush=True)
        cg(A, np.ones(144), rtol=0, maxiter=10**9)
"""


def test_a_client_that_is_gone_leaves_nothing_behind(client: Any) -> None:
    before = client.run(kept_here)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), client.scheduler.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"solving\n"
        wait_until(lambda: all(client.run(is_solving).values()))
        process.kill()
    wait_until(lambda: not any(client.run(is_solving).values()))
    wait_until(lambda: client.run(kept_here) == before)
    with distribute(S, client=client) as A:
        check(client, A)


def test_a_scheduler_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    dask_cli = [sys.executable, "-m", "dask"]
    scheduler = subprocess.Popen(
        [*dask_cli, "scheduler", "--port", "0", "--scheduler-file", str(file), "--no-dashboard"],
        env=environment, cwd=ROOT, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    worker = [*dask_cli, "worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard"]
    workers = [
        subprocess.Popen(worker, env={**environment, "GSPARSE_DEVICE": "cpu"}, cwd=ROOT, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        wait_until(file.exists, 60)
        client = distributed.Client(scheduler_file=str(file), timeout=30)
        client.wait_for_workers(2, timeout=60)
        A = distribute(S, client=client)
        ranks = list(pids(client).values())
        solve = begun(client, A)
        scheduler.kill()
        assert isinstance(solve.wait(30), CommunicationError)
        # Workers end with their scheduler, and what runs there with them.
        wait_until(lambda: not any(is_alive(pid) for pid in ranks), 60)
        with suppress(Exception):
            client.close(timeout=5)
    finally:
        for process in (scheduler, *workers):
            process.kill()
            process.wait(30)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
