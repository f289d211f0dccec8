"""Running the solvers and eigensolvers of `gsparse.linalg` on the workers of a matrix, from the user's process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt

from gsparse.device.select import device_of
from gsparse.distributed.client.calls import new_call
from gsparse.distributed.client.preconditioners import DistributedPreconditioner
from gsparse.distributed.client.products import VectorLayout, is_dask
from gsparse.distributed.client.rank_group import RankGroup, argument
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.worker import solve_tasks
from gsparse.distributed.worker.solve_tasks import SolveSpec
from gsparse.linalg.eigen import problem
from gsparse.linalg.eigen.lobpcg import default_tolerance, is_small, unconverged
from gsparse.linalg.registry import METHODS
from gsparse.linalg.result import bars

HostArray = npt.NDArray[Any]
Report = dict[str, float]


def run(
    rank_group: RankGroup,
    layout: VectorLayout,
    solve: solve_tasks.SolveSpec,
    b: Any,
    vectors: dict[str, Any],
    callback: Callable[[Any], Any] | None = None,
    preconditioner: DistributedPreconditioner | None = None,
) -> Any:
    """Run a solver on all ranks, and return its result, in NumPy arrays, or in dask arrays if b is one.

    Parameters
    ----------
    rank_group : RankGroup
    layout : VectorLayout
    solve : SolveSpec
    b : array, optional
        The vector with one entry for each row, in a NumPy or a dask array.
    vectors : dict
        Other arguments that are vectors with one entry for each column, by name. A value may be None.
    callback : callable, optional
        Called in this process with the whole vector, or with the number, that the solver passes to its callback.
    preconditioner : DistributedPreconditioner, optional
    """
    parts = {"b": [None] * len(rank_group.ranks) if b is None else _parts(rank_group, layout, b, layout.rows, "b")}
    parts |= {name: _parts(rank_group, layout, x, layout.columns, name) for name, x in vectors.items() if x is not None}
    name, solve = new_call(solve.name), replace(solve, keeps_results=is_dask(b))
    with rank_group.exclusive(), _message_handler(rank_group, layout, solve, name, callback) as handler:
        rank_group.reconnect()
        if preconditioner is not None:
            solve = replace(solve, preconditioner=preconditioner.specification())
        arguments = [(name, solve, {key: argument(of[rank]) for key, of in parts.items()}) for rank in rank_group.ranks]
        solutions = rank_group.call_together(solve_tasks.run_solve, arguments, name=name, on_poll=handler)
        solution: solve_tasks.RankSolution = solutions[0]
        if handler is not None and solve.reports_progress:  # the last report was sent before the end of the solve
            handler.show(solution.report())
    parts_of_all = [list(parts) for parts in zip(*(one.vectors for one in solutions), strict=True)]
    if not solve.keeps_results:
        return solution.with_vectors([layout.join(parts) for parts in parts_of_all])
    return solution.with_vectors(
        [
            layout.dask_array(rank_group.futures_of_vector(names), layout.columns, b.shape[1:], dtype)
            for names, dtype in zip(parts_of_all, solution.dtypes, strict=True)
        ]
    )


def _parts(rank_group: RankGroup, layout: VectorLayout, x: Any, partition: RowPartition, name: str) -> list[Any]:
    """Return the ranks' parts of a vector: arrays, or futures for the chunks of a dask array."""
    x = x if is_dask(x) else np.asarray(x)
    layout.check(x, partition, name)
    if not is_dask(x):
        return list(layout.split(x, partition))
    chunks, client = layout.chunks(x, partition), rank_group.client
    if all(chunk.key in client.futures for chunk in chunks):  # they are computed, or are being computed
        futures = [distributed.Future(chunk.key, client) for chunk in chunks]
    else:
        futures = client.compute(chunks)
    return rank_group.on_own_workers(futures, name)


@contextmanager
def _message_handler(
    rank_group: RankGroup,
    layout: VectorLayout,
    solve: solve_tasks.SolveSpec,
    name: str,
    callback: Callable[[Any], Any] | None,
) -> Iterator[_MessageHandler | None]:
    """Return what handles messages of the ranks, if they send any, with tqdm's bar that shows their reports."""
    if not (solve.reports_progress or solve.has_callback):
        yield None
        return
    with bars()(unit="it", desc=solve.name) if solve.reports_progress else nullcontext() as bar:
        yield _MessageHandler(rank_group, layout, name, callback, bar)


