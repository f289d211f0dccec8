"""A solve as its ranks run it: its specification, its result, and the observer that is called during the solve."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from scipy.sparse.linalg import ArpackNoConvergence

from gsparse.distributed.worker import registry, solution_copies
from gsparse.distributed.worker.channel import RankChannel
from gsparse.distributed.worker.current_worker import CancellationCheck, check_worker
from gsparse.distributed.worker.group_tasks import GroupSettings, aborting
from gsparse.distributed.worker.registry import RankState
from gsparse.distributed.worker.solve_vectors import StoredVector, resolved
from gsparse.errors import CoarseningWarning, CommunicationError, SmootherWarning
from gsparse.linalg.registry import METHODS, find_method
from gsparse.linalg.result import SolveResult, largest

HostArray = npt.NDArray[Any]

# Seconds between two reports of the progress of a solve.
REPORT_INTERVAL = 0.2
# Kinds of messages from ranks to the client; the kind is the first element of a message.
REPORT, CALLBACK = "report", "callback"


@dataclass(frozen=True)
class PreconditionerSpec:
    """A preconditioner of a matrix over ranks.

    Each rank makes most of them from its own diagonal block, when they are first needed; together, these are block
    Jacobi over the ranks. The others, which span the ranks, are made by all ranks together beforehand (`set_up`).

    Attributes
    ----------
    name : str
        Name of the preconditioner in `gsparse.linalg`.
    kwargs : dict
        Its arguments, without the matrix, and without those that have a row for each row of the matrix.
    key : str
        Identifies the preconditioner on the ranks.
    """

    name: str
    kwargs: dict[str, Any]
    key: str

    @staticmethod
    def of(name: str, kwargs: dict[str, Any], rows: dict[str, Any]) -> PreconditionerSpec:
        """Return the specification of a preconditioner with these arguments.

        `rows` are the arguments that have a row for each row of the matrix.
        """
        return PreconditionerSpec(name, kwargs, tokenize(name, kwargs, rows))  # NumPy's repr leaves elements out

    def build(self, state: RankState) -> Any:
        """Return the preconditioner of a rank; it is made at the first call and then stored."""
        if self.key not in state.preconditioners:
            state.preconditioners[self.key] = self.make(state, {})
        return state.preconditioners[self.key]

    def make(self, state: RankState, rows: dict[str, Any]) -> Any:
        return find_method(self.name, "preconditioner").function(state.matrix, **self.kwargs, **rows)


@dataclass(frozen=True)
class SolveSpec:
    """The specification of a solve, the same for all ranks.

    Attributes
    ----------
    name : str
        Name of the solver in `gsparse.linalg`.
    kwargs : dict
        Its keyword arguments, without vectors, preconditioner and callback.
    preconditioner : PreconditionerSpec or None
    channel : str
        Name of the channel to the client; empty if the ranks send no messages.
    reports_progress : bool
        Whether rank 0 reports residuals.
    has_callback : bool
        Whether the client runs a callback.
    checkpoint_every : int
        Number of iterations between two checkpoints of x; 0 for no checkpoints.
    results : int
        The number under which the first vector of the result is stored (`StoredVector`), the others after it; 0 if the
        vectors are parts of the result of the task.
    keeps_results : bool
        Whether stored vectors of the result become results of dask (`take_result`) and stay on the workers. Otherwise
        the client takes them from the rank's `ProductServer`.
    start : str
        Name of the argument that b is passed as; if empty, b is the argument after the matrix.
    key : str
        Identifies the solve. An attempt that resumes it has the same key, and takes no checkpoint of another solve.
    """

    name: str
    kwargs: dict[str, Any]
    preconditioner: PreconditionerSpec | None = None
    channel: str = ""
    reports_progress: bool = False
    has_callback: bool = False
    checkpoint_every: int = 0
    results: int = 0
    keeps_results: bool = False
    start: str = ""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class RankSolution:
    """The result of a solver on one rank, with the rank's parts of vectors separate from the rest.

    Attributes
    ----------
    vectors : list of array
        The rank's parts of the vectors in the result, or a `StoredVector` in place of each; empty if they are left out.
    template : tuple
        The result of the solver as a tuple, with None instead of each vector; of a `SolveResult`, x and `statistics`.
    positions : tuple of int
        Positions of the vectors in the tuple.
    dtypes : list of dtype
        Dtypes of the vectors.
    outcome : SolveResult or None
        The other attributes of a `SolveResult`; None for a solver that has returned a tuple.
    """

    vectors: list[Any]
    template: tuple[Any, ...]
    positions: tuple[int, ...]
    dtypes: list[Any]
    outcome: SolveResult | None

    @classmethod
    def of(cls, name: str, result: Any) -> RankSolution:
        """Separate the vectors from the rest of the result of the solver of this name."""
        outcome = replace(result, x=None, statistics=()) if isinstance(result, SolveResult) else None
        values = (result.x, *result.statistics) if isinstance(result, SolveResult) else result
        positions = tuple(
            position for position in METHODS[name].vectors if position < len(values) and np.ndim(values[position])
        )
        vectors = [values[position] for position in positions]
        template = tuple(None if position in positions else value for position, value in enumerate(values))
        return cls(vectors, template, positions, [v.dtype for v in vectors], outcome)

    def with_vectors(self, vectors: list[Any]) -> Any:
        """Return the result of the solver with these whole vectors."""
        values = list(self.template)
        for position, vector in zip(self.positions, vectors, strict=True):
            values[position] = vector
        if self.outcome is None:
            return tuple(values)
        return replace(self.outcome, x=values[0], statistics=tuple(values[1:]))

    def stored(self, state: RankState, solve: SolveSpec) -> RankSolution:
        """Store the vectors under consecutive numbers, and return the result with a `StoredVector` for each."""
        numbers = [StoredVector(solve.results + position) for position in range(len(self.vectors))]
        vectors = state.results if solve.keeps_results else state.server.vectors
        for number, vector in zip(numbers, self.vectors, strict=True):
            vectors[number.number] = np.ascontiguousarray(vector)
        return replace(self, vectors=numbers)

    def without_vectors(self) -> RankSolution:
        return replace(self, vectors=[])

    def vector(self, number: int) -> Any:
        return self.vectors[number]

    def report(self) -> dict[str, float]:
        """Return the last iteration and its residual, in the form of the reports that are sent during the solve."""
        assert self.outcome is not None  # eigensolvers report no progress
        return _report(self.outcome.iterations, self.outcome.residuals)


def _report(iterations: int, residuals: npt.NDArray[np.float64]) -> dict[str, float]:
    return {"iteration": iterations, "residual": largest(residuals[-1:])}


def run_solve(
    settings: GroupSettings,
    rank: int,
    solve: SolveSpec,
    vectors: dict[str, Any],
    is_awaited: Callable[[], bool] | None = None,
) -> RankSolution:
    """Run a solver of `gsparse.linalg`, as a task or a call that all ranks run at the same time.

    `vectors` has this rank's part of b and of the other vectors, by name. `is_awaited` returns whether the client still
    waits for a call.
    """
    state = _connected_state(settings, rank)
    check_wanted = CancellationCheck(is_awaited)
    kwargs = solve.kwargs | {name: resolved(state, vector) for name, vector in vectors.items()}
    b = kwargs.pop("b")
    if solve.preconditioner is not None:
        kwargs["M"] = solve.preconditioner.build(state)
    matrix = state.matrix
    with matrix.device.active(), aborting(state.communicator), _channel(solve, rank) as channel:
        if solve.has_callback:
            kwargs["callback"] = _ClientCallback(channel, rank, check_wanted)
        matrix.observer = _Observer(state, solve, channel, check_wanted)
        try:
            solution = RankSolution.of(solve.name, _call(solve, matrix, b, kwargs))
            return solution.stored(state, solve) if solve.results else solution
        finally:
            matrix.observer = None


def _connected_state(settings: GroupSettings, rank: int) -> RankState:
    """Return a rank's part of the matrix, whose ranks are connected as the client expects."""
    check_worker(settings.workers[rank])
    state = registry.require_state(settings.key)
    if state.epoch != settings.epoch:
        raise CommunicationError(f"rank {rank} has been connected {state.epoch} times, not {settings.epoch}")
    return state


