"""Bytes and arrays of numbers that are sent and received over the connections between processes."""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.errors import CommunicationError

# Allocates the array for a shape and a dtype, as `numpy.empty` does.
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]

# The seconds for which a receiver waits for more data by default.
TIMEOUT = 60.0
# Seconds for which a receiver polls a connection before it sleeps until data arrive.
_POLL_SECONDS = 1e-3
# Number of bytes that `write` passes to the system at a time.
_PIECE_BYTES = 1 << 20
_ARRAY = struct.Struct("<8sBQQ")  # dtype, number of dimensions (1 or 2), rows, columns (1 for a vector)

# Let another thread or process run on this CPU. Windows has no `sched_yield`; a sleep of no time does the same there.
yield_cpu: Callable[[], Any] = getattr(os, "sched_yield", partial(time.sleep, 0))
# `poll` takes file descriptors of any number, `select` only those below 1024. Windows has no `poll`, and no such limit.
_Selector: Callable[[], selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.DefaultSelector)


def bytes_of(values: npt.NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array as a buffer of bytes."""
    return values.reshape(-1).view(np.uint8).data


def is_silent(connection: socket.socket) -> bool:
    """Return whether a connection is open and nothing has arrived on it, without waiting."""
    return not readable([connection], 0)


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


def send_array(connection: socket.socket, values: npt.NDArray[Any]) -> None:
    """Send an array of numbers, of one or two dimensions: a header with its dtype and shape, then its bytes."""
    values = np.ascontiguousarray(values)
    rows, columns = (*values.shape, 1)[:2]
    write(connection, _ARRAY.pack(values.dtype.str.encode(), values.ndim, rows, columns))
    write(connection, bytes_of(values))


def receive_array(connection: socket.socket, allocate: Allocate = np.empty) -> npt.NDArray[Any]:
    """Receive the array that `send_array` sends; raise `CommunicationError` if it is not an array of numbers."""
    kind, ndim, rows, columns = _ARRAY.unpack(read(connection, _ARRAY.size))
    try:
        dtype = np.dtype(kind.rstrip(b"\0").decode())
    except (TypeError, ValueError) as error:
        raise CommunicationError(f"an array of numbers was expected, got {kind!r}") from error
    if dtype.kind not in "biufc":
        raise CommunicationError(f"an array of numbers was expected, got {dtype}")
    received = allocate((rows, columns)[:ndim], dtype)
    read_into(connection, bytes_of(received))
    return received


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
