"""Products with a vector that one process holds: each rank gets what it needs of it, and they never talk to each other.

A rank answers at a port of its own. What comes there is raw numbers behind a header, and nothing before the secret.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.sockets import prove, read, send_array, take_array
from gsparse.errors import CommunicationError

__all__ = ["HOWS", "ProductClient", "ProductServer", "local_product"]

Host = npt.NDArray[Any]

HOWS = ("plain", "transposed", "adjoint")
_REQUEST, _ANSWER = struct.Struct("<B"), struct.Struct("<BI")
# Numbers that both ends give themselves when they prove the secret.
_SERVER, _CLIENT = 1, 2


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


class ProductServer(socketserver.ThreadingTCPServer):
    """Answers requests for a rank's products, until it is closed.

    Parameters
    ----------
    matrix : RankMatrix
    host : str
        The worker's own address.
    secret : bytes
    tls : SSLContext or None
    """

    daemon_threads, block_on_close = True, False

    def __init__(self, matrix: RankMatrix, host: str, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self.matrix, self.secret, self.tls = matrix, secret, tls
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections: set[socket.socket] = set()
        super().__init__((host, 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="gsparse products", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server_address[:2]
        return str(host), int(port)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # (strangers, and clients that are gone: their connection is closed)

    def close(self) -> None:
        """End all threads."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()


class _Handler(socketserver.BaseRequestHandler):
    server: ProductServer

    def handle(self) -> None:
        connection: socket.socket = self.request
        connection.settimeout(10.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.server.tls is not None:
            connection = self.server.tls.wrap_socket(connection, server_side=True)
        prove(connection, self.server.secret, _SERVER, _CLIENT, connects=False, purpose=b"products")
        connection.settimeout(None)
        with suppress(ConnectionError):
            while True:
                (how,) = _REQUEST.unpack(read(connection, _REQUEST.size))
                self._answer(connection, HOWS[how], take_array(connection), take_array(connection))

    def _answer(self, connection: socket.socket, how: str, x: Host, ghosts: Host) -> None:
        try:
            found = local_product(self.server.matrix, x, ghosts, how)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".encode()
            connection.sendall(_ANSWER.pack(0, len(text)) + text)
            return
        parts = found if isinstance(found, tuple) else (found,)
        connection.sendall(_ANSWER.pack(1, len(parts)))
        for part in parts:
            send_array(connection, part)


class ProductClient:
    """Connections to the product servers of all ranks.

    Parameters
    ----------
    addresses : list of (host, port)
    secret : bytes
    timeout : float
        Seconds that a rank may take to connect, and to answer.
    tls : SSLContext or None

    Raises
    ------
    CommunicationError
        Where a rank cannot be reached from here.
    """

    def __init__(
        self, addresses: list[tuple[str, int]], secret: bytes, timeout: float, tls: ssl.SSLContext | None
    ) -> None:
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._pool = ThreadPoolExecutor(len(addresses), "gsparse products")
        try:
            for host, port in addresses:
                connection = socket.create_connection((host, port), timeout)
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_hostname=host if tls.check_hostname else None)
                self._connections.append(connection)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                prove(connection, secret, _CLIENT, _SERVER, connects=True, purpose=b"products")
        except (OSError, CommunicationError) as error:
            self.close()
            raise CommunicationError(f"{host}:{port} cannot be reached from here: {error}") from error

    def multiply(self, how: str, parts: list[tuple[Host, Host]]) -> list[Any]:
        """Have every rank multiply at the same time; one call at a time."""
        with self._lock:
            return list(self._pool.map(self._ask, self._connections, parts, [HOWS.index(how)] * len(parts)))

    def _ask(self, connection: socket.socket, parts: tuple[Host, Host], how: int) -> Any:
        try:
            connection.sendall(_REQUEST.pack(how))
            for part in parts:
                send_array(connection, part)
            is_right, count = _ANSWER.unpack(read(connection, _ANSWER.size))
            if not is_right:
                raise ValueError(read(connection, count).decode())
            found = tuple(take_array(connection) for _ in range(count))
        except OSError as error:
            raise CommunicationError(f"a rank does not answer: {error}") from error
        return found if count > 1 else found[0]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._pool.shutdown()
