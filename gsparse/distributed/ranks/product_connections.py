"""Products with a vector that one process holds: each rank gets what it needs of it, and they never talk to each other.

A rank answers at a port of its own. What comes there is raw numbers behind a header, and nothing before the secret.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.ranks.handshake import Acceptor, Address, Deadline, connect, prove, shut_down
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.sockets import listen, read, send_array, take_array
from gsparse.errors import CommunicationError

__all__ = ["HOWS", "ProductClient", "ProductServer", "local_product"]

Host = npt.NDArray[Any]

HOWS = ("plain", "transposed", "adjoint")
# A request: its number, and how to multiply. An answer: that number, whether it is right, and how many arrays follow
# (or else, how many bytes of an error's text).
_REQUEST, _ANSWER = struct.Struct("<QB"), struct.Struct("<QBI")
# Numbers that both ends give themselves when they prove the secret.
_SERVER, _CLIENT = 1, 2
# A client that vanished without closing its connection (its host lost power, or its network) is noticed after a minute
# of silence and six questions of the system, ten seconds apart, that nobody answered.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


def local_product(matrix: RankMatrix, x: Host, ghosts: Host, how: str) -> Any:
    """Multiply a rank's blocks by its part of x and the ghosts; transposed, give its part of y and what ghosts get."""
    inner, outer, boundary = matrix.diagonal, matrix.off_diagonal, matrix.boundary
    with matrix.device.active():
        if how == "plain":
            y, more = inner @ x, outer @ ghosts
            y = y.astype(np.result_type(y, more), copy=False)
            y[boundary] += more
            return y
        turned = (inner.T, outer.T) if how == "transposed" else (inner.conj().T, outer.conj().T)
        return turned[0] @ x, turned[1] @ x[boundary]


class ProductServer:
    """Answers requests for a rank's products, until it is closed.

    Each client that knows the secret is served by a thread of its own.

    Parameters
    ----------
    matrix : RankMatrix
    host : str
        The worker's own address.
    secret : bytes
    tls : SSLContext or None

    Attributes
    ----------
    address : (str, int)
        Host and port that clients connect to.
    """

    def __init__(self, matrix: RankMatrix, host: str, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self.matrix, self._secret = matrix, secret
        self._connections: set[socket.socket] = set()
        listener = listen(host)
        own, port = listener.getsockname()[:2]
        self.address: Address = str(own), int(port)
        self._acceptor = Acceptor(listener, self._identify, self._admit, tls, name="gsparse products")

    def close(self) -> None:
        """End all threads: those that wait for a client at once, those that multiply after their product."""
        self._acceptor.close()
        for connection in list(self._connections):
            shut_down(connection)

    def _identify(self, connection: socket.socket, deadline: Deadline) -> int:
        prove(connection, self._secret, _SERVER, _CLIENT, deadline, connects=False, purpose=b"products")
        return _CLIENT

    def _admit(self, peer: int, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connections.add(connection)
        threading.Thread(target=self._serve, args=(connection,), name="gsparse products", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(Exception), connection:  # (clients that are gone, or that do not keep to the protocol)
            while True:
                number, how = _REQUEST.unpack(read(connection, _REQUEST.size))
                self._answer(connection, number, HOWS[how], take_array(connection), take_array(connection))
        self._connections.discard(connection)

    def _answer(self, connection: socket.socket, number: int, how: str, x: Host, ghosts: Host) -> None:
        try:
            found = local_product(self.matrix, x, ghosts, how)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".encode()
            connection.sendall(_ANSWER.pack(number, 0, len(text)) + text)
            return
        parts = found if isinstance(found, tuple) else (found,)
        connection.sendall(_ANSWER.pack(number, 1, len(parts)))
        for part in parts:
            send_array(connection, part)


def _wake(connections: list[socket.socket]) -> None:
    """End connections, so that the threads that send to them or wait for them go on, with an error."""
    for connection in connections:
        shut_down(connection)


class ProductClient:
    """Connections to the product servers of all ranks.

    Parameters
    ----------
    addresses : list of (host, port)
    secret : bytes
    timeout : float
        Seconds that connecting to all ranks may take, and that a rank may take to answer.
    tls : SSLContext or None

    Raises
    ------
    CommunicationError
        Where a rank cannot be reached from here.
    """

    def __init__(self, addresses: list[Address], secret: bytes, timeout: float, tls: ssl.SSLContext | None) -> None:
        self._addresses, self._secret, self._timeout, self._tls = addresses, secret, timeout, tls
        self._lock = threading.Lock()
        self._number = 0
        self._connections = self._connected()
        self._pool = ThreadPoolExecutor(len(addresses), "gsparse products")

    def _connected(self) -> list[socket.socket]:
        """Connect to all ranks."""
        deadline, connections = Deadline(self._timeout), []
        with ExitStack() as unfinished:
            for host, port in self._addresses:
                try:
                    connection = unfinished.enter_context(connect((host, port), self._tls, deadline))
                    prove(connection, self._secret, _CLIENT, _SERVER, deadline, connects=True, purpose=b"products")
                except (OSError, CommunicationError) as error:
                    raise CommunicationError(f"{host}:{port} cannot be reached from here: {error}") from error
                connection.settimeout(self._timeout)
                connections.append(connection)
            unfinished.pop_all()
        return connections

    def multiply(self, how: str, parts: list[tuple[Host, Host]]) -> list[Any]:
        """Have every rank multiply at the same time; one call at a time.

        Whatever ends a product early (Ctrl-C, an error of one rank) leaves requests and answers of other ranks on their
        way. So the connections are used again only after a complete product; else the next one makes new ones.
        """
        with self._lock:
            connections, self._connections = self._connections or self._connected(), []
            self._number = number = self._number + 1
            asked: list[Future[Any]] = []
            failed: list[Exception] = []

            def ask(connection: socket.socket, part: tuple[Host, Host]) -> Any:
                try:
                    return self._ask(connection, number, HOWS.index(how), part)
                except Exception as error:
                    failed.append(error)  # (now, since the others fail too when their connections end)
                    _wake(connections)
                    raise

            try:
                for connection, part in zip(connections, parts, strict=True):
                    asked.append(self._pool.submit(ask, connection, part))
                found = [answered.result() for answered in asked]
            except BaseException as error:
                _wake(connections)
                wait(asked)
                for connection in connections:
                    connection.close()
                first = failed[0] if failed and isinstance(error, Exception) else error
                raise first from first.__cause__
            self._connections = connections
            return found

    def _ask(self, connection: socket.socket, number: int, how: int, parts: tuple[Host, Host]) -> Any:
        try:
            connection.sendall(_REQUEST.pack(number, how))
            for part in parts:
                send_array(connection, part)
            answers, is_right, count = _ANSWER.unpack(read(connection, _ANSWER.size))
            if answers != number:
                raise CommunicationError(f"a rank answered product {answers} where product {number} was asked for")
            if not is_right:
                raise ValueError(read(connection, count).decode())
            found = tuple(take_array(connection) for _ in range(count))
        except OSError as error:
            raise CommunicationError(f"a rank does not answer: {error}") from error
        return found if count > 1 else found[0]

    def close(self) -> None:
        """Let go of the connections; a product that runs is finished before."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._pool.shutdown()
