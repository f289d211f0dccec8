"""A rank of a matrix: a dask actor on its worker, which runs the functions that the client calls.

Dask's protocol transfers the calls. Each call runs in a separate thread, so that the actor can answer other requests
during a solve: for the solve's messages, its cancellation, and products in its callback.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import weakref
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from socket import socket
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import get_worker
from distributed.comm import get_address_host
from distributed.protocol import pickle
from tblib import pickling_support

from gsparse.device.counters import strict
from gsparse.device.locks import make_lock
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.sockets import Contexts
from gsparse.errors import CommunicationError

HostArray = npt.NDArray[Any]

# Seconds between two checks whether the client still waits for a call.
_CHECK_INTERVAL = 0.1
# The ranks of this process, by the keys of their actors.
_ranks: weakref.WeakValueDictionary[str, Rank] = weakref.WeakValueDictionary()
# Parts of vectors, by name, that `Rank.keep` stored for dask tasks. They may outlive the matrix.
_vectors: dict[str, HostArray] = {}
# Guards `RankConnections.users`. It is reentrant, because the garbage collector may close a rank in any thread.
_lock = make_lock()


def packed(value: Any) -> list[HostArray]:
    """Pickle a value. The first array holds the pickle, and the others hold the memory of the value's arrays."""
    buffers: list[Any] = []
    head = pickle.dumps(value, buffer_callback=buffers.append)
    return [np.frombuffer(head, np.uint8), *(np.asarray(buffer.raw()) for buffer in buffers)]


def unpacked(arrays: Any) -> Any:
    """Return the value from the arrays that `packed` returned."""
    head, *buffers = arrays
    return pickle.loads(bytes(head), buffers=buffers)


def rank_key(matrix: str, number: int) -> str:
    """Return the key of the actor that is rank `number` of the matrix with the key `matrix`."""
    return f"{matrix}-rank{number}"


def find_rank(key: str) -> Rank:
    """Return a rank of this process. Raise `CommunicationError` if it is not in this process."""
    rank = _ranks.get(key)
    if rank is None or rank.matrix is None:
        raise CommunicationError(
            f"{get_worker().address} has no rows of this matrix, which was closed, or the worker has been restarted: "
            "distribute the matrix again, or A = A.repartition(), or compute it again from other matrices"
        )
    return rank


def take_vector(name: str) -> HostArray:
    """Remove a part of a vector that `Rank.keep` stored on this worker, and return the part. Runs as a dask task."""
    return _vectors.pop(name)


@dataclass(eq=False)
class RankConnections:
    """The connections of a rank to the other ranks. A matrix shares them with matrices that are computed from it.

    Attributes
    ----------
    communicator : Communicator
        The rank's communicator, for host arrays.
    users : list of Rank
        The ranks of this process that share the connections, which are closed with the last of these ranks.
    """

    communicator: Communicator
    users: weakref.WeakSet[Rank] = field(default_factory=weakref.WeakSet)

    def leave(self, rank: Rank) -> None:
        """Remove a rank from the users, and close the connections if no user is left."""
        with _lock:
            self.users.discard(rank)
            is_unused = not self.users
        if is_unused:
            self.communicator.close()


