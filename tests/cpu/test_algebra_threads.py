"""Sparse algebra on several threads: results are those of one thread, to the last bit, and those of SciPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device import threads

# Enough entries for several threads, of the pool whose threads need the GIL, too.
NUM_ROWS, NUM_COLS, NUM_ENTRIES = 30_001, 20_011, 700_000
DTYPES = ("float32", "float64", "complex64", "complex128", "int64", "uint64", "int8", "bool")


def make(rng: np.random.Generator, dtype: str) -> sp.csr_array:
    """Make a canonical matrix with a long row, empty rows, zeros, and integers that overflow."""
    rows = rng.integers(0, NUM_ROWS - 5000, NUM_ENTRIES)
    rows[: NUM_ENTRIES // 10] = NUM_ROWS // 3
    columns = rng.integers(0, NUM_COLS, NUM_ENTRIES)
    values = rng.integers(0, 3, NUM_ENTRIES) * 100
    S = sp.coo_array((values.astype(float), (rows, columns)), shape=(NUM_ROWS, NUM_COLS)).tocsr()
    S.sum_duplicates()
    data = S.data * 1j + rng.integers(-2, 3, S.nnz) if "complex" in dtype else S.data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some integers overflow
        return sp.csr_array((data.astype(dtype), S.indices, S.indptr), shape=S.shape)


@pytest.fixture(scope="module", params=DTYPES)
def pair(request: pytest.FixtureRequest, seed: int) -> tuple[sp.csr_array, sp.csr_array]:
    rng = np.random.default_rng(seed)
    return make(rng, request.param), make(rng, request.param)


def written(A: Any) -> Any:
    """Write to entries and to other places of a copy."""
    copy = A.copy()
    copy[SELECTED, SELECTED % NUM_COLS] = 1
    return copy


SELECTED = np.random.default_rng(3).permutation(NUM_ROWS)[:20_000]
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "plus": lambda A, B: A + B,
    "minus": lambda A, B: A - B,
    "cancelled": lambda A, B: (A - B) - A,
    "times": lambda A, B: A.multiply(B),
    "maximum": lambda A, B: A.maximum(B),
    "minimum": lambda A, B: A.minimum(B),
    "ne": lambda A, B: A != B,
    "lt": lambda A, B: A < B,
    "gt": lambda A, B: A > B,
    "compared with a number": lambda A, B: A != 0,
    "rows": lambda A, B: A[SELECTED],
    "columns": lambda A, B: A[:, SELECTED[SELECTED < NUM_COLS]],
    "slice of columns": lambda A, B: A[:, 5:NUM_COLS:3],
    "transpose": lambda A, B: A.T.tocsr(),
    "sorted rows": lambda A, B: A[:, SELECTED[SELECTED < NUM_COLS]].sorted_indices(),
    "entries": lambda A, B: A[SELECTED, SELECTED % NUM_COLS],
    "dense block": lambda A, B: A[9000:11_000, :2000].toarray(),
    "missing entries": lambda A, B: A[9000:9900, :2000] == 0,
    "written": lambda A, B: written(A),
    "sums of rows": lambda A, B: A.sum(axis=1),
    "sums of columns": lambda A, B: A.sum(axis=0),
    "maxima of rows": lambda A, B: A.max(axis=1).toarray(),
    "diagonal": lambda A, B: A.diagonal(),
}
REAL_ONLY = ("lt", "gt", "maxima of rows")


def arrays_of(result: Any) -> list[Any]:
    return [result.indptr, result.indices, result.data] if sp.issparse(result) else [np.asarray(result)]


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.few(1)
def test_results_do_not_depend_on_the_number_of_threads(pair: Any, name: str) -> None:
    operation = OPERATIONS[name]
    if (pair[0].dtype == bool and name in ("minus", "cancelled")) or (pair[0].dtype.kind == "c" and name in REAL_ONLY):
        pytest.skip("SciPy refuses it")
    expected = operation(*pair)
    results = []
    for num_threads in (1, 2, 3, 16):
        threads.set_num_threads(num_threads)
        A, B = (GpuSparseMatrix(S, device="cpu") for S in pair)
        results.append(operation(A, B))
    for result in results:
        assert result.shape == expected.shape and result.dtype == expected.dtype
        for first, other in zip(arrays_of(results[0]), arrays_of(result), strict=True):
            np.testing.assert_array_equal(other, first)
    if sp.issparse(expected):
        for sparse in (results[0], expected):
            sparse.sort_indices()
        for ours, theirs in zip(arrays_of(results[0]), arrays_of(expected), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(results[0], expected, rtol=1e-4 if pair[0].dtype.char in "fF" else 1e-12)


@pytest.mark.whole
def test_a_product_that_cancels_on_several_threads_has_no_zeros(rng: np.random.Generator) -> None:
    threads.set_num_threads(4)
    ones = np.ones(40_000)
    S = sp.csr_array(sp.hstack([sp.diags_array(ones), sp.diags_array(ones)]))
    T = sp.csr_array(sp.vstack([sp.random_array((40_000, 900), density=0.005, rng=rng)] * 2))
    T.data[T.nnz // 2 :] *= -1
    A, B = (GpuSparseMatrix(M, device="cpu") for M in (S, T))
    assert (A @ B).nnz == 0


def test_functions_of_elements_run_in_the_context_of_the_caller() -> None:
    values = np.zeros(1_000_000)
    values[-1] = 2.0
    with np.errstate(divide="ignore"):
        result = threads.map_elements(np.reciprocal, values)
    np.testing.assert_array_equal(result[[0, -1]], [np.inf, 0.5])
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        threads.map_elements(np.reciprocal, values)
