"""The contract of the kernels that examine a matrix, build storage formats, and multiply matrices of blocks.

`gsparse.kernels.contract` says what all kernels have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import BlockRows, Columns, Csr, LaneSlices, LongRows, Slices

HostArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Survey:
    """Statistics of a matrix's row pointers and columns. All are 0 for an empty matrix.

    Attributes
    ----------
    min_length, max_length, num_empty, sum_squares : int
        The smallest row length, the largest, the number of empty rows, and the sum of the squares of the lengths.
    blocked_stored, split_stored : int
        Number of positions, with padding, if all rows are stored in slices in their natural order; the same without
        rows longer than `LONG_LENGTH`.
    num_long, long_entries : int
        Number of rows longer than `LONG_LENGTH`, and number of entries of these rows.
    first, last, num_falls : int
        The first and the last row pointer, and the number of row pointers that are less than their predecessor.
    min_column, max_column : int
        The smallest and largest column among the entries before the last row pointer, or among all entries if there
        are fewer.
    num_unsorted : int
        Number of entries whose column is not greater than the column of the previous entry of the row.
    run_span : int
        If it was requested: the largest distance between two columns of a run of positions in CSR order.
    may_consist_of_blocks : bool
        False if the rows that were examined show that the matrix does not consist of dense blocks (`full_blocks`).
    counts : object
        Private data of the backend for later set-up steps.
    """

    min_length: int
    max_length: int
    num_empty: int
    sum_squares: int
    blocked_stored: int
    split_stored: int
    num_long: int
    long_entries: int
    first: int
    last: int
    num_falls: int
    min_column: int
    max_column: int
    num_unsorted: int
    run_span: int
    may_consist_of_blocks: bool = True
    counts: Any = None

    def describes(self, num_cols: int, capacity: int) -> bool:
        """Return whether the arrays are a valid CSR structure.

        Parameters
        ----------
        num_cols : int
            Number of columns of the matrix.
        capacity : int
            Number of entries for which the arrays have room.
        """
        columns_fit = not self.last or (self.min_column >= 0 and self.max_column < num_cols)
        return self.first == 0 and not self.num_falls and 0 <= self.last <= capacity and columns_fit


@dataclass(frozen=True, eq=False)
class BlockPattern:
    """The full dense blocks of which a matrix consists.

    All rows of a block row have the same columns. If they begin at position `begin` of the CSR arrays and have `length`
    entries each, element (i, j) of block e of the block row is at ``begin + i * length + e * blocksize[1] + j``.

    Attributes
    ----------
    blocksize : (int, int)
        Number of rows and of columns of a block.
    blocks : Csr
        The matrix, without values, that has an entry for each block.
    """

    blocksize: tuple[int, int]
    blocks: Csr


class LayoutKernels(Protocol):
    """Statistics of a structure, and the positions of entries in padded formats. The functions return new arrays."""

    @property
    def SORTING_SCOPE(self) -> int:
        """Number of consecutive rows that are sorted by length together, before they are cut into slices."""

    @property
    def CHUNK_SIZE(self) -> int:
        """Number of entries in a chunk of a long row."""

    @property
    def LONG_LENGTH(self) -> int:
        """Rows with more entries than this are not stored in slices."""

    @property
    def SCALAR_LENGTH(self) -> int:
        """Rows with more entries than this are long for scalar CSR; `NO_LIMIT` if none is."""

    def survey(self, device: Device, indptr: Array, indices: Array, spans: bool) -> Survey:
        """Return the statistics of row pointers and columns, which may be invalid. Synchronizes.

        `spans` says whether to compute `Survey.run_span`.
        """

    def long_rows(
        self, device: Device, indptr: Array, survey: Survey, limit: int, first: int | None = None
    ) -> tuple[LongRows, int]:
        """Return the rows longer than `limit`, and the position at which their last run ends.

        Without `first`, the long rows stay at their positions in CSR. With `first`, the positions are those to which
        the caller copies them: one after the other from `first` on, each at the beginning of a run. `limit` is one of
        the backend's constants (with `first`, `LONG_LENGTH`).
        """

    def cut_slices(
        self, device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
    ) -> tuple[Array | None, Array, int]:
        """Return rows, slice_offsets and num_positions as in `Slices`.

        Rows longer than `long_length` are not in slices. If `sort`, the other rows are sorted by descending length
        within each group of `SORTING_SCOPE` rows; rows of equal length keep their order. In `rows`, -1 at the end of a
        group stands for no row. `rows` is None if all rows keep their order. Synchronizes if `sort`.
        """

    def lay_out(self, device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
        """Return `items` copied to the positions of `slices`, with `padding` at all other positions.

        There is one item for each entry, in CSR order. Long rows are included. Items may have any dtype of 1, 2, 4, 8
        or 16 bytes.
        """

    def lay_out_ellpack(
        self, device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any
    ) -> Array:
        """Return `items`, one per entry in CSR order, copied to the positions of `Ellpack`; `padding` elsewhere."""

    def lane_rows(
        self, device: Device, csr: Csr, numbers: Array | None, most_steps: int
    ) -> tuple[Array, Array, Array, Array]:
        """Return (order, lanes, frequent_steps, rare_steps) of the rows for `LaneSlices`.

        A row with at most ``device.lanes * most_steps`` entries gets the smallest power of two of lanes that is at
        least its number of entries divided by `most_steps`. A longer row gets a multiple of ``device.lanes``.
        `frequent_steps` and `rare_steps` hold, for each row, the largest number of entries of a lane in frequent and in
        rare columns. `order` holds the row numbers, sorted by descending number of lanes, then of all steps, then of
        frequent steps; equal rows keep their order. All but `order` are int64. `numbers` is the field of `LaneSlices`.
        On a CPU, it is None, and each row has one lane.
        """

    def lane_positions(self, device: Device, csr: Csr, slices: LaneSlices) -> Array:
        """Return the position of each entry, in CSR's order, as int64.

        The frequent positions come first, followed by the rare ones (see `LaneSlices`).
        """


class BlockKernels(Protocol):
    """Matrices of dense blocks: find the blocks, store them as BSR, and multiply. The functions return new arrays."""

    @property
    def SLICES_BLOCKS(self) -> bool:
        """Whether blocks of BSR are stored in slices of `device.lanes` block rows; otherwise row after row."""

    def full_blocks(self, device: Device, csr: Csr) -> tuple[int, int]:
        """Return the largest size (rows, columns) of aligned blocks, up to 8 x 8, of which a matrix consists.

        Every aligned block of this size is full or empty, and within each row its entries are adjacent and in the order
        of their columns. The blocks of a row may be in any order, and repeated. A matrix without such blocks is usually
        recognized from its first rows. Synchronizes.
        """

    def block_parts(self, device: Device, csr: Csr, blocksize: tuple[int, int], row_lanes: int) -> tuple[Array, Array]:
        """Return (indptr, indices) of a matrix whose rows are parts of block rows and whose entries are blocks.

        Each block row is divided into `row_lanes` parts (see `BlockRows`).
        """

    def lay_out_blocks(self, device: Device, blocks: BlockRows, items: Array) -> Array:
        """Return `items`, one for each entry in CSR order, copied to the positions of `Bsr`; zeros elsewhere.

        Items may have any dtype of 1, 2, 4, 8 or 16 bytes.
        """

    def block_product(self, device: Device, a: BlockPattern, b: BlockPattern) -> BlockPattern | None:
        """Return the sorted pattern of A·B for two matrices of blocks, including blocks whose products cancel.

        B is sorted, A's blocks have as many columns as B's blocks have rows, and both patterns have the dtype of the
        values. Return None if `multiply_blocks` would take longer than `spgemm`. Synchronizes.
        """

    def multiply_blocks(
        self, device: Device, a_data: Array, b_data: Array, patterns: tuple[BlockPattern, BlockPattern, BlockPattern]
    ) -> Array:
        """Return the values of C = A·B in CSR order, zeros included, from the values of A and B.

        `patterns` are the patterns of A, B and C; C's pattern is the result of `block_product`. Products are summed in
        the order of A's row. C's blocks have at most `gsparse.formats.bsr.MAX_BLOCK` rows.
        """


class EncodeKernels(Protocol):
    """Encodings of columns, values and rows in fewer bytes. The functions return new arrays."""

    @property
    def CSR_CODES(self) -> tuple[np.dtype[Any], ...]:
        """Dtypes to which columns in CSR order may be narrowed; empty if narrowing does not pay."""

    @property
    def LOOKS_UP(self) -> bool:
        """Whether reading a value from a table by a one-byte code is faster than reading it in half the precision."""

    @property
    def SHARES_RUNS(self) -> bool:
        """Whether products process consecutive rows of the same pattern together, so that few groups are faster."""

    def run_span(self, device: Device, columns: Array, num_cols: int) -> int:
        """Return the largest distance between two columns of the same run.

        Padding (negative columns) is not counted. Synchronizes.
        """

    def encode_columns(self, device: Device, columns: Array, dtype: Any) -> Columns:
        """Return columns as distances from a base per run, in `dtype`. Distances must be below the padding code."""

    def distinct_keys(self, device: Device, keys: Array, limit: int) -> tuple[HostArray, npt.NDArray[np.int64]] | None:
        """Return the distinct keys in ascending order, and a position of each key in `keys`; both are host arrays.

        `keys` are uint32 or uint64. Return None if there are more than `limit` distinct keys; `limit` is at most 4096.
        Synchronizes.
        """

    def encode_keys(self, device: Device, keys: Array, table: Array, dtype: Any) -> Array:
        """Return the position of each key in `table`, which is sorted and holds all keys, as integers of `dtype`."""

    def row_keys(self, device: Device, csr: Csr, values: bool) -> Array:
        """Return a hash (uint64) of each row's length, offsets (column minus row) and, if `values`, its values."""

    def rows_follow(
        self, device: Device, csr: Csr, codes: Array, representatives: Array, values: bool
    ) -> npt.NDArray[np.int32] | None:
        """Return the lengths of the representative rows if every row equals its representative, otherwise None.

        Row i is compared with row ``representatives[codes[i]]``: the offsets (column minus row) and, if `values`, the
        values. Synchronizes.
        """

    def gather_rows(
        self, device: Device, csr: Csr, representatives: Array, indptr: Array, num_entries: int, values: bool
    ) -> tuple[Array, Array | None]:
        """Return the offsets (int32) of the representative rows and, if `values`, their values.

        Row r of the result begins at ``indptr[r]``, and the last row ends at `num_entries`.
        """

    def survives_halving(self, device: Device, data: Array) -> bool:
        """Return whether every float64 or complex128 value can be stored in half the precision without a loss.

        "Without a loss" means that any way of widening restores the same bits. Synchronizes.
        """
