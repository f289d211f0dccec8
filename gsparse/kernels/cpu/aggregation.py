"""Connections, roots and aggregates of nodes (contract: `gsparse.kernels.aggregation`).

In loops over connections, all threads get rows or nodes with about the same number of entries. A single thread chooses
the roots. It visits the nodes in the order of their priorities. If a node becomes a root, the thread also visits all
nodes within distance two. Otherwise, it reads only the node's label. So choosing the roots takes as long as two passes
over the graph.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.kernels.aggregation import ISOLATED, MEASURES, MOST_SUMMED, OUTSIDE, UNDECIDED, Examination
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.cpu.rows import first_row
from gsparse.kernels.cpu.sparse_rows import Rows, keep_entries

# The rounding of a weight clears these 36 bits of a float64's fraction, which has 52 bits. 16 bits remain.
_CLEARED = np.uint64((1 << 36) - 1)
_HALF = np.uint64(1 << 35)
# If the filtered matrix's diagonal element is smaller than this fraction of the matrix's own, the latter is used.
_LEAST_DIAGONAL = 0.01

# The generation of an undecided node.
_NEVER = np.int32(2**31 - 1)


@inlined
def rounded(magnitude: Any) -> Any:
    """Round a magnitude to 16 bits of fraction."""
    bits = np.float64(magnitude).view(np.uint64)
    return np.uint64((bits + _HALF) & ~_CLEARED).view(np.float64)


@inlined
def weight(value: Any) -> Any:
    """Return the rounded magnitude of a value. Each operation is rounded separately, so GPUs get the same result."""
    a, b = np.float64(abs(value.real)), np.float64(abs(value.imag))
    high, low = max(a, b), min(a, b)
    if low > 0:
        ratio = low / high
        high = high * np.sqrt(1.0 + ratio * ratio)
    return rounded(high)


@inlined
def keeps(row: Any, column: Any, value: Any, scale: Any, theta: float) -> bool:
    """Return whether the filtered matrix keeps an entry. `scale` is the scale of the row's node."""
    return theta == 0.0 or row == column or weight(value) >= theta * scale


@inlined
def safe_diagonal(filtered: Any, diagonal: Any) -> Any:
    """Return the element by which a row of the filtered matrix is divided: `filtered`, unless it is too small."""
    return filtered if abs(filtered) >= _LEAST_DIAGONAL * abs(diagonal) else diagonal


# ---------------------------------------------------------------------------------------------------------- blocks


def block_weights(device: Device, csr: Csr, block_size: int) -> Csr:
    """Return the matrix of nodes. Count the blocks of each node first, then sum the squares of each block's entries."""
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
    """Merge the sorted rows of each node. Write the blocks if `fills`; otherwise only count them."""
    indptr, indices, data = matrix
    node_indptr, node_indices, node_data = nodes
    places = np.empty(block_size, np.int64)  # position of the next entry in each row of the node
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
                total += square  # in the order of the rows, as on a GPU
            if fills:
                to = node_indptr[node] + count
                node_indices[to], node_data[to] = block, rounded(np.sqrt(total))
            count += 1
        sizes[node + 1] = count


# ------------------------------------------------------------------------------------------------------------ rows


def examine_rows(device: Device, csr: Csr, nodes: Csr, block_size: int, measure: str, theta: float) -> Examination:
    """For each node, find its scale, and then the entries that the filtered matrix drops from its rows."""
    scales, bounds = np.empty(nodes.num_rows), np.empty((2, csr.num_rows))
    diagonal, dropped = np.empty(csr.num_rows), np.empty(csr.num_rows, np.int64)
    matrix, graph = (csr.indptr, csr.indices, csr.data), (nodes.indptr, nodes.indices, nodes.data)
    options = block_size, MEASURES[measure], theta
    run_parts(_examine, csr.nnz + csr.num_rows, matrix, graph, options, (scales, dropped, bounds, diagonal))
    bound, unfiltered_bound = bounds.max(axis=1, initial=0.0).tolist()
    diagonal_range = float(diagonal.min(initial=np.inf)), float(diagonal.max(initial=0.0))
    return Examination(scales, int(dropped.sum()), bound, unfiltered_bound, diagonal_range)


