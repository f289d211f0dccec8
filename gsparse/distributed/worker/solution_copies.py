"""Checkpoints of x in the memory of the workers: each rank stores its part of x and a copy of the part of another rank.

Rank r sends its part to rank r + 1, and the last rank sends its part to rank 0:

    rank          0        1        2
    own part     x[0]     x[1]     x[2]
    copy         x[2]     x[0]     x[1]

If one rank is lost, the other ranks still have all parts. G. Bosilca, R. Delmas, J. Dongarra, J. Langou,
"Algorithm-based fault tolerance applied to high performance computing", J. Parallel Distrib. Comput. 69(4), 2009,
describe further schemes of this kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.worker.rank import Rank

HostArray = npt.NDArray[Any]
# An iteration, the rank's own part of x, and the part of the rank before.
SolutionCopy = tuple[int, HostArray, HostArray]


def store_copies(rank: Rank, solve: str, iteration: Any) -> None:
    """Store the current x of the solve with this key, on all ranks together. Synchronizes."""
    matrix, world_size, number = rank.require_matrix(), rank.communicator.world_size, rank.communicator.rank
    x = matrix.device.download(iteration.system.in_units_of_caller(iteration.vectors["x"]))
    after, before = (number + 1) % world_size, (number - 1) % world_size
    # A rank may own no elements of x, so x does not tell the number of columns.
    x_before = np.empty(matrix.column_sizes[before] * iteration.system.columns, x.dtype)
    if world_size > 1:
        rank.communicator.exchange({after: x}, {before: x_before})()
    rank.solution_copy = solve, (iteration.iterations, x, x_before)


def latest_copy(rank: Rank, solve: str) -> SolutionCopy | None:
    """Return the latest parts of x that this rank has stored of the solve with this key; None if it has none.

    A copy of an earlier solve belongs to another right-hand side.
    """
    stored_solve, copy = rank.solution_copy or ("", None)
    return copy if stored_solve == solve else None


def assemble(copies: Mapping[int, SolutionCopy], sizes: Sequence[int]) -> list[HostArray] | None:
    """Return all parts of x at the latest iteration of which every part is available; None if there is no such one.

    Parameters
    ----------
    copies : mapping of rank to solution copy
        The copies of the remaining ranks.
    sizes : sequence of int
        Elements of x that each rank owns.

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
