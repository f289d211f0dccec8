"""Shifts that are eigenvalues, or nearly so.

If σ is an eigenvalue, such as 0 for the Laplacian of a graph, A - σM is singular. Rounding errors usually hide this
from a factorization. But then one eigenvalue of (A - σM)⁻¹ is so large that all others get lost in its rounding errors.
So the shift is moved: first by a distance that is large compared with rounding errors and small compared with the
spectrum, and then, when the next eigenvalue is known, by a small part of its distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.linalg.eigen.krylov_space import random_vector
from gsparse.linalg.eigen.problem import Eigenproblem
from gsparse.sparse.reductions import sums_of_squares

# An eigenvalue is equal to the shift if their distance is at most this many rounding errors of A - σM. A moved shift is
# at least this many rounding errors away.
_NOISE, _SMALLEST_MOVE = 10, 1000


@dataclass(frozen=True)
class Shift:
    """A shift σ, and the sizes that tell whether it is an eigenvalue.

    Attributes
    ----------
    sigma : complex
    epsilon : float
        The machine precision.
    size : float
        The norm of (A - σM)·x over that of M·x for a random x.
    mass_size : float
        The norm of M·x over that of x.
    has_constant_vector : bool
        Whether the vector of ones is an eigenvector for σ, as it is for 0 if A is a Laplacian.
    """

    sigma: complex
    epsilon: float
    size: float
    mass_size: float
    has_constant_vector: bool

    @classmethod
    def of(cls, problem: Eigenproblem, sigma: complex) -> Shift:
        """Examine a shift by products of A and M with two vectors. Synchronizes."""
        space, device, dtype = problem.space(), problem.device, problem.dtype
        multiply_A = problem.A.bind(device, dtype)
        multiply_M = None if problem.M is None else problem.M.bind(device, dtype)
        # For each vector x: (A - σM)·x, M·x, and x itself.
        parts = device.xp.zeros((2, 3, space.size), dtype)
        for (shifted, mass, x), vector in zip(parts, (random_vector(space, 0), 1), strict=True):
            x[...] = mass[...] = vector
            multiply_A(x, shifted)
            if multiply_M is not None:
                multiply_M(x, mass)
            shifted[...] -= dtype.type(sigma) * mass
        squares = device.xp.asarray(sums_of_squares(device, parts.reshape(6, -1)))
        norms = np.sqrt(space.download(space.sum_over_ranks(squares))).reshape(2, 3)
        with np.errstate(divide="ignore", invalid="ignore"):
            size, size_for_ones = norms[:, 0] / norms[:, 1]
            mass_size = norms[0, 1] / norms[0, 2]
        noise = _NOISE * space.epsilon * size
        has_constant_vector = bool(0 < noise < np.inf and size_for_ones <= noise)
        return cls(sigma, space.epsilon, float(size), float(mass_size), has_constant_vector)

    @property
    def noise(self) -> float:
        """The distance from σ up to which an eigenvalue is equal to σ, apart from rounding errors; 0 if not known."""
        noise = _NOISE * self.epsilon * self.size
        return noise if np.isfinite(noise) else 0.0

    def is_trusted(self, residuals: npt.NDArray[Any], tol: float) -> bool:
        """Return whether the norms of the residuals of eigenpairs are small; NaN stands for an unknown one."""
        limit = max(self.epsilon**0.5, 10 * tol) * self.size * max(self.mass_size, self.mass_size**0.5)
        return not bool((residuals > limit).any())

    def moved(self, side: int, next_distance: float = np.inf) -> complex:
        """Return a shift to use instead of σ.

        Parameters
        ----------
        side : {1, -1}
            Whether the next eigenvalue is greater or smaller than σ. The shift is moved to the other side.
        next_distance : float
            The distance of the next eigenvalue from σ; infinity if it is not known yet.
        """
        roughly, least = self.epsilon**0.5 * self.size, _SMALLEST_MOVE * self.epsilon * self.size
        distance = max(self.epsilon**0.2 * next_distance, least) if np.isfinite(next_distance) else roughly
        return self.sigma - float(side * distance)
