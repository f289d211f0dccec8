"""Blocked ELLPACK (sliced ELLPACK, SELL-C-σ): ELLPACK within slices of one warp's rows, long rows kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gsparse.device.dtypes import Array
from gsparse.formats.csr import LongRows
from gsparse.formats.entries import Columns, Values

__all__ = ["BlockedEllpack", "Slices"]


@dataclass(frozen=True, eq=False)
class Slices:
    """Where each entry of a matrix is stored.

    Slice s holds the rows ``rows[s * slice_size : (s + 1) * slice_size]``, or without `rows` those very numbers, padded
    to the longest of them. Entry j of the row at place l of slice s is at position
    ``slice_offsets[s] + j * slice_size + l``; the last slice is stored whole even where rows end within it. After the
    last slice come the long rows, each from the beginning of a run on, one entry after the other.

    Attributes
    ----------
    num_rows : int
    slice_size : int
        C, the rows of a slice: the lanes of a warp.
    sorting_scope : int
        σ, the rows among which rows of like length were gathered; 1 where rows keep their order.
    slice_offsets : array of int64, shape (num_slices + 1,)
        Where each slice begins. int64 always: padding can pass 2**31 where nnz does not.
    rows : array of int32 or int64, shape (num_slices * slice_size,), optional
        The row at each place; -1 where none is: past the last row, or a long row's.
    long_rows : LongRows or None
    long_length : int
        Rows with more entries than this are kept apart.
    num_places : int
        Positions of the slices; long rows begin there.
    num_positions : int
    """

    num_rows: int
    slice_size: int
    sorting_scope: int
    slice_offsets: Array
    rows: Array | None
    long_rows: LongRows | None
    long_length: int
    num_places: int
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
class BlockedEllpack:
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

    shape: tuple[int, int]
    nnz: int
    slices: Slices
    columns: Columns
    values: Values

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def num_stored(self) -> int:
        return self.slices.num_positions

    @property
    def padding_ratio(self) -> float:
        return self.num_stored / self.nnz if self.nnz else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return self.slices.nbytes + self.columns.nbytes + self.values.nbytes

    @property
    def dtype(self) -> Any:
        return self.values.dtype
