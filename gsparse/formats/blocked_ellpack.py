"""ELLPACK, and blocked ELLPACK (sliced ELLPACK, SELL-C-σ): ELLPACK within slices of one warp's rows."""

from __future__ import annotations

from dataclasses import dataclass

from gsparse.device.dtypes import Array
from gsparse.formats.csr import LongRows
from gsparse.formats.entries import Columns, StoredMatrix, Values


@dataclass(frozen=True, eq=False)
class Ellpack(StoredMatrix):
    """ELLPACK arrays on one device.

    Entry j of row i has the position ``j * pitch + i``, so the threads of a warp, each of which has one row, read
    neighbouring elements. Positions without an entry have the padding code as their column (`padding_code`).

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    width : int
        Length of the longest row.
    pitch : int
        Number of rows, rounded up to a multiple of the lanes of a warp.
    columns : Columns
    values : Values
    """

    width: int
    pitch: int
    columns: Columns
    values: Values

    @property
    def num_stored(self) -> int:
        return self.width * self.pitch

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return self.columns.nbytes + self.values.nbytes


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
        The row in each place of the slices; -1 in places after the last row, and in the places of long rows.
    long_rows : LongRows or None
    long_length : int
        Rows with more entries than this are long rows. `NO_LIMIT` if `long_rows` is None.
    num_slice_positions : int
        Number of positions in the slices, which is the position where the long rows begin.
    num_positions : int
        Number of all positions, including those of the long rows.
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
