"""Sweeps, projections, and colours and wavefronts of rows (contract: `gsparse.kernels.relaxation`).

Without `levels`, the calling thread visits all rows in order. With `levels`, the groups are visited one after the
other, and the blocks of each group are divided evenly among the threads. One thread colours the rows in the order of
their priorities. The colours are the same as on a GPU, where a thread waits for the neighbours of higher priority.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr, Levels
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.relaxation import FROM_ZERO, NOT_THE_FIRST, Project, Sweep

# Number of low bits of a priority that hold a hash. The higher bits hold the logarithm of the number of neighbours.
_HASH_BITS = 26


# The number of the first block of a group, and one more than the number of the last block.
Group = tuple[int, int]
Three = tuple[Array, Array, Array]


class VisitedRows(NamedTuple):
    """The rows of a matrix in the order in which a sweep visits them.

    The sweep visits row ``order[p]`` of the system as number p. The entries of this row are at positions ``indptr[p]``
    to ``indptr[p + 1]``. If a sweep visits blocks of rows, `order` holds numbers of blocks.
    """

    order: Array
    indptr: Array
    indices: Array
    data: Array


def bind_sweep(
    device: Device, rows: Csr, levels: Levels | None, weights: Array, columns: int, backward: bool, start: str
) -> Sweep:
    """Bind a sweep. A separate loop visits blocks of one row."""
    num_blocks, size = weights.shape[:2]
    order = np.arange(num_blocks, dtype=rows.indptr.dtype) if levels is None else levels.order
    loop: Callable[..., None] = _sweep_rows if size == 1 else _sweep_blocks
    visited = (order, rows.indptr, rows.indices, rows.data)
    factors = weights.reshape(-1) if size == 1 else np.ascontiguousarray(weights)
    residuals = np.empty(num_blocks * size if size > 1 else 0, rows.dtype)
    groups = _groups(rows, levels, size, num_blocks, backward)
    groups = groups[1:] if start == NOT_THE_FIRST and levels is not None else groups

    def sweep(x: Array, b: Array) -> None:
        if start == FROM_ZERO:
            x[...] = 0
        for source, target in zip(b.reshape(columns, -1), x.reshape(columns, -1), strict=True):
            vectors = (source, target) if size == 1 else ((residuals, source, target),)
            _run(loop, groups, (visited, factors, *vectors, backward), levels is None)

    return sweep


def bind_projections(
    device: Device, rows: Csr, levels: Levels | None, weights: Array, columns: int, backward: bool, of_residual: bool
) -> Project:
    """Bind projections. Each call computes one column of the vectors after the other."""
    order = np.arange(rows.num_rows, dtype=rows.indptr.dtype) if levels is None else levels.order
    visited, factors = (order, rows.indptr, rows.indices, rows.data), weights.reshape(-1)
    groups = _groups(rows, levels, 1, rows.num_rows, backward)

    def project(v: Array, other: Array) -> None:
        for target, values in zip(v.reshape(columns, -1), other.reshape(columns, -1), strict=True):
            vectors = (factors, target, values)
            _run(_project_rows, groups, (visited, vectors, backward, of_residual), levels is None)

    return project


def _groups(rows: Csr, levels: Levels | None, size: int, num_blocks: int, backward: bool) -> list[tuple[int, int, int]]:
    """Return, for each group in the order of the sweep, its first block, its last block plus one, and its cost."""
    bounds = np.array([0, num_blocks]) if levels is None else levels.bounds
    ends = np.minimum(bounds * size, rows.num_rows)
    costs = np.diff(rows.indptr[ends].astype(np.int64)) + size * np.diff(bounds)
    groups = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), costs.tolist(), strict=True))
    return groups[::-1] if backward else groups


def _run(loop: Callable[..., None], groups: list[tuple[int, int, int]], args: Any, in_order: bool) -> None:
    for first, last, cost in groups:
        if in_order:
            loop(0, 1, (first, last), *args)
        else:
            run_parts(loop, cost, (first, last), *args)


@inlined
def _share(part: int, num_parts: int, group: Group) -> Group:
    """Return the range of blocks of a group that a part visits."""
    first, last = group
    return first + part * (last - first) // num_parts, first + (part + 1) * (last - first) // num_parts


@inlined
def _visited(step: int, begin: int, end: int, backward: bool) -> int:
    """Return the number of the block that a part visits in a step."""
    return end - 1 - step if backward else begin + step


@inlined
def _minus_row(total: Any, place: Any, rows: VisitedRows, x: Array) -> Any:
    """Return `total` minus the product of a row and x. The sweep visits this row as number `place`."""
    for k in range(rows.indptr[place], rows.indptr[place + np.uint64(1)]):
        total -= rows.data[np.uint64(k)] * x[np.uint64(rows.indices[np.uint64(k)])]
    return total


@compiled
def _sweep_rows(
    part: int, num_parts: int, group: Group, visited: VisitedRows, weights: Array, b: Array, x: Array, backward: bool
) -> None:
    rows = VisitedRows(*visited)
    begin, end = _share(part, num_parts, group)
    for step in range(end - begin):
        place = np.uint64(_visited(step, begin, end, backward))
        row = np.uint64(rows.order[place])
        x[row] += weights[place] * _minus_row(b[row], place, rows, x)


@compiled
def _sweep_blocks(
    part: int, num_parts: int, group: Group, visited: VisitedRows, weights: Array, vectors: Three, backward: bool
) -> None:
    """For each block, compute the residuals of its rows with the old x. Then add W times these residuals to x."""
    residuals, b, x = vectors
    size = weights.shape[1]
    rows = VisitedRows(*visited)
    begin, end = _share(part, num_parts, group)
    for step in range(end - begin):
        block = _visited(step, begin, end, backward)
        place, row = np.uint64(block * size), np.uint64(np.int64(rows.order[block]) * size)
        count = np.uint64(min(size, x.size - np.int64(row)))  # the last block may have fewer rows
        for i in range(count):
            residuals[place + i] = _minus_row(b[row + i], place + i, rows, x)
        for i in range(count):
            for j in range(count):
                x[row + i] += weights[np.uint64(block), i, j] * residuals[place + j]


@compiled
def _project_rows(
    part: int, num_parts: int, group: Group, visited: VisitedRows, vectors: Three, backward: bool, of_residual: bool
) -> None:
    weights, v, other = vectors
    rows = VisitedRows(*visited)
    begin, end = _share(part, num_parts, group)
    for step in range(end - begin):
        place = np.uint64(_visited(step, begin, end, backward))
        row = np.uint64(rows.order[place])
        right = weights[place] * 0 if of_residual else other[row]
        total = _minus_row(right, place, rows, v) * weights[place]
        for k in range(rows.indptr[place], rows.indptr[place + np.uint64(1)]):
            v[np.uint64(rows.indices[np.uint64(k)])] += total * np.conj(rows.data[np.uint64(k)])
        if of_residual:
            other[row] -= total


def color_rows(device: Device, graph: Csr) -> Array:
    """Sort the rows by descending priority, and give each row the first colour that none of its neighbours has."""
    order = np.argsort(~_priorities(graph), kind="stable")
    colors = np.full(graph.num_rows, -1, np.int32)
    _color(graph.indptr, graph.indices, order, np.full(graph.num_rows + 1, -1, np.int64), colors)
    return colors


def _priorities(graph: Csr) -> npt.NDArray[np.uint32]:
    """Return priorities: the logarithm of the number of neighbours, followed by 26 bits of a hash (splitmix64)."""
    _, logarithms = np.frexp(np.maximum(np.diff(graph.indptr) - 1, 0).astype(np.float64))
    h = np.arange(graph.num_rows, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    h = (h ^ (h >> np.uint64(31))) >> np.uint64(64 - _HASH_BITS)
    priorities: npt.NDArray[np.uint32] = (logarithms.astype(np.uint64) << np.uint64(_HASH_BITS) | h).astype(np.uint32)
    return priorities


@jitted
def _color(indptr: Array, indices: Array, order: Array, marks: Array, colors: Array) -> None:
    """Colour the rows in `order`. ``marks[c]`` is the last visited row that had a neighbour of colour c."""
    for row in order:
        for k in range(indptr[row], indptr[row + 1]):
            if colors[indices[k]] >= 0:
                marks[colors[indices[k]]] = row
        color = 0
        while marks[color] == row:
            color += 1
        colors[row] = color


def order_wavefronts(graph: Csr, window: int) -> Levels:
    """Group the rows of a host matrix so that a sweep over the groups is nearly a sweep in natural order.

    Each row gets a wavefront, a number greater than the wavefronts of all earlier neighbours. Group w consists of the
    wavefronts w, w + window, w + 2·window, .... If two neighbours would be in one group, which is rare, the later row
    gets the smallest higher wavefront whose group contains none of its neighbours. The order is natural within `window`
    wavefronts.

    Parameters
    ----------
    graph : Csr
        A matrix on the host with a symmetric structure. Entries may be repeated.
    window : int
        Largest number of groups. It is doubled if a row has neighbours in all groups.

    Returns
    -------
    Levels
        The groups, as host arrays.
    """
    waves = np.empty(graph.num_rows, np.int64)
    while not _find_waves(graph.indptr, graph.indices, np.full(window, -1, np.int64), waves):
        window *= 2
    groups = waves % window
    bounds: npt.NDArray[np.int64] = np.zeros(int(groups.max(initial=-1)) + 2, np.int64)
    np.cumsum(np.bincount(groups), out=bounds[1:])
    return Levels(np.argsort(groups, kind="stable").astype(graph.indptr.dtype), bounds)


@jitted
def _find_waves(indptr: Array, indices: Array, marks: Array, waves: Array) -> bool:
    """Find the wavefront of each row; return False if a row has a neighbour in every group."""
    window = marks.size
    for row in range(waves.size):
        wave = np.int64(0)
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] < row:
                wave = max(wave, waves[indices[k]] + 1)
                marks[waves[indices[k]] % window] = row
        last = wave + window
        while wave < last and marks[wave % window] == row:
            wave += 1
        if wave == last:
            return False
        waves[row] = wave
    return True
