"""Reservation of workers, so that each of them runs the tasks of one matrix at a time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import dask
import distributed

from gsparse.distributed.client.cluster import has_scheduler, scheduler_time_limit
from gsparse.errors import CommunicationError

__all__ = ["reserved"]

# Seconds of waiting for a worker after which a warning states the reason.
_WARN_AFTER = 1.0
# The key of dask's configuration with the time after which a lock expires whose holder has died.
_LEASE_TIMEOUT_KEY = "distributed.scheduler.locks.lease-timeout"
# The workers that the calls of this thread, or of this task of asyncio, have reserved.
_reserved_here: ContextVar[frozenset[str]] = ContextVar("_reserved_here", default=frozenset())


@contextmanager
def reserved(client: distributed.Client, workers: Iterable[str], timeout: float) -> Iterator[None]:
    """Reserve workers while the block runs, so that no other matrix runs tasks on them.

    If the task groups of two matrices were interleaved on some workers, each could wait for the other one for ever. So
    a lock of dask is acquired for each worker. Such a lock expires after its holder has died, which a MultiLock of dask
    does not. All clients acquire the locks in the order of the addresses, so two of them never wait for each other.

    Parameters
    ----------
    client : distributed.Client
    workers : iterable of str
        Dask's addresses.
    timeout : float
        Seconds to wait for each worker. After the first second, a warning states the reason for the wait.

    Raises
    ------
    CommunicationError
        If another client does not release a worker in time, or if this thread has reserved one already: a callback of a
        solve that asks for the same workers would wait for itself.
    """
    reserved_before, addresses = _reserved_here.get(), frozenset(workers)
    if reserved_before & addresses:
        raise CommunicationError(
            f"worker {min(reserved_before & addresses)} runs the solve from which this one is called: a callback can "
            "multiply by the matrix, but not solve with it; solve after the outer call has returned"
        )
    acquired, token = [], _reserved_here.set(reserved_before | addresses)
    try:
        for address in sorted(addresses):
            lock = distributed.Lock(f"gsparse-{address}")
            _acquire(lock, client, address, timeout)
            acquired.append(lock)
        yield
    finally:
        _reserved_here.reset(token)
        if has_scheduler(client):
            # A scheduler that has been stopped does not answer. If it continues, it receives these requests.
            thread = threading.Thread(target=_release, args=(acquired,), daemon=True)
            thread.start()
            thread.join(scheduler_time_limit())


def _release(locks: Iterable[distributed.Lock]) -> None:
    for lock in locks:
        with suppress(Exception):
            lock.release()


def _acquire(lock: distributed.Lock, client: distributed.Client, address: str, timeout: float) -> None:
    warn_after = min(_WARN_AFTER, timeout)
    if lock.acquire(timeout=warn_after):
        return
    warnings.warn(_reason(client, address), stacklevel=2)
    if not lock.acquire(timeout=timeout - warn_after):
        raise CommunicationError(f"another solve holds {lock.name} for {timeout:g} s")


def _reason(client: distributed.Client, address: str) -> str:
    """Return the reason for the wait: another solve runs on the worker, or the client that has reserved it has died."""
    running = [str(key) for key in client.processing([address]).get(address, ()) if str(key).startswith("gsparse-")]
    if running:
        return f"waiting for worker {address}, which is busy with {running[0]} of another call: one runs at a time"
    lease = dask.config.get(_LEASE_TIMEOUT_KEY)
    return (
        f"waiting for worker {address}, which another distribute() or solve has reserved, though none runs there now. "
        f"If its client has died, dask frees the worker once the lease of {lease} has expired. For shorter waits, set "
        f"dask.config.set({{'{_LEASE_TIMEOUT_KEY}': '5s'}}) in every client before its first distribute()"
    )
