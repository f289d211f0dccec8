"""The place in a rank's two blocks of each value that a user passes in the order of SciPy's canonical CSR.

Row by row, the values of a user come in the order of the columns. A rank stores them in two blocks:

    columns of a row      2  3  4  6  9      of which the rank owns 3 to 6
    values of the user    a  b  c  d  e
    diagonal block        b  c  d
    off-diagonal block    a  e
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.rank_operator import RankOperator

HostArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class EntryOrder:
    """The order of the entries of a rank's rows. It depends on the structure alone.

    Attributes
    ----------
    row_lengths : array of int64, shape (own rows,)
        The number of entries of each row, on the host. An entry that is stored several times counts once.
    diagonal, off_diagonal : array of int
        For each stored entry of the block, the number of its value, on the device. An entry that is stored several
        times has its value where it is stored first. The other times, its number is that of a 0 after the last value.
    """

    row_lengths: HostArray
    diagonal: Array
    off_diagonal: Array

    @staticmethod
    def of(matrix: RankOperator, own_columns: HostArray | None = None, ghosts: HostArray | None = None) -> EntryOrder:
        """Return the order of the entries of a matrix. Synchronizes.

        Parameters
        ----------
        matrix : RankOperator
        own_columns, ghosts : array of int, optional
            The numbers by which the columns of the two blocks are ordered; by default those of the whole matrix.
        """
        own_columns = np.arange(matrix.shape[1]) + matrix.first_index if own_columns is None else own_columns
        ghosts = matrix.ghosts if ghosts is None else ghosts
        parts = [(*part.tocoo().coords, part.nnz) for part in (matrix.diagonal, matrix.off_diagonal)]
        rows = np.concatenate([parts[0][0], matrix.boundary[parts[1][0]]])
        columns = np.concatenate([own_columns[parts[0][1]], ghosts[parts[1][1]]])
        order = np.lexsort((columns, rows))
        rows, columns = rows[order], columns[order]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
        num_values = int(is_first.sum())
        numbers = np.empty(len(rows), np.int32 if num_values < 2**31 - 1 else np.int64)
        numbers[order] = np.where(is_first, np.cumsum(is_first) - 1, num_values)
        blocks = (matrix.device.upload(part) for part in (numbers[: parts[0][2]], numbers[parts[0][2] :]))
        return EntryOrder(np.bincount(rows[is_first], minlength=matrix.shape[0]), *blocks)

    @property
    def num_values(self) -> int:
        return int(self.row_lengths.sum())

    def of_blocks(self, device: Device, values: Array) -> tuple[Array, Array]:
        """Return the values of the diagonal and of the off-diagonal block for those of a user, on the device."""
        xp = device.xp
        values = xp.concatenate([values, xp.zeros(1, values.dtype)])
        return values[self.diagonal], values[self.off_diagonal]
