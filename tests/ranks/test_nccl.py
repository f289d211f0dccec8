"""Ranks with a GPU each: the solvers over NCCL, and over the host, return the result of one GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gsparse import GpuSparseMatrix
from gsparse.device.select import get_device
from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks
from gsparse.distributed.ranks.gpu_memory import NcclCommunicator
from gsparse.errors import DeviceError
from tests.linalg.problems import rectangular, right_hand_side
from tests.ranks.test_solvers import LEAST_SQUARES, MATRICES, SOLVES, check, laplacian

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    num_gpus()


def num_gpus() -> int:
    try:
        return int(get_device("gpu:0").xp.cuda.runtime.getDeviceCount())
    except DeviceError as error:
        pytest.skip(str(error))


def on_gpus(S: Any, b: Any, solve: Callable[..., Any], staged: bool) -> list[Any]:
    """Solve with one thread for each GPU. A single GPU is shared by two ranks, which communicate over the host."""
    world_size = num_gpus()
    if world_size < 2 and not staged:
        pytest.skip("NCCL takes one rank a GPU, and there is one GPU")
    world_size = max(world_size, 2)
    rows = RowPartition.by_nnz(S.indptr, world_size)
    columns = rows if S.shape[0] == S.shape[1] else RowPartition.by_rows(S.shape[1], world_size)

    def work(local: Communicator) -> Any:
        device = get_device(f"gpu:{local.rank % num_gpus()}")
        with device.active():
            communicator = local if staged else NcclCommunicator(local, device)
            own = rows.rows(local.rank)
            found = solve(RankMatrix(S[own], rows, columns, communicator, device), b[own])
            if communicator is not local:
                communicator.close()
            return found

    return run_ranks(work, world_size)


@pytest.mark.parametrize("staged", [False, True], ids=["nccl", "over the host"])
@pytest.mark.parametrize("name", [*SOLVES, *LEAST_SQUARES])
@pytest.mark.parametrize("dtype", [float, complex])
def test_solvers_return_the_same_on_several_gpus_as_on_one(name: str, staged: bool, dtype: type) -> None:
    S = rectangular(90, 40, dtype) if name in LEAST_SQUARES else MATRICES.get(name, laplacian)(12, dtype)
    b, solve = right_hand_side(S, 2 if dtype is complex else None), {**SOLVES, **LEAST_SQUARES}[name]
    alone = solve(GpuSparseMatrix(S, device="gpu:0"), b)
    # If a residual just misses the tolerance, a refinement takes one more correction, with all its iterations.
    slack = 0.7 if name == "cg, refined" else 0.1
    check(on_gpus(S, b, solve, staged), alone, 1e-6 if name in LEAST_SQUARES else 1e-8, slack)


def test_products_and_adjoints_on_several_gpus_match_scipy() -> None:
    S = rectangular(300, 200, complex)
    x, z = right_hand_side(S.T), right_hand_side(S)
    columns = RowPartition.by_rows(200, max(num_gpus(), 2))

    def multiply(A: RankMatrix, own: Any) -> Any:
        cols = columns.rows(A.communicator.rank)
        return A.matvec(x[cols]), A.rmatvec(own)

    found = on_gpus(S, z, multiply, staged=False)
    np.testing.assert_allclose(np.concatenate([y for y, _ in found]), S @ x, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([y for _, y in found]), S.conj().T @ z, atol=1e-12)
