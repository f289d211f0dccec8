"""Each format's description of a matrix, and the arrays that it builds, from a stand-in that needs no device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gsparse
from gsparse.errors import FormatError
from gsparse.formats import Columns, Csr, LaneSlices, Slices, Values
from gsparse.formats.bsr import BlockRows
from gsparse.formats.registry import AnalysisLevel, Encoding, Storage, find_format
from gsparse.formats.row_stats import RowStats
from gsparse.products.blocked_ellpack import SlicedRows, SliceStats
from gsparse.products.bsr import BlockStats, DenseBlocks
from gsparse.products.csr import CsrRows
from gsparse.products.ellpack import PaddedRows
from gsparse.products.row_lanes import MAX_FREQUENT, LanedRows, LaneStats
from gsparse.products.row_pattern import Patterns, PatternStats, RepeatedRows

NAMES = gsparse.FORMATS[1:]

# 20 rows, 70 entries and runs of 32: the numbers below are computed by hand.
CSR = ("csr_scalar", "csr_vector")
STATS = RowStats(20, 50, 70, 0, 5, 3.5, 1.0, 1, 96, 90, 2, 11)
CODES, PLAIN = Values(np.zeros(70, np.uint8), np.ones(3)), Values(np.ones(70))
SLICES = Slices(20, 32, 1, np.zeros(2, np.int64), None, None, 2**62, 96, 96)
LAID_OUT = {"slices": np.full(96, 7, np.uint8), "ellpack": np.full(160, 7, np.uint8)}
BLOCK_ROWS = BlockRows(
    (2, 1), 2, np.zeros(21, np.int32), SLICES, Columns(np.zeros(3, np.uint16), np.zeros(1, np.int32))
)

LANE_SLICES = LaneSlices(
    slice_size=32,
    group=1,
    frequent=np.zeros(30, np.int32),
    numbers=np.zeros(50, np.uint16),
    places=np.zeros(20, np.int64),
    rows=np.zeros(64, np.int32),
    lanes=np.zeros(2, np.int32),
    first_slices=np.zeros(2, np.int32),
    frequent_offsets=np.zeros(3, np.int64),
    rare_offsets=np.zeros(3, np.int64),
    num_frequent_positions=60,
    num_rare_positions=20,
    num_long_slices=0,
    is_even=False,
)
LANE_CODES = np.zeros(60, np.uint16), np.zeros(20, np.int32)


def prepared(compress: bool = True, values: Values = CODES, shared: Any = None, **changes: Any) -> Any:
    """Make a stand-in for a matrix under preparation.

    `changes` replace attributes of the sparsity pattern ("rows") or of a part ("LanedRows.has_hubs").
    """
    csr = Csr((20, 50), np.zeros(21, np.int32), np.zeros(70, np.int32), np.zeros(0))
    device = SimpleNamespace(lanes=32, kind="gpu", download=np.asarray, upload=np.asarray, empty=np.empty, xp=np)
    sparsity = SimpleNamespace(csr=csr, device=device, rows=STATS, pitch=32, known_blocksize=None)
    sparsity.lay_out = lambda *_: LAID_OUT["slices"]
    columns, uint8, uint16 = Columns(np.zeros(3, np.uint8)), np.dtype(np.uint8), np.dtype(np.uint16)
    attributes: dict[type, dict[str, Any]] = {
        CsrRows: {"columns": columns, "column_dtype": uint16, "scalar_length": 16, "vector_length": 32},
        PaddedRows: {"columns": columns, "column_dtype": uint16, "plain_columns": lambda: "ellpack"},
        SlicedRows: {"columns": columns, "column_dtype": uint8, "plain_columns": lambda: "slices", "slices": SLICES},
        LanedRows: {"has_hubs": True, "slices": LANE_SLICES, "stats": LaneStats(60, 20, 300), "most_steps": 8},
        RepeatedRows: {"are_many": True, "stats": PatternStats(4, 500, (3, 9)), "natural_slices": SLICES},
        DenseBlocks: {"blocksize": (2, 3), "block_rows": BLOCK_ROWS, "plain_columns": lambda: "plain"},
    }
    attributes[CsrRows]["long_rows"] = lambda limit: f"longer than {limit}"
    attributes[PaddedRows]["lay_out"] = lambda *_: LAID_OUT["ellpack"]
    attributes[SlicedRows]["stats"] = SliceStats(96, 16, True)
    attributes[LanedRows] |= {"placed_columns": LANE_CODES, "rare_columns": lambda dtype: f"columns as {dtype}"}
    attributes[RepeatedRows]["patterns"] = None
    attributes[DenseBlocks]["stats"] = BlockStats((2, 3), 64, 24, uint16)
    attributes[LanedRows]["lay_out"] = attributes[DenseBlocks]["lay_out"] = sparsity.lay_out
    parts = {cls: SimpleNamespace(sparsity=sparsity, **known) for cls, known in attributes.items()}
    named = {cls.__name__: part for cls, part in parts.items()} | {"": sparsity}
    for name, value in changes.items():
        owner, _, attribute = name.rpartition(".")
        setattr(named[owner], attribute, value)
    return SimpleNamespace(
        structure=SimpleNamespace(part=parts.__getitem__, sparsity=sparsity),
        sparsity=sparsity,
        csr=csr,
        encoding=Encoding(compress, compress),
        values=values if compress else PLAIN,
        plain_values=PLAIN,
        compute=np.dtype(float),
        made=lambda name, make: shared,
        entries=(np.zeros(6, np.int32), np.ones(6)),
    )


@pytest.fixture(autouse=True)
def pattern_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let row patterns have the entries of the stand-in."""

    def entries(matrix: Any, patterns: Patterns, with_values: bool) -> Any:
        offsets, values = matrix.entries
        return offsets, values if with_values else None

    monkeypatch.setattr("gsparse.products.row_pattern._entries", entries)


