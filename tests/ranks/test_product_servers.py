"""Products over sockets: none returns the result of another one after Ctrl-C or an error.

Foreign clients occupy few threads of a server, and for a limited time.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gsparse.distributed import listen
from gsparse.distributed.ranks import handshake, product_connections
from gsparse.distributed.ranks.product_connections import ProductClient, ProductServer, WholeVector
from gsparse.errors import CommunicationError
from tests.ranks.groups import LONG, SECRET, SOON, make_certificate, wait_until
from tests.ranks.strangers import seconds_until_closed, strangers

NO_GHOSTS = np.empty(0)


class Rank:
    """The matrix of a server: it returns 2x, after an action that a test chooses."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None

    def product(self, x: Any) -> Any:
        self.before()
        return 2 * x


@pytest.fixture(autouse=True)
def ranks_are_simple(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_connections, "local_product", lambda rank, x, ghosts, operation: rank.product(x))


@pytest.fixture(params=["plain", "TLS"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Make TLS contexts of server and client, or return None for both."""
    if request.param == "plain":
        return None, None
    made = make_certificate(tmp_path)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(made["cert"], made["key"])
    client.check_hostname = False
    client.load_verify_locations(made["cert"])
    return server, client


@pytest.fixture
def ranks() -> list[Any]:
    return [Rank(), Rank()]


@pytest.fixture
def client(ranks: list[Any]) -> Iterator[ProductClient]:
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(ProductServer(rank, "127.0.0.1", SECRET, None))) for rank in ranks]
        yield stack.enter_context(closing(ProductClient([server.address for server in servers], SECRET, LONG, None)))


def check(client: ProductClient, first: int = 7) -> None:
    """Multiply a few times, by numbers that occur in no other product of the test."""
    for value in range(first, first + 20):
        for part in client.multiply("plain", [(np.full(2, float(value)), NO_GHOSTS)] * 2):
            np.testing.assert_array_equal(part, [2 * value, 2 * value])


class Computing:
    """A product that lasts until the test ends it."""

    def __init__(self) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()
        self._is_first = True

    def __call__(self) -> None:
        if self._is_first:
            self._is_first = False
            self.begun.set()
            assert self.ends.wait(LONG)


def handlers(before: set[threading.Thread]) -> int:
    return sum(thread.name == "gsparse products" for thread in set(threading.enumerate()) - before)


# ------------------------------------------------------------------- products that end early


@pytest.mark.parametrize("slow", [0, 1])
def test_an_interrupted_product_leaves_nothing_for_the_next_one(
    slow: int, ranks: list[Any], client: ProductClient
) -> None:
    ranks[slow].before = computing = Computing()

    def interrupt() -> None:
        computing.begun.wait(LONG)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.multiply("plain", [(np.full(2, 5.0), NO_GHOSTS)] * 2)
    thread.join()
    check(client)  # first while the interrupted product still runs, then when its result arrives
    computing.ends.set()
    check(client, 100)


@pytest.mark.parametrize("fails", [0, 1])
def test_an_error_of_one_rank_leaves_nothing_of_another_that_still_computes(
    fails: int, ranks: list[Any], client: ProductClient
) -> None:
    ranks[1 - fails].before = computing = Computing()

    def fail() -> None:
        computing.begun.wait(LONG)
        ranks[fails].before = lambda: None
        raise ZeroDivisionError("planted")

    ranks[fails].before = fail
    began = time.monotonic()
    with pytest.raises(ValueError, match="ZeroDivisionError: planted"):
        client.multiply("plain", [(np.full(2, 5.0), NO_GHOSTS)] * 2)
    assert time.monotonic() - began < SOON
    check(client)
    computing.ends.set()
    check(client, 100)


def test_an_answer_to_another_request_is_refused() -> None:
    listener = listen("127.0.0.1")

    def answer_wrongly() -> None:
        connection, _ = listener.accept()
        with connection:
            deadline = handshake.Deadline(LONG)
            handshake.prove(
                connection,
                SECRET,
                product_connections._SERVER,
                product_connections._CLIENT,
                deadline,
                connects=False,
                purpose=b"products",
            )
            connection.sendall(product_connections._ANSWER.pack(0, 1, 0))
            number, _ = product_connections._REQUEST.unpack(
                product_connections.read(connection, product_connections._REQUEST.size)
            )
            x, _ = product_connections.receive_array(connection), product_connections.receive_array(connection)
            with suppress(OSError):  # the client closes the connection as soon as it reads the wrong number
                connection.sendall(product_connections._ANSWER.pack(number - 1, 1, 1))
                product_connections.send_array(connection, x)

    thread = threading.Thread(target=answer_wrongly)
    thread.start()
    with (
        listener,
        closing(ProductClient([listener.getsockname()[:2]], SECRET, LONG, None)) as client,
        pytest.raises(CommunicationError, match="a rank answered product 0 where product 1 was asked for"),
    ):
        client.multiply("plain", [(np.ones(3), NO_GHOSTS)])
    thread.join()


def test_the_next_product_connects_again_after_a_connection_was_lost(ranks: list[Any], client: ProductClient) -> None:
    check(client)
    for connection in client._connections:
        handshake.shut_down(connection)
    with pytest.raises(CommunicationError, match="a rank does not answer"):
        check(client)
    check(client)


@pytest.mark.timed
def test_ranks_that_answer_slowly_have_one_time_limit_for_connecting_to_all() -> None:
    silent = [listen("127.0.0.1") for _ in range(3)]  # the operating system accepts connections, but nobody answers
    began = time.monotonic()
    with pytest.raises(CommunicationError, match=r"no connection to .*: timed out"):
        ProductClient([listener.getsockname()[:2] for listener in silent], SECRET, 1.0, None)
    assert time.monotonic() - began < 2.0
    for listener in silent:
        listener.close()


# ------------------------------------------------------------------- strangers, and ends


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["silent", "dripping", "dripping TLS"])
def test_a_foreign_client_is_disconnected_in_time_however_slowly_it_sends(
    kind: str, tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT", 1.0)
    with closing(ProductServer(Rank(), "127.0.0.1", SECRET, tls[0])) as server:  # type: ignore[arg-type]
        with strangers(server.address, kind, 1) as (stranger,):
            assert seconds_until_closed(stranger, SOON) < 2.5
        with closing(ProductClient([server.address], SECRET, LONG, tls[1])) as client:
            np.testing.assert_array_equal(client.multiply("plain", [(np.ones(2), NO_GHOSTS)])[0], [2, 2])


def test_many_foreign_clients_hold_a_bounded_number_of_threads_and_delay_no_client(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    before = set(threading.enumerate())
    with (
        closing(ProductServer(Rank(), "127.0.0.1", SECRET, tls[0])) as server,  # type: ignore[arg-type]
        strangers(server.address, "silent", 300),
    ):
        wait_until(lambda: handlers(before) >= handshake.MAX_STRANGERS)
        assert handlers(before) <= handshake.MAX_STRANGERS + 2
        began = time.monotonic()
        with closing(ProductClient([server.address], SECRET, LONG, tls[1])) as client:
            np.testing.assert_array_equal(client.multiply("plain", [(np.ones(2), NO_GHOSTS)])[0], [2, 2])
        assert time.monotonic() - began < SOON
    wait_until(lambda: handlers(before) == 0)


def test_more_clients_than_a_server_serves_are_told_what_to_do(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_connections, "MAX_CLIENTS", 2)
    with closing(ProductServer(Rank(), "127.0.0.1", SECRET, tls[0])) as server, ExitStack() as stack:  # type: ignore[arg-type]

        def connected() -> ProductClient:
            return stack.enter_context(closing(ProductClient([server.address], SECRET, LONG, tls[1])))

        first, second = connected(), connected()
        with pytest.raises(CommunicationError, match=r"2 clients are connected, .*: close\(\) matrices"):
            connected()
        for client in (first, second):
            np.testing.assert_array_equal(client.multiply("plain", [(np.ones(2), NO_GHOSTS)])[0], [2, 2])
        first.close()
        wait_until(lambda: len(server._connections) == 1)
        np.testing.assert_array_equal(connected().multiply("plain", [(np.ones(2), NO_GHOSTS)])[0], [2, 2])


def test_closing_ends_the_threads_of_all_clients_and_releases_the_matrix(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    before = set(threading.enumerate())
    rank: Any = Rank()
    alive = weakref.ref(rank)
    server = ProductServer(rank, "127.0.0.1", SECRET, tls[0])
    del rank
    gc.disable()
    try:
        with ExitStack() as stack, strangers(server.address, "silent", 3):
            for _ in range(5):
                client = stack.enter_context(closing(ProductClient([server.address], SECRET, LONG, tls[1])))
                client.multiply("plain", [(np.ones(2), NO_GHOSTS)])
            wait_until(lambda: handlers(before) >= 1 + 3 + 5)
            server.close()
            wait_until(lambda: handlers(before) == 0)
            del server
            assert alive() is None
            with pytest.raises(CommunicationError):
                client.multiply("plain", [(np.ones(2), NO_GHOSTS)])
    finally:
        gc.enable()


def test_connections_have_the_option_that_ends_them_two_minutes_after_a_client_vanished() -> None:
    with (
        closing(ProductServer(Rank(), "127.0.0.1", SECRET, None)) as server,  # type: ignore[arg-type]
        closing(ProductClient([server.address], SECRET, LONG, None)) as client,
    ):
        client.multiply("plain", [(np.ones(2), NO_GHOSTS)])
        (connection,) = server._connections
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, every, count = (
            connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        assert idle + every * count <= 120


def test_parts_of_a_vector_are_received_where_they_belong() -> None:
    whole = WholeVector((0, 3, 3, 5))
    last = whole.part(2, (2, 4), np.dtype(np.float32))
    assert whole.values is not None
    last[:] = 7
    assert whole.part(1, (0, 4), np.dtype(np.float32)).size == 0
    whole.part(0, (3, 4), np.dtype(np.float32))[:] = 1
    np.testing.assert_array_equal(whole.values, np.repeat([1, 7], [3, 2])[:, None] * np.ones(4, np.float32))
    for shape, dtype in (((2, 4), np.float32), ((3, 4), np.float64)):
        with pytest.raises(CommunicationError, match="rank 0 sends"):
            whole.part(0, shape, np.dtype(dtype))
