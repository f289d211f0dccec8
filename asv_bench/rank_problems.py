"""What the measurements of several ranks have in common: their problem, and an altered communicator.

The problem is the 7-point Laplacian, of which each rank makes a slab of planes on its device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.distributed import RankMatrix, RowBlock, RowPartition

__all__ = ["AlteredCommunicator", "matrix", "slab"]


class AlteredCommunicator:
    """A communicator that works differently, to find out how long its messages and sums take.

    Parameters
    ----------
    inner : Communicator
        The communicator that does the work. If it takes arrays of a GPU, the communicator for host arrays that `on`
        returns is not altered.
    alteration : str
        "one stream", so that messages wait for other work on the same stream; or, from the call of `begin` on,
        "without messages" or "sums twice". Anything else changes nothing.
    """

    def __init__(self, inner: Any, alteration: str) -> None:
        self._inner, self._alteration, self._has_begun, self._received = inner, alteration, False, list[Any]()
        self.uses_second_stream = inner.uses_second_stream and alteration != "one stream"
        self._spare: Any = None  # is allocated ahead, because a CUDA graph cannot allocate memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def on(self, device: Any) -> Any:
        communicator = self._inner.on(device)
        self._spare = device.xp.zeros(64)
        return self if communicator is self._inner else communicator

    def begin(self) -> None:
        """Work differently from now on. Elements that bound exchanges have received become 0, also without messages."""
        self._has_begun = True
        for values in self._received:
            values[...] = 0

    def _is(self, alteration: str) -> bool:
        return self._has_begun and self._alteration == alteration

    def exchange(self, sends: Any, receives: Any) -> Callable[[], None]:
        return self.bind_exchange(sends, receives)()

    def bind_exchange(self, sends: Any, receives: Any) -> Callable[[], Callable[[], None]]:
        self._received += receives.values()
        exchange = self._inner.bind_exchange(sends, receives)
        return lambda: (lambda: None) if self._is("without messages") else exchange()

    def allreduce(self, values: Any) -> None:
        if self._is("sums twice"):
            self._inner.allreduce(self._spare[: values.size])
        self._inner.allreduce(values)


def slab(shape: tuple[int, int, int], first: int, last: int, device: Any, variable: bool = False) -> RowBlock:
    """Make the rows of the 7-point Laplacian on a (z, y, x) grid that belong to the planes `first` to `last`.

    They are returned as a diagonal block, with the columns of these planes, and an off-diagonal block.
    """
    xp, (nz, ny, nx) = device.xp, shape
    plane, rows = ny * nx, (last - first) * ny * nx
    offsets = (-plane, -nx, -1, 0, 1, nx, plane)
    row_numbers = xp.arange(rows, dtype=np.int32)
    z, y, x = row_numbers // plane, row_numbers % plane // nx, row_numbers % nx
    inside = [z > 0, y > 0, x > 0, xp.ones(rows, bool), x < nx - 1, y < ny - 1, z < last - first - 1]
    columns = xp.stack(
        [xp.where(is_inside, row_numbers + d, -1) for d, is_inside in zip(offsets, inside, strict=True)], axis=1
    )
    stored = columns >= 0
    values = xp.broadcast_to(xp.asarray([6.0 if d == 0 else -1.0 for d in offsets]), columns.shape)[stored]
    if variable:  # The matrix stays symmetric, because the factors depend on the sum of row and column.
        values = values * (1 + 0.1 * xp.sin((row_numbers[:, None] + columns + 2 * first * plane)[stored] % 1009))
    indptr = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(stored.sum(axis=1))])
    indptr = indptr if int(indptr[-1]) >= 2**31 else indptr.astype(np.int32)
    csr_type = sp.csr_array if device.kind == "cpu" else __import__("cupyx.scipy.sparse").scipy.sparse.csr_matrix
    diagonal = csr_type((values, columns[stored].astype(indptr.dtype), indptr), shape=(rows, rows))
    edges = [(first > 0, 0, first * plane - plane), (last < nz, rows - plane, last * plane)]
    boundary = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(first_row, first_row + plane) for exists, first_row, _ in edges if exists)]
    )
    ghosts = np.concatenate(
        [
            np.empty(0, np.int64),
            *(np.arange(first_ghost, first_ghost + plane) for exists, _, first_ghost in edges if exists),
        ]
    )
    if variable:
        coupled = -1 - 0.1 * np.sin((boundary + first * plane + ghosts) % 1009)
    else:
        coupled = np.full(boundary.size, -1.0)
    off_diagonal = sp.csr_array(
        (coupled, (np.arange(boundary.size), np.arange(boundary.size))), shape=(boundary.size,) * 2
    )
    return RowBlock(diagonal, off_diagonal, boundary, ghosts)


def matrix(
    communicator: Any, device: Any, shape: tuple[int, int, int], variable: bool = False, is_coupled: bool = True
) -> RankMatrix:
    """Make a rank's rows of the problem, with or without the entries in columns of other ranks."""
    planes = RowPartition.by_rows(shape[0], communicator.world_size)
    own = planes.rows(communicator.rank)
    rows = RowPartition(tuple(b * shape[1] * shape[2] for b in planes.row_bounds))
    if is_coupled:
        block = slab(shape, own.start, own.stop, device, variable)
    else:
        block = slab((own.stop - own.start, *shape[1:]), 0, own.stop - own.start, device, variable)
    return RankMatrix(block, rows, rows, communicator, device)
