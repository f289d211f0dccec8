"""Sparse matrix-vector products (contract: `gsparse.kernels.contract`; CUDA sources: `src/spmv_*.cu`).

If a matrix in row lanes has hubs (columns that many rows read), its kernel is in `src/spmv_hubs.cu`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.device.launching import Passed
from gsparse.formats import BlockedEllpack, Bsr, CsrEntries, Ellpack, LongRows, RowLanes, RowPattern
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.launch import Launch
from gsparse.formats.row_pattern import CommonPattern
from gsparse.kernels.contract import BindProduct, Multiply
from gsparse.kernels.gpu.launch import (
    BLOCK_DOTS,
    NARROW,
    NO_DOTS,
    PerStream,
    bind_product,
    call_for_stream,
    check_grid,
    constant,
    expression,
    records,
)
from gsparse.kernels.gpu.product_arguments import (
    SLOTS,
    ProductKernel,
    bind_with_dots,
    common_entries,
    entry_args,
    stored_types,
    value_type,
    with_num_dots,
)
from gsparse.kernels.gpu.spmm import BLOCK_COLUMN_TYPES

_INT32 = 2**31 - 1
# Rows per thread of row_pattern_values. The second number is for matrices with at least _MANY_ROWS rows. It was the
# fastest for most stencils that were measured on an H200.
_PATTERN_ROWS = (1, 3)
_MANY_ROWS = 200_000
# Maximum number of threads of a block. (With 256, a product with a 7-point 200^3 takes 48 instead of 46 µs on an H200.)
_PATTERN_THREADS = 128
# The rows of a thread are in different planes of a grid if the grid has at least this many planes per row of a thread.
_FEWEST_GROUPS = 8

# The arguments of a matrix without long rows (`LongRows` in long_rows.cuh).
_NO_LONG_ROWS = (np.int32(0), None, None, None)

_LANES, _HUBS = "spmv_lanes.cu", "spmv_hubs.cu"
# Maximum number of threads of a block of each product, and number of blocks that a multiprocessor runs at the same
# time.
_LANE_THREADS, _WIDE_LANE_THREADS = constant(_LANES, "GS_LANE_THREADS"), constant(_LANES, "GS_WIDE_LANE_THREADS")
_LANE_BLOCKS = constant(_LANES, "GS_LANE_BLOCKS")
_HUB_THREADS, _HUB_BLOCKS = constant(_HUBS, "GS_HUB_THREADS"), constant(_HUBS, "GS_HUB_BLOCKS")
# Minimum number of warps of a block. If there are fewer slices than warps that the device runs at the same time, blocks
# are smaller, so that all multiprocessors have work.
_FEWEST_WARPS = 4
# Bytes of shared memory of a block for elements of x, if a multiprocessor has enough for `_HUB_BLOCKS` blocks. The
# remaining memory is the first-level cache, which serves other columns. R-MAT 2**20 in float64 on an H200: 96 µs, but
# 107 µs with 32 KiB, and 100 µs with 96 KiB.
_SHARED_BYTES = 64 * 1024
# If a matrix has more bytes than this, it is no longer in the second-level cache when the next product begins. Its
# entries are then read with a hint to evict them first. The hint saves 6 % with R-MAT 2**20, but costs 15 % with a
# small matrix.
_CACHED_BYTES = 50_000_000
# Bytes of shared memory that a multiprocessor reserves for each block, in addition to the block's own.
_RESERVED_BYTES = 1024
_COLUMN_TYPES = np.dtype(np.uint16), np.dtype(np.int32)
_GATHER_THREADS = constant("exchange.cu", "GS_HALO_THREADS")


def _bind_with_long_rows(
    device: Device,
    kernel: ProductKernel,
    blocks: int,
    threads_per_block: int,
    args: tuple[tuple[Any, ...], tuple[Any, ...]],
    dtype: np.dtype[Any],
    long_rows: LongRows,
    chunk_sums: int,
) -> Multiply:
    """Return the product of a kernel that sums long rows in chunks. Each stream has its own scratch memory.

    `args` holds the kernel's arguments before and after the arguments for long rows. A chunk has `chunk_sums` partial
    sums. The other parameters have the same meaning as in `bind_with_dots`.
    """
    check_grid(kernel.name, blocks)
    before, after = (*args[0], np.int32(long_rows.num_chunks), records(device, long_rows)), args[1]
    device.kernel(kernel.source, kernel.expression(NO_DOTS))  # Compile now, because a graph may be captured later.

    def bind(*scratch: Array) -> Multiply:
        return bind_with_dots(device, kernel, blocks, threads_per_block, (*before, *scratch, *after), dtype)

    bound = PerStream(
        device, bind, (chunk_sums * long_rows.num_chunks, dtype), (long_rows.num_long, np.dtype(np.uint32))
    )
    return with_num_dots(call_for_stream(bound), blocks)


def _bind_rows(
    device: Device,
    kernel: ProductKernel,
    blocks: int,
    threads: int,
    args: tuple[tuple[Any, ...], tuple[Any, ...]],
    long_rows: LongRows | None,
    dtype: np.dtype[Any],
    chunk_sums: int = 1,
) -> Multiply:
    """Return the product of a kernel. `args` holds its arguments before and after the arguments for long rows."""
    if long_rows is None:
        before, after = args
        return bind_with_dots(device, kernel, blocks, threads, (*before, *_NO_LONG_ROWS, *after), dtype)
    chunk_blocks = -(-long_rows.num_chunks * device.lanes // threads)
    return _bind_with_long_rows(device, kernel, chunk_blocks + blocks, threads, args, dtype, long_rows, chunk_sums)


def _blocks(threads: int, launch: Launch) -> int:
    return -(-threads // launch.threads_per_block)


def csr_scalar(device: Device, matrix: CsrEntries, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Return the product. A thread computes a row, and a warp each chunk of a long row."""
    return _csr(device, matrix, dtype, launch, 1)


