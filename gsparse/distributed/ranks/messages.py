"""Bytes that are sent and received over the connections between processes."""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

# The seconds for which a receiver waits for more data by default.
TIMEOUT = 60.0
# Seconds for which a receiver polls a connection before it sleeps until data arrive.
_POLL_SECONDS = 1e-3
# Number of bytes that `write` passes to the system at a time.
_PIECE_BYTES = 1 << 20

# Let another thread or process run on this CPU. Windows has no `sched_yield`; a sleep of no time does the same there.
yield_cpu: Callable[[], Any] = getattr(os, "sched_yield", partial(time.sleep, 0))
# `poll` takes file descriptors of any number, `select` only those below 1024. Windows has no `poll`, and no such limit.
_Selector: Callable[[], selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.DefaultSelector)


def bytes_of(values: npt.NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array as a buffer of bytes."""
    return values.reshape(-1).view(np.uint8).data


def readable(connections: Iterable[socket.socket], timeout: float) -> list[socket.socket]:
    """Return the connections on which something has arrived, or which have ended; wait until there is one.

    After `timeout` seconds, the list is empty.
    """
    with _Selector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        ready = selector.select(timeout) if selector.get_map() else []
        return [key.fileobj for key, _ in ready]  # type: ignore[misc]  # the type of what was registered is not known


def read(connection: socket.socket, size: int, timeout: float = TIMEOUT) -> bytes:
    """Read `size` bytes, with the errors of `read_into`."""
    received = bytearray(size)
    read_into(connection, memoryview(received), timeout)
    return bytes(received)


def write(connection: socket.socket, data: bytes | memoryview) -> None:
    """Send bytes. The time limit of the connection is the longest time for which the receiver may take none of them.

    In `socket.socket.sendall`, it would limit the time of the whole message, which may be gigabytes long.

    Raises
    ------
    TimeoutError
        If the receiver takes nothing for that time.
    OSError
        If the connection ends.
    """
    unsent = memoryview(data)
    while unsent:
        unsent = unsent[connection.send(unsent[:_PIECE_BYTES]) :]


def read_into(connection: socket.socket, target: memoryview, timeout: float = TIMEOUT) -> None:
    """Fill a buffer with received bytes.

    A non-blocking socket is polled for a while before the thread sleeps until data arrive. The data for which a rank
    waits in an iteration usually arrive sooner than the system could wake a sleeping thread: between 2 processes on a
    virtual machine, an all-reduce that slept took 310 µs.

    Raises
    ------
    ConnectionResetError
        If the connection ends before the buffer is full.
    TimeoutError
        If nothing arrives for `timeout` seconds. A blocking socket has a time limit of its own instead.
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
