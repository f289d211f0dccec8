"""Blocked ELLPACK (sliced ELLPACK, SELL-C-σ): ELLPACK within slices of one warp's rows; long rows are separate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.costs import num_chunks, num_rounds
from gsparse.formats.csr import Csr, LongRows
from gsparse.formats.entries import Columns, StoredMatrix, Values
from gsparse.formats.launch import Launch
from gsparse.formats.measured_costs import MEASURED_COSTS
from gsparse.formats.registry import AnalysisLevel, Preparation, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import MAX_INT32, RowStats


@dataclass(frozen=True, eq=False)
class Slices:
    """The position at which each entry of a matrix is stored.

    Slice s holds `slice_size` rows, which are padded to the length of the longest of them. These are the rows
    ``rows[s * slice_size : (s + 1) * slice_size]``. If `rows` is None, they are the rows with the numbers
    ``s * slice_size : (s + 1) * slice_size``. Entry j of the l-th row of slice s has the position
    ``slice_offsets[s] + j * slice_size + l``::

        a slice of 4 rows (.. is padding)      positions in memory

        l = 0   a0 a1 a2                       a0 b0 c0 d0 | a1 b1 .. d1 | a2 .. .. d2
        l = 1   b0 b1 ..                       j = 0         j = 1         j = 2
        l = 2   c0 .. ..
        l = 3   d0 d1 d2

    The last slice is stored whole, even if the matrix ends within it. The long rows follow the last slice. Each starts
    at the beginning of a run (`Columns`), and its entries are stored one after the other.

    Attributes
    ----------
    num_rows : int
    slice_size : int
        C, the number of rows in a slice: the lanes of a warp, or 1 for dense blocks on a CPU, where nothing is padded.
    sorting_scope : int
        σ, the number of consecutive rows within which rows were sorted by length; 1 if rows keep their order.
    slice_offsets : array of int64, shape (num_slices + 1,)
        The first position of each slice. Always int64, because padding can exceed 2**31 even if nnz does not.
    rows : array of int32, shape (num_slices * slice_size,), optional
        The row in each place of the slices, or -1 for an empty place: one after the last row, or one of a long row.
    long_rows : LongRows or None
    long_length : int
        Rows with more entries than this are long rows. `NO_LIMIT` if `long_rows` is None.
    num_slice_positions : int
        Number of positions in the slices, which is the position where the long rows begin.
    num_positions : int
        Number of all positions, those of the long rows included.
    """

    num_rows: int
    slice_size: int
    sorting_scope: int
    slice_offsets: Array
    rows: Array | None
    long_rows: LongRows | None
    long_length: int
    num_slice_positions: int
    num_positions: int

    @property
    def num_slices(self) -> int:
        return int(self.slice_offsets.size) - 1

    @property
    def nbytes(self) -> int:
        return (
            int(self.slice_offsets.nbytes)
            + (0 if self.rows is None else int(self.rows.nbytes))
            + (0 if self.long_rows is None else self.long_rows.nbytes)
        )


@dataclass(frozen=True, eq=False)
class BlockedEllpack(StoredMatrix):
    """Blocked ELLPACK arrays on one device.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    slices : Slices
    columns : Columns
    values : Values

    References
    ----------
    .. [1] M. Kreutzer, G. Hager, G. Wellein, H. Fehske, A. R. Bishop, "A unified sparse matrix data format for
       efficient general sparse matrix-vector multiplication on modern processors with wide SIMD units",
       SIAM J. Sci. Comput. 36(5), 2014.
    """

    slices: Slices
    columns: Columns
    values: Values

    @property
    def num_stored(self) -> int:
        return self.slices.num_positions

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return self.slices.nbytes + self.columns.nbytes + self.values.nbytes

    @property
    def dtype(self) -> Any:
        return self.values.dtype


class SliceStats(NamedTuple):
    """Sizes of the slices of a matrix, which remain known after the slices have been freed.

    Attributes
    ----------
    num_positions : int
    nbytes : int
        Bytes of the arrays that say where rows are stored.
    is_in_order : bool
        Whether the slices hold all rows in natural order, without long rows apart.
    """

    num_positions: int
    nbytes: int
    is_in_order: bool


# ------------------------------------------------------------------------------------------------------- the format


class SlicesStructure(Protocol):
    """What blocked ELLPACK needs to know about the row pointers and columns of a matrix."""

    csr: Csr
    device: Device

    @property
    def rows(self) -> RowStats: ...
    @property
    def pitch(self) -> int: ...
    @property
    def slices(self) -> Slices: ...
    @property
    def slice_stats(self) -> SliceStats: ...
    @property
    def slice_columns(self) -> Columns: ...
    @property
    def slice_column_dtype(self) -> np.dtype[Any]: ...
    def plain_slice_columns(self) -> Array: ...
    def lay_out(self, items: Array, slices: Slices, padding: Any) -> Array: ...


def fits_slices(stats: RowStats) -> bool:
    """Return whether slices can hold a matrix.

    Sorting numbers the rows in int32. Without sorting, only the entries of one row are counted in int32.
    """
    return stats.num_rows <= MAX_INT32 or stats.max_length <= MAX_INT32


def _describe(matrix: Preparation[SlicesStructure], level: AnalysisLevel) -> Storage:
    structure = matrix.structure
    lanes = structure.device.lanes
    positions, offsets = structure.rows.blocked_stored, 8 * (structure.pitch // lanes + 1)
    columns: np.dtype[Any] = np.dtype(structure.csr.indices.dtype)
    if level:
        positions, offsets, _ = structure.slice_stats
        columns = structure.slice_column_dtype if matrix.encoding.columns else columns
    values = matrix.values if level else matrix.plain_values
    return describe_positions(columns, values, positions, offsets, lanes)


def _build(matrix: Preparation[SlicesStructure]) -> BlockedEllpack:
    structure, csr, slices = matrix.structure, matrix.structure.csr, matrix.structure.slices
    columns = structure.slice_columns if matrix.encoding.columns else Columns(structure.plain_slice_columns())
    values = matrix.values.rearranged(lambda codes: structure.lay_out(codes, slices, 0))
    return BlockedEllpack(csr.shape, csr.nnz, slices, columns, values)


def slice_terms(stats: RowStats, limit: float, lanes: float = 1.0) -> dict[str, float]:
    """Count the terms of a product with slices, in which rows with more entries than `limit` are long rows.

    Parameters
    ----------
    stats : RowStats
    limit : float
    lanes : float
        Number of threads that share a row.
    """
    chunks = num_chunks(stats.num_long, stats.long_entries) if stats.max_length > limit else 0.0
    return {
        "step": num_rounds(stats, limit, lanes),
        "chunk": chunks,
        "sorted": stats.num_rows if stats.wants_sorting else 0,
    }


def _terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    """Count the terms. Long rows are separate if fewer positions are stored than slices of all rows would have."""
    return slice_terms(stats, long_length if storage.num_stored < stats.blocked_stored else stats.max_length)


BLOCKED_ELLPACK = StorageFormat(
    name="blocked_ellpack",
    layout="blocked_ellpack",
    fits=fits_slices,
    requirement=f"it needs at most {MAX_INT32} rows, or rows of at most {MAX_INT32} entries: it counts in int32",
    describe=_describe,
    build=_build,
    structure_arrays=("slices", "slice_columns"),
    terms=_terms,
    costs=MEASURED_COSTS["blocked_ellpack"],
)
