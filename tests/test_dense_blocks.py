"""Matrices of dense blocks: their blocks are found and stored, and products with them are right on every device."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.formats import Bsr, Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.registry import find_format, register, unregister
from gsparse.formats.row_stats import RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.products.bsr import DenseBlocks, lanes_for_rows
from gsparse.products.prepared import PreparedMatrix
from tests.encodings import assert_decodes
from tests.support import DTYPES, assert_product, from_lengths, host, on_device, random_values

SIZES = ((2, 2), (3, 3), (4, 4), (6, 6), (5, 5), (7, 7), (8, 8), (3, 1), (1, 4), (2, 7))


def of_blocks(
    lengths: Any, num_block_cols: int, size: tuple[int, int], rng: np.random.Generator, dtype: Any = float
) -> sp.csr_array:
    """Return a matrix whose block rows have these numbers of full blocks."""
    rows = [np.sort(rng.choice(num_block_cols, length, replace=False)) for length in lengths]
    indptr = np.concatenate([[0], np.cumsum([row.size for row in rows])]).astype(np.int32)
    indices = np.concatenate([np.zeros(0, int), *rows]).astype(np.int32)
    data = random_values(rng, (indices.size, *size), dtype)
    shape = (len(rows) * size[0], num_block_cols * size[1])
    S = sp.csr_array(sp.bsr_array((data, indices, indptr), shape=shape, blocksize=size).tocsr())
    assert S.nnz == data.size
    return S


def _with_long_rows(rng: np.random.Generator) -> Any:
    lengths = rng.integers(0, 4, 130)
    lengths[[7, 99]] = 700, 90
    return lengths


# The numbers of blocks of each block row, and the number of block columns. No number of block rows is a multiple of 32.
STRUCTURES: dict[str, Any] = {
    "even": lambda rng: (np.full(77, 5), 77),
    "few and long": lambda rng: (rng.integers(20, 30, 21), 60),
    "ragged": lambda rng: (rng.integers(0, 12, 203), 90),
    "empty block rows": lambda rng: (np.where(rng.random(101) < 0.7, 0, 5), 40),
    "sorted": lambda rng: (np.where(rng.random(1100) < 0.9, 1, 25), 50),
    "sorted, several lanes a row": lambda rng: (rng.integers(4, 40, 211), 60),
    "one dense block row": lambda rng: (_with_long_rows(rng), 700),
    "one block": lambda rng: ([1], 1),
}


def rows_alike(S: sp.csr_array, size: int) -> bool:
    """Return whether rows have the same columns in aligned runs of `size`."""
    rows = [S.indices[a:b].tolist() for a, b in zip(S.indptr[:-1], S.indptr[1:], strict=True)]
    return S.shape[0] % size == 0 and all(rows[i] == rows[i - i % size] for i in range(len(rows)))


def largest_blocks(S: sp.csr_array) -> tuple[int, int]:
    """Return the largest number of rows and of columns of full aligned blocks."""
    T = sp.csr_array(S.T)
    T.sort_indices()
    rows, columns = (max(d for d in range(1, MAX_BLOCK + 1) if rows_alike(M, d)) for M in (S, T))
    return rows, columns


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.few(6)
def test_products_of_blocks_are_exact_row_by_row(
    device: Device, size: tuple[int, int], structure: str, rng: np.random.Generator
) -> None:
    S = of_blocks(*STRUCTURES[structure](rng), size, rng)
    A = GpuSparseMatrix(S, device=device, format="bsr")
    x, y = (random_values(rng, n, float) for n in S.shape[::-1])
    assert_product(A @ x, S, x)
    got = gsparse.spmv(A, on_device(device, x), alpha=3.0, beta=-0.5, out=on_device(device, y))
    assert_product(host(got), S, x, alpha=3.0, beta=-0.5, y=y)
    transposed = sp.csr_array(S.T)
    assert_product(A.T @ y, transposed, y)
    assert A.stored.blocksize == largest_blocks(S)
    assert A.T.block_shape == A.stored.blocksize[::-1]
    assert_decodes(A.stored, S, device.lanes)


@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(np.int64), np.dtype(np.int16), np.dtype(bool)], ids=str)
@pytest.mark.parametrize("structure", ["ragged", "one dense block row"])
@pytest.mark.few(3)
def test_every_dtype_is_stored_in_blocks(device: Device, structure: str, dtype: Any, rng: np.random.Generator) -> None:
    S = of_blocks(*STRUCTURES[structure](rng), (3, 3), rng, dtype)
    A = GpuSparseMatrix(S, device=device, format="bsr")
    for x_dtype in {dtype, np.dtype(np.float64), np.dtype(np.complex64)}:
        x = random_values(rng, S.shape[1], x_dtype)
        assert_product(A @ x, S, x)
        assert_product(A.conj() @ x, S.conj(), x)
    assert isinstance(A.stored, Bsr)
    assert A.stored.blocksize == (3, 3)


@pytest.mark.parametrize("structure", ["few and long", "sorted", "one dense block row", "empty block rows"])
@pytest.mark.few(3)
def test_inf_and_nan_reach_only_the_rows_of_blocks_that_read_them(
    device: Device, structure: str, rng: np.random.Generator
) -> None:
    S = of_blocks(*STRUCTURES[structure](rng), (3, 3), rng)
    A = GpuSparseMatrix(S, device=device, format="bsr")
    for value in (np.inf, -np.inf, np.nan):
        x = random_values(rng, S.shape[1], float)
        x[[0, S.indices[0], S.indices[S.nnz // 2], -1]] = value
        with np.errstate(invalid="ignore"):
            expected, got = S @ x, A @ x
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(got), test(expected))


@pytest.mark.parametrize("size", [(1, 1), *SIZES])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.few(6)
def test_a_survey_never_denies_blocks_that_are_there(
    device: Device, structure: str, size: tuple[int, int], rng: np.random.Generator
) -> None:
    S = of_blocks(*STRUCTURES[structure](rng), size, rng)
    A = GpuSparseMatrix(S, device=device)
    survey = kernels_of(device).layout.survey(
        device, *(on_device(device, part) for part in (S.indptr, S.indices)), False
    )
    if largest_blocks(S) != (1, 1):
        assert survey.may_consist_of_blocks
    assert A._prepared()[0].structure.part(DenseBlocks).blocksize == (largest_blocks(S) if S.nnz else (1, 1))


def test_the_survey_alone_recognizes_most_matrices_without_blocks(
    gpu_device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey of the CPU does not examine rows for blocks."""
    device = gpu_device
    monkeypatch.setattr(
        kernels_of(device).blocks, "full_blocks", Mock(side_effect=AssertionError("rows are examined again"))
    )
    lines = [sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(n, n)) for n in (40, 300)]
    random = sp.random_array((1000, 900), density=0.02, rng=rng, format="csr")
    one_dense_row = from_lengths(np.append(rng.integers(3, 9, 99), 200), 200, rng)
    for S in (sp.csr_array(sp.kronsum(*lines)), random, one_dense_row):
        A = GpuSparseMatrix(S, device=device)
        structure = A._prepared()[0].structure
        assert not structure.sparsity.survey.may_consist_of_blocks
        assert structure.part(DenseBlocks).blocksize == (1, 1)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_block_columns_are_stored_in_two_bytes_if_they_are_close(
    device: Device, index: Any, rng: np.random.Generator
) -> None:
    for num_block_cols, dtype in ((60_000, np.uint16), (90_000, np.int32)):
        S = of_blocks(np.full(70, 3), num_block_cols, (2, 2), rng)
        S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
        stored = GpuSparseMatrix(S, device=device, format="bsr").stored
        assert stored.columns.codes.dtype == (dtype if kernels_of(device).blocks.SLICES_BLOCKS else np.int32)
        plain = GpuSparseMatrix(S, device=device, format="bsr", compress=False).stored
        assert plain.columns.codes.dtype == np.int32
        assert_decodes(plain, S, device.lanes)


