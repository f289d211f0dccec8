"""Running a solver of `gsparse.linalg` on the workers of a matrix, from the user's process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt

from gsparse.distributed.client.channel import ClientChannel
from gsparse.distributed.client.preconditioners import DistributedPreconditioner
from gsparse.distributed.client.products import StoredVectors, WorkerProducts
from gsparse.distributed.client.task_group import TaskGroup
from gsparse.distributed.client.vector_layout import VectorLayout, is_dask
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.worker import solve_tasks
from gsparse.linalg.progress import bars

__all__ = ["collect", "run"]

HostArray = npt.NDArray[Any]
Report = dict[str, float]


def run(
    task_group: TaskGroup,
    layout: VectorLayout,
    solve: solve_tasks.SolveSpec,
    b: Any,
    vectors: dict[str, Any],
    callback: Callable[[Any], Any] | None = None,
    preconditioner: DistributedPreconditioner | None = None,
    products: WorkerProducts | None = None,
) -> list[distributed.Future]:
    """Run a solver on all ranks, and return the futures of their `RankSolution`.

    NumPy arrays go straight to the ranks over the connections of products, if this process can reach the ranks.

    Parameters
    ----------
    task_group : TaskGroup
    layout : VectorLayout
    solve : SolveSpec
    b : array, optional
        The vector with one entry for each row, in a NumPy or a dask array.
    vectors : dict
        Other arguments that are vectors with one entry for each column, by name. A value may be None.
    callback : callable, optional
        Called in this process with the whole vector, or with the number, that the solver passes to its callback.
    preconditioner : DistributedPreconditioner, optional
    products : WorkerProducts, optional
        Has the connections to the ranks.
    """
    parts = [None] * len(task_group.ranks) if b is None else _parts(task_group, layout, b, layout.rows, "b")
    others = {name: _parts(task_group, layout, x, layout.columns, name) for name, x in vectors.items() if x is not None}
    if solve.reports_progress or solve.has_callback:
        # Each run has a channel of its own: the ranks of a run that has failed may still send messages.
        solve = replace(solve, channel=f"{task_group.key}-{uuid.uuid4().hex}")
    with task_group.exclusive(), _message_handler(task_group, layout, solve, callback) as handler:
        task_group.reconnect()
        if preconditioner is not None:
            solve = replace(solve, preconditioner=preconditioner.specification())
        if products is not None and not is_dask(b) and (numbers := products.numbers_of_vectors()):
            parts, others = _stored(products, numbers, parts, others)
            solve = replace(solve, results=numbers.first_result)
        settings = task_group.settings
        arguments = [
            (parts[rank], {name: of_all[rank] for name, of_all in others.items()}) for rank in task_group.ranks
        ]
        with task_group.on_workers(arguments) as sent:
            tasks = [
                task_group.submit(solve_tasks.run_solve, solve.name, rank, settings, rank, solve, *sent[rank])
                for rank in task_group.ranks
            ]
            task_group.wait(tasks, handler, gather=False)
        if handler is not None and solve.reports_progress:  # the last report was sent before the end of the solve
            handler.show(task_group.client.submit(solve_tasks.RankSolution.report, tasks[0], pure=False).result())
    return tasks


def collect(
    task_group: TaskGroup,
    layout: VectorLayout,
    tasks: list[distributed.Future],
    b: Any,
    products: WorkerProducts | None = None,
) -> Any:
    """Return the result of a solve, in NumPy arrays, or in dask arrays that stay on the workers if b is one."""
    if not is_dask(b):
        solutions = task_group.gather(tasks)
        task_group.release_futures(tasks)
        parts_of_all: list[Any] = list(zip(*(s.vectors for s in solutions), strict=True))
        if products is not None:
            parts_of_all = [
                products.take(parts[0].number) if isinstance(parts[0], solve_tasks.StoredVector) else parts
                for parts in parts_of_all
            ]
        return solutions[0].with_vectors([layout.join(parts) for parts in parts_of_all])
    solution = task_group.client.submit(solve_tasks.RankSolution.without_vectors, tasks[0], pure=False).result()
    vectors = []
    for number, dtype in enumerate(solution.dtypes):
        parts = [
            task_group.submit(solve_tasks.RankSolution.vector, "x", r, task, number) for r, task in enumerate(tasks)
        ]
        vectors.append(layout.dask_array(parts, layout.columns, b.shape[1:], dtype))
    return solution.with_vectors(vectors)


def _stored(
    products: WorkerProducts, numbers: StoredVectors, parts: list[Any], others: dict[str, list[Any]]
) -> tuple[list[Any], dict[str, list[Any]]]:
    """Send the parts of vectors to the ranks, and return what stands for them in tasks."""
    vectors = {"b": parts, **others}
    for position, (name, of_ranks) in enumerate(vectors.items()):
        if all(isinstance(part, np.ndarray) for part in of_ranks):
            number = numbers.first_argument + position
            products.store(number, numbers.first_argument, of_ranks)
            vectors[name] = [solve_tasks.StoredVector(number)] * len(of_ranks)
    return vectors.pop("b"), vectors


def _parts(task_group: TaskGroup, layout: VectorLayout, x: Any, partition: RowPartition, name: str) -> list[Any]:
    """Return the ranks' parts of a vector: arrays, or futures for the chunks of a dask array."""
    x = x if is_dask(x) else np.asarray(x)
    layout.check(x, partition, name)
    if is_dask(x):
        return task_group.wait_for_inputs(task_group.client.compute(layout.chunks(x, partition)))
    return list(layout.split(x, partition))


