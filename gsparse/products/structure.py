"""What row pointers and columns alone decide: where entries go, how columns are written down, which rows are alike.

Each piece is made when first needed, on the device, and kept; matrices that differ in values only share a structure.
The primitives are each backend's (`gsparse.kernels`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Csr, LongRows, RowBlocks, Slices, Tiles, padding_code
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.contract import Survey
from gsparse.plan.choice import MAX_PADDING, RowStats, threads_per_row
from gsparse.products.dictionary import Dictionary, find_dictionary

__all__ = ["MAX_PATTERNS", "Patterns", "Structure", "find_patterns", "find_row_dictionary"]

# Rows and positions that int32 can number: what is only offered below it says so.
_INT32 = 2**31 - 1
# Distinct row patterns that pay at most: their table has to stay in the first cache.
MAX_PATTERNS = 4096
# Rows a pattern from which on patterns are offered: below, hardly any row shares its own, and finding that out in full
# would take longer than all else.
_ROWS_PER_PATTERN = 4
# Entries of the longest row up to which rows are looked at for that.
_LONGEST_REPEATED = 1024
# What columns may be narrowed to.
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))


@dataclass(frozen=True, eq=False)
class Patterns:
    """Distinct rows: a code a row, and a row that stands for each.

    Attributes
    ----------
    codes : array of uint8 or uint16, shape (num_rows,)
    representatives : array of int64, shape (num_patterns,)
    indptr : array of int32, shape (num_patterns + 1,)
        Where each pattern begins among the entries of all.
    num_entries : int
    runs : (int, int)
        Where a row's pattern is not that of the row before: how often that is, and the entries of these rows. On a CPU,
        which takes the rows of a run together; a GPU has a thread for each row.
    """

    codes: Array
    representatives: Array
    indptr: Array
    num_entries: int
    runs: tuple[int, int] = (0, 0)

    @property
    def num_patterns(self) -> int:
        return int(self.representatives.size)

    def nbytes(self, itemsize: int = 0) -> int:
        """Bytes of codes, row pointers, offsets and values of this size."""
        return int(self.codes.nbytes) + 4 * (self.num_patterns + 1) + self.num_entries * (4 + itemsize)


class PatternFacts(NamedTuple):
    """How many distinct rows there are, the bytes that say so, and their runs, as in `Patterns`."""

    num_patterns: int
    nbytes: int
    runs: tuple[int, int]


# What each format is made of, of the pieces of a structure that take memory.
_PIECES: dict[str, tuple[str, ...]] = {
    "csr_scalar": ("csr_columns", "_csr_long_rows"),
    "csr_vector": ("csr_columns", "_csr_long_rows"),
    "csr_adaptive": ("csr_columns", "row_blocks"),
    "csr_split": ("csr_columns", "tiles"),
    "ellpack": ("ellpack_columns",),
    "blocked_ellpack": ("slices", "slice_columns"),
    "row_pattern": ("patterns", "natural_slices"),
}


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

    def keep(self, format: str) -> None:
        """Drop what was made but `format` does not need; it is made again when next needed. The statistics stay."""
        for name in set().union(*_PIECES.values(), ("_row_dictionary",)).difference(_PIECES.get(format, ())):
            self.__dict__.pop(name, None)

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
        if stats.blocked_stored > MAX_PADDING * stats.nnz and stats.num_rows <= _INT32:
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
        if self.rows.max_length <= limit or self.csr.num_rows > _INT32:
            return None
        found = self._csr_long_rows.get(limit)
        if found is None:
            found, _ = kernels_of(self.device).long_rows(self.device, self.csr.indptr, self.survey, limit)
            self._csr_long_rows[limit] = found
        return found

    @cached_property
    def _csr_long_rows(self) -> dict[int, LongRows]:
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
        if not among or not columns.size or self.csr.num_cols > _INT32:
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
        lay_out = kernels_of(self.device).lay_out
        return lay_out(
            self.device, self.csr.indptr, self.csr.indices, self.slices, padding_code(self.csr.indices.dtype)
        )

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
    if max(csr.shape) > _INT32:
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
    runs = _runs(found.codes, lengths) if device.kind == "cpu" else (0, 0)
    return Patterns(found.codes, representatives, device.upload(indptr), int(indptr[-1]), runs)


def _runs(codes: Any, lengths: Any) -> tuple[int, int]:
    begins = np.concatenate([codes[:1], codes[1:][codes[1:] != codes[:-1]]])
    return begins.size, int(lengths[begins].sum())
