"""Clusters, and solves in the background, for tests that make faults."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import dask
import distributed

import gsparse.linalg as gla
from gsparse.distributed import DistributedMatrix, LocalGpuCluster
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.groups import wait_until

ROOT = Path(__file__).parents[2]
S = laplacian(12)
B = right_hand_side(S)
# Time limits in seconds. An error may take ERROR_DEADLINE on a busy machine: a closed connection is noticed at once,
# and a silent one after TIMEOUT.
ERROR_DEADLINE, TIMEOUT = 90.0, 5.0
# Dask releases a lock of a client that is gone after 30 s by default. It waits 15 s for a new worker with the name of a
# lost one, and then drops the name; a busy machine may take longer to start a process.
SETTINGS = {
    "distributed.deploy.lost-worker-timeout": "1 day",
    "distributed.scheduler.locks.lease-timeout": "3s",
    "distributed.scheduler.locks.lease-validation-interval": "1s",
}


@contextmanager
def cluster_of(size: int) -> Iterator[Any]:
    with (
        dask.config.set(SETTINGS),
        LocalGpuCluster(size, device="cpu") as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(size)
        yield client


def pids(client: Any) -> dict[str, int]:
    return client.run(os.getpid)


class BackgroundSolve:
    """A solve in a thread, which does not end by itself unless the options limit it.

    By default it is one by `gmres`, whose residual never becomes zero. That of `cg` does, in some hundred iterations.
    """

    def __init__(self, A: DistributedMatrix, b: Any = B, **options: Any) -> None:
        self.error: BaseException | None = None
        self.result: Any = None
        self.started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(A, b), kwargs=options, daemon=True)
        self._thread.start()

    def _run(self, A: DistributedMatrix, b: Any, solver: Callable[..., Any] = gla.gmres, **options: Any) -> None:
        try:
            self.result = solver(A, b, **{"rtol": 0, "maxiter": 10**9, **options})
        except BaseException as error:
            self.error = error

    def wait(self, seconds: float = ERROR_DEADLINE) -> BaseException | None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the solve hangs"
        return self.error


def is_solving() -> bool:
    """Return whether a solve runs on this worker: only then does the matrix of its rank have an observer."""
    from gsparse.distributed.worker.rank import _ranks

    return any(rank.matrix is not None and rank.matrix.observer is not None for rank in list(_ranks.values()))


def running_calls() -> list[str]:
    """Return the names of the calls that run on this worker."""
    from gsparse.distributed.worker.rank import _ranks

    return list({name for rank in list(_ranks.values()) for name in list(rank.calls)})


def start_solve(client: Any, A: DistributedMatrix, **options: Any) -> BackgroundSolve:
    solve = BackgroundSolve(A, **options)
    wait_until(lambda: all(client.run(is_solving, workers=list(A.workers)).values()))
    time.sleep(0.3)
    return solve


def check(client: Any, A: DistributedMatrix, S: Any = S, b: Any = B) -> None:
    """Check that the matrix can be solved with, and that no worker is still busy with the failed solve."""
    x, info = gla.cg(A, b, rtol=1e-10)
    assert info == 0
    assert residual(S, x, b) < 1e-9
    assert not any(client.run(is_solving).values())


def error_within_deadline(function: Callable[[], object]) -> BaseException:
    """Return the error of a call, which must end within `ERROR_DEADLINE`."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(ERROR_DEADLINE)
    assert not thread.is_alive(), "the call hangs"
    return errors[0]


@contextmanager
def scheduler_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a scheduler in a process of its own, which writes its address into ``scheduler.json``."""
    file = folder / "scheduler.json"
    options = ["--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--no-jupyter", "--scheduler-file", str(file)]
    with running(["-m", "distributed.cli.dask_scheduler", *options]) as process:
        wait_until(file.exists)
        yield process


def worker_process(scheduler: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a worker in a process of its own."""
    return running(["-m", "distributed.cli.dask_worker", scheduler, "--no-dashboard", "--nthreads", "2"])


@contextmanager
def running(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these arguments while the block runs."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(ERROR_DEADLINE)


CLIENT = """
import sys, time, numpy as np
from distributed import Client
from gsparse.distributed import distribute
from gsparse.linalg import gmres
from tests.linalg.problems import laplacian
if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        A = distribute(laplacian(12), client=client)
        print("solving", flush=True)
        gmres(A, np.ones(144), rtol=0, maxiter=10**9)
"""


def kill_client_in_solve(client: Any) -> None:
    """Run another client, and kill it during its solve."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CLIENT, client.scheduler.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"solving\n"
        wait_until(lambda: all(client.run(is_solving).values()))
        process.kill()


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def limit_file_size(num_bytes: int) -> None:
    """Limit the size of the files that this worker writes, to imitate a full disk; -1 removes the limit."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def count_states(dask_worker: Any) -> int:
    """Return the number of actors, ranks, calls and vectors that this worker holds."""
    from gsparse.distributed.worker.rank import _ranks, _vectors

    return len(dask_worker.state.actors) + len(_ranks) + len(_vectors) + len(running_calls())
