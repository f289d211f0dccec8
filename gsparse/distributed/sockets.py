"""Ranks that are processes, on one host or several, over TCP.

A frame is a header (what it belongs to, how many bytes) and raw bytes: nothing is unpickled. Before the first frame
each side proves that it knows the group's secret. Ranks that are about different things see it by the header.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.communicator import Buffers, Communicator
from gsparse.errors import CommunicationError, RankLostError

__all__ = ["SocketCommunicator", "listen"]

Address = tuple[str, int]

_EXCHANGE, _REDUCE, _ABORT = 1, 2, 3
_HEADER = struct.Struct("<BQQ")  # kind, number of the call, bytes that follow
_HELLO = struct.Struct("<I")  # rank
_NONCE = 32
_LONGEST_REASON = 4096
# Up to so many bytes, all of what a call sends, the system's buffers take without anyone having to read.
_AT_ONCE = 1 << 16
_TIMEOUT = 60.0


def listen(host: str) -> socket.socket:
    """Open a port, any that is free, on a host's own address, for `SocketCommunicator` to accept peers on."""
    return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


class SocketCommunicator(Communicator):
    """One process's end. All ranks make theirs at the same time; each pair is connected once.

    Parameters
    ----------
    rank : int
    addresses : sequence of (host, port)
        Of all ranks' listeners, by rank.
    listener : socket
        This rank's own (`listen`); it is closed.
    secret : bytes
        The same for all ranks, known to nobody else.
    timeout : float
        Seconds that another rank may be silent when something of it is waited for.

    Raises
    ------
    CommunicationError
        Where a rank is not there in time, or does not know the secret.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address],
        listener: socket.socket,
        secret: bytes,
        timeout: float = _TIMEOUT,
    ) -> None:
        self.rank, self.world_size = rank, len(addresses)
        self._addresses, self._secret, self.timeout = tuple(addresses), secret, timeout
        self._number = 0
        self._peers: dict[int, socket.socket] = {}
        self._senders: list[threading.Thread] = []
        try:
            with listener:
                listener.settimeout(timeout)
                for peer in range(rank):
                    self._peers[peer] = self._connect(peer)
                while len(self._peers) < self.world_size - 1:
                    peer, connection = self._accept(listener)
                    self._peers[peer] = connection
        except OSError as error:
            self.close()
            missing = sorted({*range(self.world_size)} - {rank, *self._peers})
            raise CommunicationError(f"rank {rank} cannot reach ranks {missing} in {timeout:g} s: {error}") from error
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------- connections

    def _connect(self, peer: int) -> socket.socket:
        connection = socket.create_connection(self._addresses[peer], self.timeout)
        with _closed_on_error(connection):
            self._set_up(connection)
            connection.sendall(_HELLO.pack(self.rank))
            self._prove(connection, peer)
        return connection

    def _accept(self, listener: socket.socket) -> tuple[int, socket.socket]:
        connection, _ = listener.accept()
        with _closed_on_error(connection):
            self._set_up(connection)
            (peer,) = _HELLO.unpack(_read(connection, _HELLO.size))
            if not self.rank < peer < self.world_size or peer in self._peers:
                raise CommunicationError(f"a stranger called itself rank {peer}")
            self._prove(connection, peer)
        return peer, connection

    def _set_up(self, connection: socket.socket) -> None:
        connection.settimeout(self.timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _AT_ONCE)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _AT_ONCE)

    def _prove(self, connection: socket.socket, peer: int) -> None:
        """Have each side answer the other's challenge; an answer serves for this pair of ranks and direction only."""
        nonce = secrets.token_bytes(_NONCE)
        connection.sendall(nonce)
        theirs = _read(connection, _NONCE)
        connection.sendall(self._answer(theirs, self.rank, peer))
        if not hmac.compare_digest(_read(connection, _NONCE), self._answer(nonce, peer, self.rank)):
            raise CommunicationError(f"what calls itself rank {peer} does not know this group's secret")

    def _answer(self, nonce: bytes, of: int, to: int) -> bytes:
        return hmac.digest(self._secret, struct.pack("<II", of, to) + nonce, "sha256")

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
        """See `Communicator.allreduce`: up a binary tree and down again, so additions have always the same order."""
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
        for connection in select.select(list(self._peers.values()), [], [], 0)[0]:
            peer = next(peer for peer, known in self._peers.items() if known is connection)
            try:
                header = connection.recv(_HEADER.size, socket.MSG_PEEK)
            except OSError as error:
                raise self._lost(peer, error) from error
            if not header:
                raise self._lost(peer, ConnectionResetError("the connection was closed"))
            if header[0] == _ABORT:
                self._receive(peer, _ABORT, 0, memoryview(b""))

    def abort(self, reason: str) -> None:
        text = reason.encode()[:_LONGEST_REASON]
        for connection in self._peers.values():
            with suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(_HEADER.pack(_ABORT, 0, len(text)) + text)

    def close(self) -> None:
        for connection in self._peers.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
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
        connection, header = self._peers[peer], _HEADER.pack(kind, number, len(frame))
        try:
            if len(frame) <= _AT_ONCE:
                connection.sendall(header + frame)
            else:
                connection.sendall(header)
                connection.sendall(frame)
        except OSError as error:
            raise self._lost(peer, error) from error

    def _receive(self, peer: int, kind: int, number: int, target: memoryview) -> None:
        connection = self._peers[peer]
        try:
            got, got_number, size = _HEADER.unpack(_read(connection, _HEADER.size))
            if got == _ABORT:
                raise CommunicationError(_read(connection, min(size, _LONGEST_REASON)).decode(errors="replace"))
            if (got, got_number, size) != (kind, number, len(target)):
                expected = f"{_NAMES[kind]} {number} of {len(target)} bytes"
                sent = f"{_NAMES.get(got, 'noise')} {got_number} of {size} bytes"
                raise CommunicationError(
                    f"ranks disagree: rank {self.rank} expects {expected}, rank {peer} sent {sent}"
                )
            _read_into(connection, target)
        except OSError as error:
            raise self._lost(peer, error) from error

    def _lost(self, peer: int, error: OSError) -> CommunicationError:
        host, port = self._addresses[peer][:2]
        if isinstance(error, TimeoutError):
            return CommunicationError(f"rank {peer} at {host}:{port} has been silent for {self.timeout:g} s")
        return RankLostError(peer, f"{host}:{port}", str(error))


_NAMES = {_EXCHANGE: "exchange", _REDUCE: "allreduce"}


@contextmanager
def _closed_on_error(connection: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _bytes(values: npt.NDArray[Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _read(connection: socket.socket, size: int) -> bytes:
    found = bytearray(size)
    _read_into(connection, memoryview(found))
    return bytes(found)


def _read_into(connection: socket.socket, target: memoryview) -> None:
    while target:
        count = connection.recv_into(target)
        if not count:
            raise ConnectionResetError("the connection was closed")
        target = target[count:]
