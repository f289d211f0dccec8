"""The CPU's functions that set up formats match slow references: surveys, orders, layouts, codes, keys, transposes."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from gsparse.device import threads
from gsparse.device.select import get_device
from gsparse.formats import Csr, LongRows, Slices
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.cpu import encode, layout

DEVICE = get_device("cpu")
RUN = DEVICE.lanes


def make_long_rows(indptr: Any, limit: int, first: int) -> tuple[LongRows, int]:
    """Return the rows longer than `limit`, copied to position `first`, and the end of the copies."""
    lengths = np.diff(indptr).astype(np.int64)
    rows = np.flatnonzero(lengths > limit)
    spaces = -(-lengths[rows] // RUN) * RUN
    begins, end = first + np.cumsum(spaces) - spaces, first + int(spaces.sum())
    chunks = -(-lengths[rows] // layout.CHUNK_SIZE)
    first_chunk = np.concatenate([[0], np.cumsum(chunks)]).astype(np.int32)
    chunk_rows = np.repeat(np.arange(rows.size), chunks).astype(np.int32)
    ends = begins + lengths[rows]
    long_rows = LongRows(rows.astype(np.int32), begins, ends, first_chunk, chunk_rows, layout.CHUNK_SIZE, limit)
    return long_rows, end


def make_slices(csr: Csr, *, ordered: bool = False, long_length: int = NO_LIMIT) -> Slices:
    survey = layout.survey(DEVICE, csr.indptr, csr.indices, False)
    rows, offsets, num_positions = layout.cut_slices(DEVICE, csr.indptr, survey, long_length, ordered)
    long_rows, end = None, num_positions
    if long_length != NO_LIMIT:
        long_rows, end = make_long_rows(csr.indptr, long_length, num_positions)
    scope = layout.SORTING_SCOPE if ordered else 1
    return Slices(csr.num_rows, RUN, scope, offsets, rows, long_rows, long_length, num_positions, end)


def expected_order(csr: Csr, long_length: int) -> Any:
    """Return the row order that the contract of `cut_slices` requires, computed one sorting scope at a time."""
    lengths, rows = np.diff(csr.indptr), []
    places = -(-csr.num_rows // RUN) * RUN
    for first in range(0, places, layout.SORTING_SCOPE):
        end = min(first + layout.SORTING_SCOPE, places)
        short = [row for row in range(first, min(end, csr.num_rows)) if lengths[row] <= long_length]
        short.sort(key=lambda row: -lengths[row])
        rows += short + [-1] * (end - first - len(short))
    return np.array(rows, csr.indptr.dtype)


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
        lens, survey = np.array(lengths, np.int64), layout.survey(DEVICE, csr.indptr, csr.indices, False)
        expected = RUN * slice_widths(np.where(lens > long_length, 0, lens))
        rows, offsets, num_positions = layout.cut_slices(DEVICE, csr.indptr, survey, long_length, False)
        assert offsets.dtype == np.int64
        np.testing.assert_array_equal(offsets, np.concatenate([[0], np.cumsum(expected)]))
        assert num_positions == expected.sum()
        assert (rows is None) is (long_length == NO_LIMIT)
        if rows is not None:
            numbers = np.full(rows.size, -1)
            numbers[: lens.size] = np.where(lens > long_length, -1, np.arange(lens.size))
            np.testing.assert_array_equal(rows, numbers)
        rows, offsets, num_positions = layout.cut_slices(DEVICE, csr.indptr, survey, long_length, True)
        assert rows.dtype == np.int32
        np.testing.assert_array_equal(rows, expected_order(csr, long_length))
        sorted_widths = np.where(rows < 0, 0, np.append(lens, 0)[rows]).reshape(-1, RUN).max(axis=1, initial=0)
        np.testing.assert_array_equal(offsets, np.concatenate([[0], RUN * np.cumsum(sorted_widths)]))
        assert num_positions == offsets[-1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
def test_row_keys_are_equal_exactly_for_rows_of_equal_patterns(dtype: str, cases: Any) -> None:
    csr = cases.make_stencil(500, [-40, -1, 0, 1, 40], dtype)
    patterns = {}
    for row in range(csr.num_rows):
        row_items = slice(csr.indptr[row], csr.indptr[row + 1])
        patterns[row] = (*(csr.indices[row_items] - row), *csr.data[row_items].tolist())
    keys = encode.row_keys(DEVICE, csr, True)
    assert keys.dtype == np.uint64
    for a in (0, 1, 39, 40, 250, 459, 460, 499):
        for b in (0, 1, 20, 40, 300, 450, 470, 498, 499):
            assert (keys[a] == keys[b]) == (patterns[a] == patterns[b])
    csr.data[csr.indptr[250]] += 1
    assert encode.row_keys(DEVICE, csr, True)[250] != keys[250]
    np.testing.assert_array_equal(encode.row_keys(DEVICE, csr, False)[250], encode.row_keys(DEVICE, csr, False)[251])


@pytest.mark.whole
def test_set_up_does_not_depend_on_the_number_of_threads(cases: Any) -> None:
    csr = cases.make_csr(list(np.random.default_rng(0).integers(0, 12, 120_000)), 1000, "float32", "int32")
    results = []
    for num_threads in (1, 3, 16):
        threads.set_num_threads(num_threads)
        slices = make_slices(csr, ordered=True, long_length=10)
        columns = layout.lay_out(DEVICE, csr.indptr, csr.indices, slices, -1)
        encoded = encode.encode_columns(DEVICE, columns, np.dtype(np.uint16))
        keys = encode.row_keys(DEVICE, csr, True)
        table, _ = encode.distinct_keys(DEVICE, keys % np.uint64(999), 1000)
        survey = layout.survey(DEVICE, csr.indptr, csr.indices, False)
        results.append((slices.rows, columns, encoded.codes, encoded.bases, keys, table, astuple(survey)[:-1]))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
