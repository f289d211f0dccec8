"""Tests that need a real GPU: memory, streams, graphs, and CuPy's arrays and sparse matrices. Skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
import gsparse.linalg as gla
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DeviceError, DeviceMemoryError
from tests.conftest import make_device
from tests.linalg.problems import laplacian
from tests.support import STRUCTURES, assert_product, from_lengths, host, random_values

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.fixture(scope="module")
def gpu() -> Device:
    return make_device("gpu")


@pytest.fixture
def cupy(gpu: Device) -> Any:
    return gpu.xp


@pytest.fixture
def S(rng: np.random.Generator) -> sp.csr_array:
    return STRUCTURES["ragged, 1001 rows"](rng)


def hosts_of(A: GpuSparseMatrix) -> list[Any]:
    return [pair._host for pair in A._arrays]


def test_device_auto_selects_the_gpu(gpu: Device, S: sp.csr_array) -> None:
    assert GpuSparseMatrix(S, device="auto").device is gpu


@pytest.mark.parametrize("format", gsparse.FORMATS)
def test_device_arrays_stay_on_the_device(gpu: Device, cupy: Any, S: sp.csr_array, format: str, rng: Any) -> None:
    arrays = tuple(map(cupy.asarray, (S.data, S.indices, S.indptr)))
    A = GpuSparseMatrix(arrays, shape=S.shape, format=format)
    x, z = (cupy.asarray(random_values(rng, n, float)) for n in S.shape[::-1])
    with gsparse.strict():
        assert_product(host(A @ x), S, host(x))
        assert_product(host(A.T @ z), S.T.tocsr(), host(z))
        assert_product(host((2 * A) @ x) / 2, S, host(x))
        assert_product(host(x.astype("f4") @ A.T), S, host(x.astype("f4")), dtype=float)
    assert A.device_data is arrays[0]
    assert hosts_of(A) == [None] * 3


def test_cupy_sparse_matrices_of_every_kind_are_accepted(cupy: Any, S: sp.csr_array, rng: Any) -> None:
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    theirs = sparse.csr_matrix(tuple(map(cupy.asarray, (S.data, S.indices, S.indptr))), shape=S.shape)
    x = random_values(rng, S.shape[1], float)
    for made in (theirs, theirs.tocsc(), theirs.tocoo(), theirs.toarray()):
        A = GpuSparseMatrix(made)
        assert hosts_of(A) == [None] * 3
        np.testing.assert_allclose(A @ x, S @ x, rtol=1e-10, atol=1e-12)
    coo = theirs.tocoo()
    A = GpuSparseMatrix((coo.data, (coo.row, coo.col)), shape=S.shape)
    np.testing.assert_allclose(A @ x, S @ x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(GpuSparseMatrix(theirs, device="cpu") @ x, S @ x, rtol=1e-10, atol=1e-12)


def test_operators_of_cupy_arrays_defer_to_the_matrix(cupy: Any, S: sp.csr_array, rng: Any) -> None:
    A = GpuSparseMatrix(S)
    z = cupy.asarray(random_values(rng, S.shape[0], float))
    Z = cupy.asarray(random_values(rng, (3, S.shape[0]), float))
    for got, x in ((z @ A, host(z)), ((Z @ A).T, host(Z).T)):
        assert isinstance(got, cupy.ndarray)
        assert_product(host(got), S.T.tocsr(), x)


def test_a_vector_on_another_device_is_refused(cupy: Any, S: sp.csr_array) -> None:
    A, B = GpuSparseMatrix(S), GpuSparseMatrix(S, device="cpu")
    x = cupy.ones(S.shape[1])
    with pytest.raises(DeviceError, match=r"cpu.*gpu:0"):
        B @ x
    with pytest.raises(DeviceError, match="same type as x"):
        A.matvec(x, out=np.empty(S.shape[0]))
    with pytest.raises(ValueError, match="overlap"):
        square = GpuSparseMatrix(sp.eye_array(5))
        y = cupy.ones(9)
        square.matvec(y[:5], out=y[4:])


# Short rows, rows split over tiles, and long rows of several chunks, which use the scratch memory of a stream.
SHARED_OUT = pytest.mark.parametrize("structure", ["ragged, 1001 rows", "one dense row", "long rows"])


@SHARED_OUT
@pytest.mark.parametrize("format", gsparse.FORMATS[1:])
def test_products_follow_the_callers_stream(cupy: Any, structure: str, format: str, rng: Any) -> None:
    S = STRUCTURES[structure](rng)
    A = GpuSparseMatrix(S, format=format)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    x = random_values(rng, S.shape[1], float)
    results = []
    for stream in streams:
        with stream:
            results.append(A @ cupy.asarray(x))
    for stream, y in zip(streams, results, strict=True):
        stream.synchronize()
        assert_product(host(y), S, x)


@SHARED_OUT
@pytest.mark.parametrize("format", gsparse.FORMATS[1:])
def test_a_product_can_be_captured_in_a_graph(cupy: Any, structure: str, format: str, rng: Any) -> None:
    S = STRUCTURES[structure](rng)
    A = GpuSparseMatrix(S, format=format)
    x, y = cupy.asarray(random_values(rng, S.shape[1], float)), cupy.empty(S.shape[0])
    eager = A.matvec(x, out=y).copy()
    cupy.cuda.Device().synchronize()  # the stream below does not wait for other streams
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        A.matvec(x, out=y)
        graph = stream.end_capture()
        for _ in range(3):
            y.fill(cupy.nan)
            graph.launch(stream)
            stream.synchronize()
            cupy.testing.assert_array_equal(y, eager)
    cupy.testing.assert_array_equal(A @ x, eager)  # the eager product uses other scratch memory than the captured one


@pytest.mark.parametrize("way", [True, "lazy"])
def test_times_measured_on_the_device_decide_a_plan(
    cupy: Any, S: sp.csr_array, way: Any, rng: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path))
    A = GpuSparseMatrix(S, tune=way)
    for _ in range(80):  # up to four candidates, which are timed again if their times differ
        x = random_values(rng, S.shape[1], float)
        assert_product(A @ x, S, x)
    times = {c.format: c.measured for c in A.plan.candidates if c.measured is not None}
    assert len(times) >= 2
    assert all(0 < seconds < 1e-2 for seconds in times.values())
    assert A.plan.format == min(times, key=times.__getitem__)


def test_values_on_the_device_are_used_in_place(cupy: Any, S: sp.csr_array, rng: Any) -> None:
    A, T = GpuSparseMatrix(S), S.copy()
    T.data = random_values(rng, S.nnz, float)
    data, x = cupy.asarray(T.data), random_values(rng, S.shape[1], float)
    with gsparse.strict():
        B = A.with_data(data)
        assert_product(host(B @ cupy.asarray(x)), T, x)
    assert B.device_data is data


def test_all_arrays_come_from_the_allocator_that_the_user_has_set(cupy: Any) -> None:
    """RMM's allocator is set in the same way: `cupy.cuda.set_allocator(rmm_cupy_allocator)`."""
    S = laplacian(60)
    memory, pool, previous = cupy.cuda.Memory, cupy.get_default_memory_pool(), cupy.cuda.get_allocator()
    total, used = pool.total_bytes(), pool.used_bytes()
    cupy.cuda.set_allocator(lambda size: cupy.cuda.MemoryPointer(memory(size), 0))
    try:
        A, b = GpuSparseMatrix(S), cupy.ones(S.shape[0])
        square, result = A @ A, gla.cg(A, b, M=gla.amg(A), rtol=1e-10, full_output=True)
        assert result.info == 0
        arrays = (
            A.device_data,
            A @ b,
            A.T @ b,
            A @ cupy.ones((S.shape[1], 3)),
            square.device_data,
            A.sum(axis=1),
            result.x,
        )
        assert {type(array.data.mem) for array in map(cupy.asarray, arrays)} == {memory}
        assert_product(host(square @ b), S @ S, np.ones(S.shape[0]))
    finally:
        cupy.cuda.set_allocator(previous)
    assert pool.total_bytes() == total
    assert pool.used_bytes() <= used


