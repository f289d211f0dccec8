"""Row lanes: rows in the order of their lengths, each with as many lanes of a warp as its length asks for.

Long and short rows thus take about the same time, without padding. In a matrix with hubs (columns with a large part of
all entries), the columns with the most entries get short numbers, and a GPU keeps their elements of x in fast memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.csr import Csr
from gsparse.formats.entries import StoredMatrix, Values
from gsparse.formats.measured_costs import MEASURED_COSTS
from gsparse.formats.registry import AnalysisLevel, Preparation, Storage, StorageFormat
from gsparse.formats.row_stats import NUMBERED_IN_INT32, RowStats

# Largest number of columns that uint16 numbers. Its largest value marks padding and rare columns.
MAX_FREQUENT = 65_535


@dataclass(frozen=True, eq=False)
class LaneSlices:
    """The position at which each entry of a matrix is stored, without columns and values.

    If the matrix has hubs, up to 65,535 columns with the most entries are *frequent*, and are numbered 0, 1, 2 … by
    falling number of entries. All other columns are *rare* and keep their numbers; without hubs, all are. In each row
    the entries in frequent columns come first, in the order of the CSR matrix, and those in rare columns follow, in the
    same order.

    A slice has `slice_size` lanes. On a GPU, the number of lanes of a row is a power of two: the smallest one for which
    a lane has, on average, no more than a given number of the row's entries. If that takes more lanes than a slice has,
    the row has all lanes of several consecutive slices. On a CPU, each row has one lane. The entries of a row in
    frequent columns are dealt to its lanes in turn, and then those in rare columns, beginning with the first lane
    again. All rows of a slice have the same number of lanes. Rows are sorted by falling number of lanes, then by
    falling number of positions that a lane of the row takes, and then by that of its frequent ones. In a slice of 4
    lanes with two rows a and b of two lanes each, of which a has five entries in frequent columns, b has four, and both
    have two in rare columns::

                  frequent columns        rare columns     (.. is padding)
        lane 0    a0 a2 a4                a5
        lane 1    a1 a3 ..                a6
        lane 2    b0 b2 ..                b4
        lane 3    b1 b3 ..                b5

        positions, the frequent ones of all slices first:     … a0 a1 b0 b1 | a2 a3 b2 b3 | a4 .. .. .. …
        and then the rare ones of all slices:                 … a5 a6 b4 b5 …

    Rare positions may be grouped: `group` consecutive ones belong to the same lane, which reads them at once, and the
    number of positions of a lane is a multiple of `group`. With a group of two, c0 to c3 of a lane and d0 to d3 of the
    next one are stored as c0 c1 d0 d1 | c2 c3 d2 d3.

    Attributes
    ----------
    slice_size : int
        Number of lanes of a slice: those of a warp on a GPU, and 32 on a CPU.
    group : int
    frequent : array of int32, shape (num_frequent,)
        The column of each number.
    numbers : array of uint16, shape (num_cols,), optional
        The number of each frequent column, and 65,535 for each rare one. None if all columns are rare.
    places : array of int64, shape (num_rows,)
        The first lane of each row, counted over all slices.
    rows : array of int32, shape (num_slices * slice_size,)
        The row that begins at each lane, -1 where none does.
    lanes : array of int32, shape (num_slices,)
        Number of lanes of each row of a slice. It is a multiple of `slice_size` for a row of several slices.
    first_slices : array of int32, shape (num_slices,)
        For a slice whose row takes several slices, the first of them; otherwise the slice itself.
    frequent_offsets, rare_offsets : array of int64, shape (num_slices + 1,)
        The first position of each slice among the frequent positions and among the rare ones, and then their number.
    num_frequent_positions, num_rare_positions : int
        Number of positions, padding included.
    num_long_slices : int
        Number of slices whose row takes several of them. They come first.
    is_even : bool
        Whether most rows have about the same length, so that neighbouring slices take the same time.
    """

    slice_size: int
    group: int
    frequent: Array
    numbers: Array | None
    places: Array
    rows: Array
    lanes: Array
    first_slices: Array
    frequent_offsets: Array
    rare_offsets: Array
    num_frequent_positions: int
    num_rare_positions: int
    num_long_slices: int
    is_even: bool = False

    @property
    def num_slices(self) -> int:
        return int(self.lanes.size)

    @property
    def num_positions(self) -> int:
        return self.num_frequent_positions + self.num_rare_positions

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that a product reads."""
        of_frequent = () if self.numbers is None else (self.frequent, self.frequent_offsets)
        read = self.rows, self.lanes, self.first_slices, self.rare_offsets, *of_frequent
        return sum(int(array.nbytes) for array in read)


