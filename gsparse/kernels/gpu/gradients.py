"""Gradients of products (contract: `gsparse.kernels.relaxation`; kernels: `src/gradients.cu`)."""

from __future__ import annotations

from itertools import product

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.kernels.gpu.expressions import constant, expression
from gsparse.kernels.gpu.launch import launch_threads

_SOURCE = "gradients.cu"
_THREADS = constant(_SOURCE, "GS_GRADIENT_THREADS")
# Lanes that share the columns of an entry, and the numbers of columns up to which they do. More columns have a warp.
_WIDTHS, _COLUMNS = (1, 4), (2, 16)
# Lanes that share a row of a product with one column, and the mean lengths up to which they do.
_LANES, _LENGTHS = (4, 8), (6, 24)


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel for a warp of `lanes` lanes."""
    names = []
    for dtype, index in product((dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"), INDEX_DTYPES):
        names += [expression("dot_rows", dtype, index, width) for width in (*_WIDTHS, lanes)]
        names += [expression("vector_gradients", dtype, index, width) for width in (*_LANES, lanes)]
        names += [expression("columns_gradients", dtype, index, width) for width in (*_WIDTHS[1:], lanes)]
    return [(_SOURCE, name) for name in names]


def _choose(amount: float, limits: tuple[int, ...], widths: tuple[int, ...]) -> int:
    """Return the width of the first limit that is not exceeded."""
    return widths[sum(amount > limit for limit in limits)]


def dot_rows(device: Device, rows: Array, columns: Array, left: Array, right: Array) -> Array:
    """Launch a group of lanes for each entry."""
    dots, width = device.empty(rows.size, left.dtype), left.shape[1]
    lanes = _choose(width, _COLUMNS, (*_WIDTHS, device.lanes))
    args = (np.int64(rows.size), np.int64(width), rows, columns, left, right, dots)
    name = expression("dot_rows", left.dtype, rows.dtype, lanes)
    launch_threads(device, _SOURCE, name, int(rows.size) * lanes, _THREADS, args)
    return dots


def product_gradients(device: Device, transposed: Csr, values: Array, gradient: Array, x: Array) -> tuple[Array, Array]:
    """Launch a group of lanes for each row of the transpose, or a warp if there are several columns."""
    width, num_rows, index = x.shape[1], transposed.num_rows, transposed.indptr.dtype
    of_x, of_values = device.empty(x.shape, x.dtype), device.empty(values.size, x.dtype)
    matrix = (transposed.indptr, transposed.indices, transposed.data, values)
    arrays = (gradient, x, of_x, of_values)
    if width == 1:
        lanes = _choose(transposed.nnz / max(num_rows, 1), _LENGTHS, (*_LANES, device.lanes))
        name, args = expression("vector_gradients", x.dtype, index, lanes), (np.int64(num_rows), *matrix, *arrays)
        launch_threads(device, _SOURCE, name, num_rows * lanes, _THREADS, args)
        return of_x, of_values
    if not width:
        device.fill_bytes(of_values, 0)
    lanes = _choose(width, _COLUMNS[1:], (*_WIDTHS[1:], device.lanes))
    name = expression("columns_gradients", x.dtype, index, lanes)
    sizes = (np.int64(num_rows), np.int64(width))
    launch_threads(device, _SOURCE, name, num_rows * device.lanes, _THREADS, (*sizes, *matrix, *arrays))
    return of_x, of_values
