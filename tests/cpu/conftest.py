"""Matrices with difficult structures, and an exact product to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gsparse.device import threads
from gsparse.formats import Csr
from gsparse.kernels.cpu.compiling import HandOut

# Row lengths and number of columns. The number of rows is a multiple of 8, 32 or 64 only if the name says so.
STRUCTURES: dict[str, tuple[list[int], int]] = {
    "mixed": ([0, 3, 1, 0, 8, 9, 7, 2, 0, 0, 5, 15, 1] * 8 + [0], 40),
    "multiple_of_64": ([3, 4, 5, 0] * 32, 20),
    "one_dense_row": ([1] * 70 + [200] + [2] * 30, 90),
    "all_empty": ([0] * 13, 5),
    "one_column": ([1, 0, 1, 1, 0, 3] * 7, 1),
    "one_row": ([11], 30),
    "long_rows": ([33, 64, 17, 100, 31], 128),
    "many_rows": ([7, 6] * 1100 + [2500, 0, 9000, 3], 250),
    "no_rows": ([], 7),
    "no_columns": ([0] * 9, 0),
}


def make_csr(
    lengths: list[int], num_cols: int, dtype: Any, index_dtype: Any = "int32", seed: int = 0, distinct: int = 0
) -> Csr:
    """Return a matrix with random rows of these lengths. Columns are unsorted and repeated.

    If `distinct` is not 0, the matrix has at most that many distinct values.
    """
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(index_dtype)
    nnz = int(indptr[-1])
    indices = rng.integers(0, max(num_cols, 1), nnz).astype(index_dtype)
    data = random_values(rng, nnz, dtype)
    if distinct:
        data = random_values(rng, distinct, dtype)[rng.integers(0, distinct, nnz)]
    return Csr((len(lengths), num_cols), indptr, indices, data)


def make_stencil(num_rows: int, offsets: list[int], dtype: Any, *, varying: bool = False) -> Csr:
    """Return a square matrix with these diagonals. The values of a diagonal are equal, or random if `varying`."""
    rows, columns, places = [], [], []
    for place, offset in enumerate(offsets):
        diagonal_rows = np.arange(max(0, -offset), min(num_rows, num_rows - offset))
        rows.append(diagonal_rows)
        columns.append(diagonal_rows + offset)
        places.append(np.full(diagonal_rows.size, place))
    order = np.lexsort((np.concatenate(places), np.concatenate(rows)))
    sorted_rows = np.concatenate(rows)[order]
    rng = np.random.default_rng(3)
    values = random_values(rng, len(offsets), dtype)[np.concatenate(places)[order]]
    if varying:
        values = random_values(rng, sorted_rows.size, dtype)
    indptr = np.searchsorted(sorted_rows, np.arange(num_rows + 1)).astype(np.int32)
    return Csr((num_rows, num_rows), indptr, np.concatenate(columns)[order].astype(np.int32), values)


def random_values(rng: np.random.Generator, shape: Any, dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind == "i":
        return rng.integers(-(2**62), 2**62, shape)
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


@pytest.fixture(autouse=True)
def _restored_threads() -> Any:
    num_threads = threads.get_num_threads()
    yield
    threads.set_num_threads(num_threads)


@pytest.fixture
def cases() -> Any:
    """Return the helpers of this file, so that tests need not import conftest.py."""

    class Cases:
        structures = STRUCTURES

    for helper in (make_csr, make_stencil):
        setattr(Cases, helper.__name__, staticmethod(helper))
    return Cases


@pytest.fixture(autouse=True)
def every_kernel_has_been_called_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all calls run as later calls do. The tests of other folders mostly run first calls."""
    monkeypatch.setattr(HandOut, "num_first", 0)