@contextmanager
def _message_handler(
    task_group: TaskGroup, layout: VectorLayout, solve: solve_tasks.SolveSpec, callback: Callable[[Any], Any] | None
) -> Iterator[_MessageHandler | None]:
    """Open the channel from the ranks of a solve, and tqdm's progress bar that shows their reports."""
    if not solve.channel:
        yield None
        return
    with bars()(unit="it", desc=solve.name) if solve.reports_progress else nullcontext() as bar:
        channel = ClientChannel(task_group.client, solve.channel, task_group.ranks if solve.has_callback else ())
        try:
            yield _MessageHandler(channel, layout, task_group.ranks, callback, bar)
        finally:
            with suppress(Exception):  # if the scheduler is gone, so are the queues
                remaining = task_group.remaining_workers()
                channel.close(lost=[rank for rank in task_group.ranks if task_group.workers[rank] not in remaining])


class _MessageHandler:
    """Handles the messages that the ranks of a solve have sent, whenever it is called.

    It shows reports in the progress bar. When all ranks have sent their parts of a vector, it runs the user's callback
    and answers whether the solve continues.
    """

    def __init__(
        self,
        channel: ClientChannel,
        layout: VectorLayout,
        ranks: range,
        callback: Callable[[Any], Any] | None,
        bar: Any,
    ) -> None:
        self._channel, self._layout, self._ranks, self._callback, self._bar = channel, layout, ranks, callback, bar
        self._parts: dict[int, HostArray] = {}
        self._next_poll = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        if self._callback is None:  # reports are rare, and no rank waits for an answer
            self._next_poll = now + solve_tasks.REPORT_INTERVAL
        for kind, *content in self._channel.received():
            if kind == solve_tasks.REPORT:
                self.show(*content)
            else:
                rank, dtype, shape, data = content
                self._parts[rank] = np.frombuffer(data, dtype).reshape(shape)
        if len(self._parts) == len(self._ranks):
            self._run_callback([self._parts.pop(rank) for rank in self._ranks])

    def show(self, report: Report) -> None:
        self._bar.set_postfix_str(f"residual {report['residual']:.2e}", refresh=False)
        self._bar.update(int(report["iteration"]) - self._bar.n)

    def _run_callback(self, parts: list[HostArray]) -> None:
        assert self._callback is not None
        is_continued = False
        try:
            self._callback(self._layout.join(parts) if parts[0].ndim else float(parts[0]))
            is_continued = True
        finally:
            self._channel.answer(is_continued)
