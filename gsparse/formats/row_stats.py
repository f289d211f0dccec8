"""Statistics of the row lengths of a matrix, from which its storage format is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, log, sqrt

__all__ = ["MAX_INT32", "MAX_PADDING", "RowStats", "share_above"]

# The largest number of int32. Some formats number rows, columns or the entries of one row in int32.
MAX_INT32 = 2**31 - 1

# Stored positions over entries. Up to this ratio, rows stay in their slices as they are. Above it, long rows are kept
# apart from the slices, and rows that still pad more than this without them are sorted by length.
MAX_PADDING = 1.25


@dataclass(frozen=True)
class RowStats:
    """Statistics of the row lengths, from which the storage format is chosen.

    Attributes
    ----------
    num_rows, num_cols, nnz : int
    min_length, max_length : int
        Entries of the shortest and of the longest row.
    mean_length, std_length : float
        Mean and standard deviation of the row lengths.
    num_empty : int
        Rows without entries.
    blocked_stored : int
        Positions of slices in natural order, padding included.
    split_stored : int
        The same without long rows.
    num_long, long_entries : int
        Number of long rows, and of their entries.
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
    def typical_length(self) -> float:
        """The length for which threads are assigned: the mean of rows with entries, and more where lengths scatter."""
        mean = self.nnz / max(self.num_rows - self.num_empty, 1)
        return mean + min(self.std_length, mean)

    @property
    def wants_sorting(self) -> bool:
        """Whether slices pad so much, even without long rows, that rows are sorted first."""
        most = MAX_PADDING * self.nnz
        return self.blocked_stored > most and self.split_stored + self.long_entries > most

    @property
    def efficiency(self) -> float:
        """The share of lanes at work when each lane of a warp owns a row: η."""
        return self.nnz / self.blocked_stored if self.blocked_stored else 1.0


def share_above(stats: RowStats, length: float) -> tuple[float, float]:
    """Estimate the shares of rows with entries, and of entries, in rows longer than `length`.

    The lengths are taken to be distributed log-normally.
    """
    if stats.max_length <= length:
        return 0.0, 0.0
    rows = stats.num_rows - stats.num_empty
    mean = stats.nnz / rows
    square = (stats.std_length**2 + stats.mean_length**2) * stats.num_rows / rows
    deviation = sqrt(log(max(square / mean**2, 1 + 1e-6)))
    place = log(mean / length) / deviation
    return _normal(place - deviation / 2), _normal(place + deviation / 2)


def _normal(x: float) -> float:
    """Return the share of the standard normal distribution below x."""
    return (1 + erf(x / sqrt(2))) / 2
