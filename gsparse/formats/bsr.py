"""BSR (block sparse rows): small dense blocks, one column index for each of them."""

from __future__ import annotations

from dataclasses import dataclass

from gsparse.device.dtypes import Array
from gsparse.formats.blocked_ellpack import Slices
from gsparse.formats.entries import Columns, StoredMatrix, Values

# Largest number of rows and of columns of a block.
MAX_BLOCK = 8


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The blocks of a matrix and their positions, without values.

    A block row is divided into `row_lanes` *parts* of about equally many consecutive blocks. Part p of block row i has
    the number ``i * row_lanes + p``. On a GPU, each part has lanes of its own.

    Attributes
    ----------
    blocksize : (int, int)
        Number of rows and of columns of a block.
    row_lanes : int
        Number of parts of a block row, a power of two. It is 1 if there are long rows.
    part_indptr : array of int32 or int64, shape (num_parts + 1,)
        Part p has the blocks ``part_indptr[p]:part_indptr[p + 1]``, which are counted in the order of the CSR matrix.
    slices : Slices
        The positions of the blocks: each part is a row of the slices, and each block an entry.
    columns : Columns
        The block column at each position.
    """

    blocksize: tuple[int, int]
    row_lanes: int
    part_indptr: Array
    slices: Slices
    columns: Columns

    @property
    def num_parts(self) -> int:
        return int(self.part_indptr.size) - 1


@dataclass(frozen=True, eq=False)
class Bsr(StoredMatrix):
    """BSR arrays on one device: every block is full, and zeros are stored only as padding.

    The positions of blocks are those of entries in blocked ELLPACK (`Slices`), whose rows are here the parts of block
    rows (`BlockRows`). Values are stored in the order in which the threads of a slice read them: for each step of a
    slice, and for each column of a block, the values of all rows of the slice side by side. So the element (r, c) of
    the block at position k, of R x C elements, has the position

        ((k // slice_size) * C + c) * slice_size * R + (k % slice_size) * R + r

    For blocks of 2 x 2 in slices of 4 block rows a, b, c, d, the first step of a slice is::

        column 0 of the blocks     a00 a10 b00 b10 c00 c10 d00 d10      one thread for each scalar row
        column 1 of the blocks     a01 a11 b01 b11 c01 c11 d01 d11

    On a CPU, a slice is one block row: each block is stored column by column, one block after the other.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    blocksize : (int, int)
        Number of rows and of columns of a block. It is (1, 1) if the matrix has no full blocks that are larger.
    row_lanes : int
        Number of lanes among which the blocks of a row are divided, a power of two.
    slices : Slices
        The positions of the blocks; the rows are parts of block rows.
    columns : Columns
        The block column at each position.
    values : Values
        The elements of all blocks, padding included. On a CPU, a few zeros follow them.
    """

    blocksize: tuple[int, int]
    row_lanes: int
    slices: Slices
    columns: Columns
    values: Values

    @property
    def num_stored(self) -> int:
        return self.slices.num_positions * self.blocksize[0] * self.blocksize[1]

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return self.slices.nbytes + self.columns.nbytes + self.values.nbytes
