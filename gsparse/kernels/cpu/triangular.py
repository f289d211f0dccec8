"""Triangular factors; the contract is in `gsparse.kernels.contract`.

The calling thread computes all rows in order: most levels have too few rows to divide among threads. Jacobi sweeps,
which approximate such a solve (`gsparse.linalg.preconditioners.triangular`), are products, which all threads share. All
threads also share the entries of a sweep that computes factors (`sweep_ilu0`).
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
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.division import divide
from gsparse.kernels.cpu.jit import jitted


def triangular_levels(device: Device, csr: Csr, upper: bool) -> Levels:
    """Sort rows by level, in one pass over the entries and two over the rows."""
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
    """Factorize in place, row after row; `levels` is not used."""
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


def sweep_ilu0(
    device: Device, csr: Csr, rows: Array, diagonal: Array, transposed: Csr, factors: Array, out: Array
) -> None:
    """Compute new factors from approximate ones, with the entries divided among the threads."""
    columns = (transposed.indptr, transposed.indices, transposed.data)
    cost = 8 * csr.nnz  # the entries of a row and of a column that an entry reads, roughly
    run_parts(_sweep_ilu0, cost, csr.indptr, csr.indices, csr.data, rows, diagonal, columns, factors, out)


@compiled
def _sweep_ilu0(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    data: Array,
    rows: Array,
    diagonal: Array,
    transposed: tuple[Array, Array, Array],
    factors: Array,
    out: Array,
) -> None:
    column_pointers, column_rows, numbers = transposed
    for e in range(part * data.size // num_parts, (part + 1) * data.size // num_parts):
        row, column, total = rows[e], indices[e], data[e]
        p, q, end, last = indptr[row], column_pointers[column], indptr[row + 1], column_pointers[column + 1]
        least = min(row, column)
        while p < end and q < last and indices[p] < least and column_rows[q] < least:
            if indices[p] == column_rows[q]:
                total -= factors[p] * factors[numbers[q]]
                p += 1
                q += 1
            elif indices[p] < column_rows[q]:
                p += 1
            else:
                q += 1
        out[e] = divide(total, factors[diagonal[column]]) if column < row else total


def triangular_solver(
    device: Device, csr: Csr, levels: Levels | None, columns: int, upper: bool
) -> Callable[[Array, Array], None]:
    """Bind a solve with a unit triangular matrix; `levels` is not used."""

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
