"""Eigenvalues of any operator by the Krylov-Schur method, in runs that find multiple eigenvalues.

The projected matrix of a cycle is brought into Schur form, H = Q·T·Qᴴ, with the wanted eigenvalues first, and the basis
is restarted with the first Schur vectors V·Q. For a real operator all of this is real: a pair of conjugate eigenvalues
is a block of two rows of T, and stays together. Schur vectors that have converged are locked (B is the operator whose
Krylov space is built, see `gsparse.linalg.eigen.transforms`):

    B·[V_locked  V] = [V_locked  V]·| S  C |  + v·hᴴ        S (quasi-)triangular
                                    |    H |

Later runs look for copies of multiple eigenvalues (`Runs`).

References
----------
G. W. Stewart, "A Krylov-Schur algorithm for large eigenproblems", SIAM J. Matrix Anal. Appl. 23(3), 2002.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from gsparse.linalg.eigen.krylov_space import Projection, Space
from gsparse.linalg.eigen.problem import general_keys, general_order
from gsparse.linalg.eigen.runs import Places, Ritz, Runs, Wanted
from gsparse.linalg.eigen.transforms import Transform
from gsparse.linalg.small_matrices import with_one_blas_thread

Host = npt.NDArray[Any]


class KrylovSchur(Runs):
    """The runs of one problem, and what has converged: the Schur form `schur` with the first vectors of `krylov`."""

    def __init__(self, space: Space, transform: Transform, wanted: Wanted) -> None:
        super().__init__(space, transform, wanted, hermitian=False)
        self.schur: Host = np.zeros((0, 0))
        self._is_real = space.dtype.kind != "c"

    @property
    def values(self) -> Host:
        """The eigenvalues of B that have converged."""
        return np.zeros(0, complex) if not len(self.schur) else scipy.linalg.eigvals(self.schur).astype(complex)

    def _begin(self, end: int) -> None:
        self.krylov.begin(np.vstack([self.schur, np.zeros((1, len(self.schur)))]))

    @with_one_blas_thread
    def _schur(self, projection: Projection) -> tuple[Host, Host]:
        """Return the Schur form of the projected matrix of the vectors that are not locked, the same on all ranks."""
        H = projection.matrix[len(self.schur) :, len(self.schur) :]
        return self.space.agreed(*scipy.linalg.schur(H, output="real" if self._is_real else "complex"))

    @with_one_blas_thread
    def _ritz(self, projection: Projection) -> Ritz:
        H = projection.matrix[len(self.schur) :, len(self.schur) :]
        values, vectors = self.space.agreed(*scipy.linalg.eig(H))
        order = general_order(values, self.wanted.which, self._is_real)
        values, vectors = values[order], vectors[:, order]
        errors = projection.remainder * abs(vectors[-1])
        floor = 2 * self.space.epsilon * projection.scale
        tolerances = np.maximum(max(self.wanted.tol, self.space.epsilon) * abs(values), floor)
        return Ritz(values, errors, tolerances)

    def _needed(self, ritz: Ritz) -> Places:
        """Return the places of eigenvalues that are, with the locked ones, among the k most wanted.

        A conjugate pair is returned as a whole. If there are k locked eigenvalues, another one has to be better than
        the worst of them by more than twice its tolerance.
        """
        keys, limit = general_keys(ritz.values, self.wanted.which, self._is_real), self._limit()
        if limit is not None:
            return np.flatnonzero(keys < limit - 2 * ritz.tolerances)
        count = min(self.wanted.k - len(self.schur), len(keys))
        return np.flatnonzero(keys <= np.sort(keys)[count - 1]) if self._is_real else np.arange(count)

    def _limit(self) -> float | None:
        """Return the key of the k-th locked eigenvalue, None if there are fewer."""
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
        if count >= available:  # the partner of a conjugate pair came along, and leaves no room for a step
            T, Q, count = reordered(T, Q, ritz.values[places[:-1]])
        coupling = projection.matrix[:num_locked, num_locked:] @ Q[:, :count]
        kept = np.zeros((num_locked + count + 1, num_locked + count), np.result_type(T, self.schur, coupling))
        kept[:num_locked, :num_locked], kept[:num_locked, num_locked:] = self.schur, coupling
        kept[num_locked:-1, num_locked:] = T[:count, :count]
        kept[-1, num_locked:] = projection.remainder * Q[-1, :count]
        self.krylov.keep(projection, Q[:, :count])
        self.krylov.begin(kept)


def reordered(T: Host, Q: Host, values: Host) -> tuple[Host, Host, int]:
    """Bring the eigenvalues of a Schur form that are nearest to `values` to the front.

    Returns
    -------
    T, Q : ndarray
    count : int
        The number of eigenvalues at the front. It may be greater than that of `values`, because the two eigenvalues of
        a block of a real form are moved together.
    """
    is_real = T.dtype.kind != "c"
    own = _block_values(T) if is_real else np.diagonal(T)
    select = np.zeros(len(T), np.int32)
    for value in values:
        distances = np.where(select == 0, abs(own - value), np.inf)
        select[int(np.argmin(distances))] = 1
    if is_real:  # both rows of a block
        for row in np.flatnonzero(np.diagonal(T, -1)):
            select[row] = select[row + 1] = max(select[row], select[row + 1])
    count = int(select.sum())
    if count in (0, len(T)):
        return T, Q, count
    (trsen,) = scipy.linalg.get_lapack_funcs(("trsen",), (T, Q))
    T, Q, *_ = trsen(select, T, Q, job="N")  # where eigenvalues are too close to be exchanged, the form is still valid
    if is_real and count < len(T) and T[count, count - 1]:
        count += 1
    return T, Q, count


def _block_values(T: Host) -> Host:
    """Return the eigenvalues of a real Schur form in the order of its rows."""
    values = np.diagonal(T).astype(complex)
    for row in np.flatnonzero(np.diagonal(T, -1)):
        values[row : row + 2] = scipy.linalg.eigvals(T[row : row + 2, row : row + 2])
    return values
