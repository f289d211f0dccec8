"""Two sparse matrices combined entry by entry (contract: `gsparse.kernels.algebra`; kernels: `src/sparse_pairs.cu`)."""

from __future__ import annotations

from itertools import product

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.algebra import COMPARISONS, OPERATIONS
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.tallies import TILE_THREADS, num_tiles, tally

__all__ = ["combine_alike", "combine_rows", "instantiations"]

_SOURCE = "sparse_pairs.cu"
_TILES = (2048, 1024)  # Pair::tile, for values and columns of up to 12 bytes and of more
_BOOLEAN = np.dtype(np.uint8)


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    pairs = product(COMPUTE_DTYPES, INDEX_DTYPES, ("count_pairs", "combine_pairs"))
    names = [expression(name, dtype, index, out) for dtype, index, name in pairs for out in (dtype, _BOOLEAN)]
    names += [expression("combine_values", dtype, out) for dtype in COMPUTE_DTYPES for out in (dtype, _BOOLEAN)]
    names += [expression(name, index) for name in ("find_places", "count_differences") for index in INDEX_DTYPES]
    return [(_SOURCE, name) for name in names]


def combine_alike(device: Device, operation: str, a: Csr, b: Csr, unsigned: bool = False) -> tuple[Array, int] | None:
    """Count differences of the structures and combine the values in any case, to wait only once. Synchronizes."""
    size = a.nnz
    pairs = [(a.indptr, b.indptr), (a.indices, b.indices)]
    pairs = [(one, other) for one, other in pairs if one is not other]
    for place, (one, other) in enumerate(pairs):
        count, blocks = int(one.size), num_tiles(int(one.size))
        args = (np.int64(count), one, other, *tally(device, blocks, 1 + place))
        launch_blocks(device, _SOURCE, expression("count_differences", one.dtype), blocks, TILE_THREADS, args)
    out = _BOOLEAN if operation in COMPARISONS else a.dtype
    results, blocks = device.empty(size, out), num_tiles(size)
    values = (_number(operation), _flip(unsigned), np.int64(size), a.data, b.data, results)
    name = expression("combine_values", a.dtype, out)
    launch_blocks(device, _SOURCE, name, blocks, TILE_THREADS, (*values, *tally(device, blocks)))
    num_kept, *differences = device.counts.read(1 + len(pairs))  # synchronizes
    if any(differences):
        return None
    return (results.view(np.bool_) if operation in COMPARISONS else results), num_kept


def _number(operation: str) -> np.int32:
    return np.int32(OPERATIONS[operation])


def _flip(unsigned: bool) -> np.int64:
    """Return the bit whose change brings the order of uint64, read as int64, into that of int64."""
    return np.int64(-(2**63)) if unsigned else np.int64(0)


def combine_rows(device: Device, operation: str, a: Csr, b: Csr, unsigned: bool = False) -> Csr:
    """Merge the rows to count the entries of the result, then merge them again to write these. Synchronizes."""
    if a.nnz + b.nnz > MAX_INT32:
        a, b = a.with_index_dtype(np.int64), b.with_index_dtype(np.int64)
    index, out = a.indices.dtype, _BOOLEAN if operation in COMPARISONS else a.dtype
    positions, nnz = a.nnz + b.nnz + a.num_rows, 0
    tile = _TILES[a.dtype.itemsize + index.itemsize > 12]
    blocks = num_tiles(positions, tile)
    sizes = (np.int64(a.num_rows), np.int64(positions))
    places = device.empty((blocks + 1, 3), np.int64)
    arrays = (a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, places)
    args = (_number(operation), _flip(unsigned), *sizes, *arrays)
    counts = tally(device, blocks)
    if blocks:
        structure = (a.indptr, a.indices, b.indptr, b.indices, places)
        threads = (blocks + 1) * device.lanes
        places_args = (np.int32(tile), *sizes, *structure)
        launch_threads(device, _SOURCE, expression("find_places", index), threads, TILE_THREADS, places_args)
        name = expression("count_pairs", a.dtype, index, out)
        launch_blocks(device, _SOURCE, name, blocks, TILE_THREADS, (*args, *counts))
        (nnz,) = device.counts.read()  # synchronizes
    indptr = device.empty(a.num_rows + 1, index) if blocks else device.xp.zeros(1, index)
    c = Csr(a.shape, indptr, device.empty(nnz, index), device.empty(nnz, out), is_canonical=True)
    name = expression("combine_pairs", a.dtype, index, out)
    launch_blocks(device, _SOURCE, name, blocks, TILE_THREADS, (*args, counts[0], indptr, c.indices, c.data))
    return c.with_data(c.data.view(np.bool_)) if operation in COMPARISONS else c
