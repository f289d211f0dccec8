"""Messages through memory: what arrives, also from messages that are larger than a box, and when memory is shared."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gsparse.device.base import Device
from gsparse.distributed import Communicator, RankMatrix, RowPartition, SocketCommunicator, run_ranks
from gsparse.distributed.ranks import shared_memory
from gsparse.distributed.ranks.gpu_memory import SharedGpuCommunicator
from gsparse.distributed.ranks.shared_memory import MemoryCommunicator, share_memory
from gsparse.errors import RankLostError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.exchange import HEADER_WORDS, Mailboxes
from gsparse.linalg import cg
from tests.conftest import make_device
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.groups import SOON, Processes, run_sockets

# A message of more words than this takes several.
CAPACITY = 30


def boxes_of(device: Device, world_size: int, capacity: int = CAPACITY) -> list[Mailboxes]:
    """Return the mailboxes of each rank, whose memory is of one process."""
    shape = world_size, 2, capacity + HEADER_WORDS
    memory = [device.upload(np.zeros(shape, np.uint64)) for _ in range(world_size)]
    return [
        kernels_of(device).exchange.Mailboxes(device, rank, [boxes[rank] for boxes in memory], list(memory[rank]))
        for rank in range(world_size)
    ]


def words_of(device: Device, count: int, seed: int) -> Any:
    return device.upload(np.random.default_rng(seed).integers(0, 2**32, count, np.uint32))


@pytest.mark.parametrize("count", [0, 1, 2, 3, CAPACITY - 1, CAPACITY])
def test_messages_arrive_in_their_order(device: Device, count: int) -> None:
    with device.active():
        one, two = boxes_of(device, 2)
        for number in range(5):
            sent = words_of(device, count, number), words_of(device, count // 2, 10 + number)
            one.bind_post({1: sent[0]})()
            two.bind_post({0: sent[1]})()
            received = device.empty(count // 2, np.uint32), device.empty(count, np.uint32)
            assert one.bind_collect({1: received[0]})() == []
            assert two.bind_collect({0: received[1]})() == []
            np.testing.assert_array_equal(device.download(received[0]), device.download(sent[1]))
            np.testing.assert_array_equal(device.download(received[1]), device.download(sent[0]))
        assert one.disagreeing_rank is None


def test_a_message_of_another_size_is_noticed(device: Device) -> None:
    with device.active():
        one, two = boxes_of(device, 2)
        one.bind_post({1: words_of(device, 4, 0)})()
        two.bind_collect({0: device.empty(2, np.uint32)})()
        device.synchronize()
        assert two.disagreeing_rank == 0


def test_a_wait_ends_when_the_host_stops_it(device: Device) -> None:
    with device.active():
        one, _ = boxes_of(device, 2)
        one.stop()
        assert one.bind_collect({1: device.empty(3, np.uint32)})() == []
        assert one.sum(device.upload(np.ones(3))) == []
        device.synchronize()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("name", ["cpu", "emulated:32", "emulated:64"])  # kernels of one process may not wait so long
def test_sums_have_the_same_bits_on_all_ranks(name: str, world_size: int, dtype: str) -> None:
    device, rng = make_device(name), np.random.default_rng(world_size)
    numbers = [(10.0**rank * rng.standard_normal(15)).astype(dtype) for rank in range(world_size)]
    if dtype != "int64":
        numbers[0][3:5], numbers[-1][4:6] = np.inf, -np.inf
    boxes, values = boxes_of(device, world_size), [device.upload(array.copy()) for array in numbers]

    def add_up(rank: int) -> None:
        for _ in range(2):
            while boxes[rank].sum(values[rank]):
                pass

    threads = [threading.Thread(target=add_up, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "a rank hangs"
    with np.errstate(invalid="ignore"):
        once = sum(numbers[1:], numbers[0].copy())
        twice = sum([once] * (world_size - 1), once.copy())
    for array in values:
        np.testing.assert_array_equal(device.download(array), twice)
        assert device.download(array).tobytes() == device.download(values[0]).tobytes()


# ---------------------------------------------------------------------------- communicators


def run_on(
    device: Device, work: Callable[..., Any], world_size: int, *args: Any, kind: Any = MemoryCommunicator
) -> Any:
    """Run ``work(communicator, *args)`` on ranks that are threads, with small boxes in memory of a device."""
    boxes = boxes_of(device, world_size)

    def with_boxes(local: Communicator) -> Any:
        with device.active(), kind(local, device, boxes[local.rank]) as communicator:
            return work(communicator, *args)

    return run_ranks(with_boxes, world_size)


@pytest.fixture(params=["cpu", "emulated:32"])
def each(request: pytest.FixtureRequest) -> Device:
    return make_device(request.param)


def exchange_in_a_ring(communicator: Communicator, device: Device, dtype: str, size: int) -> None:
    """Send numbers, whose count depends on the rank, to the next rank, and add up equal numbers of all ranks."""
    rank, world_size = communicator.rank, communicator.world_size
    after, before = (rank + 1) % world_size, (rank - 1) % world_size

    def numbers(rank: int) -> Any:
        return np.random.default_rng(rank).integers(0, 100, size + rank).astype(dtype)

    for _ in range(3):
        received = device.upload(np.full(size + before, -1).astype(dtype))
        wait = communicator.exchange({after: device.upload(numbers(rank))}, {before: received})
        wait()
        np.testing.assert_array_equal(device.download(received), numbers(before))
    total = device.upload(numbers(1))
    communicator.allreduce(total)
    np.testing.assert_array_equal(device.download(total), world_size * numbers(1))


@pytest.mark.parametrize("size", [1, 37, 90])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
@pytest.mark.parametrize("kind", [MemoryCommunicator, SharedGpuCommunicator])
@pytest.mark.few(9)
def test_exchanges_and_sums_larger_than_a_box_are_right(each: Device, size: int, dtype: str, kind: Any) -> None:
    run_on(each, exchange_in_a_ring, 3, each, dtype, size, kind=kind)


def test_large_unsigned_integers_are_added_exactly(each: Device) -> None:
    def add(communicator: Communicator) -> list[int]:
        values = each.upload(np.array([2**53 + 1, 2**63], np.uint64) * np.uint64(communicator.rank == 0))
        communicator.allreduce(values)
        return [int(value) for value in each.download(values)]

    assert run_on(each, add, 2) == [[2**53 + 1, 2**63]] * 2


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32"])
def test_arrays_of_the_host_may_have_any_number_of_bytes(dtype: str) -> None:
    cpu = make_device("cpu")
    run_on(cpu, exchange_in_a_ring, 2, cpu, dtype, 67)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cpu", MemoryCommunicator),
        ("emulated:32", SharedGpuCommunicator),
        pytest.param("emulated:32", MemoryCommunicator, marks=pytest.mark.whole),  # emulated threads wait for long
    ],
)
def test_a_solve_through_memory_converges(name: str, kind: Any) -> None:
    S, device = laplacian(6), make_device(name)
    b, rows = right_hand_side(S), RowPartition.by_nnz(S.indptr, 2)

    def solve(communicator: Communicator) -> Any:
        own = rows.rows(communicator.rank)
        A = RankMatrix(S[own], rows, rows, communicator, device)
        return cg(A, b[own], rtol=1e-10)[0]

    x = np.concatenate(run_on(device, solve, 2, kind=kind))
    assert residual(S, x, b) < 1e-9


# ---------------------------------------------------------------------------- processes of a host


def kind_of(control: Communicator) -> str:
    communicator = share_memory(control)
    total = np.ones(1)
    communicator.allreduce(total)
    assert total[0] == control.world_size
    return type(communicator).__name__


def test_ranks_of_one_host_share_memory_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_folder", lambda: tmp_path)
    assert run_sockets(kind_of, 3) == ["MemoryCommunicator"] * 3
    assert not list(tmp_path.iterdir())


def test_without_a_common_file_or_host_ranks_use_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_folder", lambda: tmp_path / "missing")
    assert run_sockets(kind_of, 2) == ["SocketCommunicator"] * 2
    monkeypatch.setattr(shared_memory, "_folder", lambda: tmp_path)
    monkeypatch.setattr(shared_memory, "host_hash", lambda: threading.get_ident() % 2**31)
    assert run_sockets(kind_of, 2) == ["SocketCommunicator"] * 2


def test_a_rank_may_close_as_soon_as_its_messages_are_written() -> None:
    """Rank 0 is gone long before rank 2 sends, so rank 1 notices the loss while it waits for rank 2 alone."""
    ended = threading.Event()

    def work(communicator: Communicator) -> float:
        received = np.zeros(1)
        if communicator.rank == 0:
            communicator.exchange({1: np.ones(1)}, {})()
        elif communicator.rank == 1:
            communicator.exchange({}, {0: received})()
            communicator.exchange({}, {2: received})()
        else:
            assert ended.wait(SOON)
            communicator.exchange({1: np.full(1, 2.0)}, {})()
        return float(received[0])

    def through_memory(control: SocketCommunicator) -> float:
        found = work(share_memory(control))
        if control.rank == 0:
            control.close()
            threading.Timer(0.2, ended.set).start()  # later than the first look for lost ranks
        return found

    assert run_sockets(through_memory, 3) == [0.0, 2.0, 0.0]


def wait_for_a_victim(control: Communicator) -> None:
    communicator = share_memory(control)
    communicator.allreduce(np.ones(1))
    if communicator.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    communicator.allreduce(np.ones(1))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_killed_process_is_noticed_though_its_memory_stays() -> None:
    processes = Processes(wait_for_a_victim, 2)
    error = processes.result(0)
    assert isinstance(error, RankLostError)
    assert error.rank == 1
