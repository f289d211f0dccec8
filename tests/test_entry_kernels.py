"""Kernels for single entries, one body for every device: found, added up, inserted, listed where they are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu.sparse_rows import prefix_sums
from gsparse.sparse.canonical import sorted_rows
from tests.support import INDEX_DTYPES, STRUCTURES, from_lengths, host, on_device, random_values, with_types

VALUES = ("bool", "int16", "float32", "float64", "complex64", "complex128")


def on(device: Device, S: Any) -> Csr:
    return Csr(S.shape, *(on_device(device, part) for part in (S.indptr, S.indices, S.data)))


def scipy_of(csr: Csr) -> sp.csr_array:
    S = sp.csr_array((host(csr.data), host(csr.indices), host(csr.indptr)), shape=csr.shape)
    S.check_format(full_check=True)
    return S


def samples(S: Any, rng: np.random.Generator, count: int = 200) -> tuple[Any, Any]:
    """Return rows and columns, half of them those of entries."""
    count = count if min(S.shape) else 0
    rows, columns = (rng.integers(0, max(size, 1), count) for size in S.shape)
    coo = S.tocoo()
    if S.nnz:
        chosen = rng.integers(0, S.nnz, count // 2)
        rows[::2], columns[::2] = coo.row[chosen], coo.col[chosen]
    return rows.astype(np.int64), columns.astype(np.int64)


def made(structure: str, rng: np.random.Generator, is_sorted: bool, dtype: Any = float, index: Any = np.int32) -> Any:
    S = with_types(STRUCTURES[structure](rng), dtype, index, rng)
    if is_sorted:
        S.sum_duplicates()
    return S


@pytest.mark.few(12)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_entries_are_found_and_repeated_ones_reported(
    device: Device, structure: str, index: Any, is_sorted: bool, rng: np.random.Generator
) -> None:
    S = made(structure, rng, is_sorted, index=index)
    rows, columns = samples(S, rng)
    with device.active():
        positions, num_missing, has_several = kernels_of(device).edits.find_entries(
            device, on(device, S), on_device(device, rows), on_device(device, columns), is_sorted
        )
    coo, found = S.tocoo(), host(positions)
    assert num_missing == (found == -1).sum()
    assert has_several == (found == -2).any()
    for row, column, position in zip(rows, columns, found, strict=True):
        there = np.flatnonzero((coo.row == row) & (coo.col == column))
        assert position == (-1 if not there.size else there[0] if there.size == 1 else -2)


@pytest.mark.few(12)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("dtype", [*COMPUTE_DTYPES, np.dtype(np.int8), np.dtype(np.uint16)], ids=str)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_entries_at_a_place_are_added_up(
    device: Device, structure: str, dtype: Any, is_sorted: bool, rng: np.random.Generator
) -> None:
    if not is_sorted and dtype not in COMPUTE_DTYPES:
        pytest.skip("sums are of compute dtypes")
    S = made(structure, rng, is_sorted, dtype)
    S.data = np.round(S.data * 8).astype(dtype)  # so that sums are exact
    rows, columns = samples(S, rng)
    with device.active():
        arguments = (device, on(device, S), on_device(device, rows), on_device(device, columns), is_sorted)
        sums = host(kernels_of(device).edits.sample_entries(*arguments))
        again = host(kernels_of(device).edits.sample_entries(*arguments))
    assert sums.dtype == dtype
    np.testing.assert_array_equal(sums, S.toarray()[rows, columns])
    assert sums.tobytes() == again.tobytes()


@pytest.mark.few(12)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_single_entry_is_a_scalar_of_its_dtype(
    device: Device, structure: str, dtype: str, index: Any, rng: np.random.Generator
) -> None:
    S = made(structure, rng, True, dtype, index)
    csr, dense = on(device, S), S.toarray()
    with device.active():
        for row, column in zip(*samples(S, rng, 8), strict=True):
            value = kernels_of(device).edits.sample_entry(device, csr, int(row), int(column))
            assert (value, value.dtype) == (dense[row, column], S.dtype)
            assert np.isscalar(value)


@pytest.mark.few(12)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_new_entries_are_inserted_in_order(
    device: Device, structure: str, dtype: str, index: Any, is_sorted: bool, rng: np.random.Generator
) -> None:
    S = made(structure, rng, is_sorted, dtype, index)
    rows, columns = samples(S, rng)
    is_new = host(sp.csr_array((np.ones(S.nnz), S.indices, S.indptr), shape=S.shape).toarray()[rows, columns] == 0)
    places = np.unique(np.stack([rows[is_new], columns[is_new]]), axis=1)
    values = random_values(rng, places.shape[1], dtype)
    with device.active():
        new = (on_device(device, part) for part in (*places, values))
        result = scipy_of(kernels_of(device).edits.insert_entries(device, on(device, S), *new, is_sorted))
    coo = S.tocoo()
    order = np.argsort(np.concatenate([places[0], coo.row]), kind="stable")
    columns, data = np.concatenate([places[1], coo.col])[order], np.concatenate([values, coo.data])[order]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(np.append(coo.row, places[0]), minlength=S.shape[0]))])
    want = sp.csr_array((data, columns, indptr), shape=S.shape)
    if is_sorted:
        want.sort_indices()
    assert result.indices.dtype == index
    assert result.dtype == dtype
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(result, part), getattr(want, part))


@pytest.mark.few(8)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("structure", [*STRUCTURES, "full"])
def test_missing_entries_are_all_places_without_one(
    device: Device, structure: str, index: Any, rng: np.random.Generator
) -> None:
    S = sp.csr_array(np.ones((5, 7))) if structure == "full" else made(structure, rng, True)
    S = with_types(S, float, index, rng)
    with device.active():
        missing = scipy_of(kernels_of(device).edits.missing_entries(device, on(device, S)))
    assert missing.dtype == bool
    assert missing.indices.dtype == index
    pattern = sp.csr_array((np.ones(S.nnz, bool), S.indices, S.indptr), shape=S.shape)
    np.testing.assert_array_equal(missing.toarray(), ~pattern.toarray())
    assert missing.has_canonical_format
    assert missing.nnz == S.shape[0] * S.shape[1] - S.nnz


@pytest.mark.few(12)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_element_at_the_place_of_each_entry_is_taken(
    device: Device, structure: str, dtype: str, rng: np.random.Generator
) -> None:
    S, kernels = made(structure, rng, True, dtype), kernels_of(device)
    coo, csr = S.tocoo(), on(device, S)
    with device.active():
        values = random_values(rng, S.shape, dtype)
        wide = np.repeat(np.repeat(values, 2, axis=0), 3, axis=1)[::2, ::3]
        for array in (on_device(device, values), on_device(device, values.T.copy()).T, on_device(device, wide)):
            np.testing.assert_array_equal(
                host(kernels.edits.take_elements(device, csr, array)), values[coo.row, coo.col]
            )


@pytest.mark.few(12)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("dtype", [*VALUES, "uint8", "int64"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_entries_are_added_to_a_dense_array_in_their_order(
    device: Device, structure: str, dtype: str, is_sorted: bool, rng: np.random.Generator
) -> None:
    S = made(structure, rng, is_sorted, dtype)
    csr, before = on(device, S), random_values(rng, S.shape, dtype)
    with device.active():
        dense = on_device(device, before)
        kernels_of(device).edits.add_entries(device, replace(csr, is_canonical=is_sorted), dense)
    coo, want = S.tocoo(), before.copy()
    for row, column, value in zip(coo.row, coo.col, coo.data, strict=True):
        want[row, column] += value
    np.testing.assert_array_equal(host(dense), want)


def test_many_entries_at_one_place_of_a_boolean_matrix_stay_true(device: Device) -> None:
    S = sp.csr_array((np.ones(256, bool), np.zeros(256, np.int32), np.array([0, 256])), shape=(1, 2))
    for is_canonical in (False, True) if device.is_host else (False,):
        with device.active():
            dense = on_device(device, np.array([[False, True]]))
            kernels_of(device).edits.add_entries(device, replace(on(device, S), is_canonical=is_canonical), dense)
        np.testing.assert_array_equal(host(dense), [[True, True]])


@pytest.mark.parametrize("size", [100, 5000])
def test_unsigned_numbers_that_int64_cannot_hold_are_out_of_range(device: Device, size: int) -> None:
    numbers = np.arange(size).astype(np.uint64)
    with device.active():
        from_start = kernels_of(device).sparse_rows.numbers_from_start
        np.testing.assert_array_equal(host(from_start(device, on_device(device, numbers), size)), numbers)
        numbers[3] = 2**64 - 1
        assert from_start(device, on_device(device, numbers), size) is None


def test_a_sum_that_is_not_read_leaves_the_counts_of_the_host_alone(gpu_device: Device) -> None:
    """Another stream may be about to write a number there that this thread reads. A CPU has no streams."""
    device = gpu_device
    values = np.arange(10_000).astype(np.int32)
    with device.active():
        device.counts.array[:] = 77
        sums = prefix_sums(device, on_device(device, values), is_total_read=False)
    np.testing.assert_array_equal(host(sums), np.concatenate([[0], np.cumsum(values)]))
    assert device.counts.read(15) == [77] * 15


@pytest.mark.parametrize("dtype", VALUES)
def test_values_are_put_to_their_positions(device: Device, dtype: str, rng: np.random.Generator) -> None:
    data, values = random_values(rng, 300, dtype), random_values(rng, 100, dtype)
    positions = rng.permutation(300)[:100].astype(np.int64)
    positions[::7] = -1
    stay, kernels = positions >= 0, kernels_of(device)
    for new in (values, values[:1]):
        written, want = on_device(device, data), data.copy()
        with device.active():
            kernels.edits.put_values(device, written, on_device(device, positions), on_device(device, new))
        want[positions[stay]] = new if new.size == 1 else new[stay]
        np.testing.assert_array_equal(host(written), want)


def test_a_sample_in_a_row_that_is_longer_than_a_block(device: Device) -> None:
    S = from_lengths([0, 3000, 1], 40, np.random.default_rng(0))
    S.data[:] = 1
    rows, columns = np.ones(40, np.int64), np.arange(40)
    with device.active():
        arguments = (device, on(device, S), on_device(device, rows), on_device(device, columns), False)
        np.testing.assert_array_equal(host(kernels_of(device).edits.sample_entries(*arguments)), S.toarray()[1])
        positions, num_missing, has_several = kernels_of(device).edits.find_entries(*arguments)
        assert (host(positions) == -2).all()
        assert (num_missing, has_several) == (0, True)


@pytest.mark.few(12)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_rows_are_sorted_in_a_stable_way(
    device: Device, structure: str, index: Any, dtype: str, rng: np.random.Generator
) -> None:
    S = made(structure, rng, False, dtype, index)
    with device.active():
        result = scipy_of(sorted_rows(device, on(device, S)))
    coo = S.tocoo()
    order = np.lexsort((np.arange(S.nnz), coo.col, coo.row))
    assert result.indices.dtype == index
    for part, want in (("indptr", S.indptr), ("indices", coo.col[order]), ("data", coo.data[order])):
        np.testing.assert_array_equal(getattr(result, part), want)
