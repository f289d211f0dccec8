"""A solve as its ranks run it: what they are told, what they give back, and who watches meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.worker import registry as resident
from gsparse.distributed.worker import solution_copies as checkpoints
from gsparse.distributed.worker.channel import RankEnd
from gsparse.distributed.worker.current_worker import Heed, check_home
from gsparse.distributed.worker.group_tasks import Roster, aborting
from gsparse.distributed.worker.registry import Resident
from gsparse.errors import CommunicationError
from gsparse.linalg.registry import METHODS, find_method
from gsparse.linalg.result import SolveResult, largest

__all__ = ["Preconditioner", "Solution", "Solve", "precondition", "run_solve"]

Host = npt.NDArray[Any]

# Seconds between two reports of how a solve goes.
REPORT_EVERY = 0.2
# Kinds of messages from ranks to the client, which each begins with.
REPORT, CALL = "report", "call"


@dataclass(frozen=True)
class Preconditioner:
    """A preconditioner that each rank makes of its own diagonal block: block Jacobi over ranks.

    Attributes
    ----------
    name : str
        In `gsparse.linalg`.
    args, kwargs
        Its other arguments.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def of(self, kept: Resident) -> Any:
        """Give it for a rank's block, made once."""
        known = repr((self.name, self.args, self.kwargs))
        if known not in kept.preconditioners:
            make = find_method(self.name, "preconditioner").function
            kept.preconditioners[known] = make(kept.matrix.diagonal, *self.args, **self.kwargs)
        return kept.preconditioners[known]


@dataclass(frozen=True)
class Solve:
    """What a rank is to solve.

    Attributes
    ----------
    name : str
        In `gsparse.linalg`.
    kwargs : dict
    preconditioner : Preconditioner or None
    channel : str
        Name of the channel to the client; empty where nothing is sent.
    reports : bool
        Whether rank 0 reports residuals.
    calls : bool
        Whether the client runs a callback.
    checkpoint_every : int
        Iterations; 0 for never.
    """

    name: str
    kwargs: dict[str, Any]
    preconditioner: Preconditioner | None = None
    channel: str = ""
    reports: bool = False
    calls: bool = False
    checkpoint_every: int = 0


@dataclass(frozen=True)
class Solution:
    """What a rank has found.

    Attributes
    ----------
    vectors : list of array
        The rank's parts.
    rest : SolveResult or tuple
        What the function gives, without them.
    places : tuple of int
        Where they stand in the tuple.
    dtypes : list of dtype
    """

    vectors: list[Any]
    rest: Any
    places: tuple[int, ...]
    dtypes: list[Any]

    @classmethod
    def of(cls, name: str, found: Any) -> Solution:
        """Take apart what a function gives."""
        if isinstance(found, SolveResult):
            return cls([found.x], replace(found, x=None), (), [found.x.dtype])
        places = tuple(place for place in METHODS[name].vectors if place < len(found) and np.ndim(found[place]))
        vectors = [found[place] for place in places]
        rest = tuple(None if place in places else value for place, value in enumerate(found))
        return cls(vectors, rest, places, [v.dtype for v in vectors])

    def completed(self, vectors: list[Any]) -> Any:
        """Put whole vectors in the place of parts."""
        if isinstance(self.rest, SolveResult):
            return replace(self.rest, x=vectors[0])
        found = list(self.rest)
        for place, vector in zip(self.places, vectors, strict=True):
            found[place] = vector
        return tuple(found)

    def without_vectors(self) -> Solution:
        return replace(self, vectors=[])

    def vector(self, number: int) -> Any:
        return self.vectors[number]

    def report(self) -> dict[str, float]:
        """Give what the solve has ended at, as it is told while it runs."""
        found = self.rest
        if isinstance(found, SolveResult):
            return _report(found.iterations, found.residuals)
        itn, norms = found[2:4]  # (of lsqr and lsmr)
        return {"iteration": int(np.max(itn)), "residual": float(np.max(norms))}


def _report(iterations: int, residuals: npt.NDArray[np.float64]) -> dict[str, float]:
    return {"iteration": iterations, "residual": largest(residuals[-1:])}


def run_solve(roster: Roster, rank: int, solve: Solve, b: Any, vectors: dict[str, Any]) -> Solution:
    """Run one of the solvers, all ranks together."""
    check_home(roster.workers[rank])
    kept = resident.find(roster.key)
    if kept.epoch != roster.epoch:
        raise CommunicationError(f"rank {rank} has been connected {kept.epoch} times, not {roster.epoch}")
    kwargs = {**solve.kwargs, **vectors}
    if solve.preconditioner is not None:
        kwargs["M"] = solve.preconditioner.of(kept)
    matrix = kept.matrix
    with matrix.device.active(), aborting(kept.communicator), _channel(solve, rank) as channel:
        if solve.calls:
            kwargs["callback"] = _Calls(channel, rank)
        matrix.observer = _Observer(kept, solve, channel)
        try:
            return Solution.of(solve.name, METHODS[solve.name].function(matrix, b, **kwargs))
        finally:
            matrix.observer = None


@contextmanager
def _channel(solve: Solve, rank: int) -> Iterator[RankEnd | None]:
    """Open this rank's end of the channel to the client, where it has anything to send."""
    if not (solve.calls or (solve.reports and rank == 0)):
        yield None
        return
    with closing(RankEnd(solve.channel, rank, is_answered=solve.calls)) as end:
        yield end


def precondition(roster: Roster, rank: int, recipe: Preconditioner, x: Host, adjoint: bool) -> Host:
    """Apply a rank's preconditioner to its part of vectors, without the other ranks."""
    check_home(roster.workers[rank])
    kept = resident.find(roster.key)
    with kept.matrix.device.active():
        own = recipe.of(kept)
        found: Host = own.rmatmat(x) if adjoint else own.matmat(x)
    return found


class _Observer:
    """Sees a solve whenever its host does: reports, keeps checkpoints, ends it where nobody wants it any more."""

    def __init__(self, kept: Resident, solve: Solve, channel: RankEnd | None) -> None:
        self._kept, self._solve, self._heed = kept, solve, Heed()
        self._reports = channel if solve.reports and kept.matrix.communicator.rank == 0 else None
        self._of: Any = None
        self._next_report, self._next_checkpoint = 0.0, solve.checkpoint_every

    def __call__(self, iteration: Any) -> None:
        self._heed()
        self._of = self._of or iteration  # (solves within the solve are not what is asked for)
        if iteration is not self._of:
            return
        now, solve = time.monotonic(), self._solve
        if self._reports is not None and now >= self._next_report:
            self._next_report = now + REPORT_EVERY
            self._reports.send((REPORT, _report(iteration.iterations, iteration.residuals)))
        if solve.checkpoint_every and iteration.iterations >= self._next_checkpoint:
            self._next_checkpoint = iteration.iterations + solve.checkpoint_every
            checkpoints.keep(self._kept, iteration)


class _Calls:
    """A callback that the client runs: it gets this rank's part, and says whether to go on."""

    def __init__(self, channel: Any, rank: int) -> None:
        self._channel, self._rank, self._heed = channel, rank, Heed()

    def __call__(self, argument: Any) -> None:
        values = np.asarray(argument)
        self._channel.send((CALL, self._rank, values.dtype.str, list(values.shape), values.tobytes()))
        if not self._channel.answer(self._heed):
            raise CommunicationError("the callback has raised an exception")
