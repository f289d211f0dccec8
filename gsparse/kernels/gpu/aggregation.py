"""Connections, roots and aggregates of nodes (contract: `gsparse.kernels.aggregation`).

The kernels are `src/connections.cu` and `src/independent_set.cu`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.errors import ShapeError
from gsparse.formats import Csr
from gsparse.kernels.aggregation import MEASURES, MOST_SUMMED, Examination
from gsparse.kernels.gpu.launch import FLOATS, Source, constant, expression, launch_blocks
from gsparse.kernels.gpu.reductions import first_where
from gsparse.kernels.gpu.sparse_rows import keep_entries, prefix_sums, row_pointers

_CONNECTIONS = Source("connections.cu", constant("connections.cu", "GS_CONNECTION_THREADS"))
# The number of totals that `examine_rows` computes, and the index of the total for the smallest diagonal value. This
# total is a complement, so that the kernel can take a maximum.
_TOTALS, _SMALLEST = constant(_CONNECTIONS.file, "GS_TOTALS"), constant(_CONNECTIONS.file, "GS_SMALLEST")
# Numbers of lanes that share a row. The smaller number is for matrices with at most _SHORT_ROWS entries per row on
# average.
WIDTHS, _SHORT_ROWS = (8, 32), 16
_WEIGHT = np.dtype(np.float64)
# Types for which the kernels of nodes are compiled: the dtype of the matrix, the dtype of the node matrix, and whether
# nodes are blocks.
NODE_TYPES = [*((dtype, dtype, 0) for dtype in FLOATS), *((dtype, _WEIGHT, 1) for dtype in FLOATS)]

_SET = Source("independent_set.cu", constant("independent_set.cu", "GS_SET_THREADS"))
_GENERATION_THREADS = constant(_SET.file, "GS_GENERATION_THREADS")
# The number of counters of an independent set, and the indices of the counters that the host reads.
_COUNTERS, _NUM_UNDECIDED, _NUM_OUTSIDE = (
    constant(_SET.file, f"GS_{name}") for name in ("COUNTERS", "NUM_UNDECIDED", "NUM_OUTSIDE")
)
# Up to this many nodes, a single block makes all generations, because it need not wait for other blocks.
_SMALL = 20_000
# Number of blocks per multiprocessor that make generations. They all run at the same time if the GPU does nothing else.
_BLOCKS_PER_MULTIPROCESSOR = 2
# The first of these blocks checks up to this many times whether the other blocks have started. A check takes about 0.5
# µs.
_PATIENCE = 1 << 14
# Number of blocks per multiprocessor in a launch that counts labels.
_COUNTING_BLOCKS = 4


def lanes_of(csr: Csr) -> int:
    """Return the number of lanes that share a row."""
    return WIDTHS[csr.nnz > _SHORT_ROWS * csr.num_rows]


def block_weights(device: Device, csr: Csr, block_size: int) -> Csr:
    """Return the node matrix: count the blocks of each block row, then write them. Synchronizes."""
    num_nodes, index = csr.num_rows // block_size, csr.indices.dtype
    width = next((width for width in WIDTHS if width >= block_size), None)
    if width is None:
        raise ShapeError(
            f"on a GPU, multigrid takes nodes of at most {WIDTHS[-1]} unknowns and as many near-nullspace candidates, "
            f"got {block_size}: pass a smaller block_size or fewer columns of B, or use device='cpu'"
        )
    matrix = (np.int64(num_nodes), np.int32(block_size), csr.indptr, csr.indices, csr.data)
    sizes, threads = device.empty(num_nodes, index), num_nodes * width
    types = csr.dtype, index, width
    _CONNECTIONS.launch(device, "merge_blocks", (*types, 0), threads, (*matrix, sizes, None, None, None))
    indptr, nnz = row_pointers(device, sizes)  # synchronizes
    nodes = Csr((num_nodes, num_nodes), indptr, device.empty(nnz, index), device.empty(nnz, _WEIGHT), is_canonical=True)
    args = (*matrix, None, nodes.indptr, nodes.indices, nodes.data)
    _CONNECTIONS.launch(device, "merge_blocks", (*types, 1), threads, args)
    return nodes


def examine_rows(device: Device, csr: Csr, nodes: Csr, block_size: int, measure: str, theta: float) -> Examination:
    """Examine the rows of each node in one pass. Synchronizes."""
    scales, totals = device.empty(nodes.num_rows, _WEIGHT), device.xp.zeros(_TOTALS, np.uint64)
    options = (np.int64(nodes.num_rows), np.int32(block_size), np.int32(MEASURES[measure]), np.float64(theta))
    matrices = (csr.indptr, csr.indices, csr.data, nodes.indptr, nodes.indices, nodes.data)
    width = lanes_of(csr)
    types, threads = (csr.dtype, nodes.dtype, int(block_size > 1), csr.indices.dtype, width), nodes.num_rows * width
    _CONNECTIONS.launch(device, "examine_rows", types, threads, (*options, *matrices, scales, totals))
    found = device.download(totals)  # synchronizes
    found[_SMALLEST] = ~found[_SMALLEST]
    bound, unfiltered_bound, largest, smallest = found[1:].view(np.float64).tolist()
    return Examination(scales, int(found[0]), bound, unfiltered_bound, (smallest, largest))


def strong_connections(device: Device, nodes: Csr, scales: Array, theta: float) -> Csr:
    """Mark the strong entries of each row, then copy the marked entries. Synchronizes."""
    is_strong, width = device.empty(nodes.nnz, np.bool_), lanes_of(nodes)
    matrix = (np.int64(nodes.num_rows), np.float64(theta * theta), scales, nodes.indptr, nodes.indices, nodes.data)
    args, types = (*matrix, is_strong.view(np.uint8)), (nodes.dtype, nodes.indices.dtype, width)
    _CONNECTIONS.launch(device, "mark_strong", types, nodes.num_rows * width, args)
    if first_where(device, is_strong, "zero") is None:  # synchronizes
        return nodes
    return replace(keep_entries(device, nodes, is_strong), is_canonical=True)  # synchronizes


def independent_set(
    device: Device, graph: Csr, labels: Array, *, hashed: bool, most_generations: int, fewest: int
) -> tuple[int, int]:
    """Choose the roots of all generations in one launch. Synchronizes."""
    xp, index, width, num_nodes = device.xp, graph.indices.dtype, lanes_of(graph), graph.num_rows
    if not num_nodes:
        return 0, 0
    lists, counters = device.empty(4 * num_nodes, np.int32), xp.zeros(_COUNTERS, np.uint32)
    args: Any = (np.int64(num_nodes), graph.indptr, graph.indices, labels, lists, counters)
    _SET.launch(device, "begin_set", (index, width, int(hashed)), num_nodes * width, args)
    _SET.launch(device, "list_roots", (index,), num_nodes, args)
    blocks = 1 if num_nodes <= _SMALL else _BLOCKS_PER_MULTIPROCESSOR * device.multiprocessors
    options = (np.uint32(most_generations), np.int32(fewest), np.uint32(_PATIENCE))
    name = expression("make_generations", index, width, int(hashed))
    launch_blocks(device, _SET.file, name, blocks, _GENERATION_THREADS, (*args, *options))
    threads = min(num_nodes, _COUNTING_BLOCKS * device.multiprocessors * _SET.threads)
    _SET.launch(device, "count_labels", (labels.dtype,), threads, (np.int64(num_nodes), labels, counters))
    counted = device.download(counters)  # synchronizes
    return int(counted[_NUM_UNDECIDED]), int(counted[_NUM_OUTSIDE])


def join_aggregates(device: Device, graph: Csr, labels: Array) -> tuple[Array, int]:
    """Number the roots, then assign each outside node to a neighbouring aggregate. Synchronizes."""
    num_nodes = graph.num_rows
    if not num_nodes:
        return labels, 0
    marks, aggregates = device.empty(num_nodes, np.int32), device.empty(num_nodes, np.int32)
    _SET.launch(device, "mark_roots", (labels.dtype,), num_nodes, (np.int64(num_nodes), labels, marks))
    numbers = prefix_sums(device, marks)
    matrix = (np.int64(num_nodes), np.int32(MOST_SUMMED), graph.indptr, graph.indices, graph.data)
    args, types = (*matrix, labels, numbers, aggregates), (graph.dtype, graph.indices.dtype)
    _SET.launch(device, "join_aggregates", types, num_nodes, args)
    (num_aggregates,) = device.counts.read()  # synchronizes
    return aggregates, num_aggregates


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    return [
        *_SET.variants("mark_roots count_labels", (np.dtype(np.int32),)),
        *_SET.variants("begin_set make_generations", INDEX_DTYPES, WIDTHS, (0, 1)),
        *_SET.variants("list_roots", INDEX_DTYPES),
        *_SET.variants("join_aggregates", FLOATS, INDEX_DTYPES),
        *_CONNECTIONS.variants("merge_blocks", FLOATS, INDEX_DTYPES, WIDTHS, (0, 1)),
        *_CONNECTIONS.variants("mark_strong", FLOATS, INDEX_DTYPES, WIDTHS),
        *_CONNECTIONS.variants("examine_rows", NODE_TYPES, INDEX_DTYPES, WIDTHS),
    ]
