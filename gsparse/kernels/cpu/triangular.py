"""Triangular factors, by rows and by dense blocks, inverses of diagonal blocks, and relaxation with them.

The contract is in `gsparse.kernels.contract`. The calling thread computes factors and solves with them row by row,
because most levels have too few rows to divide among threads. Jacobi sweeps, which approximate such a solve
(`gsparse.linalg.preconditioners.triangular`), are products, so all threads compute them. All threads also share the
work on diagonal blocks. A part owns consecutive blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr, Levels
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.instructions import divide
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.cpu.lanes import add, load, load_first, multiply, splat, store_first
from gsparse.kernels.cpu.sparse_rows import Rows
from gsparse.kernels.cpu.vectors import LANES
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.kernels.steps import Call


def invert_blocks(device: Device, csr: Csr, size: int, fills_rows: bool, largest_error: float) -> tuple[Array, Array]:
    """Return the inverses of the diagonal blocks. Copy each block to a dense array, and invert the array in place."""
    num_blocks = -(-csr.num_rows // size)
    inverses, is_regular = np.zeros((num_blocks, size, size), csr.dtype), np.zeros(num_blocks, np.uint8)
    matrix, cost = (csr.indptr, csr.indices, csr.data), num_blocks * size**2 * (size + 1)
    run_parts(_invert, cost, matrix, fills_rows, largest_error, inverses, is_regular)
    return inverses, is_regular


def bind_block_step(
    device: Device, weights: Array, omega: float, b: Array, x: Array, r: Array, columns: int, start: str, copies: bool
) -> Call:
    """Return a call that computes the step of each right-hand side in a loop over the blocks."""
    factor, size = weights.dtype.type(omega), weights.shape[1]
    vectors = list(zip(*(vector.reshape(columns, -1) for vector in (b, x, r)), strict=True))
    options = start != FROM_ZERO, copies
    cost = x.size // columns * (size + 1)

    def step() -> None:
        for source, target, product in vectors:
            run_parts(_relax, cost, weights, factor, (source, target, product), *options)

    return step


@partial(compiled, allocates=True)
def _invert(
    part: int, num_parts: int, matrix: Rows, fills: bool, largest_error: float, inverses: Array, is_regular: Array
) -> None:
    """Invert blocks by Gauss-Jordan elimination with partial pivoting, and check them by `_largest_error`."""
    num_blocks, size, _ = inverses.shape
    dense, exchanged = np.empty((size, size), inverses.dtype), np.empty(size, np.int64)
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        inverse = inverses[np.uint64(block)]
        _copy_block(block * size, matrix, fills, inverse)
        for i in range(size):
            for j in range(size):
                dense[np.uint64(i), np.uint64(j)] = inverse[np.uint64(i), np.uint64(j)]
        invert(inverse, exchanged)
        is_regular[np.uint64(block)] = _largest_error(dense, inverse) < largest_error


@inlined
def _copy_block(begin: int, matrix: Rows, fills: bool, dense: Array) -> None:
    """Copy a diagonal block. Rows past the matrix's end, and empty rows if `fills`, become rows of the identity."""
    indptr, indices, data = matrix
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
    """Invert a matrix in place. If a pivot is zero, elements become infinite or NaN. `exchanged` is a work array."""
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
    """Return the larger magnitude of the real and the imaginary part."""
    return max(abs(value.real), abs(value.imag))


@compiled
def _relax(
    part: int,
    num_parts: int,
    weights: Array,
    omega: Any,
    vectors: tuple[Array, Array, Array],
    has_guess: bool,
    copies: bool,
) -> None:
    b, x, r = vectors
    num_blocks, size, _ = weights.shape
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        begin = np.uint64(block * size)
        count = np.uint64(min(size, x.size - block * size))  # the last block may have fewer rows
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


# One thread solves with triangular factors, row by row, so no levels are needed.
NEEDS_LEVELS = False


def triangular_levels(device: Device, csr: Csr, upper: bool) -> Levels:
    """Return the rows sorted by level. This takes one pass over the entries, and two passes over the rows."""
    return Levels(*_order_levels(csr.indptr, csr.indices, upper))


@partial(jitted, allocates=True)
def _order_levels(indptr: Array, indices: Array, upper: bool) -> Any:
    num_rows = indptr.size - 1
    levels = np.zeros(num_rows, np.int64)
    num_levels = 0
    for step in range(num_rows):
        row = num_rows - 1 - step if upper else step
        level = 0
        for position in range(indptr[row], indptr[row + 1]):
            level = max(level, levels[indices[position]] + 1)
        levels[row] = level
        num_levels = max(num_levels, level + 1)
    bounds = np.zeros(num_levels + 1, np.int64)
    for row in range(num_rows):
        bounds[levels[row] + 1] += 1
    for level in range(num_levels):
        bounds[level + 1] += bounds[level]
    place, order = bounds[:-1].copy(), np.empty(num_rows, indptr.dtype)
    for row in range(num_rows):
        order[place[levels[row]]] = row
        place[levels[row]] += 1
    return order, bounds


def factorize_ilu0(device: Device, csr: Csr, diagonal: Array, levels: Levels | None) -> None:
    """Factorize in place, row by row. `levels` is not used."""
    _factorize_ilu0(csr.indptr, csr.indices, csr.data, diagonal)


@jitted
def _factorize_ilu0(indptr: Array, indices: Array, data: Array, diagonal: Array) -> None:
    for row in range(indptr.size - 1):
        end = indptr[row + 1]
        for k in range(indptr[row], diagonal[row]):
            pivot_row = indices[k]
            data[k] = divide(data[k], data[diagonal[pivot_row]])
            target = k + 1
            for u in range(diagonal[pivot_row] + 1, indptr[pivot_row + 1]):
                while target < end and indices[target] < indices[u]:
                    target += 1
                if target < end and indices[target] == indices[u]:
                    data[target] -= data[k] * data[u]


