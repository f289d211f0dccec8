"""Tentative and smoothed prolongators (contract: `gsparse.kernels.aggregation`).

The aggregates or the nodes are divided among the threads. A node has `block_size` rows of the matrix. With k candidates
per aggregate, a row of P has k entries for each aggregate that its node reaches, here for the aggregates 2 and 5:

    columns    2·k  2·k + 1  ...  2·k + k - 1 | 5·k  5·k + 1  ...  5·k + k - 1
               aggregate 2                    | aggregate 5
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.aggregation import MOST_REACHED, NodePattern, dependence_tolerance
from gsparse.kernels.cpu.aggregation import keeps, safe_diagonal
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.rows import first_row
from gsparse.kernels.cpu.sparse_rows import Rows

Pair = tuple[Array, Array]
# The matrix of nodes, the aggregate of each node, the scale of each node, and theta. An entry is dropped if its weight
# is less than theta times the scale of its row's node.
Filtered = tuple[Rows, Array, Array, float]


def orthonormal_candidates(
    device: Device, bounds: Array, order: Array, candidates: Array, block_size: int
) -> tuple[Array, Array]:
    """Return Q and R. Copy the rows of each aggregate, and orthonormalize their columns one after the other."""
    num_aggregates, k = bounds.size - 1, candidates.shape[1]
    q, r = np.zeros_like(candidates), np.zeros((num_aggregates * k, k), candidates.dtype)
    tolerance = dependence_tolerance(candidates.dtype)
    wide = np.zeros(1, np.result_type(candidates.dtype, np.float64))
    cost = candidates.size * k + num_aggregates
    run_parts(_orthonormalize, cost, (bounds, order), candidates, block_size, tolerance, wide, (q, r))
    return q, r


@partial(compiled, allocates=True)
def _orthonormalize(
    part: int, num_parts: int, nodes: Pair, candidates: Array, block_size: int, tolerance: float, wide: Array, qr: Pair
) -> None:
    """Orthonormalize the candidates of each aggregate by the modified Gram-Schmidt method: candidates = q·r.

    If a column depends linearly on the columns before it, up to the tolerance, it becomes 0 in q.
    """
    (bounds, order), (q, r), k = nodes, qr, candidates.shape[1]
    for aggregate in range(first_row(part, num_parts, bounds), first_row(part + 1, num_parts, bounds)):
        begin, size = bounds[aggregate], (bounds[aggregate + 1] - bounds[aggregate]) * block_size
        columns = np.empty((k, size), wide.dtype)
        for i in range(size):
            for c in range(k):
                columns[c, i] = candidates[np.int64(order[begin + i // block_size]) * block_size + i % block_size, c]
        for c in range(k):
            length = np.sqrt(_dot(columns, c, c, wide).real)
            for d in range(c):
                dot = _dot(columns, d, c, wide)
                r[aggregate * k + d, c] = dot
                for i in range(size):
                    columns[c, i] -= dot * columns[d, i]
            rest = np.sqrt(_dot(columns, c, c, wide).real)
            is_independent = rest > tolerance * length
            r[aggregate * k + c, c] = rest if is_independent else 0
            for i in range(size):
                columns[c, i] = columns[c, i] / rest if is_independent else 0
        for i in range(size):
            for c in range(k):
                q[np.int64(order[begin + i // block_size]) * block_size + i % block_size, c] = columns[c, i]


@inlined
def _dot(columns: Array, first: Any, second: Any, wide: Array) -> Any:
    dot = wide[0]  # zero
    for i in range(columns.shape[1]):
        dot += np.conj(columns[first, i]) * columns[second, i]
    return dot


# ------------------------------------------------------------------------------------------- smoothed prolongators


def prolongator_pattern(
    device: Device, nodes: Csr, aggregates: Array, num_aggregates: int, scales: Array, theta: float
) -> NodePattern:
    """Count the aggregates that each node reaches, then list them in ascending order."""
    counts, cost = np.zeros(nodes.num_rows + 1, np.int64), nodes.nnz + nodes.num_rows
    is_smoothed, matrix = np.empty(nodes.num_rows, np.bool_), (nodes.indptr, nodes.indices, nodes.data)
    graph = matrix, aggregates, scales, theta
    run_parts(_count_reached, cost, graph, num_aggregates, is_smoothed, counts)
    np.cumsum(counts, out=counts)
    index = nodes.indices.dtype if counts[-1] <= MAX_INT32 else np.dtype(np.int64)
    pattern = NodePattern(counts.astype(index), np.empty(counts[-1], index), is_smoothed)
    run_parts(_fill_reached, cost, graph, (pattern.indptr, pattern.indices, is_smoothed))
    return pattern


def expand_pattern(device: Device, indptr: Array, indices: Array, block_size: int, k: int) -> tuple[Array, Array]:
    """Return the row pointers and columns of P, from each node's aggregates in `indptr` and `indices`."""
    if block_size == k == 1:
        return indptr, indices
    nnz = indices.size * block_size * k
    index = indices.dtype if nnz <= MAX_INT32 else np.dtype(np.int64)
    out_indptr, out_indices = np.zeros((indptr.size - 1) * block_size + 1, index), np.empty(nnz, index)
    run_parts(_expand, nnz + out_indptr.size, indptr, indices, block_size, k, out_indptr, out_indices)
    return out_indptr, out_indices


