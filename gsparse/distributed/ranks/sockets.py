"""A communicator between processes, on one host or on several, over TCP.

A message is a header and raw bytes. Nothing is unpickled. The header holds the kind of the call, its number and the
number of bytes. If two ranks make different calls, the receiver notices this by the header. Before the first message,
each side proves that it knows the group's secret (`handshake.prove`).
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.locks import make_lock
from gsparse.distributed.ranks.communicator import TIMEOUT, Buffers, Communicator, bytes_of, yield_cpu
from gsparse.distributed.ranks.handshake import Acceptor, Address, Deadline, join, shut_down
from gsparse.errors import CommunicationError, RankLostError

Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]

_EXCHANGE, _REDUCE, _ABORT = 1, 2, 3
_HEADER = struct.Struct("<BQQ")  # the kind and the number of the call, and the number of bytes that follow
# Largest size of the reason of an abort, in bytes.
_MAX_REASON_BYTES = 4096
# Number of bytes that the system's socket buffers hold if the receiver does not read yet. A call that sends at most
# this number of bytes in all does not block.
_BUFFERED_BYTES = 1 << 17
# Time limit, in seconds, of `abort` for each rank: to wait until the current message is sent, and to send the reason.
_ABORT_TIMEOUT = 1.0

# Seconds for which a receiver polls a connection before it sleeps until data arrive.
_POLL_SECONDS = 1e-3
# Number of bytes that `write` passes to the system at a time.
_PIECE_BYTES = 1 << 20

# `poll` accepts all file descriptors, `select` only those below 1024. Windows has no `poll`, but no such limit either.
_Selector: Callable[[], selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.DefaultSelector)


def readable(connections: Iterable[socket.socket], timeout: float) -> list[socket.socket]:
    """Wait until data have arrived on a connection, or a connection has ended. Return all such connections.

    After `timeout` seconds, the list is empty.
    """
    with _Selector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        ready = selector.select(timeout) if selector.get_map() else []
        return [key.fileobj for key, _ in ready]  # type: ignore[misc] # the type of registered objects is not known


def read(connection: socket.socket, size: int, timeout: float = TIMEOUT) -> bytes:
    """Read `size` bytes. Raises the errors of `read_into`."""
    received = bytearray(size)
    read_into(connection, memoryview(received), timeout)
    return bytes(received)


def write(connection: socket.socket, data: bytes | memoryview) -> None:
    """Send bytes in pieces. The connection's time limit applies to each piece.

    In `socket.socket.sendall`, the time limit would apply to the whole message, which may have gigabytes.

    Raises
    ------
    TimeoutError
        If the receiver reads nothing during the time limit.
    OSError
        If the connection ends.
    """
    unsent = memoryview(data)
    while unsent:
        unsent = unsent[connection.send(unsent[:_PIECE_BYTES]) :]


def read_into(connection: socket.socket, target: memoryview, timeout: float = TIMEOUT) -> None:
    """Fill a buffer with received bytes.

    A non-blocking socket is polled for `_POLL_SECONDS` before the thread sleeps until data arrive. During a solve's
    iterations, data usually arrive sooner than the system could wake a sleeping thread.

    Raises
    ------
    ConnectionResetError
        If the connection ends before the buffer is full.
    TimeoutError
        If nothing arrives for `timeout` seconds. A blocking socket uses its own time limit instead.
    """
    wait_began = 0.0  # 0 while data arrive
    while target:
        try:
            count = connection.recv_into(target)
        except (BlockingIOError, ssl.SSLWantReadError):
            now = time.monotonic()
            wait_began = wait_began or now
            if now - wait_began < _POLL_SECONDS:
                yield_cpu()
            elif not readable([connection], max(0.0, wait_began + timeout - now)):
                raise TimeoutError from None
            continue
        if not count:
            raise ConnectionResetError("the connection was closed")
        wait_began, target = 0.0, target[count:]


def listen(host: str) -> socket.socket:
    """Open a free port on which `SocketCommunicator` accepts the connections of the other ranks.

    Parameters
    ----------
    host : str
        Name or address (IPv4 or IPv6) of this host, as the other ranks can reach it.

    Returns
    -------
    socket.socket
        The listening socket. The other ranks need the address that its ``getsockname()`` returns.

    Examples
    --------
    >>> from gsparse.distributed import listen
    >>> with listen("127.0.0.1") as listener:
    ...     host, port = listener.getsockname()
    >>> host
    '127.0.0.1'
    """
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


class SocketCommunicator(Communicator):
    """The communicator of one rank in a group of processes. All ranks must make one together.

    Each rank connects to every other rank. It sends over the connections that it has made, and receives over the
    connections that it has accepted. So a sending and a receiving thread never use the same connection, which TLS does
    not allow.

    Parameters
    ----------
    rank : int
        The rank of this process.
    addresses : sequence of (host, port)
        Addresses of the listeners of all ranks, including this rank, in the order of the ranks. All listeners must be
        open already, because a refused connection is not tried again.
    listener : socket
        This rank's listener, from `listen`. The constructor closes it.
    secret : bytes
        A secret that only the ranks know.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it. It is also the
        time limit for connecting to all ranks.
    tls : (SSLContext, SSLContext), optional
        The context for connections that this rank accepts, and the context for connections that it makes. Without
        contexts, data are not encrypted.

    Raises
    ------
    CommunicationError
        If a rank does not connect in time, or does not know the secret.

    Examples
    --------
    Two ranks. They are threads in this example, and processes in a real program:

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import numpy
    >>> from gsparse.distributed import SocketCommunicator, listen
    >>> listeners = [listen("127.0.0.1"), listen("127.0.0.1")]
    >>> addresses = [listener.getsockname() for listener in listeners]
    >>> def add(rank):
    ...     values = numpy.array([rank + 1.0])
    ...     with SocketCommunicator(rank, addresses, listeners[rank], b"a secret of the group") as communicator:
    ...         communicator.allreduce(values)
    ...     return values
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(pool.map(add, range(2)))
    [array([3.]), array([3.])]
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address],
        listener: socket.socket,
        secret: bytes,
        timeout: float = TIMEOUT,
        tls: Contexts = (None, None),
    ) -> None:
        self.rank, self.world_size, self.timeout = rank, len(addresses), timeout
        self._addresses, self._number = tuple(addresses), 0
        self._outgoing: dict[int, socket.socket] = {}
        self._sending = {peer: make_lock() for peer in range(self.world_size)}  # held while sending
        self._headers: dict[int, bytes] = {}  # headers that `check` has read, by rank
        self._senders: list[threading.Thread] = []
        others = [peer for peer in range(self.world_size) if peer != rank]
        deadline, acceptor = Deadline(timeout), Acceptor(listener, rank, self.world_size, secret, tls[0])
        self._incoming = acceptor.connections
        try:
            with acceptor:
                for peer in others:
                    self._outgoing[peer] = join(self._addresses[peer], rank, peer, secret, deadline, tls[1])
                acceptor.wait(deadline)
            for connection in (*self._outgoing.values(), *self._incoming.values()):
                _set_buffers(connection)
                connection.settimeout(timeout)
            for connection in self._incoming.values():
                connection.setblocking(False)
        except OSError as error:
            self.close()
            missing = sorted({*others} - ({*self._outgoing} & {*self._incoming}))
            text = f"rank {rank} cannot reach ranks {missing} in {timeout:g} s: {error}{acceptor.refused}"
            raise CommunicationError(text) from error
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------- the contract

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        number = self._next_number()
        messages = {peer: bytes_of(np.ascontiguousarray(a)) for peer, a in sends.items() if a.nbytes}
        wait_for_sends = self._send_all(_EXCHANGE, number, messages)

        def wait() -> None:
            for peer, target in receives.items():
                if target.nbytes:
                    self._receive(peer, _EXCHANGE, number, bytes_of(target))
            wait_for_sends()

        return wait

    def allreduce(self, values: npt.NDArray[Any]) -> None:
        # Partial sums go up a binary tree to rank 0, and the total goes down again. On the way up, each rank whose
        # number is a multiple of 2 * step adds the sum of the rank + step. The order of additions is always the same.
        assert values.flags.c_contiguous
        number, received, own = self._next_number(), np.empty_like(values), bytes_of(values)
        if not values.nbytes:
            return
        step = 1
        while step < self.world_size and self.rank % (2 * step) == 0:
            if self.rank + step < self.world_size:
                self._receive(self.rank + step, _REDUCE, number, bytes_of(received))
                values += received
            step *= 2
        if self.rank:
            parent = self.rank - (self.rank & -self.rank)
            self._send(parent, _REDUCE, number, own)
            self._receive(parent, _REDUCE, number, own)
            step = self.rank & -self.rank
        while step > 1:
            step //= 2
            if self.rank + step < self.world_size:
                self._send(self.rank + step, _REDUCE, number, own)

    def check(self, ranks: Sequence[int] | None = None) -> None:
        watched = self._incoming if ranks is None else {peer: self._incoming[peer] for peer in ranks}
        waiting = {peer: c for peer, c in watched.items() if peer not in self._headers}
        arrived = readable(waiting.values(), 0)
        for peer in [peer for peer, connection in waiting.items() if connection in arrived]:
            try:
                header = waiting[peer].recv(_HEADER.size)
                if not header:
                    raise ConnectionResetError("the connection was closed")
                self._headers[peer] = header + read(waiting[peer], _HEADER.size - len(header), self.timeout)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue  # the bytes were a TLS record without data
            except OSError as error:
                raise self._communication_error(peer, error) from error
            if self._headers[peer][0] == _ABORT:
                self._receive(peer, _ABORT, 0, memoryview(b""))

    def abort(self, reason: str) -> None:
        text = reason.encode()[:_MAX_REASON_BYTES]
        for peer, connection in self._outgoing.items():
            if not self._sending[peer].acquire(timeout=_ABORT_TIMEOUT):
                shut_down(connection, socket.SHUT_WR)  # Another thread has sent only a part of a message.
                continue
            try:
                with suppress(OSError):
                    connection.settimeout(_ABORT_TIMEOUT)
                    write(connection, _HEADER.pack(_ABORT, 0, len(text)) + text)
            finally:
                self._sending[peer].release()

    def close(self) -> None:
        # Shutting a connection down before closing it wakes a thread that still waits for data.
        outgoing = [(c, socket.SHUT_WR) for c in self._outgoing.values()]
        for connection, direction in [*outgoing, *((c, socket.SHUT_RD) for c in self._incoming.values())]:
            shut_down(connection, direction)
            connection.close()
        for sender in self._senders:
            sender.join(self.timeout)

    # ----------------------------------------------------------------- messages

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _send_all(self, kind: int, number: int, messages: dict[int, memoryview]) -> Callable[[], None]:
        """Send messages, and return a callable that waits until they have been sent.

        Messages that fit into the socket buffers are sent by this thread. Larger messages are sent by another thread,
        so that this thread can receive at the same time. Otherwise, all ranks could block while sending to each other.
        """
        if sum(len(message) for message in messages.values()) <= _BUFFERED_BYTES:
            for peer, message in messages.items():
                self._send(peer, kind, number, message)
            return lambda: None
        errors: list[Exception] = []

        def send() -> None:
            try:
                for peer, message in messages.items():
                    self._send(peer, kind, number, message)
            except CommunicationError as error:
                errors.append(error)

        sender = threading.Thread(target=send, name=f"gsparse rank {self.rank} sends", daemon=True)
        self._senders = [thread for thread in self._senders if thread.is_alive()] + [sender]
        sender.start()

        def wait() -> None:
            sender.join()
            if errors:
                raise errors[0]

        return wait

    def _send(self, peer: int, kind: int, number: int, message: memoryview) -> None:
        connection, header = self._outgoing[peer], _HEADER.pack(kind, number, len(message))
        try:
            with self._sending[peer]:
                try:
                    if len(message) <= _BUFFERED_BYTES:
                        write(connection, header + message)
                    else:
                        write(connection, header)
                        write(connection, message)
                except BaseException:
                    # Otherwise, the receiver would read later bytes as the rest of this message.
                    shut_down(connection, socket.SHUT_WR)
                    raise
        except OSError as error:
            raise self._communication_error(peer, error) from error

    def _receive(self, peer: int, kind: int, number: int, target: memoryview) -> None:
        connection = self._incoming[peer]
        try:
            header = self._headers.pop(peer, None) or read(connection, _HEADER.size, self.timeout)
            sent_kind, sent_number, size = _HEADER.unpack(header)
            if sent_kind == _ABORT:
                reason = read(connection, min(size, _MAX_REASON_BYTES), self.timeout)
                raise CommunicationError(reason.decode(errors="replace"))
            if (sent_kind, sent_number, size) != (kind, number, len(target)):
                expected = f"{_KIND_NAMES[kind]} {number} of {len(target)} bytes"
                sent = f"{_KIND_NAMES.get(sent_kind, 'noise')} {sent_number} of {size} bytes"
                raise CommunicationError(
                    f"ranks disagree: rank {self.rank} expects {expected}, rank {peer} sent {sent}"
                )
            read_into(connection, target, self.timeout)
        except OSError as error:
            raise self._communication_error(peer, error) from error

    def _communication_error(self, peer: int, error: OSError) -> CommunicationError:
        """Return the error for a rank that is silent, or whose connection has ended."""
        host, port = self._addresses[peer][:2]
        if isinstance(error, TimeoutError):
            return CommunicationError(f"rank {peer} at {host}:{port} has been silent for {self.timeout:g} s")
        return RankLostError(peer, f"{host}:{port}", str(error))


_KIND_NAMES = {_EXCHANGE: "exchange", _REDUCE: "allreduce"}


def _set_buffers(connection: socket.socket) -> None:
    """Make the system's buffers large enough for `_BUFFERED_BYTES`, even if the receiver does not read yet."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _BUFFERED_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * _BUFFERED_BYTES)
