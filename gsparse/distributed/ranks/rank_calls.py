"""Calls that a client asks all ranks to run at the same time, over connections of its own (`product_connections`).

The client asks every rank for the operation "call" and then watches all connections. During a call it sends nothing, so
a rank sees by its connection when the client has given up, and then ends the call. The other way round, the connection
to a rank whose process has died ends. A rank that is silent is still running, or its process is stopped.
"""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from gsparse.distributed.ranks.handshake import Address, shut_down
from gsparse.distributed.ranks.messages import is_silent
from gsparse.distributed.ranks.product_connections import connect_to_servers, receive_answer, send_request

_NO_NUMBERS = np.empty(0)


class CallProgress:
    """Calls that run on all ranks.

    Parameters
    ----------
    connections : list of socket
        Those to the ranks, in their order.
    number : int
        The number of the requests, which the answers repeat.
    requests : sequence of bytes
        What each rank is asked for.

    Attributes
    ----------
    num_missing : int
        Number of ranks that have not answered. Those that cannot answer any more stay among them, and so do those whose
        server has answered with an error of its own.
    """

    def __init__(self, connections: list[socket.socket], number: int, requests: Sequence[bytes]) -> None:
        self._number, self.num_missing = number, len(connections)
        self._pending = selectors.DefaultSelector()
        self._unsent: list[tuple[int, bytes | Exception]] = []
        for rank, (connection, request) in enumerate(zip(connections, requests, strict=True)):
            try:
                send_request(connection, number, "call", (np.frombuffer(request, np.uint8), _NO_NUMBERS))
            except OSError as error:
                self._unsent.append((rank, error))
            else:
                self._pending.register(connection, selectors.EVENT_READ, rank)

    def wait(self, seconds: float) -> list[tuple[int, bytes | Exception]]:
        """Wait until the calls of some ranks end, for at most this time.

        Returns
        -------
        list of (int, bytes or Exception)
            The ranks, and what each has answered, or why it cannot answer any more.
        """
        ended, self._unsent = self._unsent, []
        for key, _ in self._pending.select(0 if ended else seconds):
            connection: Any = key.fileobj
            self._pending.unregister(connection)
            try:
                ended.append((key.data, receive_answer(connection, self._number).tobytes()))
                self.num_missing -= 1
            except Exception as error:
                ended.append((key.data, error))
        return ended

    def close(self) -> None:
        """Free the resources of `wait`."""
        self._pending.close()


class RankCalls:
    """Connections to all ranks for calls. Only one call may run at a time.

    Parameters
    ----------
    addresses : list of (host, port)
        Addresses of the ranks' product servers, in their order.
    secret : bytes
    timeout : float
        Time limit, in seconds, for connecting to all ranks, and for receiving an answer that has begun to arrive.
    tls : SSLContext or None
    """

    def __init__(self, addresses: list[Address], secret: bytes, timeout: float, tls: ssl.SSLContext | None) -> None:
        self._new_connections = partial(connect_to_servers, addresses, secret, timeout, tls)
        self._connections: list[socket.socket] = []
        self._number = 0

    def connect(self) -> None:
        """Connect to the ranks, unless the connections of the last call are still open.

        Raises
        ------
        CommunicationError
            If a rank cannot be reached.
        """
        if not (self._connections and all(map(is_silent, self._connections))):
            self.close()
            self._connections = self._new_connections()

    @contextmanager
    def running(self, requests: Sequence[bytes]) -> Iterator[CallProgress]:
        """Ask each rank for a call, and yield the calls.

        If the block raises an exception, or ends before all ranks have answered, the connections are closed, which ends
        the calls on the ranks.
        """
        self.connect()
        connections, self._connections = self._connections, []
        self._number += 1
        try:
            with closing(CallProgress(connections, self._number, requests)) as calls:
                yield calls
        except BaseException:
            _close(connections)
            raise
        if calls.num_missing:
            _close(connections)
        else:
            self._connections = connections

    def close(self) -> None:
        """Close the connections that no call uses."""
        connections, self._connections = self._connections, []
        _close(connections)


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        shut_down(connection)
        connection.close()
