"""Compressed sparse rows: the arrays every other format is built from, and what CSR kernels read of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gsparse.device.dtypes import Array
from gsparse.formats.entries import Columns, Values

__all__ = ["Csr", "CsrEntries", "LongRows", "RowBlocks", "Tiles"]


@dataclass(frozen=True, eq=False)
class Csr:
    """CSR arrays on one device, checked where they entered and trusted from there on.

    Attributes
    ----------
    shape : (int, int)
        Rows and columns.
    indptr : array of int32 or int64, shape (num_rows + 1,)
        Row i owns entries ``indptr[i]:indptr[i + 1]``.
    indices : array of indptr's dtype, shape (nnz,)
        Column of each entry; any order within a row, duplicates allowed (they add up).
    data : array, shape (nnz,)
        Value of each entry.
    """

    shape: tuple[int, int]
    indptr: Array
    indices: Array
    data: Array

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def num_cols(self) -> int:
        return self.shape[1]

    @property
    def nnz(self) -> int:
        return int(self.indices.size)

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return int(self.indptr.nbytes + self.indices.nbytes + self.data.nbytes)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    def with_data(self, data: Array) -> Csr:
        """Give the same structure with other values."""
        return replace(self, data=data)


@dataclass(frozen=True, eq=False)
class LongRows:
    """Rows of their own: each is cut into chunks, a warp a chunk, and whoever comes last adds the chunks up in order.

    Attributes
    ----------
    rows : array of int32 or int64, shape (num_long,)
    begins, ends : arrays of int64, shape (num_long,)
        Positions of each row's entries.
    first_chunk : array of int32, shape (num_long + 1,)
        The chunks of each row: as many as its entries need at `chunk_size` a chunk.
    chunk_rows : array of int32, shape (num_chunks,)
        Place in `rows` of each chunk's row.
    chunk_size : int
    long_length : int
        What is longer is here.
    """

    rows: Array
    begins: Array
    ends: Array
    first_chunk: Array
    chunk_rows: Array
    chunk_size: int
    long_length: int

    @property
    def num_long(self) -> int:
        return int(self.rows.size)

    @property
    def num_chunks(self) -> int:
        return int(self.chunk_rows.size)

    @property
    def nbytes(self) -> int:
        arrays = (self.rows, self.begins, self.ends, self.first_chunk, self.chunk_rows)
        return sum(int(array.nbytes) for array in arrays)


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Consecutive rows gathered into blocks of about equal work (entries plus rows), for `csr_adaptive`.

    Attributes
    ----------
    first_rows : array of int32 or int64, shape (num_blocks + 1,)
        Block b has rows ``first_rows[b]:first_rows[b + 1]``. A long row has a block to itself, which skips it.
    long_rows : LongRows or None
        Rows too long for a block.
    """

    first_rows: Array
    long_rows: LongRows | None

    @property
    def nbytes(self) -> int:
        return int(self.first_rows.nbytes) + (0 if self.long_rows is None else self.long_rows.nbytes)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Equal shares of the merged list of entries and row ends, for `csr_split`.

    Attributes
    ----------
    first_rows : array of int32 or int64, shape (num_tiles + 1,)
        Row ends before each tile: tile t begins with row ``first_rows[t]`` at entry ``t * size - first_rows[t]``.
    size : int
        Entries plus row ends of a tile.
    split_rows : array of int32 or int64, shape (num_split,)
        Rows that go on past the end of a tile.
    first_carry : array of int32, shape (num_split + 1,)
        Tiles whose last, unfinished sum belongs to each split row: ``carry_tiles[first_carry[i]:first_carry[i + 1]]``.
    carry_tiles : array of int32
    """

    first_rows: Array
    size: int
    split_rows: Array
    first_carry: Array
    carry_tiles: Array

    @property
    def num_tiles(self) -> int:
        return int(self.first_rows.size) - 1

    @property
    def nbytes(self) -> int:
        arrays = (self.first_rows, self.split_rows, self.first_carry, self.carry_tiles)
        return sum(int(array.nbytes) for array in arrays)


@dataclass(frozen=True, eq=False)
class CsrEntries:
    """What the CSR kernels read: row pointers, and columns and values in CSR's order, as they are or encoded.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
    indptr : array of int32 or int64, shape (num_rows + 1,)
    columns : Columns
    values : Values
    schedule : LongRows, RowBlocks, Tiles or None
        How the work is shared: rows kept apart for `csr_scalar` and `csr_vector` (None where there are none), blocks of
        rows for `csr_adaptive`, tiles for `csr_split`.
    """

    shape: tuple[int, int]
    nnz: int
    indptr: Array
    columns: Columns
    values: Values
    schedule: LongRows | RowBlocks | Tiles | None = None

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def num_stored(self) -> int:
        return self.nnz

    @property
    def padding_ratio(self) -> float:
        return 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        schedule = 0 if self.schedule is None else self.schedule.nbytes
        return int(self.indptr.nbytes) + self.columns.nbytes + self.values.nbytes + schedule

    @property
    def dtype(self) -> Any:
        return self.values.dtype
