"""Ranks connect at once, and only with each other, while foreign clients occupy their ports."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from gsparse.distributed import SocketCommunicator, listen
from gsparse.distributed.ranks import handshake
from gsparse.errors import CommunicationError
from tests.ranks.groups import LONG, SECRET, SOON
from tests.ranks.strangers import seconds_until_closed, strangers


class Joining:
    """Threads in which ranks connect; they wait for a rank that has not been started yet."""

    def __init__(self, world_size: int, timeout: float) -> None:
        self.listeners = [listen("127.0.0.1") for _ in range(world_size)]
        self.addresses = [listener.getsockname() for listener in self.listeners]
        self.found: dict[int, Any] = {}
        self._timeout = timeout
        self._threads: list[threading.Thread] = []

    def start(self, rank: int) -> None:
        self._threads.append(threading.Thread(target=self._join, args=(rank,)))
        self._threads[-1].start()

    def _join(self, rank: int) -> None:
        try:
            with SocketCommunicator(rank, self.addresses, self.listeners[rank], SECRET, self._timeout) as communicator:
                values = np.ones(1)
                communicator.allreduce(values)
                self.found[rank] = values[0]
        except CommunicationError as error:
            self.found[rank] = error

    def wait(self) -> dict[int, Any]:
        for thread in self._threads:
            thread.join(2 * LONG)
            assert not thread.is_alive(), "a rank hangs"
        for listener in self.listeners:
            listener.close()
        return self.found


@contextmanager
def claim(address: Any, rank: int) -> Iterator[Callable[[], socket.socket]]:
    """Begin to connect as a rank that knows the secret, and return the function that completes the proof."""
    deadline = handshake.Deadline(LONG)
    with handshake.connect(address, None, deadline) as connection:
        connection.sendall(handshake.HELLO.pack(rank))

        def complete() -> socket.socket:
            handshake.prove(connection, SECRET, rank, 0, deadline, connects=True)
            return connection

        yield complete


@pytest.mark.parametrize(("kind", "count"), [("silent", 1), ("silent", 2), ("silent", 100), ("dripping", 3)])
def test_foreign_clients_do_not_delay_ranks_that_connect(kind: str, count: int) -> None:
    ranks = Joining(2, timeout=LONG)
    with ExitStack() as stack:
        for address, peer in zip(ranks.addresses, (1, 0), strict=True):
            stack.enter_context(strangers(address, kind, count, handshake.HELLO.pack(peer)))
        began = time.monotonic()
        for rank in range(2):
            ranks.start(rank)
        assert ranks.wait() == {0: 2, 1: 2}
        assert time.monotonic() - began < SOON


@pytest.mark.parametrize("kind", ["silent", "dripping"])
def test_a_foreign_client_has_a_shorter_time_limit_than_a_rank(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT", 0.5)
    ranks = Joining(2, timeout=LONG)
    with strangers(ranks.addresses[0], kind, 1, handshake.HELLO.pack(1)) as (stranger,):
        ranks.start(0)
        assert seconds_until_closed(stranger, SOON) > 0.1
        assert not ranks.found
    monkeypatch.undo()
    ranks.start(1)
    assert ranks.wait() == {0: 2, 1: 2}


@pytest.mark.timed
def test_the_wait_for_a_rank_that_never_connects_ends_at_the_deadline() -> None:
    ranks = Joining(3, timeout=1.0)
    with strangers(ranks.addresses[0], "dripping", 3, handshake.HELLO.pack(1)):
        began = time.monotonic()
        ranks.start(0)
        assert "cannot reach ranks [1, 2] in 1 s" in str(ranks.wait()[0])
        assert time.monotonic() - began < 3.0


@pytest.mark.parametrize("rank", [0, 3, 2**32 - 1])
def test_a_peer_with_the_same_rank_or_an_invalid_rank_is_refused(rank: int) -> None:
    ranks = Joining(3, timeout=LONG)
    ranks.start(0)
    with claim(ranks.addresses[0], rank) as complete, pytest.raises(OSError, match=r"closed|reset|pipe"):
        complete()
    for rank in (1, 2):
        ranks.start(rank)
    assert ranks.wait() == {0: 3, 1: 3, 2: 3}


@pytest.mark.timed
def test_a_rank_that_is_connected_is_not_replaced() -> None:
    ranks = Joining(3, timeout=2.0)
    ranks.start(0)
    with claim(ranks.addresses[0], 1) as first, claim(ranks.addresses[0], 1) as second:
        kept = first()
        with pytest.raises(OSError, match=r"closed|reset|pipe"):
            # Both peers were challenged before either of them answered. The first answer wins, and this one is refused.
            late = second()
            assert late.recv(1) == b""
            raise ConnectionResetError("closed")
        kept.setblocking(False)
        with pytest.raises(BlockingIOError):
            kept.recv(1)
        with claim(ranks.addresses[0], 1) as third, pytest.raises(OSError, match=r"closed|reset|pipe"):
            third()
    assert isinstance(ranks.wait()[0], CommunicationError)


@pytest.mark.timed
def test_a_flood_of_connections_holds_a_bounded_number_of_threads() -> None:
    ranks = Joining(2, timeout=LONG)
    before = threading.active_count()
    ranks.start(0)
    with strangers(ranks.addresses[0], "silent", 300):
        time.sleep(0.3)
        assert threading.active_count() - before <= 2 + handshake.MAX_STRANGERS + 2
        ranks.start(1)
        assert ranks.wait() == {0: 2, 1: 2}
    assert threading.active_count() <= before
