"""A rank's part of a matrix in PETSc's MPIAIJ shape, and what its products exchange.

References
----------
S. Balay et al., "PETSc/TAO users manual", ANL-21/39, Argonne National Laboratory: MPIAIJ matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.errors import ShapeError
from gsparse.kernels.backends import kernels_of

__all__ = ["Halo", "HaloExchange", "RowBlock", "split_columns"]


@dataclass(frozen=True, eq=False)
class RowBlock:
    """The rows of one rank, split by who owns the columns.

    Attributes
    ----------
    diagonal : csr_array
        Entries in the rank's own columns, numbered from its first; of SciPy, or a `GpuSparseMatrix` as it is.
    off_diagonal : csr_array
        All others: of the rows that have any, in columns numbered by `ghosts`.
    boundary : array of int64
        Which rows those are.
    ghosts : array of int64
        Columns of other ranks that have entries here, sorted.
    """

    diagonal: sp.csr_array
    off_diagonal: sp.csr_array
    boundary: npt.NDArray[np.int64]
    ghosts: npt.NDArray[np.int64]

    def astype(self, dtype: np.dtype[Any]) -> RowBlock:
        """Convert the values of both blocks.

        Parameters
        ----------
        dtype : dtype
            Of the values; indices stay as they are.

        Returns
        -------
        RowBlock
            With the same arrays where they have this dtype already.
        """
        diagonal, off_diagonal = (part.astype(dtype, copy=False) for part in (self.diagonal, self.off_diagonal))
        return replace(self, diagonal=diagonal, off_diagonal=off_diagonal)


def split_columns(block: sp.csr_array, columns: slice) -> RowBlock:
    """Split a rank's rows into its own columns and the ghosts; entries keep their order.

    Parameters
    ----------
    block : csr_array, shape (rows of the rank, all columns)
        On the host.
    columns : slice
        Those that the rank owns.

    Returns
    -------
    RowBlock
        Columns are int32 where that holds them.

    Examples
    --------
    >>> import scipy.sparse
    >>> from gsparse.distributed import split_columns
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(6, 6)).tocsr()
    >>> block = split_columns(S[2:4], slice(2, 4))
    >>> block.diagonal.nnz, block.off_diagonal.nnz, block.ghosts
    (4, 2, array([1, 4]))
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

    diagonal, others = part(is_own, own, columns.stop - columns.start), part(~is_own, places, ghosts.size)
    boundary = np.flatnonzero(np.diff(others.indptr))
    indptr = np.append(others.indptr[:-1][boundary], others.indptr[-1])
    shape = (boundary.size, ghosts.size)
    off_diagonal = sp.csr_array((others.data, others.indices, indptr), shape=shape)
    return RowBlock(diagonal, off_diagonal, boundary, ghosts.astype(np.int64))


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
        Of the ranks that own them, for arrays of the host.

    Attributes
    ----------
    sends : dict of rank to array
        Local numbers of the entries that each other rank needs, sorted.
    receives : dict of rank to slice
        Where its entries stand among the ghosts.
    size, num_ghosts : int
        Entries that the rank owns, and ghosts.

    Examples
    --------
    >>> import numpy
    >>> from gsparse.distributed import Halo, RowPartition, run_ranks
    >>> columns, ghosts = RowPartition.by_rows(6, 2), [numpy.array([3]), numpy.array([1, 2])]
    >>> def plan(communicator):
    ...     return Halo(ghosts[communicator.rank], columns, communicator)
    >>> [halo.sends for halo in run_ranks(plan, 2)]
    [{1: array([1, 2])}, {0: array([0])}]
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
        self.size = columns.row_bounds[rank + 1] - first


class HaloExchange:
    """A halo with buffers for vectors of one dtype, `columns` at a time, on the communicator's device.

    What goes to or comes from one rank is contiguous, column after column.

    Parameters
    ----------
    halo : Halo
    communicator : Communicator
        That takes arrays of the device.
    device : Device
    dtype : dtype
    columns : int
    """

    def __init__(
        self, halo: Halo, communicator: Communicator, device: Device, dtype: np.dtype[Any], columns: int
    ) -> None:
        self._communicator, self._device = communicator, device
        ghosts = {peer: np.arange(part.start, part.stop) for peer, part in halo.receives.items()}
        self._inner = _Peers(device, halo.sends, halo.size, dtype, columns)
        self._outer = _Peers(device, ghosts, halo.num_ghosts, dtype, columns)
        # Received column after column for one rank after the other, which is the order of ghosts where there is one.
        self._order = device.upload(np.argsort(device.download(self._outer.numbers))) if columns > 1 else None
        self._ghosts = self._outer.buffer if columns == 1 else device.empty(columns * halo.num_ghosts, dtype)

    def gather(self, x: Array) -> Callable[[], Array]:
        """Begin to send others what they need of x; give what waits for the ghosts."""
        kernels, inner, outer = kernels_of(self._device), self._inner, self._outer
        kernels.gather(self._device, x, inner.numbers, inner.buffer)
        wait = self._communicator.exchange(inner.parts, outer.parts)

        def finish() -> Array:
            wait()
            if self._order is not None:
                kernels.gather(self._device, outer.buffer, self._order, self._ghosts)
            return self._ghosts

        return finish

    def scatter_add(self, ghosts: Array) -> Callable[[Array], None]:
        """Begin to send ghosts back to their owners; give what adds those that come to a vector, rank after rank."""
        kernels, inner, outer = kernels_of(self._device), self._inner, self._outer
        kernels.gather(self._device, ghosts, outer.numbers, outer.buffer)
        wait = self._communicator.exchange(outer.parts, inner.parts)

        def add_to(y: Array) -> None:
            wait()
            for peer in sorted(inner.parts):
                kernels.scatter_add(self._device, inner.parts[peer], inner.numbers_of[peer], y)

        return add_to


class _Peers:
    """Entries of a vector that belong to several ranks, by rank, and a buffer for them."""

    def __init__(
        self,
        device: Device,
        numbers: Mapping[int, npt.NDArray[np.int64]],
        size: int,
        dtype: np.dtype[Any],
        columns: int,
    ) -> None:
        kind = np.int32 if columns * size < 2**31 else np.int64
        offsets = size * np.arange(columns)[:, None]
        found = [(offsets + numbers[peer]).astype(kind).reshape(-1) for peer in sorted(numbers)]
        ends = np.cumsum([len(part) for part in found])
        slices = {p: slice(e - len(part), e) for p, part, e in zip(sorted(numbers), found, ends.tolist(), strict=True)}
        self.numbers = device.upload(np.concatenate([np.empty(0, kind), *found]))
        self.buffer = device.empty(self.numbers.size, dtype)
        self.parts = {peer: self.buffer[part] for peer, part in slices.items()}
        self.numbers_of = {peer: self.numbers[part] for peer, part in slices.items()}
