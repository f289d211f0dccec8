"""Hub columns: the columns with the most entries get short numbers, and their elements of x are kept in fast memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.csr import Csr
from gsparse.formats.entries import StoredMatrix, Values
from gsparse.formats.measured_costs import MEASURED_COSTS
from gsparse.formats.registry import AnalysisLevel, Preparation, Storage, StorageFormat
from gsparse.formats.row_stats import NUMBERED_IN_INT32, RowStats

__all__ = ["HUB_COLUMNS", "MAX_FREQUENT", "HubColumns", "HubSlices", "HubStats"]

# Largest number of frequent columns. They are numbered in uint16, whose largest value marks padding and rare columns.
MAX_FREQUENT = 65_535


@dataclass(frozen=True, eq=False)
class HubSlices:
    """The position at which each entry of a matrix is stored, without columns and values.

    Up to 65,535 columns with the most entries are *frequent*, and are numbered 0, 1, 2 … by falling number of entries.
    All other columns are *rare* and keep their numbers. In each row the entries in frequent columns come first, in the
    order of the CSR matrix, and those in rare columns follow, in the same order.

    A slice has `slice_size` lanes. On a GPU, the number of lanes of a row is a power of two: the smallest one for which
    each lane gets, on average, no more than a given number of the row's entries. If that takes more lanes than a slice
    has, the row has all lanes of several consecutive slices. On a CPU, each row has one lane. The entries of a row in
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

    Attributes
    ----------
    slice_size : int
        Number of lanes of a slice: those of a warp on a GPU, and 32 on a CPU.
    frequent : array of int32, shape (num_frequent,)
        The column of each number.
    numbers : array of uint16, shape (num_cols,)
        The number of each frequent column, and 65,535 for each rare one.
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
    """

    slice_size: int
    frequent: Array
    numbers: Array
    places: Array
    rows: Array
    lanes: Array
    first_slices: Array
    frequent_offsets: Array
    rare_offsets: Array
    num_frequent_positions: int
    num_rare_positions: int
    num_long_slices: int

    @property
    def num_slices(self) -> int:
        return int(self.lanes.size)

    @property
    def num_positions(self) -> int:
        return self.num_frequent_positions + self.num_rare_positions

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that a product reads."""
        read = self.frequent, self.rows, self.lanes, self.first_slices, self.frequent_offsets, self.rare_offsets
        return sum(int(array.nbytes) for array in read)


class HubStats(NamedTuple):
    """Sizes of `HubSlices`, which remain known after these have been freed."""

    num_frequent_positions: int
    num_rare_positions: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class HubColumns(StoredMatrix):
    """A matrix with hub columns on one device.

    A few columns of a power-law graph have a large part of all entries. A product gathers the elements of x for the
    frequent columns into an array of their own. A GPU keeps the first of these elements in the shared memory of each
    multiprocessor, so that most entries read x there and not from the second-level cache.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    slices : HubSlices
    codes : array of uint16, shape (num_frequent_positions,)
        The number of the frequent column at each frequent position, or the padding code.
    columns : array of int32, shape (num_rare_positions,)
        The column at each rare position, or -1 for padding.
    values : Values
        The values at the frequent positions, then those at the rare ones.
    """

    slices: HubSlices
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


class HubsStructure(Protocol):
    """What hub columns need to know about the row pointers and columns of a matrix."""

    csr: Csr
    device: Device

    @property
    def has_hubs(self) -> bool: ...
    @property
    def hub_slices(self) -> HubSlices: ...
    @property
    def hub_stats(self) -> HubStats: ...
    @property
    def hub_codes(self) -> tuple[Array, Array]: ...
    def lay_out_hubs(self, items: Array) -> Array: ...


def _fits(stats: RowStats) -> bool:
    return stats.is_numbered_in_int32


def _describe(matrix: Preparation[HubsStructure], level: AnalysisLevel) -> Storage | None:
    """Describe the format. Return None without an analysis or without hubs, unless only this format is wanted."""
    structure = matrix.structure
    if level is not AnalysisLevel.FULL and not (level is AnalysisLevel.SHARED and structure.has_hubs):
        return None
    frequent, rare, nbytes = structure.hub_stats
    values, positions = matrix.values, frequent + rare
    return Storage(
        f"uint16 {100 * frequent // max(positions, 1)} %",
        values.describe(),
        positions,
        nbytes + 2 * frequent + 4 * rare + values.nbytes_at(positions),
        has_codes=values.has_codes,
        table_bytes=0 if values.table is None else int(values.table.nbytes),
    )


def _build(matrix: Preparation[HubsStructure]) -> HubColumns:
    structure, csr = matrix.structure, matrix.structure.csr
    values = matrix.values.rearranged(structure.lay_out_hubs)
    return HubColumns(csr.shape, csr.nnz, structure.hub_slices, *structure.hub_codes, values)


HUB_COLUMNS = StorageFormat(
    name="hub_columns",
    layout="hub_columns",
    fits=_fits,
    requirement=NUMBERED_IN_INT32,
    describe=_describe,
    build=_build,
    structure_arrays=("hub_slices", "hub_codes"),
    costs=MEASURED_COSTS["hub_columns"],
)
