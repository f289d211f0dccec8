"""Triangular factors, processed level by level, by rows and by dense blocks; and diagonal blocks.

The contract is in `gsparse.kernels.contract`. The kernels are `src/triangular.cu` and `src/triangular_blocks.cu`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.device.launching import Passed
from gsparse.formats import Csr, Levels
from gsparse.kernels.gpu.launch import (
    FLOATS,
    Source,
    check_columns,
    check_grid,
    constant,
    expression,
    launch_nothing,
    launch_threads,
)
from gsparse.kernels.gpu.sparse_rows import count_numbers
from gsparse.kernels.gpu.transpose import stable_order
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.kernels.steps import Call

# Triangular solves need levels: threads process the rows of a level at the same time.
NEEDS_LEVELS = True

# Number of threads of the single block for narrow levels. The blocks that share a wide level have the second number.
_NARROW_THREADS = constant("triangular.cu", "GS_LEVEL_THREADS")
_WIDE_THREADS = 128
# If a team of threads owns a row, it solves for this number of right-hand sides. Teams are used for at least the second
# number of right-hand sides; with fewer, most of their threads would have no column.
_TEAM_COLUMNS = constant("triangular.cu", "GS_LEVEL_COLUMNS")
_MANY_COLUMNS = 8
# A level that needs at most this many threads is processed by one block, without a launch of its own.
_NARROW_LEVEL = 2 * _NARROW_THREADS
# Number of launches between two downloads of the flag that says whether a level has increased. In each launch, a thread
# reads the levels of the rows on which its row depends 32 times.
_LAUNCHES = 8

_SOURCE = Source("triangular.cu", _WIDE_THREADS)
_BLOCKS = Source("triangular_blocks.cu", constant("triangular_blocks.cu", "GS_DIAGONAL_THREADS"))


def triangular_levels(device: Device, csr: Csr, upper: bool) -> Levels:
    """Increase levels until all are right, and sort the rows. Synchronizes after every `_LAUNCHES` launches."""
    xp, count = device.xp, csr.num_rows
    levels, name = xp.zeros(count, np.int32), expression("raise_levels", csr.indptr.dtype)
    is_done = not csr.nnz
    while not is_done:
        num_raised = xp.zeros(_LAUNCHES, np.uint32)
        for launch in range(_LAUNCHES):
            args = (np.int64(count), csr.indptr, csr.indices, levels, num_raised[launch:])
            launch_threads(device, _SOURCE.file, name, count, _NARROW_THREADS, args)
        is_done = int(num_raised[-1]) == 0  # synchronizes
    num_levels = int(levels.max()) + 1 if count else 0  # synchronizes
    counts = device.download(count_numbers(device, levels, num_levels))  # synchronizes
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    order = stable_order(device, levels, max(int(counts.size), 1))
    return Levels(order.astype(csr.indptr.dtype, copy=False), bounds)


def level_launches(levels: Levels, lanes: int = 1) -> list[tuple[int, int, int, int]]:
    """Return for each launch its first level, the level after the last, the number of blocks, and threads per block.

    A row of the levels needs `lanes` threads.
    """
    launches, narrow_rows = [], _NARROW_LEVEL // lanes
    for first, last in levels.runs(narrow_rows):
        rows = int(levels.bounds[last] - levels.bounds[first])
        if last - first > 1 or rows <= narrow_rows:
            launches.append((first, last, 1, _NARROW_THREADS))
        else:
            launches.append((first, last, -(-rows * lanes // _WIDE_THREADS), _WIDE_THREADS))
    return launches


def bind_solve(
    device: Device, source: str, name: str, levels: Levels, lanes: int, columns: int, args: tuple[Any, ...]
) -> Callable[[Array, Array], None]:
    """Return ``solve(x, y)``, which launches a kernel for all levels, one after the other.

    Parameters
    ----------
    device : Device
    source, name : str
        The file and the name expression of the kernel.
    levels : Levels
    lanes : int
        Number of threads that a row of the levels needs.
    columns : int
        Number of right-hand sides, or of groups of them, which are blocks along y of the grid.
    args : tuple
        The kernel's arguments after the first and the last level of a launch, and before the two vectors.

    Raises
    ------
    ShapeError
        If there are more right-hand sides than a grid has blocks along y.
    """
    check_columns(columns)
    launches = []
    for first, last, blocks, threads in level_launches(levels, lanes):
        every = (np.int32(first), np.int32(last), *args, Passed.X, Passed.Y)
        launches.append(device.bind_product(source, name, (blocks, columns), (threads,), every))

    def solve(x: Array, y: Array) -> None:
        for launch in launches:
            launch(x, y)

    return solve


def factorize_ilu0(device: Device, csr: Csr, diagonal: Array, levels: Levels | None) -> None:
    """Factorize in place, all rows of a level at the same time."""
    assert levels is not None
    kernel = device.kernel(_SOURCE.file, expression("ilu0_levels", csr.dtype, csr.indices.dtype))
    args = (device.upload(levels.bounds), levels.order, csr.indptr, csr.indices, diagonal, csr.data)
    for first, last, blocks, threads in level_launches(levels):
        kernel((blocks,), (threads,), (np.int32(first), np.int32(last), *args))


def triangular_solver(
    device: Device, csr: Csr, levels: Levels | None, columns: int, upper: bool
) -> Callable[[Array, Array], None]:
    """Return a solve with a unit triangular matrix, whose rows are first copied in the order of the levels."""
    assert levels is not None
    rows = in_order(device, csr, levels.order)
    matrix = (device.upload(levels.bounds), levels.order, rows.indptr, rows.indices, rows.data, np.int64(csr.num_rows))
    types = csr.dtype, csr.indices.dtype
    if columns < _MANY_COLUMNS:
        return bind_solve(device, _SOURCE.file, expression("solve_levels", *types), levels, 1, columns, matrix)
    args = (*matrix, np.int64(columns), device.empty(csr.num_rows * columns, csr.dtype))
    name, groups = expression("solve_levels_of_columns", *types), -(-columns // _TEAM_COLUMNS)
    return bind_solve(device, _SOURCE.file, name, levels, _TEAM_COLUMNS, groups, args)


def in_order(device: Device, csr: Csr, order: Array) -> Csr:
    """Return the matrix with its rows in the order `order`, and with negated values, which may be dense blocks."""
    xp, index = device.xp, csr.indptr.dtype
    indptr = xp.zeros(csr.num_rows + 1, index)
    xp.cumsum(xp.diff(csr.indptr)[order], out=indptr[1:])
    places = xp.arange(csr.nnz)
    rows = xp.searchsorted(indptr, places, side="right") - 1
    source = csr.indptr[order[rows]] + (places - indptr[rows])
    return Csr(csr.shape, indptr, csr.indices[source], -csr.data[source])


def factorize_block_ilu0(
    device: Device, blocks: Csr, diagonal: Array, levels: Levels | None, largest_error: float
) -> tuple[Array, Array]:
    """Factorize all rows of a level at the same time; a group of lanes owns a row."""
    assert levels is not None
    size, dtype = int(blocks.data.shape[1]), blocks.data.dtype
    width = 1 << (size - 1).bit_length()
    factors, is_regular = device.empty(blocks.data.shape, dtype), device.empty(blocks.num_rows, np.uint8)
    kernel = device.kernel(_BLOCKS.file, expression("block_ilu0_levels", dtype, blocks.indices.dtype))
    sizes = np.int32(size), np.int32(width), np.float64(largest_error)
    pattern = device.upload(levels.bounds), levels.order, blocks.indptr, blocks.indices, diagonal
    for first, last, grid, threads in level_launches(levels, width):
        args = (np.int32(first), np.int32(last), *sizes, *pattern, blocks.data, factors, is_regular)
        kernel((grid,), (threads,), args)
    return factors, is_regular


def block_triangular_solver(
    device: Device, blocks: Csr, levels: Levels | None, num_rows: int, columns: int, upper: bool
) -> Callable[[Array, Array], None]:
    """Return a solve whose block rows are first copied in the order of the levels, each block column by column."""
    assert levels is not None
    size, dtype = int(blocks.data.shape[1]), blocks.data.dtype
    rows = in_order(device, blocks, levels.order)
    values = device.xp.ascontiguousarray(rows.data.swapaxes(1, 2))
    name = expression("solve_block_levels", dtype, blocks.indices.dtype)
    bounds = device.upload(levels.bounds)
    matrix = np.int32(size), bounds, levels.order, rows.indptr, rows.indices, values, np.int64(num_rows)
    return bind_solve(device, _BLOCKS.file, name, levels, size, columns, matrix)


def invert_blocks(device: Device, csr: Csr, size: int, fills_rows: bool, largest_error: float) -> tuple[Array, Array]:
    """Return the inverses of all blocks, with one launch in which a group of lanes owns a block."""
    num_blocks, width = -(-csr.num_rows // size), 1 << (size - 1).bit_length()
    inverses, is_regular = device.empty((num_blocks, size, size), csr.dtype), device.empty(num_blocks, np.uint8)
    sizes = np.int64(csr.num_rows), np.int32(size), np.int32(width), np.int32(fills_rows), np.float64(largest_error)
    args = (*sizes, csr.indptr, csr.indices, csr.data, inverses, is_regular)
    _BLOCKS.launch(device, "invert_blocks", (csr.dtype, csr.indices.dtype), num_blocks * width, args)
    return inverses, is_regular


def bind_block_step(
    device: Device, weights: Array, omega: float, b: Array, x: Array, r: Array, columns: int, start: str, copies: bool
) -> Call:
    """Return one launch, in which each block of threads owns complete blocks of rows."""
    check_columns(columns)
    size, dtype, num_rows = int(weights.shape[1]), weights.dtype, int(x.size) // columns
    if not num_rows:
        return launch_nothing
    rows_per_block = max(_BLOCKS.threads // size, 1) * size
    grid = -(-num_rows // rows_per_block), columns
    check_grid("relax_blocks", grid[0])
    sizes = np.int64(num_rows), np.int32(size), np.int32(rows_per_block), dtype.type(omega)
    args = (*sizes, np.int32(start != FROM_ZERO), np.int32(copies), weights, b, x, r)
    return device.bind_kernel(_BLOCKS.file, expression("relax_blocks", dtype), grid, (_BLOCKS.threads,), args)


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    blocks = "block_ilu0_levels solve_block_levels invert_blocks"
    return [
        *_SOURCE.variants("raise_levels", INDEX_DTYPES),
        *_SOURCE.variants("ilu0_levels solve_levels solve_levels_of_columns", FLOATS, INDEX_DTYPES),
        *_BLOCKS.variants(blocks, FLOATS, INDEX_DTYPES),
        *_BLOCKS.variants("relax_blocks", FLOATS),
    ]