def test_columns_of_large_blocks_are_stored_in_four_bytes(device: Device, rng: np.random.Generator) -> None:
    """Two bytes less for 36 values save little, and the base has to be added."""
    S = of_blocks(np.full(70, 3), 1000, (6, 6), rng)
    A = GpuSparseMatrix(S, device=device, format="bsr")
    assert A.stored.columns.codes.dtype == np.int32
    x = random_values(rng, S.shape[1], float)
    np.testing.assert_allclose(A @ x, S @ x, rtol=0, atol=1e-11)


# ------------------------------------------------------------------------------------------------------- finding blocks


def damaged(S: sp.csr_array, how: str) -> sp.csr_array:
    """Return the matrix without one entry or one row of entries, or with all blocks shifted by a column."""
    T = S.tolil()
    row, column = S.shape[0] // 2, S.indices[S.indptr[S.shape[0] // 2]]
    match how:
        case "a missing entry":
            T[row, column] = 0
        case "another row":
            T[row, :] = 0
        case "a shift":
            return sp.csr_array(sp.hstack([sp.csr_array((S.shape[0], 1)), S, sp.csr_array((S.shape[0], 5))]))
    return sp.csr_array(T)


@pytest.mark.parametrize("how", ["a missing entry", "another row", "a shift", "no order"])
@pytest.mark.parametrize("size", [(2, 2), (3, 3), (6, 6)])
def test_blocks_are_found_only_if_all_are_full_and_aligned(
    device: Device, size: tuple[int, int], how: str, rng: np.random.Generator
) -> None:
    S = of_blocks(rng.integers(1, 12, 301), 90, size, rng)
    if how == "no order":
        T = S.copy()
        T.indices[:2], T.data[:2] = S.indices[1::-1], S.data[1::-1]
        expected = (1, 1)
    else:
        T = damaged(S, how)
        expected = largest_blocks(T)
        assert expected != largest_blocks(S)
    A, x = GpuSparseMatrix(T, device=device, format="bsr"), random_values(rng, T.shape[1], float)
    assert A.stored.blocksize == expected
    assert_product(A @ x, T, x)