@inlined
def _bound_of_row(others: Any, diagonal: Any, divisor: Any) -> Any:
    """Return the sum of a row's magnitudes divided by ``abs(divisor)``; 0 if the divisor is 0 or NaN."""
    length = abs(divisor)
    return (others + abs(diagonal)) / length if length > 0 else 0.0


@compiled
def _examine(
    part: int,
    num_parts: int,
    matrix: Rows,
    graph: Rows,
    options: tuple[int, int, float],
    found: tuple[Array, Array, Array, Array],
) -> None:
    indptr, indices, data = matrix
    node_indptr, node_indices, node_data = graph
    block_size, measure, theta = options
    scales, dropped, bounds, diagonals = found
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
            diagonal = lumped = data[:0].sum()  # a zero of the values' dtype
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
                        else:  # The dropped value is added to an entry off the diagonal.
                            total += abs(value)
                    place += np.uint64(1)
            filtered = diagonal + lumped
            bounds[0, row] = _bound_of_row(total, filtered, safe_diagonal(filtered, diagonal))
            bounds[1, row] = _bound_of_row(total + total_dropped, diagonal, diagonal)
            diagonals[row] = diagonal.real if diagonal.real > 0 else 0.0
            dropped[row] = count


def strong_connections(device: Device, nodes: Csr, scales: Array, theta: float) -> Csr:
    """Mark the strong entries of each row, then copy the marked entries."""
    is_strong, matrix = np.empty(nodes.nnz, np.bool_), (nodes.indptr, nodes.indices, nodes.data)
    run_parts(_mark_strong, nodes.nnz + nodes.num_rows, matrix, scales, theta * theta, is_strong)
    return nodes if is_strong.all() else replace(keep_entries(device, nodes, is_strong), is_canonical=True)


@inlined
def _is_strong(row: Any, column: Any, value: Any, scales: Array, square: float) -> bool:
    if row == column:
        return True
    size = weight(value)
    return bool(size > 0 and size * size >= square * (scales[np.uint64(row)] * scales[np.uint64(column)]))


@compiled
def _mark_strong(part: int, num_parts: int, matrix: Rows, scales: Array, square: float, is_strong: Array) -> None:
    indptr, indices, data = matrix
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            column = np.int64(indices[np.uint64(k)])
            is_strong[np.uint64(k)] = _is_strong(row, column, data[np.uint64(k)], scales, square)


def independent_set(
    device: Device, graph: Csr, labels: Array, *, hashed: bool, most_generations: int, fewest: int
) -> tuple[int, int]:
    """Find the isolated nodes. Then visit the undecided nodes in the order of their priorities, and choose roots."""
    takes_part = labels < 0
    _find_isolated(graph.indptr, graph.indices, labels)
    order = np.flatnonzero(labels == UNDECIDED)
    if hashed:
        order = order[np.argsort(hash_of(order))]
    generations = np.where(labels == UNDECIDED, _NEVER, np.int32(0))
    keys = hash_of(np.arange(labels.size)) if hashed else np.arange(labels.size, dtype=np.uint32)
    most = min(most_generations, int(_NEVER) - 1)
    _choose_roots(graph.indptr, graph.indices, order, keys, takes_part, most, fewest, generations, labels)
    return int(np.count_nonzero(labels == UNDECIDED)), int(np.count_nonzero(labels == OUTSIDE))


def hash_of(numbers: Any) -> Any:
    """Return a hash of each number. Different numbers below 2³¹ have different hashes."""
    x, mask = numbers.astype(np.uint64), np.uint64(2**31 - 1)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & mask
    return (x ^ (x >> np.uint64(16))).astype(np.uint32)


