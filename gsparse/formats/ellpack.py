"""ELLPACK: every row is padded to the length of the longest one, and stored column-major."""

from __future__ import annotations

from dataclasses import dataclass

from gsparse.formats.entries import Columns, StoredMatrix, Values


@dataclass(frozen=True, eq=False)
class Ellpack(StoredMatrix):
    """ELLPACK arrays on one device.

    Entry j of row i has the position ``j * pitch + i``, so the threads of a warp, each of which has one row, read
    neighbouring elements. Positions without an entry have the padding code as their column (`padding_code`).

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    width : int
        Length of the longest row.
    pitch : int
        Number of rows, rounded up to a multiple of the lanes of a warp.
    columns : Columns
    values : Values
    """

    width: int
    pitch: int
    columns: Columns
    values: Values

    @property
    def num_stored(self) -> int:
        return self.width * self.pitch

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        return self.columns.nbytes + self.values.nbytes