@pytest.mark.parametrize("size", [(2, 2), (3, 3), (4, 2), (12, 12), (10, 10)])
def test_the_blocks_of_a_bsr_array_are_found(device: Device, size: tuple[int, int], rng: np.random.Generator) -> None:
    data = random_values(rng, (200, *size), float)
    data[3, 0, 0] = 0.0  # Stored zeros are entries.
    indptr = np.arange(0, 201, 5, np.int32)
    indices = np.concatenate([np.sort(rng.choice(50, 5, replace=False)) for _ in range(40)]).astype(np.int32)
    B = sp.bsr_array((data, indices, indptr), shape=(40 * size[0], 50 * size[1]))
    A = GpuSparseMatrix(B, device=device, format="bsr")
    found = {12: 6, 10: 5}
    assert A.stored.blocksize == tuple(found.get(d, d) for d in size)
    assert A.nnz == data.size


@pytest.mark.parametrize("size", [(2, 2), (3, 3), (2, 4)])
def test_the_blocks_of_a_row_may_be_in_any_order_and_repeated(
    device: Device, size: tuple[int, int], rng: np.random.Generator
) -> None:
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 75))]).astype(np.int32)
    data, indices = random_values(rng, (indptr[-1], *size), float), rng.integers(0, 30, indptr[-1]).astype(np.int32)
    B = sp.bsr_array((data, indices, indptr), shape=(75 * size[0], 30 * size[1]))
    A = GpuSparseMatrix(B, device=device, format="bsr")
    x, y = (random_values(rng, n, float) for n in B.shape[::-1])
    assert not A.has_sorted_indices
    assert A.stored.blocksize == size
    assert_product(A @ x, sp.csr_array(B), x)
    assert_product(A.T @ y, sp.csr_array(sp.csr_array(B).T), y)
    assert_decodes(A.stored, sp.csr_array(B), device.lanes)


def test_a_matrix_names_the_size_of_its_blocks(device: Device, rng: np.random.Generator) -> None:
    S = of_blocks(rng.integers(1, 6, 50), 40, (3, 4), rng)
    A = GpuSparseMatrix(S, device=device)
    assert (A.block_shape, A.T.block_shape, A.tocsc().block_shape) == ((3, 4), (4, 3), (3, 4))
    assert (A * 2).block_shape == A.with_data(S.data).block_shape == (A + A).block_shape == (3, 4)
    assert A[:12].block_shape == (3, 4)
    assert A[1:13].block_shape[0] < 3
    assert GpuSparseMatrix(sp.eye_array(6, format="csr"), device=device).block_shape == (1, 1)
    for empty in ((0, 5), (6, 0), (6, 6)):
        assert GpuSparseMatrix(sp.csr_array(empty), device=device).block_shape == (1, 1)
    assert GpuSparseMatrix(S.astype(np.longdouble), device=device).block_shape == (1, 1)


