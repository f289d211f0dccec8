"""Functions of `gsparse.linalg` run on the workers of a matrix, as its user's process sees them."""

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

from gsparse.distributed.client.channel import ClientEnd
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
    if solve.reports or solve.calls:  # (a name of its own for each run: a run that failed may still send)
        solve = replace(solve, channel=f"{gang.key}-{uuid.uuid4().hex}")
    with gang.alone(), _listening(gang, layout, solve, callback) as listener:
        gang.reconnect()
        roster = gang.roster
        tasks = [
            gang.submit(
                solve_tasks.run_solve, solve.name, rank, roster, rank, solve, parts[rank],
                {name: values[rank] for name, values in others.items()},
            )
            for rank in gang.ranks
        ]  # fmt: skip
        gang.wait(tasks, listener, gather=False)
        if listener is not None and solve.reports:  # (reports come now and then: the last of them is of before the end)
            listener.show(gang.client.submit(solve_tasks.Solution.report, tasks[0], pure=False).result())
    return tasks


def delivered(gang: Gang, layout: Layout, tasks: list[distributed.Future], b: Any) -> Any:
    """Give what has been found as b was given: in NumPy arrays, or in dask arrays that stay where they are."""
    if not is_dask(b):
        solutions = gang.client.gather(tasks)
        gang.let_go(tasks)
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
def _listening(
    gang: Gang, layout: Layout, solve: solve_tasks.Solve, callback: Callable[[Any], Any] | None
) -> Iterator[_Listener | None]:
    """Open the channel from the ranks of a solve, and the bar (tqdm) that their reports are shown in."""
    if not solve.channel:
        yield None
        return
    with bars()(unit="it", desc=solve.name) if solve.reports else nullcontext() as bar:
        end = ClientEnd(gang.client, solve.channel, gang.ranks if solve.calls else ())
        try:
            yield _Listener(end, layout, gang.ranks, callback, bar)
        finally:
            with suppress(Exception):  # (without a scheduler there are no queues)
                left = gang.left()
                end.close(lost=[rank for rank in gang.ranks if gang.workers[rank] not in left])


class _Listener:
    """Handles what the ranks of a solve send: shows reports, runs the callback, and answers whether to go on."""

    def __init__(
        self, end: ClientEnd, layout: Layout, ranks: range, callback: Callable[[Any], Any] | None, bar: Any
    ) -> None:
        self._end, self._layout, self._ranks, self._callback, self._bar = end, layout, ranks, callback, bar
        self._parts: dict[int, Host] = {}
        self._next_look = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        if self._callback is None:  # (reports are rare, and no rank waits for an answer)
            self._next_look = now + solve_tasks.REPORT_EVERY
        for kind, *content in self._end.received():
            if kind == solve_tasks.REPORT:
                self.show(*content)
            else:
                rank, dtype, shape, data = content
                self._parts[rank] = np.frombuffer(data, dtype).reshape(shape)
        if len(self._parts) == len(self._ranks):
            self._call([self._parts.pop(rank) for rank in self._ranks])

    def show(self, report: Report) -> None:
        self._bar.set_postfix_str(f"residual {report['residual']:.2e}", refresh=False)
        self._bar.update(int(report["iteration"]) - self._bar.n)

    def _call(self, parts: list[Host]) -> None:
        assert self._callback is not None
        goes_on = False
        try:
            self._callback(self._layout.joined(parts) if parts[0].ndim else float(parts[0]))
            goes_on = True
        finally:
            self._end.answer(goes_on)
