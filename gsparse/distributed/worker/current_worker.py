"""The dask worker on which a task runs, as the task sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gsparse.distributed.ranks.sockets import Contexts
from gsparse.errors import CommunicationError

# Seconds between two checks whether a task is still wanted.
_CHECK_INTERVAL = 0.1


def this_worker() -> Any:
    """Return the dask worker on which the current task runs."""
    from distributed import get_worker

    return get_worker()


def worker_address() -> str:
    """Return dask's address of this worker."""
    return str(this_worker().address)


def check_worker(expected: str) -> None:
    """Raise an error if a task runs on another worker than the one that it was submitted for."""
    if worker_address() != expected:
        raise CommunicationError(
            f"a task of {expected} came to {worker_address()}: workers have changed, A = A.repartition()"
        )


def worker_host() -> str:
    """Return the host name or IP address at which others reach this worker."""
    from distributed.comm import get_address_host

    address = worker_address()
    return "127.0.0.1" if address.startswith("inproc://") else str(get_address_host(address))


def tls_contexts(security: Any, address: str) -> Contexts:
    """Return the TLS contexts for accepting and for making connections; None and None if the cluster does not use TLS.

    `address` is dask's address of any worker of the cluster.
    """
    if not address.startswith("tls://"):
        return None, None
    return security.get_listen_args("worker")["ssl_context"], security.get_connection_args("worker")["ssl_context"]


class CancellationCheck:
    """Raises an error if a solve is no longer wanted. It may be called often: most calls only read a clock.

    Parameters
    ----------
    is_awaited : callable, optional
        Returns whether the client still waits for the solve. By default, the solve is the current task of dask, and
        dask is asked.
    """

    def __init__(self, is_awaited: Callable[[], bool] | None = None) -> None:
        self._worker = worker = this_worker()
        self._is_awaited = is_awaited or partial(is_task_wanted, worker, worker.get_current_task())
        self._next_check = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_INTERVAL
        if self._worker.status.name not in ("running", "paused") or not self._is_awaited():
            raise CommunicationError("the solve is no longer wanted: cancelled, or its client or scheduler is gone")


def is_task_wanted(worker: Any, key: Any) -> bool:
    """Return whether dask still waits for a running task.

    This is the only use of undocumented state of dask, which does not tell a running task that it has been cancelled.
    """
    task = worker.state.tasks.get(key)
    return task is not None and task.state not in ("cancelled", "resumed", "forgotten", "released")
