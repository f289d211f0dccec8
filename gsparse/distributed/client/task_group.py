"""Tasks that all workers of a matrix run together, one for each rank, and the errors and losses that may end them."""

from __future__ import annotations

import math
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import distributed

from gsparse.device.locks import make_lock
from gsparse.distributed.client.calls import SignsOfLife, naming_lost_workers, run_on_workers, wait_while_answering
from gsparse.distributed.client.reservation import Reservation
from gsparse.distributed.client.scheduler import check_running, close_client_at_exit, has_scheduler, known_workers
from gsparse.distributed.client.task_arguments import (
    check_computable,
    large_arrays_on_workers,
    raise_errors,
    releasing_futures,
    wait_for,
)
from gsparse.distributed.client.task_state import CUT_OFF, FAILED, FINISHED, PENDING, CallTasks, DaskTasks, first_error
from gsparse.distributed.ranks.rank_calls import RankCalls
from gsparse.distributed.worker import group_tasks, registry, solve_vectors
from gsparse.distributed.worker.calls import pickled_call
from gsparse.errors import CommunicationError, WorkerLostError

# Seconds between two checks that all workers of a task group are alive.
_CHECK_INTERVAL = 0.5
# Seconds for which the tasks of the other ranks may continue after one rank has failed.
_GRACE_PERIOD = 3.0


@dataclass
class _Connections:
    """The state of the connections between ranks, which a matrix shares with the results computed from it.

    `epoch` is the number of times that the ranks have begun to connect.
    """

    epoch: int = 0
    are_open: bool = False


