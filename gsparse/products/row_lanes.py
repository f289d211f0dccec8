"""Row lanes of a matrix: whether it has hubs, which columns are frequent, and where entries are stored.

`gsparse.formats.row_lanes` describes the result. These functions are properties and methods of
`gsparse.products.structure.Structure`.
"""

from __future__ import annotations

from math import exp
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, padding_code
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.row_lanes import MAX_FREQUENT, LaneSlices, LaneStats
from gsparse.formats.row_stats import RowStats
from gsparse.kernels.backends import kernels_of

_RARE = padding_code(np.uint16)
# On a GPU, a lane has on average at most this number of entries of a row: (entries that are always allowed, number of
# lanes among which all entries of a matrix are divided), so that all lanes have work until the end. Without hubs, an
# H200 runs 2**17 lanes at once; among 28 matrices, 60,000, 90,000 and 135,000 lanes take 1.05, 1.02 and 1.07 times as
# long as the best of them for each matrix, and 8 always allowed entries less than 16, 32 or 48.
_WITH_HUBS, _WITHOUT_HUBS = (16, 2**18), (8, 90_000)
# Positions that a lane reads at once, in matrices without hubs on a GPU.
_GROUP = 4
# Rows have about the same length if the standard deviation is at most this part of the mean.
_EVEN = 0.25
# Only matrices with at least these numbers of entries and columns are examined for hubs: smaller ones gain less than
# the additional launch takes, and their x stays in the first-level cache.
_MIN_ENTRIES, _MIN_COLUMNS = 2_000_000, 2**17
# The sample of the entries that decides whether a matrix has hubs. Many of its columns must occur in it more than once,
# beyond what is expected if all columns have as many entries (R-MAT graphs: 0.4 to 0.5), and these columns must be more
# than the first-level cache holds. If an entry is often within 32 bytes of x of the entry before it, gathers are fast.
_SAMPLE, _MIN_SHARE, _MIN_HUBS = 2**16, 0.25, 4096
_MAX_NEIGHBOURS, _SECTOR = 0.25, 4


class LaneSlicesStructure(Protocol):
    """What these functions need to know about the structure of a matrix."""

    device: Device
    csr: Csr

    @property
    def has_hubs(self) -> bool: ...
    @property
    def most_steps(self) -> int: ...
    @property
    def rows(self) -> RowStats: ...
    @property
    def lane_slices(self) -> LaneSlices: ...
    @property
    def _lane_positions(self) -> Array: ...
    def rare_columns(self, dtype: np.dtype[Any]) -> Array: ...


def has_hubs(structure: LaneSlicesStructure) -> bool:
    """Return whether products with hub columns are expected to be faster on a GPU.

    A kernel with hub columns keeps the elements of x for the most frequent columns in fast memory. This pays if a few
    columns hold most of the entries, which a sample shows. The sample is the same each time. Synchronizes if the matrix
    is large.
    """
    device, csr = structure.device, structure.csr
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


def lane_stats(structure: LaneSlicesStructure) -> LaneStats:
    """Sizes of the slices. They remain known after the slices have been freed. Synchronizes."""
    slices = structure.lane_slices
    return LaneStats(slices.num_frequent_positions, slices.num_rare_positions, slices.nbytes)


def lane_slices(structure: LaneSlicesStructure) -> LaneSlices:
    """The frequent columns, and the slices in which the entries of rows are stored. Synchronizes."""
    device, csr = structure.device, structure.csr
    xp, width, num_rows = device.xp, device.lanes, csr.num_rows
    frequent, numbers = _frequent_columns(device, csr) if structure.has_hubs else (xp.empty(0, np.int32), None)
    group = _GROUP if numbers is None and not _sums_whole_rows(device) else 1
    steps = structure.most_steps
    order, lanes, frequent_steps, rare_steps = kernels_of(device).layout.lane_rows(device, csr, numbers, steps)
    rare_steps = -(-rare_steps // group) * group
    sorted_lanes = lanes[order]
    places_in_order, num_slices, num_long_slices = _places(device, sorted_lanes)

    rows, places = xp.full(num_slices * width, -1, np.int32), xp.empty(num_rows, np.int64)
    rows[places_in_order] = order
    places[order] = places_in_order
    # The row with which a slice begins, or of which it is a part.
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
        is_even=structure.rows.std_length <= _EVEN * structure.rows.mean_length and not num_long_slices,
    )


def _frequent_columns(device: Device, csr: Csr) -> tuple[Array, Array]:
    """Return the frequent columns, and the number of each of them. Synchronizes."""
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


def most_steps(structure: LaneSlicesStructure) -> int:
    """The number of entries of a row that its lanes may have on average; longer rows have several lanes."""
    if _sums_whole_rows(structure.device):
        return NO_LIMIT
    fewest, num_lanes = _WITH_HUBS if structure.has_hubs else _WITHOUT_HUBS
    return max(fewest, structure.csr.nnz // num_lanes)


def _places(device: Device, sorted_lanes: Array) -> tuple[Array, int, int]:
    """Return the first lane of each row, counted over all slices, the number of slices, and that of long rows' slices.

    The first row with another number of lanes than the row before it begins a new slice. Rows with more lanes than a
    slice has fill whole slices, which are those of long rows. `sorted_lanes` is in falling order. Synchronizes.
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
    """Return the numbers of lanes up to those of a slice, falling, and how many rows have each. Synchronizes."""
    lanes = 2 ** np.arange(device.lanes.bit_length(), dtype=np.int64)[::-1]
    bounds = device.xp.asarray(-np.append(lanes, 0))
    first = device.download(device.xp.searchsorted(-sorted_lanes, bounds))  # synchronizes
    return lanes, np.diff(first)


def placed_columns(structure: LaneSlicesStructure) -> tuple[Array, Array]:
    """The numbers of the frequent columns, and the rare columns, at their positions."""
    xp, slices, csr = structure.device.xp, structure.lane_slices, structure.csr
    if slices.numbers is None:
        dtype = np.dtype(np.uint16 if csr.num_cols <= MAX_FREQUENT else np.int32)
        return xp.empty(0, np.uint16), structure.rare_columns(dtype)
    codes = xp.full(slices.num_positions, _RARE, np.uint16)
    codes[structure._lane_positions] = slices.numbers[csr.indices]
    return codes[: slices.num_frequent_positions].copy(), structure.rare_columns(np.dtype(np.int32))


def rare_columns(self: LaneSlicesStructure, dtype: np.dtype[Any]) -> Array:
    """Return the rare columns at their positions."""
    columns = self.device.xp.full(self.lane_slices.num_positions, padding_code(dtype), dtype)
    columns[self._lane_positions] = self.csr.indices
    end = self.lane_slices.num_frequent_positions
    return columns[end:].copy() if end else columns


def lay_out_lanes(self: LaneSlicesStructure, items: Array) -> Array:
    """Arrange items from CSR's order at their positions; padding receives zeros."""
    placed = self.device.xp.zeros(self.lane_slices.num_positions, items.dtype)
    placed[self._lane_positions] = items
    return placed


def lane_positions(structure: LaneSlicesStructure) -> Array:
    """The position of each entry, in CSR's order."""
    return kernels_of(structure.device).layout.lane_positions(structure.device, structure.csr, structure.lane_slices)
