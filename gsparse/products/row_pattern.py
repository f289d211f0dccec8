"""Row patterns as a storage format: the distinct rows of a matrix, found by hashes and then compared.

`gsparse.formats.row_pattern` describes the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FormatError
from gsparse.formats import Csr, RowPattern, Slices
from gsparse.formats.costs import MICROSECOND, KernelModel
from gsparse.formats.registry import AnalysisLevel, Storage, StorageFormat
from gsparse.formats.row_pattern import MASK_BITS, CommonPattern
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.products.blocked_ellpack import SlicedRows, cut_slices
from gsparse.products.storage import Dictionary, MatrixPreparation, cast_table, find_dictionary
from gsparse.products.structure import Part, Structure, releasable, scratch

# Largest number of distinct row patterns for which the format is fast: their table has to fit in the first-level cache.
MAX_PATTERNS = 4096
_REQUIREMENT = (
    f"it stores at most {MAX_PATTERNS} distinct rows (offsets from the diagonal), and numbers rows and columns in "
    "int32; this matrix exceeds one of these limits: use blocked_ellpack, or leave the choice to 'auto'"
)
# Number of rows whose codes are sampled to find the most common one.
_SAMPLE = 4096
_GOLDEN_RATIO = 0.6180339887498949
# Smallest average number of rows per pattern with which row patterns are a candidate. With fewer, hardly any rows are
# equal, and comparing all of them would take longer than the rest of the analysis.
_ROWS_PER_PATTERN = 4
# If the longest row has more entries than this, rows are not compared.
_LONGEST_REPEATED = 1024


@dataclass(frozen=True, eq=False)
class Patterns:
    """The distinct rows of a matrix: a code for each row, and one representative row for each code.

    Attributes
    ----------
    codes : array of uint8 or uint16, shape (num_rows,)
        The number of the pattern of each row.
    representatives : array of int64, shape (num_patterns,)
        For each pattern, a row that has it.
    indptr : array of int32, shape (num_patterns + 1,)
        The first entry of each pattern among the entries of all patterns.
    num_entries : int
        Number of entries of all patterns.
    runs : (int, int)
        The number of runs, which are groups of consecutive rows with the same pattern, and the number of entries of one
        row of each run. Only a CPU, which multiplies the rows of a run together, needs them: on a GPU each row has a
        thread.
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
        """Return the bytes of the codes, row pointers, offsets and values. `itemsize` is 0 without values."""
        return int(self.codes.nbytes) + 4 * (self.num_patterns + 1) + self.table_bytes(itemsize)

    def table_bytes(self, itemsize: int) -> int:
        """Return the bytes of the offsets and values of all patterns. `itemsize` is 0 without values."""
        return self.num_entries * (4 + itemsize)


class PatternStats(NamedTuple):
    """Sizes of the arrays of `Patterns`, without values. They remain known after the arrays have been freed."""

    num_patterns: int
    nbytes: int
    runs: tuple[int, int]


class RepeatedRows(Part):
    """The distinct rows of a matrix. Rows are equal if they have the same offsets (column minus row)."""

    @scratch
    def _hashes(self) -> Dictionary | None:
        """The distinct hashes of the rows' offsets, or None if there are too many. Synchronizes."""
        return find_row_dictionary(self.sparsity.device, self.sparsity.csr, values=False)

    @cached_property
    def are_many(self) -> bool:
        """Whether many rows have the same offsets as another row, judged by hashes. Synchronizes."""
        if self.sparsity.rows.max_length > _LONGEST_REPEATED:
            return False  # One thread would read such a row alone, both for its hash and in each product.
        hashes = self._hashes
        return hashes is not None and _ROWS_PER_PATTERN * hashes.size <= self.sparsity.csr.num_rows

    @releasable
    def patterns(self) -> Patterns | None:
        """The distinct rows, or None if there are too many or hashes collide. Synchronizes."""
        return find_patterns(self.sparsity.device, self.sparsity.csr, self._hashes, values=False)

    @cached_property
    def stats(self) -> PatternStats | None:
        """Sizes of `patterns`. They remain known after the patterns have been freed. Synchronizes."""
        distinct = self.patterns
        return None if distinct is None else PatternStats(distinct.num_patterns, distinct.nbytes(), distinct.runs)

    @releasable
    def natural_slices(self) -> Slices:
        """Slices of all rows in natural order, however much padding that needs. Synchronizes."""
        return cut_slices(self.sparsity)


def _natural_slices(structure: Structure) -> Slices:
    """Return slices of all rows in natural order. Blocked ELLPACK's are used if they are in natural order."""
    repeated, made = structure.part(RepeatedRows), vars(structure.part(SlicedRows)).get("slices")
    if made is None or made.rows is not None:
        return repeated.natural_slices
    slices: Slices = vars(repeated).setdefault("natural_slices", made)
    return slices


