"""Row patterns: each distinct row (column offsets, and perhaps values) is stored once, with a code for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.formats.blocked_ellpack import Slices
from gsparse.formats.entries import StoredMatrix, Values

# Number of bits in the mask of a pattern (`CommonPattern.masks`).
MASK_BITS = 32


@dataclass(frozen=True, eq=False)
class CommonPattern:
    """The most common pattern in a sample of the rows, and masks that describe other patterns as parts of it.

    Attributes
    ----------
    code : int
    masks : array of uint32, shape (num_patterns,)
        Bit k is 1 if the pattern contains offset k of the common pattern, whose own mask has all bits set. The mask is
        0 for a pattern that is not a subsequence of the common pattern. All other masks are 0 if the common pattern has
        no entry, more than 32 entries, or offsets that are not increasing.
    differs : array of uint8, shape (num_patterns,)
        1 for a pattern whose mask is 0, or whose values differ from those of the common pattern.
    offsets : ndarray of int64
        The offsets of the common pattern, on the host.
    first : int
        The position of the common pattern's first entry among the entries of all patterns.
    """

    code: int
    masks: Array
    differs: Array
    offsets: npt.NDArray[np.int64]
    first: int

    @property
    def span(self) -> int:
        """The largest magnitude of the offsets. On a grid, this is about the distance of two planes."""
        return int(np.abs(self.offsets).max(initial=0))


@dataclass(frozen=True, eq=False)
class RowPattern(StoredMatrix):
    """Row patterns on one device.

    Row i has the pattern ``p = codes[i]``: its entries have the columns ``i + offsets[k]`` for k in
    ``pattern_indptr[p]:pattern_indptr[p + 1]``. If rows of one pattern also share their values (as in a constant
    stencil), the values are ``pattern_values[k]``. Otherwise each row has its own values, in `values` at the positions
    of `slices`, which have the rows in natural order and no long rows.

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
