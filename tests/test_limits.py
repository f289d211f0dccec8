"""Limits: too little memory, counts above 2**31, and many threads at once.

Tests that need a large GPU skip elsewhere. Run them with nothing else on the GPU:
``python -m pytest -m gpu tests/test_limits.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
import gsparse.linalg
from gsparse import GpuSparseMatrix, spmm
from gsparse.bench.problems import stencil
from gsparse.device.base import Device
from gsparse.errors import DeviceMemoryError
from gsparse.formats.registry import REGISTRY, names_of
from gsparse.products import planning, row_pattern, storage
from tests.conftest import make_device
from tests.support import STRUCTURES, assert_product, from_lengths, host, random_values

ON_GPU = pytest.mark.gpu


@pytest.fixture
def gpu() -> Iterator[Device]:
    """Return a GPU whose CuPy pool holds no free memory."""
    device = make_device("gpu")
    pool = device.xp.get_default_memory_pool()
    pool.free_all_blocks()
    yield device
    pool.set_limit(size=0)
    pool.free_all_blocks()


# ------------------------------------------------------------------- too little memory


def out_of_memory(*arguments: Any, **named: Any) -> Any:
    raise DeviceMemoryError("no memory for that")


def poisson(n: int) -> sp.csr_array:
    data, indices, indptr, shape = stencil(n, 7)
    return sp.csr_array((data, indices, indptr), shape=shape)


@pytest.mark.parametrize("shapes", [[(), (6,)], [(6,), ()]], ids=["vector first", "columns first"])
@pytest.mark.parametrize("where", ["analysis", "conversion"])
def test_auto_falls_back_to_csr_if_memory_suffices_for_nothing_else(
    device: Device, where: str, shapes: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The constants of the CPU let a matrix be analyzed that is small enough for the emulator, and CSR is made slow.
    monkeypatch.setitem(planning.MACHINE_MODELS, "gpu", planning.MACHINE_MODELS["cpu"])
    for name in names_of(reads_csr=True):
        slow = {kind: replace(model, fixed=1.0) for kind, model in REGISTRY[name].costs.items()}
        monkeypatch.setitem(REGISTRY, name, replace(REGISTRY[name], costs=slow))
    S = poisson(12)
    wanted = GpuSparseMatrix(S, device=device, expected_products=10**9).plan.format
    assert wanted not in names_of(reads_csr=True)
    A = GpuSparseMatrix(S, device=device, expected_products=10**9)
    A._prepared()[0].plan_for_many_products()
    with monkeypatch.context() as short:
        if where == "analysis":
            short.setattr(storage, "compress_values", out_of_memory)
            short.setattr(row_pattern, "find_row_dictionary", out_of_memory)
        else:
            short.setitem(REGISTRY, wanted, replace(REGISTRY[wanted], build=out_of_memory))
        for columns in shapes:
            x = random_values(rng, (S.shape[1], *columns), float)
            assert_product(A @ x, S, x)
        assert A.plan.format in names_of(reads_csr=True)
        assert "memory did not suffice" in A.plan.reason
        with pytest.raises(DeviceMemoryError, match="no memory for that"):
            GpuSparseMatrix(S, device=device, format=wanted) @ np.ones(S.shape[1])
    A.release()
    assert A.plan.format == wanted


def test_too_little_memory_even_for_csr_is_an_error(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    A = GpuSparseMatrix(poisson(6), device=device, expected_products=10**9)
    A._prepared()[0].plan_for_many_products()
    for name, format in list(REGISTRY.items()):
        monkeypatch.setitem(REGISTRY, name, replace(format, build=out_of_memory))
    with pytest.raises(DeviceMemoryError, match="no memory for that"):
        A @ np.ones(A.shape[1])


@contextmanager
def failing_at(cupy: Any, number: int) -> Iterator[list[int]]:
    """Make the allocation with this number fail as if memory were exhausted, and yield the count of allocations."""
    pool, asked = cupy.get_default_memory_pool(), [0]

    def allocate(size: int) -> Any:
        asked[0] += 1
        if asked[0] == number:
            raise cupy.cuda.memory.OutOfMemoryError(size, pool.total_bytes())
        return pool.malloc(size)

    with cupy.cuda.using_allocator(allocate):
        yield asked


@ON_GPU
@pytest.mark.parametrize("format", gsparse.FORMATS)
def test_memory_may_run_out_at_any_step_of_a_conversion(gpu: Device, format: str, rng: np.random.Generator) -> None:
    cupy, S = gpu.xp, poisson(30)
    pool, x = cupy.get_default_memory_pool(), random_values(rng, S.shape[1], float)
    on_device = cupy.asarray(x)
    other, option = GpuSparseMatrix(S, device=gpu), {"format": format, "expected_products": 10**9}
    other @ on_device
    GpuSparseMatrix(S, device=gpu, **option) @ on_device  # leaves counters on the device that later calls use again
    used, refused, number = pool.used_bytes(), 0, 0
    while True:
        number += 1
        A, y = None, None
        with failing_at(cupy, number) as asked:
            try:
                A = GpuSparseMatrix(S, device=gpu, **option)
                y = host(A @ on_device)
            except DeviceMemoryError:
                refused += 1
        if y is not None:
            assert_product(y, S, x)
        if A is not None:
            assert_product(host(A @ on_device), S, x)
        assert_product(host(other @ on_device), S, x)
        del A
        assert pool.used_bytes() <= used
        if asked[0] < number:
            break
    # A requested format fails each time, except that the allocation of the result is repeated once; "auto" multiplies
    # with the memory that is left.
    assert 3 <= refused < number - 5 if format == "auto" else refused == number - 2


def free_bytes(gpu: Any) -> int:
    gpu.xp.get_default_memory_pool().free_all_blocks()
    return int(gpu.xp.cuda.runtime.memGetInfo()[0])


# The number of entries per row of the matrices below, and the cyclic distance of their columns from the diagonal.
LENGTH = 108
OFFSETS = [37 * j * j for j in range(LENGTH)]


def made_by_formula(cupy: Any, rows: int, dtype: Any, count: int, step: int) -> tuple[Any, Any, Any]:
    """Return int64 CSR arrays of `count` whole numbers, x, and A·x computed entry by entry from the same formula.

    Every sum is exact, and hardly any two rows share all values.
    """
    offsets = cupy.asarray(OFFSETS)
    data = cupy.empty((rows, LENGTH), dtype)
    indices = cupy.empty((rows, LENGTH), np.int64)
    x = (cupy.arange(rows) * 5 % 7 - 3).astype(dtype)
    y = cupy.empty(rows, dtype)
    for first in range(0, rows, step):
        i = cupy.arange(first, min(first + step, rows))[:, None]
        part = slice(first, first + step)
        indices[part] = (i + offsets) % rows
        data[part] = (i // cupy.arange(1, LENGTH + 1) * 999_983 + i) % count - count // 2
        y[part] = sum(data[part, j] * x[indices[part, j]] for j in range(LENGTH))
    indptr = cupy.arange(rows + 1) * LENGTH
    return (data.reshape(-1), indices.reshape(-1), indptr), x, y


@ON_GPU
@pytest.mark.whole  # needs a GPU for itself, which processes of the quick run share
@pytest.mark.parametrize("format", gsparse.FORMATS)
def test_more_entries_than_int32_can_count_are_multiplied(gpu: Any, format: str) -> None:
    rows = 20_000_003
    assert rows * LENGTH > 2**31
    needed = rows * LENGTH * 12 * 3
    if free_bytes(gpu) < needed:
        pytest.skip(f"needs {needed:,} bytes of a GPU, {free_bytes(gpu):,} are free")
    arrays, x, y = made_by_formula(gpu.xp, rows, np.float32, 11, step=2**21)
    A = GpuSparseMatrix(arrays, shape=(rows, rows), device=gpu, format=format)
    assert A.nnz == rows * LENGTH
    gpu.xp.testing.assert_array_equal(A @ x, y)
    if format in ("auto", "csr_vector"):
        X = gpu.xp.stack([x, -x, x], axis=1)
        gpu.xp.testing.assert_array_equal(A @ X, gpu.xp.stack([y, -y, y], axis=1))
        assert float((A.T @ x).astype(float) @ x) == float(x.astype(float) @ y)


@ON_GPU
@pytest.mark.whole  # needs a GPU for itself, which processes of the quick run share
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_matrix_that_fills_the_gpu_is_multiplied(gpu: Any, share: float) -> None:
    cupy, free = gpu.xp, free_bytes(gpu)
    rows = int(share * free / (16 * LENGTH))
    # There are too many distinct values for a table, and float32 cannot hold them exactly.
    arrays, x, y = made_by_formula(cupy, rows, np.float64, 2**30 - 35, step=2**18)
    A = GpuSparseMatrix(arrays, shape=(rows, rows), device=gpu)
    cupy.testing.assert_array_equal(A @ x, y)
    if share > 0.8:
        assert "memory did not suffice" in A.plan.reason
        with pytest.raises(DeviceMemoryError, match=r"out of memory.*free now"):
            GpuSparseMatrix(A, format="blocked_ellpack", compress=False) @ x
    cupy.testing.assert_array_equal(spmm(A, x[:, None], alpha=2.0)[:, 0], 2 * y)


# ------------------------------------------------------------------- many at once


def on_device_vector(A: Any, S: Any, rng: np.random.Generator, gpu: Any) -> None:
    x = random_values(rng, S.shape[1], float)
    assert_product(host(A @ gpu.xp.asarray(x)), S, x)


def on_host_vector(A: Any, S: Any, rng: np.random.Generator, gpu: Any) -> None:
    x = random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)


def on_columns(A: Any, S: Any, rng: np.random.Generator, gpu: Any) -> None:
    X = random_values(rng, (S.shape[1], int(rng.integers(1, 40))), float)
    assert_product(host(A @ gpu.xp.asarray(X)), S, X)


def transposed(A: Any, S: Any, rng: np.random.Generator, gpu: Any) -> None:
    z = random_values(rng, S.shape[0], float)
    assert_product(host(A.T @ gpu.xp.asarray(z)), S.T.tocsr(), z)


def other_values(A: Any, S: Any, rng: np.random.Generator, gpu: Any) -> None:
    T = S.copy()
    T.data = random_values(rng, S.nnz, float)
    on_device_vector(A.with_data(gpu.xp.asarray(T.data)), T, rng, gpu)


def converted(A: Any, S: Any, rng: np.random.Generator, gpu: Any) -> None:
    formats = [name for name in gsparse.FORMATS[1:] if name != "row_pattern"]
    on_device_vector(GpuSparseMatrix(S, device=gpu, format=str(rng.choice(formats))), S, rng, gpu)


def solved(A: Any, S: Any, rng: np.random.Generator, gpu: Any) -> None:
    P = poisson(9)
    b = random_values(rng, P.shape[0], float)
    x, info = gsparse.linalg.cg(GpuSparseMatrix(P, device=gpu), gpu.xp.asarray(b), rtol=1e-10)
    assert info == 0
    assert np.linalg.norm(P @ host(x) - b) <= 1e-9 * np.linalg.norm(b)


@ON_GPU
def test_32_threads_with_streams_of_their_own_do_everything_at_once(gpu: Any, rng: np.random.Generator) -> None:
    S = STRUCTURES["long rows"](rng)
    matrices = [(GpuSparseMatrix(T, device=gpu), T) for T in (S, from_lengths(rng.integers(0, 40, 3000), 2000, rng))]
    tasks = (on_device_vector, on_host_vector, on_columns, transposed, other_values, converted, solved)

    def work(seed: int) -> None:
        own = np.random.default_rng(seed)
        with gpu.xp.cuda.Stream(non_blocking=bool(seed % 2)):
            for place in own.integers(0, len(tasks), 40):
                tasks[place](*matrices[own.integers(2)], own, gpu)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(work, rng.integers(0, 2**31, 32)))