class TaskGroup:
    """The workers of one matrix, one for each rank, and the tasks that they run together.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of str
        Dask's addresses, in the order of the ranks.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.
    operand : TaskGroup, optional
        The group of a matrix from which this one is computed, on the same workers. The ranks use its connections.

    Attributes
    ----------
    key : str
        Identifies the matrix on the workers.
    secret : bytes
        The secret by which the ranks recognize each other.
    closed_by : str
        What has closed the group, and what the user can do then, as a part of an error message.
    remedy : str
        What makes the matrix again after a worker was lost, as for `WorkerLostError`.
    """

    def __init__(
        self, client: distributed.Client, workers: Sequence[str], timeout: float, operand: TaskGroup | None = None
    ) -> None:
        self.client, self.workers, self.timeout = client, tuple(workers), timeout
        self.key, self.secret = f"gsparse-{uuid.uuid4().hex}", secrets.token_bytes(32)
        self.is_open, self.closed_by = True, "closed: distribute it again"
        self._operand, self.remedy = operand, ""
        self._connections: _Connections = _Connections() if operand is None else operand._connections
        self._lock = make_lock()  # lets one thread at a time run tasks on the group
        self._reservation = Reservation(client, workers)
        self._references: list[distributed.Future] = []

    @property
    def ranks(self) -> range:
        return range(len(self.workers))

    @property
    def settings(self) -> group_tasks.GroupSettings:
        return group_tasks.GroupSettings(self.key, self._connections.epoch, self.workers, self.timeout)

    def check_open(self) -> None:
        if not self.is_open:
            raise CommunicationError(f"this matrix has been {self.closed_by}")
        check_running(self.client)

    # ------------------------------------------------------------------ life

    def open(self, input_of: Callable[[int], Any], *arguments: Any) -> list[group_tasks.RankMetadata]:
        """Connect the ranks, and make the matrix of each rank from its input and from the arguments common to all."""
        with self.exclusive(), releasing_futures() as inputs:
            # If a worker is gone, `on_error="ignore"` leaves it to the next tasks to raise an error with its rank.
            workers = self.remaining_workers()
            run_on_workers(
                self.client, workers, self.timeout, registry.store_secret, self.key, self.secret, on_error="ignore"
            )
            addresses: tuple[tuple[str, int], ...] = ()
            if self._operand is None:
                addresses = self._open_ports()
            else:
                self._operand.reconnect()
            with naming_lost_workers(self.client, self.workers, self.remedy):
                for rank in self.ranks:
                    inputs.append(input_of(rank))
                self.wait_for_inputs(inputs, "the matrix")
            tasks = self._connect(group_tasks.open_rank, "open", addresses, [(x, *arguments) for x in inputs])
            rank_metadata = self.wait(tasks, keep=True)
            self._references = tasks  # dask keeps the results of these tasks, and with them the ranks' matrices
            self._connections.are_open, self._operand = True, None
        close_client_at_exit(self)
        return rank_metadata

    def reconnect(self) -> None:
        """Connect the ranks again if tasks have failed since they were connected."""
        if not self._connections.are_open:
            addresses = self._open_ports()
            self.wait(self._connect(group_tasks.reopen_rank, "reopen", addresses, [()] * len(self.workers)))
            self._connections.are_open = True

    def _open_ports(self) -> tuple[tuple[str, int], ...]:
        """Begin a new epoch: make every rank open a port, and return the addresses."""
        self._connections.epoch += 1
        tasks = [self.submit(group_tasks.open_port, "port", r, self.settings, r) for r in self.ranks]
        return tuple(self.wait(tasks, time_limit=self.timeout))

    def _connect(
        self,
        function: Callable[..., Any],
        name: str,
        addresses: tuple[tuple[str, int], ...],
        arguments: Sequence[tuple[Any, ...]],
    ) -> list[distributed.Future]:
        """Submit a task for each rank that connects it to the others; `arguments` are further arguments, by rank."""
        settings = self.settings
        return [self.submit(function, name, r, settings, r, addresses, *arguments[r]) for r in self.ranks]

    def close(self) -> None:
        """Release the matrix on the remaining workers only: dask would wait half a minute for a lost one."""
        self.is_open = False
        with suppress(Exception):
            workers = self.remaining_workers()
            run_on_workers(self.client, workers, self.timeout, registry.release_matrix, self.key, on_error="ignore")
        self.release_futures(self._references)
        self._reservation.close()

    # ------------------------------------------------------------------ tasks

    def submit(self, function: Callable[..., Any], name: str, rank: int, *args: Any) -> distributed.Future:
        """Submit a task that only the worker of this rank may run."""
        return self.client.submit(
            function,
            *args,
            key=f"gsparse-{name}-rank{rank}-{uuid.uuid4().hex}",
            workers=[self.workers[rank]],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def read(self, function: Callable[..., Any], arguments: Sequence[Any] | None = None) -> list[Any]:
        """Run a task on each rank that reads the rank's rows and waits for no other rank, and return the results.

        Parameters
        ----------
        function : callable
            Called as ``function(settings, rank, argument)``.
        arguments : sequence, optional
            An argument for each rank; by default None.
        """
        values = [None] * len(self.workers) if arguments is None else arguments
        with self.exclusive(), self.on_workers(values) as values:
            settings = self.settings
            return self.wait([self.submit(function, "read", r, settings, r, values[r]) for r in self.ranks])

    def on_workers(self, values: Sequence[Any]) -> AbstractContextManager[list[Any]]:
        """Return a context manager that keeps large arrays on the workers; `values` has one argument for each rank."""
        return large_arrays_on_workers(self.client, self.workers, values, self.timeout)

    def wait_for_inputs(self, inputs: list[Any], name: str) -> list[Any]:
        """Wait until the futures among the inputs of tasks are computed, and return the inputs.

        A task that has started blocks a thread of its worker until the tasks of all other ranks have started too. If an
        input still had to be computed, no thread might be left for it. Error messages use `name` for the object of
        which the inputs are parts, such as "the matrix".

        Raises
        ------
        CommunicationError, WorkerLostError
            If a worker of the group is silent or lost, or a part is lost that dask cannot compute again.
        Exception
            The error of an input whose task has failed.
        """
        futures = [value for value in inputs if isinstance(value, distributed.Future)]
        next_check, delay = time.monotonic(), _CHECK_INTERVAL
        with SignsOfLife(self.client, self.timeout, on_error="ignore") as signs:
            while not all(future.status == FINISHED for future in futures):
                wait_for(futures, _CHECK_INTERVAL)
                lost = self.error_of_lost_worker()
                if lost is not None:
                    raise lost
                signs.check(self.workers)
                raise_errors(futures, name)
                if time.monotonic() >= next_check:  # more and more rarely: the scheduler logs each check
                    check_computable(self.client, futures, name)
                    next_check, delay = time.monotonic() + delay, 2 * delay
        return inputs

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Reserve the workers for this group while the block runs (`Reservation.held`).

        It waits at most ten times `timeout` for each worker, because another solve may run there.
        """
        self.check_open()
        with self._lock, self.client.as_current(), self._reservation.held(10 * self.timeout):
            yield

    def wait(
        self,
        tasks: list[distributed.Future],
        on_poll: Callable[[], None] | None = None,
        *,
        gather: bool = True,
        keep: bool = False,
        time_limit: float = math.inf,
    ) -> list[Any]:
        """Wait for the tasks of all ranks and return the results. If one fails, cancel the others and raise the error.

        Parameters
        ----------
        tasks : list of Future
            One for each rank, in their order.
        on_poll : callable, optional
            Called repeatedly during the wait.
        gather : bool
            Whether to return the results. Otherwise they stay on the workers.
        keep : bool
            Whether the workers keep results that have been returned.
        time_limit : float
            Seconds after which a rank that has not finished counts as silent.

        Raises
        ------
        CommunicationError, WorkerLostError
            If a rank is silent, or its worker is lost. If a task fails, its own error is raised.
        """
        with self._connections_end_on_error():
            try:
                self._watch(DaskTasks(tasks), on_poll, time_limit)
                results = self.gather(tasks) if gather else []
            except BaseException:
                if has_scheduler(self.client):
                    with suppress(Exception):
                        self.client.cancel(tasks, force=True)
                raise
        if gather and not keep:
            self.release_futures(tasks)
        return results

    def call(
        self,
        rank_calls: RankCalls,
        function: Callable[..., Any],
        name: str,
        arguments: Sequence[tuple[Any, ...]],
        on_poll: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Call a function on all ranks at the same time, without dask, and return the results.

        If one fails, end the calls of the others and raise the error.

        Parameters
        ----------
        rank_calls : RankCalls
            The connections to the ranks.
        function : callable
            Called on each worker with the arguments of its rank, and with a function that returns whether the client
            still waits.
        name : str
            Names the calls for other clients that wait for the workers.
        arguments : sequence of tuple
            The arguments of each rank.
        on_poll : callable, optional
            Called repeatedly during the wait.

        Raises
        ------
        CommunicationError, WorkerLostError
            If a rank is silent, or its worker is lost. If a call fails, its own error is raised.
        """
        requests = [pickled_call(f"gsparse-{name}-rank{rank}", function, *arguments[rank]) for rank in self.ranks]
        with self._connections_end_on_error(), rank_calls.running(requests) as pending:
            tasks = CallTasks(pending, self.workers)
            self._watch(tasks, on_poll)
        return tasks.results

    @contextmanager
    def _connections_end_on_error(self) -> Iterator[None]:
        """Make the ranks connect again before their next tasks if the block raises an exception."""
        try:
            yield
        except BaseException:
            self._connections.are_open = False
            raise

    def gather(self, tasks: list[distributed.Future]) -> list[Any]:
        """Return the results of finished tasks.

        Dask would wait for ever for a result whose worker is stopped, or lost before the result has been read: it makes
        the task pending again, and no other worker may run it.
        """
        with naming_lost_workers(self.client, self.workers, self.remedy):
            return wait_while_answering(self.client, self.workers, self.timeout, lambda: self.client.gather(tasks))

    def futures_of_result(self, number: int) -> list[distributed.Future]:
        """Return, without waiting, a future for each part of vector `number`, which a solve has left on the workers."""
        references = enumerate(self._references)
        futures = [self.submit(solve_vectors.take_result, "x", r, opened, number) for r, opened in references]
        for future in futures:
            # Dask drops a task that has not run if nobody refers to its future any more, and the vector would stay on
            # the worker. With a callback, dask keeps the future until the task has run.
            future.add_done_callback(_keep_until_done)
        return futures

    def release_futures(self, tasks: list[distributed.Future]) -> None:
        """Release futures now and empty the list. Otherwise dask would release them only at garbage collection."""
        while tasks:
            tasks.pop().release()

    def _watch(
        self, tasks: DaskTasks | CallTasks, on_poll: Callable[[], None] | None = None, time_limit: float = math.inf
    ) -> None:
        """Wait until the tasks of all ranks have finished; raise an error if one fails, or a worker is silent or lost.

        If a task fails or a worker is lost, the other ranks' tasks first have `_GRACE_PERIOD` seconds to end. If a rank
        is silent, the error is raised at once.
        """
        next_check, deadline = time.monotonic() + _CHECK_INTERVAL, time.monotonic() + time_limit
        failed_at, lost = None, None
        with SignsOfLife(self.client, self.timeout, on_error="ignore") as signs:
            while True:
                tasks.wait(0.01 if on_poll else 0.1)
                if on_poll is not None:
                    on_poll()
                states = tasks.states
                if all(state == FINISHED for state in states):
                    return
                now = time.monotonic()
                unfinished = [rank for rank in self.ranks if states[rank] in (PENDING, CUT_OFF)]
                if any(state in (FAILED, CUT_OFF) for state in states):
                    failed_at = failed_at or now
                    if not unfinished or now - failed_at > _GRACE_PERIOD:
                        raise first_error(tasks, self.workers, self.remedy, self.error_of_lost_worker)
                if now >= next_check and lost is None:
                    next_check = now + _CHECK_INTERVAL
                    lost = self.error_of_lost_worker(unfinished)
                    signs.check([self.workers[rank] for rank in unfinished])
                if now > deadline:
                    rank = unfinished[0]
                    raise CommunicationError(
                        f"rank {rank} on {self.workers[rank]} has been silent for {time_limit:g} s: see whether it has "
                        "been stopped or is busy, or pass a longer timeout"
                    )
                if lost is not None:
                    failed_at = failed_at or now
                    if set(unfinished) <= {lost.rank} or now - failed_at > _GRACE_PERIOD:
                        raise lost

    # ------------------------------------------------------------------ losses and errors

    def error_of_lost_worker(self, ranks: Iterable[int] | None = None) -> WorkerLostError | None:
        """Return the error for the first of these ranks (by default, of all) whose worker is lost; None if none is."""
        known = known_workers(self.client)
        lost = (rank for rank in (self.ranks if ranks is None else ranks) if self.workers[rank] not in known)
        return next((WorkerLostError(rank, self.workers[rank], self.remedy) for rank in lost), None)

    def remaining_workers(self) -> list[str]:
        """Return the workers of this matrix that the scheduler still knows."""
        known = known_workers(self.client)
        return [address for address in self.workers if address in known]


def _keep_until_done(future: distributed.Future) -> None:
    """Keep a future alive until it is done: as a callback, this refers to it, and does nothing else."""
