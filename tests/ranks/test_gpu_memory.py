"""Ranks in processes that communicate through GPU memory: products, solves, lost ranks, and ranks that cannot."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse import GpuSparseMatrix
from gsparse.device.select import get_device
from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks
from gsparse.distributed.ranks.gpu_memory import connect_gpus
from gsparse.distributed.ranks.shared_memory import share_memory
from gsparse.errors import RankLostError
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.groups import Processes
from tests.ranks.test_nccl import num_gpus

pytestmark = pytest.mark.gpu

S = laplacian(40)
B = right_hand_side(S)


@pytest.fixture(params=["MemoryCommunicator", "SharedGpuCommunicator"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the class of communicator that two ranks get: with a GPU each, or on the same one."""
    if num_gpus() < 2 and request.param == "MemoryCommunicator":
        pytest.skip("needs two GPUs")
    return str(request.param)


def connected(control: Communicator, kind: str) -> tuple[Communicator, Any]:
    device = get_device(f"gpu:{control.rank if kind == 'MemoryCommunicator' else 0}")
    with device.active():
        communicator = connect_gpus(share_memory(control), device)
    assert type(communicator).__name__ == kind
    return communicator, device


def exchange_and_solve(control: Communicator, kind: str) -> dict[str, Any]:
    communicator, device = connected(control, kind)
    rank, rows, found = communicator.rank, RowPartition.by_nnz(S.indptr, 2), dict[str, Any]()
    own = rows.rows(rank)
    with device.active():
        for size in (1, 1000, 300_001):  # the last one takes several messages
            received = device.empty(size, np.float64)
            sent = device.upload(np.random.default_rng(rank).standard_normal(size))
            for _ in range(3):
                communicator.exchange({1 - rank: sent}, {1 - rank: received})()
            numbers = [np.random.default_rng(each).standard_normal(size) for each in range(2)]
            np.testing.assert_array_equal(device.download(received), numbers[1 - rank])
            communicator.allreduce(sent)
            np.testing.assert_array_equal(device.download(sent), numbers[0] + numbers[1])
        A = RankMatrix(S[own], rows, rows, communicator, device)
        found["product"] = A.matvec(B[own])
        for name, options in {"cg": {}, "one reduction": {"single_reduction": True}, "amg": {"M": gla.amg(A)}}.items():
            result = gla.cg(A, B[own], rtol=1e-10, full_output=True, **options)
            found[name] = result.x, result.iterations
        found["gmres"] = gla.gmres(A, B[own], rtol=1e-10)[0], 0
    communicator.close()
    return found


def test_products_and_solves_through_gpu_memory_are_right(kind: str) -> None:
    processes = Processes(exchange_and_solve, 2, kind)
    results = [processes.result(rank) for rank in range(2)]
    for result in results:
        if isinstance(result, Exception):
            raise result
    np.testing.assert_allclose(np.concatenate([r["product"] for r in results]), S @ B, rtol=1e-12, atol=1e-12)
    own = GpuSparseMatrix(S, device="gpu:0")
    alone = {"cg": gla.cg(own, B, rtol=1e-10, full_output=True).iterations}
    alone["amg"] = gla.cg(own, B, M=gla.amg(own), rtol=1e-10, full_output=True).iterations
    for name in ("cg", "one reduction", "amg", "gmres"):
        assert residual(S, np.concatenate([r[name][0] for r in results]), B) < 1e-9, name
        if name in alone:
            assert abs(results[0][name][1] - alone[name]) <= max(2, 0.1 * alone[name]), name


def solve_until_killed(control: Communicator, kind: str) -> str:
    """Solve until rank 1 dies; then close the communicator and solve on the GPU without it."""
    communicator, device = connected(control, kind)
    rows = RowPartition.by_nnz(S.indptr, 2)
    own = rows.rows(communicator.rank)
    with device.active():
        A = RankMatrix(S[own], rows, rows, communicator, device)
        gla.cg(A, B[own], maxiter=10)
        if communicator.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            gla.gmres(A, B[own], rtol=0, maxiter=10**9)
        except RankLostError as error:
            communicator.abort("a rank is lost")
            communicator.close()
            x = gla.cg(GpuSparseMatrix(S, device=device), B, rtol=1e-10)[0]
            assert residual(S, x, B) < 1e-9
            return f"rank {error.rank} is lost"
    raise AssertionError("the solve has ended")


def test_a_killed_process_leaves_the_gpu_usable(kind: str) -> None:
    found = Processes(solve_until_killed, 2, kind).result(0)
    if isinstance(found, Exception):
        raise found
    assert found == "rank 1 is lost"


def reconnect(control: Communicator, kind: str) -> float:
    total = 0.0
    for _ in range(5):
        communicator, device = connected(control, kind)
        with device.active():
            values = device.upload(np.ones(10))
            communicator.exchange({1 - communicator.rank: values}, {1 - communicator.rank: device.empty(10, float)})()
            communicator.allreduce(values)
            total += float(device.download(values)[0])
        communicator._release()  # type: ignore[attr-defined]  # `close` would close the sockets, too
        control.allreduce(np.zeros(1))
    return total


def test_ranks_may_connect_again_and_again(kind: str) -> None:
    processes = Processes(reconnect, 2, kind)
    assert [processes.result(rank) for rank in range(2)] == [10.0, 10.0]


def test_threads_of_one_process_do_not_share_memory() -> None:
    num_gpus()  # skips if there is no GPU

    def connect(local: Communicator) -> str:
        device = get_device("gpu:0")
        with device.active():
            return type(connect_gpus(local, device)).__name__

    assert run_ranks(connect, 2) == ["LocalCommunicator"] * 2
