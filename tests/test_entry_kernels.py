"""Single entries on difficult structures: read, written, listed where they are missing, and added to a dense array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu.sparse_rows import prefix_sums
from tests.support import INDEX_DTYPES, STRUCTURES, host, on_device, with_types


def written(A: Any, rows: Any, columns: Any) -> Any:
    """Write to entries and to other places of a copy."""
    copy = A.copy()
    if rows.size:
        copy[rows, columns] = np.arange(rows.size) % 7
    return copy


OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "entries": lambda A, rows, columns: A[rows, columns],
    "an entry": lambda A, rows, columns: [A[i, j] for i, j in zip(rows[:8], columns[:8], strict=True)],
    "written": written,
    "missing entries": lambda A, rows, columns: A == 0,
    "plus an array": lambda A, rows, columns: A + np.arange(A.shape[0] * A.shape[1]).reshape(A.shape).astype(A.dtype),
    "elements of an array": lambda A, rows, columns: A.multiply(np.asfortranarray(np.full(A.shape, 2)).astype(A.dtype)),
    "sorted rows": lambda A, rows, columns: A.sorted_indices(),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", ["bool", "int16", "uint8", "int64", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_single_entries_are_those_of_scipy(
    device: Device, structure: str, dtype: str, index: Any, is_sorted: bool, rng: np.random.Generator
) -> None:
    S = with_types(STRUCTURES[structure](rng), dtype, index, rng)
    S.data = np.round(8 * S.data).astype(dtype)  # so that sums are exact
    if is_sorted:
        S.sum_duplicates()
    count = 200 if min(S.shape) else 0
    rows, columns = (rng.integers(0, max(size, 1), count) for size in S.shape)
    if S.nnz:  # half of the places have entries
        chosen = rng.integers(0, S.nnz, count // 2)
        rows[::2], columns[::2] = (part[chosen] for part in S.tocoo().coords)
    for name, operation in OPERATIONS.items():
        got, want = (operation(M, rows, columns) for M in (GpuSparseMatrix(S.copy(), device=device), S.copy()))
        got, want = (np.asarray(part.toarray() if sp.issparse(part) else part) for part in (got, want))
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_many_entries_at_one_place_of_a_boolean_matrix_stay_true(device: Device) -> None:
    S = sp.csr_array((np.ones(256, bool), np.zeros(256, np.int32), np.array([0, 256])), shape=(1, 2))
    csr = Csr(S.shape, *(on_device(device, part) for part in (S.indptr, S.indices, S.data)))
    for is_canonical in (False, True) if device.is_host else (False,):
        with device.active():
            dense = on_device(device, np.array([[False, True]]))
            kernels_of(device).edits.add_entries(device, replace(csr, is_canonical=is_canonical), dense)
        np.testing.assert_array_equal(host(dense), [[True, True]])


def test_a_sum_that_is_not_read_leaves_the_counts_of_the_host_alone(gpu_device: Device) -> None:
    """Another stream may be about to write a number there that this thread reads. A CPU has no streams."""
    device = gpu_device
    values = np.arange(10_000).astype(np.int32)
    with device.active():
        device.counts.array[:] = 77
        sums = prefix_sums(device, on_device(device, values), is_total_read=False)
    np.testing.assert_array_equal(host(sums), np.concatenate([[0], np.cumsum(values)]))
    assert device.counts.read(15) == [77] * 15
