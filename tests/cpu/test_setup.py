"""The CPU's functions that set up formats match slow references: surveys, orders, layouts, codes, keys, transposes."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from gsparse.device import threads
from gsparse.formats import Csr
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels import cpu
from tests.cpu.stored import DEVICE, RUN, make_slices

ITEMS = ["bool", "uint16", "float32", "complex64", "complex128"]  # 1, 2, 4, 8, 16 bytes


def expected_order(csr: Csr, long_length: int) -> Any:
    """Return the row order that the contract of `cut_slices` requires, computed one sorting scope at a time."""
    lengths, rows = np.diff(csr.indptr), []
    places = -(-csr.num_rows // RUN) * RUN
    for first in range(0, places, cpu.SORTING_SCOPE):
        end = min(first + cpu.SORTING_SCOPE, places)
        short = [row for row in range(first, min(end, csr.num_rows)) if lengths[row] <= long_length]
        short.sort(key=lambda row: -lengths[row])
        rows += short + [-1] * (end - first - len(short))
    return np.array(rows, csr.indptr.dtype)


def lay_out_by_row(csr: Csr, items: Any, slices: Any, padding: Any) -> Any:
    rows = np.arange(slices.num_slices * RUN) if slices.rows is None else slices.rows
    placed = np.full(slices.num_positions, padding, items.dtype)
    for place, row in enumerate(rows):
        if 0 <= row < csr.num_rows:
            row_items = items[csr.indptr[row] : csr.indptr[row + 1]]
            placed[slices.slice_offsets[place // RUN] + place % RUN :: RUN][: row_items.size] = row_items
    if slices.long_rows is not None:
        for row, begin, end in zip(slices.long_rows.rows, slices.long_rows.begins, slices.long_rows.ends, strict=True):
            placed[begin:end] = items[csr.indptr[row] : csr.indptr[row + 1]]
    return placed


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_a_survey_matches_a_slow_reference(index_dtype: str, cases: Any) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, "float64", index_dtype)
        lens = np.array(lengths, np.int64)
        short = np.where(lens > cpu.LONG_LENGTH, 0, lens)
        result = cpu.survey(DEVICE, csr.indptr, csr.indices, True)
        assert (result.min_length, result.max_length) == ((lens.min(), lens.max()) if lens.size else (0, 0))
        assert (result.num_empty, result.sum_squares) == ((lens == 0).sum(), (lens**2).sum())
        assert (result.blocked_stored, result.split_stored) == tuple(
            RUN * slice_widths(each).sum() for each in (lens, short)
        )
        assert (result.num_long, result.long_entries) == ((lens > cpu.LONG_LENGTH).sum(), (lens - short).sum())
        assert (result.first, result.last, result.num_falls) == (0, csr.nnz, 0)
        rows = np.repeat(np.arange(lens.size), lens)
        assert result.num_unsorted == ((np.diff(rows) == 0) & (np.diff(csr.indices) <= 0)).sum()
        if csr.nnz:
            assert (result.min_column, result.max_column) == (csr.indices.min(), csr.indices.max())


def slice_widths(lengths: Any) -> Any:
    """Return the length of the longest row of each slice."""
    padded = np.zeros(-(-lengths.size // RUN) * RUN, np.int64)
    padded[: lengths.size] = lengths
    return padded.reshape(-1, RUN).max(axis=1, initial=0)


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("long_length", [NO_LIMIT, 8, 0])
@pytest.mark.few(2)
def test_row_order_and_slices_match_a_slow_reference(long_length: int, index_dtype: str, cases: Any) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, "float64", index_dtype)
        lens, survey = np.array(lengths, np.int64), cpu.survey(DEVICE, csr.indptr, csr.indices, False)
        expected = RUN * slice_widths(np.where(lens > long_length, 0, lens))
        rows, offsets, num_positions = cpu.cut_slices(DEVICE, csr.indptr, survey, long_length, False)
        assert offsets.dtype == np.int64
        np.testing.assert_array_equal(offsets, np.concatenate([[0], np.cumsum(expected)]))
        assert num_positions == expected.sum()
        assert (rows is None) is (long_length == NO_LIMIT)
        if rows is not None:
            numbers = np.full(rows.size, -1)
            numbers[: lens.size] = np.where(lens > long_length, -1, np.arange(lens.size))
            np.testing.assert_array_equal(rows, numbers)
        rows, offsets, num_positions = cpu.cut_slices(DEVICE, csr.indptr, survey, long_length, True)
        assert rows.dtype == np.int32
        np.testing.assert_array_equal(rows, expected_order(csr, long_length))
        sorted_widths = np.where(rows < 0, 0, np.append(lens, 0)[rows]).reshape(-1, RUN).max(axis=1, initial=0)
        np.testing.assert_array_equal(offsets, np.concatenate([[0], RUN * np.cumsum(sorted_widths)]))
        assert num_positions == offsets[-1]


@pytest.mark.parametrize("dtype", ITEMS)
@pytest.mark.parametrize("slicing", [{}, {"ordered": True}, {"long_length": 20}, {"ordered": True, "long_length": 8}])
@pytest.mark.whole
def test_items_of_any_size_are_laid_out_in_slices(slicing: Any, dtype: str, cases: Any) -> None:
    for name, (lengths, num_cols) in cases.structures.items():
        csr = cases.make_csr(lengths, num_cols, "float64", "int64" if name == "mixed" else "int32")
        items = (np.arange(csr.nnz) % 250).astype(dtype)
        slices = make_slices(csr, **slicing)
        padding = 1 if dtype == "bool" else 251
        placed = cpu.lay_out(DEVICE, csr.indptr, items, slices, padding)
        assert placed.dtype == items.dtype
        np.testing.assert_array_equal(placed, lay_out_by_row(csr, items, slices, padding))


def test_slices_in_natural_order_leave_out_long_rows(cases: Any) -> None:
    csr = cases.make_csr(*cases.structures["one_dense_row"], "float64")
    slices = make_slices(csr, long_length=10)
    placed = cpu.lay_out(DEVICE, csr.indptr, csr.indices, slices, -1)
    np.testing.assert_array_equal(placed, lay_out_by_row(csr, csr.indices, slices, -1))


@pytest.mark.parametrize("dtype", ITEMS)
@pytest.mark.whole
def test_items_of_any_size_are_laid_out_in_ellpack(dtype: str, cases: Any) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, "float64")
        items = (np.arange(csr.nnz) % 250).astype(dtype)
        width, pitch = max(lengths, default=0), -(-csr.num_rows // RUN) * RUN
        expected = np.full((width, pitch), 1, items.dtype)
        for row in range(csr.num_rows):
            row_items = items[csr.indptr[row] : csr.indptr[row + 1]]
            expected[: row_items.size, row] = row_items
        placed = cpu.lay_out_ellpack(DEVICE, csr.indptr, items, width, pitch, 1)
        assert placed.dtype == items.dtype
        np.testing.assert_array_equal(placed, expected.ravel())


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize(("dtype", "max_offset"), [("uint8", 255), ("uint16", 65535)])
def test_columns_are_recovered_from_their_codes(dtype: str, max_offset: int, index_dtype: str) -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 32, 33, 70_001):
        columns = (
            np.repeat(rng.integers(0, 10**6, -(-size // RUN)), RUN)[:size] + rng.integers(0, max_offset, size)
        ).astype(index_dtype)
        columns[rng.random(size) < 0.2] = -1
        columns[64:96] = -1
        padded = np.concatenate([columns, np.full(-size % RUN, -1, index_dtype)]).reshape(-1, RUN)
        greatest, least = padded.max(axis=1), np.where(padded < 0, 2**31 - 1, padded).min(axis=1)
        span = int(np.where(greatest < 0, 0, greatest - least).max(initial=0))
        assert cpu.run_span(DEVICE, columns, 10**7) == span
        encoded = cpu.encode_columns(DEVICE, columns, np.dtype(dtype))
        assert (encoded.codes.dtype, encoded.bases.dtype) == (np.dtype(dtype), np.dtype("int32"))
        assert encoded.bases.size == padded.shape[0]
        bases = np.repeat(encoded.bases, RUN)[:size]
        back = np.where(encoded.codes == max_offset, -1, bases + encoded.codes.astype(np.int64))
        np.testing.assert_array_equal(back, columns)


@pytest.mark.parametrize("key", ["uint32", "uint64"])
@pytest.mark.parametrize("code", ["uint8", "uint16"])
@pytest.mark.few(1)
def test_keys_are_encoded_as_positions_in_the_table_of_distinct_keys(key: str, code: str) -> None:
    rng = np.random.default_rng(0)
    table = np.unique(rng.integers(0, 2**32, 200, dtype=np.uint64) << np.uint64(31 * (key == "uint64"))).astype(key)
    table[0] = 0
    codes = rng.integers(0, table.size, 100_000)
    keys = table[codes]
    result, places = cpu.distinct_keys(DEVICE, keys, table.size)
    assert result.dtype == np.dtype(key)
    np.testing.assert_array_equal(result, table)
    np.testing.assert_array_equal(keys[places], table)
    encoded = cpu.encode_keys(DEVICE, keys, table, np.dtype(code))
    assert encoded.dtype == np.dtype(code)
    np.testing.assert_array_equal(encoded, codes)
    assert cpu.distinct_keys(DEVICE, keys, table.size - 1) is None
    assert cpu.distinct_keys(DEVICE, np.arange(100_000).astype(key), 4096) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
def test_row_keys_are_equal_exactly_for_rows_of_equal_patterns(dtype: str, cases: Any) -> None:
    csr = cases.make_stencil(500, [-40, -1, 0, 1, 40], dtype)
    patterns = {}
    for row in range(csr.num_rows):
        row_items = slice(csr.indptr[row], csr.indptr[row + 1])
        patterns[row] = (*(csr.indices[row_items] - row), *csr.data[row_items].tolist())
    keys = cpu.row_keys(DEVICE, csr, True)
    assert keys.dtype == np.uint64
    for a in (0, 1, 39, 40, 250, 459, 460, 499):
        for b in (0, 1, 20, 40, 300, 450, 470, 498, 499):
            assert (keys[a] == keys[b]) == (patterns[a] == patterns[b])
    csr.data[csr.indptr[250]] += 1
    assert cpu.row_keys(DEVICE, csr, True)[250] != keys[250]
    np.testing.assert_array_equal(cpu.row_keys(DEVICE, csr, False)[250], cpu.row_keys(DEVICE, csr, False)[251])


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.few(1)
def test_rows_follow_only_patterns_that_equal_them(dtype: str, index_dtype: str, cases: Any) -> None:
    csr = cases.make_stencil(9000, [-40, -1, 0, 1, 40], dtype)
    csr = Csr(csr.shape, csr.indptr.astype(index_dtype), csr.indices.astype(index_dtype), csr.data)
    keys = cpu.row_keys(DEVICE, csr, True)
    _, representatives, codes = np.unique(keys, return_index=True, return_inverse=True)
    codes = codes.astype(np.uint8)
    for values in (False, True):
        lengths = cpu.rows_follow(DEVICE, csr, codes, representatives, values)
        np.testing.assert_array_equal(lengths, np.diff(csr.indptr)[representatives])
    changed = csr.data.copy()
    changed[csr.indptr[8000] + 3] += 1
    assert cpu.rows_follow(DEVICE, csr.with_data(changed), codes, representatives, False) is not None
    assert cpu.rows_follow(DEVICE, csr.with_data(changed), codes, representatives, True) is None
    csr.indices[csr.indptr[8000] + 1] += 1
    assert cpu.rows_follow(DEVICE, csr, codes, representatives, False) is None
    wrong = codes.copy()
    wrong[[0, 5000]] = wrong[[5000, 0]]
    assert cpu.rows_follow(DEVICE, csr, wrong, representatives, False) is None


@pytest.mark.whole
def test_set_up_does_not_depend_on_the_number_of_threads(cases: Any) -> None:
    csr = cases.make_csr(list(np.random.default_rng(0).integers(0, 12, 120_000)), 1000, "float32", "int32")
    results = []
    for num_threads in (1, 3, 16):
        threads.set_num_threads(num_threads)
        slices = make_slices(csr, ordered=True, long_length=10)
        columns = cpu.lay_out(DEVICE, csr.indptr, csr.indices, slices, -1)
        encoded = cpu.encode_columns(DEVICE, columns, np.dtype(np.uint16))
        keys = cpu.row_keys(DEVICE, csr, True)
        table, _ = cpu.distinct_keys(DEVICE, keys % np.uint64(999), 1000)
        survey = cpu.survey(DEVICE, csr.indptr, csr.indices, False)
        results.append((slices.rows, columns, encoded.codes, encoded.bases, keys, table, astuple(survey)[:-1]))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_the_transpose_keeps_the_order_of_rows(index_dtype: str, cases: Any) -> None:
    for lengths, num_cols in cases.structures.values():
        csr = cases.make_csr(lengths, num_cols, "float64", index_dtype)
        transposed = cpu.csr_transpose(DEVICE, csr)
        rows = np.repeat(np.arange(csr.num_rows), np.diff(csr.indptr))
        order = np.argsort(csr.indices, kind="stable")
        assert transposed.shape == csr.shape[::-1]
        assert transposed.indptr.dtype == transposed.indices.dtype == np.dtype(index_dtype)
        np.testing.assert_array_equal(np.diff(transposed.indptr), np.bincount(csr.indices, minlength=num_cols))
        np.testing.assert_array_equal(transposed.indices, rows[order])
        np.testing.assert_array_equal(transposed.data, csr.data[order])
