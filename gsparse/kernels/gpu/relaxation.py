"""Sweeps, projections and colours (kernels: `src/relaxation.cu`).

The contract is in `gsparse.kernels.relaxation`. A group with many rows is visited by a launch of its own. Consecutive
small groups are visited by one launch of a single block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.device.launching import Passed
from gsparse.errors import ShapeError
from gsparse.formats import Csr, Levels
from gsparse.kernels.gpu.launch import FLOATS, Source, check_columns, constant, expression
from gsparse.kernels.relaxation import EVERY_GROUP, FROM_ZERO, Project, Sweep

_SOURCE = Source("relaxation.cu", constant("relaxation.cu", "GS_COLOR_THREADS"))
_THREADS = constant(_SOURCE.file, "GS_SWEEP_THREADS")
# Number of launches between two reads of the number of uncoloured rows. A mesh is coloured by ten to twenty launches.
_ROUNDS = 8
# Numbers of lanes that share a row; _LENGTHS holds the largest mean row length for each. A warp shares a longer row.
_LANES, _LENGTHS = (4, 8), (4, 64)
# A group is visited by one block, without a launch of its own, if this takes the block at most this many passes.
_NARROW_PASSES = 2


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    widths = (*_LANES, lanes)
    return [
        *_SOURCE.variants("begin_sweep", FLOATS, INDEX_DTYPES),
        *_SOURCE.variants("sweep_rows sweep_blocks project_rows", FLOATS, INDEX_DTYPES, widths),
        *_SOURCE.variants("row_priorities color_rows", INDEX_DTYPES),
    ]


def color_rows(device: Device, graph: Csr) -> Array:
    """Return the colours. Launch rounds until all rows are coloured; synchronize after every `_ROUNDS` rounds."""
    xp, index, num_rows = device.xp, graph.indptr.dtype, graph.num_rows
    priorities, colors = device.empty(num_rows, np.uint32), xp.full(num_rows, -1, np.int32)
    _SOURCE.launch(device, "row_priorities", (index,), num_rows, (np.int64(num_rows), graph.indptr, priorities))
    is_done = not num_rows
    while not is_done:
        num_left = xp.zeros(_ROUNDS, np.uint32)
        for count in range(_ROUNDS):
            args = (np.int64(num_rows), graph.indptr, graph.indices, priorities, colors, num_left[count:])
            _SOURCE.launch(device, "color_rows", (index,), num_rows, args)
        is_done = int(num_left[-1]) == 0  # synchronizes
    return colors


def _choose_lanes(device: Device, rows: Csr, size: int) -> int:
    """Return the number of lanes per row, such that a thread block has room for `size` rows."""
    mean, widths = rows.nnz / max(rows.num_rows, 1), (*_LANES, device.lanes)
    best = sum(mean > limit for limit in _LENGTHS)
    lanes = next((width for width in widths[best::-1] if size * width <= _THREADS), 0)
    if not lanes:
        raise ShapeError(f"blocks of at most {_THREADS // _LANES[0]} rows, got {size}: use smaller blocks")
    return lanes


class _Groups:
    """The launches of a sweep over groups of rows, in the order of the sweep.

    Parameters
    ----------
    device : Device
    rows : Csr
    levels : Levels
    size : int
        Number of rows of a block.
    columns : int
    backward : bool
    """

    def __init__(self, device: Device, rows: Csr, levels: Levels, size: int, columns: int, backward: bool) -> None:
        check_columns(columns)
        self.lanes = _choose_lanes(device, rows, size)
        self.slots = _THREADS // self.lanes // size
        self.device, self.rows = device, rows
        self.bounds, self.columns, self.backward = levels.bounds, columns, backward
        self.order = (device.upload(levels.bounds), levels.order)
        self.matrix = (rows.indptr, rows.indices, rows.data)

    def bind(self, name: str, args: tuple[Any, ...], skip: int) -> list[Callable[..., None]]:
        """Bind the launches of a kernel. Each visits a range of groups; the first `skip` groups are left out."""
        kernel = expression(name, self.rows.dtype, self.rows.indices.dtype, self.lanes)
        return [
            self.device.bind_product(_SOURCE.file, kernel, grid, (_THREADS,), (*groups, *args))
            for grid, groups in self._ranges(skip)
        ]

    def _ranges(self, skip: int) -> list[tuple[tuple[int, int], tuple[np.int32, np.int32, np.int32]]]:
        """Return for each launch its grid and a tuple: its first group, the end of its groups, and the step."""
        num_groups = int(self.bounds.size) - 1
        numbers = np.arange(num_groups)[:: -1 if self.backward else 1][skip:]
        if not numbers.size:
            return []
        bounds = np.concatenate([[0], np.cumsum(np.diff(self.bounds)[numbers])])
        ranges, step = [], -1 if self.backward else 1
        for first, last in Levels(None, bounds).runs(_NARROW_PASSES * self.slots):
            blocks = 1 if last - first > 1 else max(1, -(-int(bounds[last] - bounds[first]) // self.slots))
            begin = int(numbers[first])
            groups = (np.int32(begin), np.int32(begin + step * (last - first)), np.int32(step))
            ranges.append(((blocks, self.columns), groups))
        return ranges


def bind_sweep(
    device: Device, rows: Csr, levels: Levels | None, weights: Array, columns: int, backward: bool, start: str
) -> Sweep:
    """Return a sweep. If it starts from x = 0, the first group does not read the matrix."""
    assert levels is not None
    size = int(weights.shape[1])
    groups = _Groups(device, rows, levels, size, columns, backward)
    name = "sweep_rows" if size == 1 else "sweep_blocks"
    sizes = () if size == 1 else (np.int32(size),)
    weights, num_rows = device.xp.ascontiguousarray(weights).reshape(-1), np.int64(rows.num_cols)
    args = (*sizes, *groups.order, *groups.matrix, weights, num_rows, Passed.X, Passed.Y)
    launches = groups.bind(name, args, skip=int(start != EVERY_GROUP))
    if start == FROM_ZERO and num_rows:
        first, last = levels.bounds[-2:] if backward else levels.bounds[:2]
        numbers = (np.int64(rows.num_rows), num_rows, np.int64(first), np.int64(last - first), np.int32(size))
        begin = expression("begin_sweep", rows.dtype, rows.indices.dtype)
        grid = (-(-rows.num_rows // _THREADS), columns)
        args = (*numbers, levels.order, weights, Passed.X, Passed.Y)
        launches.insert(0, device.bind_product(_SOURCE.file, begin, grid, (_THREADS,), args))

    def sweep(x: Array, b: Array) -> None:
        for launch in launches:
            launch(b, x)

    return sweep


def bind_projections(
    device: Device, rows: Csr, levels: Levels | None, weights: Array, columns: int, backward: bool, of_residual: bool
) -> Project:
    """Return projections."""
    assert levels is not None
    groups = _Groups(device, rows, levels, 1, columns, backward)
    sizes = (np.int64(rows.num_rows), np.int32(of_residual))
    args = (*groups.order, *groups.matrix, weights.reshape(-1), *sizes, Passed.X, Passed.Y)
    launches = groups.bind("project_rows", args, skip=0)

    def project(v: Array, other: Array) -> None:
        for launch in launches:
            launch(v, other)

    return project
