"""Gradients of products (contract: `gsparse.kernels.relaxation`). A part owns consecutive entries or rows."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.kernels.cpu.compiling import compiled, compiled_loosely
from gsparse.kernels.cpu.rows import first_row


def dot_rows(device: Device, rows: Array, columns: Array, left: Array, right: Array) -> Array:
    """Add the products up entry by entry, in the order of the columns."""
    dots, width = np.zeros(rows.size, left.dtype), left.shape[1]
    run_parts(_dot_rows, rows.size * (1 + width), rows, columns, left.reshape(-1), right.reshape(-1), width, dots)
    return dots


def product_gradients(device: Device, transposed: Csr, values: Array, gradient: Array, x: Array) -> tuple[Array, Array]:
    """Visit the rows of the transpose, with a loop of its own for a single column."""
    width = x.shape[1]
    of_x, of_values = np.zeros(x.size, x.dtype), np.zeros(values.size, x.dtype)
    entries = (transposed.indptr, transposed.indices, transposed.data, values)
    arrays = (gradient.reshape(-1), x.reshape(-1), of_x, of_values)
    if width == 1:
        run_parts(_vector_gradients, values.size + x.size, *entries, *arrays)
    else:
        run_parts(_columns_gradients, (values.size + x.shape[0]) * (1 + width), *entries, *arrays, width)
    return of_x.reshape(x.shape), of_values


@compiled_loosely
def _dot_rows(
    part: int, num_parts: int, rows: Array, columns: Array, left: Array, right: Array, width: int, dots: Array
) -> None:
    for e in range(part * rows.size // num_parts, (part + 1) * rows.size // num_parts):
        one, other = np.int64(rows[np.uint64(e)]) * width, np.int64(columns[np.uint64(e)]) * width
        total = dots[np.uint64(e)]
        for c in range(width):
            total += left[np.uint64(one + c)] * np.conj(right[np.uint64(other + c)])
        dots[np.uint64(e)] = total


@compiled
def _vector_gradients(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    numbers: Array,
    values: Array,
    gradient: Array,
    x: Array,
    of_x: Array,
    of_values: Array,
) -> None:
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        factor, total = np.conj(x[np.uint64(row)]), of_x[np.uint64(row)]
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            number, element = np.uint64(numbers[np.uint64(k)]), gradient[np.uint64(indices[np.uint64(k)])]
            total += np.conj(values[number]) * element
            of_values[number] = element * factor
        of_x[np.uint64(row)] = total


@compiled_loosely
def _columns_gradients(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    numbers: Array,
    values: Array,
    gradient: Array,
    x: Array,
    of_x: Array,
    of_values: Array,
    width: int,
) -> None:
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        own = np.int64(row) * width
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            number, other = np.uint64(numbers[np.uint64(k)]), np.int64(indices[np.uint64(k)]) * width
            value, total = np.conj(values[number]), of_values[number]
            for c in range(width):
                of_x[np.uint64(own + c)] += value * gradient[np.uint64(other + c)]
            for c in range(width):
                total += gradient[np.uint64(other + c)] * np.conj(x[np.uint64(own + c)])
            of_values[number] = total
