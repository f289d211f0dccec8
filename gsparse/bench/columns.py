"""Products with k dense columns, row-major and column-major, in the format that gsparse chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import gsparse
from gsparse.bench.peers import SEED, LoadedMatrix, Peer, Prepared, set_threads
from gsparse.device.dtypes import Array


def with_columns(loaded: LoadedMatrix, columns: int) -> LoadedMatrix:
    """Return the loaded matrix with a row-major X of `columns` columns in place of x."""
    rng = loaded.device.xp.random.default_rng(SEED)
    X = (rng.random((loaded.shape[1], columns)) - 0.5).astype(loaded.dtype)
    return replace(loaded, name=f"{loaded.name} × {columns}", x=X)


def column_peers(loaded: LoadedMatrix) -> Iterator[Peer]:
    """Yield gsparse's products with a row-major X and with a column-major X."""
    A = gsparse.GpuSparseMatrix(loaded.arrays[:3], shape=loaded.shape, device=loaded.device)
    xp, shape = loaded.device.xp, (loaded.shape[0], loaded.columns)
    by_columns = xp.asfortranarray(loaded.x), xp.empty(shape, loaded.dtype, order="F")
    for name, kind, (X, Y) in (
        ("plan", "plan", (loaded.x, xp.empty(shape, loaded.dtype))),
        ("plan by columns", "layout", by_columns),
    ):
        yield Peer(name, kind, partial(_prepare, loaded, A, X, Y), {"columns": loaded.columns}, set_threads)


def _prepare(loaded: LoadedMatrix, A: Any, X: Array, Y: Array) -> Prepared:
    def launch() -> Any:
        return A.matmat(X, out=Y)

    launch()
    prepared, dtype = A._prepared()[0], loaded.dtype
    product = prepared.product(dtype, dtype) if loaded.columns == 1 else prepared.columns(dtype, dtype)
    return Prepared(lambda: A @ X, product.nbytes + loaded.vector_bytes, launch, result=launch)