def triangular_solver(
    device: Device, csr: Csr, levels: Levels | None, columns: int, upper: bool
) -> Callable[[Array, Array], None]:
    """Return a function that solves with a unit triangular matrix. `levels` is not used."""

    def solve(x: Array, y: Array) -> None:
        for source, target in zip(x.reshape(columns, -1), y.reshape(columns, -1), strict=True):
            _solve(csr.indptr, csr.indices, csr.data, source, target, upper)

    return solve


@jitted
def _solve(indptr: Array, indices: Array, data: Array, x: Array, y: Array, upper: bool) -> None:
    num_rows = indptr.size - 1
    for step in range(num_rows):
        row = np.uint64(num_rows - 1 - step if upper else step)
        total = x[row]
        for position in range(indptr[row], indptr[row + np.uint64(1)]):
            total -= data[np.uint64(position)] * y[np.uint64(indices[np.uint64(position)])]
        y[row] = total


def factorize_block_ilu0(
    device: Device, blocks: Csr, diagonal: Array, levels: Levels | None, largest_error: float
) -> tuple[Array, Array]:
    """Factorize row by row. `levels` is not used."""
    factors, is_regular = np.empty_like(blocks.data), np.empty(blocks.num_rows, np.uint8)
    _factorize_blocks(blocks.indptr, blocks.indices, diagonal, blocks.data, factors, largest_error, is_regular)
    return factors, is_regular


@partial(jitted, allocates=True)
def _factorize_blocks(
    indptr: Array,
    indices: Array,
    diagonal: Array,
    blocks: Array,
    factors: Array,
    largest_error: float,
    is_regular: Array,
) -> None:
    size = blocks.shape[1]
    exchanged = np.empty(size, np.int64)
    for row in range(indptr.size - 1):
        middle, end = diagonal[row], indptr[row + 1]
        for k in range(indptr[row], middle):
            pivot_row = indices[k]
            target = k + 1
            for u in range(diagonal[pivot_row] + 1, indptr[pivot_row + 1]):
                while target < end and indices[target] < indices[u]:
                    target += 1
                if target < end and indices[target] == indices[u]:
                    _add_block_product(blocks[k], factors[u], blocks[target], -1)
            factors[k] = 0
            _add_block_product(blocks[k], factors[diagonal[pivot_row]], factors[k], 1)
        factors[middle] = blocks[middle]
        invert(factors[middle], exchanged)
        is_regular[row] = _largest_error(blocks[middle], factors[middle]) < largest_error
        for u in range(middle + 1, end):
            factors[u] = 0
            _add_block_product(factors[middle], blocks[u], factors[u], 1)


@inlined
def _add_block_product(left: Array, right: Array, out: Array, sign: int) -> None:
    """Add `sign` times the product of two dense matrices to `out`; `sign` is 1 or -1."""
    size = out.shape[0]
    for i in range(size):
        for m in range(size):
            factor = out.dtype.type(sign) * left[np.uint64(i), np.uint64(m)]
            for j in range(size):
                out[np.uint64(i), np.uint64(j)] += factor * right[np.uint64(m), np.uint64(j)]


@inlined
def _largest_error(matrix: Array, inverse: Array) -> Any:
    """Return the largest magnitude in ``matrix @ inverse - identity``; infinity if an element is NaN."""
    size = matrix.shape[0]
    largest = 0.0
    for i in range(size):
        for j in range(size):
            error = matrix.dtype.type(-1 if i == j else 0)
            for m in range(size):
                error += matrix[np.uint64(i), np.uint64(m)] * inverse[np.uint64(m), np.uint64(j)]
            magnitude = abs(error)
            if not magnitude <= largest:
                largest = magnitude if magnitude > largest else np.inf
    return largest


def block_triangular_solver(
    device: Device, blocks: Csr, levels: Levels | None, num_rows: int, columns: int, upper: bool
) -> Callable[[Array, Array], None]:
    """Return a function that solves with dense blocks, of which it has negated copies. `levels` is not used."""
    size, count = blocks.data.shape[1], blocks.data.size
    values = np.zeros(count + LANES, blocks.data.dtype)
    np.negative(blocks.data.swapaxes(1, 2), out=values[:count].reshape(blocks.data.shape))

    def solve(x: Array, y: Array) -> None:
        for source, target in zip(x.reshape(columns, -1), y.reshape(columns, -1), strict=True):
            _solve_blocks(blocks.indptr, blocks.indices, values, size, source, target, upper)

    return solve


@jitted
def _solve_blocks(indptr: Array, indices: Array, values: Array, size: int, x: Array, y: Array, upper: bool) -> None:
    """Solve for up to `LANES` rows of a block row together, in a register. Lanes past the last row are not stored."""
    num_block_rows, length = indptr.size - 1, np.uint64(size)
    for step in range(num_block_rows):
        row = np.uint64(num_block_rows - 1 - step if upper else step)
        first, end = row * length, min(row * length + length, np.uint64(x.size))
        for begin in range(first, end, np.uint64(LANES)):
            count = min(end - begin, np.uint64(LANES))
            total = load_first(x, begin, count, y.dtype.type(0))
            for k in range(indptr[row], indptr[row + np.uint64(1)]):
                source = np.uint64(indices[np.uint64(k)]) * length
                place = np.uint64(k) * length * length + begin - first
                for column in range(source, min(source + length, np.uint64(x.size))):
                    total = add(total, multiply(load(values, place, y.dtype.type(0)), splat(y[column])))
                    place += length
            store_first(y, begin, count, total)
