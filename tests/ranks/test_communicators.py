"""Communicators: the data that arrives, the order of sums, and that no rank waits for ever."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from gsparse.distributed import (
    Communicator,
    SingleCommunicator,
    SocketCommunicator,
    listen,
)
from gsparse.distributed.ranks import sockets
from gsparse.distributed.ranks.communicator import bytes_of
from gsparse.errors import CommunicationError, RankLostError
from tests.ranks.groups import GROUPS, LONG, SECRET, SOON, Processes, make_certificate, run_mpi, run_sockets

Run = Callable[..., list[Any]]


@pytest.fixture(params=GROUPS)
def run(request: pytest.FixtureRequest) -> Run:
    return GROUPS[request.param]


def exchange_all(communicator: Communicator, size: int) -> list[float]:
    """Send to every other rank as many numbers as its own rank, times size."""
    others = [peer for peer in range(communicator.world_size) if peer != communicator.rank]
    sends = {peer: np.full(size * peer, communicator.rank + 0.5j) for peer in others}
    receives = {peer: np.zeros(size * communicator.rank, complex) for peer in others}
    communicator.exchange(sends, receives)()
    assert all((values == peer + 0.5j).all() for peer, values in receives.items())
    return [len(values) for values in receives.values()]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 100_000])
def test_exchange_delivers_the_values_that_were_sent(run: Run, world_size: int, size: int) -> None:
    found = run(exchange_all, world_size, size)
    assert found == [[size * rank] * (world_size - 1) for rank in range(world_size)]


def add(communicator: Communicator, size: int) -> tuple[bytes, int]:
    values = np.random.default_rng(communicator.rank).standard_normal(size) * 10.0**communicator.rank
    count = np.array([communicator.rank])
    communicator.allreduce(values)
    communicator.allreduce(count)
    return values.tobytes(), int(count[0])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("size", [0, 3, 20_000])
def test_allreduce_gives_every_rank_the_same_bits(run: Run, world_size: int, size: int) -> None:
    found = run(add, world_size, size)
    assert len(set(found)) == 1
    assert found == run(add, world_size, size)
    values = [np.random.default_rng(rank).standard_normal(size) * 10.0**rank for rank in range(world_size)]
    np.testing.assert_allclose(np.frombuffer(found[0][0]), np.sum(values, 0), rtol=1e-12)
    assert found[0][1] == world_size * (world_size - 1) // 2


def fail(communicator: Communicator, at: int) -> None:
    communicator.allreduce(np.zeros(1))
    if communicator.rank == at:
        raise ZeroDivisionError("planted")
    communicator.allreduce(np.zeros(1))


@pytest.mark.parametrize("at", [0, 2])
def test_an_error_of_one_rank_ends_all_ranks_and_is_raised(run: Run, at: int) -> None:
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="planted"):
        run(fail, 3, at, timeout=LONG)
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("waiting", [lambda c: c.allreduce(np.zeros(3)), lambda c: c.wait(lambda: False)])
def test_an_abort_tells_the_other_ranks_the_reason_at_once(run: Run, waiting: Callable[[Communicator], None]) -> None:
    # A product on a device that waits for the ghosts of a lost rank never ends.
    began = time.monotonic()

    def listening(communicator: Communicator) -> str:
        if communicator.rank == 1:
            communicator.abort("planted reason")
            return ""
        with pytest.raises(CommunicationError) as caught:
            waiting(communicator)
        return str(caught.value)

    assert run(listening, 2, timeout=LONG) == ["planted reason", ""]
    assert time.monotonic() - began < SOON


def test_arrays_of_other_sizes_and_other_calls_raise_an_error(run: Run) -> None:
    with pytest.raises(CommunicationError, match="disagree"):
        run(lambda communicator: communicator.allreduce(np.zeros(2 + communicator.rank)), 2)

    def disagree(communicator: Communicator) -> None:
        other = 1 - communicator.rank
        communicator.exchange({other: np.zeros(3)}, {other: np.zeros(3 + communicator.rank)})()

    with pytest.raises(CommunicationError, match="disagree"):
        run(disagree, 2)
    if run in (run_sockets, run_mpi):

        def stop_early(communicator: Communicator) -> None:
            if communicator.rank:
                communicator.allreduce(np.zeros(3))
            else:
                communicator.exchange({1: np.zeros(3)}, {1: np.zeros(3)})()

        with pytest.raises(CommunicationError, match="disagree"):
            run(stop_early, 2)


@pytest.mark.timed
def test_silence_is_an_error_within_the_timeout(run: Run) -> None:
    done = threading.Event()

    def silent(communicator: Communicator) -> None:
        if communicator.rank:
            done.wait(0 if run is run_mpi else LONG)  # with MPI, nobody notices that a rank has left
            return
        began = time.monotonic()
        try:
            communicator.exchange({}, {1: np.zeros(1)})()
        finally:
            assert time.monotonic() - began < SOON
            done.set()

    with pytest.raises(CommunicationError, match=r"silent|nothing"):
        run(silent, 2, timeout=0.5)


def test_a_wait_for_the_device_ends_when_the_device_is_done_or_at_the_timeout() -> None:
    alone = SingleCommunicator()
    alone.timeout = LONG
    looks = iter([False] * 20 + [True])
    alone.wait(lambda: next(looks))
    alone.timeout = 0.1
    with pytest.raises(CommunicationError, match=r"0\.1 s.*silent"):
        alone.wait(lambda: False)


def _read_slowly(connection: socket.socket, pause: float) -> None:
    with connection:
        while connection.recv(1 << 17):
            time.sleep(pause)


@pytest.mark.timed
def test_the_timeout_limits_a_pause_and_not_the_time_of_a_whole_message() -> None:
    values, (sender, receiver) = np.zeros(1 << 20), socket.socketpair()
    reader = threading.Thread(target=_read_slowly, args=(receiver, 0.05), daemon=True)
    reader.start()
    with sender:
        sender.settimeout(1.0)
        began = time.monotonic()
        sockets.write(sender, bytes_of(values))
        assert time.monotonic() - began > 1.0  # so that the test shows something
    reader.join(LONG)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sockets.write(sender, bytes_of(values))


@pytest.mark.parametrize("size", [1 << 16, 1 << 21])
@pytest.mark.parametrize("reads_at_once", [True, False])
def test_an_abort_does_not_interrupt_a_message(size: int, reads_at_once: bool) -> None:
    aborts, has_aborted = threading.Event(), threading.Event()

    def work(communicator: Communicator) -> None:
        if communicator.rank == 0:
            communicator.exchange({1: np.full(size, 7.0)}, {})
            aborts.set()
            communicator.abort("planted reason")
            has_aborted.set()
            return
        assert (aborts if reads_at_once else has_aborted).wait(LONG)
        time.sleep(0.2)  # until rank 0 tries to send its reason
        received = np.zeros(size)
        with pytest.raises(CommunicationError) as caught:
            communicator.exchange({}, {0: received})()
            np.testing.assert_array_equal(received, 7.0)
            communicator.allreduce(np.zeros(1))
        # If nobody reads the message for a second, the connection is ended in the middle of it.
        assert str(caught.value) == "planted reason" or isinstance(caught.value, RankLostError)

    run_sockets(work, 2)


# ------------------------------------------------------------------- processes


def add_until_killed(communicator: Communicator) -> str:
    values = np.zeros(1)
    while True:
        communicator.allreduce(values)


def exchange_until_killed(communicator: Communicator) -> str:
    other, sent, received = 1 - communicator.rank, np.ones(1 << 22), np.zeros(1 << 22)
    while True:
        communicator.exchange({other: sent}, {other: received})()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("work", [add_until_killed, exchange_until_killed], ids=["small messages", "large messages"])
@pytest.mark.few(1)
def test_a_process_killed_while_arrays_are_sent_is_named_within_seconds(work: Any, victim: int) -> None:
    group = Processes(work, 2)
    time.sleep(0.2)  # a large message takes about 20 ms, so the kill interrupts one
    began = time.monotonic()
    os.kill(group.processes[victim].pid, signal.SIGKILL)
    error = group.result(1 - victim)
    assert isinstance(error, RankLostError)
    assert error.rank == victim
    assert f"127.0.0.1:{error.address.rpartition(':')[2]}" == error.address
    assert time.monotonic() - began < SOON
    assert group.result(victim) is None


# ------------------------------------------------------------------- strangers


def test_a_peer_that_does_not_know_the_secret_is_refused() -> None:
    listeners = [listen("127.0.0.1") for _ in range(2)]
    addresses = [listener.getsockname() for listener in listeners]
    errors: list[Exception] = []

    def join(rank: int, secret: bytes) -> None:
        try:
            SocketCommunicator(rank, addresses, listeners[rank], secret, 5.0).close()
        except CommunicationError as error:
            errors.append(error)

    threads = [threading.Thread(target=join, args=item) for item in ((0, SECRET), (1, b"guessed"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert any("secret" in str(error) for error in errors)


def test_a_listener_does_not_answer_the_challenge_of_a_foreign_client() -> None:
    # With its answer, the foreign client could pretend to be this rank elsewhere.
    listener = listen("127.0.0.1")
    address = listener.getsockname()
    thread = threading.Thread(target=lambda: join_alone(listener, address))
    thread.start()
    with socket.create_connection(address) as stranger:
        stranger.sendall((1).to_bytes(4, "little") + bytes(32))  # rank 1, and its challenge
        stranger.settimeout(SOON)
        heard = b""
        while len(heard) < 32:
            heard += stranger.recv(64)
        assert len(heard) == 32  # only the listener's own challenge
        stranger.sendall(bytes(32))
        assert stranger.recv(64) == b""
    thread.join(LONG)
    assert not thread.is_alive()


def join_alone(listener: socket.socket, address: Any) -> None:
    silent = listen("127.0.0.1")
    with silent, pytest.raises(CommunicationError, match="stranger"):
        SocketCommunicator(0, [address, silent.getsockname()], listener, SECRET, 5.0)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make TLS contexts that trust one certificate, which is made for this test."""
    made = make_certificate(tmp_path_factory.mktemp("tls"))
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.check_hostname = False
        context.load_cert_chain(made["cert"], made["key"])
        context.load_verify_locations(made["cert"])
        context.verify_mode = ssl.CERT_REQUIRED
    return server, client


