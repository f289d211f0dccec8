"""The tasks of dask, or the calls over connections, that all ranks of a matrix run at the same time; their states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import distributed

from gsparse.distributed.client.task_arguments import wait_for
from gsparse.distributed.ranks.rank_calls import CallProgress
from gsparse.distributed.worker.calls import unpickled_outcome
from gsparse.errors import CommunicationError, RankLostError, WorkerLostError

# The states of the task of a rank. A call is cut off if the connection to its rank has ended: its worker may be lost.
PENDING, FINISHED, FAILED, CUT_OFF = "pending", "finished", "failed", "cut off"


class DaskTasks:
    """Tasks of dask, one for each rank.

    Parameters
    ----------
    tasks : list of Future
    """

    def __init__(self, tasks: list[distributed.Future]) -> None:
        self._tasks = tasks

    @property
    def states(self) -> list[str]:
        return [task.status if task.status in (PENDING, FINISHED) else FAILED for task in self._tasks]

    def wait(self, seconds: float) -> None:
        """Wait until all tasks have ended, for at most this time."""
        wait_for(self._tasks, seconds)

    def errors(self) -> list[Any]:
        """Return the errors of the ranks."""
        return [task.exception(timeout=1) for task in self._tasks if task.status == "error"]


class CallTasks:
    """Calls over connections, one for each rank.

    Parameters
    ----------
    calls : CallProgress
    workers : sequence of str
        Dask's addresses, in the order of the ranks.

    Attributes
    ----------
    states : list of str
    results : list
        What the calls have returned, in the order of the ranks.
    """

    def __init__(self, calls: CallProgress, workers: Sequence[str]) -> None:
        self._calls, self._workers = calls, workers
        self.states = [PENDING] * len(workers)
        self.results: list[Any] = [None] * len(workers)
        self._errors: list[BaseException] = []

    def wait(self, seconds: float) -> None:
        """Wait until some task ends, for at most this time."""
        for rank, answer in self._calls.wait(seconds):
            if isinstance(answer, bytes):
                self.results[rank], error = unpickled_outcome(answer)
                self.states[rank] = FINISHED if error is None else FAILED
            else:
                error = CommunicationError(
                    f"the connection to rank {rank} on {self._workers[rank]} has ended: {answer}"
                )
                self.states[rank] = CUT_OFF
            if error is not None:
                self._errors.append(error)

    def errors(self) -> list[BaseException]:
        """Return the errors of the ranks, in the order in which they arrived."""
        return list(self._errors)


def first_error(
    tasks: DaskTasks | CallTasks,
    workers: Sequence[str],
    remedy: str,
    error_of_lost_worker: Callable[[], WorkerLostError | None],
) -> Any:
    """Return the error that made tasks fail, and not the errors that other ranks raised in consequence.

    Parameters
    ----------
    tasks : DaskTasks or CallTasks
    workers : sequence of str
        Dask's addresses, in the order of the ranks.
    remedy : str
        As for `WorkerLostError`.
    error_of_lost_worker : callable
        Returns the error for a worker that the scheduler has lost, or None.
    """
    errors, states = tasks.errors(), tasks.states
    for error in errors:
        if not isinstance(error, CommunicationError | distributed.KilledWorker):
            return error
    errors.sort(key=lambda error: isinstance(error, RankLostError))
    for error in errors:
        # A rank whose task has failed closes its connections too. So the rank is lost only if its task has not ended.
        if isinstance(error, RankLostError) and states[error.rank] in (PENDING, CUT_OFF):
            return WorkerLostError(error.rank, workers[error.rank], remedy)
    lost = error_of_lost_worker()
    if lost is not None:
        return lost
    return errors[0] if errors else CommunicationError("the tasks were cancelled, or the cluster was restarted")
