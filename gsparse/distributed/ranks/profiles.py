"""Combine the profiles of all ranks: for each operation, the slowest rank and the mean; and the waits for ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from gsparse.distributed.ranks.communicator import Communicator
from gsparse.profiling.profile import Profile, aligned
from gsparse.profiling.rows import Row

_HEADS = ("operation", "calls", "slowest s", "rank", "mean s", "share")
# The kind of a profile's rows that stand for waits for other ranks. `RankOperator.allreduce` and `halo.recorded_wait`
# record them.
_WAIT = "wait for ranks"


@dataclass(frozen=True)
class RankRow:
    """An operation on all ranks.

    Attributes
    ----------
    kind, name : str
        As in `gsparse.profiling.rows.Row`.
    calls : int
        Largest number of calls on a rank.
    slowest_seconds : float
        Seconds of the operation on the slowest rank: the larger of the caller's seconds and the device's seconds.
    slowest_rank : int
    mean_seconds : float
        The mean of the seconds on all ranks. A rank that did not run the operation counts as 0.
    """

    kind: str
    name: str
    calls: int
    slowest_seconds: float
    slowest_rank: int
    mean_seconds: float


@dataclass(frozen=True)
class RankProfile:
    """The profile of a program that runs on several ranks.

    Attributes
    ----------
    rows : tuple of RankRow
        The operations, the slowest first. Halo exchanges and sums over ranks are separate rows of the kind "wait for
        ranks".
    seconds : tuple of float
        The wall-clock time of each rank.
    waiting_seconds : tuple of float
        Seconds that each rank spent in rows of the kind "wait for ranks".
    """

    rows: tuple[RankRow, ...]
    seconds: tuple[float, ...]
    waiting_seconds: tuple[float, ...]

    @property
    def working_seconds(self) -> tuple[float, ...]:
        """For each rank, the seconds in which it did not wait."""
        return tuple(all_ - waits for all_, waits in zip(self.seconds, self.waiting_seconds, strict=True))

    @property
    def imbalance(self) -> float:
        """The most working seconds of a rank, divided by the mean of all ranks; 1 is perfect."""
        working = self.working_seconds
        mean = sum(working) / len(working)
        return max(working) / mean if mean > 0 else 1.0

    def __str__(self) -> str:
        whole = max(self.seconds)
        cells = [
            (
                f"{row.kind}: {row.name}" if row.name else row.kind,
                f"{row.calls:,}",
                f"{row.slowest_seconds:.4f}",
                str(row.slowest_rank),
                f"{row.mean_seconds:.4f}",
                f"{100 * row.mean_seconds / whole:.1f} %" if whole > 0 else "",
            )
            for row in self.rows
        ]
        busiest = int(np.argmax(self.working_seconds))
        mean = sum(self.waiting_seconds) / len(self.waiting_seconds)
        return "\n".join([
            f"profile of {len(self.seconds)} ranks, {whole:.4f} s",
            *aligned([_HEADS, *cells]),
            f"waits for other ranks: {mean:.4f} s in the mean, {max(self.waiting_seconds):.4f} s at most",
            f"imbalance: rank {busiest} works {self.imbalance:.2f} times as long as the mean of all ranks",
        ])  # fmt: skip


def profile_of_ranks(p: Profile, communicator: Communicator) -> RankProfile:
    """Combine the profiles of all ranks. All ranks must call this together. Synchronizes.

    Parameters
    ----------
    p : Profile
        The closed profile of this rank. Operations of other threads are left out, so ranks may be threads of one
        process.
    communicator : Communicator
        A communicator of the ranks, for host arrays.

    Returns
    -------
    RankProfile
        The combined profile, the same on all ranks.

    Raises
    ------
    CommunicationError, RankLostError

    Examples
    --------
    >>> import gsparse, numpy
    >>> from gsparse.distributed import RankMatrix, RowPartition, profile_of_ranks, run_ranks
    >>> import scipy.sparse
    >>> S, rows = scipy.sparse.eye_array(8, format="csr"), RowPartition.by_rows(8, 2)
    >>> def work(communicator):
    ...     A = RankMatrix(S[rows.rows(communicator.rank)], rows, rows, communicator, device="cpu")
    ...     with gsparse.profile() as p:
    ...         gsparse.linalg.cg(A, numpy.ones(4))
    ...     return profile_of_ranks(p, communicator)
    >>> first, second = run_ranks(work, 2)
    >>> len(first.seconds), first == second
    (2, True)
    """
    own = [row for row in p.rows() if not row.is_other_thread]
    record = {"seconds": p.seconds, "rows": [(row.kind, row.name, row.calls, _seconds(row)) for row in own]}
    records: list[dict[str, Any]] = [json.loads(text) for text in _gathered(json.dumps(record), communicator)]
    waiting = tuple(sum(row[3] for row in record["rows"] if row[0] == _WAIT) for record in records)
    return RankProfile(tuple(_rank_rows(records)), tuple(record["seconds"] for record in records), waiting)


def _seconds(row: Row) -> float:
    """Return the larger of the caller's and the device's seconds. The caller may run ahead of the device."""
    return max(row.seconds, row.device_seconds)


def _rank_rows(records: list[dict[str, Any]]) -> list[RankRow]:
    """Combine the rows of all ranks, by operation."""
    by_operation: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for rank, record in enumerate(records):
        for kind, name, calls, seconds in record["rows"]:
            by_operation.setdefault((kind, name), [(0, 0.0)] * len(records))[rank] = calls, seconds
    rows = []
    for (kind, name), figures in by_operation.items():
        seconds = [each for _, each in figures]
        slowest = int(np.argmax(seconds))
        calls = max(calls for calls, _ in figures)
        rows.append(RankRow(kind, name, calls, seconds[slowest], slowest, sum(seconds) / len(seconds)))
    return sorted(rows, key=lambda row: -row.slowest_seconds)


def _gathered(text: str, communicator: Communicator) -> list[str]:
    """Return a list of the texts of all ranks. All ranks must call this together.

    Each rank writes its text at its own place of an array of zeros, and the arrays of all ranks are added up.
    """
    own = np.frombuffer(text.encode(), np.uint8)
    ends = np.cumsum(communicator.table([own.size])[:, 0])
    everything = np.zeros(int(ends[-1]), np.int64)
    everything[ends[communicator.rank] - own.size : ends[communicator.rank]] = own
    communicator.allreduce(everything)
    parts = np.split(everything.astype(np.uint8), ends[:-1])
    return [part.tobytes().decode() for part in parts]
