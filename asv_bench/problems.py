"""Model problems, made on whichever device the array module belongs to, and the real matrices of ../shared."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["MODEL_PROBLEMS", "banded", "matrix_folder", "real_matrix", "rmat", "stencil", "uniform"]

SEED = 20261120


def stencil(n: int, points: int, *, variable: bool = False, xp: Any = np, dtype: Any = np.float64) -> tuple[Any, ...]:
    """Make the 7- or 27-point stencil on n³ points: (data, indices, indptr), symmetric, columns sorted.

    Constant: the number of other points of the stencil on the diagonal (6 or 26), -1 beside it.
    """
    offsets = [o for o in itertools.product((-1, 0, 1), repeat=3) if points == 27 or sum(map(abs, o)) <= 1]
    z, y, x = xp.meshgrid(*(xp.arange(n, dtype=np.int32),) * 3, indexing="ij")
    rows = (z * n + y) * n + x
    inside = xp.empty((n**3, points), bool)
    columns = xp.empty((n**3, points), np.int32)
    for j, (dz, dy, dx) in enumerate(offsets):
        inside[:, j] = (
            (z + dz >= 0) & (z + dz < n) & (y + dy >= 0) & (y + dy < n) & (x + dx >= 0) & (x + dx < n)
        ).ravel()
        columns[:, j] = (rows + (dz * n + dy) * n + dx).ravel()
    indptr = xp.zeros(n**3 + 1, np.int64)
    xp.cumsum(inside.sum(axis=1), out=indptr[1:])
    indices = columns[inside]
    data = xp.where(indices == xp.repeat(rows.ravel(), points).reshape(-1, points)[inside], float(points - 1), -1.0)
    if variable:
        data = data * (1 + xp.random.default_rng(SEED).random(data.size) / 8)
    return data.astype(dtype), indices, indptr.astype(np.int32)


def banded(num_rows: int, per_row: int, reach: int, *, xp: Any = np) -> tuple[Any, ...]:
    """Make rows of `per_row` random columns within ±reach of the diagonal."""
    rng = xp.random.default_rng(SEED)
    columns = xp.arange(num_rows)[:, None] + rng.integers(-reach, reach + 1, (num_rows, per_row))
    return _even_rows(xp.clip(columns, 0, num_rows - 1), num_rows, per_row, rng, xp)


def uniform(num_rows: int, per_row: int, *, xp: Any = np) -> tuple[Any, ...]:
    """Make rows of `per_row` random columns anywhere."""
    rng = xp.random.default_rng(SEED)
    return _even_rows(rng.integers(0, num_rows, (num_rows, per_row)), num_rows, per_row, rng, xp)


def _even_rows(columns: Any, num_rows: int, per_row: int, rng: Any, xp: Any) -> tuple[Any, ...]:
    indices = xp.sort(columns, axis=1).astype(np.int32).ravel()
    indptr = xp.arange(0, num_rows * per_row + 1, per_row, dtype=np.int32)
    return rng.random(indices.size), indices, indptr


def rmat(scale: int, edges_per_row: int, *, xp: Any = np) -> tuple[Any, ...]:
    """Make a power-law graph of 2**scale vertices (R-MAT, a = 0.57, b = c = 0.19), duplicate edges dropped.

    References
    ----------
    D. Chakrabarti, Y. Zhan, C. Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004.
    """
    num_rows, rng = 2**scale, xp.random.default_rng(SEED)
    num_edges = num_rows * edges_per_row
    keys = xp.zeros(num_edges, np.int64)
    for bit in range(scale):
        draw = rng.random(num_edges)
        row, column = draw >= 0.76, ((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)
        keys |= (row.astype(np.int64) << (bit + scale)) | (column.astype(np.int64) << bit)
    keys = xp.unique(keys)
    indptr = xp.searchsorted(keys >> scale, xp.arange(num_rows + 1)).astype(np.int32)
    return rng.random(keys.size), (keys & (num_rows - 1)).astype(np.int32), indptr


# Name → (make(xp), rows): the problems of the project's first measurements.
MODEL_PROBLEMS: dict[str, Any] = {
    "7-point 200^3 constant": lambda xp: stencil(200, 7, xp=xp),
    "7-point 200^3 variable": lambda xp: stencil(200, 7, variable=True, xp=xp),
    "27-point 128^3 variable": lambda xp: stencil(128, 27, variable=True, xp=xp),
    "banded 2M x 24": lambda xp: banded(2_000_000, 24, 2000, xp=xp),
    "uniform 2M x 24": lambda xp: uniform(2_000_000, 24, xp=xp),
    "R-MAT 21": lambda xp: rmat(21, 16, xp=xp),
}


def matrix_folder() -> Path:
    """Give the folder of real matrices: GSPARSE_MATRICES, else ../shared/matrices beside the checkout."""
    default = Path(__file__).resolve().parents[2] / "shared" / "matrices"
    return Path(os.environ.get("GSPARSE_MATRICES", default))


def real_matrix(name: str) -> sp.csr_array:
    """Load a real matrix; patterns as ones."""
    return sp.csr_array(sp.load_npz(matrix_folder() / f"{name}.npz"))
