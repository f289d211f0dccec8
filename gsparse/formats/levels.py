"""Levels of a triangular matrix: rows that wait for none of each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array

__all__ = ["Levels"]


@dataclass(frozen=True, eq=False)
class Levels:
    """Rows by level: those of one level depend on rows of earlier levels only.

    Attributes
    ----------
    order : array of int32 or int64, shape (num_rows,)
        Rows, level by level, on the device of the matrix.
    bounds : ndarray of int64, shape (num_levels + 1,)
        Level l has the rows ``order[bounds[l]:bounds[l + 1]]``; on the host.
    """

    order: Array
    bounds: npt.NDArray[np.int64]

    @property
    def num_levels(self) -> int:
        return int(self.bounds.size) - 1

    def runs(self, narrow: int) -> list[tuple[int, int]]:
        """Give ranges of levels to be done in one go: each wide level alone, consecutive ones up to `narrow` rows."""
        is_narrow = np.diff(self.bounds) <= narrow
        starts = np.ones(self.num_levels, bool)
        starts[1:] = ~(is_narrow[1:] & is_narrow[:-1])
        edges: list[Any] = [*np.flatnonzero(starts).tolist(), self.num_levels]
        return list(pairwise(edges))
