"""Sparse algebra on matrices whose rows, entries and results span several tiles, blocks and windows of the kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.arithmetic import combine, product
from gsparse.sparse.reshaping import select_rows, triangle
from tests.proof.emulated_device import EmulatedDevice
from tests.support import INDEX_DTYPES, from_lengths, host, on_device, with_types
from tests.test_sparse_algebra import SCIPY, assert_same, on, whole_numbers


def _lengths(name: str, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Return the lengths of the rows and the number of columns of a structure."""
    if name == "many empty rows between two full ones":
        return np.concatenate([[30], np.zeros(5000, int), [40], np.zeros(3000, int)]), 60
    if name == "one dense row":
        return np.concatenate([np.full(700, 3), [9000], np.full(300, 2)]), 9000
    if name == "short rows":
        return rng.integers(0, 12, 2100), 500
    if name == "as many entries as a tile holds":
        return np.full(1024, 1), 300
    assert name == "rows as long as a tile"
    return np.array([2047, 2048, 2049, 1, 1023, 1024, 1025, 0, 4096]), 5000


STRUCTURES = (
    "many empty rows between two full ones",
    "one dense row",
    "short rows",
    "as many entries as a tile holds",
    "rows as long as a tile",
)


def made(name: str, rng: np.random.Generator, dtype: Any = float) -> sp.csr_array:
    return whole_numbers(with_lengths(*_lengths(name, rng), rng), rng, dtype)


def with_lengths(lengths: Any, num_cols: int, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix in canonical form with rows of these lengths."""
    rows = [np.sort(rng.choice(num_cols, length, replace=False)) for length in lengths]
    indices, indptr = np.concatenate(rows).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((np.ones(indices.size), indices, indptr.astype(np.int32)), shape=(len(rows), num_cols))


def partner(S: sp.csr_array, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix of the same shape that shares about half of the entries."""
    other = sp.csr_array(S[:, rng.permutation(S.shape[1])])
    both = whole_numbers(sp.csr_array(abs(S) + abs(other)), rng)
    both.eliminate_zeros()
    both.sort_indices()
    return both


@pytest.mark.parametrize("small", [0, 10**6])
@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("operation", ["plus", "times", "lt"])
def test_pairs_of_matrices_are_combined_as_by_scipy(
    device: Device, name: str, operation: str, small: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gsparse.kernels.gpu.sparse_pairs._SMALL", small)
    A = made(name, rng)
    B = partner(A, rng)
    assert_same(combine(device, operation, on(device, A), on(device, B)), SCIPY[operation](A, B))


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.float32, np.float64, np.complex64, np.complex128])
def test_entries_that_are_not_zero(device: Device, name: str, dtype: Any, rng: np.random.Generator):
    A = made(name, rng, dtype)
    A.data[rng.random(A.nnz) < 0.2] = 0
    want = A.copy()
    want.eliminate_zeros()
    assert_same(kernels_of(device).sparse_rows.drop_zeros(device, on(device, A)), want)


def test_signs_and_subnormal_numbers_of_each_precision_are_told_from_zero(device: Device):
    for dtype in (np.float32, np.float64, np.complex64, np.complex128):
        tiny = np.finfo(dtype).smallest_subnormal
        parts = np.array([0, -0.0, tiny, -tiny, np.nan, np.inf, -1], np.dtype(dtype).type(0).real.dtype)
        values = parts.astype(dtype)
        if values.dtype.kind == "c":
            values = np.concatenate([values, values])
            values.real[: parts.size], values.imag[: parts.size] = 0, parts
        A = sp.csr_array((values, np.arange(values.size), [0, values.size]))
        kept = kernels_of(device).sparse_rows.drop_zeros(device, on(device, A))
        np.testing.assert_array_equal(host(kept.indices), np.flatnonzero(values != 0))


