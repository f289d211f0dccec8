"""A solve on the ranks: its specification, its result, and the observer that each rank calls during the solve."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from scipy.sparse.linalg import ArpackNoConvergence

from gsparse.distributed.ranks import rank_multigrid
from gsparse.distributed.ranks.rank_rows import RankRows
from gsparse.distributed.worker.group_tasks import DaskResult, aborting
from gsparse.distributed.worker.rank import Call, Rank, find_rank, rank_key
from gsparse.errors import CoarseningWarning, CommunicationError, SmootherWarning
from gsparse.linalg.registry import METHODS, find_method
from gsparse.linalg.result import SolveResult, largest

HostArray = npt.NDArray[Any]
# The number of an iteration, the rank's own part of x, and the previous rank's part of x.
SolutionCopy = tuple[int, HostArray, HostArray]


# During a solve, each rank stores its part of x and a copy of the part of another rank, from which a solve can resume.
# Rank r sends its part to rank r + 1, and the last rank sends its part to rank 0:
#
#     rank          0        1        2
#     own part     x[0]     x[1]     x[2]
#     copy         x[2]     x[0]     x[1]
#
# If one rank is lost, the other ranks still have all parts. G. Bosilca, R. Delmas, J. Dongarra, J. Langou,
# "Algorithm-based fault tolerance applied to high performance computing", J. Parallel Distrib. Comput. 69(4), 2009,
# describe further schemes of this kind.


def store_copies(rank: Rank, solve: str, iteration: Any) -> None:
    """Store this rank's part of the current x, and the previous rank's, for the solve with this key.

    All ranks must call this together. Synchronizes.
    """
    matrix, world_size, number = rank.require_matrix(), rank.communicator.world_size, rank.communicator.rank
    x = matrix.device.download(iteration.system.in_units_of_caller(iteration.vectors["x"]))
    after, before = (number + 1) % world_size, (number - 1) % world_size
    # A rank may own no elements of x, so the number of columns cannot be derived from x.
    x_before = np.empty(int(np.diff(matrix.columns.row_bounds)[before]) * iteration.system.columns, x.dtype)
    if world_size > 1:
        rank.communicator.exchange({after: x}, {before: x_before})()
    rank.solution_copy = solve, (iteration.iterations, x, x_before)


def latest_copy(rank: Rank, solve: str) -> SolutionCopy | None:
    """Return the latest parts of x that this rank has stored for the solve with this key, or None without such parts.

    A copy of another solve is ignored, because it belongs to another right-hand side.
    """
    stored_solve, copy = rank.solution_copy or ("", None)
    return copy if stored_solve == solve else None


def assemble(copies: Mapping[int, SolutionCopy], sizes: Sequence[int]) -> list[HostArray] | None:
    """Return all parts of x at the latest iteration for which every part is available, or None.

    Parameters
    ----------
    copies : mapping of rank to solution copy
        The copies of the remaining ranks.
    sizes : sequence of int
        Number of elements of x that each rank owns.

    Returns
    -------
    list of array, shape (size,) or (size, k), or None
    """
    world_size = len(sizes)
    for iteration in sorted({copy[0] for copy in copies.values()}, reverse=True):
        same_iteration = {rank: copy for rank, copy in copies.items() if copy[0] == iteration}
        by_rank = {(rank - 1) % world_size: x_before for rank, (_, _, x_before) in same_iteration.items()}
        by_rank |= {rank: x for rank, (_, x, _) in same_iteration.items()}
        if len(by_rank) == world_size:
            columns = next((by_rank[rank].size // n for rank, n in enumerate(sizes) if n), 1)
            parts = [by_rank[rank] for rank in range(world_size)]
            return parts if columns == 1 else [part.reshape(columns, -1).T for part in parts]
    return None


# Seconds between two reports of the progress of a solve.
REPORT_INTERVAL = 0.2
# The kinds of messages from ranks to the client, which are the first element of a message.
REPORT, CALLBACK = "report", "callback"


@dataclass(frozen=True)
class PreconditionerSpec:
    """A preconditioner of a matrix over ranks.

    Preconditioners that span the ranks are made by all ranks together before a solve (`set_up`). Each rank makes any
    other preconditioner from its own diagonal block, when the preconditioner is first needed. Together, these are block
    Jacobi over the ranks.

    Attributes
    ----------
    name : str
        Name of the preconditioner in `gsparse.linalg`.
    kwargs : dict
        Its arguments. The matrix is left out, and so are arguments that have a row for each row of the matrix, such as
        `B`.
    key : str
        The key of the preconditioner on the ranks.
    """

    name: str
    kwargs: dict[str, Any]
    key: str

    @staticmethod
    def of(name: str, kwargs: dict[str, Any], rows: dict[str, Any]) -> PreconditionerSpec:
        """Return the specification of a preconditioner with these arguments.

        `rows` has the arguments that have a row for each row of the matrix, such as `B`. Only the key depends on them.
        """
        return PreconditionerSpec(name, kwargs, tokenize(name, kwargs, rows))  # NumPy's repr omits elements

    def build(self, rank: Rank) -> Any:
        """Return this rank's preconditioner. The first call makes it."""
        if self.key not in rank.preconditioners:
            rank.preconditioners[self.key] = self.make(rank, {})
        return rank.preconditioners[self.key]

    def make(self, rank: Rank, rows: dict[str, Any]) -> Any:
        return find_method(self.name, "preconditioner").function(rank.require_matrix(), **self.kwargs, **rows)