def find_row_dictionary(device: Device, csr: Csr, *, values: bool) -> Dictionary | None:
    """Return the distinct hashes of rows, or None if there are too many or the shape exceeds int32. Synchronizes.

    The hash of a row is made of its offsets (column minus row), and of its values too if `values` is true.
    """
    if max(csr.shape) > MAX_INT32:
        return None
    return find_dictionary(device, kernels_of(device).encode.row_keys(device, csr, values), MAX_PATTERNS)


def find_patterns(device: Device, csr: Csr, hashes: Dictionary | None, *, values: bool) -> Patterns | None:
    """Return the distinct rows of a matrix, or None if `hashes` is None or hashes collide. Synchronizes.

    Parameters
    ----------
    device : Device
    csr : Csr
    hashes : Dictionary or None
        The result of `find_row_dictionary` for `csr` and `values`.
    values : bool
        Whether rows with the same offsets and different values are distinct.
    """
    if hashes is None:
        return None
    # Different rows can have the same hash, so each row is compared with the representative of its code.
    representatives = device.upload(hashes.places)
    lengths = kernels_of(device).encode.rows_follow(device, csr, hashes.codes, representatives, values)
    if lengths is None:
        return None
    indptr = np.zeros(hashes.size + 1, np.int32)
    np.cumsum(lengths, out=indptr[1:])
    # Runs are groups of consecutive rows with the same pattern.
    runs = _runs(hashes.codes, lengths) if kernels_of(device).encode.SHARES_RUNS else (0, 0)
    return Patterns(hashes.codes, representatives, device.upload(indptr), int(indptr[-1]), runs)


def _runs(codes: Any, lengths: Any) -> tuple[int, int]:
    """Return the number of runs of equal consecutive rows, and the total number of entries of their first rows."""
    run_codes = np.concatenate([codes[:1], codes[1:][codes[1:] != codes[:-1]]])
    return run_codes.size, int(lengths[run_codes].sum())


def _shared_patterns(matrix: MatrixPreparation) -> Patterns | None:
    """Return the distinct rows by offsets and values, or None. Synchronizes.

    None if there are too many, if `encoding` leaves the values plain, or if storing the values of each row takes fewer
    bytes.
    """
    return matrix.made("patterns", lambda: _find_shared_patterns(matrix)) if matrix.encoding.values else None


def _find_shared_patterns(matrix: MatrixPreparation) -> Patterns | None:
    stats = matrix.structure.part(RepeatedRows).stats
    if stats is None:
        return None
    device, csr, itemsize = matrix.sparsity.device, matrix.csr, matrix.compute.itemsize
    rows = find_row_dictionary(device, csr, values=True)
    if rows is None or rows.size * (4 + itemsize) > csr.num_rows * itemsize:
        return None  # Hardly any rows share their values.
    patterns = find_patterns(device, csr, rows, values=True)
    if patterns is None:
        return None
    size = patterns.nbytes(itemsize)
    # Values that rows do not share take at least a byte for each entry. Only if that could be less than `size`, they
    # are analyzed, which takes time.
    return patterns if size <= csr.nnz or size <= _bytes_with_own_values(matrix, stats) else None


