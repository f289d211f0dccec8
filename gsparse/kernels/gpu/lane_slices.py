"""Products with row lanes, and the positions of their entries.

The contracts are in `gsparse.kernels.contract` and `gsparse.kernels.set_up`. The CUDA sources are `src/spmv_lanes.cu`,
`src/spmv_hubs.cu` for matrices with hubs, and `src/setup_lanes.cu`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.device.launching import Passed
from gsparse.formats import Csr, LaneSlices, RowLanes
from gsparse.formats.launch import Launch
from gsparse.kernels.contract import Multiply
from gsparse.kernels.gpu.expressions import BLOCK_DOTS, NO_DOTS, expression
from gsparse.kernels.gpu.launch import bind_product, launch_threads
from gsparse.kernels.gpu.product_arguments import (
    SLOTS,
    ProductKernel,
    bind_with_dots,
    entry_args,
    stored_types,
    value_type,
    with_num_dots,
)
from gsparse.kernels.gpu.scratch import PerStream, call_for_stream
from gsparse.kernels.gpu.source_constants import constant

_PRODUCT, _HUBS, _SET_UP = "spmv_lanes.cu", "spmv_hubs.cu", "setup_lanes.cu"
# Threads of the largest block of each product, and blocks that a multiprocessor runs at once.
_LANE_THREADS, _WIDE_LANE_THREADS = constant(_PRODUCT, "GS_LANE_THREADS"), constant(_PRODUCT, "GS_WIDE_LANE_THREADS")
_LANE_BLOCKS = constant(_PRODUCT, "GS_LANE_BLOCKS")
_THREADS, _BLOCKS = constant(_HUBS, "GS_HUB_THREADS"), constant(_HUBS, "GS_HUB_BLOCKS")
# A block has at least this many warps. A matrix with fewer slices than warps that the device runs at once has smaller
# blocks, so that all multiprocessors have work.
_FEWEST_WARPS = 4
# Shared memory of a block for elements of x, where a multiprocessor has enough for `_BLOCKS` blocks. The rest of it is
# the first-level cache, which serves the next columns. R-MAT 2**20 and 2**23 in float64 on an H200, µs: 64 KiB 96 and
# 1009, 96 KiB 100 and 1117, 32 KiB 107 and 1047; one block of 208 KiB and 1024 threads 113 and 1664.
_SHARED_BYTES = 64 * 1024
# A larger matrix is not in the second-level cache when the next product begins. Its entries are then read with the hint
# to evict them first: without it, the same two products take 102 and 1045 µs. A smaller matrix is read without the
# hint, with which R-MAT 2**18 in float32 takes 20.3 instead of 17.7 µs.
_CACHED_BYTES = 50_000_000
# What a multiprocessor needs for each block beside that.
_RESERVED_BYTES = 1024
_COLUMN_TYPES = np.dtype(np.uint16), np.dtype(np.int32)
_SET_UP_THREADS = Launch().threads_per_block
_GATHER_THREADS = constant("halo.cu", "GS_HALO_THREADS")


def row_lanes(device: Device, matrix: RowLanes, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with a warp for each slice, in as many blocks as the device runs at once."""
    if matrix.slices.numbers is not None:
        return _with_hubs(device, matrix, dtype)
    slices = matrix.slices
    most = (_WIDE_LANE_THREADS if dtype.itemsize > 8 else _LANE_THREADS) // device.lanes
    fewest = most if slices.num_long_slices else min(_FEWEST_WARPS, most)
    warps = min(max(-(-slices.num_slices // device.multiprocessors), fewest), most)
    blocks = min(_LANE_BLOCKS * device.multiprocessors, -(-slices.num_slices // warps))
    rounds = -(-slices.num_long_slices // max(blocks * warps, 1))
    kernel = ProductKernel(_PRODUCT, "row_lanes", (value_type(matrix.values), matrix.columns.dtype, dtype))
    sizes = np.int64(slices.num_slices), np.int32(rounds), np.int32(slices.is_even)
    layout = *sizes, slices.rows, slices.lanes, slices.first_slices, slices.rare_offsets
    entries = matrix.columns, *entry_args(matrix.values)
    if not rounds:
        return bind_with_dots(device, kernel, blocks, warps * device.lanes, (*layout, None, None, *entries), dtype)
    device.kernel(_PRODUCT, kernel.expression(NO_DOTS))  # Compiled now, because a graph may be captured later.

    def bind(*scratch: Array) -> Multiply:
        return bind_with_dots(device, kernel, blocks, warps * device.lanes, (*layout, *scratch, *entries), dtype)

    scratch = (slices.num_long_slices, dtype), (slices.num_long_slices, np.dtype(np.uint32))
    return with_num_dots(call_for_stream(PerStream(device, bind, *scratch)), blocks)


def _with_hubs(device: Device, matrix: RowLanes, dtype: np.dtype[Any]) -> Multiply:
    slices = matrix.slices
    num_frequent = int(slices.frequent.size)
    available = min(_SHARED_BYTES, device.shared_memory // _BLOCKS - _RESERVED_BYTES)
    num_hubs = min(num_frequent, available // dtype.itemsize)
    name = expression("hub_columns", value_type(matrix.values), dtype, int(matrix.nbytes > _CACHED_BYTES))
    blocks = min(_BLOCKS * device.multiprocessors, -(-slices.num_slices * device.lanes // _THREADS))
    sizes = np.int64(slices.num_slices), np.int64(slices.num_frequent_positions), np.int32(num_hubs)
    layout = slices.rows, slices.lanes, slices.first_slices, slices.frequent_offsets, slices.rare_offsets
    entries = matrix.codes, matrix.columns, *entry_args(matrix.values)

    def bind(elements: Array, partials: Array, arrivals: Array) -> tuple[Callable[..., None], Callable[..., None]]:
        gather_args = np.int64(num_frequent), Passed.X, slices.frequent, elements
        gather_blocks, gather = -(-num_frequent // _GATHER_THREADS), expression("gather", dtype, np.dtype(np.int32))
        args = *sizes, *layout, *entries, elements, partials, arrivals, *SLOTS
        shared_bytes = num_hubs * dtype.itemsize
        return (
            bind_product(device, "halo.cu", gather, gather_blocks, _GATHER_THREADS, gather_args, dtype),
            bind_product(device, _HUBS, name, blocks, _THREADS, args, dtype, shared_bytes),
        )

    scratch = (num_frequent, dtype), (slices.num_long_slices, dtype), (slices.num_long_slices, np.dtype(np.uint32))
    bound = PerStream(device, bind, *scratch)

    def multiply(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        for kernel in bound.get():
            kernel(x, y, alpha, beta, conjugate)

    return with_num_dots(multiply, 0)


def lane_rows(device: Device, csr: Csr, numbers: Array | None, most_steps: int) -> tuple[Array, Array, Array, Array]:
    """Count the entries of each row by a warp, which also writes a key by which rows are sorted."""
    num_rows = csr.num_rows
    found = device.empty((4, num_rows), np.int64)
    args = np.int64(num_rows), np.int64(most_steps), csr.indptr, csr.indices, numbers, found
    name = expression("lane_rows", csr.indptr.dtype)
    launch_threads(device, _SET_UP, name, num_rows * device.lanes, _SET_UP_THREADS, args)
    keys, lanes, frequent_steps, rare_steps = found
    return device.xp.argsort(keys, kind="stable"), lanes, frequent_steps, rare_steps


def lane_positions(device: Device, csr: Csr, slices: LaneSlices) -> Array:
    """Number the frequent and the rare columns of each row by a warp."""
    positions = device.empty(csr.nnz, np.int64)
    name = expression("lane_positions", csr.indptr.dtype)
    layout = slices.numbers, slices.places, slices.lanes, slices.frequent_offsets, slices.rare_offsets
    sizes = np.int64(csr.num_rows), np.int64(slices.num_frequent_positions), np.int32(slices.group)
    args = *sizes, csr.indptr, csr.indices, *layout, positions
    launch_threads(device, _SET_UP, name, csr.num_rows * device.lanes, _SET_UP_THREADS, args)
    return positions


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of the kernels above."""
    types = [(value, column, dtype) for value, dtype in stored_types() for column in _COLUMN_TYPES]
    kernels = [ProductKernel(_PRODUCT, "row_lanes", each) for each in types]
    names = [(_PRODUCT, kernel.expression(dots)) for dots in (NO_DOTS, BLOCK_DOTS) for kernel in kernels]
    names += [(_HUBS, expression("hub_columns", *pair, is_once)) for pair in stored_types() for is_once in (0, 1)]
    return names + [
        (_SET_UP, expression(name, index)) for name in ("lane_positions", "lane_rows") for index in INDEX_DTYPES
    ]
