"""Compressed sparse rows (CSR): the arrays from which every other format is built, and the arrays of CSR kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gsparse.device.dtypes import Array
from gsparse.formats.entries import Columns, StoredMatrix, Values


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
        Whether columns are known to increase strictly within each row. False if they do not, or if it is not known.
    longest : int, optional
        An upper bound of the row lengths. None if no bound is known.
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
        """Return the number of places on the diagonal on which column minus row is `offset`."""
        return max(min(self.num_rows - max(-offset, 0), self.num_cols - max(offset, 0)), 0)

    def with_data(self, data: Array) -> Csr:
        """Return a matrix with the same structure and other values."""
        return Csr(self.shape, self.indptr, self.indices, data, self.is_canonical, self.longest)

    def with_index_dtype(self, dtype: Any) -> Csr:
        """Return the matrix with index arrays of this dtype; the same object if they already have this dtype."""
        if self.indices.dtype == dtype:
            return self
        return replace(self, indptr=self.indptr.astype(dtype), indices=self.indices.astype(dtype))


@dataclass(frozen=True, eq=False)
class LongRows:
    """Long rows, which are computed separately from the other rows.

    Each long row is cut into chunks. On a GPU, a warp computes the sum of a chunk, and the last warp of a row to finish
    adds up the sums of the row's chunks. On a CPU, the threads share the chunks, and add up the sums when all chunks
    are done. The order of addition is fixed, so the result does not depend on which thread finishes first.

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
    """The arrays that CSR kernels read: row pointers, and columns and values in CSR's order, plain or encoded.

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

    @classmethod
    def of(cls, csr: Csr, long_rows: LongRows | None = None) -> CsrEntries:
        """Return the arrays of a matrix, neither encoded nor copied."""
        return cls(csr.shape, csr.nnz, csr.indptr, Columns(csr.indices), Values(csr.data), long_rows)

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        long_rows = 0 if self.long_rows is None else self.long_rows.nbytes
        return int(self.indptr.nbytes) + self.columns.nbytes + self.values.nbytes + long_rows
