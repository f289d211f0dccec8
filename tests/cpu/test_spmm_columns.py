"""Transposed products of tall matrices on the CPU, which read the matrix by columns, are exact and repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.kernels.cpu import spmm
from gsparse.products import prepared
from tests.support import assert_product, random_values


@pytest.fixture(autouse=True)
def by_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Read small matrices by columns, too. Collect the numbers of copies of Y; 0 stands for a gather."""
    numbers: list[int] = []
    threads, num_copies = gsparse.get_num_threads(), spmm.num_copies

    def recorded(x: Any, y: Any) -> int:
        numbers.append(num_copies(x, y))
        return numbers[-1]

    monkeypatch.setattr(spmm, "_CACHE_BYTES", 0)
    monkeypatch.setattr(prepared, "MAX_BY_COLUMNS", 0)  # The first products have transposed arrays.
    monkeypatch.setattr(spmm, "num_copies", recorded)
    yield numbers
    gsparse.set_num_threads(threads)


def tall(rng: np.random.Generator, dtype: Any = float) -> sp.csr_array:
    """Return a matrix with empty rows and columns, a dense row, repeated entries and unsorted columns."""
    lengths = rng.integers(0, 6, 700)
    lengths[13], lengths[100:140] = 20, 0
    columns = np.concatenate([rng.integers(0, 18, length) for length in lengths])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((random_values(rng, columns.size, dtype), columns.astype(np.int32), indptr), shape=(700, 20))


@pytest.mark.few(6)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int32", "bool"])
@pytest.mark.parametrize("columns", [3, 8, 21])
def test_transposed_products_of_a_tall_matrix_are_exact(
    by_columns: list[int], rng: np.random.Generator, threads: int, dtype: str, columns: int
) -> None:
    gsparse.set_num_threads(threads)
    S = tall(rng, dtype)
    A = GpuSparseMatrix(S, device="cpu")
    X = random_values(rng, (700, columns), dtype)
    assert_product(A.T @ X, sp.csr_array(S.T), X)
    assert_product(A.H @ X, sp.csr_array(S.conj().T), X)
    assert_product(A.T @ np.asfortranarray(X), sp.csr_array(S.T), X)
    assert_product(GpuSparseMatrix(S.T, device="cpu") @ X, sp.csr_array(S.T), X)
    assert by_columns and by_columns[0] == threads


def test_factors_and_a_result_of_the_caller_are_respected(by_columns: list[int], rng: np.random.Generator) -> None:
    S = tall(rng, complex)
    A = GpuSparseMatrix(S, device="cpu")
    X, start = random_values(rng, (700, 5), complex), random_values(rng, (20, 5), complex)
    for out in (start.copy(), np.asfortranarray(start), np.repeat(start, 2, axis=1)[:, ::2]):
        gsparse.spmm(A.H, X, alpha=2 - 1j, beta=3, out=out)
        np.testing.assert_allclose(out, (2 - 1j) * (S.conj().T @ X) + 3 * start, rtol=1e-12, atol=1e-12)
    out = np.full((20, 5), np.nan, complex)
    gsparse.spmm(A.T, X, out=out)  # what was in `out` is not read
    np.testing.assert_allclose(out, S.T @ X, rtol=1e-12, atol=1e-12)
    assert min(by_columns) > 0


def test_the_bits_depend_on_the_number_of_threads_alone(by_columns: list[int], rng: np.random.Generator) -> None:
    A, X = GpuSparseMatrix(tall(rng), device="cpu"), rng.standard_normal((700, 16))
    for threads in (1, 2, 5):
        gsparse.set_num_threads(threads)
        first = A.T @ X
        for _ in range(5):
            np.testing.assert_array_equal(A.T @ X, first)


@pytest.mark.parametrize(
    ("stored", "vector"), [("bool", "float64"), ("int8", "float32"), ("uint64", "float64"), ("float32", "complex128")]
)
def test_values_of_another_dtype_are_widened_as_they_are_read(
    by_columns: list[int], rng: np.random.Generator, stored: str, vector: str
) -> None:
    S, X = tall(rng, stored), random_values(rng, (700, 10), vector)
    assert_product(GpuSparseMatrix(S, device="cpu").T @ X, sp.csr_array(S.T), X)
    assert min(by_columns) > 0


def test_nan_reaches_only_what_reads_it(rng: np.random.Generator) -> None:
    S, X = tall(rng), rng.standard_normal((700, 9))
    X[200, 2] = np.nan
    found, expected = GpuSparseMatrix(S, device="cpu").T @ X, S.T @ X
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
