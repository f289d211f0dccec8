"""The choice of a schedule for k dense columns: row statistics and X's layout → a launch with its reason (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any

from gsparse.kernels import DEFAULT_THREADS_PER_BLOCK, STRIDED_COLUMNS, Panel, PanelLaunch
from gsparse.plan import RowStats

__all__ = ["ColumnsPlan", "launch_for", "plan_columns"]

# What follows is reasoned, from times of throw-away kernels on an H200, and not yet fitted to times of these:
# python -m gsparse bench --columns 8,64 --launches row-major.
# Lanes with columns of their own that a row has at most under a column-major X: with fewer rows a warp, reads of X and
# writes of Y would be scattered further.
_STRIDED_LANES = 4
# A tile has fewer lanes than it could, down to so many, where else more than a quarter of all would have no columns.
_FEWEST_LANES = 8
_MAX_IDLE = 1.34
# Entries that a lane should have at least, and threads that fill a device (as for csr_vector, `gsparse.plan`).
_ENTRIES_PER_LANE = 6.0
_FILL = 2**17
# Lanes of a row that read its entries together from so many on: each entry is read once instead of once a lane.
_CACHING_LANES = 4
# Entries and row ends of a group's share: the more, the less it takes to find where they begin; but parts have to fill
# the device a few times over.
_SHARES = (64, 32)
_SHARES_PER_LANE = 8
_MANY_PARTS = 2048
_SPLIT_THREADS = 256
# Bytes of X that the cache gives a second, and seconds until a batch of entries is there: an H200.
_GATHERED = 5e12
_LATENCY = 0.7e-6
_BATCH = 4
# Equal parts beat whole rows where lanes would idle so many times as long as they work, or where the longest row takes
# such a share of the product's time and is so much longer than others, or rows are too few for the device.
_MAX_WASTE = 1.75
_MAX_PATH = 0.5
_MAX_OUTLIER = 2.0
_FEW_THREADS = _FILL // 4
# Seconds that equal parts take more, however small the matrix, and any product.
_FIXED = 6e-6


@dataclass(frozen=True)
class ColumnsPlan:
    """How a product with k dense columns runs on a GPU, and why.

    Attributes
    ----------
    launch : PanelLaunch
    reason : str
    panel : Panel
    stats : RowStats
    waste : float
        Time of a warp over what its lanes would need, were all rows of one length.
    path : float
        Predicted share of the longest row's time in the product's, by whole rows.
    """

    launch: PanelLaunch
    reason: str
    panel: Panel
    stats: RowStats
    waste: float
    path: float

    def __str__(self) -> str:
        panel, launch = self.panel, self.launch
        layout = "column-major" if panel.by_columns else "row-major"
        shared = (
            f"{launch.entry_lanes} entry lanes"
            if launch.schedule == "rows"
            else f"{launch.share} entries and row ends a group"
        )
        cached = "cached, " if launch.cached else ""
        return (
            f"{launch.schedule} for {panel.num_columns} columns, {layout}: {self.reason}\n"
            f"{launch.column_lanes} lanes of {launch.columns_per_lane} columns, {cached}{shared}; "
            f"waste {self.waste:.2f}, longest row {self.path:.2f} of the product"
        )


def plan_columns(
    stats: RowStats,
    panel: Panel,
    *,
    lanes: int,
    value_bytes: int,
    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK,
    schedule: str = "auto",
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
    threads_per_block : {128, 256, 512}
    schedule : {"auto", "rows", "split"}

    Examples
    --------
    >>> even = RowStats(10**6, 10**6, 7 * 10**6, 5, 7, 7.0, 0.2, 0, 7 * 10**6)
    >>> print(plan_columns(even, Panel(64, 4), lanes=32, value_bytes=4))
    rows for 64 columns, row-major: rows are even enough
    16 lanes of 4 columns, cached, 1 entry lanes; waste 1.00, longest row 0.00 of the product
    """
    per_lane = STRIDED_COLUMNS[value_bytes] if panel.by_columns else panel.pack
    column_lanes = _column_lanes(-(-panel.num_columns // per_lane), _STRIDED_LANES if panel.by_columns else lanes)
    tiles = -(-panel.num_columns // (per_lane * column_lanes))
    entry_lanes = _entry_lanes(stats, column_lanes, tiles, lanes)
    waste, path = (
        _waste(stats, lanes // (column_lanes * entry_lanes), lanes),
        _path(stats, panel, value_bytes, entry_lanes),
    )
    if schedule == "auto":
        threads = stats.num_rows * column_lanes * entry_lanes * tiles
        schedule, reason = _schedule(stats, threads, waste, path)
    else:
        reason = "asked for"
    share = _share(stats, column_lanes, tiles)
    cached = column_lanes >= _CACHING_LANES
    launch = (
        PanelLaunch("rows", per_lane, column_lanes, entry_lanes, cached, threads_per_block=threads_per_block)
        if schedule == "rows"
        else PanelLaunch("split", per_lane, column_lanes, cached=cached, share=share)
    )
    return ColumnsPlan(launch, reason, panel, stats, waste, path)


def launch_for(stats: RowStats, panel: Panel, **options: Any) -> PanelLaunch:
    """Give the launch that `plan_columns` chooses."""
    return plan_columns(stats, panel, **options).launch


def _schedule(stats: RowStats, threads: int, waste: float, path: float) -> tuple[str, str]:
    if waste > _MAX_WASTE:
        return "split", f"by rows lanes would take {waste:.1f} times as long as they work"
    stands_out = stats.max_length > _MAX_OUTLIER * stats.typical_length or threads < _FEW_THREADS
    if path > _MAX_PATH and stands_out:
        return "split", f"the longest row alone would take {path:.1f} of the time"
    return "rows", "rows are even enough"


def _column_lanes(wanted: int, most: int) -> int:
    """Give the lanes for so many groups of columns: as many as a tile may have, unless too many would idle."""
    found = min(1 << (wanted - 1).bit_length(), most)
    while found > _FEWEST_LANES and -(-wanted // found) * found > _MAX_IDLE * wanted:
        found //= 2
    return found


def _entry_lanes(stats: RowStats, column_lanes: int, tiles: int, lanes: int) -> int:
    """Give the lanes that share a row's entries: enough for its length, more where rows are too few for the device."""
    length = stats.typical_length
    filling = min(length, _FILL / max(stats.num_rows * column_lanes * tiles, 1))
    wanted = int(max(length / _ENTRIES_PER_LANE / column_lanes, filling))
    return min(max(1, 1 << wanted.bit_length() >> 1), lanes // column_lanes)


def _share(stats: RowStats, column_lanes: int, tiles: int) -> int:
    work = (stats.nnz + stats.num_rows) * column_lanes * tiles / _SPLIT_THREADS
    return min(next((n for n in _SHARES if work / n >= _MANY_PARTS), _SHARES[-1]), _SHARES_PER_LANE * column_lanes)


def _waste(stats: RowStats, rows_a_warp: int, lanes: int) -> float:
    """Estimate what padding to the longest of a warp's rows costs, between that of `lanes` rows and that of one."""
    return 1 + (1 / max(stats.efficiency, 1e-3) - 1) * log2(rows_a_warp) / log2(lanes)


def _path(stats: RowStats, panel: Panel, value_bytes: int, entry_lanes: int) -> float:
    whole = _FIXED + stats.nnz * panel.num_columns * value_bytes / _GATHERED
    return _LATENCY * stats.max_length / entry_lanes / _BATCH / whole
