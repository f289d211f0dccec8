"""Row lanes as a storage format: find out whether a matrix has hubs, and store its entries.

`gsparse.formats.row_lanes` describes the arrays and defines hubs, frequent and rare columns.
"""

from __future__ import annotations

from functools import cached_property
from math import exp
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, LaneSlices, RowLanes, padding_code
from gsparse.formats.costs import MICROSECOND, KernelModel
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.registry import AnalysisLevel, Storage, StorageFormat
from gsparse.formats.row_stats import NUMBERED_IN_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Part, releasable, scratch

# Largest number of columns that get numbers in uint16. Its largest value marks padding and rare columns.
MAX_FREQUENT = 65_535
_RARE = padding_code(np.uint16)
# For matrices with and without hubs: (a, n). A lane has on average at most a entries, or nnz / n if that is more.
# With n lanes, all lanes of a GPU have work until the end. For 28 matrices without hubs on an H200, n = 90,000 is
# faster than 60,000 and 135,000, and a = 8 is faster than 16, 32 and 48.
_WITH_HUBS, _WITHOUT_HUBS = (16, 2**18), (8, 90_000)
# Number of positions that a GPU lane reads with one instruction, in matrices without hubs.
_GROUP = 4
# Rows have about the same length if the standard deviation is at most this part of the mean.
_EVEN = 0.25
# Only matrices with at least these numbers of entries and columns are examined for hubs: smaller ones gain less than
# the additional launch takes, and their x stays in the first-level cache.
_MIN_ENTRIES, _MIN_COLUMNS = 2_000_000, 2**17
# Constants of the sample of entries that decides whether a matrix has hubs. The share of sampled entries in columns
# that occur more than once must exceed what equally long columns would give by _MIN_SHARE (R-MAT graphs: 0.4 to 0.5),
# and there must be at least _MIN_HUBS such columns, more than the first-level cache holds. If more than _MAX_NEIGHBOURS
# of the entries are within 32 bytes of x of the entry before them, gathers are fast without hubs.
_SAMPLE, _MIN_SHARE, _MIN_HUBS = 2**16, 0.25, 4096
_MAX_NEIGHBOURS, _SECTOR = 0.25, 4


class LaneStats(NamedTuple):
    """Sizes of the arrays of `LaneSlices`, which remain known after the arrays have been freed."""

    num_frequent_positions: int
    num_rare_positions: int
    nbytes: int