@pytest.mark.parametrize("size", [3, 300_000])
def test_ranks_communicate_over_tls(tls: tuple[ssl.SSLContext, ssl.SSLContext], size: int) -> None:
    def work(communicator: Communicator) -> tuple[float, float]:
        peer = 1 - communicator.rank
        got, values = np.empty(size), np.full(size, communicator.rank + 1.0)
        communicator.exchange({peer: values}, {peer: got})()
        communicator.check()
        communicator.allreduce(values)
        return got[-1], values[-1]

    assert run_sockets(work, 2, tls=tls) == [(2, 3), (1, 3)]


def test_a_peer_without_tls_is_refused(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    listener, silent = listen("127.0.0.1"), listen("127.0.0.1")
    addresses, errors, heard = [listener.getsockname(), silent.getsockname()], list[str](), b""

    def join() -> None:
        try:
            SocketCommunicator(0, addresses, listener, SECRET, LONG, tls=tls).close()
        except CommunicationError as error:
            errors.append(str(error))

    thread = threading.Thread(target=join)
    thread.start()
    with socket.create_connection(addresses[0]) as peer, suppress(ConnectionError):
        peer.sendall((1).to_bytes(4, "little") + bytes(32))  # rank 1, and its challenge
        peer.settimeout(SOON)
        while part := peer.recv(64):
            heard += part
    assert len(heard) < 32  # an alert of TLS at most, and no challenge
    silent.close()  # so that rank 0 waits no longer
    thread.join(LONG)
    assert len(errors) == 1
    assert "a stranger was refused: [SSL" in errors[0]


def test_the_error_names_a_rank_that_cannot_be_reached() -> None:
    with pytest.raises(CommunicationError, match=r"cannot reach ranks \[1\]"):
        SocketCommunicator(0, [("127.0.0.1", 1), ("127.0.0.1", 1)], listen("127.0.0.1"), SECRET, 0.3)
