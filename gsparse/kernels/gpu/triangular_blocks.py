"""Triangular factors of dense blocks (contract: `gsparse.kernels.contract`; kernels: `src/triangular_blocks.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.triangular import bind_solve, in_order, level_launches

_SOURCE = "triangular_blocks.cu"


def factorize_block_ilu0(
    device: Device, blocks: Csr, diagonal: Array, levels: Levels | None, largest_error: float
) -> tuple[Array, Array]:
    """Factorize all rows of a level at once; a group of lanes owns a row."""
    assert levels is not None
    size, dtype = int(blocks.data.shape[1]), blocks.data.dtype
    width = 1 << (size - 1).bit_length()
    factors, is_regular = device.empty(blocks.data.shape, dtype), device.empty(blocks.num_rows, np.uint8)
    kernel = device.kernel(_SOURCE, expression("block_ilu0_levels", dtype, blocks.indices.dtype))
    sizes = np.int32(size), np.int32(width), np.float64(largest_error)
    pattern = device.upload(levels.bounds), levels.order, blocks.indptr, blocks.indices, diagonal
    for first, last, grid, threads in level_launches(levels, width):
        args = (np.int32(first), np.int32(last), *sizes, *pattern, blocks.data, factors, is_regular)
        kernel((grid,), (threads,), args)
    return factors, is_regular


def block_triangular_solver(
    device: Device, blocks: Csr, levels: Levels | None, num_rows: int, columns: int, upper: bool
) -> Callable[[Array, Array], None]:
    """Bind a solve whose rows are copied in the order of the levels, each block column by column."""
    assert levels is not None
    size, dtype = int(blocks.data.shape[1]), blocks.data.dtype
    rows = in_order(device, blocks, levels.order)
    values = device.xp.ascontiguousarray(rows.data.swapaxes(1, 2))
    name = expression("solve_block_levels", dtype, blocks.indices.dtype)
    bounds = device.upload(levels.bounds)
    matrix = np.int32(size), bounds, levels.order, rows.indptr, rows.indices, values, np.int64(num_rows)
    return bind_solve(device, _SOURCE, name, levels, size, columns, matrix)


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of the kernels above."""
    types = list(product((dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"), INDEX_DTYPES))
    return [
        (_SOURCE, expression(name, *pair)) for pair in types for name in ("block_ilu0_levels", "solve_block_levels")
    ]
