"""Requests to dask's scheduler, reservations of workers, and waits of the client for calls, futures and workers."""

from __future__ import annotations

import asyncio
import atexit
import time
import uuid
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import compress
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


def task_without_worker(client: distributed.Client, keys: Iterable[Any]) -> tuple[str, str] | None:
    """Return a task that cannot run because its workers are gone, and on which one of the wanted results depends.

    Parameters
    ----------
    client : distributed.Client
    keys : iterable
        The keys of the tasks whose results are wanted.

    Returns
    -------
    (str, str) or None
        The key of the task, and the addresses of its workers. None if there is no such task, or if the scheduler does
        not run functions of clients.
    """

    # The scheduler's process may not have gsparse installed. Dask sends a nested function as code, not by its name.
    def find(wanted: set[Any], dask_scheduler: Any) -> tuple[str, str] | None:
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

    with suppress(ValueError):  # dask's setting distributed.scheduler.pickle is off
        found: tuple[str, str] | None = client.run_on_scheduler(find, set(keys))
        return found
    return None


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


# Seconds of waiting for a worker after which a warning states the reason.
_WARN_AFTER = 1.0
# The key of dask's configuration for the time after which a lock expires if its holder has died.
_LEASE_TIMEOUT_KEY = "distributed.scheduler.locks.lease-timeout"
# The workers that this thread, or this task of asyncio, has reserved.
_reserved_here: ContextVar[frozenset[str]] = ContextVar("_reserved_here", default=frozenset())


class Reservation:
    """Reserves the workers of a matrix for a block, so that calls of two matrices never wait for each other.

    A GPU runs the kernels of two solves one after the other. If calls of two matrices were interleaved on some workers,
    each could wait for the other forever. So a dask lock is acquired for each worker. Unlike dask's MultiLock, such a
    lock expires if its holder dies. First, all locks are requested at the same time. If some locks are not free, the
    acquired locks are released, and all locks are acquired one by one in the order of the addresses. All clients use
    this order, so two clients never wait for each other.

    Parameters
    ----------
    client : distributed.Client
    workers : iterable of str
        Dask's addresses.
    """

    def __init__(self, client: distributed.Client, workers: Iterable[str]) -> None:
        self._client, self._workers = client, sorted(set(workers))
        self._locks: list[distributed.Lock] = []
        self._last_release: Future[None] | None = None

    @contextmanager
    def held(self, timeout: float, may_be_nested: bool = False) -> Iterator[None]:
        """Reserve the workers while the block runs. Only one thread at a time may call this method of an object.

        Parameters
        ----------
        timeout : float
            Seconds to wait for each worker. After the first second, a warning states the reason for the wait.
        may_be_nested : bool
            Whether the block may run in a callback of a solve, whose ranks wait for the callback.

        Raises
        ------
        CommunicationError
            If another client does not release a worker in time, if the scheduler does not answer, or if this thread has
            reserved a worker already. (A callback of a solve would otherwise wait for its own solve.)
        """
        reserved_before, addresses = _reserved_here.get(), frozenset(self._workers)
        if may_be_nested and addresses <= reserved_before:
            yield
            return
        if reserved_before & addresses:
            raise CommunicationError(
                f"worker {min(reserved_before & addresses)} runs the solve from which this one is called: a callback "
                "can multiply by the matrix, but not solve with it; solve after the outer call has returned"
            )
        token = _reserved_here.set(reserved_before | addresses)
        try:
            locks = self._acquire(timeout)
            try:
                yield
            finally:
                self._release(locks)
        finally:
            _reserved_here.reset(token)

    def close(self) -> None:
        """Stop refreshing the locks. Otherwise, they would be refreshed as long as the client exists."""
        locks, self._locks = self._locks, []
        for lock in locks:
            if hasattr(lock, "refresh_callback"):
                self._client.loop.add_callback(lock.refresh_callback.stop)

    def _acquire(self, timeout: float) -> list[distributed.Lock]:
        """Acquire all locks, and return them."""
        client = self._client
        locks = self._locks = self._locks or [
            distributed.Lock(f"gsparse-{address}", scheduler_rpc=client.scheduler, loop=client.loop)
            for address in self._workers
        ]
        acquired: list[distributed.Lock] = []
        try:
            acquired = within_time_limit(client, self._acquire_free_ones, locks=locks)
            if len(acquired) < len(locks):
                self._release(acquired)
                acquired = []
                for lock, address in zip(locks, self._workers, strict=True):
                    _wait_for(lock, address, timeout)
                    acquired.append(lock)
        except BaseException:
            self._release(acquired)
            self.close()  # An interrupted request may still get a lock, which then expires.
            raise
        return acquired

    async def _acquire_free_ones(self, locks: list[distributed.Lock]) -> list[distributed.Lock]:
        """Acquire the locks that are free, and return these locks."""
        if self._last_release is not None:
            await asyncio.shield(asyncio.wrap_future(self._last_release))
        is_acquired = await asyncio.gather(*(lock.acquire(timeout=0) for lock in locks))
        return list(compress(locks, is_acquired))

    def _release(self, locks: Iterable[distributed.Lock]) -> None:
        """Release locks, without waiting. If the scheduler is suspended, it receives the requests when it continues."""

        async def release() -> None:
            await asyncio.gather(*(lock.release() for lock in locks), return_exceptions=True)

        if has_scheduler(self._client):
            self._last_release = asyncio.run_coroutine_threadsafe(release(), self._client.loop.asyncio_loop)


def _wait_for(lock: distributed.Lock, address: str, timeout: float) -> None:
    """Acquire a lock that another client may hold."""
    warn_after = min(_WARN_AFTER, timeout)
    if lock.acquire(timeout=warn_after):
        return
    lease = dask.config.get(_LEASE_TIMEOUT_KEY)
    warnings.warn(
        f"waiting for worker {address}, which another distribute() or solve has reserved: one runs at a time. If its "
        f"client has died, dask frees the worker once the lease of {lease} has expired. For shorter waits, set "
        f"dask.config.set({{'{_LEASE_TIMEOUT_KEY}': '5s'}}) in every client before its first distribute()",
        stacklevel=2,
    )
    if not lock.acquire(timeout=timeout - warn_after):
        raise CommunicationError(
            f"another solve holds {lock.name} for more than {timeout:g} s: call again when it has ended, or pass a "
            "longer timeout to distribute()"
        )


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
    object of which the futures are parts.
    """
    found = task_without_worker(client, (future.key for future in futures if future.status == "pending"))
    if found is not None:
        key, workers = found
        raise CommunicationError(
            f"a part of {name} is lost with the worker that had it: it can be computed only by the task {key} on "
            f"{workers}, which is gone: make {name} again"
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
