"""Functions of `gsparse.linalg` run on the workers of a matrix, as its user's process sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt

from gsparse.distributed.client.task_group import Gang
from gsparse.distributed.client.vector_layout import Layout, is_dask
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.worker import solve_tasks
from gsparse.linalg.progress import bars

__all__ = ["delivered", "run"]

Host = npt.NDArray[Any]
Report = dict[str, float]


def run(
    gang: Gang,
    layout: Layout,
    solve: solve_tasks.Solve,
    b: Any,
    vectors: dict[str, Any],
    callback: Callable[[Any], Any] | None = None,
) -> list[distributed.Future]:
    """Solve, and give what holds each rank's `Solution`; `vectors` are arguments by name, None where not given."""
    parts = _parts(gang, layout, b, layout.rows, "b")
    others = {name: _parts(gang, layout, x, layout.columns, name) for name, x in vectors.items() if x is not None}
    with gang.alone(), _watching(gang.client, solve) as show:
        gang.reconnect()
        roster = gang.roster
        tasks = [
            gang.submit(
                solve_tasks.run_solve, solve.name, rank, roster, rank, solve, parts[rank],
                {name: values[rank] for name, values in others.items()},
            )
            for rank in gang.ranks
        ]  # fmt: skip
        calls = None if callback is None else _Callbacks(gang, layout, solve.calls, callback)
        gang.wait(tasks, calls, gather=False)
        if solve.topic:  # (events come now and then: the last of them is of before the end)
            show(gang.client.submit(solve_tasks.Solution.report, tasks[0], pure=False).result())
    return tasks


def delivered(gang: Gang, layout: Layout, tasks: list[distributed.Future], b: Any) -> Any:
    """Give what has been found as b was given: in NumPy arrays, or in dask arrays that stay where they are."""
    if not is_dask(b):
        solutions = gang.client.gather(tasks)
        vectors = [layout.joined(parts) for parts in zip(*(s.vectors for s in solutions), strict=True)]
        return solutions[0].completed(vectors)
    rest = gang.client.submit(solve_tasks.Solution.without_vectors, tasks[0], pure=False).result()
    vectors = []
    for number, dtype in enumerate(rest.dtypes):
        parts = [gang.submit(solve_tasks.Solution.vector, "x", r, task, number) for r, task in enumerate(tasks)]
        vectors.append(layout.dask_array(parts, layout.columns, b.shape[1:], dtype))
    return rest.completed(vectors)


def _parts(gang: Gang, layout: Layout, x: Any, cut: RowPartition, name: str) -> list[Any]:
    """Give the ranks' parts of a vector: arrays, or futures of a dask array's chunks."""
    x = x if is_dask(x) else np.asarray(x)
    layout.check(x, cut, name)
    if is_dask(x):
        return gang.settled(gang.client.compute(layout.chunks(x, cut)))
    return list(layout.parts(x, cut))


@contextmanager
def _watching(client: distributed.Client, solve: solve_tasks.Solve) -> Iterator[Callable[[Report], None]]:
    """Show a bar (tqdm) of what rank 0 tells, where that is asked for; give what tells it more."""
    if not solve.topic:
        yield lambda report: None
        return
    lock = threading.Lock()  # (events come in a thread of dask's)
    with bars()(unit="it", desc=solve.name) as bar:

        def show(report: Report) -> None:
            with lock:
                if report["iteration"] >= bar.n:  # (an event may come late)
                    bar.set_postfix_str(f"residual {report['residual']:.2e}", refresh=False)
                    bar.update(int(report["iteration"]) - bar.n)

        client.subscribe_topic(solve.topic, lambda event: show(event[1]))
        try:
            yield show
        finally:
            with suppress(Exception):
                client.unsubscribe_topic(solve.topic)


class _Callbacks:
    """Runs the client's callback on what the ranks send, and tells them whether to go on."""

    def __init__(self, gang: Gang, layout: Layout, name: str, callback: Callable[[Any], Any]) -> None:
        self._layout, self._callback, client = layout, callback, gang.client
        self._parts = distributed.Queue(name, client=client)
        self._answers = [distributed.Queue(f"{name}-{rank}", client=client) for rank in gang.ranks]
        self._got: dict[int, Host] = {}

    def __call__(self) -> None:
        if self._parts.qsize():  # (a get that times out is an error in the scheduler's log)
            rank, kind, shape, data = self._parts.get()
            self._got[rank] = np.frombuffer(data, kind).reshape(shape)
        if len(self._got) < len(self._answers):
            return
        parts = [self._got[rank] for rank in range(len(self._answers))]
        self._got.clear()
        goes_on = False
        try:
            self._callback(self._layout.joined(parts) if parts[0].ndim else float(parts[0]))
            goes_on = True
        finally:
            for queue in self._answers:
                queue.put(goes_on)
