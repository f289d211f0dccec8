"""Vectors on the workers that are used after one of the workers has died: an error names the vector."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

import gsparse.linalg as gla
from gsparse.errors import CommunicationError
from tests.linalg.problems import residual
from tests.ranks.groups import wait_until

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
import dask.array  # noqa: E402

from gsparse.distributed import DistributedMatrix, distribute  # noqa: E402
from gsparse.distributed.client.scheduler import known_workers  # noqa: E402
from tests.ranks.faults import B, S, error_within_deadline, pids  # noqa: E402

pytestmark = [pytest.mark.timed, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

SIZE = S.shape[0]


def solution(A: DistributedMatrix) -> Any:
    """Return the solution of a solve, which stays on the workers."""
    return gla.cg(A, A.vector(B), rtol=1e-10)[0].persist()


def kill_worker_of(client: Any, A: DistributedMatrix) -> DistributedMatrix:
    """Kill a worker, and return the matrix, made again on the cluster's new workers."""
    os.kill(pids(client)[A.workers[1]], signal.SIGKILL)
    wait_until(lambda: A.workers[1] not in known_workers(client))
    client.wait_for_workers(3, timeout=120)
    return A.repartition()


@pytest.mark.parametrize("vector", [solution, lambda A: A.vector(B)], ids=["solution", "numpy"])
def test_a_vector_of_which_a_part_is_lost_is_an_error_that_names_it(
    client: Any, vector: Callable[[DistributedMatrix], Any]
) -> None:
    with distribute(S, client=client) as A:
        x = vector(A)
        distributed.wait(x)
        with kill_worker_of(client, A) as again:
            for name, call in (
                ("b", lambda: gla.cg(again, x)),
                ("x0", lambda: gla.cg(again, B, x0=x)),
                ("the vector", lambda: again.vector(x)),
            ):
                error = error_within_deadline(call)
                assert isinstance(error, CommunicationError)
                words = f"a part of {name} is lost with the worker that had it: .*make .* again"
                assert re.search(words, str(error)), str(error)
            y, info = gla.cg(again, again.vector(B), rtol=1e-10)
            assert info == 0
            assert residual(S, y.compute(), B) < 1e-9


def test_what_dask_can_compute_again_is_waited_for(client: Any) -> None:
    with distribute(S, client=client) as A:
        b = dask.array.from_array(B, chunks=SIZE // 3).persist()
        distributed.wait(b)
        with kill_worker_of(client, A) as again:
            x, info = gla.cg(again, b, rtol=1e-10)
            assert info == 0
            assert residual(S, x.compute(), B) < 1e-9
