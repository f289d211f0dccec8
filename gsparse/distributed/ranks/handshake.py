"""Connections whose two ends prove to each other that they know a secret.

A listening port also receives connections from strangers, which do not know the secret. They may be silent, send one
byte per second, or come in large numbers. So each handshake runs in a separate thread, and has a single time limit for
all its steps, TLS included. If too many handshakes are open, the oldest handshake is ended.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gsparse.device.locks import make_lock
from gsparse.errors import CommunicationError

Address = tuple[str, int]

# Time limit, in seconds, for a new connection to prove that it knows the secret.
HANDSHAKE_TIMEOUT = 5.0
# Maximum number of open handshakes with strangers, each of which occupies a thread.
MAX_STRANGERS = 64
# Length of a challenge, in bytes.
_CHALLENGE_SIZE = 32
# Seconds between two checks whether the acceptor was closed. They are needed on systems on which the accepting thread
# does not wake when the listener is shut down.
_CLOSED_CHECK_INTERVAL = 1.0
# Seconds to wait after `accept` has failed.
_ACCEPT_RETRY_DELAY = 0.05


class Deadline:
    """A time limit that several operations share.

    Parameters
    ----------
    seconds : float
        Time from now until the deadline.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds that remain; raise `TimeoutError` if the deadline has passed."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return seconds


# Errors of the operating system for a host without a route, and seconds until the following attempt to connect.
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
_CONNECT_RETRY_DELAY = 0.1

# The first message of a connecting rank: its number.
HELLO = struct.Struct("<I")


