"""Sums and extremes of runs of consecutive values (kernels: `src/reductions.cu`).

The contract is in `gsparse.kernels.algebra`. A group of lanes reduces a run. A run that is much longer than the others
is cut into pieces. The results of the pieces of a run form a run at the following level:

    runs     | a a a | b b b b b b b b b b | c |            bounds of level 0: those of the pieces
    pieces   | a a a | b b b b | b b b b | b b | c |
    results  |   a   |    b        b       b   | c |        bounds of level 1: how many pieces each run has
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.kernels.algebra import EXTREMES, TERMS, TESTS
from gsparse.kernels.gpu.launch import TILE_THREADS, Source, num_tiles, tally
from gsparse.kernels.gpu.sparse_rows import row_numbers

_SOURCE = Source("reductions.cu", 256)
# Maximum number of values of a run that one lane reads. Longer runs are cut into pieces.
_VALUES_PER_LANE = 128
# Maximum number of blocks in a sum of all values: several for each multiprocessor of a large GPU.
_MOST_BLOCKS = 1024
# The dtype as which boolean arrays are read.
_MASK = np.dtype(np.uint8)
_INT64, _FLOAT64, _COMPLEX128 = (np.dtype(name) for name in ("int64", "float64", "complex128"))


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    # Pairs: the dtype of values, and the dtype of their sums.
    sums = dict.fromkeys(
        (dtype, _sum_dtype(dtype, terms))
        for dtype, terms in product(COMPUTE_DTYPES, TERMS)
        if dtype != _INT64 or terms in ("value", "nonzero")
    )
    return [
        *_SOURCE.variants("sum_entries", [(dtype, index, out) for (dtype, out), index in product(sums, INDEX_DTYPES)]),
        *_SOURCE.variants("sum_values", sums),
        *_SOURCE.variants("extreme_entries extreme_positions extreme_columns", COMPUTE_DTYPES, INDEX_DTYPES),
        *_SOURCE.variants("first_where count_where", (*COMPUTE_DTYPES, _MASK)),
    ]


def _sum_dtype(dtype: np.dtype[Any], terms: str) -> np.dtype[Any]:
    if terms == "nonzero" or dtype == _INT64:
        return _INT64
    return _COMPLEX128 if dtype.kind == "c" and terms == "value" else _FLOAT64


def sum_entries(device: Device, bounds: Array | None, data: Array, terms: str, longest: int) -> Array:
    """Return the sums, computed in double precision, level by level. Synchronizes if there are long runs."""
    if bounds is None:
        return _sum_of_all(device, data, terms)
    for level in _levels(device, bounds, int(data.size), longest):
        sums = device.empty(level.size - 1, _sum_dtype(data.dtype, terms))
        _launch(device, "sum_entries", level, data, (np.int32(TERMS[terms]),), (sums,), sums.dtype)
        data, terms = sums, "value"
    return data


def _sum_of_all(device: Device, data: Array, terms: str) -> Array:
    """Return the sum of all values, with one launch."""
    dtype, size = _sum_dtype(data.dtype, terms), int(data.size)
    total, blocks = device.empty(1, dtype), min(num_tiles(size), _MOST_BLOCKS)
    _, arrivals, _ = tally(device, 0)
    args: Any = (np.int32(TERMS[terms]), np.int64(size), data, device.empty(blocks, dtype), arrivals, total)
    _SOURCE.launch(device, "sum_values", (data.dtype, dtype), blocks * TILE_THREADS, args)
    return total


def first_where(device: Device, values: Array, *tests: str) -> int | None:
    """Return the first position that passes a test: the minimum over the blocks' results. Synchronizes."""
    size = int(values.size)
    rest = _tally_tests(device, "first_where", values, tests) if size else 0  # synchronizes
    return size - rest if rest else None


def count_where(device: Device, values: Array, *tests: str) -> int:
    """Return the number of values that pass. Blocks count, and the last block adds up the counts. Synchronizes."""
    return _tally_tests(device, "count_where", values, tests) if values.size else 0  # synchronizes


def _tally_tests(device: Device, name: str, values: Array, tests: tuple[str, ...]) -> int:
    values = device.xp.ascontiguousarray(values)
    values = values.view(_MASK) if values.dtype == bool else values
    bits, counts = sum(TESTS[test] for test in tests), tally(device, num_tiles(int(values.size)))
    _SOURCE.launch_tiles(
        device, name, (values.dtype,), values.size, (np.int32(bits), np.int64(values.size), values, *counts)
    )
    return device.counts.read()[0]  # synchronizes


