"""Elasticity on a mesh of tetrahedra without a regular structure: displaced nodes, in random order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.bench.peers import SEED

__all__ = ["tetrahedral_elasticity"]

HostArray = npt.NDArray[Any]
# The largest displacement of a node along each axis, in edges of a cube. Larger ones could turn a tetrahedron over.
_DISPLACEMENT = 0.15
# The six tetrahedra of a cube have these corners: 0, the end of an edge, the end of a diagonal of a face, the opposite
# corner. Corner k has the coordinates (k & 1, k >> 1 & 1, k >> 2).
_PATHS = [(0, a, a | b, 7) for a, b in itertools.permutations((1, 2, 4), 2)]


def tetrahedral_elasticity(cells: int, poisson_ratio: float = 0.3) -> tuple[sp.bsr_array, HostArray]:
    """Return the stiffness of a cube of linear tetrahedra that is clamped at x = 0, and the coordinates of its nodes.

    The unit cube is divided into cells³ cubes, and each of these into six tetrahedra. Nodes inside are displaced at
    random, and all nodes are in random order. Young's modulus is 1.

    Parameters
    ----------
    cells : int
        Number of cubes along each axis.
    poisson_ratio : float

    Returns
    -------
    bsr_array, shape (3 * num_nodes, 3 * num_nodes)
        With blocks of 3 by 3, all of them full and sorted, and ``num_nodes = cells * (cells + 1)**2``.
    array, shape (num_nodes, 3)

    Examples
    --------
    >>> S, coordinates = tetrahedral_elasticity(2)
    >>> S.shape, S.blocksize, coordinates.shape, bool(abs(S - S.T).max() < 1e-14)
    ((54, 54), (3, 3), (18, 3), True)
    """
    nodes = _displaced_nodes(cells)
    steps = (-1, 0, 1)
    offsets = [(z, y, x) for z in steps for y in steps for x in steps if max(x, y, z) - min(x, y, z) < 2]
    blocks = _blocks_by_offset(nodes, offsets, poisson_ratio)
    return _in_random_order(nodes, offsets, blocks)


def _displaced_nodes(cells: int) -> HostArray:
    """Return the coordinates of the nodes, of shape (cells + 1, cells + 1, cells + 1, 3), by z, y and x."""
    line = np.linspace(0.0, 1.0, cells + 1)
    z, y, x = np.meshgrid(line, line, line, indexing="ij")
    nodes = np.stack([x, y, z], axis=-1)
    inside = nodes[1:-1, 1:-1, 1:-1]
    inside += np.random.default_rng(SEED).uniform(-_DISPLACEMENT, _DISPLACEMENT, inside.shape) / cells
    return nodes


def _blocks_by_offset(nodes: HostArray, offsets: list[tuple[int, int, int]], poisson_ratio: float) -> HostArray:
    """Add the stiffness of all tetrahedra up: blocks[o, z, y, x] joins a node with the one at ``offsets[o]`` from it.

    The matrix of a tetrahedron with the volume V joins its corners i and j, whose linear functions have the gradients
    g and h, by V·(λ·g·hᵀ + μ·h·gᵀ + μ·(g·h)·I).
    """
    cells = len(nodes) - 1
    shear = 0.5 / (1 + poisson_ratio)
    lame = poisson_ratio / ((1 + poisson_ratio) * (1 - 2 * poisson_ratio))
    blocks = np.zeros((len(offsets), *nodes.shape[:3], 3, 3))
    for path in _PATHS:
        corners = [(corner >> 2, corner >> 1 & 1, corner & 1) for corner in path]
        parts = [tuple(slice(a, a + cells) for a in corner) for corner in corners]
        gradients, volumes = _gradients([nodes[part] for part in parts])
        for i, j in itertools.combinations_with_replacement(range(4), 2):
            g, h = gradients[i], gradients[j]
            block = g[..., :, None] * (lame * volumes[..., None] * h)[..., None, :]
            block += h[..., :, None] * (shear * volumes[..., None] * g)[..., None, :]
            block[..., range(3), range(3)] += (shear * volumes * np.einsum("...a,...a", g, h))[..., None]
            z, y, x = (b - a for a, b in zip(corners[i], corners[j], strict=True))
            blocks[offsets.index((z, y, x))][parts[i]] += block
            if i != j:
                blocks[offsets.index((-z, -y, -x))][parts[j]] += block.swapaxes(-1, -2)
    return blocks


def _gradients(corners: list[HostArray]) -> tuple[list[HostArray], HostArray]:
    """Return the gradients of the four linear functions of tetrahedra, and their volumes."""
    a, b, c = (corner - corners[0] for corner in corners[1:])
    normals = np.cross(b, c), np.cross(c, a), np.cross(a, b)
    determinants = np.einsum("...a,...a", a, normals[0])
    gradients = [normal / determinants[..., None] for normal in normals]
    return [-(gradients[0] + gradients[1] + gradients[2]), *gradients], abs(determinants) / 6


def _in_random_order(
    nodes: HostArray, offsets: list[tuple[int, int, int]], blocks: HostArray
) -> tuple[sp.bsr_array, HostArray]:
    """Return the matrix of the nodes that are not clamped, in random order, and their coordinates."""
    shape = nodes.shape[:3]
    is_free = np.zeros(shape, bool)
    is_free[:, :, 1:] = True
    free = np.flatnonzero(is_free)
    order = free[np.random.default_rng(SEED).permutation(free.size)]  # the node of each row of blocks
    numbers = np.full(nodes[..., 0].size, free.size)  # larger than those of all rows for clamped nodes
    numbers[order] = np.arange(order.size)
    padded = np.pad(numbers.reshape(shape), 1, constant_values=order.size)
    z, y, x = np.unravel_index(order, shape)
    columns = np.stack([padded[z + 1 + o[0], y + 1 + o[1], x + 1 + o[2]] for o in offsets], axis=1)
    places = np.argsort(columns, axis=1)
    columns = np.take_along_axis(columns, places, axis=1)
    has = columns < order.size
    data = blocks.reshape(len(offsets), -1, 3, 3)[places[has], np.repeat(order, has.sum(axis=1))]
    indptr = np.concatenate([[0], np.cumsum(has.sum(axis=1))]).astype(np.int32)
    size = 3 * order.size
    S = sp.bsr_array((data, columns[has].astype(np.int32), indptr), shape=(size, size))
    return S, nodes.reshape(-1, 3)[order]
