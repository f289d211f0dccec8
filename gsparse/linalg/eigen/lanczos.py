"""Eigenpairs of a Hermitian operator by thick-restart Lanczos, in runs (`Runs`).

A cycle of a run extends the basis to its full size, solves the projected problem on the host, and keeps the best Ritz
vectors. The residual of a Ritz pair (θ, V·y) is the remainder of the cycle times the last element of y.

References
----------
K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix Anal. Appl.
22(2), 2000; B. N. Parlett, "The Symmetric Eigenvalue Problem", SIAM, 1998, chapter 13 (multiple eigenvalues).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.filters import FilterRule
from gsparse.linalg.eigen.krylov_space import Projection, Space
from gsparse.linalg.eigen.problem import hermitian_order, worsened
from gsparse.linalg.eigen.runs import Places, Ritz, Runs, Wanted
from gsparse.linalg.eigen.transforms import Filter, Solve, Transform
from gsparse.linalg.small_matrices import with_one_blas_thread

Host = npt.NDArray[Any]

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


@dataclass(frozen=True, eq=False)
class _LanczosRitz(Ritz):
    """Ritz pairs.

    Attributes
    ----------
    theta : ndarray
        Eigenvalues of the projected matrix.
    vectors : ndarray
        Its eigenvectors, in columns.
    couplings : ndarray
        Remainder times the last elements of the eigenvectors.
    """

    theta: Host
    vectors: Host
    couplings: Host


class Lanczos(Runs):
    """The runs of one problem, and the pairs that have converged: `values`, and the first vectors of `krylov`.

    Parameters
    ----------
    space, transform, wanted
        As for `Runs`.
    rule : FilterRule or None
        Decides about filters; None for no filters.
    """

    def __init__(self, space: Space, transform: Transform, wanted: Wanted, rule: FilterRule | None = None) -> None:
        super().__init__(space, transform, wanted, hermitian=True)
        self.rule, self._may_filter = rule, rule is not None
        self.values: Host = np.zeros(0)
        self._ends = (np.inf, -np.inf)
        self._first_length: float | None = None

    def _start(self, start: Array) -> bool:
        has_mass = self.space.multiply_mass is not None
        # The eigenvectors of (A - σM)⁻¹·M lie in its range, which is not the whole space if M is singular. Vectors that
        # M⁻¹·A maps to zero are wanted too.
        needs_range = has_mass and isinstance(self.transform, Solve) and self.transform.kind != "mass"
        has_started = self.krylov.start(start, self.operator if needs_range else None)
        if has_started and has_mass and self._first_length is None:
            self._first_length = self.krylov.length(self.krylov.capacity)
        return has_started

    def _begin(self, end: int) -> None:
        if self._has_enough:
            self._filter_later_run(end)
        self.krylov.begin(self._kept(np.zeros(0), np.zeros(0)))

    @with_one_blas_thread
    def _ritz(self, projection: Projection) -> _LanczosRitz:
        H = projection.matrix[self.krylov.num_locked :, self.krylov.num_locked :]
        theta, vectors = self.space.agreed(*np.linalg.eigh((H + H.conj().T) / 2))
        values = self.operator.values(theta)
        order = hermitian_order(values, self.wanted.which)
        theta, vectors, values = theta[order], vectors[:, order], values[order]
        couplings = projection.remainder * vectors[-1]
        # Rounding errors of a product are a part of the norm of B.
        floor = 2 * self.space.epsilon * self.operator.scale(projection.scale)
        tolerances = np.maximum(max(self.wanted.tol, self.space.epsilon) * abs(values), floor)
        errors = self.operator.errors(theta, abs(couplings))
        return _LanczosRitz(values, errors, tolerances, theta, vectors, couplings)

    def _needed(self, ritz: _LanczosRitz) -> Places:
        """Return the places of the pairs that are, with the locked ones, among the k most wanted.

        If there are k locked pairs, another one has to be better than the worst of them by more than its error.
        """
        margins = ritz.tolerances * (2 if self._has_enough else 0)
        needed = self._in_front(self._worsened(ritz.values, margins))
        if isinstance(self.operator, Solve):
            needed = needed[abs(ritz.values[needed]) >= _TRUSTED * abs(ritz.values).max(initial=0)]
        return needed

    def _in_front(self, candidates: Host) -> Places:
        """Return the places of candidates that are, with the locked values, among the k most wanted."""
        order = hermitian_order(np.concatenate([self.values, candidates]), self.wanted.which)[: self.wanted.k]
        return np.sort(order[order >= len(self.values)] - len(self.values))

    def _may_be_wanted(self, ritz: _LanczosRitz, others: Places) -> bool:
        leading = {others[0]}
        if self.wanted.which in ("LM", "BE"):
            leading |= {others[np.argmax(ritz.values[others])], others[np.argmin(ritz.values[others])]}
        open_pairs = np.array([place for place in leading if not ritz.converged[place]], np.intp)
        return bool(np.isin(open_pairs, self._in_front(self._best_values(ritz))).any())

    def _best_values(self, ritz: _LanczosRitz) -> Host:
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

    def _lock(self, projection: Projection, ritz: _LanczosRitz, places: Places) -> None:
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

    def _spectrum(self, ritz: _LanczosRitz) -> tuple[float, float]:
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

    def _restart(self, projection: Projection, ritz: _LanczosRitz, needed: Places) -> None:
        may_filter, self._may_filter = self.runs == 1 and self._may_filter, False
        if may_filter and self._filter_first_run(projection, ritz, len(needed)):
            self.krylov.begin(self._kept(np.zeros(0), np.zeros(0)))
            return
        places = self._to_keep(needed, len(ritz.values))
        self.krylov.keep(projection, ritz.vectors[:, places])
        self.krylov.begin(self._kept(ritz.theta[places], ritz.couplings[places]))

    def _check_vectors(self) -> None:
        """Raise `SemidefiniteMassError` if w has become long, though its norm in the inner product is 1."""
        if self.space.multiply_mass is None or self._first_length is None:
            return
        if self.krylov.length(self.krylov.capacity) > _LARGEST_GROWTH * self._first_length:
            raise SemidefiniteMassError

    def _filter_first_run(self, projection: Projection, ritz: _LanczosRitz, count: int) -> bool:
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
