"""Ranks that are processes, on one host or several, over TCP.

A frame is a header (what it belongs to, how many bytes) and raw bytes: nothing is unpickled. Before the first frame
each side proves that it knows the group's secret. Ranks that are about different things see it by the header.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.ranks.communicator import Buffers, Communicator
from gsparse.distributed.ranks.handshake import (
    MAX_STRANGERS,
    Acceptor,
    Address,
    Deadline,
    closed_on_error,
    connect,
    prove,
    read_before,
    shut_down,
)
from gsparse.errors import CommunicationError, RankLostError

__all__ = ["SocketCommunicator", "listen"]

Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]

_EXCHANGE, _REDUCE, _ABORT = 1, 2, 3
_HEADER = struct.Struct("<BQQ")  # kind, number of the call, bytes that follow
_ARRAY = struct.Struct("<8sQQ")  # dtype, rows, columns (0: a vector)
_HELLO = struct.Struct("<I")  # rank
_LONGEST_REASON = 4096
# Up to so many bytes, all of what a call sends, the system's buffers take without anyone having to read.
_AT_ONCE = 1 << 17
_TIMEOUT = 60.0
# Seconds that what comes is looked for before it is waited for.
_SPIN = 1e-3


def listen(host: str) -> socket.socket:
    """Open a port, any that is free, for `SocketCommunicator` to accept peers on.

    Parameters
    ----------
    host : str
        An address of this host that the other ranks reach: a name, IPv4 or IPv6.

    Returns
    -------
    socket.socket
        What its ``getsockname()`` gives is what the other ranks have to know.

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
    """One process's end. All ranks make theirs at the same time.

    Each rank connects to each other one: what it sends goes over its own connection, what it receives over the other's.
    So a thread that sends and one that receives never touch the same connection, which TLS would not bear.

    Parameters
    ----------
    rank : int
        Of this process, by which `addresses` has its own.
    addresses : sequence of (host, port)
        Of all ranks' listeners, by rank.
    listener : socket
        This rank's own (`listen`); it is closed.
    secret : bytes
        The same for all ranks, known to nobody else.
    timeout : float
        Seconds that another rank may be silent when something of it is waited for, and that connecting to all ranks may
        take in all.
    tls : (SSLContext, SSLContext), optional
        For accepted connections and for those that this rank makes; without, what is sent can be read on the way.

    Raises
    ------
    CommunicationError
        Where a rank is not there in time, or does not know the secret.

    Examples
    --------
    Two ranks; here they are threads, and would be processes:

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
        timeout: float = _TIMEOUT,
        tls: Contexts = (None, None),
    ) -> None:
        self.rank, self.world_size, self.timeout = rank, len(addresses), timeout
        self._addresses, self._secret = tuple(addresses), secret
        self._serve_tls, self._connect_tls = tls
        self._number = 0
        self._outgoing: dict[int, socket.socket] = {}
        self._incoming: dict[int, socket.socket] = {}
        self._headers: dict[int, bytes] = {}  # read before anyone asked for them
        self._senders: list[threading.Thread] = []
        self._all_accepted = threading.Event()
        others = [peer for peer in range(self.world_size) if peer != rank]
        deadline, most = Deadline(timeout), self.world_size + MAX_STRANGERS
        name = f"gsparse rank {rank} accepts"
        acceptor = Acceptor(listener, self._identify, self._admit, self._serve_tls, most, name)
        try:
            with acceptor:
                for peer in others:
                    self._outgoing[peer] = self._connect(peer, deadline)
                if others and not self._all_accepted.wait(deadline.left()):
                    raise TimeoutError("timed out")
        except OSError as error:
            self.close()
            missing = sorted({*others} - ({*self._outgoing} & {*self._incoming}))
            text = f"rank {rank} cannot reach ranks {missing} in {timeout:g} s: {error}{acceptor.refused}"
            raise CommunicationError(text) from error
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------- connections

    def _connect(self, peer: int, deadline: Deadline) -> socket.socket:
        connection = connect(self._addresses[peer], self._connect_tls, deadline)
        with closed_on_error(connection):
            connection.sendall(_HELLO.pack(self.rank))
            prove(connection, self._secret, self.rank, peer, deadline, connects=True)
            _set_buffers(connection)
            connection.settimeout(self.timeout)
        return connection

    def _identify(self, connection: socket.socket, deadline: Deadline) -> int:
        """Return the rank that a new connection comes from, once it has proved that."""
        (peer,) = _HELLO.unpack(read_before(connection, _HELLO.size, deadline))
        self._check_expected(peer)
        prove(connection, self._secret, self.rank, peer, deadline, connects=False)
        return int(peer)

    def _admit(self, peer: int, connection: socket.socket) -> None:
        self._check_expected(peer)  # (again: another connection of that rank may have been faster)
        _set_buffers(connection)
        connection.setblocking(False)
        self._incoming[peer] = connection
        if len(self._incoming) == self.world_size - 1:
            self._all_accepted.set()

    def _check_expected(self, peer: int) -> None:
        if not 0 <= peer < self.world_size or peer == self.rank or peer in self._incoming:
            raise CommunicationError(f"it called itself rank {peer}")

    # -------------------------------------------------------------- the contract

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        number = self._next()
        frames = {peer: _bytes(np.ascontiguousarray(a)) for peer, a in sends.items() if a.nbytes}
        wait_for_sends = self._send_all(_EXCHANGE, number, frames)

        def wait() -> None:
            for peer, target in receives.items():
                if target.nbytes:
                    self._receive(peer, _EXCHANGE, number, _bytes(target))
            wait_for_sends()

        return wait

    def allreduce(self, values: npt.NDArray[Any]) -> None:
        # Up a binary tree and down again, so additions have always the same order.
        assert values.flags.c_contiguous
        number, part, own = self._next(), np.empty_like(values), _bytes(values)
        if not values.nbytes:
            return
        step = 1
        while step < self.world_size and self.rank % (2 * step) == 0:
            if self.rank + step < self.world_size:
                self._receive(self.rank + step, _REDUCE, number, _bytes(part))
                values += part
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

    def check(self) -> None:
        waiting = {peer: c for peer, c in self._incoming.items() if peer not in self._headers}
        readable = select.select(list(waiting.values()), [], [], 0)[0]
        for peer in [peer for peer, connection in waiting.items() if connection in readable]:
            try:
                begun = waiting[peer].recv(_HEADER.size)
                if not begun:
                    raise ConnectionResetError("the connection was closed")
                self._headers[peer] = begun + read(waiting[peer], _HEADER.size - len(begun), self.timeout)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue  # (nothing but TLS's own)
            except OSError as error:
                raise self._lost(peer, error) from error
            if self._headers[peer][0] == _ABORT:
                self._receive(peer, _ABORT, 0, memoryview(b""))

    def abort(self, reason: str) -> None:
        text = reason.encode()[:_LONGEST_REASON]
        for connection in self._outgoing.values():
            with suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(_HEADER.pack(_ABORT, 0, len(text)) + text)

    def close(self) -> None:
        # (shut down before: a thread that still waits for one of them is woken)
        ends = [(c, socket.SHUT_WR) for c in self._outgoing.values()]
        for connection, way in [*ends, *((c, socket.SHUT_RD) for c in self._incoming.values())]:
            shut_down(connection, way)
            connection.close()
        for sender in self._senders:
            sender.join(self.timeout)

    # ------------------------------------------------------------------- frames

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _send_all(self, kind: int, number: int, frames: dict[int, memoryview]) -> Callable[[], None]:
        """Send at once what buffers take; more by a thread, since peers may all be sending too."""
        if sum(len(frame) for frame in frames.values()) <= _AT_ONCE:
            for peer, frame in frames.items():
                self._send(peer, kind, number, frame)
            return lambda: None
        failed: list[Exception] = []

        def send() -> None:
            try:
                for peer, frame in frames.items():
                    self._send(peer, kind, number, frame)
            except CommunicationError as error:
                failed.append(error)

        sender = threading.Thread(target=send, name=f"gsparse rank {self.rank} sends", daemon=True)
        self._senders = [thread for thread in self._senders if thread.is_alive()] + [sender]
        sender.start()

        def wait() -> None:
            sender.join()
            if failed:
                raise failed[0]

        return wait

    def _send(self, peer: int, kind: int, number: int, frame: memoryview) -> None:
        connection, header = self._outgoing[peer], _HEADER.pack(kind, number, len(frame))
        try:
            if len(frame) <= _AT_ONCE:
                connection.sendall(header + frame)
            else:
                connection.sendall(header)
                connection.sendall(frame)
        except OSError as error:
            raise self._lost(peer, error) from error

    def _receive(self, peer: int, kind: int, number: int, target: memoryview) -> None:
        connection = self._incoming[peer]
        try:
            header = self._headers.pop(peer, None) or read(connection, _HEADER.size, self.timeout)
            got, got_number, size = _HEADER.unpack(header)
            if got == _ABORT:
                reason = read(connection, min(size, _LONGEST_REASON), self.timeout)
                raise CommunicationError(reason.decode(errors="replace"))
            if (got, got_number, size) != (kind, number, len(target)):
                expected = f"{_NAMES[kind]} {number} of {len(target)} bytes"
                sent = f"{_NAMES.get(got, 'noise')} {got_number} of {size} bytes"
                raise CommunicationError(
                    f"ranks disagree: rank {self.rank} expects {expected}, rank {peer} sent {sent}"
                )
            read_into(connection, target, self.timeout)
        except OSError as error:
            raise self._lost(peer, error) from error

    def _lost(self, peer: int, error: OSError) -> CommunicationError:
        host, port = self._addresses[peer][:2]
        if isinstance(error, TimeoutError):
            return CommunicationError(f"rank {peer} at {host}:{port} has been silent for {self.timeout:g} s")
        return RankLostError(peer, f"{host}:{port}", str(error))


_NAMES = {_EXCHANGE: "exchange", _REDUCE: "allreduce"}


def _set_buffers(connection: socket.socket) -> None:
    """Have the system take what a call sends at once, without anyone having to read."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _AT_ONCE)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * _AT_ONCE)