@dataclass(frozen=True)
class SolveSpec:
    """The specification of a solve, which is the same for all ranks.

    Attributes
    ----------
    name : str
        Name of the solver in `gsparse.linalg`.
    kwargs : dict
        Its keyword arguments, except vectors, preconditioner and callback.
    preconditioner : PreconditionerSpec or None
    reports_progress : bool
        Whether rank 0 reports residuals.
    has_callback : bool
        Whether the client runs a callback.
    checkpoint_every : int
        Number of iterations between two checkpoints of x; 0 for no checkpoints.
    keeps_results : bool
        Whether the vectors of the result stay on the workers, as results of dask tasks (`take_vector`). Otherwise they
        are sent to the client.
    start : str
        Name of the parameter to which b is passed; if empty, b is the second positional argument.
    key : str
        The key of the solve. An attempt to resume the solve has the same key, and ignores checkpoints of other solves.
    """

    name: str
    kwargs: dict[str, Any]
    preconditioner: PreconditionerSpec | None = None
    reports_progress: bool = False
    has_callback: bool = False
    checkpoint_every: int = 0
    keeps_results: bool = False
    start: str = ""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class RankSolution:
    """The result of a solver on one rank, with the vectors separated from the rest.

    Attributes
    ----------
    vectors : list of array, or list of str
        The rank's parts of the vectors in the result, or the names under which the rank stores the parts.
    template : tuple
        The result of the solver as a tuple, with None instead of each vector. For a `SolveResult`, the tuple has x and
        `statistics`.
    positions : tuple of int
        Positions of the vectors in the tuple.
    dtypes : list of dtype
        Dtypes of the vectors.
    outcome : SolveResult or None
        The other attributes of a `SolveResult`; None if the solver returned a tuple.
    """

    vectors: list[Any]
    template: tuple[Any, ...]
    positions: tuple[int, ...]
    dtypes: list[Any]
    outcome: SolveResult | None

    @classmethod
    def of(cls, name: str, result: Any) -> RankSolution:
        """Separate the vectors from the rest of the result of the solver `name`."""
        outcome = replace(result, x=None, statistics=()) if isinstance(result, SolveResult) else None
        values = (result.x, *result.statistics) if isinstance(result, SolveResult) else result
        positions = tuple(
            position for position in METHODS[name].vectors if position < len(values) and np.ndim(values[position])
        )
        vectors = [values[position] for position in positions]
        template = tuple(None if position in positions else value for position, value in enumerate(values))
        return cls(vectors, template, positions, [v.dtype for v in vectors], outcome)

    def with_vectors(self, vectors: list[Any]) -> Any:
        """Return the result of the solver, with these whole vectors in place of the rank's parts."""
        values = list(self.template)
        for position, vector in zip(self.positions, vectors, strict=True):
            values[position] = vector
        if self.outcome is None:
            return tuple(values)
        return replace(self.outcome, x=values[0], statistics=tuple(values[1:]))

    def kept(self, rank: Rank) -> RankSolution:
        """Store the vectors on this rank, and return the result with the vectors' names in `vectors`."""
        vectors = (x if x.flags.c_contiguous else x.copy(order="C") for x in self.vectors)
        return replace(self, vectors=[rank.keep(x) for x in vectors])

    def report(self) -> dict[str, float]:
        """Return the last iteration and its residual, in the form of a progress report."""
        assert self.outcome is not None  # eigensolvers report no progress
        return _report(self.outcome.iterations, self.outcome.residuals)


def _report(iterations: int, residuals: npt.NDArray[np.float64]) -> dict[str, float]:
    return {"iteration": iterations, "residual": largest(residuals[-1:])}


def run_solve(rank: Rank, name: str, solve: SolveSpec, vectors: dict[str, Any]) -> RankSolution:
    """Run a solver of `gsparse.linalg`. All ranks must run it at the same time.

    `name` identifies the call to the client. `vectors` has this rank's part of b and of other vectors, by the names of
    the solver's parameters.
    """
    matrix, call = rank.require_matrix(), rank.calls[name]
    kwargs = solve.kwargs | {key: DaskResult.resolved(vector) for key, vector in vectors.items()}
    b = kwargs.pop("b")
    if solve.preconditioner is not None:
        kwargs["M"] = solve.preconditioner.build(rank)
    with matrix.device.active(), aborting(rank.communicator):
        if solve.has_callback:
            kwargs["callback"] = _ClientCallback(call)
        matrix.observer = _Observer(rank, solve, call)
        try:
            solution = RankSolution.of(solve.name, _call(solve, matrix, b, kwargs))
            return solution.kept(rank) if solve.keeps_results else solution
        finally:
            matrix.observer = None


