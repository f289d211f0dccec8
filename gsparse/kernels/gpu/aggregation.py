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

__all__ = ["independent_set", "instantiations", "join_aggregates"]

_SOURCE = "independent_set.cu"
_THREADS, _SMALL_THREADS = constant(_SOURCE, "GS_SET_THREADS"), constant(_SOURCE, "GS_SMALL_THREADS")
# The number of counters, and the places of those that the host reads or writes.
_COUNTERS, _GENERATION, _ROOTS, _NUM_UNDECIDED, _NUM_OUTSIDE = (
    constant(_SOURCE, f"GS_{name}") for name in ("COUNTERS", "GENERATION", "ROOTS", "NUM_UNDECIDED", "NUM_OUTSIDE")
)
# Nodes up to which one block makes all generations: its barriers take less time than launches.
_SMALL = 20_000
# Generations that are launched one by one before the counters are read, and then those of a CUDA graph, which is worth
# its set-up where there are many.
_FIRST_GENERATIONS, _GENERATIONS_PER_GRAPH = 16, 32
# Blocks of a launch for each multiprocessor, if there is work for them. Most lists are short.
_BLOCKS_PER_MULTIPROCESSOR = 4


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = [expression(name, np.dtype(np.int32)) for name in ("mark_roots", "count_labels")]
    for index in INDEX_DTYPES:
        names += [expression(name, index, width) for name, width in product(("label_neighbours", "reach_out"), WIDTHS)]
        hashed = product(("begin_set", "find_next", "all_generations"), WIDTHS, (0, 1))
        names += [expression(name, index, width, is_hashed) for name, width, is_hashed in hashed]
        names += [expression("list_roots", index)]
        names += [expression("join_aggregates", dtype, index) for dtype in COMPUTE_DTYPES if dtype.kind in "fc"]
    return [(_SOURCE, name) for name in names]


def independent_set(
    device: Device, graph: Csr, labels: Array, *, hashed: bool, most_generations: int, fewest: int
) -> tuple[int, int]:
    """Launch generations until one finds no new roots. Synchronizes."""
    xp, index, width, num_nodes = device.xp, graph.indices.dtype, lanes_of(graph), graph.num_rows
    if not num_nodes:
        return 0, 0
    lists, counters = device.empty(5 * num_nodes, np.int32), xp.zeros(_COUNTERS, np.uint32)
    args: Any = (
        np.int64(num_nodes),
        graph.indptr,
        graph.indices,
        labels,
        lists,
        counters,
        np.uint32(most_generations),
    )
    begin = expression("begin_set", index, width, int(hashed))
    launch_threads(device, _SOURCE, begin, num_nodes * width, _THREADS, args)
    launch_threads(device, _SOURCE, expression("list_roots", index), num_nodes, _THREADS, args)
    if num_nodes <= _SMALL:
        name = expression("all_generations", index, width, int(hashed))
        launch_blocks(device, _SOURCE, name, 1, _SMALL_THREADS, (*args, np.int32(fewest)))
    else:
        _launch_generations(device, index, width, hashed, args, fewest)
    blocks = min(-(-num_nodes // _THREADS), _BLOCKS_PER_MULTIPROCESSOR * device.multiprocessors)
    name = expression("count_labels", np.dtype(np.int32))
    launch_blocks(device, _SOURCE, name, blocks, _THREADS, (np.int64(num_nodes), labels, counters))
    counted = device.download(counters)  # synchronizes
    return int(counted[_NUM_UNDECIDED]), int(counted[_NUM_OUTSIDE])


def _launch_generations(device: Device, index: Any, width: int, hashed: bool, args: Any, fewest: int) -> None:
    num_nodes, counters, most = int(args[0]), args[-2], int(args[-1])
    blocks = min(-(-num_nodes * width // _THREADS), _BLOCKS_PER_MULTIPROCESSOR * device.multiprocessors)
    kernels = (
        (expression("label_neighbours", index, width), (*args, np.int32(fewest))),
        (expression("reach_out", index, width), args),
        (expression("find_next", index, width, int(hashed)), args),
    )

    def launch(count: int) -> None:
        for _ in range(count):
            for name, arguments in kernels:
                launch_blocks(device, _SOURCE, name, blocks, _THREADS, arguments)

    def is_done() -> bool:
        values = device.download(counters)  # synchronizes
        return not values[_ROOTS] or int(values[_GENERATION]) >= most

    launch(_FIRST_GENERATIONS)
    if is_done():
        return
    with device.own_stream():
        launch_graph = device.capture(lambda: launch(_GENERATIONS_PER_GRAPH))
        while True:
            launch_graph()
            if is_done():
                return


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
