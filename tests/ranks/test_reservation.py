"""Reservations of workers: one at a time holds a worker, and one that waits keeps no worker from others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ranks.groups import LONG, SOON

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed.client import rank_servers  # noqa: E402
from gsparse.distributed.client.rank_servers import Reservation  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # dask and tornado warn

# A reservation does not ask whether its workers exist, except for the reason of a long wait.
FIRST, SECOND = "tcp://first", "tcp://second"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def lock_of(client: Any, worker: str) -> Any:
    return distributed.Lock(f"gsparse-{worker}", scheduler_rpc=client.scheduler, loop=client.loop)


def test_a_reservation_that_waits_for_one_worker_leaves_the_other_one_free(client: Any) -> None:
    first, second, is_held = lock_of(client, FIRST), lock_of(client, SECOND), threading.Event()

    def reserve() -> None:
        with Reservation(client, [SECOND, FIRST]).held(LONG):
            is_held.set()

    assert first.acquire(timeout=SOON)
    thread = threading.Thread(target=reserve)
    thread.start()
    try:
        assert second.acquire(timeout=SOON)
        second.release()
        assert not is_held.is_set()
    finally:
        first.release()
    assert is_held.wait(SOON)
    thread.join(SOON)


def test_many_threads_hold_overlapping_reservations_one_after_the_other(client: Any) -> None:
    reservations = [Reservation(client, workers) for workers in ([FIRST, SECOND], [SECOND], [FIRST], [SECOND, FIRST])]
    users: dict[str, list[int]] = {FIRST: [], SECOND: []}
    shared: list[str] = []

    def use(number: int) -> None:
        for _ in range(10):
            with reservations[number].held(LONG):
                for worker in reservations[number]._workers:
                    users[worker].append(number)
                    shared.extend([worker] * (len(users[worker]) > 1))
                for worker in reservations[number]._workers:
                    users[worker].remove(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(len(reservations))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert shared == []


def test_an_error_in_the_block_releases_the_workers(client: Any) -> None:
    with pytest.raises(KeyError), Reservation(client, [FIRST, SECOND]).held(LONG):
        raise KeyError
    with Reservation(client, [FIRST, SECOND]).held(LONG):
        pass


def test_a_kept_reservation_is_released_for_another_one_and_when_its_client_closes(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("the scheduler was asked")

    for name in ("_KEPT_FOR", "_KEPT_IN_A_ROW"):
        monkeypatch.setattr(rank_servers, name, LONG)
    lock = lock_of(client, FIRST)
    with distributed.Client(client.scheduler.address, set_as_default=False) as other:
        for reservation in (Reservation(other, [FIRST]), Reservation(other, [FIRST, SECOND])):
            with reservation.held(LONG):
                pass
            assert not lock.acquire(timeout=0)
            with monkeypatch.context() as patch:
                patch.setattr(Reservation, "_acquire", fail)
                with reservation.held(LONG):
                    pass
    assert lock.acquire(timeout=10)  # before the lease of 30 s expires
    lock.release()
