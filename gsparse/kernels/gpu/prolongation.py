"""Tentative and smoothed prolongators (contract: `gsparse.kernels.aggregation`; kernels: `src/prolongation.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.aggregation import MOST_REACHED, NodePattern, dependence_tolerance
from gsparse.kernels.gpu.aggregation import NODE_TYPES, WIDTHS, lanes_of
from gsparse.kernels.gpu.launch import FLOATS, Source, constant
from gsparse.kernels.gpu.sparse_rows import row_pointers

_SOURCE = Source("prolongation.cu", constant("prolongation.cu", "GS_PROLONG_THREADS"))
# Number of entries that a lane holds in registers, and possible numbers of lanes per node in the search for aggregates.
# If the longest row is known, the smallest number of lanes that can hold it is used. Each aggregate takes all lanes of
# a node one step, even lanes without entries; for a 7-point stencil, eight lanes would take four times as long as two.
_HELD, _REACH_WIDTHS = constant(_SOURCE.file, "GS_HELD"), (2, *WIDTHS)
# Numbers of lanes that share a row of a prolongator; _ROW_LENGTHS holds the largest mean row length for each.
_ROW_WIDTHS, _ROW_LENGTHS = (4, 8, 16, 32), (4, 10, 20)
# The smaller number of WIDTHS is used for at most this mean number of rows per aggregate, or, in `expand_pattern`, of
# entries per node.
_SMALL_AGGREGATES = 16


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    outs = [(np.dtype(np.int32), np.dtype(np.int32)), *((index, np.dtype(np.int64)) for index in INDEX_DTYPES)]
    # With several candidates, one unknown per node also counts as a block.
    types = dict.fromkeys([*NODE_TYPES, *((dtype, dtype, 1) for dtype in FLOATS)])
    return [
        *_SOURCE.variants("orthonormalize", FLOATS, WIDTHS),
        *_SOURCE.variants("expand_pattern", outs, WIDTHS),
        *_SOURCE.variants("reach_aggregates", FLOATS, INDEX_DTYPES, _REACH_WIDTHS, (0, 1)),
        *_SOURCE.variants("smooth_rows", types, INDEX_DTYPES, _ROW_WIDTHS),
    ]


def orthonormal_candidates(
    device: Device, bounds: Array, order: Array, candidates: Array, block_size: int
) -> tuple[Array, Array]:
    """Return Q and R. A group of lanes orthonormalizes the columns of an aggregate one after the other."""
    num_aggregates, k = int(bounds.size) - 1, int(candidates.shape[1])
    q, r = device.xp.zeros_like(candidates), device.xp.zeros((num_aggregates * k, k), candidates.dtype)
    width = WIDTHS[candidates.shape[0] > _SMALL_AGGREGATES * num_aggregates]
    options = (np.int64(num_aggregates), np.int32(block_size), np.int32(k))
    args: Any = (*options, np.float64(dependence_tolerance(candidates.dtype)), bounds, order, candidates, q, r)
    _SOURCE.launch(device, "orthonormalize", (candidates.dtype, width), num_aggregates * width, args)
    return q, r


def prolongator_pattern(
    device: Device, nodes: Csr, aggregates: Array, num_aggregates: int, scales: Array, theta: float
) -> NodePattern:
    """Count the aggregates in the row of each node, then list them in ascending order. Synchronizes."""
    num_nodes, index, width = nodes.num_rows, nodes.indices.dtype, lanes_of(nodes)
    if nodes.longest is not None:
        width = next((lanes for lanes in _REACH_WIDTHS if nodes.longest <= _HELD * lanes), width)
    is_smoothed, sizes = device.empty(num_nodes, np.uint8), device.empty(num_nodes, index)
    matrix = (np.int64(num_nodes), np.int32(MOST_REACHED), np.float64(theta), scales)
    args: Any = (*matrix, nodes.indptr, nodes.indices, nodes.data, aggregates, is_smoothed)
    types, threads = (nodes.dtype, index, width, 0), num_nodes * width
    _SOURCE.launch(device, "reach_aggregates", types, threads, (*args, sizes, None, None))
    indptr, nnz = row_pointers(device, sizes)  # synchronizes
    pattern = NodePattern(indptr, device.empty(nnz, indptr.dtype), is_smoothed.view(np.bool_))
    if indptr.dtype != index:
        nodes = nodes.with_index_dtype(indptr.dtype)
        args = (*matrix, nodes.indptr, nodes.indices, nodes.data, aggregates, is_smoothed)
    types = (nodes.dtype, indptr.dtype, width, 1)
    _SOURCE.launch(device, "reach_aggregates", types, threads, (*args, None, indptr, pattern.indices))
    return pattern


def expand_pattern(device: Device, indptr: Array, indices: Array, block_size: int, k: int) -> tuple[Array, Array]:
    """Repeat each row of the pattern for each unknown of the node."""
    if block_size == k == 1:
        return indptr, indices
    num_nodes, nnz = int(indptr.size) - 1, int(indices.size) * block_size * k
    index = indices.dtype if nnz <= MAX_INT32 else np.dtype(np.int64)
    if not num_nodes:
        return device.xp.zeros(1, index), device.empty(0, index)
    out_indptr, out_indices = device.empty(num_nodes * block_size + 1, index), device.empty(nnz, index)
    width = WIDTHS[nnz > _SMALL_AGGREGATES * num_nodes]
    options = (np.int64(num_nodes), np.int32(block_size), np.int32(k))
    args: Any = (*options, indptr, indices, out_indptr, out_indices)
    _SOURCE.launch(device, "expand_pattern", (indices.dtype, index, width), num_nodes * width, args)
    return out_indptr, out_indices


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
    """Return the values of the prolongator. Each lane sums one value."""
    k, index = int(tentative.shape[1]), csr.indices.dtype
    if pattern.indices.dtype != index:
        csr, nodes, index = csr.with_index_dtype(np.int64), nodes.with_index_dtype(np.int64), np.dtype(np.int64)
    num_entries = int(pattern.indices.size) * block_size * k
    values, mean = device.empty(num_entries, csr.dtype), num_entries / max(csr.num_rows, 1)
    width = _ROW_WIDTHS[sum(mean > length for length in _ROW_LENGTHS)]
    types = (csr.dtype, nodes.dtype, int(block_size > 1 or k > 1), index, width)
    options = (np.int64(csr.num_rows), np.int32(block_size), np.int32(k), np.float64(theta), np.float64(omega), scales)
    matrices = (csr.indptr, csr.indices, csr.data, nodes.indptr, nodes.indices, nodes.data)
    reached = (pattern.indptr, pattern.indices, pattern.is_smoothed.view(np.uint8))
    args: Any = (*options, *matrices, *reached, aggregates, tentative, values)
    _SOURCE.launch(device, "smooth_rows", types, csr.num_rows * width, args)
    return values
