"""ELLPACK: every row padded to the longest, stored column-major."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gsparse._typing import Array

__all__ = ["Ellpack"]


@dataclass(frozen=True, eq=False)
class Ellpack:
    """ELLPACK arrays on one device.

    Entry j of row i is at position ``j * num_rows + i``, so the threads of a warp, a row each, read side by side.
    A short row repeats its last column with value 0 (an empty row column 0), which leaves every finite sum as it is;
    a sum that came out NaN may owe it to 0·inf in the padding and is done again with the row's true length.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    width : int
        Length of the longest row.
    indptr : array, shape (num_rows + 1,)
        CSR's own array, shared: the true row lengths, read only for sums that are NaN.
    indices : array of int32 or int64, shape (width * num_rows,)
    data : array, shape (width * num_rows,)
    """

    shape: tuple[int, int]
    nnz: int
    width: int
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
    def num_stored(self) -> int:
        return int(self.indices.size)

    @property
    def padding_ratio(self) -> float:
        return self.num_stored / self.nnz if self.nnz else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return int(self.indices.nbytes + self.data.nbytes)

    @property
    def dtype(self) -> Any:
        return self.data.dtype
