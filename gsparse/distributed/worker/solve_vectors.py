"""Vectors of solves on the workers: arguments that the client or dask has brought, and results that either will fetch.

A solve that comes as a call (`gsparse.distributed.worker.calls`) names its vectors, and each rank finds its parts:

    vectors of the client     NumPy     the client stores them in the rank's `ProductServer`, and takes results from it
                              dask      they are results of tasks, which dask keeps on the worker; a task that nobody
                                        waits for makes a result of the solve a result of its own
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from gsparse.distributed.worker.current_worker import this_worker
from gsparse.distributed.worker.group_tasks import RankMetadata
from gsparse.distributed.worker.registry import RankState

HostArray = npt.NDArray[Any]


@dataclass(frozen=True)
class StoredVector:
    """A vector that a rank has under a number, in place of an argument or a result of a solve."""

    number: int


@dataclass(frozen=True)
class DaskVector:
    """The result of a task of dask, which a rank's worker has under a key, in place of an argument of a solve."""

    key: Any


def resolved(state: RankState, value: Any) -> Any:
    """Return a rank's part of a vector that its worker has; return anything else as it is."""
    if isinstance(value, StoredVector):
        return state.server.vectors.pop(value.number)
    return this_worker().data[value.key] if isinstance(value, DaskVector) else value


def holds_vector(key: Any, is_awaited: Callable[[], bool]) -> bool:
    """Return whether this worker has the result of this task of dask."""
    return key in this_worker().data


def moved_vector(vector: HostArray) -> HostArray:
    """Return a vector as it is: as the argument of this task, dask has brought it to this worker."""
    return vector


def take_result(metadata: RankMetadata, number: int) -> HostArray:
    """Return a vector that a solve has left on this worker, and drop it there.

    `metadata` is the result of the task that has opened the rank. As an argument, it lets dask run this task where the
    vector is, and keeps the matrix's reference until then.
    """
    vector: HostArray = metadata.reference.results.pop(number)
    return vector