@pytest.mark.parametrize("name", STRUCTURES)
def test_marked_entries_and_columns_with_a_place(device: Device, name: str, rng: np.random.Generator):
    A = made(name, rng)
    keep = rng.random(A.nnz) < 0.5
    want = sp.csr_array((np.where(keep, 1.0, 0.0), A.indices, A.indptr), shape=A.shape, copy=True)
    want.eliminate_zeros()
    kept = kernels_of(device).sparse_rows.keep_entries(device, on(device, A), on_device(device, keep))
    np.testing.assert_array_equal(host(kept.indptr), want.indptr)
    np.testing.assert_array_equal(host(kept.indices), want.indices)
    np.testing.assert_array_equal(host(kept.data), A.data[keep])
    places = np.where(rng.random(A.shape[1]) < 0.5, -1, 0).astype(A.indices.dtype)
    places[places == 0] = np.arange((places == 0).sum())
    mapped = kernels_of(device).sparse_rows.map_columns(device, on(device, A), on_device(device, places), A.shape[1])
    selected = A[:, np.flatnonzero(places >= 0)]
    np.testing.assert_array_equal(host(mapped.indptr), selected.indptr)
    np.testing.assert_array_equal(host(mapped.indices), selected.indices)
    np.testing.assert_array_equal(host(mapped.data), selected.data)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("offset", [-3, 0, 100])
def test_triangles_equal_scipys(device: Device, name: str, offset: int, rng: np.random.Generator):
    A = made(name, rng)
    A.data[A.data == 0] = 5.0  # SciPy leaves zeros out
    assert_same(triangle(device, on(device, A), offset, upper=True), sp.triu(A, offset))
    assert_same(triangle(device, on(device, A), offset, upper=False), sp.tril(A, offset))


# The limits of `gsparse.kernels.gpu.transpose` that choose each way to a transpose, and which one that is.
TRANSPOSES = {
    "in one block": {},
    "counted": {"_SMALL": 0, "_FEW_ENTRIES": 1},
    "counted, then sorted": {"_SMALL": 0, "_FEW_ENTRIES": 1, "_MOST_NUMBERS": 6},
    "sorted": {"_SMALL": 0},
}