def test_out_of_memory_names_the_size_and_leaves_everything_usable(gpu: Device, cupy: Any, rng: Any) -> None:
    rows = 2_000_000
    lengths = np.ones(rows, int)
    lengths[7] = rows
    S = from_lengths(lengths, rows, rng)
    A = GpuSparseMatrix(S, format="ellpack")
    x = random_values(rng, rows, float)
    with pytest.raises(DeviceMemoryError, match=r"out of memory.*bytes.*free now"):
        A @ x
    used = cupy.get_default_memory_pool().used_bytes()
    with pytest.raises(DeviceMemoryError):
        A @ x
    assert cupy.get_default_memory_pool().used_bytes() <= used
    assert_product(GpuSparseMatrix(A, format="csr_vector") @ x, S, x)


def test_host_vectors_of_any_size_survive_the_staging_buffers(gpu: Device, rng: Any) -> None:
    from gsparse.device.memory import CHUNK_BYTES

    for size in (0, 1, 1000, CHUNK_BYTES // 8, CHUNK_BYTES // 8 + 1, 5 * CHUNK_BYTES // 8 + 3):
        x = rng.standard_normal(size)
        np.testing.assert_array_equal(gpu.download_vector(gpu.upload(x)), x)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def test_many_threads_multiply_at_once_from_the_host(pool: ThreadPoolExecutor, rng: Any) -> None:
    S = from_lengths(rng.integers(0, 20, 30_000), 700_000, rng)
    A = GpuSparseMatrix(S)
    vectors = [random_values(rng, S.shape[1], float) for _ in range(32)]
    for x, y in zip(vectors, pool.map(lambda v: A @ v, vectors), strict=True):
        assert_product(y, S, x)


def test_a_matrix_of_cupy_is_a_copy_on_the_device(gpu: Device) -> None:
    S = sp.csr_array(np.array([[1.0, 2.0], [0.0, 3.0]]))
    A = GpuSparseMatrix(S, device=gpu)
    for ours, want in ((A, S), (A.T, S.T)):
        with gsparse.strict():
            theirs = ours.to_cupy()
        np.testing.assert_array_equal(theirs.get().toarray(), want.toarray())
        assert theirs.format == ours.format
        theirs.data[:] = 0
    np.testing.assert_array_equal(A.toarray(), S.toarray())