def extreme_entries(
    device: Device,
    bounds: Array | None,
    data: Array,
    extreme: str,
    longest: int,
    full: int = 0,
    unsigned: bool = False,
) -> Array:
    """Return the extremes, level by level; only the last level considers zeros. May synchronize."""
    levels = _levels(device, bounds, int(data.size), longest)
    for level in levels:
        extremes = device.empty(level.size - 1, data.dtype)
        is_last = level is levels[-1]
        zeros = (np.int64(full if is_last else 0), bounds if is_last and bounds is not None else level)
        _launch(device, "extreme_entries", level, data, _search(extreme, unsigned), (*zeros, extremes))
        data = extremes
    return data


def extreme_positions(
    device: Device, bounds: Array | None, data: Array, extreme: str, longest: int, unsigned: bool = False
) -> Array:
    """Return the positions of the extremes, level by level. Synchronizes if there are long runs."""
    levels = _levels(device, bounds, int(data.size), longest)
    values, positions = data, None
    for level in levels:
        best = device.empty(level.size - 1, np.int64)
        _launch(device, "extreme_positions", level, values, _search(extreme, unsigned), (best,))
        # A piece is never empty, but a run may be: its position is negative.
        positions = best if positions is None else device.xp.where(best < 0, best, positions[best])
        if level is not levels[-1]:
            values = data[positions]
    return positions


def extreme_columns(device: Device, csr: Csr, positions: Array, extreme: str, unsigned: bool = False) -> Array:
    """Return a column with each row's extreme: compare entries with 0, and find the first column without an entry."""
    columns = device.empty(csr.num_rows, np.int64)
    sizes = (*_search(extreme, unsigned), np.int64(csr.num_rows), np.int64(csr.num_cols))
    args = (*sizes, csr.indptr, csr.indices, csr.data, positions, columns)
    _SOURCE.launch(device, "extreme_columns", (csr.dtype, csr.indptr.dtype), csr.num_rows, args)
    return columns


def _launch(device: Device, name: str, bounds: Array, data: Array, before: Any, after: Any, *types: Any) -> None:
    """Launch a kernel with a group of lanes per run: a power of two, close to the mean length of runs."""
    num_runs = int(bounds.size) - 1
    width = _lanes_per_run(device, num_runs, int(data.size))
    args = (*before, np.int32(width), np.int64(num_runs), np.int64(data.size), bounds, data, *after)
    _SOURCE.launch(device, name, (data.dtype, bounds.dtype, *types), num_runs * width, args)


def _lanes_per_run(device: Device, num_runs: int, size: int) -> int:
    return min(device.lanes, 1 << (size // max(num_runs, 1)).bit_length())


def _search(extreme: str, unsigned: bool) -> tuple[np.int32, np.int64]:
    """Return an extreme's number in kernels, and the bit to flip so that int64 order is uint64 order."""
    return np.int32(EXTREMES[extreme]), np.int64(-(2**63)) if unsigned else np.int64(0)


def _levels(device: Device, bounds: Array | None, size: int, longest: int) -> list[Array]:
    """Return the bounds of the runs at each level; the last level reduces each run to one value. May synchronize."""
    xp = device.xp
    if bounds is None:
        length = _VALUES_PER_LANE * device.lanes
        pieces = xp.arange(0, size + length, length, dtype=np.int64)  # the last bound may exceed `size`
        return [pieces] if size <= length else [pieces, *_levels(device, None, int(pieces.size) - 1, 0)]
    length = _VALUES_PER_LANE * _lanes_per_run(device, int(bounds.size) - 1, size)
    if longest <= length:
        return [bounds]
    index = bounds.dtype
    counts = -((bounds[:-1] - bounds[1:]) // length)  # (lengths divided and rounded up, without overflow)
    first = xp.zeros(bounds.size, index)
    xp.cumsum(counts, out=first[1:])
    num_pieces = int(first[-1])  # synchronizes
    runs = row_numbers(device, first, num_pieces)
    pieces = xp.full(num_pieces + 1, size, index)
    pieces[:-1] = bounds[runs] + (xp.arange(num_pieces, dtype=index) - first[runs]) * length
    return [pieces, *_levels(device, first, num_pieces, -(-longest // length))]
