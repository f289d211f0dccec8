"""What the arrays of a format promise of themselves: sizes, bytes that a product reads, and that nothing moves them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from gsparse.formats import (
    BlockedEllpack,
    Columns,
    Csr,
    CsrEntries,
    Ellpack,
    Levels,
    LongRows,
    RowBlocks,
    RowPattern,
    Slices,
    Tiles,
    Values,
    padding_code,
)

# Every array has another size, so that bytes tell which of them were counted.
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
    num_places=64,
    num_positions=96,
)
TILES = Tiles(
    first_rows=np.zeros(6, np.int32),
    size=512,
    split_rows=np.zeros(2, np.int32),
    first_carry=np.zeros(3, np.int32),
    carry_tiles=np.zeros(9, np.int32),
)
PATTERN = RowPattern((33, 40), 60, np.zeros(33, np.uint8), np.zeros(3, np.int32), np.zeros(5, np.int32))
CONSTANT = replace(PATTERN, pattern_values=np.ones(5, np.float32))
VARYING = replace(PATTERN, slices=SLICES, values=VALUES)

# What a product reads of each, added up by hand.
BYTES: dict[str, tuple[Any, int]] = {
    "csr": (Csr((3, 5), INDPTR, INDICES, DATA), 8 * 4 + 4 * 23 + 8 * 23),
    "columns": (PLAIN, 4 * 23),
    "columns with bases": (NARROW, 64 + 4 * 2),
    "values": (VALUES, 8 * 64),
    "values in a table": (TABLE, 64 + 8 * 7),
    "one value": (EQUAL, 8),
    "long rows": (LONG, LONG_BYTES),
    "row blocks": (RowBlocks(np.zeros(5, np.int32), None), 4 * 5),
    "row blocks, long rows": (RowBlocks(np.zeros(5, np.int32), LONG), 4 * 5 + LONG_BYTES),
    "tiles": (TILES, 4 * (6 + 2 + 3 + 9)),
    "csr entries": (CsrEntries((3, 5), 23, INDPTR, PLAIN, TABLE), 8 * 4 + 4 * 23 + 64 + 8 * 7),
    "csr entries, tiles": (CsrEntries((3, 5), 23, INDPTR, NARROW, EQUAL, TILES), 8 * 4 + 64 + 4 * 2 + 8 + 4 * 20),
    "ellpack": (Ellpack((33, 40), 60, 2, 64, NARROW, VALUES), 64 + 4 * 2 + 8 * 64),
    "slices": (SLICES, 8 * 3),
    "slices, sorted": (replace(SLICES, rows=np.zeros(64, np.int32)), 8 * 3 + 4 * 64),
    "slices, long rows": (replace(SLICES, long_rows=LONG), 8 * 3 + LONG_BYTES),
    "blocked ellpack": (BlockedEllpack((33, 40), 60, SLICES, NARROW, VALUES), 8 * 3 + 64 + 4 * 2 + 8 * 64),
    "row pattern, constant": (CONSTANT, 33 + 4 * 3 + 4 * 5 + 4 * 5),
    "row pattern, varying": (VARYING, 33 + 4 * 3 + 4 * 5 + 8 * 3 + 8 * 64),
}
# What a plan can choose: (format, num_stored, dtype).
STORED: dict[str, tuple[Any, int, str]] = {
    "csr": (CsrEntries((33, 40), 60, INDPTR, PLAIN, TABLE), 60, "float64"),
    "ellpack": (Ellpack((33, 40), 60, 2, 64, NARROW, Values(np.zeros(64, np.complex64))), 128, "complex64"),
    "blocked ellpack": (BlockedEllpack((33, 40), 60, SLICES, NARROW, EQUAL), 96, "float64"),
    "row pattern, constant": (CONSTANT, 5, "float32"),
    "row pattern, varying": (VARYING, 96, "float64"),
}
EVERY = [format for format, _ in BYTES.values()] + [Levels(np.arange(3), np.array([0, 1, 3]))]


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_those_of_every_array_that_a_product_reads(name: str) -> None:
    arrays, nbytes = BYTES[name]
    assert arrays.nbytes == nbytes
    assert type(arrays.nbytes) is int  # (NumPy's would wrap, and print otherwise)


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_has_rows_positions_padding_and_a_dtype(name: str) -> None:
    stored, num_stored, dtype = STORED[name]
    assert stored.num_rows == 33
    assert stored.num_stored == num_stored
    assert stored.padding_ratio == (1.0 if name == "csr" else num_stored / 60)
    assert stored.dtype == dtype


@pytest.mark.parametrize("name", STORED)
def test_a_matrix_without_entries_has_no_padding(name: str) -> None:
    assert replace(STORED[name][0], nnz=0).padding_ratio == 1.0


@pytest.mark.parametrize("arrays", EVERY, ids=lambda arrays: type(arrays).__name__)
def test_arrays_once_put_together_stay_so_and_are_told_apart_by_who_they_are(arrays: Any) -> None:
    for field in fields(arrays):
        with pytest.raises(FrozenInstanceError):
            setattr(arrays, field.name, None)
    # Caches and sets take them; comparing arrays would neither give one answer nor be quick.
    twin = replace(arrays)
    assert arrays != twin
    assert {arrays: 1, twin: 2}[arrays] == 1


def test_csr_has_rows_columns_entries_and_other_values_by_the_same_structure() -> None:
    csr = Csr((3, 5), INDPTR, INDICES, DATA)
    assert (csr.num_rows, csr.num_cols, csr.nnz, csr.dtype) == (3, 5, 23, DATA.dtype)
    other = csr.with_data(DATA.astype(np.float32))
    assert (other.shape, other.indptr, other.indices, other.dtype) == (csr.shape, INDPTR, INDICES, np.float32)
    assert csr.data is DATA


def test_parts_are_counted() -> None:
    assert (LONG.num_long, LONG.num_chunks) == (3, 11)
    assert TILES.num_tiles == 5
    assert SLICES.num_slices == 2
    assert PATTERN.num_patterns == 2


def test_no_row_pattern_is_common_and_no_work_is_shared_out_unless_said() -> None:
    assert PATTERN.common == 0
    assert CsrEntries((3, 5), 23, INDPTR, PLAIN, VALUES).schedule is None


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint16"])
def test_the_padding_code_is_no_column_that_a_code_may_stand_for(dtype: str) -> None:
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


def test_values_say_how_they_are_stored_and_what_they_would_take_elsewhere() -> None:
    assert [values.describe() for values in (VALUES, TABLE, EQUAL)] == ["float64", "uint8 of 7", "all equal"]
    assert [values.nbytes_at(100) for values in (VALUES, TABLE, EQUAL)] == [800, 100 + 56, 8]
    assert TABLE.rearranged(lambda codes: codes[:3]).codes.size == 3
    assert TABLE.rearranged(lambda codes: codes[:3]).table is TABLE.table
    assert EQUAL.rearranged(lambda codes: codes[:3]) is EQUAL
