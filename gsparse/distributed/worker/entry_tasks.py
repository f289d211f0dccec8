"""Functions that read entries of a rank's rows. Each rank reads its own, without the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.worker.rank import Rank, find_rank

HostArray = npt.NDArray[Any]


def rows(rank: Rank, numbers: HostArray | None = None) -> sp.csr_array:
    """Return some of a rank's rows, counted from its first one; all of them for None."""
    return rank.require_matrix().rows_on_host(numbers)


def rows_between(key: str, start: int, stop: int) -> sp.csr_array:
    """Return some rows of the rank with this key, which is on this worker, as a task of dask."""
    return rows(find_rank(key), np.arange(start, stop))


def number_of_entries(rank: Rank) -> HostArray:
    """Return the number of stored entries of each of a rank's rows."""
    return rank.require_matrix().row_lengths()


def entries_in(rank: Rank, columns: HostArray | int) -> HostArray:
    """Return the entry that each row has in a column of its own, or 0.

    Parameters
    ----------
    columns : array of int64, or int
        The column for each of the rank's rows; or the one for its first row, where those of the next rows follow.
    """
    matrix = rank.require_matrix()
    return matrix.entries_in(columns if isinstance(columns, np.ndarray) else columns + np.arange(matrix.shape[0]))


def value_counts(rank: Rank, columns: HostArray | None, ghosts: HostArray | None) -> HostArray:
    """Find the order of the values that `RankMatrix.with_data` takes; return the number of values of each row.

    The arguments are those of `RankMatrix.entry_order`.
    """
    return rank.require_matrix().entry_order(columns, ghosts).row_lengths
