"""The dask worker that a task runs on, as the task sees it."""

from __future__ import annotations

import time
from typing import Any

from gsparse.distributed.ranks.sockets import Contexts
from gsparse.errors import CommunicationError

__all__ = ["Heed", "address", "check_home", "is_wanted", "own_host", "this_worker", "tls_of"]

# Seconds between two looks whether a task is still wanted.
_HEED_EVERY = 0.1


def this_worker() -> Any:
    """Give dask's worker that the running task is on."""
    from distributed import get_worker

    return get_worker()


def address() -> str:
    """Give dask's address of this worker."""
    return str(this_worker().address)


def check_home(wanted: str) -> None:
    """Raise where a task has come to another worker than it was made for."""
    if address() != wanted:
        raise CommunicationError(f"a task of {wanted} came to {address()}: workers have changed, A = A.repartition()")


def own_host() -> str:
    """Give the host that this worker is known by to others."""
    from distributed.comm import get_address_host

    own = address()
    return "127.0.0.1" if own.startswith("inproc://") else str(get_address_host(own))


def tls_of(security: Any, of: str) -> Contexts:
    """Give the contexts for connections between workers, where the cluster talks TLS."""
    if not of.startswith("tls://"):
        return None, None
    return security.get_listen_args("worker")["ssl_context"], security.get_connection_args("worker")["ssl_context"]


class Heed:
    """Looks now and then whether the running task is still wanted."""

    def __init__(self) -> None:
        self._worker = this_worker()
        self._key = self._worker.get_current_task()
        self._next = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _HEED_EVERY
        if not is_wanted(self._worker, self._key):
            raise CommunicationError("the solve is no longer wanted: cancelled, or its client or scheduler is gone")


def is_wanted(worker: Any, key: Any) -> bool:
    """Tell whether dask still waits for a running task.

    The only use of what dask does not document: it tells nobody that a running task has been cancelled.
    """
    if worker.status.name not in ("running", "paused"):
        return False
    task = worker.state.tasks.get(key)
    return task is not None and task.state not in ("cancelled", "resumed", "forgotten", "released")
