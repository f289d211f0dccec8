"""Row patterns: rows that share their column offsets, and perhaps their values, stored once; a code a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gsparse.device.dtypes import Array
from gsparse.formats.blocked_ellpack import Slices
from gsparse.formats.entries import Values

__all__ = ["RowPattern"]


@dataclass(frozen=True, eq=False)
class RowPattern:
    """Row patterns on one device.

    Row i follows pattern ``p = codes[i]``: its entries have the columns ``i + offsets[k]`` for k from
    ``pattern_indptr[p]`` to ``pattern_indptr[p + 1]``. Their values are ``pattern_values[k]`` where rows share these
    too (constant stencils), else in `values` at the positions of `slices` (natural order, no long rows, no columns).

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
    common : int
        The pattern that many rows follow, if any do.
    """

    shape: tuple[int, int]
    nnz: int
    codes: Array
    pattern_indptr: Array
    offsets: Array
    pattern_values: Array | None = None
    slices: Slices | None = None
    values: Values | None = None
    common: int = 0

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def num_patterns(self) -> int:
        return int(self.pattern_indptr.size) - 1

    @property
    def num_stored(self) -> int:
        return int(self.offsets.size) if self.slices is None else self.slices.num_positions

    @property
    def padding_ratio(self) -> float:
        return self.num_stored / self.nnz if self.nnz else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""
        arrays = (self.codes, self.pattern_indptr, self.offsets, self.pattern_values, self.slices, self.values)
        return sum(int(array.nbytes) for array in arrays if array is not None)

    @property
    def dtype(self) -> Any:
        return self.values.dtype if self.values is not None else self.pattern_values.dtype  # type: ignore[union-attr]
