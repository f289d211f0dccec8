"""Compressed sparse rows: the arrays every other format is built from, and what CSR kernels read of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.costs import LOADS_PER_ROUND, MICROSECOND, SCALAR_LENGTH, KernelModel, num_chunks, num_rounds
from gsparse.formats.entries import Columns, Values
from gsparse.formats.launch import Launch
from gsparse.formats.registry import Examination, Preparation, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import MAX_INT32, RowStats, share_above

__all__ = [
    "CSR_ADAPTIVE",
    "CSR_SCALAR",
    "CSR_SPLIT",
    "CSR_VECTOR",
    "Csr",
    "CsrEntries",
    "LongRows",
    "RowBlocks",
    "Tiles",
]

# Entries for each thread above which `csr_vector` keeps a row apart on a GPU, and entries above which `csr_adaptive`
# does.
_VECTOR_LENGTH = 8
_ADAPTIVE_LENGTH = 1024


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


# ------------------------------------------------------------------------------------------------------ the formats


class CsrStructure(Protocol):
    """What the schedules of CSR ask of the row pointers and columns of a matrix."""

    csr: Csr
    device: Device

    @property
    def rows(self) -> RowStats: ...
    @property
    def csr_column_dtype(self) -> np.dtype[Any]: ...
    @property
    def csr_columns(self) -> Columns: ...
    @property
    def row_blocks(self) -> RowBlocks: ...
    @property
    def tiles(self) -> Tiles: ...
    @property
    def block_work(self) -> int: ...
    @property
    def scalar_length(self) -> int: ...
    @property
    def vector_length(self) -> int: ...
    def csr_long_rows(self, limit: int) -> LongRows | None: ...


def _describe(matrix: Preparation[CsrStructure], examination: Examination) -> Storage:
    structure = matrix.structure
    columns: np.dtype[Any] = np.dtype(structure.csr.indices.dtype)
    if examination and matrix.compress:
        columns = structure.csr_column_dtype
    values = matrix.values if examination else matrix.plain_values
    pointers = int(structure.csr.indptr.nbytes)
    return describe_positions(columns, values, structure.rows.nnz, pointers, structure.device.lanes)


def _describe_with_blocks(matrix: Preparation[CsrStructure], examination: Examination) -> Storage:
    """Add the first row of each block or tile, about."""
    stats, plain = matrix.structure.rows, _describe(matrix, examination)
    blocks = -(-(stats.nnz + stats.num_rows) // matrix.structure.block_work)
    return replace(plain, nbytes=plain.nbytes + 4 * blocks)


def _build(
    schedule_of: Callable[[CsrStructure], LongRows | RowBlocks | Tiles | None],
) -> Callable[[Preparation[CsrStructure]], CsrEntries]:
    """Return the function that builds a schedule of CSR."""

    def build(matrix: Preparation[CsrStructure]) -> CsrEntries:
        structure, csr, schedule = matrix.structure, matrix.structure.csr, schedule_of(matrix.structure)
        columns = structure.csr_columns if matrix.compress else Columns(csr.indices)
        return CsrEntries(csr.shape, csr.nnz, csr.indptr, columns, matrix.values, schedule)

    return build


def _terms(stats: RowStats, limit: float, threads: float) -> dict[str, float]:
    """Count the terms of a kernel whose threads share rows up to `limit`, and which cuts longer rows into chunks."""
    rows, entries = share_above(stats, limit) if stats.nnz else (0.0, 0.0)
    chunks = num_chunks(rows * (stats.num_rows - stats.num_empty), entries * stats.nnz)
    return {"step": num_rounds(stats, limit, threads), "chunk": chunks}


def _scalar_terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    return _terms(stats, SCALAR_LENGTH, 1.0)


def _vector_terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    threads = launch.threads_per_row
    return _terms(stats, max(_VECTOR_LENGTH * threads, 2 * SCALAR_LENGTH), threads)


def _adaptive_terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    threads = max(1.0, (stats.mean_length + 1) / LOADS_PER_ROUND) / LOADS_PER_ROUND
    return _terms(stats, _ADAPTIVE_LENGTH, threads)


def _split_terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    return {"step": 0.0}  # (all threads have equal shares)


def _fits_any(stats: RowStats) -> bool:
    return True


def _fits_int32(stats: RowStats) -> bool:
    return stats.num_rows <= MAX_INT32


CSR_SCALAR = StorageFormat(
    name="csr_scalar",
    layout="csr",
    schedule="scalar",
    reads_csr=True,
    fits=_fits_any,
    requirement="it fits every matrix",
    describe=_describe,
    build=_build(lambda structure: structure.csr_long_rows(structure.scalar_length)),
    pieces=("csr_columns", "csr_long_rows_by_limit"),
    terms=_scalar_terms,
    costs={
        "gpu": KernelModel(
            fixed=1.51 * MICROSECOND,
            byte=1.98e-13,
            row=1.13e-12,
            step=0.113 * MICROSECOND,
            stride=0.0783e-12,
            chunk=0.085e-9,
        ),
        "cpu": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.33e-9, narrow=0.1e-9),
    },
)

CSR_VECTOR = replace(
    CSR_SCALAR,
    name="csr_vector",
    schedule="vector",
    build=_build(lambda structure: structure.csr_long_rows(structure.vector_length)),
    terms=_vector_terms,
    costs={
        "gpu": KernelModel(
            fixed=1.45 * MICROSECOND,
            byte=2.18e-13,
            position=0.413e-12,
            row=3.94e-12,
            step=0.0986 * MICROSECOND,
            chunk=0.21e-9,
        ),
        "cpu": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.31e-9, row=0.6e-9, narrow=0.1e-9),
    },
)

CSR_ADAPTIVE = replace(
    CSR_SCALAR,
    name="csr_adaptive",
    schedule="adaptive",
    fits=_fits_int32,
    requirement=f"it numbers rows in int32, up to {MAX_INT32}",
    describe=_describe_with_blocks,
    build=_build(lambda structure: structure.row_blocks),
    pieces=("csr_columns", "row_blocks"),
    terms=_adaptive_terms,
    costs={
        "gpu": KernelModel(fixed=2.19 * MICROSECOND, byte=2.13e-13, position=2.06e-12, chunk=0.248e-9, setup=20.0),
        "cpu": KernelModel(fixed=3e-6, byte=2.6e-11, position=0.33e-9, row=0.1e-9, setup=2.0),
    },
)

CSR_SPLIT = replace(
    CSR_ADAPTIVE,
    name="csr_split",
    schedule="split",
    build=_build(lambda structure: structure.tiles),
    pieces=("csr_columns", "tiles"),
    terms=_split_terms,
    costs={
        "gpu": KernelModel(fixed=4.78 * MICROSECOND, byte=1.39e-13, position=1.82e-12, row=6.64e-12, setup=20.0),
        "cpu": KernelModel(fixed=3e-6, byte=2.6e-11, position=0.34e-9, setup=2.0),
    },
)
