"""Two sparse matrices combined entry by entry (contract: `gsparse.kernels.algebra`; kernels: `src/sparse_pairs.cu`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.algebra import COMPARISONS, OPERATIONS
from gsparse.kernels.gpu.launch import TILE, TILE_THREADS, Source, constant, num_tiles, tally
from gsparse.kernels.gpu.sparse_rows import drop_zeros

_SOURCE = Source("sparse_pairs.cu", TILE_THREADS)
# Number of positions of a tile: the first if values and columns have at most _NARROW_BYTES bytes, the second otherwise.
_NARROW_BYTES = constant(_SOURCE.file, "GS_NARROW_BYTES")
_TILES = TILE, TILE // 2
_BOOLEAN = np.dtype(np.uint8)
# If matrices have at most this many entries, they are merged without a comparison of their structures first. The merge
# also tells whether the structures are the same; a separate comparison would mean one more wait for the device.
_SMALL = 50_000
# A block that finds a difference between the structures adds this number to the count of values.
_DIFFERS = constant(_SOURCE.file, "GS_DIFFERS")
# An element with an entry in both matrices adds this number to the count of entries of the result.
_BOTH = constant(_SOURCE.file, "GS_RESULTS") + 1


@dataclass(frozen=True)
class _Merge:
    """A merge whose first pass, the count, has been queued.

    Attributes
    ----------
    types : tuple of dtype
        The dtypes of values, indices and results.
    blocks : int
    args : tuple
        The arguments that both passes have in common.
    offsets : array of int64, shape (blocks,)
        The number of entries before each block.
    """

    types: tuple[Any, Any, Any]
    blocks: int
    args: tuple[Any, ...]
    offsets: Array


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    types = [(dtype, index, out) for dtype in COMPUTE_DTYPES for index in INDEX_DTYPES for out in (dtype, _BOOLEAN)]
    pairs = _SOURCE.variants("count_pairs combine_pairs combine_alike", types)
    return pairs + _SOURCE.variants("find_places", INDEX_DTYPES)


def combine_rows(device: Device, operation: str, a: Csr, b: Csr, unsigned: bool = False) -> Csr:
    """Combine the values if both structures are the same; otherwise merge the rows. Synchronizes.

    Small matrices are merged even if their structures are the same, unless they share their arrays. If the result has
    the structure of A, it shares A's arrays.
    """
    is_shared, may_be_alike = a.indptr is b.indptr and a.indices is b.indices, a.nnz == b.nnz > 0
    if may_be_alike and (is_shared or a.nnz > _SMALL):
        values = _begin_values(device, operation, a, b, unsigned)
        num_different, num_kept = divmod(device.counts.read()[0], _DIFFERS)  # synchronizes
        if not num_different:
            values = values.view(np.bool_) if operation in COMPARISONS else values
            c = Csr(a.shape, a.indptr, a.indices, values, True, a.longest)
            return c if num_kept == c.nnz else replace(drop_zeros(device, c), is_canonical=True)
    counts_both = may_be_alike and a.nnz <= _SMALL
    merge = _begin_merge(device, operation, a, b, unsigned, counts_both)
    counted = device.counts.read()[0] if merge.blocks else 0  # synchronizes
    num_both, nnz = divmod(counted, _BOTH)
    c = _merged(device, operation, a, merge, nnz)
    if a.longest is not None and b.longest is not None:
        c = replace(c, longest=a.longest + b.longest)
    is_alike = counts_both and num_both == nnz == a.nnz
    return Csr(a.shape, a.indptr, a.indices, c.data, True, a.longest) if is_alike else c


def _begin_values(device: Device, operation: str, a: Csr, b: Csr, unsigned: bool) -> Array:
    """Queue the comparison of two structures, and combine the values as if the structures were the same."""
    size, num_pointers = a.nnz, a.num_rows + 1
    out = _BOOLEAN if operation in COMPARISONS else a.dtype
    pairs = [
        (None, None) if one is other else (one, other) for one, other in ((a.indptr, b.indptr), (a.indices, b.indices))
    ]
    results, blocks = device.empty(size, out), num_tiles(max(size, num_pointers))
    values = (_number(operation), _flip(unsigned), np.int64(size), np.int64(num_pointers))
    args = (*values, *pairs[0], *pairs[1], a.data, b.data, results, *tally(device, blocks))
    _SOURCE.launch(device, "combine_alike", (a.dtype, a.indices.dtype, out), blocks * TILE_THREADS, args)
    return results


def _number(operation: str) -> np.int32:
    return np.int32(OPERATIONS[operation])


def _flip(unsigned: bool) -> np.int64:
    """Return the bit to flip so that int64 comparisons order uint64 values correctly; 0 if not `unsigned`."""
    return np.int64(-(2**63)) if unsigned else np.int64(0)


def _begin_merge(device: Device, operation: str, a: Csr, b: Csr, unsigned: bool, counts_both: bool) -> _Merge:
    """Queue the count of the result's entries and, if `counts_both`, of elements with an entry in both matrices."""
    if a.nnz + b.nnz > MAX_INT32:
        a, b = a.with_index_dtype(np.int64), b.with_index_dtype(np.int64)
    index, out = a.indices.dtype, _BOOLEAN if operation in COMPARISONS else a.dtype
    positions = a.nnz + b.nnz + a.num_rows
    tile = _TILES[a.dtype.itemsize + index.itemsize > _NARROW_BYTES]
    blocks = num_tiles(positions, tile)
    sizes = (np.int64(a.num_rows), np.int64(positions))
    places = device.empty((blocks + 1, 3), np.int64)
    arrays = (a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, places)
    args = (_number(operation), _flip(unsigned), *sizes, *arrays)
    counts = tally(device, blocks)
    if not blocks:
        return _Merge((a.dtype, index, out), blocks, args, counts[0])
    is_small = positions <= 2 * _SMALL
    if not is_small:  # otherwise the counting blocks find where their tiles begin
        structure = (a.indptr, a.indices, b.indptr, b.indices, places)
        threads = (blocks + 1) * device.lanes
        places_args = (np.int32(tile), *sizes, *structure)
        _SOURCE.launch(device, "find_places", (index,), threads, places_args)
    count_args = (*args, np.int32(is_small), np.int64(_BOTH if counts_both else 0), *counts)
    _SOURCE.launch(device, "count_pairs", (a.dtype, index, out), blocks * TILE_THREADS, count_args)
    return _Merge((a.dtype, index, out), blocks, args, counts[0])


def _merged(device: Device, operation: str, a: Csr, merge: _Merge, nnz: int) -> Csr:
    """Merge the rows again, and write the `nnz` entries of the result."""
    _, index, out = merge.types
    indptr = device.empty(a.num_rows + 1, index) if merge.blocks else device.xp.zeros(1, index)
    c = Csr(a.shape, indptr, device.empty(nnz, index), device.empty(nnz, out), is_canonical=True)
    args = (*merge.args, merge.offsets, indptr, c.indices, c.data)
    _SOURCE.launch(device, "combine_pairs", merge.types, merge.blocks * TILE_THREADS, args)
    return c.with_data(c.data.view(np.bool_)) if operation in COMPARISONS else c
