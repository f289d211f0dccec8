"""What a client asks dask's scheduler, and the errors if the scheduler does not answer."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import dask
import distributed

from gsparse.errors import CommunicationError

T = TypeVar("T")

# The key of dask's configuration with the time limit for answers of the scheduler.
_TIMEOUT_KEY = "distributed.comm.timeouts.connect"


def has_scheduler(client: distributed.Client) -> bool:
    """Return whether the scheduler is connected. If not, requests wait half a minute or end with unclear errors."""
    return bool(client.status == "running")


def check_running(client: distributed.Client) -> None:
    """Raise an error if the scheduler does not answer."""
    if not has_scheduler(client):
        raise CommunicationError(f"the scheduler is gone: the client is {client.status}")


def known_workers(client: distributed.Client) -> dict[str, dict[str, Any]]:
    """Return the workers that the scheduler knows, by address; raise an error if the scheduler does not answer.

    `Client.scheduler_info` is not used: a periodic callback may replace its answer by one without workers.
    """
    check_running(client)
    workers: dict[str, dict[str, Any]] = within_time_limit(client, client.scheduler.identity, n_workers=-1)["workers"]
    return workers


def within_time_limit(client: distributed.Client, request: Callable[..., Awaitable[T]], **arguments: Any) -> T:
    """Return what the scheduler answers to a request within the time that dask's configuration allows it.

    Raises
    ------
    CommunicationError
        If the scheduler does not answer.
    """
    with naming_lost_scheduler(client):
        answer: T = client.sync(request, callback_timeout=_scheduler_time_limit(), **arguments)
    return answer


def task_without_worker(client: distributed.Client, keys: Iterable[Any]) -> tuple[str, str] | None:
    """Return a task for which others wait and that cannot run, because the workers on which it may run are gone.

    Parameters
    ----------
    client : distributed.Client
    keys : iterable
        The keys of the tasks whose results are wanted, and which may wait for such a task.

    Returns
    -------
    (str, str) or None
        Its key, and the addresses of the workers. None if there is no such task, or if the scheduler does not run
        functions of clients.
    """

    # The scheduler's process may not have gsparse installed. Dask sends a nested function by its code, not by its name.
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


@contextmanager
def naming_lost_scheduler(client: distributed.Client) -> Iterator[None]:
    """Turn dask's errors for requests to the scheduler into errors that say whether it is silent or gone."""
    scheduler = f"the scheduler at {client.scheduler.address}"
    try:
        yield
    except TimeoutError as error:
        raise CommunicationError(
            f"{scheduler} has been silent for {_scheduler_time_limit():g} s, which dask's setting {_TIMEOUT_KEY} "
            "allows: see whether it has been stopped or is overloaded"
        ) from error
    except OSError as error:  # dask's CommClosedError
        raise CommunicationError(f"{scheduler} is gone: {error}") from error


def _scheduler_time_limit() -> float:
    limit: float = dask.utils.parse_timedelta(dask.config.get(_TIMEOUT_KEY))
    return limit


# Groups of workers that have been opened.
_groups: weakref.WeakSet[Any] = weakref.WeakSet()


def close_client_at_exit(group: Any) -> None:
    """Close the client of a group of workers at exit, if the group is still open then.

    Otherwise, dask would close its clusters before the clients, and warn that computed tasks are lost with the workers.
    """
    _groups.add(group)


@atexit.register
def _close_clients() -> None:
    for client in {group.client for group in _groups if group.is_open}:
        with suppress(Exception):
            client.close()