def _call(solve: SolveSpec, matrix: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """Call the solver. If an eigensolver does not converge, return the pairs that it found and its error's name.

    For `svds`, return right vectors in columns, of which the rank has some rows, and None for what is not wanted.
    """
    function = METHODS[solve.name].function
    if not solve.start:
        return function(matrix, b, **kwargs)
    is_svds = solve.name == "svds"
    try:
        result = function(matrix, **{**kwargs, solve.start: b})
    except ArpackNoConvergence as error:
        found = (error.eigenvectors, error.eigenvalues, None) if is_svds else (error.eigenvalues, error.eigenvectors)
        return *found, type(error).__name__
    if not is_svds:
        return result
    u, s, vh = result if isinstance(result, tuple) else (None, result, None)
    return u, s, None if vh is None else vh.T


@dataclass(frozen=True)
class PreconditionerSummary:
    """A description of a preconditioner that ranks have made together, for the client.

    Attributes
    ----------
    text, table : str
        Its `repr` and its `str` on rank 0.
    warnings : tuple of (str, type)
        The messages and categories of rank 0's warnings.
    """

    text: str
    table: str
    warnings: tuple[tuple[str, type[Warning]], ...]


@contextmanager
def _recorded_warnings() -> Iterator[list[tuple[str, type[Warning]]]]:
    """Yield a list to which the end of the block adds multigrid's warnings. Issue all other warnings after the block.

    A worker would write the warnings of multigrid to its log, where users do not see them.
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


def set_up(rank: Rank, spec: PreconditionerSpec, rows: dict[str, Any]) -> PreconditionerSummary:
    """Make a preconditioner together with the other ranks, and store it. All ranks must run this at the same time.

    Some arguments, such as `B`, have a row for each row of the matrix. `rows` has this rank's rows of these arguments.
    """
    return _made_together(rank, spec, lambda: spec.make(rank, rows))


def update(rank: Rank, spec: PreconditionerSpec, source: str) -> PreconditionerSummary:
    """Compute a preconditioner again for the matrix of this rank. All ranks must run this at the same time.

    Parameters
    ----------
    source : str
        The key of the matrix to which the preconditioner has belonged until now.
    """
    before = find_rank(rank_key(source, rank.number)).preconditioners
    return _made_together(rank, spec, lambda: before.pop(spec.key).update(rank.require_matrix()))


def is_hermitian(rank: Rank) -> bool:
    """Return whether a matrix is Hermitian, up to rounding. All ranks must run this at the same time."""
    matrix = rank.require_matrix()
    with matrix.device.active(), aborting(rank.communicator):
        return rank_multigrid.is_hermitian(matrix, RankRows.of(matrix, np.result_type(matrix.dtype, np.float32)))


def _made_together(rank: Rank, spec: PreconditionerSpec, make: Callable[[], Any]) -> PreconditionerSummary:
    """Make a preconditioner together with the other ranks, store it, and return its description."""
    with rank.require_matrix().device.active(), aborting(rank.communicator), _recorded_warnings() as issued:
        made = make()
    rank.preconditioners[spec.key] = made
    return PreconditionerSummary(repr(made), str(made), tuple(issued))


def precondition(rank: Rank, spec: PreconditionerSpec, x: HostArray, adjoint: bool) -> Any:
    """Apply a preconditioner to a rank's part of vectors. All ranks must run this at the same time if it spans them."""
    together = aborting(rank.communicator) if METHODS[spec.name].spans_ranks else nullcontext()
    with rank.require_matrix().device.active(), together:
        preconditioner = spec.build(rank)
        return preconditioner.rmatmat(x) if adjoint else preconditioner.matmat(x)


class _Observer:
    """The observer of a rank's matrix during a solve (`RankMatrix.observer`).

    When the host has read the scalars of the solve, the observer may report them, or store a checkpoint of x. The
    observer ends the solve if the client no longer waits for the result.
    """

    def __init__(self, rank: Rank, solve: SolveSpec, call: Call) -> None:
        self._rank, self._solve, self._call = rank, solve, call
        self._reports = solve.reports_progress and rank.number == 0
        self._outer_solve: Any = None
        self._next_report, self._next_checkpoint = 0.0, solve.checkpoint_every

    def __call__(self, iteration: Any) -> None:
        self._call.check()
        self._outer_solve = self._outer_solve or iteration  # the first solve, because a solver may run inner solves
        if iteration is not self._outer_solve:
            return
        now, solve = time.monotonic(), self._solve
        if self._reports and now >= self._next_report:
            self._next_report = now + REPORT_INTERVAL
            self._call.send(REPORT, _report(iteration.iterations, iteration.residuals))
        if solve.checkpoint_every and iteration.iterations >= self._next_checkpoint:
            self._next_checkpoint = iteration.iterations + solve.checkpoint_every
            store_copies(self._rank, solve.key, iteration)


class _ClientCallback:
    """A callback that sends this rank's part of x to the client, which runs the user's callback and answers.

    The solve ends with an error if the user's callback raised one.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, argument: Any) -> None:
        self._call.send(CALLBACK, np.asarray(argument))
        if not self._call.answer():
            raise CommunicationError("the callback has raised an exception")
