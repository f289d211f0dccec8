"""What ranks keep on their dask worker, by matrix.

It stays in a registry of this module: dask may move what tasks return, never this.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from socket import socket
from typing import Any

import numpy.typing as npt

from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.product_connections import ProductServer
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.worker.current_worker import address
from gsparse.errors import CommunicationError

__all__ = [
    "Anchor",
    "Resident",
    "find",
    "keep",
    "keep_listener",
    "keep_secret",
    "look_for",
    "look_for_secret",
    "no_rows",
    "release",
    "secret_of",
    "take_listener",
]

Host = npt.NDArray[Any]


@dataclass(eq=False)
class Resident:
    """A rank's part of one matrix."""

    matrix: RankMatrix
    communicator: Communicator
    server: ProductServer
    epoch: int
    preconditioners: dict[str, Any] = field(default_factory=dict)
    # Iteration, own x, the x of the rank before.
    checkpoint: tuple[int, Host, Host] | None = None

    def close(self) -> None:
        self.server.close()
        self.communicator.close()


_residents: dict[str, Resident] = {}
_listeners: dict[tuple[str, int], socket] = {}
_secrets: dict[str, bytes] = {}
_lock = threading.Lock()


def keep(key: str, resident: Resident) -> None:
    """Keep a rank's part of a matrix until it is released."""
    with _lock:
        _residents[key] = resident


def look_for(key: str) -> Resident | None:
    """Give a rank's part of a matrix, where it is here."""
    return _residents.get(key)


def find(key: str) -> Resident:
    """Give a rank's part of a matrix.

    Raises
    ------
    CommunicationError
        Where this process has none: it has been restarted since.
    """
    found = look_for(key)
    if found is None:
        raise no_rows(address())
    return found


def keep_secret(key: str, secret: bytes) -> None:
    """Keep the secret of a matrix until the matrix is released.

    The client calls this with `Client.run`. As an argument of a task, the secret would be in the graphs that the
    scheduler keeps, and in the logs that workers write of tasks that fail.
    """
    with _lock:
        _secrets[key] = secret


def look_for_secret(key: str) -> bytes | None:
    """Return the secret of a matrix, where this worker has it."""
    return _secrets.get(key)


def secret_of(key: str) -> bytes:
    """Return the secret of a matrix that this worker has, or is about to have, rows of.

    Raises
    ------
    CommunicationError
        Where this process has none: it has been restarted since.
    """
    found = look_for_secret(key)
    if found is None:
        raise no_rows(address())
    return found


def no_rows(worker: str) -> CommunicationError:
    """Make the error for a worker that has lost its rows."""
    return CommunicationError(f"{worker} has been restarted and has no rows of this matrix: A = A.repartition()")


def keep_listener(key: str, epoch: int, listener: socket) -> None:
    """Keep a port that ranks are to connect at."""
    with _lock:
        _listeners[key, epoch] = listener


def take_listener(key: str, epoch: int) -> socket:
    """Give the port that `keep_listener` has kept, to be closed by who takes it.

    Raises
    ------
    CommunicationError
        Where this process has none: it has been restarted since.
    """
    with _lock:
        found = _listeners.pop((key, epoch), None)
    if found is None:
        raise CommunicationError(
            f"{address()} holds no port for this rank: it has been restarted while ranks were to be connected, or it "
            "shares a process with another worker of this matrix (each rank needs its own: Client(processes=True))"
        )
    return found


def release(key: str) -> None:
    """Let go of a matrix."""
    with _lock:
        _secrets.pop(key, None)
        found = _residents.pop(key, None)
        waiting = [_listeners.pop(known) for known in list(_listeners) if known[0] == key]
    for listener in waiting:
        listener.close()
    if found is not None:
        found.close()


class Anchor:
    """Something for dask to keep as long as a client wants a matrix; without it, the rank lets go."""

    def __init__(self, key: str) -> None:
        self.key = key
        weakref.finalize(self, release, key)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _nothing, ()  # (a copy elsewhere holds nothing)


def _nothing() -> None:
    return None