class Acceptor:
    """Accepts the connections of the other ranks, in threads, after they have proved that they know the secret.

    Parameters
    ----------
    listener : socket
        The listening socket. Closing the acceptor closes it.
    rank, world_size : int
        The number of this rank, and the number of ranks.
    secret : bytes
    tls : SSLContext, optional
        Context with which connections are encrypted; None for connections without TLS.
    purpose : bytes, optional
        As for `prove`.

    Attributes
    ----------
    connections : dict of int to socket
        The accepted connections by rank. The owner of the acceptor must close them.
    refused : str
        The end of an error message, in brackets: why the last stranger was refused. Empty if no stranger was refused.
    """

    def __init__(
        self,
        listener: socket.socket,
        rank: int,
        world_size: int,
        secret: bytes,
        tls: ssl.SSLContext | None = None,
        purpose: bytes = b"ranks",
    ) -> None:
        self._listener, self._tls, self._rank, self._world_size = listener, tls, rank, world_size
        self._secret, self._purpose, self._name = secret, purpose, f"gsparse rank {rank} accepts"
        self.connections: dict[int, socket.socket] = {}
        self.refused = ""
        self._lock = make_lock()  # guards `connections` and `_handshakes`
        self._handshakes: dict[socket.socket, threading.Thread] = {}  # the oldest first
        self._closed, self._is_complete = threading.Event(), threading.Event()
        if world_size == 1:
            self._is_complete.set()
        listener.settimeout(_CLOSED_CHECK_INTERVAL)
        self._thread = threading.Thread(target=self._accept, name=self._name, daemon=True)
        self._thread.start()

    def wait(self, deadline: Deadline) -> None:
        """Wait for the connections of all other ranks; raise `TimeoutError` at the deadline."""
        if not self._is_complete.wait(deadline.remaining()):
            raise TimeoutError("timed out")

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the listener and end all handshakes; no connection is accepted afterwards."""
        self._closed.set()
        shut_down(self._listener)  # wakes the accepting thread
        self._thread.join()
        self._listener.close()
        with self._lock:
            handshakes = dict(self._handshakes)
            self._handshakes.clear()
        for connection in handshakes:
            shut_down(connection)
        for thread in handshakes.values():
            thread.join()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # the connection ended before it was accepted, or the process has no file descriptor left
                self._closed.wait(_ACCEPT_RETRY_DELAY)
                continue
            self._end_oldest()
            with suppress(OSError, RuntimeError):  # the connection has ended, or no thread can be started
                self._start_handshake(_configured(connection, self._tls))

    def _start_handshake(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._handshake, args=(connection,), name=self._name, daemon=True)
        with self._lock, closed_on_error(connection):
            thread.start()
            self._handshakes[connection] = thread

    def _end_oldest(self) -> None:
        """End the oldest handshake if too many are open.

        Its peer probably does not know the secret, because a handshake takes only milliseconds otherwise.
        """
        with self._lock:
            if len(self._handshakes) < self._world_size + MAX_STRANGERS:
                return
            connection, thread = next(iter(self._handshakes.items()))
            del self._handshakes[connection]
            shut_down(connection)
        thread.join()

    def _handshake(self, connection: socket.socket) -> None:
        deadline = Deadline(HANDSHAKE_TIMEOUT)
        try:
            _negotiate_tls(connection, deadline)
            (peer,) = HELLO.unpack(read_before(connection, HELLO.size, deadline))
            self._check_expected(peer)
            prove(connection, self._secret, self._rank, peer, deadline, connects=False, purpose=self._purpose)
            with self._lock:
                # The handshake is complete, so `__exit__` and `_end_oldest` must not end this connection any more. If
                # one of them has just ended the connection, `_handshakes` no longer has it.
                if self._handshakes.pop(connection, None) is None:
                    raise CommunicationError("its handshake was ended")
                self._check_expected(peer)  # Another connection of this rank may have been accepted meanwhile.
                self.connections[peer] = connection
                if len(self.connections) == self._world_size - 1:
                    self._is_complete.set()
        except Exception as error:  # A stranger's error must not affect other connections.
            self.refused = f" (a stranger was refused: {error})"
            connection.close()
        finally:
            with self._lock:
                self._handshakes.pop(connection, None)

    def _check_expected(self, peer: int) -> None:
        if not 0 <= peer < self._world_size or peer == self._rank or peer in self.connections:
            raise CommunicationError(f"it claimed to be rank {peer}")


def join(
    address: Address,
    rank: int,
    peer: int,
    secret: bytes,
    deadline: Deadline,
    tls: ssl.SSLContext | None = None,
    purpose: bytes = b"ranks",
    waits: bool = False,
) -> socket.socket:
    """Connect as rank `rank` to the `Acceptor` of rank `peer`. `waits` is passed to `connect`."""
    connection = connect(address, tls, deadline, waits)
    with closed_on_error(connection):
        connection.sendall(HELLO.pack(rank))
        prove(connection, secret, rank, peer, deadline, connects=True, purpose=purpose)
    return connection


def connect(address: Address, tls: ssl.SSLContext | None, deadline: Deadline, waits: bool = False) -> socket.socket:
    """Connect to an address within a deadline, including TLS's handshake.

    If there is no route to the host, try again until the deadline, because after an interruption, the system still
    reports this error for a few seconds. With `waits`, also try again while no process listens at the address.

    Raises
    ------
    OSError
        If no process listens at the address, TLS refuses the other side, or the deadline has passed.
    """
    while True:
        try:
            connection = socket.create_connection(address[:2], deadline.remaining())
            break
        except OSError as error:
            is_temporary = error.errno in _UNREACHABLE or (waits and isinstance(error, ConnectionRefusedError))
            if not is_temporary or deadline.remaining() < _CONNECT_RETRY_DELAY:
                raise
            time.sleep(_CONNECT_RETRY_DELAY)
    connection = _configured(connection, tls, address[0])
    with closed_on_error(connection):
        _negotiate_tls(connection, deadline)
    return connection


def prove(
    connection: socket.socket,
    secret: bytes,
    own_number: int,
    peer: int,
    deadline: Deadline,
    *,
    connects: bool,
    purpose: bytes = b"ranks",
) -> None:
    """Prove to the other side that this side knows the secret, and check the other side's proof.

    Each side sends random bytes, its challenge, and answers with an HMAC of both challenges. The side that connects
    answers first, so that a listener reveals nothing to strangers. The HMAC also covers `purpose`, and the numbers and
    roles of both sides, so an answer is of no use in any other handshake. Both sides must pass the same `purpose`. The
    side that has connected passes ``connects=True``, and the other side passes ``connects=False``.

    Raises
    ------
    CommunicationError
        If the other side does not know the secret.
    OSError
        If the connection ends, or the deadline has passed.
    """

    def answer(role: bytes, sender: int, receiver: int, challenges: bytes) -> bytes:
        return hmac.digest(secret, b"%s %s %d %d " % (purpose, role, sender, receiver) + challenges, "sha256")

    connection.settimeout(deadline.remaining())
    challenge = secrets.token_bytes(_CHALLENGE_SIZE)
    if connects:
        connection.sendall(challenge)
        challenges = challenge + read_before(connection, _CHALLENGE_SIZE, deadline)
        connection.sendall(answer(b"connects", own_number, peer, challenges))
        expected = answer(b"accepts", peer, own_number, challenges)
    else:
        challenges = read_before(connection, _CHALLENGE_SIZE, deadline) + challenge
        connection.sendall(challenge)
        expected = answer(b"connects", peer, own_number, challenges)
    if not hmac.compare_digest(read_before(connection, len(expected), deadline), expected):
        raise CommunicationError(f"the other side, which claims to have the number {peer}, does not know the secret")
    if not connects:
        connection.sendall(answer(b"accepts", own_number, peer, challenges))


def read_before(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    """Read `size` bytes before a deadline, which limits the total time even if bytes arrive one by one.

    Raises
    ------
    TimeoutError, ConnectionResetError
        If the deadline passes or the connection ends before `size` bytes have arrived.
    """
    received = bytearray(size)
    unfilled = memoryview(received)
    while unfilled:
        connection.settimeout(deadline.remaining())
        count = connection.recv_into(unfilled)
        if not count:
            raise ConnectionResetError("the connection was closed")
        unfilled = unfilled[count:]
    return bytes(received)


def shut_down(connection: socket.socket, direction: int = socket.SHUT_RDWR) -> None:
    """Shut down a connection, to wake the threads that use it. The caller must still close the connection.

    `socket.socket.shutdown` is called also for TLS, because `ssl.SSLSocket.shutdown` drops the encryption first. Then a
    thread that is about to write would send plain text.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, direction)


def _configured(connection: socket.socket, tls: ssl.SSLContext | None, host: str | None = None) -> socket.socket:
    """Return the connection with its options set, and wrapped in TLS if `tls` is not None. No handshake is made yet.

    `host` is the host name of the other side if this side has connected, and None if this side has accepted.
    """
    with closed_on_error(connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return connection
        name = host if tls.check_hostname else None
        return tls.wrap_socket(connection, host is None, do_handshake_on_connect=False, server_hostname=name)


def _negotiate_tls(connection: socket.socket, deadline: Deadline) -> None:
    """Carry out the TLS handshake, if the connection uses TLS."""
    if isinstance(connection, ssl.SSLSocket):
        connection.settimeout(deadline.remaining())  # applies to the TLS handshake as a whole
        connection.do_handshake()


@contextmanager
def closed_on_error(connection: socket.socket) -> Iterator[None]:
    """Close the connection if the block raises an exception."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
