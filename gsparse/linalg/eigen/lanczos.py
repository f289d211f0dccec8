"""Eigenpairs of a Hermitian operator by thick-restart Lanczos, in runs that find multiple eigenvalues.

A Krylov space holds one vector of each eigenspace. In exact arithmetic, no restart changes that, so of a multiple
eigenvalue a single run finds one copy; rounding errors bring in another one only when the first has converged to full
precision. Therefore pairs that have converged are locked, and another run begins with a random vector that is
orthogonal to them. It stops as soon as its best pairs cannot be among the wanted ones. If it has found a wanted one,
another run follows.

A cycle of a run extends the basis to its full size, solves the projected problem on the host, and keeps the best Ritz
vectors. The residual of a Ritz pair (θ, V·y) is the remainder of the cycle times the last element of y.

References
----------
K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix Anal. Appl.
22(2), 2000; B. N. Parlett, "The Symmetric Eigenvalue Problem", SIAM, 1998, chapter 13 (multiple eigenvalues).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.filters import FilterRule
from gsparse.linalg.eigen.krylov_space import KrylovSpace, Projection, Space, random_vector
from gsparse.linalg.eigen.problem import hermitian_order, worsened
from gsparse.linalg.eigen.transforms import Filter, Solve, Transform
from gsparse.linalg.small_matrices import with_one_blas_thread

Host = npt.NDArray[Any]

# Smallest number of vectors that a later run has for itself.
_FEWEST_NEW_VECTORS = 16
# Of the vectors that a restart may keep beside the wanted ones, this share is kept.
_KEPT_SHARE = 1 / 3
# Steps with solves after which convergence is tested again.
_STEPS_BETWEEN_CHECKS = 3
# If M is singular, the inner product does not see what rounding errors add to vectors from its null space, and that
# grows from step to step. If a vector has become this many times as long as the first one, the process is given up
# (`SemidefiniteMassError`), and `eigsh` uses the standard inner product instead.
_LARGEST_GROWTH = 1e4
# A run with solves finds eigenvalues down to this size relative to the largest one. Smaller ones, which would get lost
# in the rounding errors of the projected problem, are left to the next run, where the largest are locked. (A shift may
# be very close to an eigenvalue, and a matrix almost singular.)
_TRUSTED = 1e-4
# No filter is made if all residuals have come this close to the tolerance in the first cycle.
_ALMOST_CONVERGED = 100.0


class SemidefiniteMassError(ArithmeticError):
    """M is singular, and vectors have grown in its null space, which its inner product does not see."""


@dataclass(frozen=True)
class Wanted:
    """What the caller wants.

    Attributes
    ----------
    k : int
        Number of eigenpairs.
    which : str
        One of `HERMITIAN` of `gsparse.linalg.eigen.problem` for `Lanczos`, of `GENERAL` for `KrylovSchur`.
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
        """Return the largest number of cycles of the first `runs` runs."""
        return self.maxiter if runs == 1 else 2 * self.maxiter


@dataclass(frozen=True, eq=False)
class Ritz:
    """Ritz pairs of the vectors that are not locked, from the most wanted to the least.

    Attributes
    ----------
    theta : ndarray
        Eigenvalues of the projected matrix.
    vectors : ndarray
        Its eigenvectors, in columns.
    values, errors : ndarray
        The values that `which` and `tol` refer to, and their errors (`Transform`).
    tolerances : ndarray
        What the errors have to reach.
    couplings : ndarray
        Remainder times the last elements of the eigenvectors.
    """

    theta: Host
    vectors: Host
    values: Host
    errors: Host
    tolerances: Host
    couplings: Host

    @property
    def converged(self) -> npt.NDArray[np.bool_]:
        return self.errors <= self.tolerances