@compiled
def _expand(
    part: int,
    num_parts: int,
    pattern_indptr: Array,
    pattern_indices: Array,
    block_size: int,
    k: int,
    indptr: Array,
    indices: Array,
) -> None:
    """Write the columns of all rows of each node: k columns for each aggregate that the node reaches."""
    for node in range(first_row(part, num_parts, pattern_indptr), first_row(part + 1, num_parts, pattern_indptr)):
        first, last = np.int64(pattern_indptr[node]), np.int64(pattern_indptr[node + 1])
        for q in range(block_size):
            to = (first * block_size + (last - first) * q) * k
            for s in range(first, last):
                for c in range(k):
                    indices[to] = pattern_indices[s] * k + c
                    to += 1
            indptr[node * block_size + q + 1] = to


@partial(compiled, allocates=True)
def _count_reached(
    part: int, num_parts: int, graph: Filtered, num_aggregates: int, is_smoothed: Array, counts: Array
) -> None:
    """Count the aggregates that each node reaches. A node that reaches too many counts only its own: no smoothing."""
    (indptr, indices, data), aggregates, scales, theta = graph
    begin, end = first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)
    if begin == end:
        return
    marks = np.full(num_aggregates, -1, np.int64)  # last node that reached each aggregate
    for node in range(begin, end):
        own = aggregates[np.uint64(node)]
        count = np.int64(own >= 0)
        if own >= 0:
            marks[np.uint64(own)] = node
        for k in range(indptr[np.uint64(node)], indptr[np.uint64(node + 1)]):
            other = np.int64(indices[np.uint64(k)])
            aggregate = aggregates[np.uint64(other)]
            if aggregate < 0 or marks[np.uint64(aggregate)] == node:
                continue
            if keeps(node, other, data[np.uint64(k)], scales[np.uint64(node)], theta):
                marks[np.uint64(aggregate)] = node
                count += 1
        is_smoothed[np.uint64(node)] = count <= MOST_REACHED
        counts[np.uint64(node + 1)] = count if count <= MOST_REACHED else np.int64(own >= 0)


@compiled
def _fill_reached(part: int, num_parts: int, graph: Filtered, pattern: Rows) -> None:
    """List the aggregates that each node reaches, which are its own and its neighbours', in ascending order."""
    (indptr, indices, data), aggregates, scales, theta = graph
    pattern_indptr, pattern_indices, is_smoothed = pattern
    for node in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        begin, own = pattern_indptr[np.uint64(node)], aggregates[np.uint64(node)]
        end = begin
        if own >= 0:
            pattern_indices[np.uint64(end)] = own
            end += 1
        if not is_smoothed[np.uint64(node)]:
            continue
        for k in range(indptr[np.uint64(node)], indptr[np.uint64(node + 1)]):
            other = np.int64(indices[np.uint64(k)])
            aggregate = aggregates[np.uint64(other)]
            if aggregate < 0 or not keeps(node, other, data[np.uint64(k)], scales[np.uint64(node)], theta):
                continue
            place = end  # Insert the aggregate in ascending order, unless the list already has it.
            while place > begin and pattern_indices[np.uint64(place - 1)] > aggregate:
                place -= 1
            if place > begin and pattern_indices[np.uint64(place - 1)] == aggregate:
                continue
            for e in range(end, place, -1):
                pattern_indices[np.uint64(e)] = pattern_indices[np.uint64(e - 1)]
            pattern_indices[np.uint64(place)] = aggregate
            end += 1


