"""Row patterns: distinct rows (their column offsets, and perhaps their values) are stored once, and a code per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FormatError
from gsparse.formats.blocked_ellpack import Slices
from gsparse.formats.csr import Csr
from gsparse.formats.entries import StoredMatrix, Values
from gsparse.formats.measured_costs import MEASURED_COSTS
from gsparse.formats.registry import AnalysisLevel, Preparation, Storage, StorageFormat
from gsparse.formats.row_stats import MAX_INT32, RowStats

# Largest number of distinct row patterns for which the format is fast: their table has to fit in the first-level cache.
MAX_PATTERNS = 4096
REQUIREMENT = (
    f"it stores at most {MAX_PATTERNS} distinct rows (offsets from the diagonal), and numbers rows and columns in "
    "int32; this matrix exceeds one of these limits: use blocked_ellpack, or leave the choice to 'auto'"
)
# Number of rows whose codes are sampled to find the most common one.
_SAMPLE = 4096
_GOLDEN_RATIO = 0.6180339887498949
# Bits of the mask of a pattern.
MASK_BITS = 32


@dataclass(frozen=True, eq=False)
class CommonPattern:
    """The most common pattern in a sample of the rows, and how the other patterns are parts of it.

    Attributes
    ----------
    code : int
    masks : array of uint32, shape (num_patterns,)
        Bit k is 1 if the pattern contains offset k of the common one. The common pattern itself has all bits set. The
        mask is 0 for a pattern that is not a subsequence of the common one, and for all others if the common one has no
        entry, more than 32 entries, or offsets that are not increasing.
    differs : array of uint8, shape (num_patterns,)
        1 for a pattern whose mask is 0, or whose values are not those of the common one.
    offsets : ndarray of int64
        The offsets of the common pattern, on the host.
    first : int
        The position of its first entry among those of all patterns.
    """

    code: int
    masks: Array
    differs: Array
    offsets: npt.NDArray[np.int64]
    first: int

    @property
    def span(self) -> int:
        """The largest magnitude of its offsets. On a grid, this is about the distance of two planes."""
        return int(np.abs(self.offsets).max(initial=0))


@dataclass(frozen=True, eq=False)
class RowPattern(StoredMatrix):
    """Row patterns on one device.

    Row i has the pattern ``p = codes[i]``: its entries have the columns ``i + offsets[k]`` for k in
    ``pattern_indptr[p]:pattern_indptr[p + 1]``. If rows of one pattern also share their values (as in a constant
    stencil), these are ``pattern_values[k]``. Otherwise each row has its own, in `values` at the positions of `slices`,
    which have rows in natural order and no long rows.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
    codes : array of uint8 or uint16, shape (num_rows,)
    pattern_indptr : array of int32, shape (num_patterns + 1,)
    offsets : array of int32, shape (pattern_indptr[-1],)
        Column minus row.
    pattern_values : array of the compute dtype, shape of `offsets`, optional
    slices : Slices, optional
    values : Values, optional
    common : CommonPattern, optional
        The most common pattern, if `pattern_values` are stored.
    """

    codes: Array
    pattern_indptr: Array
    offsets: Array
    pattern_values: Array | None = None
    slices: Slices | None = None
    values: Values | None = None
    common: CommonPattern | None = None

    @property
    def num_patterns(self) -> int:
        return int(self.pattern_indptr.size) - 1

    @property
    def num_stored(self) -> int:
        return int(self.offsets.size) if self.slices is None else self.slices.num_positions

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        arrays = (self.codes, self.pattern_indptr, self.offsets, self.pattern_values, self.slices, self.values)
        return sum(int(array.nbytes) for array in arrays if array is not None)

    @property
    def dtype(self) -> Any:
        return self.values.dtype if self.values is not None else self.pattern_values.dtype  # type: ignore[union-attr]


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
        """Return the bytes of the codes, row pointers and offsets, and of values of `itemsize` bytes each."""
        return int(self.codes.nbytes) + 4 * (self.num_patterns + 1) + self.table_bytes(itemsize)

    def table_bytes(self, itemsize: int) -> int:
        """Return the bytes of the offsets, and of values of this size, of all patterns."""
        return self.num_entries * (4 + itemsize)


class PatternStats(NamedTuple):
    """Sizes of `Patterns` without values, which remain known after the patterns have been freed."""

    num_patterns: int
    nbytes: int
    runs: tuple[int, int]


# ------------------------------------------------------------------------------------------------------- the format


class PatternStructure(Protocol):
    """What row patterns need to know about the row pointers and columns of a matrix."""

    csr: Csr
    device: Device

    @property
    def rows(self) -> RowStats: ...
    @property
    def rows_repeat(self) -> bool: ...
    @property
    def patterns(self) -> Patterns | None: ...
    @property
    def pattern_stats(self) -> PatternStats | None: ...
    @property
    def natural_slices(self) -> Slices: ...
    def lay_out(self, items: Array, slices: Slices, padding: Any) -> Array: ...


class PatternPreparation(Preparation[PatternStructure], Protocol):
    """What row patterns need to know about a matrix with values."""

    compute: np.dtype[Any]

    @property
    def patterns(self) -> Patterns | None:
        """The distinct rows by offsets and values, or None if storing each row's own values takes less memory."""
        ...

    @property
    def bytes_with_own_values(self) -> int:
        """Bytes of the patterns of offsets, and of values at the positions of slices."""
        ...

    def pattern_entries(self, patterns: Patterns, with_values: bool) -> tuple[Array, Array | None]:
        """Return the offsets of all patterns, one pattern after the other, and their values if `with_values`."""
        ...