def test_the_blocks_of_a_bsr_array_are_kept_as_long_as_they_are_full(device: Device, rng: np.random.Generator) -> None:
    # Pairs of blocks are larger blocks, which products read.
    S = of_blocks(rng.integers(1, 6, 40), 30, (6, 6), rng)
    B = sp.bsr_array(S, blocksize=(3, 2))
    B.data[5, 1, 1] = 0.0  # A stored zero is an entry.
    A = GpuSparseMatrix(B, device=device, format="bsr")
    assert (A.block_shape, A.T.block_shape, A.stored.blocksize) == ((3, 2), (2, 3), (6, 6))
    assert GpuSparseMatrix(S, device=device).block_shape == (6, 6)
    assert type(A.T)(B, device=device).block_shape == (3, 2)
    for same in (A.copy(), A * 2, A.with_data(S.data), GpuSparseMatrix(A, format="auto"), A[6:18]):
        assert same.block_shape == (3, 2)
    assert (A.tocsc().block_shape, GpuSparseMatrix(A.T).block_shape) == ((3, 2), (2, 3))
    A.release()
    assert A.block_shape == pickle.loads(pickle.dumps(A)).block_shape == (3, 2)
    assert A[1:].block_shape == GpuSparseMatrix(A[1:], device=device).block_shape == (1, 6)
    A.eliminate_zeros()
    assert A.block_shape == (1, 1)


def test_scipy_takes_no_matrix_of_blocks_for_bsr(device: Device, rng: np.random.Generator) -> None:
    """Methods of SciPy take a matrix with an attribute `blocksize` for one in BSR."""
    S = of_blocks(rng.integers(1, 6, 20), 15, (3, 3), rng)
    A = GpuSparseMatrix(sp.bsr_array(S, blocksize=(3, 3)), device=device)
    assert not hasattr(A, "blocksize")
    held = A.data  # SciPy writes to an array on loan.
    A.resize(50, 44)
    S.resize(50, 44)
    assert held.size
    del held  # A may show a part of this array, which would count as a loan.
    np.testing.assert_array_equal(A.toarray(), S.toarray())


@pytest.mark.few(1)
def test_operations_on_matrices_of_blocks_are_those_of_scipy(device: Device, rng: np.random.Generator) -> None:
    S, T = (of_blocks(rng.integers(0, 6, 30), 30, (3, 3), rng) for _ in range(2))
    A, B = (GpuSparseMatrix(sp.bsr_array(M, blocksize=(3, 3)), device=device, format="bsr") for M in (S, T))
    x, X = random_values(rng, 90, float), random_values(rng, (90, 5), float)
    for got, want in (
        (A + B, S + T),
        (A - B, S - T),
        (A @ B, S @ T),
        (A.multiply(B), S.multiply(T)),
        (A @ sp.bsr_array(T, blocksize=(3, 3)), S @ T),
        (A + sp.bsr_array(T, blocksize=(3, 3)), S + T),
        (A.with_data(2 * S.data), 2 * S),
        (2.5 * A, 2.5 * S),
    ):
        assert isinstance(got, GpuSparseMatrix)
        np.testing.assert_allclose(got.toarray(), want.toarray(), rtol=1e-13, atol=1e-13)
        assert_product(got @ x, sp.csr_array(got.tocoo()), x)
        assert_product(got @ X, sp.csr_array(got.tocoo()), X)
    assert (A + B).block_shape == (A @ B).block_shape == (3, 3)
    assert (A + B).tobsr().blocksize == (3, 3)


