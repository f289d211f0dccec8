"""Large arguments of tasks, which are sent to the workers as futures, and checks of futures.

As futures, the arguments are not part of the task graph that goes to the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

import dask
import distributed
import numpy as np

from gsparse.distributed.client.calls import naming_lost_workers, wait_while_answering
from gsparse.distributed.client.scheduler import task_without_worker
from gsparse.errors import CommunicationError

# The key of dask's configuration with the size of a graph above which dask warns, 10 MB by default.
_GRAPH_LIMIT_KEY = "distributed.admin.large-graph-warning-threshold"
# An array is large if it exceeds this fraction of that size. So a task may contain dozens of small arrays before dask
# warns.
_LARGE = 0.01


def scatter(client: distributed.Client, worker: str, value: Any, timeout: float) -> distributed.Future:
    """Send a value to a worker, and return a future for it; raise the errors of `wait_while_answering`."""

    async def call() -> Any:
        # Dask would scatter the items of a list or dictionary one by one. Wrapped in a list, the value is scattered as
        # a whole.
        try:
            return await client.scatter([value], workers=[worker], hash=False)
        except KeyError as error:  # from the scheduler, which has lost the worker
            raise OSError(f"worker {worker} is gone") from error

    (future,) = wait_while_answering(client, [worker], timeout, call)
    return future


def wait_for(futures: Sequence[distributed.Future], seconds: float) -> None:
    """Wait until all futures have ended, for at most this time. Their client need not be dask's default one."""
    with suppress(TimeoutError, CancelledError), futures[0].client.as_current():
        distributed.wait(futures, timeout=seconds)


def raise_errors(futures: Iterable[distributed.Future], name: str) -> None:
    """Raise the error of a future that has failed, or has been lost with a worker; `name` says what it is a part of."""
    for future in futures:
        if future.status == "error":
            future.result()
        if future.status in ("cancelled", "lost"):
            raise CommunicationError(f"a part of {name} is lost with the worker that had it: make {name} again")


def check_computable(client: distributed.Client, futures: Iterable[distributed.Future], name: str) -> None:
    """Raise CommunicationError for a future that dask cannot compute because the only workers that may do so are gone.

    Dask would wait for ever. This is so with the result of a solve whose worker is gone. `name` says what the futures
    are parts of.
    """
    found = task_without_worker(client, (future.key for future in futures if future.status == "pending"))
    if found is not None:
        key, workers = found
        raise CommunicationError(
            f"a part of {name} is lost with the worker that had it: it can be computed only by the task {key} on "
            f"{workers}, which is gone: make {name} again"
        )


@contextmanager
def releasing_futures() -> Iterator[list[Any]]:
    """Yield an empty list for the caller to fill, and release the futures in it when the block ends.

    They have to be kept until the tasks that use them have ended: a future that is released while the scheduler still
    prepares these tasks is lost. And they are released explicitly: dask's exceptions keep the frames of its callers
    alive until the garbage collector runs, and with the frames their local variables.
    """
    values: list[Any] = []
    try:
        yield values
    finally:
        for value in values:
            if isinstance(value, distributed.Future):
                value.release()


@contextmanager
def large_arrays_on_workers(
    client: distributed.Client, workers: Sequence[str], values: Sequence[Any], timeout: float
) -> Iterator[list[Any]]:
    """Keep the large arrays among arguments of tasks on the workers while the block runs.

    An array within a task goes through the graph of the scheduler, and dask warns if a graph is large.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of str
        Dask's addresses.
    values : sequence
        An argument for each worker: an array, a dictionary or a tuple with arrays in it, or anything else.
    timeout : float
        Seconds within which each worker must answer.

    Yields
    ------
    list
        The arguments, with futures in place of large arrays.

    Raises
    ------
    CommunicationError, WorkerLostError
        If a worker is silent, or gone.
    """
    limit = _LARGE * dask.utils.parse_bytes(dask.config.get(_GRAPH_LIMIT_KEY))

    def with_futures(value: Any, worker: str) -> Any:
        if isinstance(value, dict):
            return {key: with_futures(item, worker) for key, item in value.items()}
        if isinstance(value, tuple):
            return tuple(with_futures(item, worker) for item in value)
        if not isinstance(value, np.ndarray) or value.nbytes <= limit:
            return value
        futures.append(scatter(client, worker, value, timeout))
        return futures[-1]

    with releasing_futures() as futures:
        with naming_lost_workers(client, workers):
            arguments = [with_futures(value, worker) for value, worker in zip(values, workers, strict=True)]
        yield arguments
