"""Compressed sparse rows (CSR): the arrays from which every other format is built, and what CSR kernels read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.costs import SCALAR_LENGTH, num_chunks, num_rounds, vector_length
from gsparse.formats.entries import Columns, StoredMatrix, Values
from gsparse.formats.launch import Launch
from gsparse.formats.measured_costs import MEASURED_COSTS
from gsparse.formats.registry import AnalysisLevel, Preparation, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import RowStats, share_above


@dataclass(frozen=True, eq=False)
class Csr:
    """CSR arrays on one device. They were checked when they entered the package, and are trusted from then on.

    Attributes
    ----------
    shape : (int, int)
        Number of rows and of columns.
    indptr : array of int32 or int64, shape (num_rows + 1,)
        Row i has the entries ``indptr[i]:indptr[i + 1]``.
    indices : array of indptr's dtype, shape (nnz,)
        The column of each entry, in any order within a row. Duplicates are allowed: their values are added.
    data : array, shape (nnz,)
        The value of each entry.
    is_canonical : bool
        Whether columns are known to rise within each row. False if nobody has looked.
    longest : int, optional
        The number of entries of the longest row. None if nobody has looked.
    """

    shape: tuple[int, int]
    indptr: Array
    indices: Array
    data: Array
    is_canonical: bool = False
    longest: int | None = None

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

    def diagonal_size(self, offset: int) -> int:
        """Return the number of elements on a diagonal, where column minus row is `offset`."""
        return max(min(self.num_rows - max(-offset, 0), self.num_cols - max(offset, 0)), 0)

    def with_data(self, data: Array) -> Csr:
        """Return the same structure with other values."""
        return Csr(self.shape, self.indptr, self.indices, data, self.is_canonical, self.longest)

    def with_index_dtype(self, dtype: Any) -> Csr:
        """Return the same matrix with index arrays of another dtype; itself if they have it already."""
        if self.indices.dtype == dtype:
            return self
        return replace(self, indptr=self.indptr.astype(dtype), indices=self.indices.astype(dtype))


@dataclass(frozen=True, eq=False)
class LongRows:
    """Long rows, which are computed separately from the other rows.

    Each long row is cut into chunks. On a GPU, a warp computes the sum of a chunk, and the last warp of a row adds the
    sums of its chunks. On a CPU, the threads share the chunks and add the sums after all of them. The sums are added in
    a fixed order, so that the result does not depend on which thread finishes first.

    Attributes
    ----------
    rows : array of int32, shape (num_long,)
        The numbers of the long rows, in increasing order.
    begins, ends : arrays of int64, shape (num_long,)
        The entries of row ``rows[i]`` have the positions ``begins[i]:ends[i]``.
    first_chunk : array of int32, shape (num_long + 1,)
        Row ``rows[i]`` has the chunks ``first_chunk[i]:first_chunk[i + 1]``.
    chunk_rows : array of int32, shape (num_chunks,)
        Chunk c belongs to row ``rows[chunk_rows[c]]``.
    chunk_size : int
        Number of entries in a chunk.
    long_length : int
        Rows with more entries than this are long rows.
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
class CsrEntries(StoredMatrix):
    """What the CSR kernels read: the row pointers, and the columns and values in CSR's order, plain or encoded.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
    indptr : array of int32 or int64, shape (num_rows + 1,)
    columns : Columns
    values : Values
    long_rows : LongRows or None
        The long rows. None if there are none, and always on a CPU.
    """

    indptr: Array
    columns: Columns
    values: Values
    long_rows: LongRows | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        long_rows = 0 if self.long_rows is None else self.long_rows.nbytes
        return int(self.indptr.nbytes) + self.columns.nbytes + self.values.nbytes + long_rows

    @property
    def dtype(self) -> Any:
        return self.values.dtype


# ------------------------------------------------------------------------------------------------------ the formats


class CsrStructure(Protocol):
    """What the schedules of CSR need to know about the row pointers and columns of a matrix."""

    csr: Csr
    device: Device

    @property
    def rows(self) -> RowStats: ...
    @property
    def csr_column_dtype(self) -> np.dtype[Any]: ...
    @property
    def csr_columns(self) -> Columns: ...
    @property
    def scalar_length(self) -> int: ...
    @property
    def vector_length(self) -> int: ...
    def csr_long_rows(self, limit: int) -> LongRows | None: ...


def _describe(matrix: Preparation[CsrStructure], level: AnalysisLevel) -> Storage:
    structure = matrix.structure
    columns: np.dtype[Any] = np.dtype(structure.csr.indices.dtype)
    if level and matrix.encoding.columns:
        columns = structure.csr_column_dtype
    values = matrix.values if level else matrix.plain_values
    pointers = int(structure.csr.indptr.nbytes)
    return describe_positions(columns, values, structure.rows.nnz, pointers, structure.device.lanes)


def _build(
    limit_of: Callable[[CsrStructure], int],
) -> Callable[[Preparation[CsrStructure]], CsrEntries]:
    """Return the function that builds CSR. Rows with more than ``limit_of(structure)`` entries are long rows."""

    def build(matrix: Preparation[CsrStructure]) -> CsrEntries:
        structure, csr = matrix.structure, matrix.structure.csr
        columns = structure.csr_columns if matrix.encoding.columns else Columns(csr.indices)
        long_rows = structure.csr_long_rows(limit_of(structure))
        return CsrEntries(csr.shape, csr.nnz, csr.indptr, columns, matrix.values, long_rows)

    return build


def _terms(stats: RowStats, limit: float, threads: float) -> dict[str, float]:
    """Count the terms of a kernel in which `threads` threads share a row, and rows above `limit` are cut in chunks."""
    rows, entries = share_above(stats, limit) if stats.nnz else (0.0, 0.0)
    chunks = num_chunks(rows * (stats.num_rows - stats.num_empty), entries * stats.nnz)
    return {"step": num_rounds(stats, limit, threads), "chunk": chunks}


def _scalar_terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    return _terms(stats, SCALAR_LENGTH, 1.0)


def _vector_terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    threads = launch.threads_per_row
    return _terms(stats, vector_length(threads), threads)


def _fits_any(stats: RowStats) -> bool:
    return True


CSR_SCALAR = StorageFormat(
    name="csr_scalar",
    layout="csr",
    schedule="scalar",
    reads_csr=True,
    fits=_fits_any,
    requirement="it fits every matrix",
    describe=_describe,
    build=_build(lambda structure: structure.scalar_length),
    structure_arrays=("csr_columns", "csr_long_rows_by_limit"),
    terms=_scalar_terms,
    costs=MEASURED_COSTS["csr_scalar"],
)

CSR_VECTOR = replace(
    CSR_SCALAR,
    name="csr_vector",
    schedule="vector",
    build=_build(lambda structure: structure.vector_length),
    terms=_vector_terms,
    costs=MEASURED_COSTS["csr_vector"],
)
