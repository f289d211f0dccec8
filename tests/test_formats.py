"""The arrays of a format: their sizes, the bytes that a product reads, and that they are frozen."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from gsparse.formats import (
    BlockedEllpack,
    Bsr,
    Columns,
    Csr,
    CsrEntries,
    Ellpack,
    LaneSlices,
    Levels,
    LongRows,
    RowLanes,
    RowPattern,
    Slices,
    Values,
    padding_code,
)
from gsparse.formats.bsr import MAX_BLOCK, BlockRows
from gsparse.formats.costs import KernelModel
from gsparse.formats.launch import NO_LIMIT, THREADS_PER_BLOCK, Launch, Panel, PanelLaunch
from gsparse.formats.registry import COMPRESSED, REGISTRY, Encoding, Storage
from gsparse.formats.registry import PLAIN as UNCOMPRESSED
from gsparse.formats.row_pattern import CommonPattern
from gsparse.formats.row_stats import RowStats
from gsparse.products.blocked_ellpack import fits_slices
from gsparse.products.bsr import lanes_for_rows
from gsparse.products.row_pattern import Patterns

# All arrays have different sizes, so that a sum of bytes shows which of them were counted.
INDPTR, INDICES, DATA = np.zeros(4, np.int64), np.zeros(23, np.int32), np.ones(23)
PLAIN, NARROW = Columns(INDICES), Columns(np.zeros(64, np.uint8), np.zeros(2, np.int32))
VALUES, TABLE, EQUAL = Values(np.ones(64)), Values(np.zeros(64, np.uint8), np.ones(7)), Values(None, np.ones(1))
LONG = LongRows(
    rows=np.zeros(3, np.int32),
    begins=np.zeros(3, np.int64),
    ends=np.zeros(3, np.int64),
    first_chunk=np.zeros(4, np.int32),
    chunk_rows=np.zeros(11, np.int32),
    chunk_size=256,
    long_length=64,
)
LONG_BYTES = 4 * 3 + 8 * 3 + 8 * 3 + 4 * 4 + 4 * 11
SLICES = Slices(
    num_rows=33,
    slice_size=32,
    sorting_scope=1,
    slice_offsets=np.zeros(3, np.int64),
    rows=None,
    long_rows=None,
    long_length=64,
    num_slice_positions=64,
    num_positions=96,
)
PATTERN = RowPattern((33, 40), 60, np.zeros(33, np.uint8), np.zeros(3, np.int32), np.zeros(5, np.int32))
PATTERNS = Patterns(np.zeros(33, np.uint8), np.zeros(2, np.int64), np.zeros(3, np.int32), 5)
CONSTANT = replace(PATTERN, pattern_values=np.ones(5, np.float32))
VARYING = replace(PATTERN, slices=SLICES, values=VALUES)
BLOCKS = Bsr((33, 40), 60, (3, 2), 4, SLICES, NARROW, VALUES)
LANE_SLICES = LaneSlices(
    slice_size=32,
    group=1,
    frequent=np.zeros(9, np.int32),
    numbers=np.zeros(40, np.uint16),
    places=np.zeros(33, np.int64),
    rows=np.zeros(64, np.int32),
    lanes=np.zeros(2, np.int32),
    first_slices=np.zeros(2, np.int32),
    frequent_offsets=np.zeros(3, np.int64),
    rare_offsets=np.zeros(3, np.int64),
    num_frequent_positions=50,
    num_rare_positions=14,
    num_long_slices=1,
    is_even=False,
)
# A product reads neither the numbers of the columns nor the places of the rows.
LANE_SLICES_BYTES = 4 * (9 + 64 + 2 + 2) + 8 * (3 + 3)
HUBS = RowLanes((33, 40), 60, LANE_SLICES, np.zeros(50, np.uint16), np.zeros(14, np.int32), VALUES)
BLOCK_ROWS = BlockRows((3, 2), 4, np.zeros(45, np.int32), SLICES, NARROW)

# The bytes that a product reads of each, computed by hand.
BYTES: dict[str, tuple[Any, int]] = {
    "csr": (Csr((3, 5), INDPTR, INDICES, DATA), 8 * 4 + 4 * 23 + 8 * 23),
    "columns": (PLAIN, 4 * 23),
    "columns with bases": (NARROW, 64 + 4 * 2),
    "values": (VALUES, 8 * 64),
    "values in a table": (TABLE, 64 + 8 * 7),
    "one value": (EQUAL, 8),
    "long rows": (LONG, LONG_BYTES),
    "csr entries": (CsrEntries((3, 5), 23, INDPTR, PLAIN, TABLE), 8 * 4 + 4 * 23 + 64 + 8 * 7),
    "csr entries, long rows": (CsrEntries((3, 5), 23, INDPTR, NARROW, EQUAL, LONG), 8 * 4 + 64 + 8 + 8 + LONG_BYTES),
    "ellpack": (Ellpack((33, 40), 60, 2, 64, NARROW, VALUES), 64 + 4 * 2 + 8 * 64),
    "slices": (SLICES, 8 * 3),
    "slices, sorted": (replace(SLICES, rows=np.zeros(64, np.int32)), 8 * 3 + 4 * 64),
    "slices, long rows": (replace(SLICES, long_rows=LONG), 8 * 3 + LONG_BYTES),
    "blocked ellpack": (BlockedEllpack((33, 40), 60, SLICES, NARROW, VALUES), 8 * 3 + 64 + 4 * 2 + 8 * 64),
    "blocks": (BLOCKS, 8 * 3 + 64 + 4 * 2 + 8 * 64),
    "hub slices": (LANE_SLICES, LANE_SLICES_BYTES),
    "hub columns": (HUBS, LANE_SLICES_BYTES + 2 * 50 + 4 * 14 + 8 * 64),
    "row pattern, constant": (CONSTANT, 33 + 4 * 3 + 4 * 5 + 4 * 5),
    "row pattern, varying": (VARYING, 33 + 4 * 3 + 4 * 5 + 8 * 3 + 8 * 64),
}
# The formats that a plan can choose: (stored matrix, num_stored, dtype).
STORED: dict[str, tuple[Any, int, str]] = {
    "csr": (CsrEntries((33, 40), 60, INDPTR, PLAIN, TABLE), 60, "float64"),
    "ellpack": (Ellpack((33, 40), 60, 2, 64, NARROW, Values(np.zeros(64, np.complex64))), 128, "complex64"),
    "blocked ellpack": (BlockedEllpack((33, 40), 60, SLICES, NARROW, EQUAL), 96, "float64"),
    "blocks": (BLOCKS, 96 * 3 * 2, "float64"),
    "hub columns": (HUBS, 64, "float64"),
    "row pattern, constant": (CONSTANT, 5, "float32"),
    "row pattern, varying": (VARYING, 96, "float64"),
}
COMMON = CommonPattern(1, np.zeros(2, np.uint32), np.zeros(2, np.uint8), np.array([-40, 0]), 3)
EVERY = [
    *(format for format, _ in BYTES.values()),
    Levels(np.arange(3), np.array([0, 1, 3])),
    PATTERNS,
    COMMON,
    BLOCK_ROWS,
]


@pytest.mark.parametrize("name", BYTES)
def test_nbytes_counts_every_array_that_a_product_reads(name: str) -> None:
    arrays, nbytes = BYTES[name]
    assert arrays.nbytes == nbytes
    assert type(arrays.nbytes) is int  # a NumPy integer could wrap, and prints differently


@pytest.mark.parametrize("name", STORED)
def test_stored_matrices_report_rows_positions_padding_and_dtype(name: str) -> None:
    stored, num_stored, dtype = STORED[name]
    assert stored.num_rows == 33
    assert stored.num_stored == num_stored
    assert stored.padding_ratio == (1.0 if name == "csr" else num_stored / 60)
    assert stored.dtype == dtype


@pytest.mark.parametrize("name", STORED)
def test_a_matrix_without_entries_has_no_padding(name: str) -> None:
    assert replace(STORED[name][0], nnz=0).padding_ratio == 1.0


@pytest.mark.parametrize("arrays", EVERY, ids=lambda arrays: type(arrays).__name__)
def test_array_groups_are_frozen_and_compare_by_identity(arrays: Any) -> None:
    for field in fields(arrays):
        with pytest.raises(FrozenInstanceError):
            setattr(arrays, field.name, None)
    # They are hashable and compare by identity: comparing their arrays would be slow and ambiguous.
    copied = replace(arrays)
    assert arrays != copied
    assert {arrays: 1, copied: 2}[arrays] == 1


PARAMETERS = [Launch(), Panel(3), PanelLaunch(4, 2, 8), KernelModel(1e-6, 1e-12), Storage("int32", "float64", 7, 84)]


@pytest.mark.parametrize("parameters", [*PARAMETERS, *REGISTRY.values()], ids=lambda value: type(value).__name__)
def test_parameters_are_frozen(parameters: Any) -> None:
    for field in fields(parameters):
        with pytest.raises(FrozenInstanceError):
            setattr(parameters, field.name, None)


def test_parameters_that_are_left_out_have_no_effect() -> None:
    assert Launch() == Launch(threads_per_block=256, threads_per_row=1)
    assert Panel(3) == Panel(3, pack=1, by_columns=False)
    assert PanelLaunch(4, 2, 8) == PanelLaunch(4, 2, 8, entry_lanes=1, long_length=1024)
    assert set(list(vars(KernelModel(1e-6, 1e-12)).values())[2:]) == {0.0}
    assert Storage("int32", "float64", 7, 84).runs == PATTERNS.runs == (0, 0)


def test_a_tile_has_the_columns_of_all_loads_of_all_its_lanes() -> None:
    assert PanelLaunch(columns_per_load=4, loads=2, column_lanes=8).tile == 64


def test_blocks_have_these_numbers_of_threads() -> None:
    assert THREADS_PER_BLOCK == (128, 256, 512)


def test_no_limit_is_more_than_any_row_has() -> None:
    assert 2**60 < NO_LIMIT < 2**63


def test_slices_count_rows_or_the_entries_of_one_in_int32() -> None:
    stats = RowStats(20, 50, 70, 0, 5, 3.5, 1.0, 1, 96, 90, 2, 11)
    most = 2**31 - 1
    assert fits_slices(replace(stats, num_rows=most, max_length=most + 1))
    assert fits_slices(replace(stats, num_rows=most + 1, max_length=most))
    assert not fits_slices(replace(stats, num_rows=most + 1, max_length=most + 1))


def test_csr_reports_its_sizes_and_with_data_shares_the_structure() -> None:
    csr = Csr((3, 5), INDPTR, INDICES, DATA)
    assert (csr.num_rows, csr.num_cols, csr.nnz, csr.dtype) == (3, 5, 23, DATA.dtype)
    other = csr.with_data(DATA.astype(np.float32))
    assert (other.shape, other.indptr, other.indices, other.dtype) == (csr.shape, INDPTR, INDICES, np.float32)
    assert csr.data is DATA


def test_csr_converts_its_index_arrays_only_if_they_have_another_dtype() -> None:
    csr = Csr((3, 5), INDPTR.astype(np.int32), INDICES, DATA)
    assert csr.with_index_dtype(np.int32) is csr
    for wanted, given in [(np.int64, csr), (np.int32, csr.with_index_dtype(np.int64))]:
        converted = given.with_index_dtype(wanted)
        assert converted is not given
        assert (converted.indptr.dtype, converted.indices.dtype) == (wanted, wanted)
        np.testing.assert_array_equal(converted.indptr, INDPTR)
        assert converted.data is DATA


def test_parts_report_their_counts() -> None:
    assert (LONG.num_long, LONG.num_chunks) == (3, 11)
    assert SLICES.num_slices == 2
    assert PATTERN.num_patterns == PATTERNS.num_patterns == 2
    assert (BLOCK_ROWS.num_parts, type(BLOCK_ROWS.num_parts)) == (44, int)


def test_blocks_have_up_to_eight_rows_and_columns() -> None:
    assert MAX_BLOCK == 8


@pytest.mark.parametrize(
    ("num_rows", "mean_length", "lanes"),
    [
        *[(1000, 11.9, 1), (1000, 12.0, 2), (1000, 23.9, 2), (1000, 24.0, 4), (1000, 48.0, 8), (1000, 999.0, 8)],
        *[(2**15, 99.0, 8), (2**15 + 1, 99.0, 4), (2**16, 99.0, 4), (2**17, 99.0, 2), (2**17 + 1, 99.0, 1)],
    ],
)
def test_lanes_of_a_row_of_blocks_grow_with_its_length_and_for_few_rows(
    num_rows: int, mean_length: float, lanes: int
) -> None:
    nnz = round(mean_length * num_rows)
    assert lanes_for_rows(RowStats(num_rows, num_rows, nnz, 0, nnz, mean_length, 0.0, 0, nnz)) == lanes


def test_common_pattern_and_schedule_have_defaults() -> None:
    assert PATTERN.common is None
    assert CsrEntries((3, 5), 23, INDPTR, PLAIN, VALUES).long_rows is None
    assert not Csr((3, 5), INDPTR, INDICES, DATA).is_canonical


def test_patterns_take_the_bytes_of_codes_pointers_offsets_and_values() -> None:
    assert (PATTERNS.nbytes(), PATTERNS.nbytes(8)) == (33 + 4 * 3 + 4 * 5, 33 + 4 * 3 + 12 * 5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint16"])
def test_the_padding_code_is_not_a_valid_column_code(dtype: str) -> None:
    code = np.array(padding_code(dtype)).astype(dtype)
    assert int(code) == padding_code(np.dtype(dtype)) == padding_code(dtype)
    assert code == (np.iinfo(dtype).max if dtype.startswith("u") else -1)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (Values(np.zeros(3, np.float32)), "float32"),
        (Values(np.zeros(3, np.uint8), np.zeros(2, np.complex64)), "complex64"),
        (Values(None, np.zeros(1)), "float64"),
    ],
    ids=["plain", "in a table", "all equal"],
)
def test_values_have_the_dtype_they_are_stored_in_or_looked_up_in(values: Values, dtype: str) -> None:
    assert values.dtype == dtype
    assert isinstance(values.dtype, np.dtype)


# ------------------------------------------------------------------------------------------------------------ levels


@pytest.mark.parametrize(
    ("sizes", "narrow", "runs"),
    [
        ([], 4, []),
        ([9], 4, [(0, 1)]),
        ([4], 4, [(0, 1)]),
        ([1, 4, 2], 4, [(0, 3)]),
        ([9, 5, 8], 4, [(0, 1), (1, 2), (2, 3)]),
        ([9, 1, 1, 5, 2, 3, 4], 4, [(0, 1), (1, 3), (3, 4), (4, 7)]),
        ([1, 9, 1, 9], 4, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_wide_levels_run_alone_and_narrow_neighbours_together(
    sizes: list[int], narrow: int, runs: list[tuple[int, int]]
) -> None:
    levels = Levels(np.arange(sum(sizes)), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    assert levels.num_levels == len(sizes)
    assert levels.runs(narrow) == runs


def test_values_describe_their_encoding_and_their_size_elsewhere() -> None:
    assert [values.describe() for values in (VALUES, TABLE, EQUAL)] == ["float64", "uint8 of 7", "all equal"]
    assert [values.nbytes_at(100) for values in (VALUES, TABLE, EQUAL)] == [800, 100 + 56, 8]
    assert TABLE.rearranged(lambda codes: codes[:3]).codes.size == 3
    assert TABLE.rearranged(lambda codes: codes[:3]).table is TABLE.table
    assert EQUAL.rearranged(lambda codes: codes[:3]) is EQUAL


@pytest.mark.parametrize("shape", [(3, 5), (6, 3), (4, 4), (0, 3)])
@pytest.mark.parametrize("offset", range(-7, 8))
def test_a_diagonal_has_the_elements_that_numpy_finds(shape: tuple[int, int], offset: int) -> None:
    expected = np.diagonal(np.empty(shape), offset).size if min(shape) else 0
    assert Csr(shape, INDPTR, INDICES, DATA).diagonal_size(offset) == expected


def test_an_encoding_lists_those_that_compress_nothing_else() -> None:
    assert COMPRESSED.within() == (COMPRESSED, Encoding(True, False), Encoding(False, True), UNCOMPRESSED)
    assert Encoding(True, False).within() == (Encoding(True, False), UNCOMPRESSED)
    assert Encoding(False, True).within() == (Encoding(False, True), UNCOMPRESSED)
    assert UNCOMPRESSED.within() == (UNCOMPRESSED,)
    assert (UNCOMPRESSED.columns, UNCOMPRESSED.values) == (False, False)
