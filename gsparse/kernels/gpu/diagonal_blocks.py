"""Inverses of diagonal blocks, and relaxation with them (kernels: `src/diagonal_blocks.cu`).

The contract is in `gsparse.kernels.relaxation`.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.errors import ShapeError
from gsparse.formats import Csr
from gsparse.kernels.gpu.expressions import constant, expression
from gsparse.kernels.gpu.launch import check_grid, launch_nothing, launch_threads
from gsparse.kernels.gpu.panels import MAX_GRID_Y
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.kernels.steps import Call

_SOURCE = "diagonal_blocks.cu"
_THREADS = constant(_SOURCE, "GS_DIAGONAL_THREADS")


def invert_blocks(device: Device, csr: Csr, size: int, fills_rows: bool, largest_error: float) -> tuple[Array, Array]:
    """Invert all blocks with one launch; a group of lanes owns a block."""
    num_blocks, width = -(-csr.num_rows // size), 1 << (size - 1).bit_length()
    inverses, is_regular = device.empty((num_blocks, size, size), csr.dtype), device.empty(num_blocks, np.uint8)
    sizes = np.int64(csr.num_rows), np.int32(size), np.int32(width), np.int32(fills_rows), np.float64(largest_error)
    args = (*sizes, csr.indptr, csr.indices, csr.data, inverses, is_regular)
    name = expression("invert_blocks", csr.dtype, csr.indices.dtype)
    launch_threads(device, _SOURCE, name, num_blocks * width, _THREADS, args)
    return inverses, is_regular


def bind_block_step(
    device: Device, weights: Array, omega: float, b: Array, x: Array, r: Array, columns: int, start: str, copies: bool
) -> Call:
    """Bind one launch, whose blocks of threads own whole blocks of rows."""
    if columns > MAX_GRID_Y:
        raise ShapeError(f"at most {MAX_GRID_Y} right-hand sides at once, got {columns}: solve for fewer")
    size, dtype, num_rows = int(weights.shape[1]), weights.dtype, int(x.size) // columns
    if not num_rows:
        return launch_nothing
    rows_per_block = max(_THREADS // size, 1) * size
    grid = -(-num_rows // rows_per_block), columns
    check_grid("relax_blocks", grid[0])
    sizes = np.int64(num_rows), np.int32(size), np.int32(rows_per_block), dtype.type(omega)
    args = (*sizes, np.int32(start != FROM_ZERO), np.int32(copies), weights, b, x, r)
    return device.bind_kernel(_SOURCE, expression("relax_blocks", dtype), grid, (_THREADS,), args)


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    dtypes = [dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"]
    kernels = [expression("invert_blocks", *types) for types in product(dtypes, INDEX_DTYPES)]
    return [(_SOURCE, name) for name in (*kernels, *(expression("relax_blocks", dtype) for dtype in dtypes))]
