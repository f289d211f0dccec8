"""Row lanes: how rows are dealt to lanes, products, which matrices have hubs, and which columns are frequent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.formats import Csr
from gsparse.kernels.gpu import spmv
from gsparse.products import row_lanes
from gsparse.products.row_lanes import LanedRows
from gsparse.products.structure import SparsityPattern
from tests.conftest import make_device
from tests.encodings import assert_decodes
from tests.support import assert_product, host, on_device, random_values


def graph(rng: np.random.Generator, num_rows: int, num_cols: int, nnz: int) -> sp.csr_array:
    """Return a matrix in which a few rows and a few columns have most entries, without order and with duplicates."""
    places = [rng.permutation(n)[np.minimum(n * rng.random(nnz) ** 6, n - 1).astype(int)] for n in (num_rows, num_cols)]
    order = np.argsort(places[0], kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(places[0], minlength=num_rows))])
    indices = places[1][order].astype(np.int32)
    return sp.csr_array((random_values(rng, nnz, float), indices, indptr.astype(np.int32)), shape=(num_rows, num_cols))


def laned_rows(device: Device, S: sp.csr_array) -> LanedRows:
    return LanedRows(
        SparsityPattern(device, Csr(S.shape, *(on_device(device, a) for a in (S.indptr, S.indices, S.data))))
    )


@pytest.fixture(params=[False, True], ids=["no hubs", "hubs"])
def hubs(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let all matrices have hubs, or none. On a CPU none has."""
    if request.param and device.kind == "cpu":
        pytest.skip("matrices on a CPU have no hubs")
    monkeypatch.setattr(LanedRows, "has_hubs", request.param)
    return bool(request.param)


def test_frequent_columns_are_those_with_the_most_entries(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LanedRows, "has_hubs", True)
    monkeypatch.setattr(row_lanes, "MAX_FREQUENT", 50)
    device, S = make_device("emulated:32"), graph(rng, 300, 400, 6000)
    slices = laned_rows(device, S).slices
    counts = np.bincount(S.indices, minlength=400)
    frequent, numbers = host(slices.frequent), host(slices.numbers)
    np.testing.assert_array_equal(counts[frequent], np.sort(counts)[::-1][:50])
    np.testing.assert_array_equal(numbers[frequent], np.arange(50))
    assert np.all(np.delete(numbers, frequent) == 65535)


@pytest.mark.parametrize("max_frequent", [3, 65_535])
@pytest.mark.parametrize("fewest_steps", [1, 3, 1000])
def test_products_are_right_for_rows_with_one_lane_several_lanes_and_several_slices(
    device: Device,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    hubs: bool,
    max_frequent: int,
    fewest_steps: int,
) -> None:
    monkeypatch.setattr(row_lanes, "MAX_FREQUENT", max_frequent)
    monkeypatch.setattr(LanedRows, "most_steps", fewest_steps)
    S = graph(rng, 700, 501, 9000)
    A, x = GpuSparseMatrix(S, device=device, format="row_lanes"), random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)
    assert_decodes(A.stored, S, device.lanes)
    slices, longest = A.stored.slices, int(np.diff(S.indptr).max())
    lanes, first = host(slices.lanes), host(slices.first_slices)
    if device.kind == "cpu":
        assert np.all(lanes == 1)
        return
    assert lanes.max() >= longest / fewest_steps
    assert np.all(np.diff(lanes) <= 0)  # the longest rows first
    is_long = lanes > device.lanes
    assert slices.num_long_slices == np.count_nonzero(is_long)
    assert fewest_steps != 1 or slices.num_long_slices > 1
    np.testing.assert_array_equal(first[~is_long], np.flatnonzero(~is_long))
    rows = host(slices.rows).reshape(-1, device.lanes)
    for row_slices in np.split(np.flatnonzero(is_long), np.flatnonzero(np.diff(first[is_long])) + 1):
        if row_slices.size:
            assert row_slices.size == lanes[row_slices[0]] // device.lanes
            assert rows[row_slices[0], 0] >= 0 and np.all(rows[row_slices[1:]] == -1)


