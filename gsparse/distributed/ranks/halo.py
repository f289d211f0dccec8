"""The exchange of ghost entries between ranks.

A product needs the entries of the vector that belong to the ghosts, which other ranks own. Each rank gathers the
entries that other ranks need into a buffer, and begins to exchange these buffers. During the exchange, the rank
multiplies by its diagonal block. Then it multiplies by the off-diagonal block, with the ghosts that it has received.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import get_device
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.partition import RowPartition, check_one_block_per_rank
from gsparse.kernels.backends import kernels_of
from gsparse.profiling import recording


class Halo:
    """The plan of a halo exchange: the entries of a vector that a rank sends to, and receives from, each other rank.

    All ranks must make their plans together. Every product of a matrix uses the same plan.

    Parameters
    ----------
    ghosts : array of int64
        The columns of other ranks that this rank needs, as in `RowBlock`.
    columns : RowPartition
        The owners of the columns.
    communicator : Communicator
        A communicator of the ranks, for host arrays.

    Attributes
    ----------
    sends : dict of rank to array
        For each rank that needs entries of this rank, the sorted local numbers of these entries. The keys are sorted.
    sent : array of int64
        The arrays in `sends`, concatenated.
    receives : dict of rank to slice
        For each rank that owns ghosts of this rank, the positions of these ghosts in `ghosts`.
    size, num_ghosts : int
        Number of entries that the rank owns, and number of its ghosts.

    Raises
    ------
    ShapeError
        If `columns` does not have one block for each rank.
    CommunicationError, RankLostError

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
        check_one_block_per_rank("columns", columns, communicator.world_size)
        # A rank may have no arrays to exchange, and could then not tell whether the others exchange host or GPU arrays.
        communicator = communicator.on(get_device("cpu"))
        rank, first = communicator.rank, columns.row_bounds[communicator.rank]
        owners = columns.owners(ghosts)
        # counts[p, q] is the number of ghosts of rank p that rank q owns.
        counts = communicator.table(np.bincount(owners, minlength=communicator.world_size))
        ends = np.cumsum(counts[rank])
        self.receives = {
            int(p): slice(int(ends[p] - counts[rank, p]), int(ends[p])) for p in np.flatnonzero(counts[rank])
        }
        requests = {int(p): np.empty(counts[p, rank], np.int64) for p in np.flatnonzero(counts[:, rank])}
        communicator.exchange({p: ghosts[part] for p, part in self.receives.items()}, requests)()
        self.sends = {p: numbers - first for p, numbers in requests.items()}
        self.sent = np.concatenate([np.empty(0, np.int64), *self.sends.values()])
        self.num_ghosts = ghosts.size
        self.size = columns.row_bounds[rank + 1] - first


