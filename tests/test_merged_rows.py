"""Products of sparse matrices whose rows the kernels of a GPU merge in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.formats import Csr
from gsparse.kernels.gpu import merged_rows
from gsparse.kernels.gpu.merged_rows import MergePlan, plan_merge
from gsparse.sparse.arithmetic import CsrProduct, product
from tests.proof.emulated_device import EmulatedDevice
from tests.support import INDEX_DTYPES, from_lengths, host, on_device, with_types
from tests.test_algebra_tiles import with_lengths
from tests.test_sparse_algebra import assert_same, whole_numbers


def measured(device: Device, S: sp.csr_array) -> Csr:
    """Bring a matrix to a device, with the length of its longest row."""
    parts = (on_device(device, part) for part in (S.indptr, S.indices, S.data))
    return Csr(S.shape, *parts, longest=int(np.diff(S.indptr).max(initial=0)))


# Pairs of matrices, named by how many lanes merge a row of the product. They also differ in how many lanes add the
# products of a row of B.
PAIRS: dict[str, Any] = {
    "a lane, single entries in B": lambda rng: (from_lengths(rng.integers(0, 9, 300), 60, rng), _even(60, 1, 30, rng)),
    "a lane": lambda rng: (from_lengths(rng.integers(0, 8, 300), 50, rng), _even(50, 7, 60, rng)),
    "two lanes": lambda rng: (from_lengths(rng.integers(5, 14, 70), 90, rng), _even(90, 9, 100, rng)),
    "eight lanes": lambda rng: (from_lengths(rng.integers(10, 28, 41), 90, rng), _even(90, 27, 200, rng)),
    "sixteen lanes": lambda rng: (from_lengths(rng.integers(30, 100, 21), 300, rng), _even(300, 6, 240, rng)),
}


def _even(num_rows: int, length: int, num_cols: int, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix in canonical form with rows of nearly equal length, among them empty ones."""
    lengths = np.where(rng.random(num_rows) < 0.05, 0, rng.integers((length + 1) // 2, length + 1, num_rows))
    return with_lengths(lengths, num_cols, rng)


@pytest.fixture
def merges_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge rows also in products with too few rows to gain from it."""
    monkeypatch.setattr(merged_rows, "_ENOUGH_ROWS", 0)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.usefixtures("merges_few_rows")
def test_merged_rows_are_the_product_that_scipy_makes(device: Device, pair: str, rng: np.random.Generator) -> None:
    A, B = (whole_numbers(S, rng) for S in PAIRS[pair](rng))
    a, b = (measured(device, S) for S in (A, B))
    assert plan_merge(a, b, (a.longest or 0, b.longest or 0), 32) is not None
    assert_same(product(device, a, b), A @ B)


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", COMPUTE_DTYPES, ids=str)
@pytest.mark.few(2)
@pytest.mark.usefixtures("merges_few_rows")
def test_merged_rows_have_the_same_bits_as_rows_in_tables(
    device: Device, dtype: Any, index: Any, rng: np.random.Generator
) -> None:
    for pair in ("a lane", "two lanes"):
        A, B = (with_types(S, dtype, index, rng) for S in PAIRS[pair](rng))
        a, b = (measured(device, S) for S in (A, B))
        merged = product(device, a, b)
        in_tables = product(device, *(Csr(m.shape, m.indptr, m.indices, m.data) for m in (a, b)))
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(host(getattr(merged, part)), host(getattr(in_tables, part)))
            assert getattr(merged, part).dtype == getattr(in_tables, part).dtype


@pytest.mark.parametrize("pair", ["a lane", "eight lanes"])
@pytest.mark.usefixtures("merges_few_rows")
def test_slots_that_memory_does_not_hold_are_found_again_for_a_part_of_the_rows_at_a_time(
    device: Device, pair: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, B = PAIRS[pair](rng)
    a, b = (measured(device, S) for S in (A, B))
    kept = CsrProduct(device, a, b)
    whole = product(device, a, b)
    monkeypatch.setattr(merged_rows, "slots_limit", lambda nbytes, keeps_slots: 900.0)
    in_parts, known = product(device, a, b), CsrProduct(device, a, b)
    assert known.nbytes <= kept.nbytes
    for result in (in_parts, known.result, known.update(a, b), kept.update(a, b)):
        np.testing.assert_array_equal(host(result.indices), host(whole.indices))
        np.testing.assert_array_equal(host(result.data), host(whole.data))


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.usefixtures("merges_few_rows")
def test_blocks_with_more_entries_than_shared_memory_holds_add_them_in_the_result(
    device: Device, dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, B = (whole_numbers(S, rng, dtype) for S in PAIRS["two lanes"](rng))
    monkeypatch.setattr(merged_rows, "SHARED_BYTES", 1 << 11)
    assert_same(product(device, *(measured(device, S) for S in (A, B))), A @ B)


@pytest.mark.parametrize("pair", ["two lanes", "eight lanes"])
@pytest.mark.usefixtures("merges_few_rows")
def test_the_order_in_which_threads_run_changes_no_bits(pair: str, rng: np.random.Generator) -> None:
    A, B = PAIRS[pair](rng)
    results = []
    for seed in range(4):
        device = EmulatedDevice(32, seed)
        results.append(CsrProduct(device, *(measured(device, S) for S in (A, B))).result)
    for result in results[1:]:
        np.testing.assert_array_equal(result.indices, results[0].indices)
        np.testing.assert_array_equal(result.data, results[0].data)


def shape_of(num_rows: int, nnz: int, num_cols: int = 10**6, index: Any = np.int32) -> Csr:
    """Return a matrix of which only the shape and the number of entries are looked at."""
    entries = np.broadcast_to(np.zeros(1, index), (nnz,))
    return Csr((num_rows, num_cols), np.broadcast_to(np.zeros(1, index), (num_rows + 1,)), entries, entries)


def test_rows_whose_greatest_column_marks_the_end_of_a_row_are_not_merged() -> None:
    a, wide = shape_of(9, 9), 2**31
    assert plan_merge(a, shape_of(9, 9, wide), (1, 1), 32) is None
    assert plan_merge(shape_of(9, 9, 9, np.int64), shape_of(9, 9, wide, np.int64), (1, 1), 32) is not None


def test_blocks_have_fewer_threads_where_the_slots_of_their_rows_would_not_fit() -> None:
    a, b = shape_of(100_000, 10_000_000), shape_of(100_000, 8_000_000)
    assert plan_merge(a, b, (100, 80), 32) == MergePlan(8, 16, 16, 8000, 64)
    assert plan_merge(a, b, (100, 80), 64) == MergePlan(8, 16, 16, 8000, 64)