class LaneStats(NamedTuple):
    """Sizes of `LaneSlices`, which remain known after these have been freed."""

    num_frequent_positions: int
    num_rare_positions: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class RowLanes(StoredMatrix):
    """A matrix with row lanes on one device.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    slices : LaneSlices
    codes : array of uint16, shape (num_frequent_positions,)
        The number of the frequent column at each frequent position, or the padding code.
    columns : array of int32 or uint16, shape (num_rare_positions,)
        The column at each rare position, or the padding code. Columns are not relative to a base.
    values : Values
        The values at the frequent positions, then those at the rare ones.

    References
    ----------
    .. [1] F. Vázquez, G. Ortega, J. J. Fernández, E. M. Garzón, "Improving the performance of the sparse matrix vector
       product with GPUs", CIT 2010 (several threads for each row of ELLPACK).
    .. [2] M. Kreutzer, G. Hager, G. Wellein, H. Fehske, A. R. Bishop, "A unified sparse matrix data format for
       efficient general sparse matrix-vector multiplication on modern processors with wide SIMD units",
       SIAM J. Sci. Comput. 36(5), 2014 (slices of sorted rows).
    """

    slices: LaneSlices
    codes: Array
    columns: Array
    values: Values

    @property
    def num_stored(self) -> int:
        return self.slices.num_positions

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return self.slices.nbytes + int(self.codes.nbytes) + int(self.columns.nbytes) + self.values.nbytes

    @property
    def dtype(self) -> Any:
        return self.values.dtype


# ------------------------------------------------------------------------------------------------------- the format


class LanesStructure(Protocol):
    """What row lanes need to know about the row pointers and columns of a matrix."""

    csr: Csr
    device: Device

    @property
    def rows(self) -> RowStats: ...
    @property
    def has_hubs(self) -> bool: ...
    @property
    def most_steps(self) -> int: ...
    @property
    def lane_slices(self) -> LaneSlices: ...
    @property
    def lane_stats(self) -> LaneStats: ...
    @property
    def lane_codes(self) -> tuple[Array, Array]: ...
    def rare_columns(self, dtype: np.dtype[Any]) -> Array: ...
    def lay_out_lanes(self, items: Array) -> Array: ...


def _fits(stats: RowStats) -> bool:
    return stats.is_numbered_in_int32


def _describe(matrix: Preparation[LanesStructure], level: AnalysisLevel) -> Storage | None:
    """Describe the format. Its sizes are estimated unless only this format is wanted, or the matrix has hubs.

    Return None for several formats without an analysis, and on a CPU for a matrix without hubs.
    """
    structure = matrix.structure
    if level is AnalysisLevel.NONE:
        return None
    if level is not AnalysisLevel.FULL and not structure.has_hubs:
        if structure.device.kind == "cpu":
            return None
        frequent, rare, nbytes = _estimate(structure)
    else:
        frequent, rare, nbytes = structure.lane_stats
    values, positions = matrix.values, frequent + rare
    column = _column_dtype(matrix)
    return Storage(
        f"uint16 {100 * frequent // max(positions, 1)} %" if structure.has_hubs else column.name,
        values.describe(),
        positions,
        nbytes + 2 * frequent + column.itemsize * rare + values.nbytes_at(positions),
        has_codes=values.has_codes,
        table_bytes=0 if values.table is None else int(values.table.nbytes),
    )


def _estimate(structure: LanesStructure) -> LaneStats:
    """Estimate the sizes of slices without hubs, from the numbers of rows and entries.

    A lane wastes half a step, because the entries of a row are dealt to several lanes, and half of a group.
    """
    stats = structure.rows
    num_lanes = max(stats.num_rows - stats.num_empty, 1.4 * stats.nnz / structure.most_steps)
    num_slices = (stats.num_empty + num_lanes) / structure.device.lanes
    return LaneStats(0, int(stats.nnz + 2 * num_lanes), int(num_slices * (4 * structure.device.lanes + 16)))


def _column_dtype(matrix: Preparation[LanesStructure]) -> np.dtype[Any]:
    """Return the dtype of rare columns: uint16 if it can number all columns, and columns may be compressed."""
    structure = matrix.structure
    is_short = structure.rows.num_cols <= MAX_FREQUENT and not structure.has_hubs
    return np.dtype(np.uint16 if is_short and matrix.encoding.columns else np.int32)


def _build(matrix: Preparation[LanesStructure]) -> RowLanes:
    structure, csr = matrix.structure, matrix.structure.csr
    values = matrix.values.rearranged(structure.lay_out_lanes)
    codes, columns = structure.lane_codes
    dtype = _column_dtype(matrix)
    columns = columns if columns.dtype == dtype else structure.rare_columns(dtype)
    return RowLanes(csr.shape, csr.nnz, structure.lane_slices, codes, columns, values)


ROW_LANES = StorageFormat(
    name="row_lanes",
    layout="row_lanes",
    fits=_fits,
    requirement=NUMBERED_IN_INT32,
    describe=_describe,
    build=_build,
    structure_arrays=("lane_slices", "lane_codes"),
    costs=MEASURED_COSTS["row_lanes"],
)
