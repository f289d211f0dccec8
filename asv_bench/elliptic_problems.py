"""Discretized differential equations and graphs, made on the host, on which multigrid is tested and measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.linalg.multigrid.options import rigid_body_modes

__all__ = [
    "EllipticProblem",
    "checkerboard",
    "convection_diffusion",
    "diffusion",
    "elasticity",
    "elliptic_problems",
    "graph_laplacian",
    "lognormal",
    "poisson",
    "rotated_diffusion",
    "shifted_helmholtz",
]

HostArray = npt.NDArray[Any]


@dataclass(frozen=True)
class EllipticProblem:
    """A linear system for multigrid.

    Attributes
    ----------
    name : str
    make : callable
        Returns the matrix, and the arguments of `amg` that describe it: `B`, `block_size` and `symmetry`.
    solver : {"cg", "gmres"}
    singular : bool
        Whether constants are in the null space, so that the right-hand side must have a mean of 0.
    """

    name: str
    make: Callable[[], tuple[sp.csr_array, dict[str, Any]]]
    solver: str = "cg"
    singular: bool = field(default=False)


def poisson(n: int, points: int) -> sp.csr_array:
    """Return the Laplacian on a square (stencil of 5 or 9 points) or cube (7 or 27), with n grid points a side."""
    line, dimensions = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)), 2 if points in (5, 9) else 3
    if points in (5, 7):
        S = line
        for _ in range(dimensions - 1):
            S = sp.kronsum(S, line)
        return _canonical(S)
    near = sp.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(n, n))
    S = near
    for _ in range(dimensions - 1):
        S = sp.kron(S, near)
    return _canonical(points * sp.eye_array(n**dimensions) - S)


def diffusion(coefficients: HostArray, anisotropy: tuple[float, ...] | None = None, *, neumann: bool = False) -> Any:
    """Return the finite volume matrix of -div(k grad u) on a rectangular grid, with harmonic means between cells.

    Parameters
    ----------
    coefficients : array, of two or three dimensions
        k in each cell.
    anisotropy : tuple of float, optional
        A factor of k for each axis.
    neumann : bool
        Whether no flux leaves the domain; by default u is 0 on its boundary.

    Examples
    --------
    >>> import numpy
    >>> diffusion(numpy.ones((1, 3))).toarray()
    array([[ 7., -1.,  0.],
           [-1.,  6., -1.],
           [ 0., -1.,  7.]])
    """
    shape, k = coefficients.shape, coefficients.reshape(-1).astype(np.float64)
    cells = np.arange(k.size).reshape(shape)
    diagonal, parts = np.zeros(k.size), []
    for axis in range(len(shape)):
        factor = 1.0 if anisotropy is None else anisotropy[axis]
        low, high = (np.delete(cells, end, axis).reshape(-1) for end in (-1, 0))
        flow = factor * 2 * k[low] * k[high] / (k[low] + k[high])
        parts.append((low, high, -flow))
        for side in (low, high):
            diagonal += np.bincount(side, flow, k.size)
        for end in () if neumann else (0, -1):
            outer = np.take(cells, [end], axis).reshape(-1)
            diagonal += np.bincount(outer, factor * 2 * k[outer], k.size)
    low, high, flow = (np.concatenate(part) for part in zip(*parts, strict=True))
    upper = sp.coo_array((flow, (low, high)), shape=(k.size, k.size))
    return _canonical(upper + upper.T + sp.diags_array(diagonal))


def checkerboard(n: int, dimensions: int, width: int, jump: float = 1e6) -> HostArray:
    """Return coefficients that jump between 1 and `jump`, in squares or cubes of `width` cells a side."""
    fields = np.indices((n,) * dimensions) // width
    return np.where(fields.sum(axis=0) % 2, 1.0, jump)


def lognormal(n: int, dimensions: int, deviation: float = 3.0) -> HostArray:
    """Return independent coefficients whose logarithms are normally distributed."""
    values: HostArray = np.exp(deviation * np.random.default_rng(0).standard_normal((n,) * dimensions))
    return values


def rotated_diffusion(n: int, epsilon: float, angle: float) -> sp.csr_array:
    """Return bilinear finite elements for diffusion that is 1 along a direction and `epsilon` across it.

    The direction has the angle `angle`, in radians, to the first axis of the grid. Unknowns are numbered along the
    second one first.
    """
    c, s = np.cos(angle), np.sin(angle)
    a, b, d = c * c + epsilon * s * s, (1 - epsilon) * c * s, s * s + epsilon * c * c
    stencil = np.array(
        [
            [-a - d - 3 * b, 2 * d - 4 * a, -a - d + 3 * b],
            [2 * a - 4 * d, 8 * a + 8 * d, 2 * a - 4 * d],
            [-a - d + 3 * b, 2 * d - 4 * a, -a - d - 3 * b],
        ]
    )
    rows = [sp.diags_array(list(row / 6), offsets=[-1, 0, 1], shape=(n, n)) for row in stencil]
    shifts = [sp.eye_array(n, k=k) for k in (-1, 0, 1)]
    return _canonical(sum(sp.kron(shift, row) for shift, row in zip(shifts, rows, strict=True)))


def convection_diffusion(n: int, peclet: float, *, recirculating: bool = False) -> sp.csr_array:
    """Return upwind differences for convection and diffusion on a square.

    The flow is constant, of speed 1, or goes round, with a speed of up to 1. Diffusion is the reciprocal of the Péclet
    number.
    """
    h = 1 / (n + 1)
    y, x = np.meshgrid(h * np.arange(1, n + 1), h * np.arange(1, n + 1), indexing="ij")
    u, v = np.full((n, n), np.cos(0.4)), np.full((n, n), np.sin(0.4))
    if recirculating:
        u, v = 4 * x * (x - 1) * (1 - 2 * y), -4 * y * (y - 1) * (1 - 2 * x)
    cells, spread = np.arange(n * n).reshape(n, n), 1 / (peclet * h * h)
    S = sp.diags_array(4 * spread + (abs(u) + abs(v)).reshape(-1) / h)
    for axis, speed in ((1, u), (0, v)):
        low, high = (np.delete(cells, end, axis).reshape(-1) for end in (-1, 0))
        for here, there, upwind in ((high, low, np.maximum(speed, 0)), (low, high, np.maximum(-speed, 0))):
            values = -spread - upwind.reshape(-1)[here] / h
            S = S + sp.coo_array((values, (here, there)), shape=S.shape)
    return _canonical(S)


def shifted_helmholtz(n: int) -> sp.csr_array:
    """Return -Δ - (1 - 0.5i)·k² on a unit square, four waves long: it is complex and symmetric."""
    k = 4 * 2 * np.pi
    return _canonical(poisson(n, 5) * complex((n + 1) ** 2) - (1 - 0.5j) * k * k * sp.eye_array(n * n))


def graph_laplacian(S: Any) -> sp.csr_array:
    """Return D - W for a graph with an edge of weight 1 wherever S or its transpose has an entry."""
    W = sp.csr_array(abs(sp.csr_array(S)) + abs(sp.csr_array(S)).T)
    W.setdiag(0)
    W.eliminate_zeros()
    W.data[:] = 1
    return _canonical(sp.diags_array(np.asarray(W.sum(axis=1)).reshape(-1)) - W)


def elasticity(cells: tuple[int, int, int], poisson_ratio: float = 0.3) -> tuple[sp.csr_array, HostArray]:
    """Return the stiffness of a box of trilinear elements that is clamped at x = 0, and the coordinates of its nodes.

    Parameters
    ----------
    cells : (int, int, int)
        Number of cubes along x, y and z.
    poisson_ratio : float

    Returns
    -------
    csr_array, shape (3 * num_nodes, 3 * num_nodes)
        With all entries of blocks of 3 by 3, zeros included. The nodes follow each other along x.
    array, shape (num_nodes, 3)
    """
    shape = tuple(length + 1 for length in cells[::-1])
    offsets = list(itertools.product((-1, 0, 1), repeat=3))
    # blocks[o, z, y, x] joins the node (z, y, x) with that at (z, y, x) + offsets[o], as if the box went on.
    blocks, K = np.zeros((27, *shape, 3, 3)), _stiffness_of_cube(poisson_ratio)
    corners = list(itertools.product((0, 1), repeat=3))
    for (i, one), (j, two) in itertools.product(enumerate(corners), repeat=2):
        offset = offsets.index(tuple(b - a for a, b in zip(one, two, strict=True)))
        inside = tuple(slice(a, length - 1 + a) for a, length in zip(one, shape, strict=True))
        blocks[offset][inside] += K[3 * i : 3 * i + 3, 3 * j : 3 * j + 3]
    free = np.zeros(shape, bool)
    free[:, :, 1:] = True
    numbers = np.where(free, np.cumsum(free).reshape(shape) - 1, -1)
    padded = np.pad(numbers, 1, constant_values=-1)
    columns = np.stack([padded[1 + z : 1 + z + shape[0], 1 + y : 1 + y + shape[1], 1 + x : 1 + x + shape[2]][free]
                        for z, y, x in offsets], axis=1)  # fmt: skip
    has = columns >= 0
    indptr = np.concatenate([[0], np.cumsum(has.sum(axis=1))])
    data = np.moveaxis(blocks[:, free], 0, 1)[has]
    size = 3 * int(free.sum())
    S = sp.bsr_array((data, columns[has].astype(np.int32), indptr.astype(np.int32)), shape=(size, size))
    return sp.csr_array(S.tocsr()), np.argwhere(free)[:, ::-1].astype(np.float64)


def _stiffness_of_cube(poisson_ratio: float) -> HostArray:
    """Return the stiffness matrix of a unit cube of Young's modulus 1, by Gauss's rule with two points an axis."""
    shear = 0.5 / (1 + poisson_ratio)
    lame = poisson_ratio / ((1 + poisson_ratio) * (1 - 2 * poisson_ratio))
    C = np.zeros((6, 6))
    C[:3, :3], C[range(3), range(3)], C[range(3, 6), range(3, 6)] = lame, lame + 2 * shear, shear
    signs = np.array([[x, y, z] for z in (-1, 1) for y in (-1, 1) for x in (-1, 1)])
    K = np.zeros((24, 24))
    for point in signs / np.sqrt(3):
        factors = 1 + signs * point
        strains = np.zeros((6, 24))
        for corner, (a, b, c) in enumerate(factors):
            x, y, z = signs[corner] * (b * c, a * c, a * b) / 4
            strains[:, 3 * corner : 3 * corner + 3] = [[x, 0, 0], [0, y, 0], [0, 0, z], [y, x, 0], [0, z, y], [z, 0, x]]
        K += strains.T @ C @ strains / 8
    return K


def _canonical(S: Any) -> sp.csr_array:
    S = sp.csr_array(S)
    S.sum_duplicates()
    S.eliminate_zeros()
    return S


# ------------------------------------------------------------------------------------------------------- the list


def elliptic_problems(size: int) -> Iterator[EllipticProblem]:
    """List problems with about size² rows in two dimensions, and as many in three."""
    cube = max(4, round(size ** (2 / 3)))
    plain = {
        **{f"{points}-point {size}²": partial(poisson, size, points) for points in (5, 9)},
        **{f"{points}-point {cube}³": partial(poisson, cube, points) for points in (7, 27)},
        "anisotropy 1:1000 along an axis": lambda: diffusion(np.ones((size, size)), (1e-3, 1.0)),
        "anisotropy 1:1000, rotated by 45°": partial(rotated_diffusion, size, 1e-3, np.pi / 4),
        "anisotropy 1:1000 in 3-D": lambda: diffusion(np.ones((cube,) * 3), (1e-3, 1.0, 1.0)),
        "jumps of 10⁶, each cell": lambda: diffusion(checkerboard(size, 2, 1)),
        "jumps of 10⁶, squares of 8": lambda: diffusion(checkerboard(size, 2, 8)),
        "jumps of 10⁶, cubes of 4": lambda: diffusion(checkerboard(cube, 3, 4)),
        "log-normal, 2-D": lambda: diffusion(lognormal(size, 2)),
        "log-normal, 3-D": lambda: diffusion(lognormal(cube, 3)),
    }
    for name, make in plain.items():
        yield EllipticProblem(name, lambda make=make: (make(), {}))  # type: ignore[misc]
    yield EllipticProblem("Neumann boundary", lambda: (diffusion(np.ones((size, size)), neumann=True), {}), "cg", True)
    side = max(3, round(cube / 3 ** (1 / 3)))
    boxes = {
        "ν = 0.3": ((side,) * 3, 0.3),
        "ν = 0.49": ((side,) * 3, 0.49),
        "a thin beam": ((8 * side, side // 2 + 1, 3), 0.3),
    }
    for name, (cells, ratio) in boxes.items():
        yield EllipticProblem(f"elasticity, {name}", partial(_with_modes, cells, ratio))
    for peclet in (1, 10, 100, 1000):
        make = partial(convection_diffusion, size, float(peclet))
        yield EllipticProblem(f"convection, Péclet {peclet}", lambda make=make: (make(), {}), "gmres")  # type: ignore[misc]
        make = partial(make, recirculating=True)
        name = f"recirculating flow, Péclet {peclet}"
        yield EllipticProblem(name, lambda make=make: (make(), {}), "gmres")  # type: ignore[misc]
    yield EllipticProblem(
        "complex shifted Helmholtz", lambda: (shifted_helmholtz(size), {"symmetry": "symmetric"}), "gmres"
    )


def _with_modes(cells: tuple[int, int, int], ratio: float) -> tuple[sp.csr_array, dict[str, Any]]:
    S, coordinates = elasticity(cells, ratio)
    return S, {"B": rigid_body_modes(coordinates), "block_size": 3}