NONE, SHARED, FULL = AnalysisLevel.NONE, AnalysisLevel.SHARED, AnalysisLevel.FULL
PATTERNS = Patterns(np.array([0, 1, 1], np.uint8), np.zeros(2, np.int64), np.zeros(3, np.int32), 6, (5, 8))
ROWS, CODED, NARROW = 4 * 21, 70 + 8 * 3, 2 * 70 + 4 * 3
MANY = replace(STATS, max_length=2**11)  # at 2**16 positions, far too much padding to be built
FOUR_PATTERNS = Storage("4 rows", "uint8 of 3", 96, 500 + 16 + 96 + 24, (3, 9))
DESCRIBED: dict[str, tuple[str, AnalysisLevel, Any, Storage | None]] = {
    "csr": ("csr_scalar", NONE, {}, Storage("int32", "float64", 70, ROWS + 12 * 70)),
    "csr, compared": ("csr_vector", SHARED, {}, Storage("uint16", "uint8 of 3", 70, ROWS + NARROW + CODED)),
    "csr, alone": ("csr_scalar", FULL, {}, Storage("uint16", "uint8 of 3", 70, ROWS + NARROW + CODED)),
    "csr, plain": ("csr_vector", FULL, {"compress": False}, Storage("int32", "float64", 70, ROWS + 12 * 70)),
    "ellpack": ("ellpack", NONE, {}, Storage("int32", "float64", 160, 12 * 160)),
    "ellpack, compared": ("ellpack", SHARED, {}, Storage("uint8", "uint8 of 3", 160, 160 + 4 * 5 + 160 + 24)),
    "ellpack, compared with sorted slices": (
        "ellpack",
        SHARED,
        {"SlicedRows.stats": SliceStats(96, 16, False)},
        Storage("int32", "uint8 of 3", 160, 4 * 160 + 160 + 24),
    ),
    "ellpack, compared with no slices": (
        "ellpack",
        SHARED,
        {"rows": replace(STATS, num_rows=2**31, max_length=2**31), "SlicedRows.stats": None},
        Storage("int32", "uint8 of 3", 2**36, 5 * 2**36 + 24),
    ),
    "ellpack, alone": ("ellpack", FULL, {}, Storage("uint16", "uint8 of 3", 160, 2 * 160 + 4 * 5 + 160 + 24)),
    "ellpack, plain": ("ellpack", FULL, {"compress": False}, Storage("int32", "float64", 160, 12 * 160)),
    "ellpack, small enough": (
        "ellpack",
        FULL,
        {"rows": MANY},
        Storage("uint16", "uint8 of 3", 2**16, 3 * 2**16 + 4 * 2**11 + 24),
    ),
    "ellpack, too large": (
        "ellpack",
        FULL,
        {"rows": replace(MANY, max_length=2**11 + 1)},
        Storage("int32", "uint8 of 3", 2**16 + 32, 5 * (2**16 + 32) + 24),
    ),
    "ellpack, hardly padded": (
        "ellpack",
        FULL,
        {"rows": replace(MANY, max_length=2**12, nnz=2**17 * 4 // 5)},
        Storage("int32", "uint8 of 3", 2**17, 5 * 2**17 + 24),
    ),
    "ellpack, as padded as may be": (
        "ellpack",
        FULL,
        {"rows": replace(MANY, max_length=2**12 * 5, nnz=2**19)},
        Storage("uint16", "uint8 of 3", 2**17 * 5, 3 * 2**17 * 5 + 4 * 2**12 * 5 + 24),
    ),
    "slices": ("blocked_ellpack", NONE, {}, Storage("int32", "float64", 96, 16 + 12 * 96)),
    "slices, looked at": (
        "blocked_ellpack",
        SHARED,
        {"SlicedRows.stats": SliceStats(90, 99, False)},
        Storage("uint8", "uint8 of 3", 90, 99 + 90 + 4 * 3 + 90 + 24),
    ),
    "slices, plain": (
        "blocked_ellpack",
        FULL,
        {"compress": False, "SlicedRows.stats": SliceStats(90, 99, False)},
        Storage("int32", "float64", 90, 99 + 12 * 90),
    ),
    "patterns, not looked at": ("row_pattern", NONE, {}, None),
    "patterns of few rows each": ("row_pattern", SHARED, {"RepeatedRows.are_many": False}, None),
    "patterns asked for": (
        "row_pattern",
        FULL,
        {"RepeatedRows.are_many": False},
        FOUR_PATTERNS,
    ),
    "too many patterns": ("row_pattern", FULL, {"RepeatedRows.stats": None}, None),
    "patterns": ("row_pattern", SHARED, {}, FOUR_PATTERNS),
    "patterns, plain": (
        "row_pattern",
        FULL,
        {"compress": False},
        Storage("4 rows", "float64", 96, 500 + 16 + 8 * 96, (3, 9)),
    ),
    "blocks of entries, not looked at": ("bsr", NONE, {}, None),
    "no blocks": ("bsr", SHARED, {"DenseBlocks.blocksize": (1, 1)}, None),
    "blocks of entries": (
        "bsr",
        SHARED,
        {},
        Storage("uint16 2x3", "uint8 of 3", 384, 24 + 128 + 4 * 2 + 384 + 24, values_per_column=6),
    ),
    "blocks of one entry, asked for": (
        "bsr",
        FULL,
        {"DenseBlocks.blocksize": (1, 1), "DenseBlocks.stats": BlockStats((1, 1), 64, 24, np.dtype(np.int32))},
        Storage("int32 1x1", "uint8 of 3", 64, 24 + 4 * 64 + 64 + 24),
    ),
    "blocks of entries, plain": (
        "bsr",
        FULL,
        {"compress": False},
        Storage("int32 2x3", "float64", 384, 24 + 4 * 64 + 8 * 384, values_per_column=6),
    ),
    "row lanes, not looked at": ("row_lanes", NONE, {}, None),
    "row lanes, on a CPU": (
        "row_lanes",
        SHARED,
        {"LanedRows.has_hubs": False, "device": SimpleNamespace(kind="cpu")},
        None,
    ),
    # 20 rows, one of them empty, have 19 lanes, which waste two positions each, and 20 of the 32 lanes of a slice.
    "row lanes, estimated": (
        "row_lanes",
        SHARED,
        {"LanedRows.has_hubs": False},
        Storage("uint16", "uint8 of 3", 70 + 2 * 19, 20 * (4 * 32 + 16) // 32 + 3 * (70 + 2 * 19) + 24),
    ),
    "row lanes, asked for": (
        "row_lanes",
        FULL,
        {"LanedRows.has_hubs": False, "LanedRows.stats": LaneStats(0, 80, 300)},
        Storage("uint16", "uint8 of 3", 80, 300 + 2 * 80 + 80 + 24),
    ),
    "row lanes, plain": (
        "row_lanes",
        FULL,
        {"LanedRows.has_hubs": False, "LanedRows.stats": LaneStats(0, 80, 300), "compress": False},
        Storage("int32", "float64", 80, 300 + 4 * 80 + 8 * 80),
    ),
    "hubs": ("row_lanes", SHARED, {}, Storage("uint16 75 %", "uint8 of 3", 80, 300 + 2 * 60 + 4 * 20 + 80 + 24)),
    "hubs of a matrix without entries": (
        "row_lanes",
        FULL,
        {"LanedRows.stats": LaneStats(0, 0, 16)},
        Storage("uint16 0 %", "uint8 of 3", 0, 16 + 24),
    ),
    "hubs, one position": (
        "row_lanes",
        FULL,
        {"LanedRows.stats": LaneStats(1, 0, 16)},
        Storage("uint16 100 %", "uint8 of 3", 1, 16 + 2 + 1 + 24),
    ),
    "patterns that share values": (
        "row_pattern",
        SHARED,
        {"shared": PATTERNS},
        Storage("2 rows", "2 rows", 70, 3 + 4 * 3 + 6 * 12, (5, 8)),
    ),
}


@pytest.mark.parametrize("case", DESCRIBED)
def test_a_format_describes_its_bytes(case: str) -> None:
    name, level, changes, expected = DESCRIBED[case]
    if expected is not None:
        has_bases = expected.columns.startswith("uint") and name != "row_lanes"
        has_codes = expected.values.startswith("uint")
        table_bytes = 3 * 8 * has_codes or 6 * (4 + 8) * (expected.values == "2 rows")
        expected = replace(expected, has_bases=has_bases, has_codes=has_codes, table_bytes=table_bytes)
    storage = find_format(name).describe(prepared(**changes), level)
    assert storage == expected
    assert storage is None or isinstance(storage.nbytes, int)


@pytest.mark.parametrize("compress", [True, False])
def test_the_schedules_of_csr_keep_its_order(compress: bool) -> None:
    matrix = prepared(compress)
    built = {name: find_format(name).build(matrix) for name in CSR}
    assert [stored.long_rows for stored in built.values()] == ["longer than 16", "longer than 32"]
    for stored in built.values():
        assert (stored.shape, stored.nnz, stored.values) == ((20, 50), 70, matrix.values)
        assert stored.indptr is matrix.sparsity.csr.indptr
        assert (stored.columns is matrix.structure.part(CsrRows).columns) is compress
        assert compress or stored.columns.codes is matrix.sparsity.csr.indices


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("name", "part"), [("ellpack", PaddedRows), ("blocked_ellpack", SlicedRows)])
def test_padded_formats_lay_out_columns_and_codes(name: str, part: type, compress: bool) -> None:
    matrix = prepared(compress)
    stored = find_format(name).build(matrix)
    assert (stored.shape, stored.nnz) == ((20, 50), 70)
    if compress:
        assert stored.columns is matrix.structure.part(part).columns
    else:
        assert stored.columns.codes == ("ellpack" if part is PaddedRows else "slices")
    assert stored.values.codes is LAID_OUT["slices" if name == "blocked_ellpack" else name]
    assert stored.values.table is matrix.values.table
    if name == "ellpack":
        assert (stored.width, stored.pitch) == (5, 32)
    else:
        assert stored.slices is SLICES


@pytest.mark.parametrize(
    ("name", "lays_out"),
    [("ellpack", "PaddedRows.lay_out"), ("blocked_ellpack", "lay_out"), ("row_pattern", "lay_out")],
)
def test_values_are_laid_out_once_with_zeros_as_padding(name: str, lays_out: str) -> None:
    calls: list[Any] = []
    matrix = prepared(**{lays_out: lambda *arguments: calls.append(arguments), "RepeatedRows.patterns": PATTERNS})
    find_format(name).build(matrix)
    assert len(calls) == 1
    assert calls[0][0] is CODES.codes
    assert calls[0][-1] == 0


@pytest.mark.parametrize("compress", [True, False])
def test_row_lanes_are_stored_at_the_positions_of_the_structure(compress: bool) -> None:
    matrix = prepared(compress)
    stored = find_format("row_lanes").build(matrix)
    assert (stored.shape, stored.nnz, stored.slices) == ((20, 50), 70, LANE_SLICES)
    assert stored.codes is LANE_CODES[0] and stored.columns is LANE_CODES[1]
    without_hubs = find_format("row_lanes").build(prepared(compress, **{"LanedRows.has_hubs": False}))
    assert without_hubs.columns == "columns as uint16" if compress else without_hubs.columns is LANE_CODES[1]
    assert stored.values.codes is LAID_OUT["slices"]
    assert stored.dtype == stored.values.dtype
    assert (LANE_SLICES.num_slices, LANE_SLICES.num_positions, stored.num_stored) == (2, 80, 80)
    assert np.iinfo(np.uint16).max == MAX_FREQUENT


@pytest.mark.parametrize("compress", [True, False])
def test_blocks_are_stored_at_the_positions_of_the_structure(compress: bool) -> None:
    matrix = prepared(compress)
    stored = find_format("bsr").build(matrix)
    assert (stored.shape, stored.nnz, stored.blocksize, stored.row_lanes) == ((20, 50), 70, (2, 1), 2)
    assert stored.slices is SLICES
    assert stored.num_stored == 96 * 2
    assert stored.columns is BLOCK_ROWS.columns if compress else stored.columns.codes == "plain"
    assert stored.values.codes is LAID_OUT["slices"]


def test_row_patterns_hold_values_once_where_rows_share_them() -> None:
    shared = find_format("row_pattern").build(prepared(shared=PATTERNS))
    assert (shared.pattern_values.size, shared.slices, shared.values, shared.common.code) == (6, None, None, 1)
    own = find_format("row_pattern").build(prepared(**{"RepeatedRows.patterns": PATTERNS}))
    assert (own.pattern_values, own.slices, own.common) == (None, SLICES, None)
    assert own.values.codes is LAID_OUT["slices"]
    with pytest.raises(FormatError, match="at most 4096 distinct rows"):
        find_format("row_pattern").build(prepared())


def test_row_patterns_take_the_most_common_row_of_a_sample() -> None:
    codes = np.zeros((64, 64, 64), np.uint8)
    codes[1:-1, 1:-1, 1:-1] = 1  # The points inside of a grid are the most.
    matrix = prepared(shared=replace(PATTERNS, codes=codes.ravel()))
    assert find_format("row_pattern").build(matrix).common.code == 1
    codes = codes.ravel()
    empty = prepared(shared=replace(PATTERNS, codes=codes[:0]))
    common = find_format("row_pattern").build(empty).common
    assert (common.code, common.masks.size, common.differs.size, common.offsets.size) == (0, 0, 0, 0)
    assert (common.first, common.span) == (0, 0)


@pytest.mark.parametrize(
    ("common", "masks"),
    [
        ([-9, -1, 0, 1, 9], [0b01110, 0b11111, 0, 0, 0b00001, 0, 0b10101, 0, 0]),
        (range(-16, 16), None),  # bit k stands for offset k - 16
        (range(-16, 17), [0] * 9),  # they are too many for the bits of a mask
        ([-9, 1, 0], [0] * 9),  # the offsets of the common pattern do not rise
        ([-9, 0, 0], [0] * 9),
        ([-9], [0, 0, 0, 0, 1, 0, 0, 0, 0]),
        ([5], [0] * 9),
        ([], [0] * 9),
    ],
    ids=["grid", "32", "33", "falling", "repeated", "equal", "one", "none"],
)
def test_masks_tell_which_patterns_are_parts_of_the_common_one(common: Sequence[int], masks: list[int] | None) -> None:
    others = [[-1, 0, 1], [-9, -1, 0, 1, 9], [], [0, -1], [-9], [0, 0], [-9, 0, 9], [0, 17], [-1, 2]]
    if masks is None:
        are_parts = [sorted(set(row)) == row and max(row, default=0) < 16 for row in others]
        sums = [sum(1 << (offset + 16) for offset in row) for row in others]
        masks = [mask if is_part else 0 for mask, is_part in zip(sums, are_parts, strict=True)]
    rows = [*others, list(common), []]
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    offsets = np.concatenate([np.array(row, np.int32) for row in rows])
    patterns = Patterns(np.full(100, 9, np.uint8), np.zeros(11, np.int64), indptr, offsets.size)
    matrix = prepared(shared=patterns)
    matrix.entries = offsets, np.zeros(offsets.size)
    built = find_format("row_pattern").build(matrix).common
    assert built.code == 9
    assert built.masks.dtype == np.uint32
    assert built.masks.tolist() == [*masks, 2**32 - 1, 0]
    assert built.span == max(map(abs, common), default=0)


def test_patterns_whose_values_are_not_those_of_the_common_one_are_marked() -> None:
    rows = [[0, 9], [-9, 0, 9], [-9, 0, 9], [], [0, 9], [0, 9], [0, 8], [-9, 0, 9]]
    values = [[4, 2], [1, 4, 2], [1, 4, 3], [], [4, 2], [5, 2], [4, 2], [1, np.nan, 2]]
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    patterns = Patterns(np.ones(100, np.uint8), np.zeros(8, np.int64), indptr, int(indptr[-1]))
    matrix = prepared(shared=patterns)
    matrix.entries = np.concatenate(rows).astype(np.int32), np.concatenate(values)
    built = find_format("row_pattern").build(matrix).common
    assert built.differs.tolist() == [0, 0, 1, 1, 0, 1, 1, 1]
    assert (built.offsets.tolist(), built.first) == ([-9, 0, 9], 2)


def test_row_patterns_alone_depend_on_the_columns() -> None:
    for name in NAMES:
        for stats in (None, PatternStats(4, 500, (3, 9))):
            structure = prepared(**{"RepeatedRows.stats": stats}).structure
            assert find_format(name).accepts(structure) is (name != "row_pattern" or stats is not None)
