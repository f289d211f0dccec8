"""Statistics of the row lengths, from which the storage format is chosen, and levels of triangular matrices."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import erf, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array

# The largest number of int32. Some formats number rows, columns or the entries of one row in int32.
MAX_INT32 = 2**31 - 1
# The requirement, for error messages, of formats that need `RowStats.is_numbered_in_int32`.
NUMBERED_IN_INT32 = f"it numbers rows and columns in int32, up to {MAX_INT32}"

# Slices hold the rows in natural order if the number of positions divided by the number of entries is at most this.
# Otherwise, long rows are stored separately. If this is not enough, the remaining rows are sorted by length.
MAX_PADDING = 1.25


@dataclass(frozen=True)
class RowStats:
    """Statistics of the row lengths, from which the storage format is chosen.

    Attributes
    ----------
    num_rows, num_cols, nnz : int
    min_length, max_length : int
        Number of entries in the shortest and in the longest row.
    mean_length, std_length : float
        Mean and standard deviation of the row lengths.
    num_empty : int
        Number of rows without entries.
    blocked_stored : int
        Number of positions in slices of all rows in natural order, padding included.
    split_stored : int
        Number of positions in slices of all rows but the long ones, in natural order.
    num_long, long_entries : int
        Number of rows with more entries than `MachineModel.long_length`, and number of entries of these rows.
    """

    num_rows: int
    num_cols: int
    nnz: int
    min_length: int
    max_length: int
    mean_length: float
    std_length: float
    num_empty: int
    blocked_stored: int
    split_stored: int = 0
    num_long: int = 0
    long_entries: int = 0

    @property
    def is_numbered_in_int32(self) -> bool:
        """Whether int32 can number all rows and columns."""
        return max(self.num_rows, self.num_cols) <= MAX_INT32

    @property
    def typical_length(self) -> float:
        """The length for which threads are assigned: the mean of non-empty rows plus the standard deviation.

        It is at most twice the mean, however much the lengths vary.
        """
        mean = self.nnz / max(self.num_rows - self.num_empty, 1)
        return mean + min(self.std_length, mean)

    @property
    def wants_sorting(self) -> bool:
        """Whether rows are sorted by length: without sorting, there would be much padding, even without long rows."""
        limit = MAX_PADDING * self.nnz
        return self.blocked_stored > limit and self.split_stored + self.long_entries > limit

    @property
    def efficiency(self) -> float:
        """The fraction of lanes that do useful work when each lane of a warp computes one row (lane efficiency)."""
        return self.nnz / self.blocked_stored if self.blocked_stored else 1.0


def share_above(stats: RowStats, length: float) -> tuple[float, float]:
    """Estimate the fraction of the non-empty rows that are longer than `length`, and the fraction of their entries."""
    if stats.max_length <= length:
        return 0.0, 0.0
    rows = stats.num_rows - stats.num_empty
    mean = stats.nnz / rows
    mean_square = (stats.std_length**2 + stats.mean_length**2) * stats.num_rows / rows
    deviation = sqrt(log(max(mean_square / mean**2, 1 + 1e-6)))
    score = log(mean / length) / deviation
    return _normal(score - deviation / 2), _normal(score + deviation / 2)


def _normal(x: float) -> float:
    """Return the cumulative distribution function of the standard normal distribution."""
    return (1 + erf(x / sqrt(2))) / 2


@dataclass(frozen=True, eq=False)
class Levels:
    """The rows of a triangular matrix, grouped by level. Rows of one level depend on rows of earlier levels only.

    Attributes
    ----------
    order : array of int32 or int64, shape (num_rows,)
        The rows, level by level, on the device of the matrix.
    bounds : ndarray of int64, shape (num_levels + 1,)
        Level l has the rows ``order[bounds[l]:bounds[l + 1]]``. The bounds are on the host.
    """

    order: Array
    bounds: npt.NDArray[np.int64]

    @property
    def num_levels(self) -> int:
        return int(self.bounds.size) - 1

    def runs(self, narrow: int) -> list[tuple[int, int]]:
        """Return the half-open ranges (first, end) of levels, each of which one launch computes.

        Consecutive levels of at most `narrow` rows form one range. Each level with more rows is a range of its own.
        """
        is_narrow = np.diff(self.bounds) <= narrow
        starts = np.ones(self.num_levels, bool)
        starts[1:] = ~(is_narrow[1:] & is_narrow[:-1])
        edges: list[Any] = [*np.flatnonzero(starts).tolist(), self.num_levels]
        return list(pairwise(edges))