def _bytes(values: npt.NDArray[Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def read(connection: socket.socket, size: int, timeout: float = _TIMEOUT) -> bytes:
    """Read so many bytes; `ConnectionResetError` where the connection ends before."""
    found = bytearray(size)
    read_into(connection, memoryview(found), timeout)
    return bytes(found)


def send_array(connection: socket.socket, values: npt.NDArray[Any]) -> None:
    """Send an array of numbers: a header of its dtype and shape, and its bytes."""
    values = np.ascontiguousarray(values)
    rows, columns = (values.size, 0) if values.ndim == 1 else values.shape
    connection.sendall(_ARRAY.pack(values.dtype.str.encode(), rows, columns))
    connection.sendall(_bytes(values))


def take_array(connection: socket.socket) -> npt.NDArray[Any]:
    """Receive what `send_array` sends; `CommunicationError` where it is no array of numbers."""
    kind, rows, columns = _ARRAY.unpack(read(connection, _ARRAY.size))
    try:
        dtype = np.dtype(kind.rstrip(b"\0").decode())
    except (TypeError, ValueError) as error:
        raise CommunicationError(f"an array of numbers was expected, got {kind!r}") from error
    if dtype.kind not in "biufc":
        raise CommunicationError(f"an array of numbers was expected, got {dtype}")
    found = np.empty((rows, columns) if columns else rows, dtype)
    read_into(connection, _bytes(found))
    return found


def read_into(connection: socket.socket, target: memoryview, timeout: float = _TIMEOUT) -> None:
    """Fill a buffer with what comes; `ConnectionResetError` where the connection ends before.

    A socket that does not block is looked at again and again for a while, then waited for: what one rank has to wait
    for in an iteration comes sooner than the system could wake it (2 processes on a virtual machine: an all-reduce took
    310 us asleep).
    """
    began = 0.0
    while target:
        try:
            count = connection.recv_into(target)
        except (BlockingIOError, ssl.SSLWantReadError):
            now = time.monotonic()
            began = began or now
            if now - began < _SPIN:
                os.sched_yield()
            elif not select.select([connection], [], [], max(0.0, began + timeout - now))[0]:
                raise TimeoutError from None
            continue
        if not count:
            raise ConnectionResetError("the connection was closed")
        began, target = 0.0, target[count:]