def choose_transpose(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    for name, limit in TRANSPOSES[way].items():
        monkeypatch.setattr(f"gsparse.kernels.gpu.transpose.{name}", limit)


def numbered(S: sp.csr_array) -> sp.csr_array:
    """Return a matrix whose values are the numbers of its entries."""
    return sp.csr_array((np.arange(S.nnz, dtype=float), S.indices, S.indptr), shape=S.shape)


def assert_transposed(S: sp.csr_array, transposed: Csr) -> None:
    """Compare with the entries in the order of their columns; those of one column keep the order of their rows."""
    order = np.argsort(S.indices, kind="stable")
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    assert transposed.shape == S.shape[::-1]
    bounds = np.searchsorted(S.indices[order], np.arange(S.shape[1] + 1))
    np.testing.assert_array_equal(host(transposed.indptr), bounds)
    np.testing.assert_array_equal(host(transposed.indices), rows[order])
    np.testing.assert_array_equal(host(transposed.data), S.data[order])
    assert transposed.indptr.dtype == transposed.indices.dtype == S.indices.dtype


@pytest.mark.parametrize("way", TRANSPOSES)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", [np.bool_, np.float64, np.complex128])
@pytest.mark.few(4)
def test_a_transpose_keeps_the_order_of_the_rows_in_every_way(
    device: Device, dtype: Any, index: Any, way: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_transpose(monkeypatch, way)
    S = with_types(from_lengths(rng.integers(0, 9, 900), 700, rng), dtype, index, rng)  # unsorted, with duplicates
    canonical = with_types(with_lengths(rng.integers(0, 9, 900), 700, rng), dtype, index, rng)
    for _ in range(2):
        transposed = kernels_of(device).transpose.csr_transpose(device, on(device, S))
        assert_transposed(S, transposed)
        assert not transposed.is_canonical
        known = replace(on(device, canonical), is_canonical=True)
        transposed = kernels_of(device).transpose.csr_transpose(device, known)
        assert_transposed(canonical, transposed)
        assert transposed.is_canonical


# Sizes at the limits of one block, a single column or row, and matrices without entries.
SMALL_SHAPES = {
    "as many entries and columns as one block takes": (np.full(4096, 2), 8192),
    "one entry more": (np.append(np.full(4096, 2), 1), 8192),
    "one column more": (np.full(4096, 2), 8193),
    "one column": (np.full(300, 1), 1),
    "one row": (np.array([8000]), 8000),
    "two columns, of which one is empty": (np.full(33, 1), 2),
    "few entries in many columns": (np.array([0, 3, 0, 0, 2]), 5000),
    "no entries": (np.zeros(40, int), 30),
    "no rows": (np.zeros(0, int), 30),
    "no columns": (np.zeros(40, int), 0),
}


@pytest.mark.parametrize("name", SMALL_SHAPES)
def test_a_transpose_of_each_small_shape(device: Device, name: str, rng: np.random.Generator) -> None:
    lengths, num_cols = SMALL_SHAPES[name]
    S = numbered(with_lengths(lengths, num_cols, rng)) if lengths.size else sp.csr_array((0, num_cols))
    assert_transposed(S, kernels_of(device).transpose.csr_transpose(device, on(device, S)))


@pytest.mark.parametrize("is_canonical", [False, True])
def test_a_transpose_does_not_depend_on_the_thread_that_counts_first(
    is_canonical: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_transpose(monkeypatch, "counted")
    S = numbered((with_lengths if is_canonical else from_lengths)(np.full(200, 5), 40, rng))
    for seed in range(4):  # Each runs the threads of a block in another order.
        device = EmulatedDevice(32, seed)
        csr = replace(on(device, S), is_canonical=is_canonical)
        assert_transposed(S, kernels_of(device).transpose.csr_transpose(device, csr))


@pytest.mark.parametrize("name", STRUCTURES)
def test_rows_are_taken_and_numbered(device: Device, name: str, rng: np.random.Generator):
    A = made(name, rng)
    rows = rng.integers(0, A.shape[0], 4000 if A.nnz < 20_000 else 50)
    want = A[rows]
    taken = select_rows(device, on(device, A), on_device(device, rows))
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(host(getattr(taken, part)), getattr(want, part))
    numbers = kernels_of(device).sparse_rows.row_numbers(device, on_device(device, A.indptr), A.nnz)
    np.testing.assert_array_equal(host(numbers), np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)))


def _wide(name: str, rng: np.random.Generator) -> tuple[sp.csr_array, sp.csr_array]:
    """Return two matrices whose product has rows that no table holds."""
    if name == "a dense row and a dense column":
        A = with_lengths(np.concatenate([[1500], np.full(1499, 2)]), 1500, rng).tolil()
        A[:, 7] = 1.0
        A = sp.csr_array(A)
        return A, A
    if name == "many columns":
        return with_lengths([300, 3, 0, 200], 400, rng), with_lengths(np.full(400, 60), 150_000, rng)
    if name == "a row of many short ones":
        return with_lengths([6000, 5], 6000, rng), with_lengths(np.full(6000, 2), 7000, rng)
    assert name == "long rows"
    return with_lengths([40, 40], 50, rng), with_lengths(np.full(50, 3000), 40_000, rng)


@pytest.mark.parametrize(
    "name", ["a dense row and a dense column", "many columns", "a row of many short ones", "long rows"]
)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.few(3)
def test_products_with_wide_rows_are_right_and_repeatable(
    device: Device, name: str, dtype: Any, rng: np.random.Generator
):
    A, B = (whole_numbers(S, rng, dtype) for S in _wide(name, rng))
    A.data[A.data == 0] = 1
    result = product(device, on(device, A), on(device, B))
    assert_same(result, A @ B)
    again = product(device, on(device, A), on(device, B))
    np.testing.assert_array_equal(host(result.data), host(again.data))


def test_products_of_rows_of_all_classes_equal_scipys(device: Device, rng: np.random.Generator):
    lengths = np.concatenate([np.zeros(50, int), rng.integers(1, 3, 3000), rng.integers(4, 60, 400), [500, 900]])
    A = whole_numbers(with_lengths(lengths, 900, rng), rng)
    B = whole_numbers(with_lengths(rng.integers(0, 25, 900), 3000, rng), rng)
    assert_same(product(device, on(device, A), on(device, B)), A @ B)