def test_auto_stores_unstructured_blocks_in_blocks_and_others_not(
    real_device: Device, rng: np.random.Generator
) -> None:
    # The matrix has four million entries, because a GPU chooses blocks for large matrices only. An emulated GPU would
    # take long to analyse it.
    device = real_device
    S = of_blocks(np.full(16_000, 27), 16_000, (3, 3), rng)
    plan = GpuSparseMatrix(S, device=device, expected_products=10**6).plan
    assert plan.format == "bsr"
    assert "bsr" in plan.reason or "3x3" in str(plan)
    scattered = from_lengths(np.full(4000, 14), 4000, rng)
    formats = {c.format for c in GpuSparseMatrix(scattered, device=device, expected_products=10**6).plan.candidates}
    assert "bsr" not in formats


def test_other_values_share_the_blocks(device: Device, rng: np.random.Generator) -> None:
    S = of_blocks(*STRUCTURES["ragged"](rng), (3, 3), rng)
    A, x = GpuSparseMatrix(S, device=device, format="bsr"), random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)
    B = A.with_data(2 * S.data)
    assert_product(B @ x, 2 * S, x)
    assert B.stored.columns is A.stored.columns
    assert B.stored.slices is A.stored.slices


def test_lanes_share_rows_only_if_a_matrix_has_few_of_them() -> None:
    def stats(num_rows: int, length: float) -> RowStats:
        nnz = int(num_rows * length)
        return RowStats(num_rows, num_rows, nnz, 0, int(length), length, 0.0, 0, nnz)

    assert [lanes_for_rows(stats(n, 200.0)) for n in (10, 2**15, 2**15 + 1, 2**17, 2**17 + 1)] == [8, 8, 4, 2, 1]
    assert [lanes_for_rows(stats(100, length)) for length in (5.0, 11.9, 12.0, 24.0, 48.0)] == [1, 1, 2, 4, 8]


def test_lanes_that_share_rows_of_different_lengths_do_not_pad_much(
    gpu_device: Device, rng: np.random.Generator
) -> None:
    device = gpu_device
    assert kernels_of(device).blocks.SLICES_BLOCKS  # on a CPU, one thread owns a block row
    even = GpuSparseMatrix(of_blocks(np.full(200, 30), 60, (3, 3), rng), device=device, format="bsr").stored
    assert even.row_lanes == 8
    assert even.slices.rows is None
    different = rng.integers(8, 40, 300)
    S = of_blocks(different, 60, (3, 3), rng)
    A = GpuSparseMatrix(S, device=device, format="bsr")
    assert A.stored.row_lanes == 8
    assert A.stored.slices.sorting_scope == 8 * kernels_of(device).layout.SORTING_SCOPE
    assert A.stored.padding_ratio < 1.4
    x = random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)
    assert_decodes(A.stored, S, device.lanes)
    lengths = np.full(400, 1)
    lengths[::100] = 600
    long = GpuSparseMatrix(of_blocks(lengths, 700, (3, 3), rng), device=device, format="bsr").stored
    assert long.row_lanes == 1
    assert long.slices.long_rows.num_long == 4
    assert long.padding_ratio < 1.5


# ---------------------------------------------------------------------------------------------- several dense columns


@pytest.mark.parametrize("num_columns", [1, 2, 5, 8, 32, 70, 256])
@pytest.mark.parametrize("structure", ["few and long", "sorted, several lanes a row", "one dense block row"])
@pytest.mark.few(4)
def test_products_of_blocks_with_columns_are_exact(
    device: Device, structure: str, num_columns: int, rng: np.random.Generator
) -> None:
    S = of_blocks(*STRUCTURES[structure](rng), (3, 3), rng)
    A = GpuSparseMatrix(S, device=device, format="bsr")
    for order in ("C", "F"):
        X, Y = (np.asarray(random_values(rng, (n, num_columns), float), order=order) for n in S.shape[::-1])
        got = gsparse.spmm(A, on_device(device, X), 3.0, -0.5, on_device(device, Y))
        assert_product(host(got), S, X, alpha=3.0, beta=-0.5, y=Y)


