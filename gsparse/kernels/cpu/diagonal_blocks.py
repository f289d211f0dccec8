"""Inverses of diagonal blocks, and relaxation with them (contract: `gsparse.kernels.relaxation`).

A part owns consecutive blocks, the same number for each part.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.instructions import divide
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.kernels.steps import Call


def invert_blocks(device: Device, csr: Csr, size: int, fills_rows: bool, largest_error: float) -> tuple[Array, Array]:
    """Copy each block to dense rows, and invert it there."""
    num_blocks = -(-csr.num_rows // size)
    inverses, is_regular = np.zeros((num_blocks, size, size), csr.dtype), np.zeros(num_blocks, np.uint8)
    matrix, cost = (csr.indptr, csr.indices, csr.data), num_blocks * size**2 * (size + 1)
    run_parts(_invert, cost, *matrix, fills_rows, largest_error, inverses, is_regular)
    return inverses, is_regular


def bind_block_step(
    device: Device, weights: Array, omega: float, b: Array, x: Array, r: Array, columns: int, start: str, copies: bool
) -> Call:
    """Bind a loop over the blocks for each right-hand side."""
    factor, size = weights.dtype.type(omega), weights.shape[1]
    vectors = list(zip(*(vector.reshape(columns, -1) for vector in (b, x, r)), strict=True))
    options = start != FROM_ZERO, copies
    cost = x.size // columns * (size + 1)

    def step() -> None:
        for source, target, product in vectors:
            run_parts(_relax, cost, weights, factor, source, target, product, *options)

    return step


@partial(compiled, allocates=True)
def _invert(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    data: Array,
    fills: bool,
    largest_error: float,
    inverses: Array,
    is_regular: Array,
) -> None:
    """Invert by Gauss-Jordan elimination with partial pivoting, and compare the product with the identity."""
    num_blocks, size, _ = inverses.shape
    dense, exchanged = np.empty((size, size), inverses.dtype), np.empty(size, np.int64)
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        inverse = inverses[np.uint64(block)]
        _copy_block(block * size, indptr, indices, data, fills, inverse)
        for i in range(size):
            for j in range(size):
                dense[np.uint64(i), np.uint64(j)] = inverse[np.uint64(i), np.uint64(j)]
        invert(inverse, exchanged)
        is_close = True
        for i in range(size):
            for j in range(size):
                error = inverse.dtype.type(-1 if i == j else 0)
                for k in range(size):
                    error += dense[np.uint64(i), np.uint64(k)] * inverse[np.uint64(k), np.uint64(j)]
                is_close &= abs(error) < largest_error
        is_regular[np.uint64(block)] = is_close


@inlined
def _copy_block(begin: int, indptr: Array, indices: Array, data: Array, fills: bool, dense: Array) -> None:
    """Copy a diagonal block; rows that are empty, or past the end of the matrix, become those of the identity."""
    size, num_rows = dense.shape[0], indptr.size - 1
    for i in range(size):
        is_empty = True
        if begin + i < num_rows:
            for k in range(indptr[np.uint64(begin + i)], indptr[np.uint64(begin + i + 1)]):
                column = np.int64(indices[np.uint64(k)]) - begin
                if 0 <= column < size:
                    dense[np.uint64(i), np.uint64(column)] = data[np.uint64(k)]
                    is_empty &= data[np.uint64(k)] == 0
        if begin + i >= num_rows or (is_empty and fills):
            dense[np.uint64(i), np.uint64(i)] = 1


@inlined
def invert(matrix: Array, exchanged: Array) -> None:
    """Invert a matrix in place. A zero pivot makes elements infinite or NaN."""
    size = matrix.shape[0]
    for k in range(size):
        pivot = k
        for i in range(k + 1, size):
            if _extent(matrix[np.uint64(i), np.uint64(k)]) > _extent(matrix[np.uint64(pivot), np.uint64(k)]):
                pivot = i
        exchanged[np.uint64(k)] = pivot
        divisor = matrix[np.uint64(pivot), np.uint64(k)]
        for j in range(size):
            top = matrix[np.uint64(pivot), np.uint64(j)]
            matrix[np.uint64(pivot), np.uint64(j)] = matrix[np.uint64(k), np.uint64(j)]
            matrix[np.uint64(k), np.uint64(j)] = top
        matrix[np.uint64(k), np.uint64(k)] = 1
        for j in range(size):
            matrix[np.uint64(k), np.uint64(j)] = divide(matrix[np.uint64(k), np.uint64(j)], divisor)
        for i in range(size):
            if i == k:
                continue
            factor = matrix[np.uint64(i), np.uint64(k)]
            matrix[np.uint64(i), np.uint64(k)] = 0
            for j in range(size):
                matrix[np.uint64(i), np.uint64(j)] -= factor * matrix[np.uint64(k), np.uint64(j)]
    for step in range(size):
        k = size - 1 - step
        other = exchanged[np.uint64(k)]
        for i in range(size):
            value = matrix[np.uint64(i), np.uint64(k)]
            matrix[np.uint64(i), np.uint64(k)] = matrix[np.uint64(i), np.uint64(other)]
            matrix[np.uint64(i), np.uint64(other)] = value


@inlined
def _extent(value: Any) -> Any:
    """Return the larger one of the magnitudes of the real and the imaginary part."""
    return max(abs(value.real), abs(value.imag))


@compiled
def _relax(
    part: int,
    num_parts: int,
    weights: Array,
    omega: Any,
    b: Array,
    x: Array,
    r: Array,
    has_guess: bool,
    copies: bool,
) -> None:
    num_blocks, size, _ = weights.shape
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        begin = np.uint64(block * size)
        count = np.uint64(min(size, x.size - block * size))  # The last block may have fewer rows.
        for i in range(count):
            total = x.dtype.type(0)
            for j in range(count):
                value = b[begin + j]
                if has_guess:
                    value -= r[begin + j]
                total += weights[np.uint64(block), j, i] * value
            total *= omega
            x[begin + i] = x[begin + i] + total if has_guess else total
        if copies:
            for i in range(count):
                r[begin + i] = b[begin + i]
