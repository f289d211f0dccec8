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
from gsparse.distributed.worker import solve_tasks, solve_vectors
from gsparse.linalg.result import bars

HostArray = npt.NDArray[Any]
Report = dict[str, float]


def run(
    task_group: TaskGroup,
    layout: VectorLayout,
    solve: solve_tasks.SolveSpec,
    b: Any,
    vectors: dict[str, Any],
    products: WorkerProducts,
    callback: Callable[[Any], Any] | None = None,
    preconditioner: DistributedPreconditioner | None = None,
) -> Any:
    """Run a solver on all ranks, and return its result, in NumPy arrays, or in dask arrays if b is one.

    The ranks are called over the connections of products, or by tasks of dask if this process cannot reach the ranks.

    Parameters
    ----------
    task_group : TaskGroup
    layout : VectorLayout
    solve : SolveSpec
    b : array, optional
        The vector with one entry for each row, in a NumPy or a dask array.
    vectors : dict
        Other arguments that are vectors with one entry for each column, by name. A value may be None.
    products : WorkerProducts
        Has the connections to the ranks.
    callback : callable, optional
        Called in this process with the whole vector, or with the number, that the solver passes to its callback.
    preconditioner : DistributedPreconditioner, optional
    """
    parts = {"b": [None] * len(task_group.ranks) if b is None else _parts(task_group, layout, b, layout.rows, "b")}
    parts |= {name: _parts(task_group, layout, x, layout.columns, name) for name, x in vectors.items() if x is not None}
    if solve.reports_progress or solve.has_callback:
        # Each run has a channel of its own: the ranks of a run that has failed may still send messages.
        solve = replace(solve, channel=f"{task_group.key}-{uuid.uuid4().hex}")
    with task_group.exclusive(), _message_handler(task_group, layout, solve, callback) as handler:
        task_group.reconnect()
        if preconditioner is not None:
            solve = replace(solve, preconditioner=preconditioner.specification())
        if products.is_reachable():
            solution, parts_of_all = _run_calls(task_group, products, solve, parts, handler, is_dask(b))
        else:
            solution, parts_of_all = _run_tasks(task_group, solve, parts, handler, is_dask(b))
        if handler is not None and solve.reports_progress:  # the last report was sent before the end of the solve
            handler.show(solution.report())
    if not is_dask(b):
        return solution.with_vectors([layout.join(parts) for parts in parts_of_all])
    width = b.shape[1:]
    return solution.with_vectors(
        [
            layout.dask_array(parts, layout.columns, width, dtype)
            for parts, dtype in zip(parts_of_all, solution.dtypes, strict=True)
        ]
    )


def _run_calls(
    task_group: TaskGroup,
    products: WorkerProducts,
    solve: solve_tasks.SolveSpec,
    vectors: dict[str, list[Any]],
    handler: _MessageHandler | None,
    keeps_results: bool,
) -> tuple[solve_tasks.RankSolution, list[list[Any]]]:
    """Run a solver over connections. Return the result of rank 0, and the parts of each vector: one, or futures."""
    numbers = products.numbers_of_vectors()
    vectors = {
        name: _on_own_workers(task_group, products, parts, name) if isinstance(parts[0], distributed.Future) else parts
        for name, parts in vectors.items()
    }
    sent, settings = _sent(products, numbers, vectors), task_group.settings
    solve = replace(solve, results=numbers.first_result, keeps_results=keeps_results)
    arguments = [
        (settings, rank, solve, {name: parts[rank] for name, parts in sent.items()}) for rank in task_group.ranks
    ]
    solution: solve_tasks.RankSolution = products.call(solve_tasks.run_solve, solve.name, arguments, handler)[0]
    if not keeps_results:
        return solution, [[products.take(vector.number)] for vector in solution.vectors]
    return solution, [task_group.futures_of_result(vector.number) for vector in solution.vectors]


def _sent(products: WorkerProducts, numbers: StoredVectors, vectors: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Store the parts of NumPy vectors on the ranks, and return references to the parts of all vectors, for calls."""
    sent: dict[str, list[Any]] = {}
    for position, (name, parts) in enumerate(vectors.items()):
        if isinstance(parts[0], np.ndarray):
            number = numbers.first_argument + position
            products.store(number, numbers.first_argument, parts)
            sent[name] = [solve_vectors.StoredVector(number)] * len(parts)
        else:
            sent[name] = [None if part is None else solve_vectors.DaskVector(part.key) for part in parts]
    return sent


def _on_own_workers(
    task_group: TaskGroup, products: WorkerProducts, parts: list[distributed.Future], name: str
) -> list[distributed.Future]:
    """Return futures of the parts on the workers of their ranks; dask moves the parts that are on other workers."""
    is_there = products.call(solve_vectors.holds_vector, "part", [(part.key,) for part in parts])
    moved = [
        part if there else task_group.submit(solve_vectors.moved_vector, "part", rank, part)
        for rank, (part, there) in enumerate(zip(parts, is_there, strict=True))
    ]
    return task_group.wait_for_inputs(moved, name)


def _run_tasks(
    task_group: TaskGroup,
    solve: solve_tasks.SolveSpec,
    vectors: dict[str, list[Any]],
    handler: _MessageHandler | None,
    keeps_results: bool,
) -> tuple[solve_tasks.RankSolution, list[list[Any]]]:
    """Run a solver as tasks of dask. Return the result of rank 0, and the parts of each vector: arrays, or futures."""
    settings = task_group.settings
    arguments = [{name: parts[rank] for name, parts in vectors.items()} for rank in task_group.ranks]
    with task_group.on_workers(arguments) as sent:
        tasks = [
            task_group.submit(solve_tasks.run_solve, solve.name, rank, settings, rank, solve, sent[rank])
            for rank in task_group.ranks
        ]
        if not keeps_results:
            solutions = task_group.wait(tasks, handler)
            return solutions[0], [list(parts) for parts in zip(*(s.vectors for s in solutions), strict=True)]
        task_group.wait(tasks, handler, gather=False)
    solution: solve_tasks.RankSolution = task_group.client.submit(
        solve_tasks.RankSolution.without_vectors, tasks[0], pure=False
    ).result()
    return solution, [
        [task_group.submit(solve_tasks.RankSolution.vector, "x", rank, task, number) for rank, task in enumerate(tasks)]
        for number in range(len(solution.dtypes))
    ]


def _parts(task_group: TaskGroup, layout: VectorLayout, x: Any, partition: RowPartition, name: str) -> list[Any]:
    """Return the ranks' parts of a vector: arrays, or futures for the chunks of a dask array."""
    x = x if is_dask(x) else np.asarray(x)
    layout.check(x, partition, name)
    if not is_dask(x):
        return list(layout.split(x, partition))
    chunks, client = layout.chunks(x, partition), task_group.client
    if all(chunk.key in client.futures for chunk in chunks):  # they are computed, or are being computed
        futures = [distributed.Future(chunk.key, client) for chunk in chunks]
    else:
        futures = client.compute(chunks)
    return task_group.wait_for_inputs(futures, name)


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