@dataclass(eq=False)
class Lanczos:
    """The runs of one problem, and the pairs that have converged: `values`, and the first vectors of `krylov`.

    Attributes
    ----------
    space : Space
    transform : Transform
    wanted : Wanted
    rule : FilterRule or None
        Decides about filters; None for no filters.
    cycles, runs : int
    is_complete : bool
        Whether all wanted pairs have converged and, with `multiplicities`, a last run has found no further copy.
    """

    space: Space
    transform: Transform
    wanted: Wanted
    rule: FilterRule | None = None
    cycles: int = 0
    runs: int = 0
    is_complete: bool = False
    values: Host = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        wanted, size = self.wanted, self.space.whole_size
        self._num_new = max(wanted.ncv - wanted.k, _FEWEST_NEW_VECTORS)
        capacity = max(wanted.ncv, wanted.k + self._num_new) if wanted.multiplicities else wanted.ncv
        self.krylov = KrylovSpace(self.space, min(capacity, size), hermitian=True)
        self.operator = self.transform
        self._ends = (np.inf, -np.inf)
        self._first_length: float | None = None

    @property
    def num_products(self) -> int:
        """The number of steps of all runs, each of which takes one product with the operator of its run."""
        return self.krylov.num_steps

    def solve(self, v0: Array | None) -> None:
        """Find the wanted pairs, as many as converge within the limits of cycles."""
        has_mass = self.space.multiply_mass is not None
        # The eigenvectors of (A - σM)⁻¹·M lie in its range, which is not the whole space if M is singular. Vectors that
        # M⁻¹·A maps to zero are wanted too.
        needs_range = has_mass and isinstance(self.transform, Solve) and self.transform.kind != "mass"
        while True:
            start = random_vector(self.space, self.wanted.seed + self.runs) if v0 is None or self.runs else v0
            self.runs += 1
            if not self.krylov.start(start, self.operator if needs_range else None):
                if self.runs == 1:
                    raise ValueError("v0 must be a finite vector that is not zero, and not in the null space of M")
                # All vectors of the space, or of the range, are locked.
                self.is_complete = len(self.values) >= self.wanted.k
                return
            if self.runs == 1 and has_mass:
                self._first_length = self.krylov.length(self.krylov.capacity)
            num_found = self._run()
            if num_found is None:
                return
            is_last = not num_found or not self.wanted.multiplicities
            self.is_complete = is_last and len(self.values) >= self.wanted.k
            if self.is_complete or self.cycles >= self.wanted.limit(self.runs + 1):
                return

    # ---------------------------------------------------------------- one run

    def _run(self) -> int | None:
        """Find pairs that are orthogonal to the locked ones, and lock those that are wanted.

        Returns
        -------
        int or None
            Their number, None if the limit of cycles was reached before.
        """
        krylov, num_locked = self.krylov, len(self.values)
        is_first = num_locked < self.wanted.k
        end = min(self.wanted.ncv if is_first and not num_locked else num_locked + self._num_new, self.space.whole_size)
        end = min(end, krylov.capacity)
        if not is_first:
            self._filter_later_run(end)
        krylov.begin(self._kept(np.zeros(0), np.zeros(0)))
        may_filter = self.runs == 1 and self.rule is not None
        while True:
            for stop in self._stops(end):
                projection = krylov.cycle(self.operator, stop)
                ritz = self._ritz(projection)
                needed = self._needed(ritz)
                is_done = self._is_done(ritz, needed, projection)
                if self.runs == 1 and isinstance(self.operator, Solve) and (is_done or stop == end):
                    self.operator.check_shift(ritz.theta, self.space.epsilon)
                if is_done:
                    self.cycles += 1
                    self._check_length()
                    self._lock(projection, ritz, needed)
                    return len(needed)
            self.cycles += 1
            self._check_length()
            if self.space.ranks is not None:
                self.space.ranks.observe(self)
            if self.cycles >= self.wanted.limit(self.runs):
                self._lock(projection, ritz, needed[ritz.converged[needed]])
                return None
            if may_filter and self._filter_first_run(projection, ritz, len(needed)):
                krylov.begin(self._kept(np.zeros(0), np.zeros(0)))
            else:
                self._restart(projection, ritz, needed)
            may_filter = False

    def _stops(self, end: int) -> list[int]:
        """Return the numbers of vectors at which a cycle asks whether it is done; often only if steps are expensive."""
        if not isinstance(self.operator, Solve):
            return [end]
        begin = max(self.krylov.first, self.krylov.num_locked + max(self.wanted.k - len(self.values), 0))
        return [*range(begin + _STEPS_BETWEEN_CHECKS, end, _STEPS_BETWEEN_CHECKS), end]

    @with_one_blas_thread
    def _ritz(self, projection: Projection) -> Ritz:
        """Solve the projected problem of the vectors that are not locked."""
        H = projection.matrix[self.krylov.num_locked :, self.krylov.num_locked :]
        theta, vectors = np.linalg.eigh((H + H.conj().T) / 2)
        if self.space.ranks is not None:  # the signs of eigenvectors may differ between hosts
            both = self.space.ranks.agreed(np.vstack([theta.astype(vectors.dtype), vectors]))
            theta, vectors = both[0].real.copy(), both[1:].copy()
        values = self.operator.values(theta)
        order = hermitian_order(values, self.wanted.which)
        theta, vectors, values = theta[order], vectors[:, order], values[order]
        couplings = projection.remainder * vectors[-1]
        # Rounding errors of a product are a part of the norm of B.
        floor = 2 * self.space.epsilon * self.operator.scale(projection.scale)
        tolerances = np.maximum(max(self.wanted.tol, self.space.epsilon) * abs(values), floor)
        return Ritz(theta, vectors, values, self.operator.errors(theta, abs(couplings)), tolerances, couplings)

    def _needed(self, ritz: Ritz) -> npt.NDArray[np.intp]:
        """Return the places of the pairs that are, with the locked ones, among the k most wanted.

        If there are k locked pairs, another one has to be better than the worst of them by more than its error.
        """
        num_locked = len(self.values)
        margins = ritz.tolerances * (2 if num_locked >= self.wanted.k else 0)
        needed = self._in_front(self._worsened(ritz.values, margins))
        if isinstance(self.operator, Solve):
            needed = needed[abs(ritz.values[needed]) >= _TRUSTED * abs(ritz.values).max(initial=0)]
        return needed

    def _in_front(self, candidates: Host) -> npt.NDArray[np.intp]:
        """Return the places of candidates that are, with the locked values, among the k most wanted."""
        order = hermitian_order(np.concatenate([self.values, candidates]), self.wanted.which)[: self.wanted.k]
        return np.sort(order[order >= len(self.values)] - len(self.values))

    def _is_done(self, ritz: Ritz, needed: npt.NDArray[np.intp], projection: Projection) -> bool:
        if not ritz.converged[needed].all():
            return False
        num_locked = len(self.values)
        if not projection.remainder:
            return True
        if num_locked < self.wanted.k:
            return num_locked + len(ritz.values) > self.wanted.k
        # The best pairs that are not needed: if they have not converged, their errors must not hide a wanted one.
        others = np.setdiff1d(np.arange(len(ritz.values)), needed)
        if not len(others):
            return False
        leading = {others[0]}
        if self.wanted.which in ("LM", "BE"):
            leading |= {others[np.argmax(ritz.values[others])], others[np.argmin(ritz.values[others])]}
        open_pairs = np.array([place for place in leading if not ritz.converged[place]], np.intp)
        return not np.isin(open_pairs, self._in_front(self._best_values(ritz))).any()

    def _best_values(self, ritz: Ritz) -> Host:
        """Return the most wanted values that the eigenvalues near the Ritz values may have.

        A filter is small on its whole interval, so that errors of values there mean nothing. But an eigenvalue of the
        filtered matrix is no farther from θ than the residual.
        """
        if isinstance(self.operator, Filter):
            theta = worsened(ritz.theta, self._simple_which(self.values), -abs(ritz.couplings))
            return np.asarray(self.operator.values(theta))
        return self._worsened(ritz.values, -ritz.errors)

    def _worsened(self, values: Host, margins: Host) -> Host:
        """Return values of pairs that are not locked, less wanted by the given margins."""
        num_locked = len(self.values)
        everything = np.concatenate([self.values, values]), np.concatenate([np.zeros(num_locked), margins])
        return np.asarray(worsened(everything[0], self.wanted.which, everything[1]))[num_locked:]

    def _lock(self, projection: Projection, ritz: Ritz, places: npt.NDArray[np.intp]) -> None:
        """Lock pairs, and leave out locked ones that are no longer among the k most wanted."""
        krylov = self.krylov
        krylov.keep(projection, ritz.vectors[:, places])
        values = np.concatenate([self.values, ritz.values[places]])
        if len(values) > self.wanted.k:
            chosen = np.sort(hermitian_order(values, self.wanted.which)[: self.wanted.k])
            krylov.rotate(np.eye(len(values))[:, chosen])
            values = values[chosen]
        self.values, krylov.num_locked = values, len(values)
        if len(ritz.values):
            self._ends = self._spectrum(ritz)

    def _spectrum(self, ritz: Ritz) -> tuple[float, float]:
        """Return estimates of the smallest and the largest eigenvalue."""
        if isinstance(self.operator, Filter):
            return self.operator.ends
        low, high = np.argmin(ritz.values), np.argmax(ritz.values)
        return float(ritz.values[low] - ritz.errors[low]), float(ritz.values[high] + ritz.errors[high])

    # ---------------------------------------------------------------- restarts

    def _kept(self, theta: Host, couplings: Host) -> Host:
        """Return the first columns of the projected matrix after a restart: those of locked and of kept pairs."""
        diagonal = np.concatenate([self.operator.inverse_values(self.values), theta])
        kept = np.zeros((len(diagonal) + 1, len(diagonal)), np.result_type(couplings, float))
        np.fill_diagonal(kept, diagonal)
        kept[-1, len(self.values) :] = couplings
        return kept

    def _restart(self, projection: Projection, ritz: Ritz, needed: npt.NDArray[np.intp]) -> None:
        available = len(ritz.values)
        count = max(len(needed) + (len(self.values) >= self.wanted.k), 1)
        count = max(1, min(count + int(max(available - count, 0) * _KEPT_SHARE), available - 1))
        places = np.concatenate([needed, np.setdiff1d(np.arange(available), needed)])[:count]
        self.krylov.keep(projection, ritz.vectors[:, places])
        self.krylov.begin(self._kept(ritz.theta[places], ritz.couplings[places]))

    def _check_length(self) -> None:
        """Raise `SemidefiniteMassError` if w has become long, though its norm in the inner product is 1."""
        if self.space.multiply_mass is None or self._first_length is None:
            return
        if self.krylov.length(self.krylov.capacity) > _LARGEST_GROWTH * self._first_length:
            raise SemidefiniteMassError

    def _filter_first_run(self, projection: Projection, ritz: Ritz, count: int) -> bool:
        """Continue with a filter from the sum of the best Ritz vectors, if a filter pays."""
        assert self.rule is not None
        which, is_close = self._simple_which(ritz.values), ritz.errors <= _ALMOST_CONVERGED * ritz.tolerances
        if is_close[:count].all():
            return False
        made = self.rule.first(ritz.values, ritz.errors, count, which) if which else None
        if made is None:
            return False
        self.krylov.keep(projection, ritz.vectors[:, : count + 2].sum(axis=1, keepdims=True))
        self.operator = made
        return self.krylov.start(self.krylov.vectors[self.krylov.num_locked].copy())

    def _filter_later_run(self, end: int) -> None:
        which = self._simple_which(self.values)
        made = self.rule.later(self.values, self._ends, which, end) if self.rule is not None and which else None
        self.operator = made or self.transform

    def _simple_which(self, values: Host) -> str:
        """Return the end of the spectrum that is wanted; "SM" means one if the matrix is definite, otherwise none."""
        if self.wanted.which != "SM":
            return self.wanted.which
        return "SA" if (values > 0).all() else "LA" if (values < 0).all() else ""
