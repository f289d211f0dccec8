"""Levels of a triangular matrix: sets of rows that a triangular solve can compute in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array


@dataclass(frozen=True, eq=False)
class Levels:
    """The rows grouped by level. Rows of one level depend on rows of earlier levels only.

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
