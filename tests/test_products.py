"""Products on every device: kernels, conversions, types, scalars, and special numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from tests.support import (
    DTYPES,
    INDEX_DTYPES,
    STRUCTURES,
    assert_product,
    from_lengths,
    host,
    on_device,
    random_values,
    with_types,
)

KERNELS = gsparse.FORMATS[1:]


@pytest.mark.parametrize("format", gsparse.FORMATS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.thorough
@pytest.mark.few(3)
def test_product_matches_scipy_for_difficult_structures(
    device: Device, structure: str, format: str, rng: np.random.Generator
) -> None:
    S = STRUCTURES[structure](rng)
    A = GpuSparseMatrix(S, device=device, format=format)
    x, z = random_values(rng, S.shape[1], float), random_values(rng, S.shape[0], float)
    assert_product(A @ x, S, x)
    assert_product(A.T @ z, S.T, z)
    assert_product(z @ A, S.T, z)
    assert_product(A.H @ z, S.T, z)


@pytest.mark.parametrize("format", gsparse.FORMATS)
def test_every_format_multiplies_every_kind_of_values_in_structures_that_hurt(
    device: Device, format: str, rng: np.random.Generator
) -> None:
    unsorted_with_duplicates = from_lengths(np.full(100, 30), 20, rng)
    assert not unsorted_with_duplicates.has_canonical_format
    for S in (STRUCTURES["empty rows"](rng), STRUCTURES["one dense row"](rng), unsorted_with_duplicates):
        for dtype in ("float64", "complex64", "int32"):
            typed, x = with_types(S, dtype, np.int32, rng), random_values(rng, S.shape[1], dtype)
            assert_product(GpuSparseMatrix(typed, device=device, format=format) @ x, typed, x)


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.few(2)
def test_product_matches_scipy_for_every_type(
    device: Device, format: str, dtype: Any, index: Any, rng: np.random.Generator
) -> None:
    S = with_types(STRUCTURES["ragged, 1001 rows"](rng), dtype, index, rng)
    A = GpuSparseMatrix(S, device=device, format=format)
    assert A.device_indices.dtype == index
    for vector in DTYPES:
        x, z = random_values(rng, S.shape[1], vector), random_values(rng, S.shape[0], vector)
        assert_product(A @ x, S, x)
        assert_product(A.rmatvec(z), S.conj().T, z)
    assert_product(A.conj() @ x, S.conj(), x)


@pytest.mark.parametrize("threads_per_row", [2, 4, 8, 16, 32, 64])
def test_csr_vector_is_right_for_every_number_of_threads_per_row(
    device: Device, threads_per_row: int, rng: np.random.Generator
) -> None:
    if device.kind == "gpu" and threads_per_row > device.lanes:
        pytest.skip(f"a warp of {device.name} has {device.lanes} lanes")
    S = from_lengths(np.full(1001, threads_per_row + 1), 500, rng)
    A = GpuSparseMatrix(S, device=device, format="csr_vector")
    if device.kind == "gpu":
        assert A.plan.launch.threads_per_row == threads_per_row
    x = random_values(rng, 500, float)
    assert_product(A @ x, S, x)


@pytest.mark.parametrize("threads", [128, 512])
@pytest.mark.parametrize("format", KERNELS)
def test_threads_per_block_change_no_bit_of_a_product(
    device: Device, format: str, threads: int, rng: np.random.Generator
) -> None:
    S = STRUCTURES["ragged, 1001 rows"](rng)
    x = random_values(rng, S.shape[1], float)
    first, second = (GpuSparseMatrix(S, device=device, format=format, threads_per_block=t) @ x for t in (threads, 256))
    assert_product(first, S, x)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_integers_and_booleans_promote_as_in_scipy(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    S = with_types(STRUCTURES["ragged, 1001 rows"](rng), dtype, np.int32, rng)
    A = GpuSparseMatrix(S, device=device)
    for vector in (np.bool_, np.int8, np.int64, np.float32, np.float64, np.complex64):
        x = random_values(rng, S.shape[1], vector)
        expected = S @ x
        got = A @ x
        assert got.dtype == expected.dtype
        if expected.dtype.kind in "biu":
            np.testing.assert_array_equal(got, expected)
        else:
            assert_product(got, S, x, dtype=expected.dtype)


@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(4)
def test_spmv_scales_and_adds(device: Device, dtype: Any, format: str, rng: np.random.Generator) -> None:
    S = with_types(STRUCTURES["ragged, 1001 rows"](rng), dtype, np.int32, rng)  # some rows are empty
    A = GpuSparseMatrix(S, device=device, format=format)
    x, y = random_values(rng, S.shape[1], dtype), random_values(rng, S.shape[0], dtype)
    out = y.copy()
    assert gsparse.spmv(A, x, alpha=2, beta=-3, out=out) is out
    assert_product(out, S, x, alpha=2, beta=-3, y=y)
    out[:] = np.nan
    gsparse.spmv(A, x, alpha=0.5, beta=0, out=out)
    assert_product(out, S, x, alpha=0.5)


@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(4)
def test_nan_and_inf_reach_only_the_rows_that_read_them(
    device: Device, dtype: Any, format: str, rng: np.random.Generator
) -> None:
    # Short rows beside long ones: padding repeats columns that hold inf and NaN, and must not read them.
    S = with_types(from_lengths(rng.integers(0, 9, 203), 50, rng), dtype, np.int32, rng)
    x = random_values(rng, 50, dtype)
    x[[0, 7, 11]] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = S @ x
    got = GpuSparseMatrix(S, device=device, format=format) @ x
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
    with np.errstate(invalid="ignore"):
        assert_product(got, S, x, where=np.isfinite(expected))


@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_subnormal_numbers_are_kept(device: Device, dtype: Any, format: str) -> None:
    # CuPy compiles with -ftz=true, which would flush subnormal float32 numbers to zero.
    tiny = np.finfo(dtype).smallest_subnormal * 1000
    S = sp.csr_array(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 2]], dtype))
    x = np.array([tiny, 3 * tiny, 5 * tiny], dtype)
    A = GpuSparseMatrix(S, device=device, format=format)
    np.testing.assert_array_equal(A @ x, S @ x)
    small = GpuSparseMatrix(S * dtype.type(tiny), device=device, format=format)
    ones = np.ones(3, np.float64 if dtype.kind == "f" else np.complex128)  # float32 values widened in registers
    np.testing.assert_array_equal(small @ ones, S.astype(ones.dtype) @ ones * np.float64(tiny))


@pytest.mark.parametrize("format", KERNELS)
def test_device_vectors_stay_on_the_device(device: Device, format: str, rng: np.random.Generator) -> None:
    S = STRUCTURES["ragged, 1001 rows"](rng)
    A = GpuSparseMatrix(S, device=device, format=format)
    x = random_values(rng, S.shape[1], float)
    device_x = on_device(device, x)
    y = A @ device_x
    assert device.owns(y)
    assert_product(host(y), S, x)
    out = device.xp.full(S.shape[0], np.nan)
    assert A.matvec(device_x, out=out) is out
    assert_product(host(out), S, x)
    z = on_device(device, random_values(rng, S.shape[0], float))
    np.testing.assert_allclose(host(z @ A), S.T @ host(z))
    strided = on_device(device, random_values(rng, 2 * S.shape[1], float))[::2]
    assert_product(host(A @ strided), S, host(strided))


def test_a_column_vector_gives_a_column(device: Device, rng: np.random.Generator) -> None:
    S = STRUCTURES["empty rows"](rng)
    A = GpuSparseMatrix(S, device=device)
    x = random_values(rng, (S.shape[1], 1), float)
    assert_product(A @ x, S, x)
    assert A.matvec(x).shape == (S.shape[0], 1)
    assert (A @ x.tolist()).shape == (S.shape[0], 1)


@pytest.mark.filterwarnings("ignore::gsparse.errors.HostLoanWarning")
def test_a_product_written_to_an_array_of_the_matrix_is_right(device: Device, rng: np.random.Generator) -> None:
    S = sp.csr_array(np.array([[1.0, 0, 0], [0, 2.0, 0], [0, 3.0, 0]]))
    A = GpuSparseMatrix(S, device=device)
    x = random_values(rng, 3, float)
    expected = S @ x
    np.testing.assert_array_equal(A.matvec(x, out=A.data), expected)


def test_factors_of_uint64_wrap_as_in_numpy(device: Device) -> None:
    A = GpuSparseMatrix(np.array([[3]], np.uint64), device=device)
    got = gsparse.spmv(A, np.array([1], np.uint64), alpha=np.uint64(2**63))
    assert got.dtype == np.uint64
    assert got[0] == 2**63  # 3 · 2⁶³ modulo 2⁶⁴


def test_stats_count_the_products_that_ran_on_the_device(device: Device) -> None:
    A = GpuSparseMatrix(sp.eye_array(3), device=device)
    gsparse.spmv(A, np.ones(3))
    A @ np.ones(3)
    A @ np.ones((3, 2))
    with pytest.raises(ValueError, match="dimension mismatch"):
        A @ np.ones(4)
    assert A.stats.products == 3


def test_a_frozen_matrix_can_be_checked_and_lends_read_only_arrays(device: Device) -> None:
    A = GpuSparseMatrix(sp.csr_array(np.diag([1.0, 2.0, 3.0])), device=device).freeze()
    A.check_format(full_check=True)
    array = A.data
    while array is not None:
        assert not (isinstance(array, np.ndarray) and array.flags.writeable)
        array = getattr(array, "base", None)