@jitted
def _find_isolated(indptr: Array, indices: Array, labels: Array) -> None:
    for node in range(labels.size):
        if labels[node] != UNDECIDED:
            continue
        is_isolated = True
        for k in range(indptr[node], indptr[node + 1]):
            is_isolated = is_isolated and indices[k] == node
        if is_isolated:
            labels[node] = ISOLATED


@jitted
def _choose_roots(
    indptr: Array,
    indices: Array,
    order: Array,
    keys: Array,
    takes_part: Array,
    most_generations: int,
    fewest: int,
    generations: Array,
    labels: Array,
) -> None:
    """Choose roots among the nodes in `order`. For nodes decided before this call, `generations` must be 0."""
    for node in order:
        if generations[node] != _NEVER:
            continue
        latest = _latest(indptr, indices, node, keys, takes_part, generations)
        if latest >= most_generations:  # This includes `_NEVER`: a node of higher priority is undecided.
            continue
        generation, count = latest + 1, 0
        for k in range(indptr[node], indptr[node + 1]):
            count += indices[k] != node and takes_part[indices[k]]
        label = node if count >= fewest else OUTSIDE
        for k in range(indptr[node], indptr[node + 1]):
            neighbour = indices[k]
            if not takes_part[neighbour]:
                continue
            for e in range(indptr[neighbour], indptr[neighbour + 1]):
                other = indices[e]
                if takes_part[other] and labels[other] == UNDECIDED:
                    labels[other] = OUTSIDE
                if takes_part[other]:
                    generations[other] = min(generations[other], generation)
            if neighbour != node:
                generations[neighbour] = min(generations[neighbour], generation)
                labels[neighbour] = label
        labels[node], generations[node] = label, generation


@inlined
def _latest(indptr: Array, indices: Array, node: Any, keys: Array, takes_part: Array, generations: Array) -> Any:
    """Return the latest generation of nodes of higher priority within distance two; `_NEVER` if any is undecided."""
    latest = np.int32(0)
    for k in range(indptr[node], indptr[node + 1]):
        neighbour = indices[k]
        if not takes_part[neighbour]:
            continue
        for e in range(indptr[neighbour], indptr[neighbour + 1]):
            other = indices[e]
            if takes_part[other] and keys[other] < keys[node]:
                latest = max(latest, generations[other])
        if keys[neighbour] < keys[node]:
            latest = max(latest, generations[neighbour])
    return latest


def join_aggregates(device: Device, graph: Csr, labels: Array) -> tuple[Array, int]:
    """Number the roots, then let each node with the label `OUTSIDE` join a neighbour's aggregate."""
    roots = labels == np.arange(labels.size)
    numbers = np.cumsum(roots, dtype=np.int32) - np.int32(1)
    aggregates = np.where(labels >= 0, numbers[np.maximum(labels, 0)], np.int32(-1))
    matrix = (graph.indptr, graph.indices, graph.data)
    run_parts(_join, graph.nnz + graph.num_rows, matrix, labels, numbers, aggregates)
    return aggregates, int(numbers[-1]) + 1 if labels.size else 0


@compiled
def _join(part: int, num_parts: int, graph: Rows, labels: Array, numbers: Array, aggregates: Array) -> None:
    indptr, indices, data = graph
    for node in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        if labels[np.uint64(node)] != OUTSIDE:
            continue
        begin, end = indptr[np.uint64(node)], indptr[np.uint64(node + 1)]
        best, best_label = -1.0, np.int32(-1)
        for k in range(begin, end):
            label = labels[np.uint64(indices[np.uint64(k)])]
            if label < 0:
                continue
            total = 0.0
            if end - begin > MOST_SUMMED:
                total = weight(data[np.uint64(k)])
            else:
                for e in range(begin, end):
                    if labels[np.uint64(indices[np.uint64(e)])] == label:
                        total += weight(data[np.uint64(e)])
            if total > best or (total == best and label < best_label):
                best, best_label = total, label
        if best_label >= 0:
            aggregates[np.uint64(node)] = numbers[np.uint64(best_label)]
