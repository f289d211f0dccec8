"""Blocked ELLPACK as a storage format: each slice holds the rows of one warp; long rows are stored separately."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.formats import BlockedEllpack, Columns, Slices, padding_code
from gsparse.formats.costs import MICROSECOND, KernelModel, num_chunks, num_rounds
from gsparse.formats.launch import NO_LIMIT, Launch
from gsparse.formats.registry import AnalysisLevel, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import MAX_INT32, MAX_PADDING, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import PaddedColumns, SparsityPattern, releasable


class SliceStats(NamedTuple):
    """Sizes of the slices of a matrix, which remain known after the slices have been freed.

    Attributes
    ----------
    num_positions : int
        Number of positions, padding included.
    nbytes : int
        Bytes of the arrays that say where rows are stored.
    is_in_order : bool
        Whether the slices hold all rows, in their natural order, and no long rows are stored separately.
    """

    num_positions: int
    nbytes: int
    is_in_order: bool


class SlicedRows(PaddedColumns):
    """The slices that store the rows, and the column at each position of the slices."""

    @releasable
    def slices(self) -> Slices:
        """The slices of blocked ELLPACK. Synchronizes.

        Rows keep their order if this needs little padding, or if int32 cannot number the rows. Otherwise, long rows are
        not stored in slices. If the other rows still need much padding, they are sorted by length within groups of
        `SORTING_SCOPE` rows.
        """
        stats, limit, sort = self.sparsity.rows, NO_LIMIT, False
        if stats.blocked_stored > MAX_PADDING * stats.nnz and stats.num_rows <= MAX_INT32:
            limit = kernels_of(self.sparsity.device).layout.LONG_LENGTH if stats.num_long else NO_LIMIT
            sort = stats.wants_sorting
        return cut_slices(self.sparsity, limit, sort)

    @cached_property
    def stats(self) -> SliceStats:
        """Sizes of the slices. They remain known after the slices have been freed. Synchronizes."""
        slices = self.slices
        return SliceStats(slices.num_positions, slices.nbytes, slices.rows is None)

    def plain_columns(self) -> Array:
        """Return the columns in the order of the slices' positions, not encoded."""
        indices = self.sparsity.csr.indices
        return self.sparsity.lay_out(indices, self.slices, padding_code(indices.dtype))


def cut_slices(sparsity: SparsityPattern, limit: int = NO_LIMIT, sort: bool = False) -> Slices:
    """Cut the rows into slices, sorted by length if `sort`; rows above `limit` are long rows. Synchronizes."""
    device, layout, indptr = sparsity.device, kernels_of(sparsity.device).layout, sparsity.csr.indptr
    rows, offsets, num_positions = layout.cut_slices(device, indptr, sparsity.survey, limit, sort)
    long_rows, end = None, num_positions
    if limit != NO_LIMIT:
        long_rows, end = layout.long_rows(device, indptr, sparsity.survey, limit, num_positions)
    scope = layout.SORTING_SCOPE if sort else 1
    return Slices(sparsity.csr.num_rows, device.lanes, scope, offsets, rows, long_rows, limit, num_positions, end)


def fits_slices(stats: RowStats) -> bool:
    """Return whether slices can hold a matrix.

    Sorted slices number the rows in int32. Other slices count only the entries of one row in int32.
    """
    return stats.num_rows <= MAX_INT32 or stats.max_length <= MAX_INT32


def _describe(matrix: MatrixPreparation, level: AnalysisLevel) -> Storage:
    sparsity, sliced = matrix.sparsity, matrix.structure.part(SlicedRows)
    lanes = sparsity.device.lanes
    positions, offsets = sparsity.rows.blocked_stored, 8 * (sparsity.pitch // lanes + 1)
    columns: np.dtype[Any] = np.dtype(matrix.sparsity.csr.indices.dtype)
    if level:
        positions, offsets, _ = sliced.stats
        columns = sliced.column_dtype if matrix.encoding.columns else columns
    values = matrix.values if level else matrix.plain_values
    return describe_positions(columns, values, positions, offsets, lanes)


def _build(matrix: MatrixPreparation) -> BlockedEllpack:
    csr, sliced = matrix.sparsity.csr, matrix.structure.part(SlicedRows)
    slices = sliced.slices
    columns = sliced.columns if matrix.encoding.columns else Columns(sliced.plain_columns())
    values = matrix.values.rearranged(lambda codes: sliced.sparsity.lay_out(codes, slices, 0))
    return BlockedEllpack(csr.shape, csr.nnz, slices, columns, values)


def slice_terms(stats: RowStats, limit: float, lanes: float = 1.0) -> dict[str, float]:
    """Return how often the costs `step`, `chunk` and `sorted` of `KernelModel` occur in a product with slices.

    Parameters
    ----------
    stats : RowStats
    limit : float
        Rows with more entries than this are long rows.
    lanes : float
        Number of threads that share a row.
    """
    chunks = num_chunks(stats.num_long, stats.long_entries) if stats.max_length > limit else 0.0
    return {
        "step": num_rounds(stats, limit, lanes),
        "chunk": chunks,
        "sorted": stats.num_rows if stats.wants_sorting else 0,
    }


def _terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    """Return `slice_terms`. There are long rows only if fewer positions are stored than slices of all rows need."""
    return slice_terms(stats, long_length if storage.num_stored < stats.blocked_stored else stats.max_length)


BLOCKED_ELLPACK = StorageFormat(
    name="blocked_ellpack",
    layout="blocked_ellpack",
    fits=fits_slices,
    requirement=f"it needs at most {MAX_INT32} rows, or rows of at most {MAX_INT32} entries: it counts in int32",
    describe=_describe,
    build=_build,
    parts=(SlicedRows,),
    terms=_terms,
    costs={
        "gpu": KernelModel(
            fixed=2.45 * MICROSECOND,
            byte=9.61e-14,
            stream=1.33e-13,
            step=0.166 * MICROSECOND,
            chunk=7.23e-10,
            sorted=5.43e-12,
            coded=4.38e-13,
            narrow=3.86e-13,
            table=2.88e-12,
            setup=8.0,
        ),
        "cpu": KernelModel(
            fixed=9.5 * MICROSECOND,
            byte=1.16e-11,
            stream=3.86e-11,
            position=2.71e-10,
            row=3.92e-10,
            chunk=2.73e-08,
            sorted=1.16e-09,
            coded=1.9e-10,
            narrow=3.33e-11,
            table=1.82e-10,
            setup=20.0,
        ),
    },
)
