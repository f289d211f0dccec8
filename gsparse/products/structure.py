"""What row pointers and columns alone decide: where entries go, how columns are written down, which rows are alike.

Each piece is made when first needed, on the device, and kept; matrices that differ in values only share a structure.
The primitives are each backend's (`gsparse.kernels`).
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
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.registry import REGISTRY
from gsparse.formats.row_pattern import MAX_PATTERNS, PatternFacts, Patterns
from gsparse.formats.row_stats import MAX_INT32, MAX_PADDING, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.contract import Survey
from gsparse.plan.choice import threads_per_row
from gsparse.products.dictionary import Dictionary, find_dictionary

__all__ = ["Structure", "find_patterns", "find_row_dictionary"]

# Rows a pattern from which on patterns are offered: below, hardly any row shares its own, and finding that out in full
# would take longer than all else.
_ROWS_PER_PATTERN = 4
# Entries of the longest row up to which rows are looked at for that.
_LONGEST_REPEATED = 1024
# What columns may be narrowed to.
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

_Piece = TypeVar("_Piece")


@dataclass(eq=False)
class Structure:
    """What row pointers and columns decide.

    Parameters
    ----------
    device : Device
    csr : Csr
        Without values: matrices with others share it.
    """

    device: Device
    csr: Csr

    @classmethod
    def of(cls, device: Device, csr: Csr, survey: Survey | None = None) -> Structure:
        """Give the structure of a matrix, and what a survey of it told, where there was one."""
        found = cls(device, csr.with_data(device.empty(0, csr.dtype)))
        if survey is not None:
            found.__dict__["survey"] = survey
        return found

    def keep(self, pieces: Collection[str]) -> None:
        """Drop the pieces of all formats but these. A piece is made again when next needed; the statistics stay."""
        names = {"_row_dictionary"}.union(*(format.pieces for format in REGISTRY.values()))
        for name in names.difference(pieces):
            self.__dict__.pop(name, None)

    def piece(self, name: str, make: Callable[[], _Piece]) -> _Piece:
        """Return a piece that a format makes itself, and keep it like the others (`StorageFormat.pieces`).

        Parameters
        ----------
        name : str
        make : callable
            Returns the piece, from row pointers and columns alone: matrices with other values share it.
        """
        if name not in self.__dict__:
            self.__dict__[name] = make()
        piece: _Piece = self.__dict__[name]
        return piece

    @cached_property
    def survey(self) -> Survey:
        """Look at row pointers and columns once. Synchronizes."""
        device, csr = self.device, self.csr
        return kernels_of(device).survey(device, csr.indptr, csr.indices, bool(kernels_of(device).CSR_CODES))

    @cached_property
    def rows(self) -> RowStats:
        """Statistics of the rows."""
        csr, found = self.csr, self.survey
        mean = csr.nnz / csr.num_rows if csr.num_rows else 0.0
        variance = found.sum_squares / csr.num_rows - mean * mean if csr.num_rows else 0.0
        return RowStats(
            num_rows=csr.num_rows,
            num_cols=csr.num_cols,
            nnz=csr.nnz,
            min_length=found.min_length,
            max_length=found.max_length,
            mean_length=mean,
            std_length=sqrt(max(variance, 0.0)),
            num_empty=found.num_empty,
            blocked_stored=found.blocked_stored,
            split_stored=found.split_stored,
            num_long=found.num_long,
            long_entries=found.long_entries,
        )

    # ------------------------------------------------------------- where entries go

    @cached_property
    def slices(self) -> Slices:
        """Cut rows into slices: in order where that pads little, else long rows apart, else sorted. Synchronizes."""
        stats, limit, sort = self.rows, NO_LIMIT, False
        if stats.blocked_stored > MAX_PADDING * stats.nnz and stats.num_rows <= MAX_INT32:
            limit = kernels_of(self.device).LONG_LENGTH if stats.num_long else NO_LIMIT
            sort = stats.wants_sorting
        return self._cut(limit, sort)

    @cached_property
    def slice_facts(self) -> tuple[int, int, bool]:
        """Positions, bytes that say where rows are, and whether rows keep their order: known also once slices went."""
        return self.slices.num_positions, self.slices.nbytes, self.slices.rows is None

    @cached_property
    def natural_slices(self) -> Slices:
        """Cut rows into slices in their order, whatever that pads."""
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
        """Gather rows longer than `limit`, where they are in CSR."""
        if self.rows.max_length <= limit or self.csr.num_rows > MAX_INT32:
            return None
        found = self.csr_long_rows_by_limit.get(limit)
        if found is None:
            found, _ = kernels_of(self.device).long_rows(self.device, self.csr.indptr, self.survey, limit)
            self.csr_long_rows_by_limit[limit] = found
        return found

    @cached_property
    def csr_long_rows_by_limit(self) -> dict[int, LongRows]:
        return {}

    @cached_property
    def row_blocks(self) -> RowBlocks:
        """Gather consecutive rows into blocks of about equal work; a long row has one to itself."""
        return kernels_of(self.device).row_blocks(self.device, self.csr.indptr, self.survey)

    @cached_property
    def tiles(self) -> Tiles:
        """Share out the merged list of entries and row ends equally."""
        return kernels_of(self.device).tiles(self.device, self.csr.indptr, self.survey)

    # ------------------------------------------------------------- columns

    def _narrowest(self, columns: Array, among: tuple[np.dtype[Any], ...], span: int | None = None) -> np.dtype[Any]:
        """Give the narrowest dtype that holds columns above the base of their run. Synchronizes without `span`."""
        plain: np.dtype[Any] = np.dtype(columns.dtype)
        if not among or not columns.size or self.csr.num_cols > MAX_INT32:
            return plain
        if span is None:
            span = kernels_of(self.device).run_span(self.device, columns, self.csr.num_cols)
        return next((dtype for dtype in among if span < padding_code(dtype)), plain)

    def _encoded(self, columns: Array, dtype: np.dtype[Any]) -> Columns:
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
        return self._encoded(self.csr.indices, self.csr_column_dtype)

    @cached_property
    def slice_column_dtype(self) -> np.dtype[Any]:
        """The dtype of columns at the positions of the slices: known also once these went. Synchronizes."""
        dtype: np.dtype[Any] = np.dtype(self.slice_columns.codes.dtype)
        return dtype

    @cached_property
    def slice_columns(self) -> Columns:
        """Columns at the positions of the slices, encoded. Synchronizes."""
        columns = self.plain_slice_columns()
        return self._encoded(columns, self._narrowest(columns, _NARROW))

    def plain_slice_columns(self) -> Array:
        """Lay columns out at the positions of the slices."""
        return self.lay_out(self.csr.indices, self.slices, padding_code(self.csr.indices.dtype))

    def lay_out(self, items: Array, slices: Slices, padding: Any) -> Array:
        """Lay items out at the positions of some slices."""
        return kernels_of(self.device).lay_out(self.device, self.csr.indptr, items, slices, padding)

    @cached_property
    def ellpack_column_dtype(self) -> np.dtype[Any]:
        """The dtype of columns in ELLPACK: known also once these went. Synchronizes."""
        dtype: np.dtype[Any] = np.dtype(self.ellpack_columns.codes.dtype)
        return dtype

    @cached_property
    def ellpack_columns(self) -> Columns:
        """Columns column-major, encoded. Synchronizes."""
        columns = self.plain_ellpack_columns()
        return self._encoded(columns, self._narrowest(columns, _NARROW))

    def plain_ellpack_columns(self) -> Array:
        """Lay columns out column-major."""
        return self.ellpack(self.csr.indices, padding_code(self.csr.indices.dtype))

    @property
    def block_work(self) -> int:
        """Entries and rows of a row block, together."""
        return int(kernels_of(self.device).BLOCK_WORK)

    @property
    def scalar_length(self) -> int:
        """Entries above which `csr_scalar` keeps a row apart."""
        return int(kernels_of(self.device).SCALAR_LENGTH)

    @property
    def vector_length(self) -> int:
        """Entries above which `csr_vector` keeps a row apart."""
        threads = threads_per_row(self.rows.typical_length, self.device.lanes, self.rows.num_rows)
        # A whole warp a row is for rows so long that keeping them apart pays later still.
        share = int(kernels_of(self.device).VECTOR_LENGTH) * (2 if threads == self.device.lanes else 1)
        return max(share * threads, 2 * self.scalar_length)

    @property
    def pitch(self) -> int:
        """Rows of ELLPACK, whole runs."""
        return -(-self.csr.num_rows // self.device.lanes) * self.device.lanes

    def ellpack(self, items: Array, padding: Any) -> Array:
        """Lay items out column-major."""
        width = self.rows.max_length
        return kernels_of(self.device).lay_out_ellpack(self.device, self.csr.indptr, items, width, self.pitch, padding)

    # ------------------------------------------------------------- rows that are alike

    @cached_property
    def _row_dictionary(self) -> Dictionary | None:
        return find_row_dictionary(self.device, self.csr, values=False)

    @cached_property
    def rows_repeat(self) -> bool:
        """Whether many rows have the offsets of another, by their hashes. Synchronizes."""
        if self.rows.max_length > _LONGEST_REPEATED:
            return False  # (a thread would walk along such a row, here and in each product)
        found = self._row_dictionary
        return found is not None and _ROWS_PER_PATTERN * found.size <= self.csr.num_rows

    @cached_property
    def patterns(self) -> Patterns | None:
        """Rows by their offsets, where few are distinct. Synchronizes."""
        return find_patterns(self.device, self.csr, self._row_dictionary, values=False)

    @cached_property
    def pattern_facts(self) -> PatternFacts | None:
        """What is known of patterns also once these went. Synchronizes."""
        found = self.patterns
        return None if found is None else PatternFacts(found.num_patterns, found.nbytes(), found.runs)


def find_row_dictionary(device: Device, csr: Csr, *, values: bool) -> Dictionary | None:
    """Tell rows apart by hashes of their offsets (column minus row), and where asked of their values. Synchronizes."""
    if max(csr.shape) > MAX_INT32:
        return None
    return find_dictionary(device, kernels_of(device).row_keys(device, csr, values), MAX_PATTERNS)


def find_patterns(device: Device, csr: Csr, found: Dictionary | None, *, values: bool) -> Patterns | None:
    """Find the distinct rows of a matrix, by offsets and where asked by values too. Synchronizes.

    Parameters
    ----------
    device : Device
    csr : Csr
    found : Dictionary, optional
        As `find_row_dictionary` gives it.
    values : bool
    """
    if found is None:
        return None
    # A hash is no proof: each row is compared with one that has its code, whichever that is.
    representatives = device.upload(found.places)
    lengths = kernels_of(device).rows_follow(device, csr, found.codes, representatives, values)
    if lengths is None:
        return None
    indptr = np.zeros(found.size + 1, np.int32)
    np.cumsum(lengths, out=indptr[1:])
    runs = _runs(found.codes, lengths) if kernels_of(device).SHARES_RUNS else (0, 0)
    return Patterns(found.codes, representatives, device.upload(indptr), int(indptr[-1]), runs)


def _runs(codes: Any, lengths: Any) -> tuple[int, int]:
    begins = np.concatenate([codes[:1], codes[1:][codes[1:] != codes[:-1]]])
    return begins.size, int(lengths[begins].sum())
