"""What depends on row pointers and columns alone: the positions of entries, encoded columns, and rows that repeat.

Each array is made on the device when it is first needed, and is kept. Matrices that differ in their values only share
a structure. The kernels are those of the device's backend (`gsparse.kernels`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, TypeVar

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Csr, LongRows, padding_code
from gsparse.formats.costs import vector_length
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.registry import REGISTRY
from gsparse.formats.row_stats import MAX_INT32, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import Survey
from gsparse.plan.choice import threads_per_row
from gsparse.products import dense_blocks, repeated_rows, row_lanes, sliced_rows, transposed_rows

# The dtypes of columns that are stored relative to a base, the narrowest first.
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

_Made = TypeVar("_Made")


@dataclass(eq=False)
class Structure:
    """Everything that depends on the row pointers and columns of a matrix alone.

    Parameters
    ----------
    device : Device
    csr : Csr
        The arrays without values, because matrices with other values share this structure.
    known_blocksize : (int, int), optional
        The size of the full dense blocks of which the matrix consists, if the code that made the arrays knows it. They
        are then not searched for.
    """

    device: Device
    csr: Csr
    known_blocksize: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        device: Device,
        csr: Csr,
        survey: Survey | None = None,
        known_blocksize: tuple[int, int] | None = None,
    ) -> Structure:
        """Return the structure of a matrix. `survey` is that of these arrays, if it has been made already."""
        structure = cls(device, csr.with_data(device.no_values(csr.dtype)), known_blocksize)
        if survey is not None:
            structure.__dict__["survey"] = survey
        return structure

    def free_arrays_except(self, kept: Collection[str]) -> None:
        """Free the arrays of all formats except those with these names (`StorageFormat.structure_arrays`).

        Such an attribute is a `cached_property`, so deleting its value from ``__dict__`` frees it, and the next access
        makes it again. Statistics are kept.
        """
        names = {"_row_dictionary", "_lane_positions"}.union(*(format.structure_arrays for format in REGISTRY.values()))
        for name in names.difference(kept):
            self.__dict__.pop(name, None)

    def release(self) -> None:
        """Free all arrays that can be made again."""
        self.free_arrays_except(())
        for name in ("transposition", "row_numbers"):
            self.__dict__.pop(name, None)

    def cached(self, name: str, make: Callable[[], _Made]) -> _Made:
        """Return arrays that the code of a format makes, and cache them (`StorageFormat.structure_arrays`).

        Parameters
        ----------
        name : str
        make : callable
            Makes the arrays from row pointers and columns alone, because matrices with other values share them.
        """
        made: _Made | None = self.__dict__.get(name)
        if made is None:  # Another thread may free the cached arrays at any time, so they are not looked up again.
            made = self.__dict__[name] = make()
        return made

    @cached_property
    def survey(self) -> Survey:
        """The statistics of row pointers and columns, which one pass over both collects. Synchronizes."""
        device, csr = self.device, self.csr
        return kernels_of(device).layout.survey(
            device, csr.indptr, csr.indices, bool(kernels_of(device).encode.CSR_CODES)
        )

    @property
    def known_survey(self) -> Survey | None:
        """The survey, if it has been made."""
        return self.__dict__.get("survey")

    @cached_property
    def rows(self) -> RowStats:
        """Statistics of the row lengths."""
        csr, survey = self.csr, self.survey
        mean = csr.nnz / csr.num_rows if csr.num_rows else 0.0
        variance = survey.sum_squares / csr.num_rows - mean * mean if csr.num_rows else 0.0
        return RowStats(
            num_rows=csr.num_rows,
            num_cols=csr.num_cols,
            nnz=csr.nnz,
            min_length=survey.min_length,
            max_length=survey.max_length,
            mean_length=mean,
            std_length=sqrt(max(variance, 0.0)),
            num_empty=survey.num_empty,
            blocked_stored=survey.blocked_stored,
            split_stored=survey.split_stored,
            num_long=survey.num_long,
            long_entries=survey.long_entries,
        )

    # ------------------------------------------------------------- the transpose

    transposition = cached_property(transposed_rows.transposition)
    known_transposition = property(transposed_rows.known_transposition)
    row_numbers = cached_property(transposed_rows.row_numbers)

    # ------------------------------------------------------------- the positions of entries

    slices = cached_property(sliced_rows.slices)
    slice_stats = cached_property(sliced_rows.slice_stats)
    natural_slices = cached_property(sliced_rows.natural_slices)

    def csr_long_rows(self, limit: int) -> LongRows | None:
        """Return the rows with more than `limit` entries, with their positions in CSR, or None if there are none.

        Also None if `limit` is `NO_LIMIT`, or if the matrix has too many rows for int32 numbers.
        """
        if limit == NO_LIMIT or self.rows.max_length <= limit or self.csr.num_rows > MAX_INT32:
            return None
        long_rows = self.csr_long_rows_by_limit.get(limit)
        if long_rows is None:
            long_rows, _ = kernels_of(self.device).layout.long_rows(self.device, self.csr.indptr, self.survey, limit)
            self.csr_long_rows_by_limit[limit] = long_rows
        return long_rows

    @cached_property
    def csr_long_rows_by_limit(self) -> dict[int, LongRows]:
        return {}

    # ------------------------------------------------------------- columns

    def _narrowest(
        self, columns: Array, candidates: tuple[np.dtype[Any], ...], span: int | None = None
    ) -> np.dtype[Any]:
        """Return the narrowest dtype for columns relative to the base of their run. Synchronizes without `span`.

        Parameters
        ----------
        columns : array
        candidates : tuple of dtype
            The narrowest first. If none of them suffices, the result is the dtype of `columns`.
        span : int, optional
            The largest distance between two columns of a run, if it is known.
        """
        plain: np.dtype[Any] = np.dtype(columns.dtype)
        if not candidates or not columns.size or self.csr.num_cols > MAX_INT32:
            return plain
        if span is None:
            span = kernels_of(self.device).encode.run_span(self.device, columns, self.csr.num_cols)
        return next((dtype for dtype in candidates if span < padding_code(dtype)), plain)

    def narrowed(self, columns: Array, dtypes: tuple[np.dtype[Any], ...] = _NARROW) -> Columns:
        """Return columns at the positions of a padded format in the narrowest of some dtypes. Synchronizes."""
        return self._encode(columns, self._narrowest(columns, dtypes))

    def _encode(self, columns: Array, dtype: np.dtype[Any]) -> Columns:
        if dtype == columns.dtype:
            return Columns(columns)
        return kernels_of(self.device).encode.encode_columns(self.device, columns, dtype)

    @cached_property
    def csr_column_dtype(self) -> np.dtype[Any]:
        """The narrowest dtype for columns in CSR's order."""
        return self._narrowest(self.csr.indices, kernels_of(self.device).encode.CSR_CODES, self.survey.run_span)

    @cached_property
    def csr_columns(self) -> Columns:
        """Columns in CSR's order, encoded."""
        return self._encode(self.csr.indices, self.csr_column_dtype)

    slice_column_dtype = cached_property(sliced_rows.slice_column_dtype)
    slice_columns = cached_property(sliced_rows.slice_columns)
    plain_slice_columns = sliced_rows.plain_slice_columns
    lay_out = sliced_rows.lay_out

    @cached_property
    def ellpack_column_dtype(self) -> np.dtype[Any]:
        """The dtype of `ellpack_columns`. It remains known after these have been freed. Synchronizes."""
        dtype: np.dtype[Any] = np.dtype(self.ellpack_columns.codes.dtype)
        return dtype

    @cached_property
    def ellpack_columns(self) -> Columns:
        """Columns at the positions of ELLPACK, encoded. Synchronizes."""
        columns = self.plain_ellpack_columns()
        return self.narrowed(columns)

    def plain_ellpack_columns(self) -> Array:
        """Return the columns at the positions of ELLPACK, not encoded."""
        return self.lay_out_ellpack(self.csr.indices, padding_code(self.csr.indices.dtype))

    @property
    def scalar_length(self) -> int:
        """Rows with more entries than this are long rows of `csr_scalar`."""
        return int(kernels_of(self.device).layout.SCALAR_LENGTH)

    @property
    def vector_length(self) -> int:
        """Rows with more entries than this are long rows of `csr_vector`."""
        threads = threads_per_row(self.rows.typical_length, self.device.lanes, self.rows.num_rows)
        return NO_LIMIT if self.scalar_length == NO_LIMIT else vector_length(threads)

    @property
    def pitch(self) -> int:
        """Number of rows in ELLPACK: those of the matrix, rounded up to a multiple of the lanes of a warp."""
        return -(-self.csr.num_rows // self.device.lanes) * self.device.lanes

    def lay_out_ellpack(self, items: Array, padding: Any) -> Array:
        """Arrange items from CSR's order at the positions of ELLPACK, with `padding` at positions without an entry."""
        width = self.rows.max_length
        return kernels_of(self.device).layout.lay_out_ellpack(
            self.device, self.csr.indptr, items, width, self.pitch, padding
        )

    # ------------------------------------------------------------- dense blocks

    blocksize = cached_property(dense_blocks.blocksize)
    block_rows = cached_property(dense_blocks.block_rows)
    block_stats = cached_property(dense_blocks.block_stats)
    plain_block_columns = dense_blocks.plain_block_columns
    lay_out_blocks = dense_blocks.lay_out_blocks

    def of_parts(self, parts: Csr) -> Structure:
        """Return the structure of CSR arrays that are made of this one, on the same device."""
        return Structure.of(self.device, parts)

    # --------------------------------------------------------------- row lanes

    has_hubs = cached_property(row_lanes.has_hubs)
    most_steps = property(row_lanes.most_steps)
    lane_slices = cached_property(row_lanes.lane_slices)
    lane_stats = cached_property(row_lanes.lane_stats)
    lane_codes = cached_property(row_lanes.placed_columns)
    _lane_positions = cached_property(row_lanes.lane_positions)
    rare_columns = row_lanes.rare_columns
    lay_out_lanes = row_lanes.lay_out_lanes

    # ------------------------------------------------------------- rows that repeat

    _row_dictionary = cached_property(repeated_rows.row_dictionary)
    rows_repeat = cached_property(repeated_rows.rows_repeat)
    patterns = cached_property(repeated_rows.patterns)
    pattern_stats = cached_property(repeated_rows.pattern_stats)
