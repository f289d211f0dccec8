"""The actors of the ranks, which several matrices share, and reservations of their workers."""

from __future__ import annotations

import asyncio
import secrets
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import compress
from types import SimpleNamespace
from typing import Any

import dask
import distributed
from distributed.actor import ProxyRPC
from distributed.protocol import to_serialize

from gsparse.device.locks import make_lock
from gsparse.distributed.client.scheduler import has_scheduler, within_time_limit
from gsparse.distributed.worker.rank import rank_key
from gsparse.errors import CommunicationError

# Seconds in which all workers must answer without the scheduler. Otherwise, calls pass through it.
_CONNECT_TIMEOUT = 1.0


class RankServers:
    """The actors of the ranks, and the state of their connections. A matrix shares them with the results of algebra.

    Attributes
    ----------
    epoch : int
        The number of times that the ranks have begun to connect.
    are_open : bool
        Whether the ranks are connected, and no call in which they wait for each other has failed since.
    lock : lock
        One thread at a time runs calls in which ranks wait for each other.
    references : list of Future
        Dask keeps the actors while these exist.
    matrices : set of str
        The keys of the matrices that are open.
    """

    def __init__(self, client: distributed.Client, workers: tuple[str, ...]) -> None:
        self.client, self.workers = client, workers
        self.epoch, self.are_open, self.secret = 0, False, secrets.token_bytes(32)
        self.lock, self.reservation = make_lock(), Reservation(client, workers)
        self.references: list[distributed.Future] = []
        self.matrices: set[str] = set()
        self._is_direct = False

    def find_route(self) -> None:
        """Call the actors without the scheduler from now on, if this process can connect to all workers."""
        self._is_direct = self.client.direct_to_workers is not False
        answers = [self.request(rank, "sign_of_life") for rank in range(len(self.workers))]
        done, running = wait(answers, _CONNECT_TIMEOUT)
        self._is_direct &= not running and not any(answer.exception() for answer in done)

    def dropped(self) -> list[int]:
        """Return the ranks whose actors dask has dropped, or not made."""
        return [rank for rank, reference in enumerate(self.references) if reference.status != "finished"]

    def request(self, rank: int, method: str, *args: Any) -> Future[Any]:
        """Call a method of a rank's actor, without waiting. Return a future of the answer."""
        return asyncio.run_coroutine_threadsafe(self._answer(rank, method, args), self.client.loop.asyncio_loop)

    async def _answer(self, rank: int, method: str, args: tuple[Any, ...]) -> Any:
        if rank in self.dropped():
            raise CommunicationError("dask has dropped the rank")
        reference, address = self.references[rank], self.workers[rank]
        worker = self.client.rpc(address) if self._is_direct else ProxyRPC(self.client.scheduler, address)
        answer = await worker.actor_execute(actor=reference.key, function=method, args=[*map(to_serialize, args)])
        if answer["status"] != "OK":
            raise answer["exception"]
        return answer["result"]

    def release(self, matrix: str) -> None:
        """Release a matrix, without waiting. With the last one, dask drops the actors, which closes their connections.

        Releasing the references would not be enough, because actors refer to themselves.
        """
        self.matrices.discard(matrix)
        with suppress(Exception):  # the client is closed
            if self.matrices and has_scheduler(self.client):
                for rank in range(len(self.references)):
                    self.request(rank, "release", rank_key(matrix, rank))
            elif not self.matrices:
                self.reservation.close()
                self.client.loop.add_callback(self.client.cancel, self.references, asynchronous=True)


# Seconds of waiting for a worker after which a warning states the reason.
_WARN_AFTER = 1.0
# The key of dask's configuration for the time after which a lock expires if its holder has died.
_LEASE_TIMEOUT_KEY = "distributed.scheduler.locks.lease-timeout"
# Seconds for which a client keeps a reservation for its next call, and the most seconds for several calls in a row.
_KEPT_FOR, _KEPT_IN_A_ROW = 0.005, 0.05
# The workers that this thread, or this task of asyncio, has reserved.
_reserved_here: ContextVar[frozenset[str]] = ContextVar("_reserved_here", default=frozenset())
# The reservations that are kept for the next call, with their acquired locks.
_kept: dict[Reservation, list[distributed.Lock]] = {}


def release_kept(client: distributed.Client) -> None:
    """Release the reservations that are kept for the next calls of a client, without waiting."""
    for reservation in [reservation for reservation in list(_kept) if reservation._client is client]:
        reservation._release(_kept.pop(reservation, []))


class Reservation:
    """Reserves the workers of a matrix for a block, so that calls of two matrices never wait for each other.

    A GPU runs the kernels of two solves one after the other. If calls of two matrices were interleaved on some workers,
    each could wait for the other forever. So a dask lock is acquired for each worker. Unlike dask's MultiLock, such a
    lock expires if its holder dies. First, all locks are requested at the same time. If some locks are not free, the
    acquired locks are released, and all locks are acquired one by one in the order of the addresses. All clients use
    this order, so two clients never wait for each other.

    Most calls follow another call at once. So the locks are kept for `_KEPT_FOR` seconds after a block, and are used by
    the next block without asking the scheduler. A kept reservation is released earlier if its client closes, or
    reserves workers for another matrix, and after `_KEPT_IN_A_ROW` seconds, so that other clients get a turn.

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
        self._acquired_at = 0.0
        # Dask stops these callbacks when the client closes, while requests to the scheduler can still be sent.
        callback = SimpleNamespace(start=lambda: None, stop=partial(release_kept, client))
        client._periodic_callbacks["gsparse-reservations"] = callback

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
            locks = _kept.pop(self, None) or self._acquire(timeout)
            try:
                yield
            except BaseException:
                self._release(locks)
                raise
            if time.monotonic() - self._acquired_at > _KEPT_IN_A_ROW or not has_scheduler(self._client):
                self._release(locks)
            else:
                _kept[self], loop = locks, self._client.loop
                loop.add_callback(loop.call_later, _KEPT_FOR, release_kept, self._client)
        finally:
            _reserved_here.reset(token)

    def close(self) -> None:
        """Stop refreshing the locks. Otherwise, they would be refreshed as long as the client exists."""
        release_kept(self._client)
        locks, self._locks = self._locks, []
        for lock in locks:
            if hasattr(lock, "refresh_callback"):
                self._client.loop.add_callback(lock.refresh_callback.stop)

    def _acquire(self, timeout: float) -> list[distributed.Lock]:
        """Acquire all locks, and return them."""
        client = self._client
        release_kept(client)
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
        self._acquired_at = time.monotonic()
        return acquired

    async def _acquire_free_ones(self, locks: list[distributed.Lock]) -> list[distributed.Lock]:
        """Acquire the locks that are free, and return these locks."""
        if self._last_release is not None:
            await asyncio.shield(asyncio.wrap_future(self._last_release))
        is_acquired = await asyncio.gather(*(lock.acquire(timeout=0) for lock in locks))
        return list(compress(locks, is_acquired))

    def _release(self, locks: Sequence[distributed.Lock]) -> None:
        """Release locks, without waiting. If the scheduler is suspended, it receives the requests when it continues."""

        async def release() -> None:
            await asyncio.gather(*(lock.release() for lock in locks), return_exceptions=True)

        if locks and self._client.status in ("running", "closing"):
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
