"""Runs of a Krylov method that find multiple eigenvalues; `Lanczos` and `KrylovSchur` are the two methods.

A Krylov space contains one vector of each eigenspace. In exact arithmetic, restarts do not change that, so a single run
finds one copy of a multiple eigenvalue. Rounding errors add a second copy only when the first has converged to full
precision. Therefore vectors that have converged are locked, and another run begins with a random vector that is
orthogonal to them. A run stops as soon as its best eigenvalues cannot be among the wanted ones. If a run has found a
wanted eigenvalue, another run follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.krylov_space import KrylovSpace, Projection, Space, random_vector
from gsparse.linalg.eigen.transforms import Solve, Transform

Host = npt.NDArray[Any]
Places = npt.NDArray[np.intp]

# A run after the first one has room for at least this many vectors in addition to the locked ones.
_FEWEST_NEW_VECTORS = 16
# A restart keeps all wanted vectors, and fills this fraction of the remaining room with other vectors.
_KEPT_SHARE = 1 / 3
# If the operator is a solve, convergence is tested once in this number of steps.
_STEPS_BETWEEN_CHECKS = 3


@dataclass(frozen=True)
class Wanted:
    """The eigenpairs that the caller wants, and limits of the search.

    Attributes
    ----------
    k : int
        Number of eigenpairs.
    which : str
        An element of `gsparse.linalg.eigen.problem.HERMITIAN` for `Lanczos`, or of `GENERAL` for `KrylovSchur`.
    tol : float
        Relative tolerance; 0 for machine precision.
    ncv : int
        Number of vectors of the basis in the first run.
    maxiter : int
        Largest number of cycles of the first run, and of all later runs together.
    multiplicities : bool
        Whether further runs look for copies of multiple eigenvalues.
    seed : int
        Seed of random vectors.
    """

    k: int
    which: str
    tol: float
    ncv: int
    maxiter: int
    multiplicities: bool = True
    seed: int = 0

    def limit(self, runs: int) -> int:
        """Return the largest total number of cycles of the first `runs` runs."""
        return self.maxiter if runs == 1 else 2 * self.maxiter


@dataclass(frozen=True, eq=False)
class Ritz:
    """Eigenvalues of the projected matrix without locked vectors, from the most wanted to the least.

    Attributes
    ----------
    values, errors : ndarray
        The values to which `which` and `tol` refer, and their errors: results of `Transform.values` and `errors`.
    tolerances : ndarray
        The largest errors with which the values count as converged.
    """

    values: Host
    errors: Host
    tolerances: Host

    @property
    def converged(self) -> npt.NDArray[np.bool_]:
        return self.errors <= self.tolerances


class Runs(ABC):
    """The runs of one problem. The first `krylov.num_locked` vectors of `krylov` have converged.

    Parameters
    ----------
    space : Space
    transform : Transform
    wanted : Wanted
    hermitian : bool

    Attributes
    ----------
    cycles, runs : int
    is_complete : bool
        Whether all wanted pairs have converged and, with `multiplicities`, a last run has found no further copy.
    operator : Transform
        The operator B of the current run.
    """

    def __init__(self, space: Space, transform: Transform, wanted: Wanted, *, hermitian: bool) -> None:
        self.space, self.transform, self.wanted = space, transform, wanted
        self.cycles, self.runs, self.is_complete, self.operator = 0, 0, False, transform
        self._num_new = max(wanted.ncv - wanted.k, _FEWEST_NEW_VECTORS)
        # A general operator needs room for one more: the second value of a conjugate pair.
        most = wanted.k + self._num_new + (not hermitian)
        capacity = max(wanted.ncv, most) if wanted.multiplicities else wanted.ncv
        self.krylov = KrylovSpace(space, min(capacity, space.whole_size), hermitian=hermitian)

    @property
    def num_products(self) -> int:
        """The number of steps of all runs. Each step takes one product with the operator of its run."""
        return self.krylov.num_steps

    @property
    def _has_enough(self) -> bool:
        return self.krylov.num_locked >= self.wanted.k

    def solve(self, v0: Array | None) -> None:
        """Find the wanted pairs, or as many as converge within the limits of cycles."""
        while True:
            start = random_vector(self.space, self.wanted.seed + self.runs) if v0 is None or self.runs else v0
            self.runs += 1
            if not self._start(start):
                if self.runs == 1:
                    raise ValueError("v0 must be a finite vector that is not zero, and not in the null space of M")
                # The locked vectors span the whole space, or the range of the operator.
                self.is_complete = self._has_enough
                return
            num_found = self._run()
            if num_found is None:
                return
            is_last = not num_found or not self.wanted.multiplicities
            self.is_complete = is_last and self._has_enough
            if self.is_complete or self.cycles >= self.wanted.limit(self.runs + 1):
                return

    def _run(self) -> int | None:
        """Find vectors that are orthogonal to the locked vectors, and lock the wanted ones.

        Returns
        -------
        int or None
            The number of vectors that were locked; None if the limit of cycles was reached.
        """
        num_locked = self.krylov.num_locked
        end = self.wanted.ncv if not num_locked else num_locked + self._num_new
        end = min(end, self.krylov.capacity)
        self._begin(end)
        while True:
            for stop in self._stops(end):
                projection = self.krylov.cycle(self.operator, stop)
                ritz = self._ritz(projection)
                needed = self._needed(ritz)
                is_done = self._is_done(ritz, needed, projection)
                if self.runs == 1 and isinstance(self.operator, Solve) and (is_done or stop == end):
                    self.operator.check_shift(ritz.values, self.space.epsilon)
                if is_done:
                    break
            self.cycles += 1
            self._check_vectors()
            if is_done:
                self._lock(projection, ritz, needed)
                return len(needed)
            if self.space.ranks is not None:
                self.space.ranks.observe(self)
            if self.cycles >= self.wanted.limit(self.runs):
                self._lock(projection, ritz, needed[ritz.converged[needed]])
                return None
            self._restart(projection, ritz, needed)

    def _stops(self, end: int) -> list[int]:
        """Return the basis sizes at which a cycle tests convergence: `end`, and smaller ones if steps are expensive."""
        if not isinstance(self.operator, Solve):
            return [end]
        begin = max(self.krylov.first, self.krylov.num_locked, self.wanted.k)
        return [*range(begin + _STEPS_BETWEEN_CHECKS, end, _STEPS_BETWEEN_CHECKS), end]

    def _is_done(self, ritz: Ritz, needed: Places, projection: Projection) -> bool:
        if not ritz.converged[needed].all():
            return False
        if not projection.remainder:
            return True
        if not self._has_enough:
            return self.krylov.num_locked + len(ritz.values) > self.wanted.k
        # A value that is not needed may, within its error, be a wanted one. Then the run goes on.
        others = np.setdiff1d(np.arange(len(ritz.values)), needed)
        return bool(len(others)) and not self._may_be_wanted(ritz, others)

    def _to_keep(self, needed: Places, available: int) -> Places:
        """Return the indices of the values that a restart keeps: all needed values, and some other values."""
        count = max(len(needed) + self._has_enough, 1)
        count = max(1, min(count + int(max(available - count, 0) * _KEPT_SHARE), available - 1))
        return np.concatenate([needed, np.setdiff1d(np.arange(available), needed)])[:count]

    def _start(self, start: Array) -> bool:
        return self.krylov.start(start)

    def _check_vectors(self) -> None:  # noqa: B027  # only Lanczos has something to check
        """Raise an error if the vectors of a cycle are not usable."""

    @abstractmethod
    def _begin(self, end: int) -> None:
        """Begin a run that extends the basis to up to `end` vectors."""

    @abstractmethod
    def _ritz(self, projection: Projection) -> Any:
        """Return the solution of the projected problem without locked vectors, as a `Ritz`."""

    @abstractmethod
    def _needed(self, ritz: Any) -> Places:
        """Return the indices of the values that are among the k most wanted of all values, including locked ones."""

    @abstractmethod
    def _may_be_wanted(self, ritz: Any, others: Places) -> bool:
        """Return whether a value of `others` could be a wanted value, given its error bound."""

    @abstractmethod
    def _lock(self, projection: Projection, ritz: Any, places: Places) -> None:
        """Lock the vectors of the values `places`. Drop locked vectors that are no longer among the k most wanted."""

    @abstractmethod
    def _restart(self, projection: Projection, ritz: Any, needed: Places) -> None:
        """Keep the best vectors, and begin another cycle."""
