"""Roots and aggregates of nodes (contract: `gsparse.kernels.aggregation`; kernels: `src/independent_set.cu`)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.kernels.aggregation import MOST_SUMMED
from gsparse.kernels.gpu.connections import WIDTHS, lanes_of
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.sparse_rows import prefix_sums

_SOURCE = "independent_set.cu"
_THREADS, _GENERATION_THREADS = constant(_SOURCE, "GS_SET_THREADS"), constant(_SOURCE, "GS_GENERATION_THREADS")
# The number of counters, and the places of those that the host reads.
_COUNTERS, _NUM_UNDECIDED, _NUM_OUTSIDE = (
    constant(_SOURCE, f"GS_{name}") for name in ("COUNTERS", "NUM_UNDECIDED", "NUM_OUTSIDE")
)
# Nodes up to which one block makes all generations: it waits for no other.
_SMALL = 20_000
# Blocks that make generations, for each multiprocessor. All of them run at the same time if the GPU does nothing else.
_BLOCKS_PER_MULTIPROCESSOR = 2
# How often the first of these blocks looks whether the others have begun. A look takes about half a microsecond.
_PATIENCE = 1 << 14
# Blocks of a launch that counts, for each multiprocessor.
_COUNTING_BLOCKS = 4


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = [expression(name, np.dtype(np.int32)) for name in ("mark_roots", "count_labels")]
    for index in INDEX_DTYPES:
        hashed = product(("begin_set", "make_generations"), WIDTHS, (0, 1))
        names += [expression(name, index, width, is_hashed) for name, width, is_hashed in hashed]
        names += [expression("list_roots", index)]
        names += [expression("join_aggregates", dtype, index) for dtype in COMPUTE_DTYPES if dtype.kind in "fc"]
    return [(_SOURCE, name) for name in names]


def independent_set(
    device: Device, graph: Csr, labels: Array, *, hashed: bool, most_generations: int, fewest: int
) -> tuple[int, int]:
    """Launch one kernel for all generations. Synchronizes."""
    xp, index, width, num_nodes = device.xp, graph.indices.dtype, lanes_of(graph), graph.num_rows
    if not num_nodes:
        return 0, 0
    lists, counters = device.empty(4 * num_nodes, np.int32), xp.zeros(_COUNTERS, np.uint32)
    args: Any = (np.int64(num_nodes), graph.indptr, graph.indices, labels, lists, counters)
    begin = expression("begin_set", index, width, int(hashed))
    launch_threads(device, _SOURCE, begin, num_nodes * width, _THREADS, args)
    launch_threads(device, _SOURCE, expression("list_roots", index), num_nodes, _THREADS, args)
    blocks = 1 if num_nodes <= _SMALL else _BLOCKS_PER_MULTIPROCESSOR * device.multiprocessors
    options = (np.uint32(most_generations), np.int32(fewest), np.uint32(_PATIENCE))
    name = expression("make_generations", index, width, int(hashed))
    launch_blocks(device, _SOURCE, name, blocks, _GENERATION_THREADS, (*args, *options))
    blocks = min(-(-num_nodes // _THREADS), _COUNTING_BLOCKS * device.multiprocessors)
    name = expression("count_labels", np.dtype(np.int32))
    launch_blocks(device, _SOURCE, name, blocks, _THREADS, (np.int64(num_nodes), labels, counters))
    counted = device.download(counters)  # synchronizes
    return int(counted[_NUM_UNDECIDED]), int(counted[_NUM_OUTSIDE])


def join_aggregates(device: Device, graph: Csr, labels: Array) -> tuple[Array, int]:
    """Number the roots, then let the nodes that are outside look for a neighbour. Synchronizes."""
    num_nodes = graph.num_rows
    if not num_nodes:
        return labels, 0
    marks, aggregates = device.empty(num_nodes, np.int32), device.empty(num_nodes, np.int32)
    name = expression("mark_roots", np.dtype(np.int32))
    launch_threads(device, _SOURCE, name, num_nodes, _THREADS, (np.int64(num_nodes), labels, marks))
    numbers = prefix_sums(device, marks)
    name = expression("join_aggregates", graph.dtype, graph.indices.dtype)
    matrix = (np.int64(num_nodes), np.int32(MOST_SUMMED), graph.indptr, graph.indices, graph.data)
    launch_threads(device, _SOURCE, name, num_nodes, _THREADS, (*matrix, labels, numbers, aggregates))
    (num_aggregates,) = device.counts.read()  # synchronizes
    return aggregates, num_aggregates
