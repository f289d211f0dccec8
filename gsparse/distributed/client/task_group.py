"""Tasks that all workers of a matrix run together, one a rank, and what becomes of them."""

from __future__ import annotations

import atexit
import secrets
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

import distributed

from gsparse.distributed.client.cluster import check_running, has_scheduler, known_workers
from gsparse.distributed.client.reservation import reserved
from gsparse.distributed.worker import group_tasks as gang_tasks
from gsparse.distributed.worker import registry as resident
from gsparse.errors import CommunicationError, RankLostError, WorkerLost

__all__ = ["Gang", "started_again"]

# Seconds between two looks whether all workers of a gang are there, and that other ranks have to end when one failed.
_LOOK_EVERY, _GRACE = 0.5, 3.0
# And those that a worker that was started again has to register.
_RESTART = 15.0


class Gang:
    """The workers of one matrix, by rank.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of str
        Dask's addresses.
    timeout : float
        Seconds that a rank may be silent.

    Attributes
    ----------
    key : str
        That workers know the matrix by.
    secret : bytes
        That ranks know each other by.
    closed_by : str
        What has closed it, and what to do then.
    """

    def __init__(self, client: distributed.Client, workers: Sequence[str], timeout: float) -> None:
        self.client, self.workers, self.timeout = client, tuple(workers), timeout
        self.key, self.secret = f"gsparse-{uuid.uuid4().hex}", secrets.token_bytes(32)
        self.is_open, self.closed_by = True, "closed: distribute it again"
        self._epoch, self._is_connected = 0, False
        self._lock = threading.RLock()
        self._anchors: list[distributed.Future] = []

    @property
    def ranks(self) -> range:
        return range(len(self.workers))

    @property
    def roster(self) -> gang_tasks.Roster:
        return gang_tasks.Roster(self.key, self._epoch, self.workers, self.timeout)

    def check_open(self) -> None:
        if not self.is_open:
            raise CommunicationError(f"this matrix has been {self.closed_by}")
        check_running(self.client)

    # ------------------------------------------------------------------ life

    def open(self, parts: Callable[[], list[Any]], *given: Any) -> list[gang_tasks.Stay]:
        """Connect the ranks, and have each make its matrix of its part and of what all are given."""
        with self.alone():
            # A worker that is gone becomes an error of the tasks that follow, which names its rank.
            self.client.run(resident.keep_secret, self.key, self.secret, workers=self.left(), on_error="ignore")
            addresses = self._ports()
            tasks = self._connect(gang_tasks.open_rank, "open", addresses, [(p, *given) for p in self.settled(parts())])
            stays = self.wait(tasks, keep=True)
            self._anchors = tasks  # (dask keeps what they have returned, and so the ranks their matrix)
            self._is_connected = True
        _opened.add(self)
        return stays

    def reconnect(self) -> None:
        """Connect the ranks anew, where a gang has failed since."""
        if not self._is_connected:
            addresses = self._ports()
            self.wait(self._connect(gang_tasks.reopen_rank, "reopen", addresses, [()] * len(self.workers)))
            self._is_connected = True

    def _ports(self) -> tuple[tuple[str, int], ...]:
        """Have every rank open a port."""
        self._epoch += 1
        roster = self.roster
        return tuple(self.wait([self.submit(gang_tasks.reserve, "reserve", r, roster, r) for r in self.ranks]))

    def _connect(
        self,
        function: Callable[..., Any],
        name: str,
        addresses: tuple[tuple[str, int], ...],
        given: Sequence[tuple[Any, ...]],
    ) -> list[distributed.Future]:
        roster = self.roster
        return [self.submit(function, name, r, roster, r, addresses, *given[r]) for r in self.ranks]

    def close(self) -> None:
        """Have the workers that are left let go: dask would wait half a minute for one that is gone."""
        self.is_open = False
        with suppress(Exception):
            self.client.run(resident.release, self.key, workers=self.left(), on_error="ignore")
        self.let_go(self._anchors)

    # ------------------------------------------------------------------ tasks

    def submit(self, function: Callable[..., Any], name: str, rank: int, *args: Any) -> distributed.Future:
        """Give a rank's worker a task, which no other worker may take."""
        return self.client.submit(
            function,
            *args,
            key=f"gsparse-{name}-rank{rank}-{uuid.uuid4().hex}",
            workers=[self.workers[rank]],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def settled(self, parts: list[Any]) -> list[Any]:
        """Wait for what a gang is to be given: once the gang runs, workers may have no thread left to make it."""
        futures = [part for part in parts if isinstance(part, distributed.Future)]
        distributed.wait(futures)
        for future in futures:
            if future.status != "finished":
                future.result()
        return parts

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other gangs off these workers: two that interleave would wait for each other for ever."""
        self.check_open()
        with self._lock, self.client.as_current(), reserved(self.client, self.workers, 10 * self.timeout):
            yield

    def wait(
        self,
        tasks: list[distributed.Future],
        meanwhile: Callable[[], None] | None = None,
        *,
        gather: bool = True,
        keep: bool = False,
    ) -> list[Any]:
        """Wait for a task a rank; where one fails, end the others and raise what has gone wrong.

        Workers let go of what has been gathered, but for tasks that the caller is to keep.
        """
        try:
            self._watch(tasks, meanwhile)
            found = list(self.client.gather(tasks)) if gather else []
            if gather and not keep:
                self.let_go(tasks)
            return found
        except BaseException:
            self._is_connected = False
            if has_scheduler(self.client):
                with suppress(Exception):
                    self.client.cancel(tasks, force=True)
            raise

    def let_go(self, tasks: list[distributed.Future]) -> None:
        """Release futures now: dask's own references to one end only when garbage is collected."""
        while tasks:
            tasks.pop().release()

    def _watch(self, tasks: list[distributed.Future], meanwhile: Callable[[], None] | None) -> None:
        """Wait until all have finished; raise where a rank fails or is lost, once the others know or had the time."""
        next_look = time.monotonic() + _LOOK_EVERY
        failed_at, lost = None, None
        while True:
            with suppress(TimeoutError, CancelledError):
                distributed.wait(tasks, timeout=0.01 if meanwhile else 0.1)
            if meanwhile is not None:
                meanwhile()
            states = [task.status for task in tasks]
            if all(state == "finished" for state in states):
                return
            now = time.monotonic()
            if any(state in ("error", "cancelled", "lost") for state in states):
                failed_at = failed_at or now
                if all(state != "pending" for state in states) or now - failed_at > _GRACE:
                    raise self._error(tasks)
            if now >= next_look and lost is None:
                next_look = now + _LOOK_EVERY
                lost = self.first_lost(rank for rank in self.ranks if states[rank] == "pending")
            if lost is not None:
                failed_at = failed_at or now
                others = [task for rank, task in enumerate(tasks) if rank != lost.rank]
                if all(task.status != "pending" for task in others) or now - failed_at > _GRACE:
                    raise lost

    # ------------------------------------------------------------------ who is lost

    def first_lost(self, ranks: Iterable[int] | None = None) -> WorkerLost | None:
        """Give the first of these ranks (of all) whose worker the scheduler does not know."""
        known = known_workers(self.client)
        lost = (rank for rank in (self.ranks if ranks is None else ranks) if self.workers[rank] not in known)
        return next((WorkerLost(rank, self.workers[rank]) for rank in lost), None)

    def left(self) -> list[str]:
        """Give the workers of this matrix that are still there."""
        known = known_workers(self.client)
        return [address for address in self.workers if address in known]

    def _error(self, tasks: list[distributed.Future]) -> Any:
        """Give what has gone wrong first: not what others have only heard of."""
        found = [task.exception(timeout=1) for task in tasks if task.status == "error"]
        for error in found:
            if not isinstance(error, CommunicationError | distributed.KilledWorker):
                return error
        found.sort(key=lambda error: isinstance(error, RankLostError))
        for error in found:
            # (a rank that ended with an error of its own has closed its connections too)
            if isinstance(error, RankLostError) and tasks[error.rank].status == "pending":
                return WorkerLost(error.rank, self.workers[error.rank])
        lost = self.first_lost()
        if lost is not None:
            return lost
        return found[0] if found else CommunicationError("cancelled, or the cluster has been restarted")


_opened: weakref.WeakSet[Gang] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """Close the clients of what a session leaves open: dask closes its clusters first, and warns of what they lose."""
    for client in {gang.client for gang in _opened if gang.is_open}:
        with suppress(Exception):
            client.close()


def started_again(client: distributed.Client, workers: Sequence[str]) -> list[str]:
    """Start workers again that NCCL has left something in, where a nanny can; give the addresses that are good now."""
    worn = [a for a, is_worn in client.run(gang_tasks.is_worn_out, workers=list(workers)).items() if is_worn]
    if not worn:
        return list(workers)
    names = {address: found["name"] for address, found in known_workers(client).items()}
    with suppress(ValueError):  # (no nanny: it has to do as it is)
        client.restart_workers(worn, raise_for_error=False)
    wanted, deadline = {names[address] for address in workers}, time.monotonic() + _RESTART
    while True:
        now = {found["name"]: a for a, found in known_workers(client).items()}
        if wanted <= now.keys() or time.monotonic() > deadline:
            return [now[names[address]] for address in workers if names[address] in now]
        time.sleep(_LOOK_EVERY / 10)  # (a worker that is up may not have registered yet)
