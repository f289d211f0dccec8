"""Parts of a product as tasks on the workers. Each rank is sent the ghosts that it needs, and calls no other rank."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.ranks.product_connections import ProductClient, local_product
from gsparse.distributed.worker import registry
from gsparse.distributed.worker.current_worker import check_worker, this_worker, tls_contexts, worker_address

HostArray = npt.NDArray[Any]

# Time limit, in seconds, for a product that another worker requests from a rank.
_PRODUCT_TIMEOUT = 60.0


def multiply(key: str, worker: str, x: HostArray, ghosts: HostArray, operation: str) -> Any:
    """Multiply a rank's blocks by its part of a vector, without the other ranks."""
    check_worker(worker)
    return local_product(registry.require_state(key).matrix, x, ghosts, operation)


def join_and_multiply(
    key: str, worker: str, server: tuple[str, int], x: HostArray, pieces: list[HostArray], operation: str
) -> Any:
    """Join the pieces of the ghosts, one from each rank that owns some, and multiply.

    Dask may run this task on another worker than the rank's, because it drops the restriction to a worker when it fuses
    tasks. Then the product is requested from the rank's server.
    """
    ghosts = np.concatenate(pieces) if pieces else np.empty((0, *x.shape[1:]), x.dtype)
    if worker_address() == worker:
        return multiply(key, worker, x, ghosts, operation)
    tls = tls_contexts(this_worker().security, worker)[1]
    with closing(ProductClient([server], _secret_of(key, worker), _PRODUCT_TIMEOUT, tls)) as client:
        return client.multiply(operation, [(x, ghosts)])[0]


def _secret_of(key: str, worker: str) -> bytes:
    """Request the secret of a matrix from a worker that has rows of it, over dask's own connections."""
    from distributed import get_client

    secret: bytes | None = get_client().run(registry.get_secret, key, workers=[worker])[worker]
    if secret is None:
        raise registry.lost_rows_error(worker)
    return secret


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
