"""What the client waits for: calls of ranks, futures of dask, and workers that are to answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from typing import Any

import distributed

from gsparse.distributed.client.scheduler import known_workers, task_without_worker
from gsparse.distributed.worker.rank import unpacked
from gsparse.errors import CommunicationError, WorkerLostError

# Seconds between two checks that workers are alive.
_CHECK_INTERVAL = 0.2


class Calls:
    """Calls of one function on several ranks.

    Attributes
    ----------
    results : dict
        What the calls have returned, by rank.
    errors : list of exception
        What they have raised, in the order of arrival.
    unfinished : set of int
        The ranks whose calls have not ended. Those that were cut off stay there: their workers may be lost.
    """

    def __init__(self, calls: dict[int, Future[Any]]) -> None:
        self._running = {future: rank for rank, future in calls.items()}
        self.unfinished = set(calls)
        self.results: dict[int, Any] = {}
        self.errors: list[Any] = []

    @property
    def is_running(self) -> bool:
        """Whether some call has neither ended nor been cut off."""
        return bool(self._running)

    def wait(self, seconds: float) -> None:
        """Wait until some call ends, for at most this time."""
        if not self._running:
            time.sleep(seconds)
        for future in wait(self._running, seconds, FIRST_COMPLETED).done:
            rank = self._running.pop(future)
            try:
                result, error = unpacked(future.result())
            except Exception as reason:
                self._cut_off(rank, reason)
                continue
            self.unfinished.discard(rank)
            if error is None:
                self.results[rank] = result
            else:
                self.errors.append(error)

    def cut_off(self, ranks: Iterable[int]) -> None:
        """Expect no answer from ranks whose actors are gone."""
        for future in [future for future, rank in self._running.items() if rank in ranks and not future.done()]:
            self._cut_off(self._running.pop(future), "dask has dropped the rank")

    def _cut_off(self, rank: int, reason: object) -> None:
        text = f"rank {rank} can no longer be called: {reason}. If its worker is gone, use A = A.repartition()"
        self.errors.append(CommunicationError(text))


def new_call(name: str) -> str:
    """Return a name for the calls of a function on all ranks."""
    return f"gsparse-{name}-{uuid.uuid4().hex}"


def release(futures: list[distributed.Future]) -> None:
    """Release futures now and empty the list. Otherwise dask would release them only at garbage collection."""
    while futures:
        futures.pop().release()


def wait_for(futures: Sequence[distributed.Future], seconds: float) -> None:
    """Wait until all futures have ended, for at most this time. Their client need not be dask's default one."""
    with suppress(TimeoutError, CancelledError), futures[0].client.as_current():
        distributed.wait(futures, timeout=seconds)


def raise_errors(futures: Iterable[distributed.Future], name: str) -> None:
    """Raise the error of a future that has failed, or has been lost with a worker; `name` says what it is a part of."""
    for future in futures:
        if future.status == "error":
            future.result()
        if future.status in ("cancelled", "lost"):
            raise CommunicationError(f"a part of {name} is lost with the worker that had it: make {name} again")


def check_computable(client: distributed.Client, futures: Iterable[distributed.Future], name: str) -> None:
    """Raise CommunicationError for a future that dask cannot compute because the only workers that may do so are gone.

    Dask would wait for ever. This is so with the result of a solve whose worker is gone. `name` says what the futures
    are parts of.
    """
    found = task_without_worker(client, (future.key for future in futures if future.status == "pending"))
    if found is not None:
        key, workers = found
        raise CommunicationError(
            f"a part of {name} is lost with the worker that had it: it can be computed only by the task {key} on "
            f"{workers}, which is gone: make {name} again"
        )


def answers_of_workers(futures: Mapping[str, distributed.Future], timeout: float, remedy: str = "") -> None:
    """Wait until each worker has run its task, given by its address.

    Raises
    ------
    CommunicationError, WorkerLostError
        If a worker does not do so within `timeout` seconds, or is gone. `remedy` is that of `WorkerLostError`.
    """
    end = time.monotonic() + timeout
    while unfinished := {worker: future for worker, future in futures.items() if not future.done()}:
        wait_for(list(unfinished.values()), min(_CHECK_INTERVAL, timeout))
        known = known_workers(next(iter(unfinished.values())).client)
        for rank, worker in enumerate(futures):
            if worker not in known:
                raise WorkerLostError(rank, worker, remedy)
        if time.monotonic() > end:
            raise silent_error(min(unfinished), timeout)
    raise_errors(futures.values(), "the matrix")


def silent_error(worker: str, timeout: float) -> CommunicationError:
    """Return the error for a worker that does not answer in time."""
    return CommunicationError(
        f"worker {worker} has been silent for {timeout:g} s: see whether it has been stopped or is busy, or pass a "
        "longer timeout"
    )
