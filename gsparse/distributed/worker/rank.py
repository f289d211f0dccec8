"""A rank on its worker: a dask actor, which has the rank's rows and runs the functions that the client calls.

Matrices that are computed from one another have the same actor on each worker. Dask's protocol transfers the calls.
Each call runs in a separate thread, so that the actor can answer other requests during a solve: for the solve's
messages, its cancellation, and products in its callback.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import weakref
from contextlib import nullcontext, suppress
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
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.sockets import Contexts
from gsparse.errors import CommunicationError

HostArray = npt.NDArray[Any]

# Seconds between two checks whether the client still waits for a call.
_CHECK_INTERVAL = 0.1
# The ranks of this process, by their keys.
_ranks: weakref.WeakValueDictionary[str, Rank] = weakref.WeakValueDictionary()
# Parts of vectors, by name, that `Rank.keep` stored for dask tasks. They may outlive the matrix.
_vectors: dict[str, HostArray] = {}


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
    """Return the key of rank `number` of the matrix with the key `matrix`."""
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


class Rank:
    """A rank of a matrix.

    Attributes
    ----------
    key : str
        The key of the matrix, with the number of the rank (`rank_key`).
    server : RankServer
        A weak reference to the rank's actor.
    number : int
    calls : dict
        The running calls of the actor, by name.
    matrix : RankMatrix or None
        The rows of this rank; None before the matrix is made, and after it is closed.
    preconditioners : dict
        Preconditioners of the matrix, by the key of their specification.
    solution_copy : (str, (int, array, array)) or None
        A copy of x that `store_copies` made: the key of the solve, the iteration, this rank's part of x, and the
        previous rank's part.
    """

    def __init__(self, key: str, server: RankServer) -> None:
        self.key, self.server, self.number, self.calls = key, weakref.proxy(server), server.number, server.calls
        self.matrix: RankMatrix | None = None
        self.preconditioners: dict[str, Any] = {}
        self.solution_copy: tuple[str, tuple[int, HostArray, HostArray]] | None = None
        _ranks[key] = self

    def require_matrix(self) -> RankMatrix:
        """Return the rows of this rank. Raise `CommunicationError` if the matrix is closed."""
        if self.matrix is None:
            raise CommunicationError("the matrix has been closed: distribute it again")
        return self.matrix

    @property
    def communicator(self) -> Communicator:
        return self.require_matrix().host_communicator

    def keep(self, part: HostArray) -> str:
        """Store a part of a vector for a dask task, and return its name."""
        name = f"{self.key}-{uuid.uuid4().hex}"
        _vectors[name] = part
        return name

    def __del__(self) -> None:
        if self.matrix is not None:  # the client is gone, so no task will fetch the vectors
            for name in [name for name in list(_vectors) if name.startswith(f"{self.key}-")]:
                _vectors.pop(name, None)


class RankServer:
    """A rank's actor, for all matrices that share its connections. Dask keeps it while the client refers to it.

    Parameters
    ----------
    key : str
        The key of the actor.
    number : int
    workers : tuple of str
        Dask's addresses of the workers, in the order of the ranks.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.
    device : str, optional
        The device of the matrices.

    Attributes
    ----------
    ranks : dict
        The ranks of open matrices, by their keys.
    communicator : Communicator or None
        The communicator for host arrays; None before the ranks are connected.
    listener : socket or None
        The socket that accepts the connections of other ranks.
    calls : dict
        The running calls, by name.
    """

    def __init__(self, key: str, number: int, workers: tuple[str, ...], timeout: float, device: str | None) -> None:
        self.key, self.number, self.workers, self.timeout, self.device = key, number, workers, timeout, device
        self.worker = get_worker()
        self.ranks: dict[str, Rank] = {}
        self.communicator: Communicator | None = None
        self.listener: socket | None = None
        self.calls: dict[str, Call] = {}
        self._cancelled: set[str] = set()

    # ------------------------------------------------------------------ what the client awaits

    async def call(self, name: str, key: str, *arguments: HostArray) -> list[HostArray]:
        """Call a function, in a thread, with a rank as its first argument.

        Parameters
        ----------
        name : str
            The name of the call.
        key : str
            The key of the rank. A rank that is not in `ranks` has no matrix yet.
        *arguments : array
            The function, its further arguments, and whether the client is inside `gsparse.strict()`, `packed`.

        Returns
        -------
        list of array
            ``(result, None)`` or ``(None, error)``, `packed`.
        """
        self.calls[name] = Call(self)
        try:
            return await asyncio.to_thread(self._outcome, key, arguments)
        finally:
            del self.calls[name]
            self._cancelled.discard(name)

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

    def release(self, key: str) -> None:
        """Release a rank's matrix. Keep parts of vectors for dask tasks."""
        rank = self.ranks.pop(key, None)
        if rank is not None:
            rank.matrix = None

    # ------------------------------------------------------------------ calls

    def _outcome(self, key: str, arguments: tuple[HostArray, ...]) -> list[HostArray]:
        try:
            function, args, is_strict = unpacked(arguments)
            rank = self.ranks.get(key) or Rank(key, self)
            with strict() if is_strict else nullcontext():
                return packed((function(rank, *args), None))
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

    # ------------------------------------------------------------------ connections

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

    def disconnect(self) -> None:
        """Close the connections to the other ranks."""
        for connection in (self.listener, self.communicator):
            if connection is not None:
                connection.close()
        self.listener, self.communicator = None, None

    def __del__(self) -> None:
        with suppress(Exception):
            self.disconnect()


class Call:
    """A running call of a function, and its messages to the client.

    Attributes
    ----------
    answers : SimpleQueue
        The client's answers.
    """

    def __init__(self, server: RankServer) -> None:
        self._server = weakref.ref(server)
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
        server = self._server()
        if server is None or not server.is_wanted(self):
            raise CommunicationError("the solve is no longer wanted: cancelled, or its client or scheduler is gone")


def _packed_error(error: Exception) -> list[HostArray]:
    """Return an error with its traceback, `packed`. If it cannot be pickled, its text is used instead."""
    pickling_support.install(error)
    with suppress(Exception):
        outcome = packed((None, error))
        unpacked(outcome)
        return outcome
    return packed((None, RuntimeError(f"{type(error).__name__}: {error}")))
