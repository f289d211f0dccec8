"""Slices of blocked ELLPACK: how rows are gathered in them, and the columns at their positions.

These functions are properties and methods of `gsparse.products.structure.Structure`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Csr, Slices, padding_code
from gsparse.formats.blocked_ellpack import SliceStats
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.row_stats import MAX_INT32, MAX_PADDING, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import Survey


class SlicedStructure(Protocol):
    """What these functions need to know about the structure of a matrix."""

    device: Device
    csr: Csr

    @property
    def rows(self) -> RowStats: ...
    @property
    def survey(self) -> Survey: ...
    @property
    def slices(self) -> Slices: ...
    @property
    def slice_columns(self) -> Columns: ...
    def plain_slice_columns(self) -> Array: ...
    def lay_out(self, items: Array, slices: Slices, padding: Any) -> Array: ...
    def narrowed(self, columns: Array, dtypes: tuple[np.dtype[Any], ...] = ...) -> Columns: ...


def slices(structure: SlicedStructure) -> Slices:
    """The slices of blocked ELLPACK. Synchronizes.

    Rows keep their order if that needs little padding, or if int32 cannot number them. Otherwise long rows are not
    stored in slices. If the other rows still need much padding, they are sorted by length within `sorting_scope` rows.
    """
    stats, limit, sort = structure.rows, NO_LIMIT, False
    if stats.blocked_stored > MAX_PADDING * stats.nnz and stats.num_rows <= MAX_INT32:
        limit = kernels_of(structure.device).layout.LONG_LENGTH if stats.num_long else NO_LIMIT
        sort = stats.wants_sorting
    return _cut(structure, limit, sort)


def slice_stats(structure: SlicedStructure) -> SliceStats:
    """Sizes of the slices. They remain known after the slices have been freed. Synchronizes."""
    return SliceStats(structure.slices.num_positions, structure.slices.nbytes, structure.slices.rows is None)


def natural_slices(structure: SlicedStructure) -> Slices:
    """Slices of all rows in their order, however much padding that needs. Synchronizes."""
    has_slices = "slices" in vars(structure)
    is_in_order = has_slices and structure.slices.rows is None
    return structure.slices if is_in_order else _cut(structure, NO_LIMIT, False)


def _cut(structure: SlicedStructure, limit: int, sort: bool) -> Slices:
    device, kernels, indptr = structure.device, kernels_of(structure.device), structure.csr.indptr
    rows, offsets, num_positions = kernels.layout.cut_slices(device, indptr, structure.survey, limit, sort)
    long_rows, end = None, num_positions
    if limit != NO_LIMIT:
        long_rows, end = kernels.layout.long_rows(device, indptr, structure.survey, limit, num_positions)
    scope = kernels.layout.SORTING_SCOPE if sort else 1
    return Slices(structure.csr.num_rows, device.lanes, scope, offsets, rows, long_rows, limit, num_positions, end)


def slice_column_dtype(structure: SlicedStructure) -> np.dtype[Any]:
    """The dtype of `slice_columns`. It remains known after these have been freed. Synchronizes."""
    dtype: np.dtype[Any] = np.dtype(structure.slice_columns.codes.dtype)
    return dtype


def slice_columns(structure: SlicedStructure) -> Columns:
    """Columns at the positions of the slices, encoded. Synchronizes."""
    return structure.narrowed(structure.plain_slice_columns())


def plain_slice_columns(self: SlicedStructure) -> Array:
    """Return the columns at the positions of the slices, not encoded."""
    return self.lay_out(self.csr.indices, self.slices, padding_code(self.csr.indices.dtype))


def lay_out(self: SlicedStructure, items: Array, slices: Slices, padding: Any) -> Array:
    """Arrange items from CSR's order at the positions of slices, with `padding` at positions without an entry."""
    return kernels_of(self.device).layout.lay_out(self.device, self.csr.indptr, items, slices, padding)