def csr_vector(device: Device, matrix: CsrEntries, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Return the product. `launch.threads_per_row` lanes share a row, and a warp computes each chunk of a long row."""
    return _csr(device, matrix, dtype, launch, launch.threads_per_row)


def _csr(device: Device, matrix: CsrEntries, dtype: np.dtype[Any], launch: Launch, threads_per_row: int) -> Multiply:
    types = value_type(matrix.values), matrix.columns.codes.dtype, dtype, matrix.indptr.dtype, threads_per_row
    kernel, long_rows = ProductKernel("spmv_csr.cu", "csr_vector", types), matrix.long_rows
    limit = np.int32(_INT32 if long_rows is None else long_rows.long_length)
    args = (np.int64(matrix.num_rows), limit, matrix.indptr), entry_args(matrix.values, matrix.columns)
    blocks = _blocks(matrix.num_rows * threads_per_row, launch)
    return _bind_rows(device, kernel, blocks, launch.threads_per_block, args, long_rows, dtype)


def ellpack(device: Device, matrix: Ellpack, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Return the product with a column-major, padded matrix. A thread computes a row."""
    types = value_type(matrix.values), matrix.columns.codes.dtype, dtype
    sizes = np.int64(matrix.num_rows), np.int32(matrix.width), np.int64(matrix.pitch)
    args = (*sizes, *entry_args(matrix.values, matrix.columns))
    kernel = ProductKernel("spmv_ellpack.cu", "ellpack", types)
    return bind_with_dots(device, kernel, _blocks(matrix.num_rows, launch), launch.threads_per_block, args, dtype)


def blocked_ellpack(device: Device, matrix: BlockedEllpack, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Return the product. A thread computes a row, a warp a slice, and a warp each chunk of a long row."""
    slices = matrix.slices
    types = value_type(matrix.values), matrix.columns.codes.dtype, dtype
    before = (np.int64(matrix.num_rows), np.int64(slices.num_slices), slices.slice_offsets, slices.rows)
    args = before, entry_args(matrix.values, matrix.columns)
    kernel = ProductKernel("spmv_ellpack.cu", "blocked_ellpack", types)
    blocks = _blocks(slices.num_slices * device.lanes, launch)
    return _bind_rows(device, kernel, blocks, launch.threads_per_block, args, slices.long_rows, dtype)


# Maximum number of threads of a block that multiplies several slices. One slice may need more threads, because each row
# of a dense block has a warp.
_BSR_THREADS = 128


def bsr(device: Device, matrix: Bsr, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Return the product. A thread computes one scalar row of one part of a block row.

    A block row has `row_lanes` parts. If it is long, it is cut into chunks, each multiplied by a warp.
    """
    slices, rows = matrix.slices, matrix.blocksize[0]
    kernel = ProductKernel("spmv_bsr.cu", "bsr", _bsr_types(matrix, dtype))
    sizes = np.int64(slices.num_rows), np.int64(slices.num_slices), np.int32(rows), np.int32(matrix.row_lanes)
    args = (*sizes, slices.slice_offsets, slices.rows), entry_args(matrix.values, matrix.columns)
    slice_threads = device.lanes * rows
    # With 128 threads instead of 256, products were up to 8 % faster (H100, asv_bench/measure_blocks.py --tune).
    slices_per_block = max(1, min(launch.threads_per_block, _BSR_THREADS) // slice_threads)
    blocks, threads = -(-slices.num_slices // slices_per_block), slices_per_block * slice_threads
    return _bind_rows(device, kernel, blocks, threads, args, slices.long_rows, dtype, rows)


def _bsr_types(matrix: Bsr, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    return value_type(matrix.values), matrix.columns.codes.dtype, dtype, matrix.blocksize[1]


def row_pattern(device: Device, matrix: RowPattern, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Return the product. A thread computes one row, or three rows.

    A thread has three rows if all rows of a pattern have the same values and there are many rows.
    """
    if matrix.common is not None:
        return _row_pattern_values(device, matrix, matrix.common, dtype, launch)
    assert matrix.values is not None
    assert matrix.slices is not None
    kernel = ProductKernel("spmv_pattern.cu", "row_pattern", (matrix.codes.dtype, value_type(matrix.values), dtype))
    patterns = (matrix.codes, matrix.pattern_indptr, matrix.offsets)
    args = (np.int64(matrix.num_rows), *patterns, matrix.slices.slice_offsets, *entry_args(matrix.values))
    return bind_with_dots(device, kernel, _blocks(matrix.num_rows, launch), launch.threads_per_block, args, dtype)


def _row_pattern_values(
    device: Device, matrix: RowPattern, common: CommonPattern, dtype: np.dtype[Any], launch: Launch
) -> Multiply:
    num_rows, threads_per_block = matrix.num_rows, min(launch.threads_per_block, _PATTERN_THREADS)
    rows = _PATTERN_ROWS[num_rows >= _MANY_ROWS]
    # If the rows of a thread are a plane apart, they share elements of x. A plane must have at least as many rows as a
    # block has threads, so that neighbouring threads have neighbouring rows, and there must be at least
    # `_FEWEST_GROUPS` groups.
    most = num_rows // (_FEWEST_GROUPS * rows)
    limits = threads_per_block, most if rows > 1 else 0
    entries = common_entries(device, common, matrix.pattern_values, *limits)
    is_grid = threads_per_block <= common.span <= most
    stride = entries.distance or (common.span if is_grid else threads_per_block)
    num_threads = -(-num_rows // (rows * stride)) * stride
    kernel = ProductKernel("spmv_pattern.cu", "row_pattern_values", (matrix.codes.dtype, dtype, rows))
    sizes = np.int64(num_rows), np.int32(common.code), np.uint32(stride)
    patterns = matrix.pattern_indptr, matrix.offsets, common.masks, common.differs, matrix.pattern_values
    args = *sizes, *entries.arguments, matrix.codes, *patterns
    return bind_with_dots(device, kernel, -(-num_threads // threads_per_block), threads_per_block, args, dtype)


def row_lanes(device: Device, matrix: RowLanes, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Return the product. A warp computes a slice, in as many blocks as the device runs at the same time."""
    if matrix.slices.numbers is not None:
        return _with_hubs(device, matrix, dtype)
    slices = matrix.slices
    most = (_WIDE_LANE_THREADS if dtype.itemsize > 8 else _LANE_THREADS) // device.lanes
    fewest = most if slices.num_long_slices else min(_FEWEST_WARPS, most)
    warps = min(max(-(-slices.num_slices // device.multiprocessors), fewest), most)
    blocks = min(_LANE_BLOCKS * device.multiprocessors, -(-slices.num_slices // warps))
    rounds = -(-slices.num_long_slices // max(blocks * warps, 1))
    kernel = ProductKernel(_LANES, "row_lanes", (value_type(matrix.values), matrix.columns.dtype, dtype))
    sizes = np.int64(slices.num_slices), np.int32(rounds), np.int32(slices.is_even)
    layout = *sizes, slices.rows, slices.lanes, slices.first_slices, slices.rare_offsets
    entries = matrix.columns, *entry_args(matrix.values)
    if not rounds:
        return bind_with_dots(device, kernel, blocks, warps * device.lanes, (*layout, None, None, *entries), dtype)
    device.kernel(_LANES, kernel.expression(NO_DOTS))  # Compile now, because a graph may be captured later.

    def bind(*scratch: Array) -> Multiply:
        return bind_with_dots(device, kernel, blocks, warps * device.lanes, (*layout, *scratch, *entries), dtype)

    scratch = (slices.num_long_slices, dtype), (slices.num_long_slices, np.dtype(np.uint32))
    return with_num_dots(call_for_stream(PerStream(device, bind, *scratch)), blocks)


def _with_hubs(device: Device, matrix: RowLanes, dtype: np.dtype[Any]) -> Multiply:
    slices = matrix.slices
    num_frequent = int(slices.frequent.size)
    available = min(_SHARED_BYTES, device.shared_memory // _HUB_BLOCKS - _RESERVED_BYTES)
    num_hubs = min(num_frequent, available // dtype.itemsize)
    name = expression("hub_columns", value_type(matrix.values), dtype, int(matrix.nbytes > _CACHED_BYTES))
    blocks = min(_HUB_BLOCKS * device.multiprocessors, -(-slices.num_slices * device.lanes // _HUB_THREADS))
    sizes = np.int64(slices.num_slices), np.int64(slices.num_frequent_positions), np.int32(num_hubs)
    layout = slices.rows, slices.lanes, slices.first_slices, slices.frequent_offsets, slices.rare_offsets
    entries = matrix.codes, matrix.columns, *entry_args(matrix.values)

    def bind(elements: Array, partials: Array, arrivals: Array) -> tuple[Callable[..., None], Callable[..., None]]:
        gather_args = np.int64(num_frequent), Passed.X, slices.frequent, elements
        gather_blocks, gather = -(-num_frequent // _GATHER_THREADS), expression("gather", dtype, np.dtype(np.int32))
        args = *sizes, *layout, *entries, elements, partials, arrivals, *SLOTS
        shared_bytes = num_hubs * dtype.itemsize
        return (
            bind_product(device, "exchange.cu", gather, gather_blocks, _GATHER_THREADS, gather_args, dtype),
            bind_product(device, _HUBS, name, blocks, _HUB_THREADS, args, dtype, shared_bytes),
        )

    scratch = (num_frequent, dtype), (slices.num_long_slices, dtype), (slices.num_long_slices, np.dtype(np.uint32))
    bound = PerStream(device, bind, *scratch)

    def multiply(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        for kernel in bound.get():
            kernel(x, y, alpha, beta, conjugate)

    return with_num_dots(multiply, 0)


# From the name of each format to the function that binds its product.
PRODUCTS: dict[str, BindProduct] = {
    "csr_scalar": csr_scalar,
    "csr_vector": csr_vector,
    "ellpack": ellpack,
    "blocked_ellpack": blocked_ellpack,
    "row_lanes": row_lanes,
    "row_pattern": row_pattern,
    "bsr": bsr,
}
FIRST_FORMAT = "csr_vector"
CSR_PRODUCT = None


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    kernels = _kernels(lanes)
    hubs = [(_HUBS, expression("hub_columns", *pair, is_once)) for pair in stored_types() for is_once in (0, 1)]
    return hubs + [(kernel.source, kernel.expression(dots)) for dots in (NO_DOTS, BLOCK_DOTS) for kernel in kernels]


def _csr_column_types() -> list[tuple[np.dtype[Any], np.dtype[Any]]]:
    """List pairs: a dtype of columns in CSR, and a dtype of `indptr` that may occur with it."""
    return [*((index, index) for index in INDEX_DTYPES), *product(NARROW[1:], INDEX_DTYPES)]


def _kernels(lanes: int) -> list[ProductKernel]:
    """List the kernels that have two variants: with and without partial sums of conj(x)·y."""
    threads_per_row = [2**power for power in range(lanes.bit_length())]
    kernels = []
    for value, compute in stored_types():
        for column, index in _csr_column_types():
            types = (value, column, compute, index)
            kernels += [ProductKernel("spmv_csr.cu", "csr_vector", (*types, threads)) for threads in threads_per_row]
        for column in (*INDEX_DTYPES, *NARROW):
            for name in ("ellpack", "blocked_ellpack"):
                kernels.append(ProductKernel("spmv_ellpack.cu", name, (value, column, compute)))
        kernels += [ProductKernel(_LANES, "row_lanes", (value, column, compute)) for column in _COLUMN_TYPES]
        kernels += [ProductKernel("spmv_pattern.cu", "row_pattern", (code, value, compute)) for code in NARROW]
        for block_column, width in product(BLOCK_COLUMN_TYPES, range(1, MAX_BLOCK + 1)):
            kernels.append(ProductKernel("spmv_bsr.cu", "bsr", (value, block_column, compute, width)))
    shared_values = product(NARROW, COMPUTE_DTYPES, _PATTERN_ROWS)
    return [*kernels, *(ProductKernel("spmv_pattern.cu", "row_pattern_values", types) for types in shared_values)]
