"""BSR (block sparse rows): small dense blocks, one column index for each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.blocked_ellpack import Slices, slice_terms
from gsparse.formats.csr import Csr
from gsparse.formats.entries import Columns, StoredMatrix, Values
from gsparse.formats.launch import Launch
from gsparse.formats.measured_costs import MEASURED_COSTS
from gsparse.formats.registry import AnalysisLevel, Preparation, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import NUMBERED_IN_INT32, RowStats

# Largest number of rows and of columns of a block.
MAX_BLOCK = 8
# Several GPU lanes share a row if one thread for each row would leave lanes of a device idle. Each of them has at least
# _ENTRIES_PER_LANE entries on average.
_DEVICE_THREADS = 2**18
_ENTRIES_PER_LANE = 6.0
_MAX_ROW_LANES = 8


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The blocks of a matrix and their positions, without values.

    A block row is divided into `row_lanes` *parts*, each of which has consecutive blocks of it, about the same number.
    Part p of block row i has the number ``i * row_lanes + p``. On a GPU, each part has lanes of its own.

    Attributes
    ----------
    blocksize : (int, int)
        Number of rows and of columns of a block.
    row_lanes : int
        Number of parts of a block row, a power of two. It is 1 if there are long rows.
    part_indptr : array of int32 or int64, shape (num_parts + 1,)
        Part p has the blocks ``part_indptr[p]:part_indptr[p + 1]``, which are counted in the order of the CSR matrix.
    slices : Slices
        The positions of the blocks, in which the rows are the parts.
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


class BlockStats(NamedTuple):
    """Sizes of `BlockRows`, which remain known after these have been freed.

    Attributes
    ----------
    blocksize : (int, int)
    num_positions : int
        Number of positions of blocks, padding included.
    nbytes : int
        Bytes of the arrays that say where blocks are stored.
    column_dtype : dtype
        The dtype of the block columns.
    """

    blocksize: tuple[int, int]
    num_positions: int
    nbytes: int
    column_dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Bsr(StoredMatrix):
    """BSR arrays on one device: every block is full, so that zeros that are not entries are stored only as padding.

    Blocks have positions as the entries of blocked ELLPACK have them (`Slices`): in slices of `slice_size` parts of
    block rows (`BlockRows`). Values are stored in the order in which the threads of a slice read them: for each step of
    a slice, and for each column of a block, those of all rows of the slice side by side. So the element (r, c) of the
    block at position k, of R x C elements, has the position

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
        The elements of all blocks, those of padding included. On a CPU, a few zeros follow them.
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

    @property
    def dtype(self) -> Any:
        return self.values.dtype


def lanes_for_rows(stats: RowStats) -> int:
    """Return the number of GPU lanes that share a row: more than one only if a matrix has few rows.

    Examples
    --------
    >>> [lanes_for_rows(RowStats(n, n, 30 * n, 30, 30, 30.0, 0.0, 0, 30 * n)) for n in (1000, 40_000, 100_000, 10**6)]
    [4, 4, 2, 1]
    """
    lanes = 1
    while (
        2 * lanes <= _MAX_ROW_LANES
        and 2 * lanes * stats.num_rows <= _DEVICE_THREADS
        and stats.mean_length >= 2 * lanes * _ENTRIES_PER_LANE
    ):
        lanes *= 2
    return lanes


# ------------------------------------------------------------------------------------------------------- the format


class BlocksStructure(Protocol):
    """What BSR needs to know about the row pointers and columns of a matrix."""

    csr: Csr
    device: Device
    known_blocksize: tuple[int, int] | None

    @property
    def rows(self) -> RowStats: ...
    @property
    def blocksize(self) -> tuple[int, int]: ...
    @property
    def block_rows(self) -> BlockRows: ...
    @property
    def block_stats(self) -> BlockStats: ...
    def plain_block_columns(self) -> Array: ...
    def lay_out_blocks(self, items: Array) -> Array: ...


def _fits(stats: RowStats) -> bool:
    return stats.is_numbered_in_int32


def _describe(matrix: Preparation[BlocksStructure], level: AnalysisLevel) -> Storage | None:
    """Describe the blocks. They are a candidate if they are larger than one entry, or if no other format is allowed.

    If their size is known, they are a candidate also for a matrix that is not analyzed.
    """
    structure = matrix.structure
    may_look = level is not AnalysisLevel.NONE or structure.known_blocksize is not None
    is_candidate = level is AnalysisLevel.FULL or (may_look and structure.blocksize != (1, 1))
    if not is_candidate:
        return None
    stats = structure.block_stats
    rows, columns = stats.blocksize
    column_dtype = stats.column_dtype if matrix.encoding.columns else np.dtype(np.int32)
    num_values, lanes = stats.num_positions * rows * columns, structure.device.lanes
    storage = describe_positions(column_dtype, matrix.values, num_values, stats.nbytes, lanes, rows * columns)
    return replace(storage, columns=f"{storage.columns} {rows}x{columns}")


def _build(matrix: Preparation[BlocksStructure]) -> Bsr:
    structure, csr, blocks = matrix.structure, matrix.structure.csr, matrix.structure.block_rows
    columns = blocks.columns if matrix.encoding.columns else Columns(structure.plain_block_columns())
    values = matrix.values.rearranged(structure.lay_out_blocks)
    return Bsr(csr.shape, csr.nnz, blocks.blocksize, blocks.row_lanes, blocks.slices, columns, values)


def _terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    """Count the terms.

    A row with more entries than `long_length` blocks can have is long: it has more than `long_length` blocks.
    """
    return slice_terms(stats, long_length * MAX_BLOCK, lanes_for_rows(stats))


BSR = StorageFormat(
    name="bsr",
    layout="bsr",
    fits=_fits,
    requirement=NUMBERED_IN_INT32,
    describe=_describe,
    build=_build,
    structure_arrays=("block_rows",),
    terms=_terms,
    costs=MEASURED_COSTS["bsr"],
)
