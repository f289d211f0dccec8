"""Connections of foreign clients that do not know the secret: silent ones, and ones that send a byte now and then."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Seconds between two bytes of a client that sends slowly.
DRIP = 0.1


def drip(connection: socket.socket, data: bytes) -> None:
    """Send one byte after the other, slowly, until the connection ends."""
    with suppress(OSError):
        for number in range(len(data)):
            connection.sendall(data[number : number + 1])
            time.sleep(DRIP)


def _stranger(address: Any, kind: str, greeting: bytes) -> socket.socket:
    connection = socket.create_connection(address[:2], 10)
    if kind != "silent":
        threading.Thread(target=drip, args=(connection, greeting + bytes(10_000)), daemon=True).start()
    return connection


@contextmanager
def strangers(address: Any, kind: str, count: int, greeting: bytes = b"") -> Iterator[list[socket.socket]]:
    """Keep connections to an address open.

    They are "silent", or "dripping" a greeting and then zeros.
    """
    opened = [_stranger(address, kind, greeting) for _ in range(count)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


def seconds_until_closed(connection: socket.socket, limit: float) -> float:
    """Wait until the other end closes a connection; fail if it takes longer than a limit."""
    began = time.monotonic()
    connection.settimeout(limit)
    try:
        while connection.recv(4096):
            assert time.monotonic() - began < limit, "the connection is still open"
    except ConnectionError:
        pass
    except TimeoutError:
        raise AssertionError("the connection is still open") from None
    return time.monotonic() - began