def prolongator_values(
    device: Device,
    csr: Csr,
    nodes: Csr,
    pattern: NodePattern,
    aggregates: Array,
    scales: Array,
    theta: float,
    tentative: Array,
    block_size: int,
    omega: float,
) -> Array:
    """Return the values of the prolongator."""
    values = np.zeros(int(pattern.indptr[-1]) * block_size * tentative.shape[1], csr.dtype)
    matrix, graph = (csr.indptr, csr.indices, csr.data), (nodes.indptr, nodes.indices, nodes.data)
    reached = pattern.indptr, pattern.indices, pattern.is_smoothed
    tentative = np.ascontiguousarray(tentative, csr.dtype)
    factor = csr.dtype.type(omega)
    cost = csr.nnz * tentative.shape[1] + csr.num_rows
    filtered = graph, aggregates, scales, theta
    run_parts(_smooth_rows, cost, matrix, filtered, reached, tentative, block_size, factor, values)
    return values


@partial(compiled, allocates=True)
def _smooth_rows(
    part: int,
    num_parts: int,
    matrix: Rows,
    filtered: Filtered,
    reached: Rows,
    tentative: Array,
    block_size: int,
    omega: Any,
    values: Array,
) -> None:
    """Compute the rows of P = T - ω·D⁻¹·A·T for each node, in the order of `reached`. T is `tentative`."""
    node_indptr = filtered[0][0]
    reached_indptr, reached_indices, is_smoothed = reached
    begin, end = first_row(part, num_parts, node_indptr), first_row(part + 1, num_parts, node_indptr)
    longest = 0
    for node in range(begin, end):
        longest = max(longest, node_indptr[node + 1] - node_indptr[node])
    slots = np.empty(longest, np.int64)
    for node in range(begin, end):
        first, last = reached_indptr[node], reached_indptr[node + 1]
        own = _find_slots(node, filtered, reached_indices[first:last], slots)
        width = (last - first) * tentative.shape[1]
        for q in range(block_size):
            to = first * block_size * tentative.shape[1] + q * width
            sums, row = values[to : to + width], node * block_size + q
            if is_smoothed[node]:
                _smooth_row(row, node, matrix, filtered[0], slots, own, tentative, block_size, omega, sums)
            if own >= 0:
                for c in range(tentative.shape[1]):
                    sums[own * tentative.shape[1] + c] += tentative[row, c]


@inlined
def _find_slots(node: Any, filtered: Filtered, reached: Array, slots: Array) -> Any:
    """For each entry of a node, find the index of its column's aggregate among the aggregates that the node reaches.

    Store -1 if the column has no aggregate, and -2 if the entry is dropped. Return the index of the node's own
    aggregate.
    """
    (indptr, indices, data), aggregates, scales, theta = filtered
    for k in range(indptr[node], indptr[node + 1]):
        aggregate = aggregates[indices[k]]
        slot = -1 if aggregate < 0 else -2
        for s in range(reached.size):
            if reached[s] == aggregate:
                slot = s
        slots[k - indptr[node]] = slot if keeps(node, np.int64(indices[k]), data[k], scales[node], theta) else -2
    own = np.int64(-1)
    for s in range(reached.size):
        if reached[s] == aggregates[node]:
            own = np.int64(s)
    return own


@inlined
def _smooth_row(
    row: Any,
    node: Any,
    matrix: Rows,
    graph: Rows,
    slots: Array,
    own: Any,
    tentative: Array,
    block_size: int,
    omega: Any,
    sums: Array,
) -> None:
    """Add -ω·D⁻¹·A·T of one row to `sums`. Dropped entries are added to the diagonal."""
    indptr, indices, data = matrix
    k, e = tentative.shape[1], graph[0][node]
    diagonal = lumped = data[:0].sum()  # a zero of the values' dtype
    for place in range(indptr[row], indptr[row + 1]):
        column, value = np.int64(indices[place]), data[place]
        while np.int64(graph[1][e]) < column // block_size:
            e += 1
        slot, source = slots[e - graph[0][node]], column
        if column == row:
            diagonal += value
        if slot == -2:
            slot, source = own, node * block_size + column % block_size
            lumped += value if source == row else 0
        if slot >= 0:
            for c in range(k):
                sums[slot * k + c] += value * tentative[source, c]
    divisor = safe_diagonal(diagonal + lumped, diagonal)
    factor = -omega / divisor if divisor != 0 else divisor
    for i in range(sums.size):
        sums[i] *= factor
