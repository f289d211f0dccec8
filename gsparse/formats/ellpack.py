"""ELLPACK: every row padded to the longest, stored column-major."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gsparse.formats.entries import Columns, Values

__all__ = ["Ellpack"]


@dataclass(frozen=True, eq=False)
class Ellpack:
    """ELLPACK arrays on one device.

    Entry j of row i is at position ``j * pitch + i``, so the threads of a warp, a row each, read side by side.
    Positions without an entry have the padding code for a column (`gsparse.formats.entries`).

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    width : int
        Length of the longest row.
    pitch : int
        Rows, rounded up to whole runs (warps).
    columns : Columns
    values : Values
    """

    shape: tuple[int, int]
    nnz: int
    width: int
    pitch: int
    columns: Columns
    values: Values

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def num_stored(self) -> int:
        return self.width * self.pitch

    @property
    def padding_ratio(self) -> float:
        return self.num_stored / self.nnz if self.nnz else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return self.columns.nbytes + self.values.nbytes

    @property
    def dtype(self) -> Any:
        return self.values.dtype
