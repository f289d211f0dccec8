"""Relaxations x += size·D⁻¹(b − A·x) one after the other: Jacobi, Richardson and Chebyshev are lists of sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.kernels.calls import Call
from gsparse.linalg.operators import Apply, MatrixOperator
from gsparse.linalg.preconditioners.base import Passes
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, first_where

__all__ = ["BoundRelaxation", "Relaxation", "chebyshev_sizes", "largest_eigenvalue"]

# Steps of Lanczos's method for the largest eigenvalue, and what to multiply its estimate, which comes from below, by.
_LANCZOS_STEPS = 12
_SAFETY = 1.1


@dataclass(frozen=True, eq=False)
class Relaxation:
    """What is done at each step.

    Attributes
    ----------
    sizes : tuple of float
        Of the steps.
    inverse_diagonal : array or None
        D⁻¹, on the device; None where it is the identity. (A constant D goes into the sizes: a vector less to read.)
    name : str
        The method that the sizes are of.
    """

    sizes: tuple[float, ...]
    inverse_diagonal: Array | None = None
    name: str = "none"

    def __str__(self) -> str:
        return f"{self.name}, {len(self.sizes)} step{'s' if len(self.sizes) > 1 else ''}" if self.sizes else self.name

    @staticmethod
    def scaled(device: Device, sizes: tuple[float, ...], inverse_diagonal: Array, name: str) -> Relaxation:
        """Make one with a diagonal, or without where all its elements are the same real number. Synchronizes."""
        if not inverse_diagonal.size or first_where(device, inverse_diagonal != inverse_diagonal[0]) is not None:
            return Relaxation(sizes, inverse_diagonal, name)
        factor = complex(inverse_diagonal[0])  # synchronizes
        if factor.imag:
            return Relaxation(sizes, inverse_diagonal, name)
        return Relaxation(tuple(size * factor.real for size in sizes), name=name)


class BoundRelaxation:
    """A relaxation of one matrix, bound to a kind of vectors.

    Traffic in vectors: 3 for the first step from 0 (2 without a diagonal), 6 for any other and 3 for the residual after
    the last, beside what the products read of the matrix.
    """

    def __init__(self, passes: Passes, operator: MatrixOperator, relaxation: Relaxation, adjoint: bool) -> None:
        self._passes, self._sizes = passes, relaxation.sizes
        diagonal = relaxation.inverse_diagonal
        self._scale = {} if diagonal is None else {"d": passes.diagonal(diagonal, adjoint=adjoint)}
        bind: Callable[..., Apply] = operator.bind
        kind = (passes.device, passes.dtype, passes.columns)
        self._multiply = bind(*kind, adjoint=adjoint)
        self._subtract = bind(*kind, adjoint=adjoint, alpha=-1, beta=1)

    def calls(self, x: Array, b: Array, r: Array, *, guess: bool, residual: bool) -> list[Call]:
        """Give the calls that relax x, from 0 where there is no `guess`, and leave b − A·x in r where asked to."""
        sizes = self._sizes if guess else self._sizes or (0.0,)
        found: list[Call] = []
        for step, size in enumerate(sizes):
            if step or guess:
                found.append(partial(self._multiply, x, r))
            name = "relax" if step or guess else "begin"
            name += "_scaled" if self._scale else ""
            leaves = residual and step == len(sizes) - 1
            vectors = {"x": x, "b": b, **self._scale, **({"r": r} if leaves or step or guess else {})}
            found.append(self._passes.bind(name + "_residual" if leaves else name, size, **vectors))
        if residual:
            found += [] if sizes else [self._passes.bind("copy", x=r, b=b)]
            found.append(partial(self._subtract, x, r))
        return found


def chebyshev_sizes(low: float, high: float, degree: int) -> tuple[float, ...]:
    """Give the sizes of steps that damp errors of eigenvalues from `low` to `high` the most: 1 over Chebyshev's roots.

    They are in Leja's order, in which intermediate residuals stay small.
    """
    roots = 0.5 * (high + low) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(degree) + 0.5) / degree)
    return tuple(float(1 / root) for root in in_leja_order(roots))


def in_leja_order(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sort points so that each is where the product of its distances to those before is the largest."""
    left = list(np.sort(points)[::-1])
    found = [left.pop(0)] if left else []
    while left:
        distances = [np.sum(np.log(np.abs(point - np.array(found)) + np.finfo(float).tiny)) for point in left]
        found.append(left.pop(int(np.argmax(distances))))
    return np.array(found)


def largest_eigenvalue(matrix: SquareMatrix, inverse_diagonal: Array) -> float:
    """Bound the largest eigenvalue of D⁻¹A from above, for a Hermitian A and a positive D. Synchronizes.

    The smaller of Gershgorin's bound, which is sure, and Lanczos's estimate and a tenth.
    """
    if not matrix.size:
        return 1.0
    weights = matrix.device.xp.abs(inverse_diagonal)
    sure = float((matrix.row_sums() * weights).max())  # synchronizes
    if not np.isfinite(sure):
        raise FactorizationError("the matrix has values that are not finite: no eigenvalue bounds those of D⁻¹A")
    return min(sure, _SAFETY * _lanczos(matrix, matrix.device.xp.sqrt(weights)))


def _lanczos(matrix: SquareMatrix, scale: Array) -> float:
    """Estimate the largest eigenvalue of A scaled from both sides, from below. Synchronizes."""
    xp, dtype = matrix.device.xp, matrix.dtype
    multiply = matrix.operator.bind(matrix.device, dtype)
    places = xp.arange(1, matrix.size + 1, dtype=np.uint64) * xp.uint64(2654435761)  # (Knuth's hash: no two alike)
    v = ((places % xp.uint64(2**32)).astype(np.float64) / 2**32 - 0.5).astype(dtype)
    v /= xp.linalg.norm(v)
    before, beta = xp.zeros_like(v), 0.0
    alphas, betas = [], []
    for _ in range(min(_LANCZOS_STEPS, matrix.size)):
        w = xp.empty_like(v)
        multiply(xp.ascontiguousarray(scale * v), w)
        w *= scale
        alphas.append(float(xp.vdot(v, w).real))  # synchronizes
        w -= alphas[-1] * v + beta * before
        beta = float(xp.linalg.norm(w))  # synchronizes
        betas.append(beta)
        if beta <= np.finfo(dtype).eps * abs(alphas[0]):
            break
        before, v = v, w / beta
    off = betas[: len(alphas) - 1]
    return float(np.linalg.eigvalsh(np.diag(alphas) + np.diag(off, 1) + np.diag(off, -1))[-1])
