"""Requests to dask's scheduler, and waits of the client for calls, futures and workers."""

from __future__ import annotations

import atexit
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from typing import Any, TypeVar

import dask
import distributed

from gsparse.distributed.worker.rank import unpacked
from gsparse.errors import CommunicationError, WorkerLostError

T = TypeVar("T")

# The key of dask's configuration for the time limit of the scheduler's answers.
_TIMEOUT_KEY = "distributed.comm.timeouts.connect"


def has_scheduler(client: distributed.Client) -> bool:
    """Return whether the scheduler is connected. If not, requests wait half a minute or end with unclear errors."""
    return bool(client.status == "running")


def check_running(client: distributed.Client) -> None:
    """Raise an error if the scheduler does not answer."""
    if not has_scheduler(client):
        raise CommunicationError(f"the scheduler is gone: the client is {client.status}")


def known_workers(client: distributed.Client) -> dict[str, dict[str, Any]]:
    """Return the workers that the scheduler knows, by address. Raise an error if the scheduler does not answer.

    `Client.scheduler_info` is not used, because its answer may lack the workers after a periodic update.
    """
    check_running(client)
    workers: dict[str, dict[str, Any]] = within_time_limit(client, client.scheduler.identity, n_workers=-1)["workers"]
    return workers


def within_time_limit(client: distributed.Client, request: Callable[..., Awaitable[T]], **arguments: Any) -> T:
    """Return the scheduler's answer to a request, within the time limit of dask's configuration.

    Raises
    ------
    CommunicationError
        If the scheduler does not answer.
    """
    scheduler = f"the scheduler at {client.scheduler.address}"
    limit: float = dask.utils.parse_timedelta(dask.config.get(_TIMEOUT_KEY))
    try:
        answer: T = client.sync(request, callback_timeout=limit, **arguments)
    except TimeoutError as error:
        raise CommunicationError(
            f"{scheduler} has been silent for {limit:g} s, which dask's setting {_TIMEOUT_KEY} allows: see whether it "
            "has been stopped or is overloaded"
        ) from error
    except OSError as error:  # dask's CommClosedError
        raise CommunicationError(f"{scheduler} is gone: {error}") from error
    return answer


# The `RankGroup` objects for which `close_client_at_exit` was called.
_groups: weakref.WeakSet[Any] = weakref.WeakSet()


def close_client_at_exit(group: Any) -> None:
    """Close the client of a `RankGroup` when the process exits, if the group is still open then.

    Otherwise, dask would close its clusters before the clients, and warn that results of tasks are lost.
    """
    _groups.add(group)


@atexit.register
def _close_clients() -> None:
    for client in {group.client for group in _groups if group.is_open}:
        with suppress(Exception):
            client.close()


# Seconds between two checks that workers are alive.
_CHECK_INTERVAL = 0.2


class Calls:
    """Calls of one function on several ranks.

    Attributes
    ----------
    results : dict
        The results of the calls, by rank.
    errors : list of exception
        The errors of the calls, in the order of arrival.
    unfinished : set of int
        The ranks whose calls have not ended, also those that `cut_off` abandoned, because their workers may be lost.
    """

    def __init__(self, calls: dict[int, Future[Any]]) -> None:
        self._running = {future: rank for rank, future in calls.items()}
        self.unfinished = set(calls)
        self.results: dict[int, Any] = {}
        self.errors: list[Any] = []

    @property
    def is_running(self) -> bool:
        """Whether at least one call has neither ended nor been abandoned (`cut_off`)."""
        return bool(self._running)

    def wait(self, seconds: float) -> None:
        """Wait until a call ends, but at most `seconds`."""
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
        """Stop waiting for ranks whose actors are gone."""
        for future in [future for future, rank in self._running.items() if rank in ranks and not future.done()]:
            self._cut_off(self._running.pop(future), "dask has dropped the rank")

    def _cut_off(self, rank: int, reason: object) -> None:
        text = f"rank {rank} can no longer be called: {reason}. If its worker is gone, use A = A.repartition()"
        self.errors.append(CommunicationError(text))


def new_call(name: str) -> str:
    """Return a new name for the calls of a function on all ranks."""
    return f"gsparse-{name}-{uuid.uuid4().hex}"


def release(futures: list[distributed.Future]) -> None:
    """Release futures now, and empty the list. Without this, dask would release them only at garbage collection."""
    while futures:
        futures.pop().release()


def wait_for(futures: Sequence[distributed.Future], seconds: float) -> None:
    """Wait until all futures are done, but at most `seconds`. Their client need not be dask's default client."""
    with suppress(TimeoutError, CancelledError), futures[0].client.as_current():
        distributed.wait(futures, timeout=seconds)


def raise_errors(futures: Iterable[distributed.Future], name: str) -> None:
    """Raise an error if a future has failed or was lost. Messages call the object that the futures form `name`."""
    for future in futures:
        if future.status == "error":
            future.result()
        if future.status in ("cancelled", "lost"):
            raise CommunicationError(f"a part of {name} is lost with the worker that had it: make {name} again")


def check_computable(client: distributed.Client, futures: Iterable[distributed.Future], name: str) -> None:
    """Raise CommunicationError if dask cannot compute a future, because the only workers that may do so are gone.

    Dask would wait forever. An example is the result of a solve whose worker is gone. Messages use `name` for the
    object of which the futures are parts. Nothing is checked if the scheduler does not run functions of clients.
    """

    # The scheduler's process may not have gsparse installed. Dask sends a nested function as code, not by its name.
    def find(wanted: set[Any], dask_scheduler: Any) -> tuple[str, str] | None:
        """Return a task on which a wanted result depends and whose workers are gone, and their addresses."""
        for task in dask_scheduler.unrunnable:
            reached = {task}
            remaining = [task] if task.worker_restrictions else []
            while remaining:
                dependent = remaining.pop()
                if dependent.key in wanted:
                    return str(task.key), ", ".join(sorted(task.worker_restrictions))
                remaining += dependent.dependents - reached
                reached |= dependent.dependents
        return None

    found: tuple[str, str] | None = None
    with suppress(ValueError):  # dask's setting distributed.scheduler.pickle is off
        found = client.run_on_scheduler(find, {future.key for future in futures if future.status == "pending"})
    if found is not None:
        raise CommunicationError(
            f"a part of {name} is lost with the worker that had it: it can be computed only by the task {found[0]} on "
            f"{found[1]}, which is gone: make {name} again"
        )


def answers_of_workers(futures: Mapping[str, distributed.Future], timeout: float, remedy: str = "") -> None:
    """Wait until each worker has run its task. `futures` maps each worker's address to its task.

    Raises
    ------
    CommunicationError, WorkerLostError
        If a worker is lost, or has not run its task after `timeout` seconds. `remedy` is the argument of
        `WorkerLostError`.
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
