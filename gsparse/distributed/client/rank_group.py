"""The ranks of one matrix, which belong to dask actors, and calls of functions on the ranks with their errors."""

from __future__ import annotations

import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import distributed

from gsparse.device.counters import is_strict
from gsparse.distributed.client.rank_servers import RankServers
from gsparse.distributed.client.scheduler import (
    Calls,
    answers_of_workers,
    check_computable,
    check_running,
    close_client_at_exit,
    has_scheduler,
    known_workers,
    new_call,
    raise_errors,
    release,
    silent_error,
    wait_for,
)
from gsparse.distributed.worker import entry_tasks, group_tasks
from gsparse.distributed.worker.rank import RankServer, packed, rank_key, take_vector
from gsparse.errors import CommunicationError, RankLostError, WorkerLostError

# Seconds between two checks that all workers of a group are alive.
_CHECK_INTERVAL = 0.5
# Seconds for which the calls of the other ranks may continue after one rank has failed.
_GRACE_PERIOD = 3.0
# Longest time, in seconds, between two checks of running calls: with `on_poll`, which each check calls, and without.
_POLL_INTERVAL, _WAIT_INTERVAL = 0.002, 0.1

_Asked = dict[int, tuple[Future[Any], float]]


class RankGroup:
    """The ranks of one matrix. Each belongs to an actor of dask on its worker.

    A call of an actor takes a millisecond, a dask task more than ten. Calls pass through the scheduler if this process
    cannot connect to all workers, or if the client was made with ``direct_to_workers=False``.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of str
        Dask's addresses, in the order of the ranks.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.
    operand : RankGroup, optional
        The group of the matrix from which this matrix is computed, on the same workers. Both share their actors.

    Attributes
    ----------
    servers : RankServers
    key : str
        The key of the matrix on the workers.
    closed_by : str
        The end of an error message. It states what has closed the group, and what the user can do.
    remedy : str
        The end of an error message: how to make the matrix again after a worker was lost (`WorkerLostError`).
    """

    def __init__(
        self, client: distributed.Client, workers: Sequence[str], timeout: float, operand: RankGroup | None = None
    ) -> None:
        self.client, self.workers, self.timeout = client, tuple(workers), timeout
        self.key, self.remedy = f"gsparse-{uuid.uuid4().hex}", ""
        self.is_open, self.closed_by = True, "closed: distribute it again"
        self.servers: RankServers = RankServers(client, self.workers) if operand is None else operand.servers
        self.servers.matrices.add(self.key)
        self._release = weakref.finalize(self, self.servers.release, self.key)

    @property
    def ranks(self) -> range:
        return range(len(self.workers))

    def check_open(self) -> None:
        if not self.is_open:
            raise CommunicationError(f"this matrix has been {self.closed_by}")
        check_running(self.client)

    # ------------------------------------------------------------------ life

    def open(
        self, input_of: Callable[[int], Any], device: str | None, *arguments: Any
    ) -> list[group_tasks.RankMetadata]:
        """Connect the ranks, and let each rank make its part of the matrix. Return the metadata of the parts.

        `input_of(rank)` returns the input of a rank, or a future for the input on the rank's worker. `device` is the
        device of each rank. `arguments` are further arguments of `open_rank`, the same for all ranks.
        """
        inputs: list[Any] = []
        with self.exclusive():
            try:
                if not self.servers.references:
                    self._start_servers(device)
                inputs += [input_of(rank) for rank in self.ranks]
                self.wait_for_inputs(inputs, "the matrix")
                self.reconnect()
                of_ranks = [(argument(x), *arguments) for x in inputs]
                rank_metadata = self.call_together(group_tasks.open_rank, of_ranks)
            finally:  # Dask's exceptions keep the frames of the callers alive, and with them local variables.
                release([x for x in inputs if isinstance(x, distributed.Future)])
        close_client_at_exit(self)
        return rank_metadata

    def _start_servers(self, device: str | None) -> None:
        """Create each rank's actor on its worker."""
        for number in self.ranks:
            key = rank_key(self.key, number)
            arguments = key, number, self.workers, self.timeout, device
            self.servers.references.append(self.submit(RankServer, number, *arguments, key=key, actor=True))
        references = dict(zip(self.workers, self.servers.references, strict=True))
        answers_of_workers(references, self.timeout, self.remedy)
        self.servers.find_route()

    def reconnect(self) -> None:
        """Connect the ranks, unless they are connected and no call has failed since then."""
        servers = self.servers
        if not servers.are_open:
            self.call_together(group_tasks.connect, [(self._open_ports(), servers.secret)] * len(self.workers))
            servers.are_open = True

    def _open_ports(self) -> tuple[tuple[str, int], ...]:
        """Begin a new epoch: let every rank open a port, and return the addresses."""
        self.servers.epoch += 1
        return tuple(self.call(group_tasks.open_port))

    def close(self) -> None:
        """Release the matrix. Wait for it only if no other matrix uses the actors, and their connections are closed."""
        self.is_open = False
        if self.servers.matrices == {self.key}:
            with suppress(Exception):
                self.ask_remaining(group_tasks.close)
        self._release()

    # ------------------------------------------------------------------ calls

    def call(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]] | None = None,
        *,
        ranks: Iterable[int] | None = None,
        name: str = "",
        on_poll: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Call a function on the ranks at the same time, and return the results.

        Parameters
        ----------
        function : callable
            Called on each worker, with its `Rank` and the rank's `arguments`.
        arguments : sequence of tuple, optional
            A tuple of further arguments for each rank.
        ranks : iterable of int, optional
            The ranks that are called; by default all.
        name : str, optional
            The name of the calls; by default a new one (`new_call`).
        on_poll : callable, optional
            Called repeatedly during the wait.

        Raises
        ------
        CommunicationError, WorkerLostError
            If a rank is silent, or its worker is lost. If a call fails, its own error is raised. The calls of the other
            ranks are cancelled.
        """
        self.check_open()
        name, called = name or new_call(function.__name__), self.ranks if ranks is None else ranks
        calls = Calls({r: self._begin(r, name, function, arguments[r] if arguments else ()) for r in called})
        try:
            self._watch(calls, on_poll)
        except BaseException:
            if has_scheduler(self.client):
                for rank in calls.unfinished:
                    self.servers.request(rank, "cancel", name)
            raise
        return [calls.results[rank] for rank in called]

    def call_together(self, *args: Any, **options: Any) -> list[Any]:
        """Call a function in which the ranks wait for each other. If a call fails, the ranks have to reconnect."""
        try:
            return self.call(*args, **options)
        except BaseException:
            self.servers.are_open = False
            raise

    def ask_remaining(self, function: Callable[..., Any], *args: Any, seconds: float | None = None) -> dict[int, Any]:
        """Call a function on the remaining workers. Return a dict from rank to result, without calls that fail or last.

        The calls have `seconds` seconds, by default the group's timeout.
        """
        name, left = new_call(function.__name__), self.remaining_workers()
        calls = Calls({r: self._begin(r, name, function, args) for r in self.ranks if self.workers[r] in left})
        end = time.monotonic() + (self.timeout if seconds is None else seconds)
        while calls.is_running and time.monotonic() < end:
            calls.wait(_WAIT_INTERVAL)
            calls.cut_off(self.servers.dropped())
        return calls.results

    def _begin(self, rank: int, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        arguments = packed((function, args, is_strict()))
        return self.servers.request(rank, "call", name, rank_key(self.key, rank), *arguments)

    # ------------------------------------------------------------------ tasks

    def on_own_workers(self, parts: list[distributed.Future], name: str) -> list[distributed.Future]:
        """Return futures for the parts, each on its rank's worker. Dask moves parts that are on other workers."""
        owners = self.client.who_has(self.wait_for_inputs(parts, name))
        moved = [
            part if self.workers[rank] in owners[part.key] else self.submit(entry_tasks.moved_part, rank, part)
            for rank, part in enumerate(parts)
        ]
        return self.wait_for_inputs(moved, name)

    def submit(self, function: Callable[..., Any], rank: int, *args: Any, **options: Any) -> distributed.Future:
        """Submit a task of dask that only the worker of this rank may run."""
        options = {"key": f"gsparse-{function.__name__}-{uuid.uuid4().hex}", **options}
        where = {"workers": [self.workers[rank]], "allow_other_workers": False}
        return self.client.submit(function, *args, pure=False, retries=0, **where, **options)

    def wait_for_inputs(self, inputs: list[Any], name: str) -> list[Any]:
        """Wait until the futures among the inputs of calls are computed, and return the inputs.

        Error messages use `name` for the object of which the inputs are parts, such as "the matrix".

        Raises
        ------
        CommunicationError, WorkerLostError
            If a worker of the group is silent or lost, or a part is lost that dask cannot compute again.
        Exception
            The error of an input whose task has failed.
        """
        futures = [value for value in inputs if isinstance(value, distributed.Future)]
        next_check, delay, asked = time.monotonic(), _CHECK_INTERVAL, _Asked()
        while not all(future.status == "finished" for future in futures):
            wait_for(futures, _CHECK_INTERVAL)
            lost = self.error_of_lost_worker()
            if lost is not None:
                raise lost
            self._check_signs_of_life(asked, self.ranks)
            raise_errors(futures, name)
            if time.monotonic() >= next_check:  # The intervals grow, because the scheduler logs each check.
                check_computable(self.client, futures, name)
                next_check, delay = time.monotonic() + delay, 2 * delay
        return inputs

    @contextmanager
    def exclusive(self, *, may_be_nested: bool = False) -> Iterator[None]:
        """Reserve the workers for this group while the block runs (`Reservation.held`).

        The wait for each worker, on which another solve may run, takes at most ten times `timeout`.
        """
        self.check_open()
        held = self.servers.reservation.held(10 * self.timeout, may_be_nested)
        with self.servers.lock, self.client.as_current(), held:
            yield

    def futures_of_vector(self, names: Sequence[str]) -> list[distributed.Future]:
        """Return a future for each rank's part of a vector, without waiting. `names` are the results of `Rank.keep`."""
        futures = [self.submit(take_vector, rank, name) for rank, name in enumerate(names)]
        for future in futures:
            # If nothing refers to a future any more, dask drops its task, even if it has not run yet; then the vector
            # would stay on the worker. A callback keeps the future until the task has run.
            future.add_done_callback(_keep_until_done)
        return futures

    def _watch(self, calls: Calls, on_poll: Callable[[], None] | None = None) -> None:
        """Wait until all calls have finished; raise an error if one fails, or a worker is silent or lost.

        If a call fails or a worker is lost, the other ranks' calls first have `_GRACE_PERIOD` seconds to end. If a rank
        is silent, the error is raised immediately.
        """
        next_check, failed_at, lost, asked = time.monotonic() + _CHECK_INTERVAL, None, None, _Asked()
        while True:
            calls.wait(_POLL_INTERVAL if on_poll else _WAIT_INTERVAL)
            if on_poll is not None:
                on_poll()
            if not calls.unfinished and not calls.errors:
                return
            now = time.monotonic()
            if calls.errors:
                failed_at = failed_at or now
                if not calls.unfinished or now - failed_at > _GRACE_PERIOD:
                    raise self._first_error(calls)
            if now >= next_check and lost is None:
                next_check = now + _CHECK_INTERVAL
                lost = self.error_of_lost_worker(calls.unfinished)
                self._check_signs_of_life(asked, calls.unfinished)
                calls.cut_off(self.servers.dropped())
            if lost is not None:
                failed_at = failed_at or now
                if calls.unfinished <= {lost.rank} or now - failed_at > _GRACE_PERIOD:
                    raise lost

    def _check_signs_of_life(self, asked: _Asked, ranks: Iterable[int]) -> None:
        """Raise an error if a rank has been silent for too long. Send the next request to each rank that has answered.

        `asked` maps each rank to its latest request and the time at which the request was sent.
        """
        now = time.monotonic()
        for rank in ranks:
            if rank not in asked or asked[rank][0].done():
                asked[rank] = self.servers.request(rank, "sign_of_life"), now
            elif now - asked[rank][1] > self.timeout:
                raise silent_error(self.workers[rank], self.timeout)

    # ------------------------------------------------------------------ losses and errors

    def error_of_lost_worker(self, ranks: Iterable[int] | None = None) -> WorkerLostError | None:
        """Return the error for the first of these ranks (default: all) whose worker is lost, or None."""
        known = known_workers(self.client)
        lost = (rank for rank in (self.ranks if ranks is None else ranks) if self.workers[rank] not in known)
        return next((WorkerLostError(rank, self.workers[rank], self.remedy) for rank in lost), None)

    def remaining_workers(self) -> list[str]:
        """Return the workers of this matrix that the scheduler still knows."""
        known = known_workers(self.client)
        return [address for address in self.workers if address in known]

    def _first_error(self, calls: Calls) -> Any:
        """Return the error that made the calls fail, rather than errors of other ranks that followed from it."""
        for error in calls.errors:
            if not isinstance(error, CommunicationError):
                return error
        for error in calls.errors:
            # A rank whose call has failed also closes its connections, so that other ranks believe it lost. The rank
            # is really lost only if its call has not ended.
            if isinstance(error, RankLostError) and error.rank in calls.unfinished:
                return WorkerLostError(error.rank, self.workers[error.rank], self.remedy)
        errors = sorted(calls.errors, key=lambda error: isinstance(error, RankLostError))
        return self.error_of_lost_worker() or errors[0]


def argument(value: Any) -> Any:
    """Return an argument of a call. A future becomes a `DaskResult`, which the worker replaces by its value."""
    return group_tasks.DaskResult(value.key) if isinstance(value, distributed.Future) else value


def _keep_until_done(future: distributed.Future) -> None:
    """Do nothing. A future stays alive until it is done if this function is its callback."""
