"""Connections of nodes, and the entries that rows drop (contract: `gsparse.kernels.aggregation`).

The rows, or the nodes, are divided among the threads so that each has about as many entries.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.kernels.aggregation import MEASURES, Examination
from gsparse.kernels.cpu.bits import bits_of, from_bits
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.rows import first_row
from gsparse.kernels.cpu.sparse_rows import Rows

# Bits of a float64 that the rounding of a weight clears: 16 of its 52 remain.
_CLEARED = np.uint64((1 << 36) - 1)
_HALF = np.uint64(1 << 35)
# If the diagonal of the filtered matrix is smaller than this part of the diagonal of the matrix, the latter is used.
_LEAST_DIAGONAL = 0.01


@inlined
def rounded(magnitude: Any) -> Any:
    """Round a magnitude to 17 bits."""
    return from_bits((bits_of(np.float64(magnitude)) + _HALF) & ~_CLEARED)


@inlined
def weight(value: Any) -> Any:
    """Return the weight of a value. Each operation rounds on its own, as on a GPU."""
    a, b = np.float64(abs(value.real)), np.float64(abs(value.imag))
    high, low = max(a, b), min(a, b)
    if low > 0:
        ratio = low / high
        high = high * np.sqrt(1.0 + ratio * ratio)
    return rounded(high)


@inlined
def keeps(row: Any, column: Any, value: Any, scale: Any, theta: float) -> bool:
    """Return whether a node keeps an entry."""
    return theta == 0.0 or row == column or weight(value) >= theta * scale


@inlined
def safe_diagonal(filtered: Any, diagonal: Any) -> Any:
    """Return the diagonal that the filtered matrix is divided by."""
    return filtered if abs(filtered) >= _LEAST_DIAGONAL * abs(diagonal) else diagonal


# ---------------------------------------------------------------------------------------------------------- blocks


def block_weights(device: Device, csr: Csr, block_size: int) -> Csr:
    """Count the blocks of each row of blocks, then add up the squares of their entries."""
    num_nodes, cost, index = csr.num_rows // block_size, csr.nnz + csr.num_rows, csr.indices.dtype
    matrix, starts = (csr.indptr, csr.indices, csr.data), csr.indptr[::block_size]
    sizes, nothing = np.zeros(num_nodes + 1, np.int64), np.empty(0, index)
    run_parts(_merge_blocks, cost, matrix, block_size, starts, sizes, (sizes, nothing, np.empty(0)), False)
    indptr = np.cumsum(sizes).astype(index)
    nodes = Csr((num_nodes, num_nodes), indptr, np.empty(indptr[-1], index), np.empty(indptr[-1]), is_canonical=True)
    arrays = (nodes.indptr, nodes.indices, nodes.data)
    run_parts(_merge_blocks, cost, matrix, block_size, starts, sizes, arrays, True)
    return nodes


@partial(compiled, allocates=True)
def _merge_blocks(
    part: int, num_parts: int, matrix: Rows, block_size: int, starts: Array, sizes: Array, nodes: Rows, fills: bool
) -> None:
    """Merge the rows of each node, whose columns rise. Write the number of blocks, or the blocks themselves."""
    indptr, indices, data = matrix
    node_indptr, node_indices, node_data = nodes
    places = np.empty(block_size, np.int64)  # of the next entry in each row of the node
    for node in range(first_row(part, num_parts, starts), first_row(part + 1, num_parts, starts)):
        for q in range(block_size):
            places[q] = indptr[node * block_size + q]
        count, has_diagonal = np.int64(0), False
        while True:
            block = np.int64(-1) if has_diagonal else np.int64(node)
            for q in range(block_size):
                if places[q] < indptr[node * block_size + q + 1]:
                    other = np.int64(indices[places[q]]) // block_size
                    block = other if block < 0 else min(block, other)
            if block < 0:
                break
            has_diagonal = has_diagonal or block == node
            total = 0.0
            for q in range(block_size):
                place, end, square = places[q], indptr[node * block_size + q + 1], 0.0
                while place < end and np.int64(indices[place]) // block_size == block:
                    a, b = np.float64(data[place].real), np.float64(data[place].imag)
                    square += a * a + b * b
                    place += 1
                places[q] = place
                total += square  # row by row, as on a GPU
            if fills:
                to = node_indptr[node] + count
                node_indices[to], node_data[to] = block, rounded(np.sqrt(total))
            count += 1
        sizes[node + 1] = count


# ------------------------------------------------------------------------------------------------------------ rows


def examine_rows(device: Device, csr: Csr, nodes: Csr, block_size: int, measure: str, theta: float) -> Examination:
    """Find the scale of each node, then what its rows drop."""
    scales, bounds = np.empty(nodes.num_rows), np.empty((2, csr.num_rows))
    diagonal, dropped = np.empty(csr.num_rows), np.empty(csr.num_rows, np.int64)
    matrix, graph = (csr.indptr, csr.indices, csr.data), (nodes.indptr, nodes.indices, nodes.data)
    options = block_size, MEASURES[measure], theta
    run_parts(_examine, csr.nnz + csr.num_rows, matrix, graph, *options, scales, dropped, bounds, diagonal)
    bound, unfiltered_bound = bounds.max(axis=1, initial=0.0).tolist()
    diagonal_range = float(diagonal.min(initial=np.inf)), float(diagonal.max(initial=0.0))
    return Examination(scales, int(dropped.sum()), bound, unfiltered_bound, diagonal_range)


@inlined
def _bound_of_row(others: Any, diagonal: Any, divisor: Any) -> Any:
    """Return the sum of the magnitudes of a row over that of the divisor; 0 if that is 0, or not a number."""
    length = abs(divisor)
    return (others + abs(diagonal)) / length if length > 0 else 0.0


@compiled
def _examine(
    part: int,
    num_parts: int,
    matrix: Rows,
    graph: Rows,
    block_size: int,
    measure: int,
    theta: float,
    scales: Array,
    dropped: Array,
    bounds: Array,
    diagonals: Array,
) -> None:
    indptr, indices, data = matrix
    node_indptr, node_indices, node_data = graph
    for node in range(first_row(part, num_parts, node_indptr), first_row(part + 1, num_parts, node_indptr)):
        begin, end = node_indptr[np.uint64(node)], node_indptr[np.uint64(node + 1)]
        scale = 0.0
        for e in range(begin, end):
            if (np.int64(node_indices[np.uint64(e)]) == node) == (measure == 1):
                scale = max(scale, weight(node_data[np.uint64(e)]))
        scales[np.uint64(node)] = scale
        for q in range(block_size):
            row = np.uint64(node * block_size + q)
            place, row_end = np.uint64(indptr[row]), np.uint64(indptr[row + np.uint64(1)])
            diagonal = lumped = data[:0].sum()  # zeros of the dtype of the values
            total, total_dropped, count = 0.0, 0.0, np.int64(0)
            for e in range(begin, end):
                other = np.int64(node_indices[np.uint64(e)])
                kept = keeps(node, other, node_data[np.uint64(e)], scale, theta)
                while place < row_end and np.int64(indices[place]) < (other + 1) * block_size:
                    value, column = data[place], np.int64(indices[place])
                    if column == np.int64(row):
                        diagonal += value
                    elif kept:
                        total += abs(value)
                    else:
                        count += 1
                        if column % block_size == q:
                            lumped += value
                            total_dropped += abs(value)
                        else:  # it is added to an entry beside the diagonal
                            total += abs(value)
                    place += np.uint64(1)
            filtered = diagonal + lumped
            bounds[0, row] = _bound_of_row(total, filtered, safe_diagonal(filtered, diagonal))
            bounds[1, row] = _bound_of_row(total + total_dropped, diagonal, diagonal)
            diagonals[row] = diagonal.real if diagonal.real > 0 else 0.0
            dropped[row] = count


def strong_connections(device: Device, nodes: Csr, scales: Array, theta: float) -> Csr:
    """Count the strong entries of each row, then copy them."""
    counts, cost = np.zeros(nodes.num_rows + 1, np.int64), nodes.nnz + nodes.num_rows
    matrix = (nodes.indptr, nodes.indices, nodes.data)
    run_parts(_count_strong, cost, matrix, scales, theta * theta, counts)
    np.cumsum(counts, out=counts)
    nnz, index = int(counts[-1]), nodes.indices.dtype
    if nnz == nodes.nnz:
        return nodes
    strong = Csr(nodes.shape, counts.astype(index), np.empty(nnz, index), np.empty(nnz, nodes.dtype), is_canonical=True)
    arrays = (strong.indptr, strong.indices, strong.data)
    run_parts(_copy_strong, cost, matrix, scales, theta * theta, arrays)
    return strong


@inlined
def _is_strong(row: Any, column: Any, value: Any, scales: Array, square: float) -> bool:
    if row == column:
        return True
    size = weight(value)
    return bool(size > 0 and size * size >= square * (scales[np.uint64(row)] * scales[np.uint64(column)]))


@compiled
def _count_strong(part: int, num_parts: int, matrix: Rows, scales: Array, square: float, counts: Array) -> None:
    indptr, indices, data = matrix
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        count = np.int64(0)
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            count += _is_strong(row, np.int64(indices[np.uint64(k)]), data[np.uint64(k)], scales, square)
        counts[np.uint64(row + 1)] = count


@compiled
def _copy_strong(part: int, num_parts: int, matrix: Rows, scales: Array, square: float, strong: Rows) -> None:
    indptr, indices, data = matrix
    strong_indptr, strong_indices, strong_data = strong
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        to = np.uint64(strong_indptr[np.uint64(row)])
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            column, value = indices[np.uint64(k)], data[np.uint64(k)]
            if _is_strong(row, np.int64(column), value, scales, square):
                strong_indices[to], strong_data[to] = column, value
                to += np.uint64(1)