def _call(solve: SolveSpec, matrix: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """Call the solver. If an eigensolver fails, return what it has found and the error's name; the client raises it."""
    function = METHODS[solve.name].function
    if not solve.start:
        return function(matrix, b, **kwargs)
    try:
        return function(matrix, **{**kwargs, solve.start: b})
    except ArpackNoConvergence as error:
        return error.eigenvalues, error.eigenvectors, type(error).__name__


@contextmanager
def _channel(solve: SolveSpec, rank: int) -> Iterator[RankChannel | None]:
    """Open this rank's end of the channel to the client, if the rank sends messages."""
    if not (solve.has_callback or (solve.reports_progress and rank == 0)):
        yield None
        return
    with closing(RankChannel(solve.channel, rank, is_answered=solve.has_callback)) as channel:
        yield channel


@dataclass(frozen=True)
class PreconditionerSummary:
    """What the client shows of a preconditioner that ranks have made together.

    Attributes
    ----------
    text, table : str
        Its `repr` and its `str` on rank 0.
    warnings : tuple of (str, type)
        The messages and categories of the warnings that rank 0 has issued.
    """

    text: str
    table: str
    warnings: tuple[tuple[str, type[Warning]], ...]


@contextmanager
def _recorded_warnings() -> Iterator[list[tuple[str, type[Warning]]]]:
    """Record the warnings of multigrid in the block, and issue all others after it.

    A worker would write the warnings of multigrid to its log, where no user sees them.
    """
    issued: list[tuple[str, type[Warning]]] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            for category in (CoarseningWarning, SmootherWarning):
                warnings.simplefilter("always", category)
            yield issued
    finally:
        for one in caught:
            if issubclass(one.category, CoarseningWarning | SmootherWarning):
                issued.append((str(one.message), one.category))
            else:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)


