"""Colours and wavefronts of rows (contract: `gsparse.kernels.relaxation`).

One thread colours the rows one after the other, in the order of their priorities: the result is that of the GPU, whose
threads wait for the neighbours of higher priority.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.cpu.jit import jitted

# Bits of a priority below the logarithm of the number of neighbours.
_HASH_BITS = 26


def color_rows(device: Device, csr: Csr, transposed: Csr | None) -> Array:
    """Sort rows by falling priority, and give each of them the first free colour."""
    others = csr if transposed is None else transposed
    graph = csr.indptr, csr.indices, others.indptr, others.indices, transposed is not None
    priorities = np.empty(csr.num_rows, np.uint32)
    _find_priorities(*graph, priorities)
    order = np.argsort(~priorities, kind="stable")
    colors = np.full(csr.num_rows, -1, np.int32)
    _color(*graph, order, np.full(csr.num_rows + 1, -1, np.int64), colors)
    return colors


@jitted
def _find_priorities(
    indptr: Array, indices: Array, other_indptr: Array, other_indices: Array, has_others: bool, priorities: Array
) -> None:
    """Compute the logarithm of the number of neighbours, and 26 bits of a hash of the row (splitmix64's finalizer)."""
    for row in range(priorities.size):
        count = indptr[row + 1] - indptr[row]
        if has_others:
            count += other_indptr[row + 1] - other_indptr[row]
        bits = 0
        while (np.int64(1) << bits) < count:
            bits += 1
        h = np.uint64(row) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = (h ^ (h >> np.uint64(31))) >> np.uint64(64 - _HASH_BITS)
        priorities[row] = np.uint32((np.uint64(bits) << np.uint64(_HASH_BITS)) | h)


@jitted
def _color(
    indptr: Array,
    indices: Array,
    other_indptr: Array,
    other_indices: Array,
    has_others: bool,
    order: Array,
    marks: Array,
    colors: Array,
) -> None:
    """Color rows in this order; ``marks[c]`` is the last row with a neighbour of colour c."""
    for row in order:
        for k in range(indptr[row], indptr[row + 1]):
            if colors[indices[k]] >= 0:
                marks[colors[indices[k]]] = row
        if has_others:
            for k in range(other_indptr[row], other_indptr[row + 1]):
                if colors[other_indices[k]] >= 0:
                    marks[colors[other_indices[k]]] = row
        color = 0
        while marks[color] == row:
            color += 1
        colors[row] = color


def order_wavefronts(csr: Csr, transposed: Csr | None, window: int) -> Levels:
    """Group the rows of a host matrix so that a sweep over the groups nearly is a sweep in natural order.

    The wavefront of a row comes after those of all earlier rows that it is joined with. Wavefronts w, w + window,
    w + 2·window and so on form group w, because rows of different wavefronts are seldom joined over such a distance;
    a row for which that happens moves to a later wavefront. Within `window` wavefronts the order is the natural one.

    Parameters
    ----------
    csr, transposed : Csr
        A matrix on the host, and its transpose if its structure is not symmetric.
    window : int
        Largest number of groups. It is doubled if some row has too many neighbours for so few groups.

    Returns
    -------
    Levels
        On the host.
    """
    others = csr if transposed is None else transposed
    graph = csr.indptr, csr.indices, others.indptr, others.indices, transposed is not None
    waves = np.empty(csr.num_rows, np.int64)
    while not _find_waves(*graph, np.full(window, -1, np.int64), waves):
        window *= 2
    groups = waves % window
    bounds: npt.NDArray[np.int64] = np.zeros(int(groups.max(initial=-1)) + 2, np.int64)
    np.cumsum(np.bincount(groups), out=bounds[1:])
    return Levels(np.argsort(groups, kind="stable").astype(csr.indptr.dtype), bounds)


@jitted
def _find_waves(
    indptr: Array,
    indices: Array,
    other_indptr: Array,
    other_indices: Array,
    has_others: bool,
    marks: Array,
    waves: Array,
) -> bool:
    """Find the wavefront of each row; return False if a row has a neighbour in every group."""
    window = marks.size
    for row in range(waves.size):
        wave = np.int64(0)
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] < row:
                wave = max(wave, waves[indices[k]] + 1)
                marks[waves[indices[k]] % window] = row
        if has_others:
            for k in range(other_indptr[row], other_indptr[row + 1]):
                if other_indices[k] < row:
                    wave = max(wave, waves[other_indices[k]] + 1)
                    marks[waves[other_indices[k]] % window] = row
        last = wave + window
        while wave < last and marks[wave % window] == row:
            wave += 1
        if wave == last:
            return False
        waves[row] = wave
    return True