@pytest.mark.parametrize("size", [2, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(np.int64)], ids=str)
@pytest.mark.few(4)
def test_columns_are_multiplied_by_blocks_of_every_size_and_dtype(
    device: Device, size: int, dtype: Any, rng: np.random.Generator
) -> None:
    S = of_blocks(_with_long_rows(rng), 700, (size, size), rng, dtype)
    A = GpuSparseMatrix(S, device=device, format="bsr")
    for num_columns in (3, 8):
        X = random_values(rng, (S.shape[1], num_columns), dtype)
        first = A @ X
        assert_product(first, S, X)
        assert_product(A.conj() @ X, S.conj(), X)
        np.testing.assert_array_equal(A @ X, first)
    Z = random_values(rng, (S.shape[0], 4), dtype)
    assert_product(A.rmatmat(Z), sp.csr_array(S.conj().T), Z)


def test_columns_read_the_blocks_that_vectors_read(device: Device, rng: np.random.Generator) -> None:
    def read(S: sp.csr_array, compute: Any = None) -> Any:
        prepared = GpuSparseMatrix(S, device=device, format="bsr")._prepared()[0]
        stored = prepared.columns_stored(S.dtype, np.dtype(compute or S.dtype))
        return stored is prepared.product(S.dtype, np.dtype(compute or S.dtype)).stored

    S = of_blocks(np.full(40, 5), 77, (3, 3), rng)
    assert read(S)
    assert read(S.astype(np.float32), np.float64)
    assert not read(S, np.complex128)  # Values and columns must be of one kind.
    assert not read(of_blocks(np.full(40, 5), 77, (3, 2), rng))
    few_values = S.copy()
    few_values.data[:] = rng.choice([1.5, 2.25, 0.1], S.nnz)
    assert not read(few_values)  # A product with a vector reads them from a table.


@contextmanager
def slow_for_vectors(device: Device, setup: float) -> Iterator[None]:
    """Let the plan believe that a product of blocks with a vector takes a second, and the set-up `setup` products."""
    format = find_format("bsr")
    costs = {device.kind: replace(format.costs[device.kind], fixed=1.0, setup=setup)}
    unregister("bsr")
    register(replace(format, costs=costs))
    try:
        yield
    finally:
        unregister("bsr")
        register(format)


@pytest.mark.few(2)
def test_blocks_are_stored_for_columns_alone_if_that_pays(device: Device, rng: np.random.Generator) -> None:
    S = of_blocks(np.full(300, 6), 300, (3, 3), rng)

    def stored(options: dict[str, Any], setup: float = 0.0, S: sp.csr_array = S, compute: Any = float) -> list[Any]:
        with slow_for_vectors(device, setup):
            A = GpuSparseMatrix(S, device=device, **({"expected_products": 10**6} | options))
            prepared, types = A._prepared()[0], (S.dtype, np.dtype(compute))
            X = random_values(rng, (S.shape[1], 5), types[1])
            prepared.plan_for_many_products()
            assert_product(A @ X, S, X)
            assert_product(A @ X[:, 0], S, X[:, 0])
            return [prepared.product(*types).stored, prepared.columns(*types).stored]

    of_vectors, of_columns = stored({})
    assert not isinstance(of_vectors, Bsr)
    assert isinstance(of_columns, Bsr)
    assert of_columns.blocksize == (3, 3)
    assert not isinstance(stored({}, setup=1e6)[1], Bsr)  # A million products do not gain the time of the set-up.
    assert not isinstance(stored({"format": "csr"})[1], Bsr)
    assert not isinstance(stored({"expected_products": 1})[1], Bsr)
    assert isinstance(stored({}, compute=complex)[1], Bsr)
    rectangles = of_blocks(np.full(300, 6), 300, (3, 2), rng)
    assert not isinstance(stored({}, S=rectangles)[1], Bsr)
    few_values = S.copy()
    few_values.data[:] = rng.choice([1.5, 2.25, 0.1], S.nnz)
    assert isinstance(stored({}, S=few_values)[1], Bsr)


def test_a_cpu_makes_no_plan_for_columns_of_a_matrix_without_blocks(rng: np.random.Generator) -> None:
    for size, is_planned in (((3, 3), True), ((3, 2), False), ((1, 1), False)):
        S = of_blocks(np.full(300, 6), 300, size, rng)
        A = GpuSparseMatrix(S, device="cpu", expected_products=10**6)
        X = random_values(rng, (S.shape[1], 4), float)
        A._prepared()[0].plan_for_many_products()
        with patch.object(PreparedMatrix, "plan", autospec=True, side_effect=PreparedMatrix.plan) as plan:
            assert_product(A @ X, S, X)
        assert plan.called is is_planned


