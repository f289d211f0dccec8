"""The contract of the kernels that examine a matrix, make storage formats of it, and multiply matrices of blocks.

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
    """Statistics of a matrix's row pointers and columns; 0 where there is nothing to count.

    Attributes
    ----------
    min_length, max_length, num_empty, sum_squares : int
        Of the rows' lengths: the least, the greatest, how many are 0, the sum of their squares.
    blocked_stored, split_stored : int
        Positions of slices in natural order; the same without rows longer than `LONG_LENGTH`.
    num_long, long_entries : int
        Rows longer than that, and their entries.
    first, last, num_falls : int
        First and last row pointer, and how many row pointers are less than the one before them.
    min_column, max_column : int
        Of the entries up to the last row pointer, or of all entries where there are fewer.
    num_unsorted : int
        Entries whose column is not greater than that of the entry before them in the same row.
    run_span : int
        The largest distance between two columns of one run in CSR order, where it was asked for.
    may_consist_of_blocks : bool
        False if the rows that were examined show that the matrix does not consist of dense blocks (`full_blocks`).
    counts : object
        Private data of the backend, which it reads in later set-up steps.
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
            Columns of the matrix.
        capacity : int
            Entries that the arrays can hold.
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
        The matrix that has an entry for each block, without values.
    """

    blocksize: tuple[int, int]
    blocks: Csr


class LayoutKernels(Protocol):
    """Statistics of a structure, and where padded formats store its entries. The functions return new arrays."""

    @property
    def SORTING_SCOPE(self) -> int:
        """Rows within which slices are sorted by length."""

    @property
    def CHUNK_SIZE(self) -> int:
        """Entries of a chunk of a long row."""

    @property
    def LONG_LENGTH(self) -> int:
        """Entries above which a row is kept out of slices."""

    @property
    def SCALAR_LENGTH(self) -> int:
        """Entries above which scalar CSR treats a row as long; `NO_LIMIT` where it never does."""

    def survey(self, device: Device, indptr: Array, indices: Array, spans: bool) -> Survey:
        """Return the statistics of row pointers and columns, whatever the arrays hold. Synchronizes.

        `spans` says whether `Survey.run_span` is wanted.
        """

    def long_rows(
        self, device: Device, indptr: Array, survey: Survey, limit: int, first: int | None = None
    ) -> tuple[LongRows, int]:
        """Return the rows longer than `limit`, and the position at which their last run ends.

        Without `first` they stay at their positions in CSR. With it they are to be copied one after the other from
        position `first` on, each beginning with a whole run. `limit` is one of the backend's constants (with `first`,
        `LONG_LENGTH`).
        """

    def cut_slices(
        self, device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
    ) -> tuple[Array | None, Array, int]:
        """Return (rows, slice_offsets, number of positions) as in `Slices`.

        Rows longer than `long_length` get no place. `sort` orders the other rows within each `SORTING_SCOPE`
        consecutive ones by falling length, rows of equal length in order; -1 marks places without a row, at the end.
        `rows` is None where all rows keep their order. Synchronizes where it sorts.
        """

    def lay_out(self, device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
        """Return items, one for each entry in CSR order, at the positions of `slices`, and `padding` elsewhere.

        Long rows are included. Items may have any dtype of 1, 2, 4, 8 or 16 bytes.
        """

    def lay_out_ellpack(
        self, device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any
    ) -> Array:
        """Return the same for the column-major positions of `Ellpack`."""

    def lane_rows(
        self, device: Device, csr: Csr, numbers: Array | None, most_steps: int
    ) -> tuple[Array, Array, Array, Array]:
        """Return (order, lanes, frequent_steps, rare_steps) of the rows for `LaneSlices`.

        A row with up to ``device.lanes * most_steps`` entries has the least power of two of lanes that is at least its
        number of entries divided by `most_steps`, a longer row a multiple of ``device.lanes``. `frequent_steps` and
        `rare_steps`, of int64 like `lanes`, are the largest numbers of entries of a lane in
        frequent and in rare columns. `order` are the rows by falling number of lanes, then of all steps, then of
        frequent steps, and then in their order. `numbers` is that of `LaneSlices`. On a CPU it is None, and each row
        has one lane.
        """

    def lane_positions(self, device: Device, csr: Csr, slices: LaneSlices) -> Array:
        """Return the position of each entry, in CSR's order, as int64.

        Those of the frequent positions come first, and the rare ones follow (`LaneSlices`).
        """


class BlockKernels(Protocol):
    """Matrices that consist of dense blocks: found, stored as BSR, and multiplied. The functions return new arrays."""

    @property
    def SLICES_BLOCKS(self) -> bool:
        """Whether blocks of BSR are stored in slices of `device.lanes` rows; otherwise one row after the other."""

    def full_blocks(self, device: Device, csr: Csr) -> tuple[int, int]:
        """Return the largest size (rows, columns) of aligned blocks, up to 8 x 8, of which a matrix consists.

        Every block of this size is either full or empty, and its entries are in its rows in the order of their columns.
        The blocks of a row may be in any order, and there several times. A matrix without such blocks is recognized
        from its first rows. Synchronizes.
        """

    def block_parts(self, device: Device, csr: Csr, blocksize: tuple[int, int], row_lanes: int) -> tuple[Array, Array]:
        """Return (indptr, indices) whose rows are the parts of block rows (`BlockRows`), and whose entries the blocks.

        Each block row is divided into `row_lanes` parts.
        """

    def lay_out_blocks(self, device: Device, blocks: BlockRows, items: Array) -> Array:
        """Return items, one for each entry in CSR order, at the positions of `Bsr`, and zeros elsewhere.

        Items may have any dtype of 1, 2, 4, 8 or 16 bytes.
        """

    def block_product(self, device: Device, a: BlockPattern, b: BlockPattern) -> BlockPattern | None:
        """Return the pattern of A·B for two matrices of blocks, with a block wherever a product contributes, sorted.

        B is sorted, the number of columns of A's blocks is that of the rows of B's blocks, and the dtype of both
        patterns is that of the values. Returns None where `multiply_blocks` would take longer than `spgemm`.
        Synchronizes.
        """

    def multiply_blocks(
        self, device: Device, a_data: Array, b_data: Array, patterns: tuple[BlockPattern, BlockPattern, BlockPattern]
    ) -> Array:
        """Return the values of C = A·B in CSR order, zeros included, from those of A and B.

        `patterns` are those of A, B and C, which `block_product` returns. Each sum is made in the order of A's row. C's
        blocks have at most `gsparse.formats.bsr.MAX_BLOCK` rows.
        """


class EncodeKernels(Protocol):
    """Columns, values and rows in fewer bytes. The functions return new arrays."""

    @property
    def CSR_CODES(self) -> tuple[np.dtype[Any], ...]:
        """Dtypes to which columns in CSR order may be narrowed."""

    @property
    def LOOKS_UP(self) -> bool:
        """Whether reading a value from a table by a one-byte code is faster than reading it in half the precision."""

    @property
    def SHARES_RUNS(self) -> bool:
        """Whether a product takes consecutive rows of one pattern together, so that their number decides its time."""

    def run_span(self, device: Device, columns: Array, num_cols: int) -> int:
        """Return the largest distance between the columns of one run, over all runs of positions.

        Padding (negative columns) is not counted. Synchronizes.
        """

    def encode_columns(self, device: Device, columns: Array, dtype: Any) -> Columns:
        """Return columns as distances of `dtype` from a base for each run; they must fit below the padding code."""

    def distinct_keys(self, device: Device, keys: Array, limit: int) -> tuple[HostArray, npt.NDArray[np.int64]] | None:
        """Return the distinct keys, rising, and a position of each in `keys`; both on the host.

        `keys` are uint32 or uint64. Returns None where there are more than `limit` distinct keys; `limit` is at most
        4096. Synchronizes.
        """

    def encode_keys(self, device: Device, keys: Array, table: Array, dtype: Any) -> Array:
        """Return the position of each key in the sorted `table`, which holds all of them."""

    def row_keys(self, device: Device, csr: Csr, values: bool) -> Array:
        """Return a hash (uint64) of each row's length and offsets, column minus row, and of its values if `values`."""

    def rows_follow(
        self, device: Device, csr: Csr, codes: Array, representatives: Array, values: bool
    ) -> npt.NDArray[np.int32] | None:
        """Return the lengths of the representative rows if every row is like its own representative, else None.

        Row i is compared with row ``representatives[codes[i]]``: the offsets, and the values if `values` is true.
        Synchronizes.
        """

    def gather_rows(
        self, device: Device, csr: Csr, representatives: Array, indptr: Array, num_entries: int, values: bool
    ) -> tuple[Array, Array | None]:
        """Return the int32 offsets of the representative rows, row r's at ``indptr[r]``, and their values if asked."""

    def survives_halving(self, device: Device, data: Array) -> bool:
        """Return whether every float64 or complex128 value comes back from half the precision with the same bits.

        That must hold however the values are cast. Synchronizes.
        """
