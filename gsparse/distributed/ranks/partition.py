"""Which rank owns which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index

import numpy as np
import numpy.typing as npt

from gsparse.errors import ShapeError


@dataclass(frozen=True)
class RowPartition:
    """Consecutive rows for each rank.

    Parameters
    ----------
    row_bounds : tuple of int
        Rank r owns the rows from ``row_bounds[r]`` up to, but not including, ``row_bounds[r + 1]``. A rank may own no
        rows.

    Raises
    ------
    ShapeError
        If there are fewer than two bounds, or they do not begin at 0, or decrease.

    Examples
    --------
    >>> RowPartition.by_rows(10, 4).row_bounds
    (0, 2, 5, 7, 10)
    """

    row_bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        bounds = self.row_bounds
        if len(bounds) < 2 or bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)):
            raise ShapeError(f"row bounds must begin at 0 and never decrease, one bound more than ranks: got {bounds}")

    @classmethod
    def by_rows(cls, num_rows: int, world_size: int) -> RowPartition:
        """Divide the rows so that all ranks own about the same number of them.

        Parameters
        ----------
        num_rows : int
            Number of rows of the matrix.
        world_size : int
            Number of ranks.

        Returns
        -------
        RowPartition
            Its blocks differ by one row at most.

        Raises
        ------
        ValueError
            If `world_size` is less than 1.
        """
        check_world_size(world_size)
        return cls(tuple(num_rows * rank // world_size for rank in range(world_size + 1)))

    @classmethod
    def by_nnz(cls, indptr: npt.NDArray[np.integer], world_size: int) -> RowPartition:
        """Divide the rows so that all ranks own about the same number of entries and rows together.

        Parameters
        ----------
        indptr : array of int, shape (num_rows + 1,)
            Row pointers of the matrix, on the host.
        world_size : int
            Number of ranks.

        Returns
        -------
        RowPartition
            A row counts as one entry more than it has. Rows are not split, so a rank with a long row may own more
            entries than the others.

        Raises
        ------
        ValueError
            If `world_size` is less than 1.
        """
        check_world_size(world_size)
        work = np.asarray(indptr, np.int64) + np.arange(len(indptr))
        shares = int(work[-1]) * np.arange(1, world_size) // world_size
        return cls((0, *np.searchsorted(work, shares).tolist(), len(indptr) - 1))

    def between_blocks(self, size: int) -> RowPartition:
        """Move the bounds to multiples of a number of rows, such as the unknowns of a node.

        Parameters
        ----------
        size : int
            Number of consecutive rows that belong together. It divides the number of rows.

        Returns
        -------
        RowPartition
            The partition with the nearest such bounds.

        Examples
        --------
        >>> RowPartition((0, 5, 9)).between_blocks(3).row_bounds
        (0, 6, 9)
        """
        return RowPartition(tuple(size * ((bound + size // 2) // size) for bound in self.row_bounds))

    @classmethod
    def from_bounds(cls, bounds: Sequence[int], num_rows: int) -> RowPartition:
        """Make a partition with the given bounds, and check that they fit the matrix.

        Parameters
        ----------
        bounds : sequence of int
            The `row_bounds`.
        num_rows : int
            Number of rows of the matrix.

        Returns
        -------
        RowPartition
            The partition with these bounds.

        Raises
        ------
        ShapeError
            If the last bound is not `num_rows`, or the bounds are not those of a partition.
        TypeError
            If the bounds are not integers.
        """
        partition = cls(tuple(map(index, bounds)))
        if partition.num_rows != num_rows:
            raise ShapeError(
                f"row bounds must end at the number of rows: they end at {partition.num_rows}, not at {num_rows}"
            )
        return partition

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.row_bounds) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows of all ranks together."""
        return self.row_bounds[-1]

    def rows(self, rank: int) -> slice:
        """Return the rows that a rank owns.

        Parameters
        ----------
        rank : int
            The rank, counted from 0.

        Returns
        -------
        slice
            Its rows, as row numbers of the whole matrix.
        """
        return slice(self.row_bounds[rank], self.row_bounds[rank + 1])

    def owners(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
        """Return the rank that owns each of the given rows.

        Parameters
        ----------
        rows : array of int
            Row numbers, on the host.

        Returns
        -------
        array of int
            The owners, in the shape of `rows`.
        """
        return np.searchsorted(self.row_bounds, rows, side="right") - 1


def check_one_block_per_rank(name: str, partition: RowPartition, world_size: int) -> None:
    """Raise an error that names the argument if a partition is one for another number of ranks."""
    if partition.world_size != world_size:
        raise ShapeError(
            f"{name} must have one block for each of the {world_size} ranks, got {partition.world_size} blocks with "
            f"the bounds {partition.row_bounds}"
        )


def check_world_size(world_size: int) -> None:
    """Raise ValueError if there is no rank."""
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
