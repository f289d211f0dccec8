"""Compressed sparse rows: the arrays every other format is built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gsparse._typing import Array

__all__ = ["Csr"]


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
    def num_stored(self) -> int:
        return self.nnz

    @property
    def padding_ratio(self) -> float:
        return 1.0

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
