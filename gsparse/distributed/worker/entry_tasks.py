"""Tasks that read entries of a rank's rows. Each rank reads its own, without the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.worker import registry
from gsparse.distributed.worker.current_worker import check_worker
from gsparse.distributed.worker.group_tasks import GroupSettings

HostArray = npt.NDArray[Any]


def _matrix(settings: GroupSettings, rank: int) -> RankMatrix:
    check_worker(settings.workers[rank])
    return registry.require_state(settings.key).matrix


def rows(settings: GroupSettings, rank: int, numbers: HostArray | slice | None) -> sp.csr_array:
    """Return some of a rank's rows, counted from its first one; all of them for None."""
    if isinstance(numbers, slice):
        numbers = np.arange(numbers.start, numbers.stop)
    return _matrix(settings, rank).rows_on_host(numbers)


def number_of_entries(settings: GroupSettings, rank: int, _: None) -> HostArray:
    """Return the number of stored entries of each of a rank's rows."""
    return _matrix(settings, rank).row_lengths()


def entries_in(settings: GroupSettings, rank: int, columns: HostArray | int) -> HostArray:
    """Return the entry that each row has in a column of its own, or 0.

    Parameters
    ----------
    columns : array of int64, or int
        The column for each of the rank's rows; or the one for its first row, where those of the next rows follow.
    """
    matrix = _matrix(settings, rank)
    return matrix.entries_in(columns if isinstance(columns, np.ndarray) else columns + np.arange(matrix.shape[0]))


def value_counts(
    settings: GroupSettings, rank: int, order: tuple[HostArray, HostArray] | tuple[None, None]
) -> HostArray:
    """Find the order of the values that `RankMatrix.with_data` takes; return the number of values of each row.

    Parameters
    ----------
    order : (array of int or None, array of int or None)
        The arguments of `RankMatrix.entry_order`.
    """
    return _matrix(settings, rank).entry_order(*order).row_lengths
