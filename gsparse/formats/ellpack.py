"""ELLPACK: every row is padded to the length of the longest one, and stored column-major."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.blocked_ellpack import SliceStats, fits_slices
from gsparse.formats.csr import Csr
from gsparse.formats.entries import Columns, StoredMatrix, Values
from gsparse.formats.measured_costs import MEASURED_COSTS
from gsparse.formats.registry import AnalysisLevel, Preparation, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import MAX_INT32, MAX_PADDING, RowStats

# Up to this number of positions, columns are encoded even if there is much padding.
_MAX_ANALYZED_POSITIONS = 2**16


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

    @property
    def dtype(self) -> Any:
        return self.values.dtype


# ------------------------------------------------------------------------------------------------------- the format


class EllpackStructure(Protocol):
    """What ELLPACK needs to know about the row pointers and columns of a matrix."""

    csr: Csr
    device: Device

    @property
    def rows(self) -> RowStats: ...
    @property
    def pitch(self) -> int: ...
    @property
    def ellpack_columns(self) -> Columns: ...
    @property
    def ellpack_column_dtype(self) -> np.dtype[Any]: ...
    @property
    def slice_stats(self) -> SliceStats: ...
    @property
    def slice_column_dtype(self) -> np.dtype[Any]: ...
    def plain_ellpack_columns(self) -> Array: ...
    def lay_out_ellpack(self, items: Array, padding: Any) -> Array: ...


def _fits(stats: RowStats) -> bool:
    return stats.max_length <= MAX_INT32


def _encodes_columns(matrix: Preparation[EllpackStructure]) -> bool:
    """Return whether columns are encoded. With much padding they are not, because encoding would take much memory."""
    rows, positions = matrix.structure.rows, matrix.structure.rows.max_length * matrix.structure.pitch
    return matrix.encoding.columns and positions <= max(_MAX_ANALYZED_POSITIONS, MAX_PADDING * rows.nnz)


def _column_dtype(matrix: Preparation[EllpackStructure], level: AnalysisLevel) -> np.dtype[Any]:
    """Return the dtype of the columns.

    When several formats are compared, columns are not laid out for ELLPACK. If blocked ELLPACK has all rows in natural
    order, the dtype of its columns, which is needed anyway, is then the estimate. Otherwise, that of CSR is.
    """
    structure = matrix.structure
    if level is AnalysisLevel.FULL and _encodes_columns(matrix):
        return structure.ellpack_column_dtype
    if level is AnalysisLevel.SHARED and fits_slices(structure.rows) and structure.slice_stats.is_in_order:
        return structure.slice_column_dtype
    plain: np.dtype[Any] = np.dtype(structure.csr.indices.dtype)
    return plain


def _describe(matrix: Preparation[EllpackStructure], level: AnalysisLevel) -> Storage:
    structure = matrix.structure
    columns = _column_dtype(matrix, level if matrix.encoding.columns else AnalysisLevel.NONE)
    values = matrix.values if level else matrix.plain_values
    positions = structure.rows.max_length * structure.pitch
    return describe_positions(columns, values, positions, 0, structure.device.lanes)


def _build(matrix: Preparation[EllpackStructure]) -> Ellpack:
    structure, csr = matrix.structure, matrix.structure.csr
    columns = structure.ellpack_columns if _encodes_columns(matrix) else Columns(structure.plain_ellpack_columns())
    values = matrix.values.rearranged(lambda codes: structure.lay_out_ellpack(codes, 0))
    return Ellpack(csr.shape, csr.nnz, structure.rows.max_length, structure.pitch, columns, values)


ELLPACK = StorageFormat(
    name="ellpack",
    layout="ellpack",
    fits=_fits,
    requirement=f"it counts the entries of a row in int32, up to {MAX_INT32}",
    describe=_describe,
    build=_build,
    structure_arrays=("ellpack_columns",),
    costs=MEASURED_COSTS["ellpack"],
)
