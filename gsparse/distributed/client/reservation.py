"""Workers of a cluster, reserved for one matrix at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import dask
import distributed

from gsparse.distributed.client.cluster import has_scheduler
from gsparse.errors import CommunicationError

__all__ = ["reserved"]

# Seconds of waiting for a worker after which a warning says why.
_SILENT = 1.0
_LEASE = "distributed.scheduler.locks.lease-timeout"


@contextmanager
def reserved(client: distributed.Client, workers: Iterable[str], timeout: float) -> Iterator[None]:
    """Keep the tasks of other matrices off these workers: two gangs that interleave would wait for each other for ever.

    Dask's locks are leases, which end with their holder; its MultiLock outlives a client that dies. They are taken
    in order of address, so nobody holds one that another waits for while waiting itself.

    Parameters
    ----------
    client : distributed.Client
    workers : iterable of str
        Dask's addresses.
    timeout : float
        Seconds to wait for each worker. After the first second, a warning says what is waited for.

    Raises
    ------
    CommunicationError
        Where another holder does not let a worker go in time.
    """
    held = []
    try:
        for address in sorted(set(workers)):
            lock = distributed.Lock(f"gsparse-{address}")
            _acquire(lock, client, address, timeout)
            held.append(lock)
        yield
    finally:
        for lock in held if has_scheduler(client) else ():
            with suppress(Exception):
                lock.release()


def _acquire(lock: distributed.Lock, client: distributed.Client, address: str, timeout: float) -> None:
    silent = min(_SILENT, timeout)
    if lock.acquire(timeout=silent):
        return
    warnings.warn(_reason(client, address), stacklevel=2)
    if not lock.acquire(timeout=timeout - silent):
        raise CommunicationError(f"another solve holds {lock.name} for {timeout:g} s")


def _reason(client: distributed.Client, address: str) -> str:
    """Say why a worker is waited for: another solve runs there, or its holder has died."""
    running = [str(key) for key in client.processing([address]).get(address, ()) if str(key).startswith("gsparse-")]
    if running:
        return f"waiting for worker {address}, which is busy with {running[0]} of another call: one runs at a time"
    return (
        f"waiting for worker {address}, which another distribute() or solve has reserved, though none runs there now. "
        f"If its client has died, dask frees the worker once the lease of {dask.config.get(_LEASE)} has expired. "
        f"For shorter waits, set dask.config.set({{'{_LEASE}': '5s'}}) in every client before its first distribute()"
    )
