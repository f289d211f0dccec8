"""Which rank owns which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index

import numpy as np
import numpy.typing as npt

from gsparse.errors import ShapeError

__all__ = ["RowPartition"]


@dataclass(frozen=True)
class RowPartition:
    """Consecutive rows for each rank.

    Parameters
    ----------
    row_bounds : tuple of int
        Rank r owns the rows from ``row_bounds[r]`` to ``row_bounds[r + 1]``; there may be none.

    Raises
    ------
    ShapeError
        Where the bounds do not begin at 0, or fall.

    Examples
    --------
    >>> RowPartition.by_rows(10, 4).row_bounds
    (0, 2, 5, 7, 10)
    """

    row_bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        bounds = self.row_bounds
        if len(bounds) < 2 or bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)):
            raise ShapeError(f"row bounds begin at 0 and never fall, one more than there are ranks: got {bounds}")

    @classmethod
    def by_rows(cls, num_rows: int, world_size: int) -> RowPartition:
        """Give every rank about as many rows.

        Parameters
        ----------
        num_rows : int
            Of the matrix.
        world_size : int
            How many ranks.

        Returns
        -------
        RowPartition
            Blocks differ by a row at most.
        """
        return cls(tuple(num_rows * rank // world_size for rank in range(world_size + 1)))

    @classmethod
    def by_nnz(cls, indptr: npt.NDArray[np.integer], world_size: int) -> RowPartition:
        """Give every rank about as many entries, each row counted as one more.

        Parameters
        ----------
        indptr : array of int, shape (num_rows + 1,)
            Row pointers of the matrix, on the host.
        world_size : int
            How many ranks.

        Returns
        -------
        RowPartition
            Rows are not split: one long row may be more than a share.
        """
        work = np.asarray(indptr, np.int64) + np.arange(len(indptr))
        shares = int(work[-1]) * np.arange(1, world_size) // world_size
        return cls((0, *np.searchsorted(work, shares).tolist(), len(indptr) - 1))

    @classmethod
    def from_bounds(cls, bounds: Sequence[int], num_rows: int) -> RowPartition:
        """Take bounds as they are, for a matrix of so many rows.

        Parameters
        ----------
        bounds : sequence of int
            As `row_bounds`.
        num_rows : int
            Of the matrix.

        Returns
        -------
        RowPartition
            With these bounds.

        Raises
        ------
        ShapeError
            Where they do not end there.
        TypeError
            Where they are no integers.
        """
        found = cls(tuple(map(index, bounds)))
        if found.num_rows != num_rows:
            raise ShapeError(f"row bounds end at {found.num_rows}, the matrix has {num_rows} rows")
        return found

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.row_bounds) - 1

    @property
    def num_rows(self) -> int:
        """The rows of all ranks."""
        return self.row_bounds[-1]

    def rows(self, rank: int) -> slice:
        """Give the rows of a rank.

        Parameters
        ----------
        rank : int
            From 0 on.

        Returns
        -------
        slice
            Of the rows of the matrix.
        """
        return slice(self.row_bounds[rank], self.row_bounds[rank + 1])

    def owners(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
        """Give the rank that owns each of some rows.

        Parameters
        ----------
        rows : array of int
            Numbers of rows, on the host.

        Returns
        -------
        array of int
            Of the same shape.
        """
        return np.searchsorted(self.row_bounds, rows, side="right") - 1