class _MessageHandler:
    """Handles the messages that the ranks of a solve have sent, whenever it is called.

    It shows reports in the progress bar. When all ranks have sent their parts of a vector, it runs the user's callback
    and answers whether the solve continues.
    """

    def __init__(
        self, rank_group: RankGroup, layout: VectorLayout, name: str, callback: Callable[[Any], Any] | None, bar: Any
    ) -> None:
        self._group, self._layout, self._name, self._callback, self._bar = rank_group, layout, name, callback, bar
        self._ranks = rank_group.ranks if callback is not None else rank_group.ranks[:1]
        self._requests: dict[int, Future[Any]] = {}
        self._parts: dict[int, HostArray] = {}
        self._next_poll = 0.0

    def __call__(self) -> None:
        for rank in [rank for rank, request in self._requests.items() if request.done()]:
            request = self._requests.pop(rank)
            for kind, *content in () if request.exception() else request.result():
                if kind == solve_tasks.REPORT:
                    self.show(*content)
                else:
                    self._parts[rank] = content[0]
        if len(self._parts) == len(self._group.ranks):
            self._run_callback([self._parts.pop(rank) for rank in self._ranks])
        now = time.monotonic()
        if not self._requests and now >= self._next_poll:
            # Reports are rare, and no rank waits for an answer to them.
            self._next_poll = now if self._callback is not None else now + solve_tasks.REPORT_INTERVAL
            self._requests = {rank: self._group.request(rank, "messages", self._name) for rank in self._ranks}

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
            for rank in self._ranks:
                self._group.request(rank, "answer", self._name, is_continued)


_HISTORIES = ("retLambdaHistory", "retResidualNormsHistory")


def eigenpairs_on_workers(
    name: str,
    rank_group: RankGroup,
    layout: VectorLayout,
    preconditioner_of: Callable[[Any], DistributedPreconditioner | None],
    options: dict[str, Any],
) -> Any:
    """Run an eigensolver on the workers.

    Return NotImplemented if the eigensolver or its arguments do not allow that. It then runs in this process, and only
    the products run on the workers.

    Parameters
    ----------
    name : str
    rank_group : RankGroup
    layout : VectorLayout
    preconditioner_of : callable
        Returns its argument if that is a preconditioner of this matrix, and None for anything else.
    options : dict
        All arguments but the matrix.
    """
    match METHODS[name].start:
        case "X":
            return _from_block(name, rank_group, layout, preconditioner_of, options)
        case "v0":
            return _from_vector(name, rank_group, layout, options)
    return NotImplemented


def _from_block(
    name: str,
    rank_group: RankGroup,
    layout: VectorLayout,
    preconditioner_of: Callable[[Any], DistributedPreconditioner | None],
    options: dict[str, Any],
) -> Any:
    """Run an eigensolver that begins with a block of vectors, or return NotImplemented."""
    X, B, M, Y = (options.pop(name) for name in "XBMY")
    preconditioner = preconditioner_of(M)
    if B is not None or (M is not None and preconditioner is None) or not _fits(layout, X, Y):
        return NotImplemented
    is_requested = [options[name] for name in _HISTORIES]
    options.update(dict.fromkeys(_HISTORIES, True))
    solve = SolveSpec(name, options)
    values, vectors, *histories = run(rank_group, layout, solve, X, {"Y": Y}, preconditioner=preconditioner)
    _warn(histories[1][-1], options["tol"], layout.shape[0], vectors.dtype)
    requested = [history for history, is_wanted in zip(histories, is_requested, strict=True) if is_wanted]
    return (values, vectors, *requested)


def _from_vector(name: str, rank_group: RankGroup, layout: VectorLayout, options: dict[str, Any]) -> Any:
    """Run an eigensolver that begins with one vector, or return NotImplemented."""
    n, v0 = layout.shape[0], options.pop("v0")
    is_refused = any(options.get(other) is not None for other in ("M", "Minv", "OPinv")) or options["full_output"]
    is_device_array = v0 is not None and device_of(v0) is not None
    if is_refused or is_device_array or layout.shape[1] != n or options["k"] <= 0:
        return NotImplemented
    if problem.is_small(n, options["k"], options["ncv"], options["maxiter"]):
        return NotImplemented
    wants_vectors = options["return_eigenvectors"]
    solve = SolveSpec(name, {**options, "return_eigenvectors": True}, start="v0")
    v0 = None if v0 is None else np.asarray(v0).reshape(-1)
    values, vectors, *errors = run(rank_group, layout, solve, v0, {})
    if errors:
        restarts = 10 * n if options["maxiter"] is None else options["maxiter"]
        raise problem.no_convergence(restarts, len(values), options["k"], values, vectors)
    return (values, vectors) if wants_vectors else values


def _fits(layout: VectorLayout, X: Any, Y: Any) -> bool:
    """Return whether the blocks can be split for the ranks, and are small compared with the matrix."""
    blocks = [block for block in (X, Y) if block is not None]
    if any(device_of(block) is not None or not (is_dask(block) or np.ndim(block) == 2) for block in blocks):
        return False
    widths = [np.shape(block)[1] for block in blocks]
    return layout.shape[0] == layout.shape[1] and not is_small(layout.shape[0], sum(widths[1:]), widths[0])


def _warn(norms: Any, tol: float | None, rows: int, dtype: Any) -> None:
    """Issue the warning of `lobpcg` in this process: the workers have only written it to their logs."""
    tol = default_tolerance(rows, dtype) if tol is None or tol <= 0 else tol
    if not np.max(norms) <= tol:
        warnings.warn(unconverged(norms, tol), UserWarning, stacklevel=6)