def set_up(settings: GroupSettings, rank: int, spec: PreconditionerSpec, rows: dict[str, Any]) -> PreconditionerSummary:
    """Make a preconditioner together with the other ranks, all of which run this task at the same time, and store it.

    `rows` are this rank's rows of the arguments that have a row for each row of the matrix.
    """
    return _made_together(_connected_state(settings, rank), spec, lambda state: spec.make(state, rows))


def update(settings: GroupSettings, rank: int, spec: PreconditionerSpec, source: str) -> PreconditionerSummary:
    """Compute a preconditioner again for the values of another matrix, and store it there. All ranks run this task.

    Parameters
    ----------
    source : str
        Identifies the matrix that the preconditioner was made of.
    """
    before = registry.require_state(source).preconditioners
    state = _connected_state(settings, rank)
    return _made_together(state, spec, lambda state: before.pop(spec.key).update(state.matrix))


def _made_together(
    state: RankState, spec: PreconditionerSpec, make: Callable[[RankState], Any]
) -> PreconditionerSummary:
    """Make a preconditioner together with the other ranks, and store it."""
    with state.matrix.device.active(), aborting(state.communicator), _recorded_warnings() as issued:
        made = make(state)
    state.preconditioners[spec.key] = made
    return PreconditionerSummary(repr(made), str(made), tuple(issued))


def precondition(
    settings: GroupSettings, rank: int, spec: PreconditionerSpec, x: HostArray, adjoint: bool
) -> HostArray:
    """Apply a preconditioner to a rank's part of vectors: with the other ranks, if they have made it together."""
    if METHODS[spec.name].spans_ranks:
        state = _connected_state(settings, rank)
        with state.matrix.device.active(), aborting(state.communicator):
            return _product(spec.build(state), x, adjoint)
    check_worker(settings.workers[rank])
    state = registry.require_state(settings.key)
    with state.matrix.device.active():
        return _product(spec.build(state), x, adjoint)


def _product(preconditioner: Any, x: HostArray, adjoint: bool) -> HostArray:
    result: HostArray = preconditioner.rmatmat(x) if adjoint else preconditioner.matmat(x)
    return result


class _Observer:
    """The observer of a rank's matrix during a solve (`RankMatrix.observer`).

    Whenever the host has read the scalars of the solve, the observer may report them, may store a checkpoint of x, and
    ends the solve if it is no longer wanted.
    """

    def __init__(
        self, state: RankState, solve: SolveSpec, channel: RankChannel | None, check_wanted: CancellationCheck
    ) -> None:
        self._state, self._solve, self._check_wanted = state, solve, check_wanted
        self._report_channel = channel if solve.reports_progress and state.matrix.communicator.rank == 0 else None
        self._outer_solve: Any = None
        self._next_report, self._next_checkpoint = 0.0, solve.checkpoint_every

    def __call__(self, iteration: Any) -> None:
        self._check_wanted()
        self._outer_solve = self._outer_solve or iteration  # the first one; a solver may run other solves inside
        if iteration is not self._outer_solve:
            return
        now, solve = time.monotonic(), self._solve
        if self._report_channel is not None and now >= self._next_report:
            self._next_report = now + REPORT_INTERVAL
            self._report_channel.send((REPORT, _report(iteration.iterations, iteration.residuals)))
        if solve.checkpoint_every and iteration.iterations >= self._next_checkpoint:
            self._next_checkpoint = iteration.iterations + solve.checkpoint_every
            solution_copies.store_copies(self._state, solve.key, iteration)


class _ClientCallback:
    """A callback that runs on the client: it is sent this rank's part of x, and answers whether to continue."""

    def __init__(self, channel: Any, rank: int, check_wanted: CancellationCheck) -> None:
        self._channel, self._rank, self._check_wanted = channel, rank, check_wanted

    def __call__(self, argument: Any) -> None:
        values = np.asarray(argument)
        self._channel.send((CALLBACK, self._rank, values.dtype.str, list(values.shape), values.tobytes()))
        if not self._channel.answer(self._check_wanted):
            raise CommunicationError("the callback has raised an exception")
