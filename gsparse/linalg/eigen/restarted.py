"""Eigenpairs by thick-restart Lanczos and by the Krylov-Schur method, in runs that find multiple eigenvalues (`Runs`).

A cycle of a run extends the basis to its full size, solves the projected problem on the host, and keeps the best
vectors. For a Hermitian operator these are Ritz vectors: the residual of a Ritz pair (θ, V·y) is the remainder of the
cycle times the last element of y.

For any other operator, the projected matrix is brought into Schur form, H = Q·T·Qᴴ, with the wanted eigenvalues first,
and the basis is restarted with the first Schur vectors V·Q. For a real operator, T and Q are real: a pair of conjugate
eigenvalues is a 2×2 block of T, and is never split. Schur vectors that have converged are locked. B is the operator
whose Krylov space is built (`gsparse.linalg.eigen.transforms`):

    B·[V_locked  V] = [V_locked  V]·| S  C |  + v·hᴴ        S (quasi-)triangular
                                    |    H |

References
----------
K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix Anal. Appl.
22(2), 2000; B. N. Parlett, "The Symmetric Eigenvalue Problem", SIAM, 1998, chapter 13 (multiple eigenvalues); G. W.
Stewart, "A Krylov-Schur algorithm for large eigenproblems", SIAM J. Matrix Anal. Appl. 23(3), 2002.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.krylov_space import Projection, Space
from gsparse.linalg.eigen.problem import general_keys, general_order, hermitian_order, worsened
from gsparse.linalg.eigen.runs import Places, Ritz, Runs, Wanted
from gsparse.linalg.eigen.transforms import Filter, FilterRule, Solve, Transform
from gsparse.linalg.small_matrices import agreed, with_one_blas_thread

Host = npt.NDArray[Any]

# If M is singular, the inner product ignores the components of vectors in its null space. Rounding errors create such
# components, which grow from step to step. If a vector has become this many times as long as the first one, the solve
# ends (`SemidefiniteMassError`), and `eigsh` uses the standard inner product instead.
_LARGEST_GROWTH = 1e4
# If the operator is a solve (shift-invert), a run accepts only eigenvalues of at least this size, relative to the
# largest one. Rounding errors hide smaller ones, for example if the shift is very close to an eigenvalue or the matrix
# is almost singular. A further run finds these, because the largest are locked then.
_TRUSTED = 1e-4
# No filter is used if, after the first cycle, all residuals are at most this many times their tolerances.
_ALMOST_CONVERGED = 100.0


class SemidefiniteMassError(ArithmeticError):
    """M is singular, and vectors have grown in its null space, where the inner product is zero."""


@dataclass(frozen=True, eq=False)
class _LanczosRitz(Ritz):
    """Ritz pairs of a Hermitian operator B.

    Attributes
    ----------
    theta : ndarray
        Eigenvalues of the projected matrix.
    vectors : ndarray
        Eigenvectors of the projected matrix, in columns.
    couplings : ndarray
        The remainder times the last element of each eigenvector: the residual norms of the pairs, with a sign.
    """

    theta: Host
    vectors: Host
    couplings: Host


class Lanczos(Runs):
    """Runs of thick-restart Lanczos. `values` and the first vectors of `krylov` are the pairs that have converged.

    Parameters
    ----------
    space, transform, wanted
        As for `Runs`.
    rule : FilterRule or None
        Decides whether to use a Chebyshev filter; None for no filters.
    """

    def __init__(self, space: Space, transform: Transform, wanted: Wanted, rule: FilterRule | None = None) -> None:
        super().__init__(space, transform, wanted, hermitian=True)
        self.rule, self._may_filter = rule, rule is not None
        self.values: Host = np.zeros(0)
        self._ends = (np.inf, -np.inf)
        self._first_length: float | None = None

    def _start(self, start: Array) -> bool:
        has_mass = self.space.multiply_mass is not None
        # If M is singular, (A - σM)⁻¹·M maps to a smaller space, which contains its eigenvectors, so the start vector
        # must be in that space. This is not required for M⁻¹·A, because vectors that it maps to zero are wanted, too.
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
        theta, vectors = agreed(self.space.ranks, *np.linalg.eigh((H + H.conj().T) / 2))
        values = self.operator.values(theta)
        order = hermitian_order(values, self.wanted.which)
        theta, vectors, values = theta[order], vectors[:, order], values[order]
        couplings = projection.remainder * vectors[-1]
        # Rounding errors of a product are proportional to the norm of B.
        floor = 2 * self.space.epsilon * self.operator.scale(projection.scale)
        tolerances = np.maximum(max(self.wanted.tol, self.space.epsilon) * abs(values), floor)
        errors = self.operator.errors(theta, abs(couplings))
        return _LanczosRitz(values, errors, tolerances, theta, vectors, couplings)

    def _needed(self, ritz: _LanczosRitz) -> Places:
        """Return the indices of the Ritz pairs that are among the k most wanted of all Ritz pairs and locked pairs.

        If k pairs are locked, a Ritz pair must be better than the worst locked pair by more than twice its own
        tolerance.
        """
        margins = ritz.tolerances * (2 if self._has_enough else 0)
        needed = self._in_front(self._worsened(ritz.values, margins))
        if isinstance(self.operator, Solve):
            needed = needed[abs(ritz.values[needed]) >= _TRUSTED * abs(ritz.values).max(initial=0)]
        return needed

    def _in_front(self, candidates: Host) -> Places:
        """Return the indices of the candidates that are among the k most wanted of all candidates and locked values."""
        order = hermitian_order(np.concatenate([self.values, candidates]), self.wanted.which)[: self.wanted.k]
        return np.sort(order[order >= len(self.values)] - len(self.values))

    def _may_be_wanted(self, ritz: _LanczosRitz, others: Places) -> bool:
        leading = {others[0]}
        if self.wanted.which in ("LM", "BE"):
            leading |= {others[np.argmax(ritz.values[others])], others[np.argmin(ritz.values[others])]}
        open_pairs = np.array([place for place in leading if not ritz.converged[place]], np.intp)
        return bool(np.isin(open_pairs, self._in_front(self._best_values(ritz))).any())

    def _best_values(self, ritz: _LanczosRitz) -> Host:
        """Return, for each Ritz value, the most wanted value that a nearby eigenvalue can have.

        With a filter, the errors of values inside its interval are meaningless. But θ is at most one residual norm away
        from an eigenvalue of the filtered matrix.
        """
        if isinstance(self.operator, Filter):
            theta = worsened(ritz.theta, self._simple_which(self.values), -abs(ritz.couplings))
            return np.asarray(self.operator.values(theta))
        return self._worsened(ritz.values, -ritz.errors)

    def _worsened(self, values: Host, margins: Host) -> Host:
        """Return values of unlocked pairs, moved by `margins` in the direction in which they are less wanted."""
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
        """Return the columns of the projected matrix for the locked vectors and the vectors that a restart keeps."""
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
        """Raise `SemidefiniteMassError` if w is too long in the 2-norm, although its norm with respect to M is 1."""
        if self.space.multiply_mass is None or self._first_length is None:
            return
        if self.krylov.length(self.krylov.capacity) > _LARGEST_GROWTH * self._first_length:
            raise SemidefiniteMassError

    def _filter_first_run(self, projection: Projection, ritz: _LanczosRitz, count: int) -> bool:
        """Continue the first run with a filter if that saves time. Return whether the run continues.

        The run then starts again with the sum of the best Ritz vectors.
        """
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
        """Return the wanted end of the spectrum. For "SM" this is "SA" or "LA" if A is definite, otherwise ""."""
        if self.wanted.which != "SM":
            return self.wanted.which
        return "SA" if (values > 0).all() else "LA" if (values < 0).all() else ""


class KrylovSchur(Runs):
    """Runs of the Krylov-Schur method. `schur` and the first vectors of `krylov` are the converged Schur form."""

    def __init__(self, space: Space, transform: Transform, wanted: Wanted) -> None:
        super().__init__(space, transform, wanted, hermitian=False)
        self.schur: Host = np.zeros((0, 0))
        self._is_real = space.dtype.kind != "c"

    @property
    def values(self) -> Host:
        """The eigenvalues of B that have converged: those of `schur`."""
        return np.zeros(0, complex) if not len(self.schur) else scipy.linalg.eigvals(self.schur).astype(complex)

    def _begin(self, end: int) -> None:
        self.krylov.begin(np.vstack([self.schur, np.zeros((1, len(self.schur)))]))

    @with_one_blas_thread
    def _schur(self, projection: Projection) -> tuple[Host, Host]:
        """Return T and Q of the Schur form of the projected matrix without locked vectors, the same on all ranks."""
        H = projection.matrix[len(self.schur) :, len(self.schur) :]
        return agreed(self.space.ranks, *scipy.linalg.schur(H, output="real" if self._is_real else "complex"))

    @with_one_blas_thread
    def _ritz(self, projection: Projection) -> Ritz:
        H = projection.matrix[len(self.schur) :, len(self.schur) :]
        values, vectors = agreed(self.space.ranks, *scipy.linalg.eig(H))
        order = general_order(values, self.wanted.which, self._is_real)
        values, vectors = values[order], vectors[:, order]
        errors = projection.remainder * abs(vectors[-1])
        floor = 2 * self.space.epsilon * projection.scale
        tolerances = np.maximum(max(self.wanted.tol, self.space.epsilon) * abs(values), floor)
        return Ritz(values, errors, tolerances)

    def _needed(self, ritz: Ritz) -> Places:
        """Return the indices of the values that are among the k most wanted of these values and the locked ones.

        Both values of a conjugate pair are returned. If k eigenvalues are locked, a value must be better than the worst
        locked one by more than twice its own tolerance.
        """
        keys, limit = general_keys(ritz.values, self.wanted.which, self._is_real), self._limit()
        if limit is not None:
            return np.flatnonzero(keys < limit - 2 * ritz.tolerances)
        count = min(self.wanted.k - len(self.schur), len(keys))
        return np.flatnonzero(keys <= np.sort(keys)[count - 1]) if self._is_real else np.arange(count)

    def _limit(self) -> float | None:
        """Return the `general_keys` key of the k-th most wanted locked eigenvalue; None if fewer are locked."""
        values = self.values
        if len(values) < self.wanted.k:
            return None
        return float(np.sort(general_keys(values, self.wanted.which, self._is_real))[self.wanted.k - 1])

    def _may_be_wanted(self, ritz: Ritz, others: Places) -> bool:
        limit = self._limit()
        assert limit is not None
        keys = general_keys(ritz.values, self.wanted.which, self._is_real)
        best = others[0]
        return not (ritz.converged[best] or keys[best] - ritz.errors[best] > limit)

    # ---------------------------------------------------------------- restarts

    @with_one_blas_thread
    def _lock(self, projection: Projection, ritz: Ritz, places: Places) -> None:
        num_locked = len(self.schur)
        T, Q, count = reordered(*self._schur(projection), ritz.values[places])
        self.krylov.keep(projection, Q[:, :count])
        coupling = projection.matrix[:num_locked, num_locked:] @ Q[:, :count]
        whole = np.zeros((num_locked + count,) * 2, np.result_type(T, self.schur, coupling))
        whole[:num_locked, :num_locked], whole[:num_locked, num_locked:] = self.schur, coupling
        whole[num_locked:, num_locked:] = T[:count, :count]
        if len(whole) > self.wanted.k and num_locked:
            eigenvalues = scipy.linalg.eigvals(whole)
            keys = general_keys(eigenvalues, self.wanted.which, self._is_real)
            chosen = eigenvalues[keys <= np.sort(keys)[self.wanted.k - 1]]
            whole, combinations, size = reordered(whole, np.eye(len(whole), dtype=whole.dtype), chosen)
            self.krylov.rotate(combinations[:, :size])
            whole = whole[:size, :size]
        self.schur = whole
        self.krylov.num_locked = len(whole)

    def _restart(self, projection: Projection, ritz: Ritz, needed: Places) -> None:
        T, Q = self._schur(projection)
        num_locked, available = len(self.schur), len(T)
        places = self._to_keep(needed, available)
        T, Q, count = reordered(T, Q, ritz.values[places])
        if count >= available:  # the second value of a conjugate pair was moved along, and leaves no room for a step
            T, Q, count = reordered(T, Q, ritz.values[places[:-1]])
        coupling = projection.matrix[:num_locked, num_locked:] @ Q[:, :count]
        kept = np.zeros((num_locked + count + 1, num_locked + count), np.result_type(T, self.schur, coupling))
        kept[:num_locked, :num_locked], kept[:num_locked, num_locked:] = self.schur, coupling
        kept[num_locked:-1, num_locked:] = T[:count, :count]
        kept[-1, num_locked:] = projection.remainder * Q[-1, :count]
        self.krylov.keep(projection, Q[:, :count])
        self.krylov.begin(kept)


def reordered(T: Host, Q: Host, values: Host) -> tuple[Host, Host, int]:
    """Reorder a Schur form so that the eigenvalues nearest to `values` come first.

    Returns
    -------
    T, Q : ndarray
    count : int
        Number of eigenvalues that were moved to the front. It may exceed the number of `values`, because the two
        eigenvalues of a 2×2 block of a real form are moved together.
    """
    is_real = T.dtype.kind != "c"
    own = _block_values(T) if is_real else np.diagonal(T)
    select = np.zeros(len(T), np.int32)
    for value in values:
        distances = np.where(select == 0, abs(own - value), np.inf)
        select[int(np.argmin(distances))] = 1
    if is_real:  # select both rows of a 2×2 block
        for row in np.flatnonzero(np.diagonal(T, -1)):
            select[row] = select[row + 1] = max(select[row], select[row + 1])
    count = int(select.sum())
    if count in (0, len(T)):
        return T, Q, count
    (trsen,) = scipy.linalg.get_lapack_funcs(("trsen",), (T, Q))
    T, Q, *_ = trsen(select, T, Q, job="N")  # if eigenvalues are too close to be exchanged, the form is still valid
    if is_real and count < len(T) and T[count, count - 1]:
        count += 1
    return T, Q, count


def _block_values(T: Host) -> Host:
    """Return the eigenvalues of a real Schur form in the order of its diagonal."""
    values = np.diagonal(T).astype(complex)
    for row in np.flatnonzero(np.diagonal(T, -1)):
        values[row : row + 2] = scipy.linalg.eigvals(T[row : row + 2, row : row + 2])
    return values
