"""Parts of a product as tasks on the workers: each rank is given what it needs of the vector, and asks no other."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.ranks.product_connections import ProductClient, local_product
from gsparse.distributed.worker import registry as resident
from gsparse.distributed.worker.current_worker import address, check_home, this_worker, tls_of

__all__ = ["add_contributions", "ghost_part", "join_and_multiply", "multiply"]

Host = npt.NDArray[Any]

# Seconds that a rank may take for a product that another worker asks for.
_PRODUCT_TIMEOUT = 60.0


def multiply(key: str, home: str, x: Host, ghosts: Host, how: str) -> Any:
    """Multiply a rank's blocks by parts of a vector, without the other ranks."""
    check_home(home)
    return local_product(resident.find(key).matrix, x, ghosts, how)


def join_and_multiply(key: str, home: str, server: tuple[str, int], x: Host, pieces: list[Host], how: str) -> Any:
    """Multiply by ghosts that come in pieces, by rank.

    Dask may have put this task elsewhere (what it is told about places is lost where it fuses tasks): then the rank is
    asked at its port.
    """
    ghosts = np.concatenate(pieces) if pieces else np.empty((0, *x.shape[1:]), x.dtype)
    if address() == home:
        return multiply(key, home, x, ghosts, how)
    tls = tls_of(this_worker().security, home)[1]
    with closing(ProductClient([server], _secret_at(key, home), _PRODUCT_TIMEOUT, tls)) as rank:
        return rank.multiply(how, [(x, ghosts)])[0]


def _secret_at(key: str, home: str) -> bytes:
    """Ask a worker that has rows of a matrix for its secret, over dask's own connections."""
    from distributed import get_client

    found: bytes | None = get_client().run(resident.look_for_secret, key, workers=[home])[home]
    if found is None:
        raise resident.no_rows(home)
    return found


def ghost_part(product: tuple[Host, Host], first: int, last: int) -> Host:
    """Give a stretch of what a transposed product has for ghosts."""
    return product[1][first:last]


def add_contributions(product: tuple[Host, Host], places: list[Host], pieces: list[Host]) -> Host:
    """Add what other ranks have for this one's part of a transposed product."""
    y = product[0].copy()
    for place, piece in zip(places, pieces, strict=True):
        y[place] += piece
    return y
