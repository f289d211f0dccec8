"""Checkpoints of x on the workers, without any disk: each rank keeps its part, and that of the rank before.

All parts outlive any one rank. G. Bosilca, R. Delmas, J. Dongarra, J. Langou, "Algorithm-based fault tolerance applied
to high performance computing", J. Parallel Distrib. Comput. 69(4), 2009, have more of such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.worker import registry as resident
from gsparse.distributed.worker.registry import Resident

__all__ = ["assembled", "keep", "last"]

Host = npt.NDArray[Any]
Checkpoint = tuple[int, Host, Host]


def keep(kept: Resident, iteration: Any) -> None:
    """Keep x as it is now, all ranks together. Synchronizes."""
    matrix, control = kept.matrix, kept.communicator
    world_size, rank = matrix.communicator.world_size, matrix.communicator.rank
    x = matrix.device.download(iteration.vectors["x"])
    after, before = (rank + 1) % world_size, (rank - 1) % world_size
    columns = x.size // max(matrix.shape[1], 1)
    theirs = np.empty(matrix.column_sizes[before] * columns, x.dtype)
    if world_size > 1:
        control.exchange({after: x}, {before: theirs})()
    kept.checkpoint = iteration.iterations, x, theirs


def last(key: str) -> Checkpoint | None:
    """Give what this worker has kept of x; None where it has nothing."""
    found = resident.look_for(key)
    return None if found is None else found.checkpoint


def assembled(kept: Mapping[int, Checkpoint], sizes: Sequence[int]) -> list[Host] | None:
    """Give all parts of the newest checkpoint of which every part is there, of its rank or of the one after it.

    Parameters
    ----------
    kept : mapping of rank to checkpoint
        Of the ranks that are left.
    sizes : sequence of int
        Elements of x that each rank owns.

    Returns
    -------
    list of array, shape (size,) or (size, k), or None
    """
    world_size = len(sizes)
    for newest in sorted({found[0] for found in kept.values()}, reverse=True):
        at = {rank: found for rank, found in kept.items() if found[0] == newest}
        own = {(rank - 1) % world_size: found[2] for rank, found in at.items()}
        own |= {rank: found[1] for rank, found in at.items()}
        if len(own) == world_size:
            columns = next((own[rank].size // n for rank, n in enumerate(sizes) if n), 1)
            parts = [own[rank] for rank in range(world_size)]
            return parts if columns == 1 else [part.reshape(columns, -1).T for part in parts]
    return None
