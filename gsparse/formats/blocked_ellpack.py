"""Blocked ELLPACK (sliced ELLPACK, SELL-C): ELLPACK within slices of one warp's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gsparse._typing import Array

__all__ = ["BlockedEllpack"]


@dataclass(frozen=True, eq=False)
class BlockedEllpack:
    """Blocked ELLPACK arrays on one device.

    Slice s holds rows ``s * slice_size`` to ``(s + 1) * slice_size``, padded to the longest of them. Entry j of row i
    is at ``slice_offsets[s] + j * slice_size + i % slice_size``; the last slice is stored whole even where rows end
    within it. Padding is as in ELLPACK.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    slice_size : int
        C, the rows of a slice: the lanes of a warp.
    slice_offsets : array of int64, shape (num_slices + 1,)
        Where each slice begins, in entries. int64 always: padding can pass 2**31 where nnz does not.
    indptr : array, shape (num_rows + 1,)
        CSR's own array, shared: the true row lengths, read only for sums that are NaN.
    indices : array of int32 or int64, shape (slice_offsets[-1],)
    data : array, shape (slice_offsets[-1],)

    References
    ----------
    .. [1] M. Kreutzer, G. Hager, G. Wellein, H. Fehske, A. R. Bishop, "A unified sparse matrix data format for
       efficient general sparse matrix-vector multiplication on modern processors with wide SIMD units",
       SIAM J. Sci. Comput. 36(5), 2014.
    """

    shape: tuple[int, int]
    nnz: int
    slice_size: int
    slice_offsets: Array
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
    def num_slices(self) -> int:
        return int(self.slice_offsets.size) - 1

    @property
    def num_stored(self) -> int:
        return int(self.indices.size)

    @property
    def padding_ratio(self) -> float:
        return self.num_stored / self.nnz if self.nnz else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return int(self.slice_offsets.nbytes + self.indices.nbytes + self.data.nbytes)

    @property
    def dtype(self) -> Any:
        return self.data.dtype