def _bytes_with_own_values(matrix: MatrixPreparation, stats: PatternStats) -> int:
    """Return the bytes of row patterns whose rows share their offsets, but not their values."""
    sparsity = matrix.sparsity
    slices = 8 * (sparsity.pitch // sparsity.device.lanes + 1)
    return stats.nbytes + slices + matrix.values.nbytes_at(sparsity.rows.blocked_stored)


def _entries(matrix: MatrixPreparation, patterns: Patterns, with_values: bool) -> tuple[Array, Array | None]:
    """Return the offsets of all patterns, one pattern after the other, and their values if `with_values`."""
    device, rows = matrix.sparsity.device, (patterns.representatives, patterns.indptr, patterns.num_entries)
    offsets, values = kernels_of(device).encode.gather_rows(device, matrix.csr, *rows, with_values)
    return offsets, None if values is None else cast_table(device, values, matrix.compute)


def _describe(matrix: MatrixPreparation, level: AnalysisLevel) -> Storage | None:
    repeated, stats = matrix.structure.part(RepeatedRows), None
    if level is AnalysisLevel.FULL or (level and repeated.are_many):
        stats = repeated.stats
    if stats is None:
        return None
    shared, positions = _shared_patterns(matrix), matrix.sparsity.rows.blocked_stored
    if shared is not None:
        rows, itemsize = f"{shared.num_patterns} rows", matrix.compute.itemsize
        nbytes, table_bytes = shared.nbytes(itemsize), shared.table_bytes(itemsize)
        return Storage(rows, rows, matrix.csr.nnz, nbytes, runs=shared.runs, table_bytes=table_bytes)
    values = matrix.values
    return Storage(
        f"{stats.num_patterns} rows",
        values.describe(),
        positions,
        _bytes_with_own_values(matrix, stats),
        has_codes=values.has_codes,
        table_bytes=values.table_bytes,
        runs=stats.runs,
    )


def _build(matrix: MatrixPreparation) -> RowPattern:
    sparsity, shared = matrix.sparsity, _shared_patterns(matrix)
    patterns = shared or matrix.structure.part(RepeatedRows).patterns
    if patterns is None:
        raise FormatError(f"row_pattern: {_REQUIREMENT}")
    offsets, values_of_patterns = _entries(matrix, patterns, shared is not None)
    common = (sparsity.csr.shape, sparsity.csr.nnz, patterns.codes, patterns.indptr, offsets)
    if values_of_patterns is not None:
        most_common = _most_common(sparsity.device, patterns, offsets, values_of_patterns)
        return RowPattern(*common, pattern_values=values_of_patterns, common=most_common)
    slices = _natural_slices(matrix.structure)
    values = matrix.values.rearranged(lambda codes: sparsity.lay_out(codes, slices, 0))
    return RowPattern(*common, slices=slices, values=values)


def _most_common(device: Device, patterns: Patterns, offsets: Array, values: Array) -> CommonPattern:
    """Return the most common pattern in a sample of the rows. Synchronizes."""
    if not patterns.codes.size:
        return CommonPattern(0, device.empty(0, np.uint32), device.empty(0, np.uint8), np.zeros(0, np.int64), 0)
    # Multiples of the golden ratio are spread evenly over all rows, and over every line of a grid.
    places = np.arange(_SAMPLE) * _GOLDEN_RATIO % 1 * patterns.codes.size
    sample = device.xp.take(patterns.codes, device.upload(places.astype(np.int64)))
    sample, indptr, offsets, values = (device.download(v) for v in (sample, patterns.indptr, offsets, values))
    code = int(np.bincount(sample).argmax())
    entries = slice(indptr[code], indptr[code + 1])
    own = offsets[entries]
    masks, differs = np.zeros(patterns.num_patterns, np.uint32), np.ones(patterns.num_patterns, np.uint8)
    if 0 < own.size <= MASK_BITS and (np.diff(own) > 0).all():
        masks[:], differs[:] = _parts_of(entries, indptr, offsets, values)
    masks[code], differs[code] = ~np.uint32(0), 0
    return CommonPattern(code, device.upload(masks), device.upload(differs), own.astype(np.int64), int(indptr[code]))


def _parts_of(entries: slice, indptr: Any, offsets: Any, values: Any) -> Any:
    """Compare each pattern with the one at `entries`. Return the arrays `masks` and `differs` of `CommonPattern`."""
    common = offsets[entries]
    places = np.minimum(np.searchsorted(common, offsets), common.size - 1)
    rises = np.ones(offsets.size, bool)
    rises[1:] = np.diff(offsets) > 0
    rises[indptr[:-1][np.diff(indptr) > 0]] = True  # the first offset of each pattern
    is_part = rises & (common[places] == offsets)
    lengths = np.diff(indptr)
    masks = np.zeros(lengths.size, np.uint32)
    patterns = np.repeat(np.arange(lengths.size), lengths)
    np.bitwise_or.at(masks, patterns, np.uint32(1) << places.astype(np.uint32))
    masks[patterns[~is_part]] = 0
    differs = masks == 0
    differs[patterns[values != values[entries][places]]] = True
    return masks, differs


ROW_PATTERN = StorageFormat(
    name="row_pattern",
    layout="row_pattern",
    fits=lambda stats: stats.num_rows <= MAX_INT32,
    accepts=lambda structure: structure.part(RepeatedRows).stats is not None,
    requirement=_REQUIREMENT,
    describe=_describe,
    build=_build,
    parts=(RepeatedRows,),
    only_compressed=True,
    costs={
        "gpu": KernelModel(
            fixed=2 * MICROSECOND,
            byte=4.15e-14,
            stream=1.44e-13,
            position=2.39e-13,
            row=2.59e-12,
            step=0.278 * MICROSECOND,
            coded=6.58e-13,
            table=3.34e-13,
            setup=20.0,
        ),
        "cpu": KernelModel(
            fixed=8.26 * MICROSECOND,
            byte=3.19e-11,
            stream=3.76e-11,
            stride=2.69e-12,
            coded=3.12e-10,
            table=4.61e-11,
            run=5.17e-09,
            run_entry=6.33e-10,
            setup=60.0,
        ),
    },
)
