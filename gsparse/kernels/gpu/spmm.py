"""Products with several dense columns (contract: `gsparse.kernels`; kernel: `src/spmm_csr.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.device import Device
from gsparse.formats import Csr
from gsparse.kernels import Launch
from gsparse.kernels.gpu.catalogue import expression
from gsparse.kernels.gpu.launch import check_grid

__all__ = ["csr_spmm"]

# Blocks along y that CUDA and HIP both take, and so the most column tiles of one launch.
MAX_GRID_Y = 65_535


def csr_spmm(
    device: Device, matrix: Csr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """Multiply with a thread per row and column; neighbouring lanes own neighbouring columns."""
    num_columns = x.shape[1]
    if num_columns == 0 or matrix.num_rows == 0:
        return
    tile = min(num_columns, device.lanes)
    if num_columns > MAX_GRID_Y * tile:
        for first in range(0, num_columns, MAX_GRID_Y * tile):
            part = slice(first, first + MAX_GRID_Y * tile)
            csr_spmm(device, matrix, x[:, part], y[:, part], alpha, beta, conjugate, launch)
        return
    rows_per_block = launch.threads_per_block // tile
    grid = (-(-matrix.num_rows // rows_per_block), -(-num_columns // tile))
    check_grid("csr_spmm", grid[0])
    kernel = device.kernel("spmm_csr.cu", expression("csr_spmm", matrix.dtype, x.dtype, matrix.indices.dtype))
    strides = [tuple(np.int64(step // a.itemsize) for step in a.strides) for a in (x, y)]
    sizes = (np.int64(matrix.num_rows), np.int64(num_columns), np.int32(tile))
    vectors = (x, *strides[0], y, *strides[1], alpha, beta, np.int32(beta != 0), np.int32(conjugate))
    kernel(grid, (rows_per_block * tile,), (*sizes, matrix.indptr, matrix.indices, matrix.data, *vectors))