def test_matrices_that_are_larger_than_the_cache_multiply_right(
    device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, hubs: bool
) -> None:
    monkeypatch.setattr(spmv, "_CACHED_BYTES", 0)
    S = graph(rng, 300, 500, 4000)
    for dtype, data in (("float64", S.data), ("complex64", S.data * (1 + 2j)), ("float64", np.ones(S.nnz))):
        T = sp.csr_array((data.astype(dtype), S.indices, S.indptr), shape=S.shape)
        A, x = GpuSparseMatrix(T, device=device, format="row_lanes"), random_values(rng, S.shape[1], dtype)
        assert_product(A @ x, T, x)


def test_the_sum_of_a_row_of_several_slices_is_always_the_same(
    device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, hubs: bool
) -> None:
    monkeypatch.setattr(LanedRows, "most_steps", 1)
    S = graph(rng, 40, 300, 5000)
    A, x = GpuSparseMatrix(S, device=device, format="row_lanes"), random_values(rng, 300, float)
    first = A @ x
    for _ in range(5):
        assert host(A @ x).tobytes() == host(first).tobytes()


def test_inf_and_nan_spread_to_the_rows_that_have_entries_there_only(
    device: Device, rng: np.random.Generator, hubs: bool
) -> None:
    S = graph(rng, 200, 150, 1500)
    counts = np.bincount(S.indices, minlength=150)
    A, x = GpuSparseMatrix(S, device=device, format="row_lanes"), random_values(rng, 150, float)
    hit = [int(np.argmax(counts)), int(np.flatnonzero(counts == np.min(counts[counts > 0]))[0])]
    x[hit] = np.inf, np.nan
    expected = S @ x
    np.testing.assert_array_equal(np.isnan(host(A @ x)), np.isnan(expected))
    assert np.isinf(expected).any()


def column_indices(scale: int, rng: np.random.Generator, **kind: bool) -> Any:
    """Return 4·n column indices for n = 2**scale columns: as in a power-law graph, evenly spread, or in pairs.

    The last column of a pair may be n, which does not exist.
    """
    n = 2**scale
    spread = rng.permutation(n)[np.minimum(n * rng.random(4 * n) ** 6, n - 1).astype(int)]
    if kind.get("even"):
        return rng.integers(0, n, 4 * n)
    return np.repeat(spread[::2], 2) + np.tile([0, 1], 2 * n) if kind.get("side_by_side") else spread


@pytest.mark.parametrize(
    ("kind", "expected"), [({}, True), ({"even": True}, False), ({"side_by_side": True}, False)], ids=str
)
def test_only_power_law_graphs_have_hubs(
    kind: dict[str, bool], expected: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_lanes, "_MIN_ENTRIES", 2**18)
    monkeypatch.setattr(row_lanes, "_MIN_HUBS", 1000)
    n = 2**17
    indices = (column_indices(17, rng, **kind) % n).astype(np.int32)
    S = sp.csr_array((np.ones(indices.size), indices, np.arange(0, indices.size + 1, 4, dtype=np.int32)), shape=(n, n))
    device = make_device("emulated:32")
    assert laned_rows(device, S).has_hubs is expected
    assert not laned_rows(get_device("cpu"), S).has_hubs  # a product on a CPU would not gain
    if expected:
        monkeypatch.setattr(row_lanes, "_MIN_HUBS", 10**6)
        assert not laned_rows(device, S).has_hubs
        monkeypatch.setattr(row_lanes, "_MIN_ENTRIES", S.nnz + 1)
        assert not laned_rows(device, S).has_hubs


def test_the_candidate_for_row_lanes_has_the_sizes_of_the_stored_matrix(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = make_device("emulated:32")
    S = graph(rng, 3000, 2500, 40_000)
    monkeypatch.setattr(LanedRows, "has_hubs", True)
    plan = GpuSparseMatrix(S, device=device, expected_products=10**6).plan
    candidate = next(c for c in plan.candidates if c.format == "row_lanes")
    A = GpuSparseMatrix(S, device=device, format="row_lanes")
    assert candidate.num_stored == A.stored.num_stored
    assert candidate.storage.columns == "uint16 100 %"
    x, y = (n * A.dtype.itemsize for n in S.shape[::-1])
    assert candidate.nbytes == A.stored.nbytes + x + y