def test_columns_read_csr_if_memory_does_not_suffice_for_blocks(device: Device, rng: np.random.Generator) -> None:
    S, X = of_blocks(np.full(300, 6), 300, (3, 3), rng), rng.standard_normal((900, 4))
    build = Mock(side_effect=MemoryError)
    with slow_for_vectors(device, 0.0):
        format = find_format("bsr")
        unregister("bsr")
        register(replace(format, build=build))
        A = GpuSparseMatrix(S, device=device, expected_products=10**6)
        A._prepared()[0].plan_for_many_products()
        assert_product(A @ X, S, X)
        assert build.called
        assert isinstance(A._prepared()[0].columns(S.dtype, S.dtype).stored, Csr)


def test_inf_and_nan_in_columns_reach_only_the_rows_that_read_them(device: Device, rng: np.random.Generator) -> None:
    S = of_blocks(*STRUCTURES["sorted"](rng), (3, 3), rng)
    A, X = GpuSparseMatrix(S, device=device, format="bsr"), random_values(rng, (S.shape[1], 6), float)
    X[[0, S.indices[S.nnz // 2], -1], [1, 3, 4]] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected, got = S @ X, A @ X
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(got), test(expected))


@pytest.mark.parametrize("size", SIZES)
def test_a_cpu_sums_blocks_in_the_order_of_the_entries(size: tuple[int, int], rng: np.random.Generator) -> None:
    S = of_blocks(*STRUCTURES["ragged"](rng), size, rng)
    blocks, entries = (GpuSparseMatrix(S, device="cpu", format=name) for name in ("bsr", "csr_scalar"))
    x = random_values(rng, S.shape[1], float)
    np.testing.assert_array_equal(blocks @ x, entries @ x)


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.few(4)
def test_a_cpu_sums_columns_of_blocks_in_the_order_of_the_entries(size: int, rng: np.random.Generator) -> None:
    S = of_blocks(*STRUCTURES["ragged"](rng), (size, size), rng)
    blocks, entries = (GpuSparseMatrix(S, device="cpu", format=name) for name in ("bsr", "csr_scalar"))
    assert isinstance(blocks._prepared()[0].columns_stored(S.dtype, S.dtype), Bsr)
    for columns in (1, 3, 8, 21):
        X = random_values(rng, (S.shape[1], columns), float)
        expected = np.stack([entries @ column for column in X.T], axis=1)
        np.testing.assert_array_equal(blocks @ X, expected)
        np.testing.assert_array_equal(blocks @ np.asfortranarray(X), expected)
        wide = np.zeros((S.shape[1], 2 * columns + 1))
        wide[:, 1::2] = X
        np.testing.assert_array_equal(blocks @ wide[:, 1::2], expected)
        wide[:, 1 : columns + 1] = X
        np.testing.assert_array_equal(blocks @ wide[:, 1 : columns + 1], expected)
        results = np.full((S.shape[0], 2 * columns), np.nan)  # elements of every second column are written
        np.testing.assert_array_equal(gsparse.spmm(blocks, X, out=results[:, ::2]), expected)
        assert np.isnan(results[:, 1::2]).all()


@pytest.mark.parametrize("format", ["bsr", "auto"])
def test_products_of_blocks_on_several_threads_have_the_same_bits(format: str, rng: np.random.Generator) -> None:
    S = of_blocks(rng.integers(0, 30, 4001), 500, (3, 3), rng)
    A, x, before = GpuSparseMatrix(S, device="cpu", format=format), random_values(rng, S.shape[1], float), None
    num_threads = gsparse.get_num_threads()
    try:
        for threads in (1, 2, 3):
            gsparse.set_num_threads(threads)
            y = A @ x
            Y = A @ np.stack([x] * 5, axis=1)
            assert_product(y, S, x)
            assert np.array_equal(Y, np.stack([y] * 5, axis=1))
            assert before is None or np.array_equal(y, before)
            before = y
    finally:
        gsparse.set_num_threads(num_threads)
