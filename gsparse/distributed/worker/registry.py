"""The objects that stay on a dask worker between tasks, by the key of the matrix that they belong to.

They are stored in dictionaries of this module and not in the results of tasks, because dask may move results to other
workers.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from socket import socket
from typing import Any

import numpy.typing as npt

from gsparse.device.locks import make_lock
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.product_connections import ProductServer
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.worker.current_worker import worker_address
from gsparse.errors import CommunicationError

HostArray = npt.NDArray[Any]


@dataclass(eq=False)
class RankConnections:
    """The connections of a rank to the other ranks. A matrix and the results that are computed from it share them.

    Attributes
    ----------
    communicator : Communicator
        The rank's communicator, for host arrays.
    epoch : int
        How many times the ranks have been connected (`GroupSettings.epoch`).
    keys : set of str
        The keys of the matrices that share the connections. The last one that is released closes them.
    """

    communicator: Communicator
    epoch: int
    keys: set[str]


@dataclass(eq=False)
class RankState:
    """A rank's part of one matrix, and the objects that belong to it.

    Attributes
    ----------
    matrix : RankMatrix
    connections : RankConnections
    server : ProductServer
        Serves products with vectors of the client.
    preconditioners : dict
        Preconditioners of the matrix, by the key of their specification.
    results : dict
        Vectors of solves, by number, which tasks of dask take from here (`MatrixReference.results`).
    solution_copy : (str, (int, array, array)) or None
        The key of a solve, an iteration, this rank's part of x at that iteration, and that of the rank before
        (`solution_copies`).
    """

    matrix: RankMatrix
    connections: RankConnections
    server: ProductServer
    preconditioners: dict[str, Any] = field(default_factory=dict)
    results: dict[int, HostArray] = field(default_factory=dict)
    solution_copy: tuple[str, tuple[int, HostArray, HostArray]] | None = None

    @property
    def communicator(self) -> Communicator:
        return self.connections.communicator

    @property
    def epoch(self) -> int:
        return self.connections.epoch


_states: dict[str, RankState] = {}
_listeners: dict[tuple[str, int], socket] = {}
_secrets: dict[str, bytes] = {}
# Guards the dictionaries. The lock has to be reentrant: the garbage collector may call `release_matrix` in any thread,
# also in one that holds the lock.
_lock = make_lock()


def store_state(key: str, state: RankState) -> None:
    """Store a rank's part of a matrix until it is released."""
    with _lock:
        _states[key] = state


def get_state(key: str) -> RankState | None:
    """Return a rank's part of a matrix; None if this worker has none."""
    return _states.get(key)


def require_state(key: str) -> RankState:
    """Return a rank's part of a matrix.

    Raises
    ------
    CommunicationError
        If this process has none, because the matrix was closed or the process has been restarted.
    """
    state = get_state(key)
    if state is None:
        raise lost_rows_error(worker_address())
    return state


def join_connections(connections: RankConnections, key: str) -> None:
    """Keep connections open until this matrix is released too."""
    with _lock:
        connections.keys.add(key)


def leave_connections(connections: RankConnections, key: str) -> None:
    """Let a matrix leave connections, and close them if no other matrix shares them."""
    with _lock:
        connections.keys.discard(key)
        is_unused = not connections.keys
    if is_unused:
        connections.communicator.close()


def states_over(connections: RankConnections) -> list[RankState]:
    """Return the rank's parts of the matrices that share connections."""
    with _lock:
        return [state for state in _states.values() if state.connections is connections]


def store_secret(key: str, secret: bytes) -> None:
    """Store the secret of a matrix until the matrix is released.

    The client calls this with `Client.run`. As an argument of a task, the secret would be in the graphs that the
    scheduler keeps, and in the logs that workers write of tasks that fail.
    """
    with _lock:
        _secrets[key] = secret


def get_secret(key: str) -> bytes | None:
    """Return the secret of a matrix; None if this worker does not have it."""
    return _secrets.get(key)


def require_secret(key: str) -> bytes:
    """Return the secret of a matrix. This worker has rows of it, or is about to receive some.

    Raises
    ------
    CommunicationError
        If this process does not have it, because the matrix was closed or the process has been restarted.
    """
    secret = get_secret(key)
    if secret is None:
        raise lost_rows_error(worker_address())
    return secret


def lost_rows_error(worker: str) -> CommunicationError:
    """Return the error for a worker that has no rows any more."""
    return CommunicationError(
        f"{worker} has no rows of this matrix, which was closed, or the worker has been restarted: "
        "distribute the matrix again, or A = A.repartition(), or compute it again from other matrices"
    )


def store_listener(key: str, epoch: int, listener: socket) -> None:
    """Store the listening socket at which this rank accepts the other ranks of a matrix."""
    with _lock:
        _listeners[key, epoch] = listener


def take_listener(key: str, epoch: int) -> socket:
    """Remove a stored listening socket and return it; the caller has to close it.

    Raises
    ------
    CommunicationError
        If this process has none, because it has been restarted since.
    """
    with _lock:
        listener = _listeners.pop((key, epoch), None)
    if listener is None:
        raise CommunicationError(
            f"{worker_address()} holds no port for this rank: it has been restarted while ranks were to be connected, "
            "or it shares a process with another worker of this matrix (each rank needs its own: "
            "Client(processes=True))"
        )
    return listener


def release_matrix(key: str) -> None:
    """Remove and close everything that belongs to a matrix."""
    with _lock:
        _secrets.pop(key, None)
        state = _states.pop(key, None)
        unused = [_listeners.pop(known) for known in list(_listeners) if known[0] == key]
    for listener in unused:
        listener.close()
    if state is not None:
        state.server.close()
        leave_connections(state.connections, key)


class MatrixReference:
    """A reference to a rank's part of a matrix, as the result of a task.

    Dask keeps it on the worker as long as the client wants the matrix, or a task that has it as an argument has not yet
    run. When dask drops it, the matrix is released.

    Attributes
    ----------
    key : str
    results : dict
        Vectors of solves, by number, for tasks that make them results of dask. They outlast the matrix.
    """

    def __init__(self, key: str, results: dict[int, HostArray]) -> None:
        self.key, self.results = key, results
        weakref.finalize(self, release_matrix, key)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _none, ()  # a copy in another process must not release the matrix when it is deleted


def _none() -> None:
    return None
