"""Products with a vector of one process, the client, and the way of a solve's vectors to the ranks and back.

For a product, the client sends each rank its part of the vector and the ghosts that it needs, so the ranks do not
exchange anything. Each rank serves requests at a port of its own:

    client  →  rank    request number, operation | x, the rank's part | ghosts
    rank  →  client    request number, 1, number of arrays | y, the rank's part                        operation "plain"
                       request number, 1, number of arrays | y, the rank's part | values of ghosts     other products
                       request number, 0, number of bytes | text of an error

The operation "store" keeps x on the rank under a number. This number and the oldest one that is still wanted are sent
in place of ghosts. "take" returns the vector with this number. So the vectors of a solve do not go through dask's
scheduler. "call" runs the solve itself (`gsparse.distributed.ranks.rank_calls`).

Arrays are raw numbers behind a header (`gsparse.distributed.ranks.messages`). A server reads messages only after the
client has proved that it knows the secret, and answers the proof with an empty answer, or with an error that says why
it refuses the client.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.locks import make_lock
from gsparse.distributed.ranks.handshake import Acceptor, Address, Deadline, connect, prove, shut_down
from gsparse.distributed.ranks.messages import Allocate, is_silent, read, receive_array, send_array
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.sockets import listen
from gsparse.errors import CommunicationError

HostArray = npt.NDArray[Any]
# Runs the call of a client and returns the bytes of the answer. Its arguments are the bytes that the client has sent,
# and a function that tells whether the client still waits for the result.
Call = Callable[[bytes, Callable[[], bool]], bytes]

# The matrix that is multiplied: A itself, its transpose, or its adjoint.
OPERATIONS = ("plain", "transposed", "adjoint")
# What a client can request: products, vectors of solves, and calls.
_REQUESTS = (*OPERATIONS, "store", "take", "call")
# The head of a request: its number, and the index of the operation.
_REQUEST = struct.Struct("<QB")
# The head of an answer: the number of the request that it answers, or 0 in the answer to the proof of the secret; then
# 1 if the request succeeded, or 0 if it failed; then the number of arrays that follow, or of bytes of the error's text.
_ANSWER = struct.Struct("<QBI")
# Numbers by which the two ends are known in the proof of the secret (`handshake.prove`).
_SERVER, _CLIENT = 1, 2
# Maximum number of clients that a server serves at the same time, each in a thread. The user's process counts as two,
# because products and calls have connections of their own, and a worker that multiplies a dask array counts as one.
MAX_CLIENTS = 256
# A client may vanish without closing its connection, because its host lost power or its network. The system closes the
# connection after a minute of silence and six unanswered probes, ten seconds apart.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


def local_product(matrix: RankMatrix, x: HostArray, ghosts: HostArray, operation: str) -> Any:
    """Multiply a rank's two blocks by its part of x, without the other ranks.

    For "plain", return the rank's part of the product; `ghosts` are the entries of x in the columns `matrix.ghosts`.
    Otherwise return the rank's contributions to its own part of the product and to its ghosts; `ghosts` is not used.
    """
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


class ProductServer:
    """Computes a rank's products at the request of clients, until it is closed.

    Each client that knows the secret is served by a thread of its own.

    Parameters
    ----------
    matrix : RankMatrix
    host : str
        The worker's host, as clients reach it.
    secret : bytes
    tls : SSLContext or None
    call : callable, optional
        Runs the calls of clients (`Call`).

    Attributes
    ----------
    address : (str, int)
        Host and port to which clients connect.
    vectors : dict of int to array
        Vectors that a client has stored, or that a solve has left for it, by their numbers.
    """

    def __init__(
        self, matrix: RankMatrix, host: str, secret: bytes, tls: ssl.SSLContext | None, call: Call | None = None
    ) -> None:
        self.matrix, self._secret, self._call = matrix, secret, call
        self._connections: set[socket.socket] = set()
        self.vectors: dict[int, HostArray] = {}
        listener = listen(host)
        own_host, port = listener.getsockname()[:2]
        self.address: Address = str(own_host), int(port)
        self._acceptor = Acceptor(listener, self._identify, self._admit, tls, name="gsparse products")

    def close(self) -> None:
        """Make all threads end, without waiting for them.

        A thread that waits for a request ends at once. One that multiplies ends after its product.
        """
        self._acceptor.close()
        for connection in list(self._connections):
            shut_down(connection)

    def _identify(self, connection: socket.socket, deadline: Deadline) -> int:
        prove(connection, self._secret, _SERVER, _CLIENT, deadline, connects=False, purpose=b"products")
        return _CLIENT

    def _admit(self, peer: int, connection: socket.socket) -> None:
        if len(self._connections) >= MAX_CLIENTS:
            text = f"{MAX_CLIENTS} clients are connected, no more are served: close() matrices, or end other programs"
            send_error(connection, 0, text)
            raise CommunicationError(text)
        connection.sendall(_ANSWER.pack(0, 1, 0))
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connections.add(connection)
        threading.Thread(target=self._serve, args=(connection,), name="gsparse products", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(Exception), connection:  # the client has left, or has violated the protocol
            while True:
                number, operation = _REQUEST.unpack(read(connection, _REQUEST.size))
                x, ghosts = receive_array(connection), receive_array(connection)
                self._answer(connection, number, _REQUESTS[operation], x, ghosts)
        self._connections.discard(connection)

    def _answer(self, connection: socket.socket, number: int, operation: str, x: HostArray, ghosts: HostArray) -> None:
        try:
            product = self._product(connection, x, ghosts, operation)
        except Exception as error:
            send_error(connection, number, f"{type(error).__name__}: {error}")
            return
        parts = product if isinstance(product, tuple) else (product,)
        connection.sendall(_ANSWER.pack(number, 1, len(parts)))
        for part in parts:
            send_array(connection, part)

    def _product(self, connection: socket.socket, x: HostArray, ghosts: HostArray, operation: str) -> Any:
        if operation == "store":
            # A solve that has failed leaves its vectors.
            for old in [old for old in list(self.vectors) if old < ghosts[1]]:
                self.vectors.pop(old, None)
            self.vectors[int(ghosts[0])] = x
            return ()
        if operation == "take":
            return self.vectors.pop(int(ghosts[0]))
        if operation == "call":
            assert self._call is not None
            # The client sends nothing during a call. So whatever arrives is the end of the connection.
            return np.frombuffer(self._call(x.tobytes(), partial(is_silent, connection)), np.uint8)
        return local_product(self.matrix, x, ghosts, operation)


def send_error(connection: socket.socket, number: int, text: str) -> None:
    """Answer a request with the text of an error."""
    connection.sendall(_ANSWER.pack(number, 0, len(text.encode())) + text.encode())


def send_request(connection: socket.socket, number: int, operation: str, parts: tuple[HostArray, HostArray]) -> None:
    """Send a request to a server: its number, the operation, and two arrays."""
    connection.sendall(_REQUEST.pack(number, _REQUESTS.index(operation)))
    for part in parts:
        send_array(connection, part)


def receive_answer(connection: socket.socket, number: int, allocate: Allocate = np.empty) -> Any:
    """Return what a server answers to the request with this number: an array, or a tuple of arrays.

    The arrays are received into what `allocate` returns.

    Raises
    ------
    ValueError
        If it answers with an error.
    CommunicationError
        If it answers another request.
    OSError
        If the connection ends.
    """
    answered, has_succeeded, count = _ANSWER.unpack(read(connection, _ANSWER.size))
    if answered != number:
        raise CommunicationError(f"a rank answered product {answered} where product {number} was asked for")
    if not has_succeeded:
        raise ValueError(read(connection, count).decode())
    arrays = tuple(receive_array(connection, allocate) for _ in range(count))
    return arrays[0] if count == 1 else arrays


def connect_to_servers(
    addresses: list[Address], secret: bytes, timeout: float, tls: ssl.SSLContext | None
) -> list[socket.socket]:
    """Connect to the servers of all ranks within a time limit, in seconds.

    Raises
    ------
    CommunicationError
        If a rank cannot be reached from this process, or refuses the connection.
    """
    deadline, connections = Deadline(timeout), []
    with ExitStack() as unfinished:
        for host, port in addresses:
            try:
                connection = unfinished.enter_context(connect((host, port), tls, deadline))
                prove(connection, secret, _CLIENT, _SERVER, deadline, connects=True, purpose=b"products")
                connection.settimeout(deadline.remaining())
                receive_answer(connection, 0)
            except (OSError, ValueError, CommunicationError) as error:
                raise CommunicationError(f"no connection to {host}:{port}: {error}") from error
            connection.settimeout(timeout)
            connections.append(connection)
        unfinished.pop_all()
    return connections


def _shut_down_all(connections: list[socket.socket]) -> None:
    """Shut down connections, so that the threads that send or receive over them continue, with an error."""
    for connection in connections:
        shut_down(connection)


class WholeVector:
    """A vector whose parts arrive from several ranks at the same time.

    Parameters
    ----------
    bounds : sequence of int
        The part of rank r begins at ``bounds[r]`` and ends at ``bounds[r + 1]``.

    Attributes
    ----------
    values : array or None
        The whole vector. It is None until the first part arrives, which determines its dtype and number of columns.
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds, self._lock = bounds, make_lock()
        self.values: HostArray | None = None

    def part(self, rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
        """Return the memory for the part of a rank."""
        with self._lock:
            if self.values is None:
                self.values = np.empty((self._bounds[-1], *shape[1:]), dtype)
        part: HostArray = self.values[self._bounds[rank] : self._bounds[rank + 1]]
        if (part.shape, part.dtype) != (shape, dtype):
            raise CommunicationError(f"rank {rank} sends {shape} of {dtype} where {part.shape} of {part.dtype} belong")
        return part


class ProductClient:
    """Connections to the product servers of all ranks.

    Parameters
    ----------
    addresses : list of (host, port)
        Addresses of the servers, in the order of the ranks.
    secret : bytes
    timeout : float
        Time limit, in seconds, for connecting to all ranks, and for the answer of a rank.
    tls : SSLContext or None

    Raises
    ------
    CommunicationError
        If a rank cannot be reached from this process.
    """

    def __init__(self, addresses: list[Address], secret: bytes, timeout: float, tls: ssl.SSLContext | None) -> None:
        self._connect = partial(connect_to_servers, addresses, secret, timeout, tls)
        self._lock = make_lock()  # lets one product run at a time
        self._number, self._num_ranks = 0, len(addresses)
        self._connections = self._connect()
        self._pool = ThreadPoolExecutor(len(addresses), "gsparse products")

    def store(self, number: int, oldest: int, parts: list[HostArray]) -> None:
        """Store a vector on the ranks: its parts, one for each rank, under a number.

        Vectors with numbers below `oldest`, which no solve has taken, are dropped.
        """
        numbers = np.array([number, oldest], np.int64)
        self.multiply("store", [(part, numbers) for part in parts])

    def take(self, number: int, bounds: Sequence[int]) -> HostArray:
        """Return the vector that the ranks have under a number, and drop it there.

        Each rank's part is received where it belongs, between two of the bounds, and need not be copied.
        """
        numbers, whole = np.array([number], np.int64), WholeVector(bounds)
        allocators = [partial(whole.part, rank) for rank in range(self._num_ranks)]
        self.multiply("take", [(numbers[:0], numbers)] * self._num_ranks, allocators)
        assert whole.values is not None
        return whole.values

    def multiply(
        self, operation: str, parts: list[tuple[HostArray, HostArray]], allocators: Iterable[Allocate] | None = None
    ) -> list[Any]:
        """Make every rank multiply its part, and return their results. Only one product runs at a time.

        `parts` has x and the ghosts for each rank. The result of each rank is received into what its allocator returns;
        by default, into a new array. Errors are those of `receive_answer`, and a `CommunicationError` if a rank does
        not answer.

        A product that ends early, because of Ctrl-C or an error of one rank, leaves requests and answers of other ranks
        in transit. The connections are therefore used again only after a complete product; otherwise the next product
        makes new ones.
        """
        with self._lock:
            connections, self._connections = self._connections or self._connect(), []
            self._number = number = self._number + 1
            requests: list[Future[Any]] = []
            errors: list[Exception] = []

            def request(connection: socket.socket, part: tuple[HostArray, HostArray], allocate: Allocate) -> Any:
                try:
                    return self._request(connection, number, operation, part, allocate)
                except Exception as error:
                    errors.append(error)  # before the connections end, which makes the other requests fail too
                    _shut_down_all(connections)
                    raise

            try:
                targets = repeat(np.empty, len(parts)) if allocators is None else allocators
                for connection, part, allocate in zip(connections, parts, targets, strict=True):
                    requests.append(self._pool.submit(request, connection, part, allocate))
                products = [future.result() for future in requests]
            except BaseException as error:
                _shut_down_all(connections)
                wait(requests)
                for connection in connections:
                    connection.close()
                first = errors[0] if errors and isinstance(error, Exception) else error
                raise first from first.__cause__
            self._connections = connections
            return products

    def _request(
        self,
        connection: socket.socket,
        number: int,
        operation: str,
        parts: tuple[HostArray, HostArray],
        allocate: Allocate,
    ) -> Any:
        """Send a request to one rank, and return its product."""
        try:
            send_request(connection, number, operation, parts)
            return receive_answer(connection, number, allocate)
        except OSError as error:
            raise CommunicationError(f"a rank does not answer: {error}") from error

    def close(self) -> None:
        """Close the connections, after the product that is running, if there is one."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._pool.shutdown()
