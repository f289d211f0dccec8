"""Connections whose ends prove that they know a secret, within a total time limit and only a bounded number at a time.

A listener serves strangers too: silent ones, ones that send a byte a second, and many at once. Each handshake therefore
has a thread of its own, one time limit for all that it waits for, TLS included, and ends early where too many are open.
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gsparse.errors import CommunicationError

__all__ = [
    "MAX_STRANGERS",
    "Acceptor",
    "Address",
    "Deadline",
    "closed_on_error",
    "connect",
    "prove",
    "read_before",
    "shut_down",
]

Address = tuple[str, int]

# Time limit, in seconds, for a new connection to prove that it knows the secret.
HANDSHAKE_TIMEOUT = 5.0
# Handshakes of strangers that may be open at the same time: each costs a thread.
MAX_STRANGERS = 64
_NONCE = 32
# Seconds between two looks whether an acceptor was closed (not every system wakes it), and after a failed accept.
_LOOK_EVERY, _RETRY = 1.0, 0.05


class Deadline:
    """A point in time until which everything has to be done.

    Parameters
    ----------
    seconds : float
        From now.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left; raise `TimeoutError` where there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


# What the system answers where it knows no way to a host, and seconds until it is asked once more.
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
_RETRY_AFTER = 0.1

Identify = Callable[[socket.socket, Deadline], int]
Admit = Callable[[int, socket.socket], None]