class LanedRows(Part):
    """Whether the matrix has hubs, and the arrays that say which columns are frequent and where entries are stored."""

    @cached_property
    def has_hubs(self) -> bool:
        """Whether products with hub columns are expected to be faster on a GPU.

        A kernel with hub columns keeps the elements of x for the most frequent columns in fast memory. This pays if a
        few columns hold most of the entries, which a sample shows. The sample is the same each time. Synchronizes if
        the matrix is large.
        """
        device, csr = self.sparsity.device, self.sparsity.csr
        if csr.nnz < _MIN_ENTRIES or csr.num_cols < _MIN_COLUMNS or _sums_whole_rows(device):
            return False
        step = (csr.nnz - 1) // _SAMPLE
        sample = csr.indices[: step * _SAMPLE].reshape(_SAMPLE, step)[:, :2]
        columns = device.download(sample)  # synchronizes
        if np.mean(columns[:, 0] // _SECTOR == columns[:, 1] // _SECTOR) > _MAX_NEIGHBOURS:
            return False
        counts = np.unique_counts(columns[:, 0]).counts
        repeated = counts[counts > 1]
        share, evenly = repeated.sum() / _SAMPLE, 1 - exp(-_SAMPLE / csr.num_cols)
        return bool(share - evenly >= _MIN_SHARE and repeated.size >= _MIN_HUBS)

    @property
    def most_steps(self) -> int:
        """The largest average number of entries of a lane. Several lanes share a row with more entries."""
        if _sums_whole_rows(self.sparsity.device):
            return NO_LIMIT
        fewest, num_lanes = _WITH_HUBS if self.has_hubs else _WITHOUT_HUBS
        return max(fewest, self.sparsity.csr.nnz // num_lanes)

    @cached_property
    def stats(self) -> LaneStats:
        """Sizes of the slices. They remain known after the slices have been freed. Synchronizes."""
        slices = self.slices
        return LaneStats(slices.num_frequent_positions, slices.num_rare_positions, slices.nbytes)

    @releasable
    def slices(self) -> LaneSlices:
        """The frequent columns, and the slices in which the entries of rows are stored. Synchronizes."""
        device, csr = self.sparsity.device, self.sparsity.csr
        xp, width, num_rows = device.xp, device.lanes, csr.num_rows
        frequent, numbers = _frequent_columns(device, csr) if self.has_hubs else (xp.empty(0, np.int32), None)
        group = _GROUP if numbers is None and not _sums_whole_rows(device) else 1
        steps = self.most_steps
        order, lanes, frequent_steps, rare_steps = kernels_of(device).layout.lane_rows(device, csr, numbers, steps)
        rare_steps = -(-rare_steps // group) * group
        sorted_lanes = lanes[order]
        places_in_order, num_slices, num_long_slices = _places(device, sorted_lanes)

        rows, places = xp.full(num_slices * width, -1, np.int32), xp.empty(num_rows, np.int64)
        rows[places_in_order] = order
        places[order] = places_in_order
        # For each slice, the row to which its first lane belongs.
        first_rows = xp.searchsorted(places_in_order, xp.arange(num_slices) * width, side="right") - 1
        lanes_of_slices = sorted_lanes[first_rows]
        offsets = []
        for of_rows in (frequent_steps, rare_steps):
            at_lanes = xp.zeros(num_slices * width, np.int64)
            at_lanes[places] = of_rows
            of_slices = at_lanes.reshape(-1, width).max(axis=1)
            of_slices[:num_long_slices] = of_rows[order[first_rows[:num_long_slices]]]
            offsets.append(xp.zeros(num_slices + 1, np.int64))
            offsets[-1][1:] = xp.cumsum(of_slices * width)
        num_frequent_positions, num_rare_positions = (int(device.download(o[-1:])[0]) for o in offsets)  # synchronizes
        return LaneSlices(
            slice_size=width,
            group=group,
            frequent=frequent,
            numbers=numbers,
            places=places,
            rows=rows,
            lanes=lanes_of_slices.astype(np.int32),
            first_slices=(places_in_order[first_rows] // width).astype(np.int32),
            frequent_offsets=offsets[0],
            rare_offsets=offsets[1],
            num_frequent_positions=num_frequent_positions,
            num_rare_positions=num_rare_positions,
            num_long_slices=num_long_slices,
            is_even=self.sparsity.rows.std_length <= _EVEN * self.sparsity.rows.mean_length and not num_long_slices,
        )

    @releasable
    def placed_columns(self) -> tuple[Array, Array]:
        """The number of the frequent column at each frequent position, and the rare column at each rare position."""
        xp, slices, csr = self.sparsity.device.xp, self.slices, self.sparsity.csr
        if slices.numbers is None:
            dtype = np.dtype(np.uint16 if csr.num_cols <= MAX_FREQUENT else np.int32)
            return xp.empty(0, np.uint16), self.rare_columns(dtype)
        codes = xp.full(slices.num_positions, _RARE, np.uint16)
        codes[self._positions] = slices.numbers[csr.indices]
        return codes[: slices.num_frequent_positions].copy(), self.rare_columns(np.dtype(np.int32))

    def rare_columns(self, dtype: np.dtype[Any]) -> Array:
        """Return the columns at the rare positions."""
        columns = self.sparsity.device.xp.full(self.slices.num_positions, padding_code(dtype), dtype)
        columns[self._positions] = self.sparsity.csr.indices
        end = self.slices.num_frequent_positions
        return columns[end:].copy() if end else columns

    def lay_out(self, items: Array) -> Array:
        """Arrange items from CSR's order in the order of positions; padding receives zeros."""
        placed = self.sparsity.device.xp.zeros(self.slices.num_positions, items.dtype)
        placed[self._positions] = items
        return placed

    @scratch
    def _positions(self) -> Array:
        """The position of each entry, in CSR's order."""
        device, csr = self.sparsity.device, self.sparsity.csr
        return kernels_of(device).layout.lane_positions(device, csr, self.slices)


def _frequent_columns(device: Device, csr: Csr) -> tuple[Array, Array]:
    """Return the frequent columns in the order of their numbers, and the number of each column. Synchronizes."""
    xp = device.xp
    counts = kernels_of(device).sparse_rows.count_numbers(device, csr.indices, csr.num_cols)
    num_frequent = min(
        MAX_FREQUENT, kernels_of(device).reductions.count_where(device, counts, "not zero")
    )  # synchronizes
    frequent = xp.argsort(-counts, kind="stable")[:num_frequent].astype(np.int32)
    numbers = xp.full(csr.num_cols, _RARE, np.uint16)
    numbers[frequent] = xp.arange(num_frequent, dtype=np.uint16)
    return frequent, numbers


def _sums_whole_rows(device: Device) -> bool:
    """Return whether one thread sums all entries of a row, as on a CPU."""
    return bool(kernels_of(device).layout.SCALAR_LENGTH == NO_LIMIT)


def _places(device: Device, sorted_lanes: Array) -> tuple[Array, int, int]:
    """Return the first lane of each row, the number of slices, and the number of slices of long rows. Synchronizes.

    Lanes are counted over all slices. A row with another number of lanes than the row before it begins a new slice. A
    row with more lanes than a slice has is long, and fills whole slices. `sorted_lanes` has the rows' numbers of lanes,
    in falling order.
    """
    xp, width = device.xp, device.lanes
    lanes, counts = _count_groups(device, sorted_lanes)  # synchronizes
    num_long = sorted_lanes.size - int(counts.sum())
    places = xp.empty(sorted_lanes.size, np.int64)
    ends = xp.cumsum(sorted_lanes[:num_long])
    places[:num_long] = ends - sorted_lanes[:num_long]
    num_slices = num_long_slices = int(device.download(ends[-1:])[0]) // width if num_long else 0  # synchronizes
    row = num_long
    for of_row, count in zip(lanes, counts, strict=True):
        places[row : row + count] = xp.arange(count, dtype=np.int64) * of_row + num_slices * width
        row += count
        num_slices += -(-count * of_row // width)
    return places, int(num_slices), num_long_slices


def _count_groups(device: Device, sorted_lanes: Array) -> tuple[Any, Any]:
    """Return the powers of two up to a slice's lanes, falling, and the number of rows of each. Synchronizes."""
    lanes = 2 ** np.arange(device.lanes.bit_length(), dtype=np.int64)[::-1]
    bounds = device.xp.asarray(-np.append(lanes, 0))
    first = device.download(device.xp.searchsorted(-sorted_lanes, bounds))  # synchronizes
    return lanes, np.diff(first)


def _describe(matrix: MatrixPreparation, level: AnalysisLevel) -> Storage | None:
    """Describe the format, with estimated sizes unless only this format is wanted or the matrix has hubs.

    Return None if the matrix is not analyzed, and on a CPU for a matrix without hubs.
    """
    laned = matrix.structure.part(LanedRows)
    if level is AnalysisLevel.NONE:
        return None
    if level is not AnalysisLevel.FULL and not laned.has_hubs:
        if matrix.sparsity.device.kind == "cpu":
            return None
        frequent, rare, nbytes = _estimate(laned)
    else:
        frequent, rare, nbytes = laned.stats
    values, positions = matrix.values, frequent + rare
    column = _column_dtype(matrix)
    return Storage(
        f"uint16 {100 * frequent // max(positions, 1)} %" if laned.has_hubs else column.name,
        values.describe(),
        positions,
        nbytes + 2 * frequent + column.itemsize * rare + values.nbytes_at(positions),
        has_codes=values.has_codes,
        table_bytes=values.table_bytes,
    )


def _estimate(laned: LanedRows) -> LaneStats:
    """Estimate the sizes of the slices of a matrix without hubs from its numbers of rows and entries.

    A lane has about two positions of padding on average: half a position, because the entries of a row are dealt to
    several lanes, and half a group of positions.
    """
    stats, lanes = laned.sparsity.rows, laned.sparsity.device.lanes
    num_lanes = max(stats.num_rows - stats.num_empty, 1.4 * stats.nnz / laned.most_steps)
    num_slices = (stats.num_empty + num_lanes) / lanes
    return LaneStats(0, int(stats.nnz + 2 * num_lanes), int(num_slices * (4 * lanes + 16)))


def _column_dtype(matrix: MatrixPreparation) -> np.dtype[Any]:
    """Return the dtype of rare columns: uint16 if it can number all columns and `encoding` allows that, else int32."""
    is_short = matrix.sparsity.rows.num_cols <= MAX_FREQUENT and not matrix.structure.part(LanedRows).has_hubs
    return np.dtype(np.uint16 if is_short and matrix.encoding.columns else np.int32)


def _build(matrix: MatrixPreparation) -> RowLanes:
    csr, laned = matrix.sparsity.csr, matrix.structure.part(LanedRows)
    values = matrix.values.rearranged(laned.lay_out)
    codes, columns = laned.placed_columns
    dtype = _column_dtype(matrix)
    columns = columns if columns.dtype == dtype else laned.rare_columns(dtype)
    return RowLanes(csr.shape, csr.nnz, laned.slices, codes, columns, values)


ROW_LANES = StorageFormat(
    name="row_lanes",
    layout="row_lanes",
    fits=lambda stats: stats.is_numbered_in_int32,
    requirement=NUMBERED_IN_INT32,
    describe=_describe,
    build=_build,
    parts=(LanedRows,),
    # The constants of row lanes on a GPU are those with which the choices for 74 matrices of all kinds lose least time
    # (H200): 65 of the choices are within 5 % of the best format. None of the constants counts the gathers from x,
    # which take longest in matrices with hubs. On a CPU they were measured with the other formats.
    costs={
        "gpu": KernelModel(
            fixed=2.51 * MICROSECOND,
            byte=1.39e-13,
            stream=1.4e-13,
            position=3.21e-13,
            row=1.12e-11,
            coded=3.3e-13,
            table=8.76e-13,
            setup=40.0,
        ),
        "cpu": KernelModel(
            fixed=21.3 * MICROSECOND, byte=2.77e-12, stream=4.93e-11, position=5.24e-10, row=3.16e-09, setup=40.0
        ),
    },
)
