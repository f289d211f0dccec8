"""The 7-point Laplacian in slabs of planes, a rank's rows made where they are: what `measure_ranks.py` solves."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.distributed import RankMatrix, RowBlock, RowPartition

__all__ = ["matrix", "slab"]


def slab(shape: tuple[int, int, int], first: int, last: int, device: Any, variable: bool = False) -> RowBlock:
    """Make planes `first` to `last` of the 7-point Laplacian on a grid of (z, y, x) points, split by owner."""
    xp, (nz, ny, nx) = device.xp, shape
    plane, rows = ny * nx, (last - first) * ny * nx
    offsets = (-plane, -nx, -1, 0, 1, nx, plane)
    here = xp.arange(rows, dtype=np.int32)
    z, y, x = here // plane, here % plane // nx, here % nx
    inside = [z > 0, y > 0, x > 0, xp.ones(rows, bool), x < nx - 1, y < ny - 1, z < last - first - 1]
    columns = xp.stack([xp.where(there, here + d, -1) for d, there in zip(offsets, inside, strict=True)], axis=1)
    kept = columns >= 0
    values = xp.broadcast_to(xp.asarray([6.0 if d == 0 else -1.0 for d in offsets]), columns.shape)[kept]
    if variable:  # (symmetric: by the sum of row and column)
        values = values * (1 + 0.1 * xp.sin((here[:, None] + columns + 2 * first * plane)[kept] % 1009))
    indptr = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(kept.sum(axis=1))])
    indptr = indptr if int(indptr[-1]) >= 2**31 else indptr.astype(np.int32)
    kind = sp.csr_array if device.kind == "cpu" else __import__("cupyx.scipy.sparse").scipy.sparse.csr_matrix
    diagonal = kind((values, columns[kept].astype(indptr.dtype), indptr), shape=(rows, rows))
    edges = [(first > 0, 0, first * plane - plane), (last < nz, rows - plane, last * plane)]
    boundary = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(row, row + plane) for is_there, row, _ in edges if is_there)]
    )
    ghosts = np.concatenate([np.empty(0, np.int64), *(np.arange(g, g + plane) for is_there, _, g in edges if is_there)])
    if variable:
        coupled = -1 - 0.1 * np.sin((boundary + first * plane + ghosts) % 1009)
    else:
        coupled = np.full(boundary.size, -1.0)
    off_diagonal = sp.csr_array(
        (coupled, (np.arange(boundary.size), np.arange(boundary.size))), shape=(boundary.size,) * 2
    )
    return RowBlock(diagonal, off_diagonal, boundary, ghosts)


def matrix(communicator: Any, device: Any, shape: tuple[int, int, int], variable: bool = False) -> RankMatrix:
    planes = RowPartition.by_rows(shape[0], communicator.world_size)
    own = planes.rows(communicator.rank)
    rows = RowPartition(tuple(b * shape[1] * shape[2] for b in planes.row_bounds))
    return RankMatrix(slab(shape, own.start, own.stop, device, variable), rows, rows, communicator, device)