def _fits(stats: RowStats) -> bool:
    return stats.num_rows <= MAX_INT32


def _accepts(structure: PatternStructure) -> bool:
    return structure.pattern_stats is not None


def _describe(matrix: PatternPreparation, level: AnalysisLevel) -> Storage | None:
    structure = matrix.structure
    is_candidate = level is AnalysisLevel.FULL or (level and structure.rows_repeat)
    if not is_candidate or structure.pattern_stats is None:
        return None
    if matrix.patterns is not None:
        rows = f"{matrix.patterns.num_patterns} rows"
        shared, itemsize = matrix.patterns, matrix.compute.itemsize
        nbytes, table_bytes = shared.nbytes(itemsize), shared.table_bytes(itemsize)
        return Storage(rows, rows, structure.rows.nnz, nbytes, runs=shared.runs, table_bytes=table_bytes)
    stats, values, positions = structure.pattern_stats, matrix.values, structure.rows.blocked_stored
    return Storage(
        f"{stats.num_patterns} rows",
        values.describe(),
        positions,
        matrix.bytes_with_own_values,
        has_codes=values.has_codes,
        table_bytes=0 if values.table is None else int(values.table.nbytes),
        runs=stats.runs,
    )


def _build(matrix: PatternPreparation) -> RowPattern:
    structure, csr = matrix.structure, matrix.structure.csr
    patterns = matrix.patterns or structure.patterns
    if patterns is None:
        raise FormatError(f"row_pattern: {REQUIREMENT}")
    is_shared = patterns is matrix.patterns
    offsets, shared = matrix.pattern_entries(patterns, is_shared)
    common = (csr.shape, csr.nnz, patterns.codes, patterns.indptr, offsets)
    if is_shared:
        most_common = _most_common(structure.device, patterns, offsets, shared)
        return RowPattern(*common, pattern_values=shared, common=most_common)
    slices = structure.natural_slices
    values = matrix.values.rearranged(lambda codes: structure.lay_out(codes, slices, 0))
    return RowPattern(*common, slices=slices, values=values)


def _most_common(device: Device, patterns: Patterns, offsets: Array, values: Array) -> CommonPattern:
    """Return the most common pattern in a sample of the rows. Synchronizes."""
    if not patterns.codes.size:
        return CommonPattern(0, device.empty(0, np.uint32), device.empty(0, np.uint8), np.zeros(0, np.int64), 0)
    # Multiples of the golden ratio are spread evenly over the rows, and over the points of any line of a grid.
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
    """Return the mask of each pattern with respect to one whose offsets rise, and whether it differs from that one."""
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
    fits=_fits,
    accepts=_accepts,
    requirement=REQUIREMENT,
    describe=_describe,
    build=_build,
    structure_arrays=("patterns", "natural_slices"),
    only_compressed=True,
    costs=MEASURED_COSTS["row_pattern"],
)