class Acceptor:
    """Accepts connections on a listener, in threads, and passes on those that identify themselves in time.

    Parameters
    ----------
    listener : socket
        It is closed with the acceptor.
    identify : callable
        Called with a new connection and the `Deadline` of its handshake. Returns the number that the peer has proved to
        be, or raises `OSError` or `CommunicationError`, which closes the connection.
    admit : callable
        Called with that number and the connection, which belongs to it from then on, by one thread at a time. What it
        raises closes the connection too.
    tls : SSLContext or None
    limit : int, optional
        Handshakes that may be open at the same time. One more ends the oldest: an honest one takes milliseconds.
    name : str, optional
        Of the threads.

    Attributes
    ----------
    refused : str
        Why the last stranger was refused, as an addition to an error's text; empty where none was.
    """

    def __init__(
        self,
        listener: socket.socket,
        identify: Identify,
        admit: Admit,
        tls: ssl.SSLContext | None,
        limit: int = MAX_STRANGERS,
        name: str = "gsparse accepts",
    ) -> None:
        self._listener, self._tls, self._limit, self._name = listener, tls, limit, name
        self._lock = threading.RLock()
        self._handshakes: dict[socket.socket, threading.Thread] = {}  # the oldest first
        self._closed = threading.Event()
        self.refused = ""
        listener.settimeout(_LOOK_EVERY)
        # Only the threads hold `identify` and `admit`, which are methods of the acceptor's owner. Held by the acceptor,
        # they would make a reference cycle, and the owner's memory would be kept until garbage is collected.
        self._thread = threading.Thread(target=self._accept, args=(identify, admit), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the listener and all handshakes; nothing is admitted afterwards."""
        self._closed.set()
        shut_down(self._listener)  # wakes the accepting thread
        _join(self._thread)
        self._listener.close()
        with self._lock:
            open_now = list(self._handshakes.items())
        for connection, _ in open_now:
            shut_down(connection)
        for _, thread in open_now:
            _join(thread)

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, identify: Identify, admit: Admit) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # (the connection ended before it was accepted, or no file descriptor is left)
                self._closed.wait(_RETRY)
                continue
            self._end_oldest()
            with suppress(OSError, RuntimeError):  # (of a connection that has ended, or where no more threads are left)
                self._begin(_prepared(connection, self._tls), identify, admit)

    def _begin(self, connection: socket.socket, identify: Identify, admit: Admit) -> None:
        args = connection, identify, admit
        thread = threading.Thread(target=self._handshake, args=args, name=self._name, daemon=True)
        with self._lock, closed_on_error(connection):
            thread.start()
            self._handshakes[connection] = thread

    def _end_oldest(self) -> None:
        """End the oldest handshake where as many are open as may be."""
        with self._lock:
            if len(self._handshakes) < self._limit:
                return
            connection, thread = next(iter(self._handshakes.items()))
            shut_down(connection)
        thread.join()

    def _handshake(self, connection: socket.socket, identify: Identify, admit: Admit) -> None:
        deadline = Deadline(HANDSHAKE_TIMEOUT)
        try:
            _negotiate(connection, deadline)
            peer = identify(connection, deadline)
            with self._lock:
                # (no longer a handshake: `close` and `_end_oldest` leave it alone)
                del self._handshakes[connection]
                admit(peer, connection)
        except Exception as error:  # (whatever a stranger brings about concerns its own connection only)
            self.refused = f" (a stranger was refused: {error})"
            connection.close()
        finally:
            with self._lock:
                self._handshakes.pop(connection, None)


def connect(address: Address, tls: ssl.SSLContext | None, deadline: Deadline) -> socket.socket:
    """Connect to an address within a deadline, the handshake of TLS included.

    Raises
    ------
    OSError
        Where nobody listens there, or the time is over.
    """
    connection = _prepared(_reached(address, deadline), tls, address[0])
    with closed_on_error(connection):
        _negotiate(connection, deadline)
    return connection


def _reached(address: Address, deadline: Deadline) -> socket.socket:
    """Connect, and try again within the deadline where there is no route: a link that was cut may just have come back.

    For a few seconds after that, the system still answers that the host cannot be reached.
    """
    while True:
        try:
            return socket.create_connection(address[:2], deadline.left())
        except OSError as error:
            if error.errno not in _UNREACHABLE or deadline.left() < _RETRY_AFTER:
                raise
            time.sleep(_RETRY_AFTER)


def prove(
    connection: socket.socket,
    secret: bytes,
    own: int,
    peer: int,
    deadline: Deadline,
    *,
    connects: bool,
    purpose: bytes = b"ranks",
) -> None:
    """Have each side answer the other's challenge, first the one that connects: a listener tells strangers nothing.

    An answer serves for these two challenges, numbers and roles only.

    Raises
    ------
    CommunicationError
        Where the other side does not know the secret.
    OSError
        Where the connection ends, or the time is over.
    """

    def answer(role: bytes, of: int, to: int, challenges: bytes) -> bytes:
        return hmac.digest(secret, b"%s %s %d %d " % (purpose, role, of, to) + challenges, "sha256")

    connection.settimeout(deadline.left())
    challenge = secrets.token_bytes(_NONCE)
    if connects:
        connection.sendall(challenge)
        both = challenge + read_before(connection, _NONCE, deadline)
        connection.sendall(answer(b"connects", own, peer, both))
        expected = answer(b"accepts", peer, own, both)
    else:
        both = read_before(connection, _NONCE, deadline) + challenge
        connection.sendall(challenge)
        expected = answer(b"connects", peer, own, both)
    if not hmac.compare_digest(read_before(connection, len(expected), deadline), expected):
        raise CommunicationError(f"what calls itself rank {peer} does not know this group's secret")
    if not connects:
        connection.sendall(answer(b"accepts", own, peer, both))


def read_before(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    """Read a number of bytes before a deadline, however slowly they come.

    Raises
    ------
    TimeoutError, ConnectionResetError
        Where the time is over, or the connection ends before.
    """
    found = bytearray(size)
    rest = memoryview(found)
    while rest:
        connection.settimeout(deadline.left())
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionResetError("the connection was closed")
        rest = rest[count:]
    return bytes(found)


def shut_down(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut a connection down, which wakes the threads that read from it or write to it; it still has to be closed.

    (`ssl.SSLSocket.shutdown` forgets its encryption first, so a thread that is about to write would write plain text.)
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, how)


def _prepared(connection: socket.socket, tls: ssl.SSLContext | None, host: str | None = None) -> socket.socket:
    """Return the connection as it will be used, before any handshake; `host` is given where this end has connected."""
    with closed_on_error(connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return connection
        name = host if tls.check_hostname else None
        return tls.wrap_socket(connection, host is None, do_handshake_on_connect=False, server_hostname=name)


def _negotiate(connection: socket.socket, deadline: Deadline) -> None:
    """Carry out the handshake of TLS, where the connection speaks it."""
    if isinstance(connection, ssl.SSLSocket):
        connection.settimeout(deadline.left())  # (for the handshake as a whole)
        connection.do_handshake()


def _join(thread: threading.Thread) -> None:
    """Wait for a thread, unless it is this one: garbage may be collected, and an owner closed, by any thread."""
    if thread is not threading.current_thread():
        thread.join()


@contextmanager
def closed_on_error(connection: socket.socket) -> Iterator[None]:
    """Close a connection where what is done with it fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