class HaloExchange:
    """Exchanges the entries of vectors by the plan of a `Halo`, with buffers that every product reuses.

    There are two buffers. `_shared` holds this rank's entries that other ranks need, and `_ghosts` this rank's ghosts:

        gather         x  →  _shared  →  other ranks;    other ranks  →  _ghosts               (for A·x)
        scatter_add    ghost values  →  _ghosts  →  other ranks;    other ranks  →  _shared  →  added to y    (for Aᴴ·x)

    In both buffers, the entries for one rank are contiguous, one column after the other. For two columns:

        | rank 0: column 0 | rank 0: column 1 | rank 2: column 0 | rank 2: column 1 | ...

    Parameters
    ----------
    halo : Halo
        The plan.
    communicator : Communicator
        A communicator that takes arrays of the device.
    device : Device
        The device of the vectors.
    dtype : dtype
        The dtype of the vectors.
    columns : int
        Number of vectors, which are exchanged at the same time.
    """

    def __init__(
        self, halo: Halo, communicator: Communicator, device: Device, dtype: np.dtype[Any], columns: int
    ) -> None:
        self._device = device
        ghost_numbers = {peer: np.arange(part.start, part.stop) for peer, part in halo.receives.items()}
        self._shared = shared = _PeerBuffers(device, halo.sends, halo.size, dtype, columns)
        self._ghosts = ghosts = _PeerBuffers(device, ghost_numbers, halo.num_ghosts, dtype, columns)
        self._send_shared = communicator.bind_exchange(shared.parts, ghosts.parts)
        self._send_ghosts = communicator.bind_exchange(ghosts.parts, shared.parts)
        # The buffer is ordered by rank, then by column. For one column, this is the order of the ghosts. For several
        # columns, `_ghost_order` sorts the buffer by column, then by rank.
        self._ghost_order = device.upload(np.argsort(device.download(self._ghosts.numbers))) if columns > 1 else None
        self._sorted_ghosts = self._ghosts.buffer if columns == 1 else device.empty(columns * halo.num_ghosts, dtype)

    def gather(self, x: Array) -> Callable[[], Array]:
        """Begin to send the entries of x that other ranks need. Return a callable that waits for the ghosts.

        The callable returns the entries at the ghosts, one vector after the other, in a buffer that the following
        exchange overwrites.
        """
        kernels, shared, ghosts = kernels_of(self._device), self._shared, self._ghosts
        kernels.exchange.gather(self._device, x, shared.numbers, shared.buffer)
        wait = recorded_wait(self._send_shared(), "halo exchange", self._device, ghosts.buffer)

        def finish() -> Array:
            wait()
            if self._ghost_order is not None:
                kernels.exchange.gather(self._device, ghosts.buffer, self._ghost_order, self._sorted_ghosts)
            return self._sorted_ghosts

        return finish

    def scatter_add(self, ghost_values: Array) -> Callable[[Array], None]:
        """Begin to send values of ghosts to their owners. Return a callable that adds the received values to a vector.

        The values are added in the order of the ranks, so that the result has the same bits in every run.
        """
        kernels, shared, ghosts = kernels_of(self._device), self._shared, self._ghosts
        kernels.exchange.gather(self._device, ghost_values, ghosts.numbers, ghosts.buffer)
        wait = recorded_wait(self._send_ghosts(), "halo exchange", self._device, shared.buffer)

        def add_to(y: Array) -> None:
            wait()
            for peer in sorted(shared.parts):
                kernels.exchange.scatter_add(self._device, shared.parts[peer], shared.numbers_of[peer], y)

        return add_to


def recorded_wait(wait: Callable[[], None], name: str, device: Device, received: Array) -> Callable[[], None]:
    """Return the wait for an exchange. If a profile is open, it records the wait under `name`."""
    if recording.recorder is None:
        return wait
    return recording.timed(wait, "wait for ranks", name, device, None, int(received.nbytes))


class _PeerBuffers:
    """A buffer for the entries of vectors that are exchanged with other ranks, ordered by rank and then by column.

    Attributes
    ----------
    numbers : array of int
        For each element of the buffer, its position in the vectors, which are stored one column after the other.
    buffer : array
        The values of the exchanged entries.
    parts, numbers_of : dict of rank to array
        The parts of `buffer` and of `numbers` that belong to each rank.
    """

    def __init__(
        self,
        device: Device,
        numbers: Mapping[int, npt.NDArray[np.int64]],
        size: int,
        dtype: np.dtype[Any],
        columns: int,
    ) -> None:
        index_dtype = np.int32 if columns * size < 2**31 else np.int64
        offsets = size * np.arange(columns)[:, None]
        peers = sorted(numbers)
        parts = [(offsets + numbers[peer]).astype(index_dtype).reshape(-1) for peer in peers]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        slices = {peer: slice(end - len(part), end) for peer, part, end in zip(peers, parts, ends, strict=True)}
        self.numbers = device.upload(np.concatenate([np.empty(0, index_dtype), *parts]))
        self.buffer = device.empty(self.numbers.size, dtype)
        self.parts = {peer: self.buffer[part] for peer, part in slices.items()}
        self.numbers_of = {peer: self.numbers[part] for peer, part in slices.items()}
