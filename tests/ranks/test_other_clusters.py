"""Clusters that users start with other packages: dask-cuda, over UCXX, and dask-jobqueue."""

from __future__ import annotations

import copy
import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gsparse
from gsparse.linalg import amg, cg
from tests.linalg.problems import laplacian, residual, right_hand_side

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
from distributed.comm.registry import backends  # noqa: E402

from gsparse.distributed import distribute  # noqa: E402

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

S = laplacian(12)
B = right_hand_side(S)


class CudaClusterStandIn(distributed.LocalCluster):  # type: ignore[misc]
    """Starts workers as `dask_cuda.LocalCUDACluster` does, also on a machine without GPUs.

    Each worker has one thread, and sees all GPUs, its own first.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(n_workers=0, threads_per_worker=1, **options)
        self.scale(2)

    def new_worker_spec(self) -> dict[int, dict[str, Any]]:
        number, spec = len(self.worker_spec), copy.deepcopy(self.new_spec)
        spec["options"]["env"] = {"CUDA_VISIBLE_DEVICES": f"{number},{1 - number}"}
        return {number: spec}


def check(client: Any, protocol: str) -> None:
    """Multiply and solve on two workers, with rows of this process and with dask's chunks."""
    client.wait_for_workers(2, timeout=120)
    with distribute(S, client) as A:
        assert len(A.workers) == 2
        assert all(worker.startswith(f"{protocol}://127.0.0.1:") for worker in A.workers)
        np.testing.assert_allclose(A @ B, S @ B, atol=1e-12)
        x, info = cg(A, A.vector(B), M=amg(A), rtol=1e-10)
        assert info == 0
        assert residual(S, x.compute(), B) < 1e-9
        with gsparse.from_dask(A.to_dask(), client) as again:
            np.testing.assert_array_equal(again.toarray(), S.toarray())


def test_workers_of_dask_cuda_behind_ucxx_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    preload = str(Path(__file__).with_name("ucxx_stand_in.py"))
    monkeypatch.setitem(backends, "ucxx", None)  # so that the name is removed after the test
    runpy.run_path(preload)
    with (
        CudaClusterStandIn(
            protocol="ucxx://", dashboard_address="127.0.0.1:0", preload=preload, preload_nanny=preload
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        check(client, "ucxx")
        assert sorted(client.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"]).values()) == ["0,1", "1,0"]


def test_workers_that_dask_jobqueue_has_started(tmp_path: Path) -> None:
    jobqueue = pytest.importorskip("dask_jobqueue.local", reason="needs dask-jobqueue: pip install dask-jobqueue")
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        jobqueue.LocalCluster(
            cores=1, processes=1, memory="1GB", local_directory=tmp_path, scheduler_options=options
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        cluster.scale(jobs=2)
        check(client, "tcp")