class Rank:
    """A rank of a matrix. Dask keeps it on its worker while the client, or a task, refers to it.

    Parameters
    ----------
    key : str
        The key of the actor.
    number : int
    workers : tuple of str
        Dask's addresses of the workers, in the order of the ranks.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.

    Attributes
    ----------
    matrix : RankMatrix or None
        The rows of this rank; None before the matrix is made, and after it is closed.
    connections : RankConnections or None
    listener : socket or None
        The socket that accepts the connections of other ranks.
    preconditioners : dict
        Preconditioners of the matrix, by the key of their specification.
    solution_copy : (str, (int, array, array)) or None
        A copy of x that `store_copies` made: the key of the solve, the iteration, this rank's part of x, and the
        previous rank's part.
    calls : dict
        The running calls, by name.
    """

    def __init__(self, key: str, number: int, workers: tuple[str, ...], timeout: float) -> None:
        self.key, self.number, self.workers, self.timeout = key, number, workers, timeout
        self.worker = get_worker()
        self.matrix: RankMatrix | None = None
        self.connections: RankConnections | None = None
        self.listener: socket | None = None
        self.preconditioners: dict[str, Any] = {}
        self.solution_copy: tuple[str, tuple[int, HostArray, HostArray]] | None = None
        self.calls: dict[str, Call] = {}
        self._cancelled: set[str] = set()
        self._is_closed = False
        _ranks[key] = self

    # ------------------------------------------------------------------ what the client awaits

    async def call(self, name: str, *arguments: HostArray) -> list[HostArray]:
        """Call a function, in a thread, with this rank as its first argument.

        Parameters
        ----------
        name : str
            The name of the call.
        *arguments : array
            The function, its further arguments, and whether the client is inside `gsparse.strict()`, `packed`.

        Returns
        -------
        list of array
            ``(result, None)`` or ``(None, error)``, `packed`.
        """
        self.calls[name] = Call(self)
        try:
            return await asyncio.to_thread(self._outcome, arguments)
        finally:
            del self.calls[name]

    async def messages(self, name: str) -> list[Any]:
        """Return the messages that a call has sent since the last use of this method."""
        call = self.calls.get(name)
        return [] if call is None else call.taken_messages()

    async def answer(self, name: str, value: Any) -> None:
        """Pass the client's answer to a call, which waits for it."""
        if name in self.calls:
            self.calls[name].answers.put(value)

    async def sign_of_life(self) -> None:
        """Return None. The answer shows the client that this worker runs."""

    async def cancel(self, name: str) -> None:
        """End a call at its next check. The call may not have arrived yet."""
        self._cancelled.add(name)

    # ------------------------------------------------------------------ calls

    def _outcome(self, arguments: tuple[HostArray, ...]) -> list[HostArray]:
        try:
            function, args, is_strict = unpacked(arguments)
            with strict() if is_strict else nullcontext():
                return packed((function(self, *args), None))
        except Exception as error:
            return _packed_error(error)

    def is_wanted(self, call: Call) -> bool:
        """Return whether the client still waits for a call, and this worker is connected to its scheduler.

        If a client is gone, dask drops the actor without notice, so this method looks for the actor in `Worker.state`,
        which is undocumented.
        """
        names = [name for name, running in self.calls.items() if running is call]
        is_kept = self.key in self.worker.state.actors and self.worker.status.name in ("running", "paused")
        return is_kept and not self._cancelled.intersection(names)

    # ------------------------------------------------------------------ what belongs to the rank

    @property
    def communicator(self) -> Communicator:
        assert self.connections is not None
        return self.connections.communicator

    def require_matrix(self) -> RankMatrix:
        """Return the rows of this rank. Raise `CommunicationError` if the matrix is closed."""
        if self.matrix is None:
            raise CommunicationError("the matrix has been closed: distribute it again")
        return self.matrix

    def sharing(self) -> list[Rank]:
        """Return the ranks of this process that share this rank's connections."""
        assert self.connections is not None
        with _lock:
            return list(self.connections.users)

    def host(self) -> str:
        """Return the host name or IP address at which other ranks reach this worker."""
        address = self.worker.address
        return "127.0.0.1" if address.startswith("inproc://") else str(get_address_host(address))

    def tls(self) -> Contexts:
        """Return the TLS contexts for accepting and for making connections; (None, None) without TLS."""
        if not self.worker.address.startswith("tls://"):
            return None, None
        security = self.worker.security
        return security.get_listen_args("worker")["ssl_context"], security.get_connection_args("worker")["ssl_context"]

    def keep(self, part: HostArray) -> str:
        """Store a part of a vector for a dask task, and return its name."""
        name = f"{self.key}-{uuid.uuid4().hex}"
        _vectors[name] = part
        return name

    def close(self) -> None:
        """Release the matrix, and the connections if no other rank uses them. Keep parts of vectors for dask tasks."""
        self._is_closed = True
        listener, self.listener = self.listener, None
        connections, self.connections = self.connections, None
        self.matrix, self.solution_copy = None, None
        self.preconditioners.clear()
        if listener is not None:
            listener.close()
        if connections is not None:
            connections.leave(self)

    def __del__(self) -> None:
        with suppress(Exception):
            if not self._is_closed:  # the client is gone, so no task will fetch the vectors
                for name in [name for name in list(_vectors) if name.startswith(self.key)]:
                    _vectors.pop(name, None)
            self.close()


class Call:
    """A running call of a rank, and its messages to the client.

    Attributes
    ----------
    answers : SimpleQueue
        The client's answers.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = weakref.ref(rank)
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self._next_check = 0.0

    def send(self, *message: Any) -> None:
        self._outbox.put(message)

    def taken_messages(self) -> list[Any]:
        return [self._outbox.get() for _ in range(self._outbox.qsize())]

    def answer(self) -> Any:
        """Wait for the client's answer, and return it."""
        while True:
            self.check()
            with suppress(Empty):
                return self.answers.get(timeout=_CHECK_INTERVAL)

    def check(self) -> None:
        """Raise an error if the client no longer waits for the call. Most calls of this method only read the clock."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_INTERVAL
        rank = self._rank()
        if rank is None or not rank.is_wanted(self):
            raise CommunicationError("the solve is no longer wanted: cancelled, or its client or scheduler is gone")


def _packed_error(error: Exception) -> list[HostArray]:
    """Return an error with its traceback, `packed`. If it cannot be pickled, its text is used instead."""
    pickling_support.install(error)
    with suppress(Exception):
        outcome = packed((None, error))
        unpacked(outcome)
        return outcome
    return packed((None, RuntimeError(f"{type(error).__name__}: {error}")))
