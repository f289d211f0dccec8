"""ELLPACK as a storage format: every row is padded to the length of the longest row, and stored column-major."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Ellpack, padding_code
from gsparse.formats.costs import MICROSECOND, KernelModel
from gsparse.formats.registry import AnalysisLevel, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import MAX_INT32, MAX_PADDING
from gsparse.kernels.backends import kernels_of
from gsparse.products.blocked_ellpack import SlicedRows, fits_slices
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import PaddedColumns

# With at most this number of positions, columns are encoded even if there is much padding.
_MAX_ANALYZED_POSITIONS = 2**16


class PaddedRows(PaddedColumns):
    """The columns in the order of ELLPACK's positions."""

    def plain_columns(self) -> Array:
        """Return the columns in the order of ELLPACK's positions, not encoded."""
        indices = self.sparsity.csr.indices
        return self.lay_out(indices, padding_code(indices.dtype))

    def lay_out(self, items: Array, padding: Any) -> Array:
        """Arrange items from CSR's order in ELLPACK's order, with `padding` at positions without an entry."""
        sparsity, width = self.sparsity, self.sparsity.rows.max_length
        return kernels_of(sparsity.device).layout.lay_out_ellpack(
            sparsity.device, sparsity.csr.indptr, items, width, sparsity.pitch, padding
        )


def _encodes_columns(matrix: MatrixPreparation) -> bool:
    """Return whether columns are encoded. With much padding they are not, because encoding would take much memory."""
    sparsity = matrix.sparsity
    positions = sparsity.rows.max_length * sparsity.pitch
    return matrix.encoding.columns and positions <= max(_MAX_ANALYZED_POSITIONS, MAX_PADDING * sparsity.rows.nnz)


def _column_dtype(matrix: MatrixPreparation, level: AnalysisLevel) -> np.dtype[Any]:
    """Return the dtype of the columns; only an estimate if several formats are compared.

    For a comparison, no columns are arranged for ELLPACK. The estimate is the dtype of blocked ELLPACK's columns if
    blocked ELLPACK keeps the order of all rows, otherwise the dtype of CSR's columns.
    """
    structure = matrix.structure
    if level is AnalysisLevel.FULL and _encodes_columns(matrix):
        return structure.part(PaddedRows).column_dtype
    if level is AnalysisLevel.SHARED and fits_slices(structure.sparsity.rows):
        sliced = structure.part(SlicedRows)
        if sliced.stats.is_in_order:
            return sliced.column_dtype
    plain: np.dtype[Any] = np.dtype(matrix.sparsity.csr.indices.dtype)
    return plain


def _describe(matrix: MatrixPreparation, level: AnalysisLevel) -> Storage:
    sparsity = matrix.sparsity
    columns = _column_dtype(matrix, level if matrix.encoding.columns else AnalysisLevel.NONE)
    values = matrix.values if level else matrix.plain_values
    positions = sparsity.rows.max_length * sparsity.pitch
    return describe_positions(columns, values, positions, 0, sparsity.device.lanes)


def _build(matrix: MatrixPreparation) -> Ellpack:
    sparsity, csr, padded = matrix.sparsity, matrix.sparsity.csr, matrix.structure.part(PaddedRows)
    columns = padded.columns if _encodes_columns(matrix) else Columns(padded.plain_columns())
    values = matrix.values.rearranged(lambda codes: padded.lay_out(codes, 0))
    return Ellpack(csr.shape, csr.nnz, sparsity.rows.max_length, sparsity.pitch, columns, values)


ELLPACK = StorageFormat(
    name="ellpack",
    layout="ellpack",
    fits=lambda stats: stats.max_length <= MAX_INT32,
    requirement=f"it counts the entries of a row in int32, up to {MAX_INT32}",
    describe=_describe,
    build=_build,
    parts=(PaddedRows,),
    costs={
        "gpu": KernelModel(
            fixed=1.71 * MICROSECOND,
            byte=4.96e-14,
            stream=1.67e-13,
            row=3.1e-12,
            step=0.344 * MICROSECOND,
            coded=2.32e-13,
            narrow=3.95e-13,
            table=9.1e-13,
            setup=6.0,
        ),
        "cpu": KernelModel(
            fixed=8.64 * MICROSECOND,
            byte=1.32e-11,
            stream=3.21e-11,
            position=3.64e-10,
            stride=7.19e-13,
            coded=2.51e-10,
            narrow=6.48e-11,
            setup=20.0,
        ),
    },
)
