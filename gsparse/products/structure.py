"""What depends on row pointers and columns alone: the positions of entries, encoded columns, and rows that repeat.

Each piece is made on the device when it is first needed, and is kept. Matrices that differ in their values only share
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
from gsparse.formats import Columns, Csr, LongRows, RowBlocks, Slices, Tiles, padding_code
from gsparse.formats.blocked_ellpack import SliceStats
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.registry import REGISTRY
from gsparse.formats.row_pattern import MAX_PATTERNS, Patterns, PatternStats
from gsparse.formats.row_stats import MAX_INT32, MAX_PADDING, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import Survey
from gsparse.plan.choice import threads_per_row
from gsparse.products.dictionary import Dictionary, find_dictionary

__all__ = ["Structure", "find_patterns", "find_row_dictionary"]

# Smallest average number of rows per pattern with which row patterns are a candidate. With fewer, hardly any rows are
# equal, and comparing all of them would take longer than the rest of the analysis.
_ROWS_PER_PATTERN = 4
# If the longest row has more entries than this, rows are not compared.
_LONGEST_REPEATED = 1024
# The dtypes of columns that are stored relative to a base, the narrowest first.
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

_Piece = TypeVar("_Piece")


@dataclass(eq=False)
class Structure:
    """Everything that depends on the row pointers and columns of a matrix alone.

    Parameters
    ----------
    device : Device
    csr : Csr
        The arrays without values, because matrices with other values share this structure.
    """

    device: Device
    csr: Csr

    @classmethod
    def of(cls, device: Device, csr: Csr, survey: Survey | None = None) -> Structure:
        """Return the structure of a matrix. A survey that has been made already is not made again."""
        structure = cls(device, csr.with_data(device.no_values(csr.dtype)))
        if survey is not None:
            structure.__dict__["survey"] = survey
        return structure

    def drop_pieces_except(self, pieces: Collection[str]) -> None:
        """Free the arrays of all formats except those with these names (`StorageFormat.pieces`).

        A piece is a `cached_property`, so deleting its value from ``__dict__`` frees it, and the next access makes it
        again. Statistics are no pieces, and are kept.
        """
        names = {"_row_dictionary"}.union(*(format.pieces for format in REGISTRY.values()))
        for name in names.difference(pieces):
            self.__dict__.pop(name, None)

    def piece(self, name: str, make: Callable[[], _Piece]) -> _Piece:
        """Return a piece that the code of a format makes, and cache it like the others (`StorageFormat.pieces`).

        Parameters
        ----------
        name : str
        make : callable
            Makes the piece from row pointers and columns alone, because matrices with other values share it.
        """
        if name not in self.__dict__:
            self.__dict__[name] = make()
        piece: _Piece = self.__dict__[name]
        return piece

    @cached_property
    def survey(self) -> Survey:
        """The statistics of row pointers and columns, which one pass over both collects. Synchronizes."""
        device, csr = self.device, self.csr
        return kernels_of(device).survey(device, csr.indptr, csr.indices, bool(kernels_of(device).CSR_CODES))

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

    # ------------------------------------------------------------- the positions of entries

    @cached_property
    def slices(self) -> Slices:
        """The slices of blocked ELLPACK. Synchronizes.

        Rows keep their order if that needs little padding. Otherwise long rows are not stored in slices. If the other
        rows still need much padding, they are sorted by length.
        """
        stats, limit, sort = self.rows, NO_LIMIT, False
        if stats.blocked_stored > MAX_PADDING * stats.nnz and stats.num_rows <= MAX_INT32:
            limit = kernels_of(self.device).LONG_LENGTH if stats.num_long else NO_LIMIT
            sort = stats.wants_sorting
        return self._cut(limit, sort)

    @cached_property
    def slice_stats(self) -> SliceStats:
        """Sizes of the slices. They remain known after the slices have been freed. Synchronizes."""
        return SliceStats(self.slices.num_positions, self.slices.nbytes, self.slices.rows is None)

    @cached_property
    def natural_slices(self) -> Slices:
        """Slices of all rows in their order, however much padding that needs. Synchronizes."""
        return self.slices if "slices" in self.__dict__ and self.slices.rows is None else self._cut(NO_LIMIT, False)

    def _cut(self, limit: int, sort: bool) -> Slices:
        device, kernels, indptr = self.device, kernels_of(self.device), self.csr.indptr
        rows, offsets, places = kernels.cut_slices(device, indptr, self.survey, limit, sort)
        long_rows, end = None, places
        if limit != NO_LIMIT:
            long_rows, end = kernels.long_rows(device, indptr, self.survey, limit, places)
        scope = kernels.SORTING_SCOPE if sort else 1
        return Slices(self.csr.num_rows, device.lanes, scope, offsets, rows, long_rows, limit, places, end)

    def csr_long_rows(self, limit: int) -> LongRows | None:
        """Return the rows with more than `limit` entries, with their positions in CSR, or None if there are none."""
        if limit == NO_LIMIT or self.rows.max_length <= limit or self.csr.num_rows > MAX_INT32:
            return None
        long_rows = self.csr_long_rows_by_limit.get(limit)
        if long_rows is None:
            long_rows, _ = kernels_of(self.device).long_rows(self.device, self.csr.indptr, self.survey, limit)
            self.csr_long_rows_by_limit[limit] = long_rows
        return long_rows

    @cached_property
    def csr_long_rows_by_limit(self) -> dict[int, LongRows]:
        return {}

    @cached_property
    def row_blocks(self) -> RowBlocks:
        """Blocks of consecutive rows of about equal work, for `csr_adaptive`. A long row is a block of its own."""
        return kernels_of(self.device).row_blocks(self.device, self.csr.indptr, self.survey)

    @cached_property
    def tiles(self) -> Tiles:
        """Equal shares of the merged list of entries and row ends, for `csr_split`."""
        return kernels_of(self.device).tiles(self.device, self.csr.indptr, self.survey)

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
            span = kernels_of(self.device).run_span(self.device, columns, self.csr.num_cols)
        return next((dtype for dtype in candidates if span < padding_code(dtype)), plain)

    def _encode(self, columns: Array, dtype: np.dtype[Any]) -> Columns:
        if dtype == columns.dtype:
            return Columns(columns)
        return kernels_of(self.device).encode_columns(self.device, columns, dtype)

    @cached_property
    def csr_column_dtype(self) -> np.dtype[Any]:
        """The narrowest dtype for columns in CSR's order."""
        return self._narrowest(self.csr.indices, kernels_of(self.device).CSR_CODES, self.survey.run_span)

    @cached_property
    def csr_columns(self) -> Columns:
        """Columns in CSR's order, encoded."""
        return self._encode(self.csr.indices, self.csr_column_dtype)

    @cached_property
    def slice_column_dtype(self) -> np.dtype[Any]:
        """The dtype of `slice_columns`. It remains known after these have been freed. Synchronizes."""
        dtype: np.dtype[Any] = np.dtype(self.slice_columns.codes.dtype)
        return dtype

    @cached_property
    def slice_columns(self) -> Columns:
        """Columns at the positions of the slices, encoded. Synchronizes."""
        columns = self.plain_slice_columns()
        return self._encode(columns, self._narrowest(columns, _NARROW))

    def plain_slice_columns(self) -> Array:
        """Return the columns at the positions of the slices, not encoded."""
        return self.lay_out(self.csr.indices, self.slices, padding_code(self.csr.indices.dtype))

    def lay_out(self, items: Array, slices: Slices, padding: Any) -> Array:
        """Arrange items from CSR's order at the positions of slices, with `padding` at positions without an entry."""
        return kernels_of(self.device).lay_out(self.device, self.csr.indptr, items, slices, padding)

    @cached_property
    def ellpack_column_dtype(self) -> np.dtype[Any]:
        """The dtype of `ellpack_columns`. It remains known after these have been freed. Synchronizes."""
        dtype: np.dtype[Any] = np.dtype(self.ellpack_columns.codes.dtype)
        return dtype

    @cached_property
    def ellpack_columns(self) -> Columns:
        """Columns at the positions of ELLPACK, encoded. Synchronizes."""
        columns = self.plain_ellpack_columns()
        return self._encode(columns, self._narrowest(columns, _NARROW))

    def plain_ellpack_columns(self) -> Array:
        """Return the columns at the positions of ELLPACK, not encoded."""
        return self.lay_out_ellpack(self.csr.indices, padding_code(self.csr.indices.dtype))

    @property
    def block_work(self) -> int:
        """Number of entries plus rows in a row block of `csr_adaptive`."""
        return int(kernels_of(self.device).BLOCK_WORK)

    @property
    def scalar_length(self) -> int:
        """Rows with more entries than this are long rows of `csr_scalar`."""
        return int(kernels_of(self.device).SCALAR_LENGTH)

    @property
    def vector_length(self) -> int:
        """Rows with more entries than this are long rows of `csr_vector`."""
        threads = threads_per_row(self.rows.typical_length, self.device.lanes, self.rows.num_rows)
        # If a row has a whole warp, most rows are long, and only still longer ones gain from being cut into chunks.
        entries_per_thread = int(kernels_of(self.device).VECTOR_LENGTH) * (2 if threads == self.device.lanes else 1)
        return max(entries_per_thread * threads, 2 * self.scalar_length)

    @property
    def pitch(self) -> int:
        """Number of rows in ELLPACK: those of the matrix, rounded up to a multiple of the lanes of a warp."""
        return -(-self.csr.num_rows // self.device.lanes) * self.device.lanes

    def lay_out_ellpack(self, items: Array, padding: Any) -> Array:
        """Arrange items from CSR's order at the positions of ELLPACK, with `padding` at positions without an entry."""
        width = self.rows.max_length
        return kernels_of(self.device).lay_out_ellpack(self.device, self.csr.indptr, items, width, self.pitch, padding)

    # ------------------------------------------------------------- rows that repeat

    @cached_property
    def _row_dictionary(self) -> Dictionary | None:
        return find_row_dictionary(self.device, self.csr, values=False)

    @cached_property
    def rows_repeat(self) -> bool:
        """Whether many rows have the same offsets as another row, judged by hashes. Synchronizes."""
        if self.rows.max_length > _LONGEST_REPEATED:
            return False  # One thread would read such a row alone, both for its hash and in each product.
        rows = self._row_dictionary
        return rows is not None and _ROWS_PER_PATTERN * rows.size <= self.csr.num_rows

    @cached_property
    def patterns(self) -> Patterns | None:
        """The distinct rows by their offsets, or None if there are too many. Synchronizes."""
        return find_patterns(self.device, self.csr, self._row_dictionary, values=False)

    @cached_property
    def pattern_stats(self) -> PatternStats | None:
        """Sizes of `patterns`. They remain known after the patterns have been freed. Synchronizes."""
        patterns = self.patterns
        return None if patterns is None else PatternStats(patterns.num_patterns, patterns.nbytes(), patterns.runs)


def find_row_dictionary(device: Device, csr: Csr, *, values: bool) -> Dictionary | None:
    """Return the distinct hashes of rows, or None if there are too many. Synchronizes.

    The hash of a row is made of its offsets (column minus row), and of its values too if `values` is true.
    """
    if max(csr.shape) > MAX_INT32:
        return None
    return find_dictionary(device, kernels_of(device).row_keys(device, csr, values), MAX_PATTERNS)


def find_patterns(device: Device, csr: Csr, hashes: Dictionary | None, *, values: bool) -> Patterns | None:
    """Return the distinct rows of a matrix, or None if hashes collide or there are too many. Synchronizes.

    Parameters
    ----------
    device : Device
    csr : Csr
    hashes : Dictionary, optional
        The result of `find_row_dictionary`.
    values : bool
        Whether rows with the same offsets and different values are distinct.
    """
    if hashes is None:
        return None
    # Different rows can have the same hash. So each row is compared with the representative of its code.
    representatives = device.upload(hashes.places)
    lengths = kernels_of(device).rows_follow(device, csr, hashes.codes, representatives, values)
    if lengths is None:
        return None
    indptr = np.zeros(hashes.size + 1, np.int32)
    np.cumsum(lengths, out=indptr[1:])
    runs = _runs(hashes.codes, lengths) if kernels_of(device).SHARES_RUNS else (0, 0)
    return Patterns(hashes.codes, representatives, device.upload(indptr), int(indptr[-1]), runs)


def _runs(codes: Any, lengths: Any) -> tuple[int, int]:
    """Return the number of runs of rows with the same pattern, and the number of entries of their first rows."""
    run_codes = np.concatenate([codes[:1], codes[1:][codes[1:] != codes[:-1]]])
    return run_codes.size, int(lengths[run_codes].sum())
