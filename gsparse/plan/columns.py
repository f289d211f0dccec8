"""The choice of a launch for k dense columns: row statistics and the layout of X → a launch with its reason.

A *tile* is a set of columns of X which one group of lanes multiplies. For each entry of A, a lane reads its columns of
X with one or two loads, or with up to four if X is column-major. With fewer loads per lane, a tile needs more lanes, so
more threads run; but each of these threads reads every entry of A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gsparse.formats.launch import LANE_BYTES, Panel, PanelLaunch
from gsparse.formats.row_stats import RowStats
from gsparse.plan.cost_model import MachineModel

# A product with several columns may read dense blocks or row patterns instead of CSR. The choice between them is made
# once per matrix, as if every product had this number of columns.
_TYPICAL_COLUMNS = 8

# The constants of this file were measured on an H200 with `asv_bench/measure_columns.py`. On average, the chosen launch
# was within 3 % of the best one. At worst, it was 26 % slower.

# Largest width of a tile. The width is the number of loads that all lanes of the tile together make for one entry of A.
_MAX_TILE_LOADS = 64
# With two loads per lane, half as many threads run. A lane makes two loads if at least this number of threads remains:
# _TWO_LOADS_THREADS, or _TWO_LOADS_WIDE_THREADS for tiles of the largest width.
_TWO_LOADS_THREADS = 2**19
_TWO_LOADS_WIDE_THREADS = 2**18
# Largest width of a tile if rows are not even (see _MAX_EVEN_RATIO), the typical row length is at least _NARROW_LENGTH,
# and nnz is at least _NARROW_ENTRIES. Then the rows of X that are read most often stay in the cache. Lanes of tiles of
# this width make two loads. (With fewer entries, such tiles made a product 60 % slower.)
_NARROW_TILE = 16
_NARROW_LENGTH, _NARROW_ENTRIES = 12.0, 2**18
# The last tile may have lanes without a column. If all tiles together make more than _MAX_IDLE times the loads that the
# columns need, the width of a tile is halved, but not below _MIN_TILE_LOADS.
_MIN_TILE_LOADS = 8
_MAX_IDLE = 1.34
# If X is column-major, a lane makes up to _STRIDED_LOADS loads, and at most _STRIDED_LANES lanes share the columns:
# with more lanes per row, a warp would have fewer rows, and its reads of X and writes of Y would be less coalesced.
_STRIDED_LANES, _STRIDED_LOADS = 2, 4
# The width of tiles for row patterns. Their entries come from a table in the first-level cache, so it costs next to
# nothing that more tiles or more lanes read them, and nothing is gained if several lanes share a row's entries.
_PATTERN_TILE = 32
# Smallest number of entries per lane, largest number of lanes per row, and number of threads that fill a device.
_ENTRIES_PER_LANE = 4.0
_MAX_ENTRY_LANES = 16
_DEVICE_THREADS = 2**17
# The kernel cuts rows with more entries than this into chunks. There are three cases:
_LONG_EVEN = 1024  # row lengths are similar, so that no row delays the others
_LONG_ONE_LANE = 32  # else, if one lane multiplies all entries of a row, and fewer than _MANY_THREADS threads run
_LONG_UNEVEN = 64  # in all other cases
# If rows are sorted by length and there are more threads than this, one lane multiplies all entries of a row.
_MANY_THREADS = 2**20
# Row lengths are similar (even) if the longest row has at most _MAX_EVEN_RATIO times the typical length, and the
# typical length is at most _MAX_EVEN_LENGTH.
_MAX_EVEN_RATIO = 2.0
_MAX_EVEN_LENGTH = 128


@dataclass(frozen=True)
class ColumnsPlan:
    """How a product with k dense columns runs, and why.

    Attributes
    ----------
    launch : PanelLaunch
        The launch on a GPU.
    reason : str
        Why this launch is chosen.
    panel : Panel
    stats : RowStats
    reads : str
        The arrays of A that the product reads, in words: CSR, row patterns, or blocks.
    on_cpu : bool
        Whether the product runs on a CPU. The text of the plan then says so.
    """

    launch: PanelLaunch
    reason: str
    panel: Panel
    stats: RowStats
    reads: str
    on_cpu: bool = False

    def __str__(self) -> str:
        panel, launch = self.panel, self.launch
        layout = "column-major" if panel.by_columns else "row-major"
        reason = self.reason
        if self.on_cpu:
            reason = f"each thread multiplies its rows with all columns\non a GPU: {reason}"
        by_length = ", neighbouring lanes take rows of similar lengths" if launch.by_length else ""
        return (
            f"csr_spmm of {self.reads} for {panel.num_columns} columns, {layout}: {reason}\n"
            f"tiles of {launch.tile} columns: {launch.column_lanes} lanes with {launch.loads} loads of "
            f"{launch.columns_per_load}, {launch.entry_lanes} lanes share a row's entries, rows of more than "
            f"{launch.long_length} entries are cut into chunks{by_length}"
        )


def plan_columns(
    stats: RowStats,
    panel: Panel,
    *,
    lanes: int,
    value_bytes: int,
    values: str = "",
    num_patterns: int = 0,
    block: int = 0,
) -> ColumnsPlan:
    """Choose the launch for the product of a matrix with an X whose layout is `panel`.

    Parameters
    ----------
    stats : RowStats
    panel : Panel
    lanes : int
        Number of threads in a warp.
    value_bytes : int
        Size of an element of X and Y.
    values : str, optional
        The dtype of the stored values, for the text of the plan; "" leaves it out.
    num_patterns : int, optional
        Number of row patterns (`RowPattern`), if the product reads these instead of CSR; otherwise 0.
    block : int, optional
        Number of rows of a square block (`Bsr`), if the product reads these instead of CSR; otherwise 0.

    Examples
    --------
    >>> even = RowStats(10**6, 10**6, 7 * 10**6, 5, 7, 7.0, 0.2, 0, 7 * 10**6)
    >>> print(plan_columns(even, Panel(64, 4), lanes=32, value_bytes=4))
    csr_spmm of CSR for 64 columns, row-major: 2 loads per thread; row lengths are similar
    tiles of 64 columns: 8 lanes with 2 loads of 4, 1 lanes share a row's entries, rows of more than 1024 entries are \
cut into chunks
    """
    units = -(-panel.num_columns // panel.pack)
    varies = stats.max_length > _MAX_EVEN_RATIO * stats.typical_length
    is_even = not varies and stats.typical_length <= _MAX_EVEN_LENGTH
    most_loads, from_table = LANE_BYTES // (panel.pack * value_bytes), num_patterns > 0
    if block:
        column_lanes, loads = _block_shape(stats, units, lanes, most_loads, block)
    elif panel.by_columns:
        column_lanes, loads = _strided_shape(units, most_loads)
    else:
        column_lanes, loads = _shape(stats, units, lanes, most_loads, from_table, is_even)
    tiles = -(-units // (column_lanes * loads))
    threads = stats.num_rows * column_lanes * tiles
    by_length = varies and not (from_table or block or panel.by_columns)
    reason = (
        f"{'one load' if loads == 1 else f'{loads} loads'} per thread; "
        f"{'row lengths are similar' if is_even else 'row lengths vary'}"
    )
    is_one = block or (by_length and threads >= _MANY_THREADS)
    entry_lanes = 1 if is_one else _entry_lanes(stats, column_lanes, tiles, lanes, from_table)
    is_short = entry_lanes == 1 and threads < _MANY_THREADS
    long_length = _LONG_EVEN if is_even else _LONG_ONE_LANE if is_short else _LONG_UNEVEN
    launch = PanelLaunch(panel.pack, loads, column_lanes, entry_lanes, long_length, by_length)
    reads = f"CSR, {values}" if values else "CSR"
    if from_table or block:
        reads = f"{num_patterns} row patterns" if from_table else f"{block}x{block} blocks, {values}"
    return ColumnsPlan(launch, reason, panel, stats, reads)


def launch_for(stats: RowStats, panel: Panel, **options: Any) -> PanelLaunch:
    """Return the launch that `plan_columns` chooses."""
    return plan_columns(stats, panel, **options).launch


def seconds_per_columns(
    model: MachineModel, nbytes: float, num_reads: float, value_bytes: int, threads: int = 1
) -> float:
    """Predict the part of the seconds of a product with 8 columns that depends on the stored arrays of the matrix.

    Parameters
    ----------
    model : MachineModel
    nbytes : float
        Bytes of the matrix.
    num_reads : float
        Number of times that a row of X is read: once for each entry, or once for all rows of a block.
    value_bytes : int
        Size of an element of X.
    threads : int, optional
        Number of threads of a CPU that share the product; 1 for a GPU.

    Examples
    --------
    >>> from gsparse.plan.cost_model import GPU_MODEL
    >>> csr, blocks = (seconds_per_columns(GPU_MODEL, *reads, 8) for reads in ((12e6, 1e6), (8.5e6, 1e6 / 3)))
    >>> round(csr / blocks, 2)
    1.62
    """
    gathered = num_reads * _TYPICAL_COLUMNS * value_bytes
    return nbytes * model.column_byte + gathered * model.column_gather / threads


def _shape(
    stats: RowStats, units: int, lanes: int, most_loads: int, from_table: bool, is_even: bool
) -> tuple[int, int]:
    """Return the number of lanes of a tile and the loads per lane. One row of X takes `units` loads in all."""
    is_narrow = not is_even and stats.typical_length >= _NARROW_LENGTH and stats.nnz >= _NARROW_ENTRIES
    widest, narrowest_with_two = (_NARROW_TILE, 8) if is_narrow else (_MAX_TILE_LOADS, 4)
    if from_table:
        widest, narrowest_with_two = _PATTERN_TILE, 2
    width = _tile_width(units, widest)
    threads = stats.num_rows * (width // 2) * -(-units // width)
    allows_two = threads >= (_TWO_LOADS_THREADS if width < _MAX_TILE_LOADS else _TWO_LOADS_WIDE_THREADS)
    allows_two = allows_two or (is_narrow and width == _NARROW_TILE)
    loads = 2 if allows_two and width >= narrowest_with_two and most_loads > 1 else 1
    return min(width // loads, lanes), loads


def _strided_shape(units: int, most_loads: int) -> tuple[int, int]:
    """Return the number of lanes of a tile, and the loads per lane, for a column-major X."""
    width = _power_above(units)
    loads = min(width, most_loads, _STRIDED_LOADS)
    return min(width // loads, _STRIDED_LANES), loads


def _block_shape(stats: RowStats, units: int, lanes: int, most_loads: int, block: int) -> tuple[int, int]:
    """Return the number of lanes of a tile, and the loads per lane, if the product reads blocks.

    A lane computes all rows of a block. With two loads per lane, a tile has half as many lanes, and each lane reads a
    value of A for twice as many columns.
    """
    width = _tile_width(units, _MAX_TILE_LOADS)
    threads = stats.num_rows // block * (width // 2) * -(-units // width)
    loads = 2 if most_loads > 1 and threads >= _DEVICE_THREADS else 1
    return min(width // loads, lanes), loads


def _tile_width(units: int, widest: int) -> int:
    """Return the number of loads that a tile makes for one entry: a power of two of which few have no column."""
    width = min(_power_above(units), widest)
    while width > _MIN_TILE_LOADS and -(-units // width) * width > _MAX_IDLE * units:
        width //= 2
    return width


def _power_above(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def _entry_lanes(stats: RowStats, column_lanes: int, tiles: int, lanes: int, from_table: bool) -> int:
    """Return the number of lanes that share a row's entries: more for longer rows, and if few rows leave lanes idle."""
    length = stats.typical_length
    filling = min(length, _DEVICE_THREADS / max(stats.num_rows * column_lanes * tiles, 1))
    by_length = 0.0 if from_table else length / _ENTRIES_PER_LANE / column_lanes
    entry_lanes = int(max(by_length, filling))
    return min(max(1, 1 << entry_lanes.bit_length() >> 1), lanes // column_lanes, _MAX_ENTRY_LANES)
