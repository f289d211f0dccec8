"""Unusual and wrong arguments of distributed matrices: they work, or an error is raised before data is sent."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse
import gsparse.linalg as gla
from gsparse import GpuSparseMatrix
from gsparse.device.threads import available_cpus
from gsparse.errors import CommunicationError, DeviceError, ShapeError
from tests.linalg.problems import convection, laplacian, residual, right_hand_side
from tests.ranks.groups import wait_until

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
import dask.array  # noqa: E402

from gsparse.distributed import LocalGpuCluster, distribute, from_dask, from_loaders  # noqa: E402
from gsparse.distributed.client import cluster as cluster_module  # noqa: E402
from gsparse.distributed.client.cluster import GpuCluster  # noqa: E402
from gsparse.distributed.client.rank_servers import RankServers  # noqa: E402
from gsparse.distributed.client.scheduler import known_workers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # dask and tornado warn

NUM_WORKERS = 2


# ------------------------------------------------------------------ arguments of distribute


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "negative timeout": ({"timeout": -1}, ValueError, "timeout must be a number of seconds above 0, got -1"),
    "no timeout": ({"timeout": 0}, ValueError, "timeout must be a number of seconds above 0, got 0"),
    "timeout in words": ({"timeout": "abc"}, ValueError, "timeout must be a number of seconds above 0, got 'abc'"),
    "endless timeout": ({"timeout": np.inf}, ValueError, "timeout must be a number of seconds above 0, got inf"),
    "more workers than there are": ({"workers": 5}, CommunicationError, "5 workers are asked for, the cluster has 2"),
    "workers below zero": ({"workers": -1}, CommunicationError, "-1 workers are asked for, the cluster has 2"),
    "half workers": ({"workers": 1.5}, TypeError, "workers must be a list of dask's addresses, or how many"),
    "one address": ({"workers": "tcp://127.0.0.1:1"}, TypeError, "workers must be a list of dask's addresses"),
    "unknown address": ({"workers": ["tcp://127.0.0.1:1"]}, CommunicationError, r"no workers \['tcp://127.0.0.1:1'\]"),
    "no such partition": ({"partition": "entries"}, ValueError, "'metis' or bounds, got 'entries'"),
    "no such order": ({"reorder": "cmk"}, ValueError, "reorder must be None or 'rcm', got 'cmk'"),
    "no partition": ({"partition": None}, ValueError, "partition must be .* or bounds, got None"),
    "bounds between rows": ({"partition": [0, 1.5, 36]}, ValueError, r"got \[0, 1.5, 36\]; bounds are integers"),
    "bounds as floats": ({"partition": np.array([0.0, 36.0])}, ValueError, "bounds are integers"),
    "an order as array": ({"reorder": np.arange(36)}, ValueError, "reorder must be None or 'rcm'"),
    "a number as client": ({"client": 3}, TypeError, r"must be a distributed.Client, got int: Client\(cluster\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_error_for_a_wrong_argument_of_distribute_names_it(client: Any, name: str) -> None:
    given, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        distribute(laplacian(6), **{"client": client, **given})


@pytest.mark.parametrize("S", ["x.npz", None, sp.coo_array([1.0, 2.0])], ids=["path", "None", "1-D"])
def test_vectors_and_numbers_in_place_of_a_matrix_are_refused(client: Any, S: Any) -> None:
    with pytest.raises(ShapeError, match=r"S must be a 2-D sparse array, got .* of [01] dimensions; files are"):
        distribute(S, client=client)


def test_a_matrix_in_place_of_a_dask_array_is_refused(client: Any) -> None:
    with pytest.raises(TypeError, match=r"a dask array is needed, got csr_array: distribute\(S\)"):
        from_dask(laplacian(6), client=client)


def test_workers_may_be_given_as_a_number(client: Any) -> None:
    S = laplacian(6)
    for count in (1, np.int64(2)):
        with distribute(S, client=client, workers=count) as A:
            assert len(A.workers) == count
            np.testing.assert_allclose(A @ np.ones(36), S @ np.ones(36), atol=1e-12)


def _set_default_device(name: str) -> None:
    os.environ["GSPARSE_DEVICE"] = name


def test_the_device_is_that_of_the_cluster_unless_another_is_asked_for(client: Any) -> None:
    S = laplacian(6)
    with distribute(S, client=client) as A:  # also where the machine has a GPU
        assert A.devices == ("cpu", "cpu")
    client.run(_set_default_device, "gpu:99")
    try:
        with pytest.raises(DeviceError), distribute(S, client=client):
            pass
        with distribute(S, client=client, device="cpu") as A:
            assert A.devices == ("cpu", "cpu")
    finally:
        client.run(_set_default_device, "cpu")


def test_a_worker_that_is_listed_twice_is_refused(client: Any) -> None:
    one, two = sorted(known_workers(client))
    for workers in ([one, one], [one, two, one]):
        with pytest.raises(ValueError, match=rf"listed once only, got \['{one}'\] more than once"):
            distribute(laplacian(6), client=client, workers=workers)


def test_a_client_by_position_is_the_one_that_is_used(client: Any) -> None:
    S = laplacian(6)
    X = dask.array.from_array(S.toarray(), chunks=(18, 36))
    for make in (lambda c: distribute(S, c), lambda c: from_loaders([lambda lo, hi: S[lo:hi]], S.shape, c),
                 lambda c: from_dask(X, c), GpuSparseMatrix(S, device="cpu").distribute):  # fmt: skip
        with make(client) as A:
            assert A.client is client


def test_bounds_may_be_an_array(client: Any) -> None:
    S = laplacian(6)
    workers = sorted(known_workers(client))
    with distribute(S, client=client, workers=workers, partition=np.array([0, 10, 36])) as A:
        assert A.row_bounds == (0, 10, 36)
        assert all(type(bound) is int for bound in A.row_bounds)
    with from_loaders([lambda lo, hi: S[lo:hi]], S.shape, client=client, partition=np.array([0, 10, 36])) as A:
        assert A.row_bounds == (0, 10, 36)


def test_a_matrix_stays_open_if_repartition_refuses_its_arguments(client: Any) -> None:
    S = laplacian(6)
    with distribute(S, client=client) as A:
        for wrong in ({"workers": 5}, {"partition": None}, {"reorder": np.arange(3)}):
            with pytest.raises((ValueError, CommunicationError)):
                A.repartition(**wrong)
        np.testing.assert_allclose(A @ np.ones(36), S @ np.ones(36), atol=1e-12)


def test_the_error_says_that_the_client_of_a_matrix_is_closed(client: Any) -> None:
    S = laplacian(6)
    with distributed.Client(client.cluster) as own:
        A = distribute(S, client=own)
    M = gla.jacobi(A)
    for use in (
        lambda: gla.cg(A, np.ones(36)), lambda: A @ np.ones(36), lambda: M @ np.ones(36), lambda: A.checkpoint("x"),
        lambda: distribute(S, client=own), A.repartition,
    ):  # fmt: skip
        with pytest.raises(CommunicationError, match="the scheduler is gone: the client is closed"):
            use()
    A.close()


def test_the_error_of_pickling_a_matrix_names_the_function_that_saves_it(client: Any) -> None:
    with distribute(laplacian(6), client=client) as A, pytest.raises(TypeError, match=r"checkpoint\(folder\) saves it"):
        pickle.dumps(A)


# ------------------------------------------------------------------ preconditioners


def test_scipys_solvers_accept_preconditioners(client: Any) -> None:
    S = laplacian(12)
    b = right_hand_side(S)
    counts = []
    with distribute(S, client=client, reorder="rcm") as A:
        for M in (None, gla.ic0(A)):
            seen: list[Any] = []
            x, info = la.cg(A, b, rtol=1e-8, M=M, callback=seen.append)
            assert info == 0
            assert residual(S, x, b) < 1e-7
            counts.append(len(seen))
    assert counts[1] < 0.7 * counts[0]


@pytest.mark.parametrize("dtype", [float, complex])
def test_a_preconditioner_multiplies_as_those_of_the_diagonal_blocks_do(client: Any, dtype: Any) -> None:
    S = sp.csr_array(convection(8).astype(dtype) * (1 + (1j if dtype is complex else 0)))
    X = right_hand_side(S, 3)
    with distribute(S, client=client) as A:
        cut = A.row_bounds[1]
        blocks = [GpuSparseMatrix(S[own, own], device="cpu") for own in (slice(0, cut), slice(cut, None))]
        M = gla.ilu0(A)
        local = [gla.ilu0(block) for block in blocks]
        expected = np.concatenate([m @ part for m, part in zip(local, (X[:cut], X[cut:]), strict=True)])
        turned = np.concatenate([m.rmatmat(part) for m, part in zip(local, (X[:cut], X[cut:]), strict=True)])
        np.testing.assert_allclose(M @ X, expected, rtol=1e-12)
        np.testing.assert_allclose(M @ X[:, 0], expected[:, 0], rtol=1e-12)
        np.testing.assert_allclose(M.H @ X, turned, rtol=1e-12)
        np.testing.assert_allclose(M.rmatvec(X[:, 0]), turned[:, 0], rtol=1e-12)
        np.testing.assert_allclose(la.aslinearoperator(2 * M) @ X, 2 * expected, rtol=1e-12)


# ------------------------------------------------------------------ arguments of solvers


def test_unexpected_arguments_are_refused_before_anything_is_sent(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    S = laplacian(6)
    b = np.ones(36)
    with distribute(S, client=client) as A, monkeypatch.context() as patch:

        def sent(*args: Any) -> None:
            raise AssertionError("a task was sent")

        patch.setattr(RankServers, "request", sent)
        for call, words in (
            (lambda: gla.block_jacobi(A), r"block_jacobi\(\) missing a required argument: 'block_size'"),
            (lambda: gla.jacobi(A, on_failure="raise"), r"jacobi\(\) got an unexpected keyword argument 'on_failure'"),
            (lambda: gla.cg(A, b, tol=1e-8), r"cg\(\) takes no argument 'tol', as in SciPy: use rtol and atol"),
            (lambda: gla.fgmres(A, b, tol=1e-8), r"fgmres\(\) takes no argument 'tol', as in SciPy: use rtol and atol"),
            (lambda: gla.lsqr(A, b, M=None), r"lsqr\(\) got an unexpected keyword argument 'M'"),
            (lambda: gla.lobpcg(A), r"lobpcg\(\) missing a required argument: 'X'"),
            (lambda: gla.cg(A), r"cg\(\) missing a required argument: 'b'"),
        ):
            with pytest.raises(TypeError, match=words):
                call()


# ------------------------------------------------------------------ products without columns, solves within solves


@pytest.mark.parametrize("size", [30, 0])
@pytest.mark.few(1)
def test_a_product_without_columns_has_the_shape_of_scipys(client: Any, size: int) -> None:
    S = laplacian(8)[:size, :size].tocsr()
    with distribute(S, client=client, timeout=30) as A:
        X = np.ones((size, 0))
        assert (A @ X).shape == (A.T @ X).shape == (size, 0)
        np.testing.assert_allclose(A @ np.ones(size), S @ np.ones(size), atol=1e-12)


@pytest.mark.whole
def test_a_solve_within_the_callback_of_a_solve_is_refused_at_once(client: Any) -> None:
    S = laplacian(8)
    b = right_hand_side(S)
    with distribute(S, client=client, timeout=600) as A:
        with pytest.raises(CommunicationError, match="a callback can multiply by the matrix, but not solve with it"):
            gla.cg(A, b, maxiter=3, callback=lambda _: gla.cg(A, b, maxiter=2))
        assert gla.cg(A, b, callback=lambda x: A @ x)[1] == 0


# ------------------------------------------------------------------ starting and scaling a cluster


def test_a_cluster_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    before = dict(os.environ)
    with LocalGpuCluster(2, device="cpu") as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2)
        assert dict(os.environ) == before
        inherited = client.run(lambda: (os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"]))
        assert set(inherited.values()) == {("1", "3")}
        number = max(1, available_cpus() // 2)
        assert set(client.run(gsparse.get_num_threads).values()) == {number}
    assert dict(os.environ) == before


@pytest.mark.whole
@pytest.mark.timed
def test_a_cluster_can_be_scaled_down_and_up() -> None:
    with LocalGpuCluster(2, device="cpu") as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2)
        S = laplacian(8)
        for size in (1, 3):
            cluster.scale(size)
            wait_until(lambda size=size: len(known_workers(client)) == size, 300)  # type: ignore[misc]
            with distribute(S, client=client) as A:
                assert len(A.workers) == size
                np.testing.assert_allclose(A @ np.ones(64), S @ np.ones(64), atol=1e-12)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ({}, [{"CUDA": "0,1"}, {"CUDA": "1,0"}]),
        ({"CUDA": "GPU-7f,3,-1"}, [{"CUDA": "GPU-7f,3"}, {"CUDA": "3,GPU-7f"}]),
        ({"CUDA": "4,6", "HIP": "2,5"}, [{"CUDA": "4,6", "HIP": "2,5"}, {"CUDA": "6,4", "HIP": "5,2"}]),
    ],
    ids=["all", "some of NVIDIA", "some of AMD"],
)
def test_each_worker_has_a_gpu_of_its_own_among_those_that_the_user_has_chosen(
    monkeypatch: pytest.MonkeyPatch, visible: dict[str, str], expected: list[dict[str, str]]
) -> None:
    for name in ("CUDA", "HIP"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)
    for name, value in visible.items():
        monkeypatch.setenv(f"{name}_VISIBLE_DEVICES", value)
    monkeypatch.setattr(cluster_module, "_num_gpus", lambda device: 2)
    monkeypatch.setattr(cluster_module, "GpuCluster", lambda count, describe, *more, **options: describe)
    describe: Any = LocalGpuCluster()
    for number in range(2):
        env = describe(number)["options"]["env"]
        chosen = {name.removesuffix("_VISIBLE_DEVICES"): gpus for name, gpus in env.items() if "VISIBLE" in name}
        assert chosen == expected[number]


@pytest.mark.whole
def test_a_new_worker_gets_the_first_gpu_that_no_other_has() -> None:
    cluster: Any = SimpleNamespace(worker_spec={0: {}, 2: {}}, _describe=lambda number: {"gpu": number}, _max_workers=3)
    assert GpuCluster.new_worker_spec(cluster) == {1: {"gpu": 1}}
    with pytest.raises(DeviceError, match="4 workers on this machine: scale to at most 3"):
        GpuCluster.scale(cluster, 4)
