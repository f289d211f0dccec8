"""A rank's part of a matrix in PETSc's MPIAIJ shape, and what its products exchange.

References
----------
S. Balay et al., "PETSc/TAO users manual", ANL-21/39, Argonne National Laboratory: MPIAIJ matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.communicator import Communicator
from gsparse.distributed.partition import RowPartition
from gsparse.errors import ShapeError

__all__ = ["Halo", "RowBlock", "split_columns"]


@dataclass(frozen=True, eq=False)
class RowBlock:
    """The rows of one rank, split by who owns the columns.

    Attributes
    ----------
    diagonal : csr_array
        Entries in the rank's own columns, numbered from its first.
    off_diagonal : csr_array
        All others, in columns numbered by `ghosts`.
    ghosts : array of int64
        Columns of other ranks that have entries here, sorted.
    """

    diagonal: sp.csr_array
    off_diagonal: sp.csr_array
    ghosts: npt.NDArray[np.int64]


def split_columns(block: sp.csr_array, columns: slice) -> RowBlock:
    """Split a rank's rows into its own columns and the ghosts; entries keep their order.

    Parameters
    ----------
    block : csr_array, shape (rows of the rank, all columns)
    columns : slice
        Those that the rank owns.
    """
    is_own = (block.indices >= columns.start) & (block.indices < columns.stop)
    ghosts, places = np.unique(block.indices[~is_own], return_inverse=True)
    own = block.indices[is_own] - columns.start

    def part(mask: npt.NDArray[np.bool_], indices: npt.NDArray[Any], width: int) -> sp.csr_array:
        before = np.concatenate([[0], np.cumsum(mask)])
        indptr = before[block.indptr]
        dtype = np.int32 if max(indptr[-1], width) < 2**31 else np.int64
        arrays = block.data[mask], indices.astype(dtype), indptr.astype(dtype)
        return sp.csr_array(arrays, shape=(block.shape[0], width))

    return RowBlock(
        part(is_own, own, columns.stop - columns.start), part(~is_own, places, ghosts.size), ghosts.astype(np.int64)
    )


class Halo:
    """Who needs which of a rank's entries, and whose entries it needs: found out once, used by every product.

    Made by all ranks at the same time.

    Parameters
    ----------
    ghosts : array of int64
        As in `RowBlock`.
    columns : RowPartition
        Of the columns.
    communicator : Communicator

    Attributes
    ----------
    sends : dict of rank to array
        Local numbers of the entries that each other rank needs, sorted.
    receives : dict of rank to slice
        Where its entries stand among the ghosts.
    """

    def __init__(self, ghosts: npt.NDArray[np.int64], columns: RowPartition, communicator: Communicator) -> None:
        if columns.world_size != communicator.world_size:
            raise ShapeError(f"{columns.world_size} blocks of columns for {communicator.world_size} ranks")
        rank, first = communicator.rank, columns.row_bounds[communicator.rank]
        owners = columns.owners(ghosts)
        wanted = np.zeros((communicator.world_size, communicator.world_size), np.int64)
        wanted[rank] = np.bincount(owners, minlength=communicator.world_size)
        communicator.allreduce(wanted)  # row: who asks; column: whom
        ends = np.cumsum(wanted[rank])
        self.receives = {
            int(p): slice(int(ends[p] - wanted[rank, p]), int(ends[p])) for p in np.flatnonzero(wanted[rank])
        }
        asked = {int(p): np.empty(wanted[p, rank], np.int64) for p in np.flatnonzero(wanted[:, rank])}
        communicator.exchange({p: ghosts[part] for p, part in self.receives.items()}, asked)()
        self.sends = {p: numbers - first for p, numbers in asked.items()}
        self.num_ghosts = ghosts.size
        self._communicator = communicator

    def gather(self, x: npt.NDArray[Any]) -> Callable[[], npt.NDArray[Any]]:
        """Begin to send others what they need of x; give what waits for the ghosts."""
        ghosts = np.empty(self.num_ghosts, x.dtype)
        packed = {peer: x[numbers] for peer, numbers in self.sends.items()}
        wait = self._communicator.exchange(packed, {peer: ghosts[part] for peer, part in self.receives.items()})

        def finish() -> npt.NDArray[Any]:
            wait()
            return ghosts

        return finish

    def scatter_add(self, ghosts: npt.NDArray[Any]) -> Callable[[npt.NDArray[Any]], None]:
        """Begin to send ghosts back to their owners; give what adds those that come to a vector, rank after rank."""
        parts = {peer: np.empty(numbers.size, ghosts.dtype) for peer, numbers in self.sends.items()}
        wait = self._communicator.exchange({peer: ghosts[part] for peer, part in self.receives.items()}, parts)

        def add_to(y: npt.NDArray[Any]) -> None:
            wait()
            for peer in sorted(parts):
                y[self.sends[peer]] += parts[peer]

        return add_to
