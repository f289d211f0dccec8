"""Products with vectors of the client or of dask. Each rank is sent the ghosts that it needs, and calls no other rank.

Products with dask arrays are tasks of dask, and so are the parts of vectors that stay on the workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import get_worker, worker_client

from gsparse.distributed.worker.rank import Rank, find_rank

HostArray = npt.NDArray[Any]


def multiply(rank: Rank, x: HostArray, ghosts: HostArray, operation: str) -> Any:
    """Multiply a rank's two blocks by its part of x, without the other ranks.

    For "plain", return the rank's part of the product; `ghosts` are the entries of x in the columns `matrix.ghosts`.
    Otherwise ("transposed" or "adjoint"), return the rank's contributions to its own part of the product and to its
    ghosts; `ghosts` is not used.
    """
    matrix = rank.require_matrix()
    diagonal, off_diagonal, boundary = matrix.diagonal, matrix.off_diagonal, matrix.boundary
    with matrix.device.active():
        if operation == "plain":
            y, boundary_y = diagonal @ x, off_diagonal @ ghosts
            y = y.astype(np.result_type(y, boundary_y), copy=False)
            y[boundary] += boundary_y
            return y
        if operation == "adjoint":
            diagonal, off_diagonal = diagonal.conj(), off_diagonal.conj()
        return diagonal.T @ x, off_diagonal.T @ x[boundary]


def join_and_multiply(key: str, worker: str, x: HostArray, pieces: list[HostArray], operation: str) -> Any:
    """Join the pieces of the ghosts, one from each rank that owns some, and multiply, as a task of dask.

    Dask may run this task on another worker than the rank's, because it drops the restriction to a worker when it fuses
    tasks. Then another task does so on the rank's worker.
    """
    ghosts = np.concatenate(pieces) if pieces else np.empty((0, *x.shape[1:]), x.dtype)
    if get_worker().address == worker:
        return multiply_here(key, x, ghosts, operation)
    with worker_client() as client:
        vectors = client.scatter([x, ghosts], hash=False)
        return client.submit(
            multiply_here, key, *vectors, operation, workers=[worker], allow_other_workers=True, pure=False
        ).result()


def multiply_here(key: str, x: HostArray, ghosts: HostArray, operation: str) -> Any:
    """Multiply on the rank with this key, which is on this worker."""
    return multiply(find_rank(key), x, ghosts, operation)


def ghost_part(product: tuple[HostArray, HostArray], first: int, last: int) -> HostArray:
    """Return the contributions of a transposed product to the ghosts from `first` up to `last`."""
    return product[1][first:last]


def add_contributions(
    product: tuple[HostArray, HostArray], positions: list[HostArray], pieces: list[HostArray]
) -> HostArray:
    """Add the contributions of other ranks to this rank's part of a transposed product."""
    y = product[0].copy()
    for position, piece in zip(positions, pieces, strict=True):
        y[position] += piece
    return y


def moved_part(part: HostArray) -> HostArray:
    """Return a part of a vector as it is: as the argument of this task, dask has brought it to this worker."""
    return part
