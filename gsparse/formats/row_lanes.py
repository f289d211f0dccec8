"""Row lanes: rows are sorted by length, and a longer row has more lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass

from gsparse.device.dtypes import Array
from gsparse.formats.entries import StoredMatrix, Values


@dataclass(frozen=True, eq=False)
class LaneSlices:
    """The position at which each entry of a matrix is stored, without columns and values.

    If the matrix has hubs, up to 65,535 columns with the most entries are *frequent*, and are numbered 0, 1, 2 … by
    falling number of entries. All other columns are *rare* and keep their numbers. Without hubs, all columns are rare.
    In each row, the entries in frequent columns come first, followed by the entries in rare columns. Both are in the
    order of the CSR matrix.

    A slice has `slice_size` lanes. On a GPU, the number of lanes of a row is a power of two: the smallest one for which
    a lane has, on average, no more than a given number of the row's entries. If that takes more lanes than a slice has,
    the row has all lanes of several consecutive slices. On a CPU, each row has one lane. The entries of a row in
    frequent columns are dealt to its lanes in turn, and then those in rare columns, beginning with the first lane
    again. All rows of a slice have the same number of lanes. Rows are sorted by falling number of lanes, then by
    falling number of positions of a lane, and then by falling number of its frequent positions. In a slice of 4 lanes
    with two rows a and b of two lanes each, of which a has five entries in frequent columns, b has four, and both have
    two in rare columns::

                  frequent columns        rare columns     (.. is padding)
        lane 0    a0 a2 a4                a5
        lane 1    a1 a3 ..                a6
        lane 2    b0 b2 ..                b4
        lane 3    b1 b3 ..                b5

        positions, the frequent ones of all slices first:     … a0 a1 b0 b1 | a2 a3 b2 b3 | a4 .. .. .. …
        and then the rare ones of all slices:                 … a5 a6 b4 b5 …

    Rare positions may be grouped: `group` consecutive positions belong to the same lane, which reads them with one
    instruction, and each lane's number of rare positions is a multiple of `group`. With a group of two, entries c0 to
    c3 of a lane and d0 to d3 of the following lane are stored as c0 c1 d0 d1 | c2 c3 d2 d3.

    Attributes
    ----------
    slice_size : int
        Number of lanes of a slice: those of a warp on a GPU, and 32 on a CPU.
    group : int
        Number of consecutive rare positions that belong to one lane; 1 if they are not grouped.
    frequent : array of int32, shape (num_frequent,)
        The column of each number.
    numbers : array of uint16, shape (num_cols,), optional
        The number of each frequent column, and 65,535 for each rare column. None if all columns are rare.
    places : array of int64, shape (num_rows,)
        The first lane of each row, counted over all slices.
    rows : array of int32, shape (num_slices * slice_size,)
        The row that begins at each lane; -1 if no row begins there.
    lanes : array of int32, shape (num_slices,)
        Number of lanes of each row of a slice. It is a multiple of `slice_size` for a row of several slices.
    first_slices : array of int32, shape (num_slices,)
        For a slice whose row takes several slices, the first of them; otherwise the slice itself.
    frequent_offsets, rare_offsets : array of int64, shape (num_slices + 1,)
        The first frequent and the first rare position of each slice. The last element is the number of positions.
    num_frequent_positions, num_rare_positions : int
        Number of positions, padding included.
    num_long_slices : int
        Number of slices that share their row with other slices. These slices come first.
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
    is_even: bool

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
