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

from gsparse.linalg.eigen.krylov_space import Space, random_vector
from gsparse.linalg.eigen.problem import Eigenproblem

__all__ = ["Shift"]

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
        A, device, dtype = problem.A, problem.device, problem.dtype
        space = Space(device, dtype, A.shape[0], problem.n, A.first_index, A.ranks)
        multiply_A = A.bind(device, dtype)
        sizes, mass_sizes = [], []
        multiply_M = None if problem.M is None else problem.M.bind(device, dtype)
        for x in (random_vector(space, 0), device.xp.ones(space.size, dtype)):
            y, z = device.xp.zeros_like(x), x
            multiply_A(x, y)
            if multiply_M is not None:
                z = device.xp.zeros_like(x)
                multiply_M(x, z)
            y -= dtype.type(sigma) * z
            squares = device.xp.stack([device.xp.vdot(v, v) for v in (y, z, x)])
            norms = np.sqrt(space.download(space.sum_over_ranks(squares)).real)
            sizes.append(float(norms[0] / norms[1]) if norms[1] else np.inf)
            mass_sizes.append(float(norms[1] / norms[2]))
        return cls(sigma, space.epsilon, sizes[0], mass_sizes[0], sizes[1] <= _NOISE * space.epsilon * sizes[0])

    @property
    def noise(self) -> float:
        """The distance of an eigenvalue from σ that is not more than rounding errors."""
        noise = _NOISE * self.epsilon * self.size
        return noise if np.isfinite(noise) else 0.0

    def is_trusted(self, residuals: npt.NDArray[Any], tol: float) -> bool:
        """Return whether the norms of the residuals of eigenpairs are small; those that are not known are NaN."""
        limit = max(self.epsilon**0.5, 10 * tol) * self.size * max(self.mass_size, self.mass_size**0.5)
        return not np.nanmax(residuals, initial=0.0) > limit

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
