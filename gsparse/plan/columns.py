"""The choice of a launch for k dense columns: row statistics and X's layout → a launch with its reason (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gsparse.formats.launch import FEW_PLACES, LANE_BYTES, Panel, PanelLaunch
from gsparse.formats.row_stats import RowStats

__all__ = ["ColumnsPlan", "launch_for", "plan_columns"]

# Measured on an H200 (31 matrices of 1e5 to 8e6 entries, 2 to 128 columns, all launches of
# `python -m gsparse bench --columns … --launches row-major`): within 3 % of the best launch in the mean, 26 % at worst.

# Accesses to X of a tile at most: lanes for columns times accesses of a lane.
_TILE = 64
# A lane has two accesses where so many threads are left: half the lanes then read each entry. A tile of all lanes takes
# fewer.
_MANY_THREADS = 2**19
_MANY_WIDE_THREADS = 2**18
# So does a tile of so many lanes where rows differ in length, mostly have so many entries, and are not few: on half the
# lanes, long rows' chunks are taken by warps (two of 31 matrices by 12 to 24 %; with fewer entries 60 % slower).
_HALVED_TILE = 16
_HALVED_LENGTH, _HALVED_ENTRIES = 12.0, 2**18
# A tile has fewer lanes, down to so many, where else more than a quarter of all would have no columns.
_FEWEST_LANES = 8
_MAX_IDLE = 1.34
# Under a column-major X a lane has as many accesses as it may, and few lanes have columns of their own: with fewer rows
# a warp, reads of X and writes of Y would be scattered further.
_STRIDED_LANES, _STRIDED_LOADS = 2, 4
# Row patterns: entries come from a table in the first cache, so reading them again for another tile, or by twice the
# lanes, costs next to nothing, and sharing them out gains nothing (7 and 27 points on 128³, 2 to 128 columns).
_PATTERN_TILE = 32
# Entries that a lane should have at least, lanes of a row at most, and threads that fill a device.
_ENTRIES_PER_LANE = 4.0
_MAX_ENTRY_LANES = 16
_FILL = 2**17
# Rows are cut into chunks from these lengths on: one lane a column walks a row, and warps take chunks; several share
# it, or blocks take chunks; all are so much alike (against their typical length, which is not long) that none holds
# others up.
_LONG_ALONE, _LONG_SHARED, _LONG_ALIKE = 32, 64, 1024
_ALIKE = 2.0
_TYPICAL = 128


@dataclass(frozen=True)
class ColumnsPlan:
    """How a product with k dense columns runs on a GPU, and why.

    Attributes
    ----------
    launch : PanelLaunch
    reason : str
    panel : Panel
    stats : RowStats
    reads : str
        What of A is read.
    """

    launch: PanelLaunch
    reason: str
    panel: Panel
    stats: RowStats
    reads: str

    def __str__(self) -> str:
        panel, launch = self.panel, self.launch
        layout = "column-major" if panel.by_columns else "row-major"
        return (
            f"csr_spmm of {self.reads} for {panel.num_columns} columns, {layout}: {self.reason}\n"
            f"tiles of {launch.tile} columns: {launch.column_lanes} lanes with {launch.loads} accesses of "
            f"{launch.columns_per_load}, {launch.entry_lanes} lanes share a row's entries, rows of more than "
            f"{launch.long_length} entries are cut into chunks"
        )


def plan_columns(
    stats: RowStats, panel: Panel, *, lanes: int, value_bytes: int, values: str = "", num_patterns: int = 0
) -> ColumnsPlan:
    """Choose how to multiply a matrix with these rows by such an X.

    Parameters
    ----------
    stats : RowStats
    panel : Panel
    lanes : int
        Threads of a warp.
    value_bytes : int
        Size of an element of X and Y.
    values : str, optional
        How CSR's values are written down, for the table.
    num_patterns : int, optional
        Rows that are read in place of A's, which all follow one of them (`RowPattern`); 0: CSR is read.

    Examples
    --------
    >>> even = RowStats(10**6, 10**6, 7 * 10**6, 5, 7, 7.0, 0.2, 0, 7 * 10**6)
    >>> print(plan_columns(even, Panel(64, 4), lanes=32, value_bytes=4))
    csr_spmm of CSR for 64 columns, row-major: threads enough for two accesses each; rows are alike
    tiles of 64 columns: 8 lanes with 2 accesses of 4, 1 lanes share a row's entries, rows of more than 1024 entries \
are cut into chunks
    """
    units = -(-panel.num_columns // panel.pack)
    is_even = stats.max_length <= _ALIKE * stats.typical_length and stats.typical_length <= _TYPICAL
    most_loads, from_table = LANE_BYTES // (panel.pack * value_bytes), num_patterns > 0
    if panel.by_columns:
        column_lanes, loads = _strided_shape(units, most_loads)
    else:
        column_lanes, loads = _shape(stats, units, lanes, most_loads, from_table, is_even)
    tiles = -(-units // (column_lanes * loads))
    entry_lanes = _entry_lanes(stats, column_lanes, tiles, lanes, from_table)
    alone = entry_lanes == 1 and lanes // column_lanes > FEW_PLACES
    long_length = _LONG_ALIKE if is_even else _LONG_ALONE if alone else _LONG_SHARED
    reason = (
        f"{'threads enough for' if loads > 1 else 'more threads rather than'} two accesses each; "
        f"{'rows are alike' if is_even else 'rows differ in length'}"
    )
    launch = PanelLaunch(panel.pack, loads, column_lanes, entry_lanes, long_length)
    reads = f"{num_patterns} row patterns" if from_table else f"CSR, {values}" if values else "CSR"
    return ColumnsPlan(launch, reason, panel, stats, reads)


def launch_for(stats: RowStats, panel: Panel, **options: Any) -> PanelLaunch:
    """Give the launch that `plan_columns` chooses."""
    return plan_columns(stats, panel, **options).launch


def _shape(
    stats: RowStats, units: int, lanes: int, most_loads: int, from_table: bool, is_even: bool
) -> tuple[int, int]:
    """Give the lanes for so many accesses to a row of X, and how many of them a lane has."""
    widest, narrowest_with_two = (_PATTERN_TILE, 2) if from_table else (_TILE, 4)
    width = min(_power_above(units), widest)
    while width > _FEWEST_LANES and -(-units // width) * width > _MAX_IDLE * units:
        width //= 2
    threads = stats.num_rows * (width // 2) * -(-units // width)
    enough = threads >= (_MANY_THREADS if width < _TILE else _MANY_WIDE_THREADS)
    is_long = stats.typical_length >= _HALVED_LENGTH and stats.nnz >= _HALVED_ENTRIES
    enough = enough or (width == _HALVED_TILE and not is_even and is_long)
    loads = 2 if enough and width >= narrowest_with_two and most_loads > 1 else 1
    return min(width // loads, lanes), loads


def _strided_shape(units: int, most_loads: int) -> tuple[int, int]:
    """Give the same for a column-major X."""
    width = _power_above(units)
    loads = min(width, most_loads, _STRIDED_LOADS)
    return min(width // loads, _STRIDED_LANES), loads


def _power_above(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _entry_lanes(stats: RowStats, column_lanes: int, tiles: int, lanes: int, from_table: bool) -> int:
    """Give the lanes that share a row's entries: enough for its length, more where rows are too few for the device."""
    length = stats.typical_length
    filling = min(length, _FILL / max(stats.num_rows * column_lanes * tiles, 1))
    by_length = 0.0 if from_table else length / _ENTRIES_PER_LANE / column_lanes
    wanted = int(max(by_length, filling))
    return min(max(1, 1 << wanted.bit_length() >> 1), lanes // column_lanes, _MAX_ENTRY_LANES)
