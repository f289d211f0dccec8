"""Roots and aggregates of nodes (contract: `gsparse.kernels.aggregation`).

One thread looks at the nodes in the order of their priorities. A root looks at all nodes within distance two, and no
other node looks at more than its own label, so that the time is that of two passes over the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.kernels.aggregation import ISOLATED, MOST_SUMMED, OUTSIDE, UNDECIDED
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.connections import weight
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.cpu.rows import first_row
from gsparse.kernels.cpu.sparse_rows import Rows

# The generation of a node that is not decided.
_NEVER = np.int32(2**31 - 1)


def independent_set(
    device: Device, graph: Csr, labels: Array, *, hashed: bool, most_generations: int, fewest: int
) -> tuple[int, int]:
    """Find the nodes that take part, and choose roots among them one after the other."""
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
    """Return the hashes of numbers below 2³¹, each of which has another one: a mixer of xorshifts and products."""
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
    """Choose roots in this order. `generations` are 0 for nodes that were decided before."""
    for node in order:
        if generations[node] != _NEVER:
            continue
        latest = _latest(indptr, indices, node, keys, takes_part, generations)
        if latest >= most_generations:  # also if a node of higher priority is undecided
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
    """Return the generation of the last node of higher priority within distance two; `_NEVER` if one is undecided."""
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
    """Number the roots, then let the nodes that are outside look for a neighbour."""
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
