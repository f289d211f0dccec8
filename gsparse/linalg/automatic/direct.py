"""Factorizations on the host, for small matrices and for those with which every iteration fails."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import MatrixRankWarning, splu

from gsparse.errors import FactorizationError

__all__ = ["solve_directly"]

# Rows and columns up to which a dense least-squares solution is computed by singular values: about a second.
_DENSE = 600
# Rows up to which SuperLU is tried without an estimate: dense factors of 2 000 rows take 64 MB and a second.
_SMALL = 2000
# Largest estimate of the operations of a factorization: about a minute at 1 Gflop/s. Envelope methods need at least the
# operations of SuperLU, which orders by minimum degree.
_MAX_OPERATIONS = 5e10
# Steps of iterative refinement.
_REFINEMENTS = 3


def solve_directly(S: sp.csr_array, b: npt.NDArray[Any], *, least_squares: bool = False) -> npt.NDArray[Any]:
    """Solve A·X = B with a factorization of a host matrix, or minimise the norm of B − A·X.

    Parameters
    ----------
    S : sparse array, shape (M, N)
        In double precision.
    b : ndarray, shape (M, k)
    least_squares : bool
        Whether a small singular matrix is solved in the sense of least squares.

    Returns
    -------
    ndarray, shape (N, k)
        The solution of least squares with the smallest norm, if the matrix is small, rectangular or singular.

    Raises
    ------
    FactorizationError
        If the matrix is singular, or a factorization would take too long.
    """
    if max(S.shape) <= _DENSE and (least_squares or S.shape[0] != S.shape[1]):
        solution: npt.NDArray[Any] = np.linalg.lstsq(S.toarray(), b, rcond=None)[0]
        return solution
    if S.shape[0] != S.shape[1]:
        return _solve_augmented(S, b)
    return _solve_square(S, b)


def _solve_square(S: sp.csr_array, b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Factorize with SuperLU, and refine the solution."""
    if S.shape[0] > _SMALL and _operations(S) > _MAX_OPERATIONS:
        raise FactorizationError("a factorization would take more than a minute, as estimated from the envelope")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MatrixRankWarning)
            factors = splu(sp.csc_matrix(S))
    except (RuntimeError, MatrixRankWarning, MemoryError) as error:
        raise FactorizationError(f"SuperLU: {error}") from error
    with np.errstate(all="ignore"):
        x = factors.solve(b)
        best, smallest = x, np.linalg.norm(b - S @ x)
        for _ in range(_REFINEMENTS):
            x = x + factors.solve(b - S @ x)
            norm = np.linalg.norm(b - S @ x)
            if not norm < smallest / 2:
                break
            best, smallest = x, norm
    if not np.isfinite(best).all():
        raise FactorizationError("SuperLU: the matrix is singular to working precision")
    solution: npt.NDArray[Any] = best
    return solution


def _solve_augmented(S: sp.csr_array, b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Solve a least-squares problem of full rank as a square system (Björck 1967).

    With more equations than unknowns: s·y + A·x = b and Aᴴ·y = 0, where s·y is the residual. With fewer, the solution
    of smallest norm: x − Aᴴ·y = 0 and A·x = b.
    """
    rows, columns = S.shape
    scale = float(np.median(abs(S.data))) if S.nnz else 1.0
    if rows >= columns:
        system = sp.block_array([[scale * sp.eye_array(rows), S], [S.conj().T, None]], format="csr")
        right = np.concatenate([b, np.zeros((columns, b.shape[1]), b.dtype)])
        return _solve_square(system, right)[rows:]
    system = sp.block_array([[scale * sp.eye_array(columns), S.conj().T], [S, None]], format="csr")
    right = np.concatenate([np.zeros((columns, b.shape[1]), b.dtype), b])
    return _solve_square(system, right)[:columns]


def _operations(S: sp.csr_array) -> float:
    """Estimate the operations of a factorization: the sum of the squares of the envelope's widths (Cuthill–McKee)."""
    pattern = sp.csr_array((np.ones(S.nnz, np.int8), S.indices, S.indptr), shape=S.shape)
    pattern = sp.csr_array(pattern + pattern.T)
    place = np.empty(S.shape[0], np.int64)
    place[reverse_cuthill_mckee(pattern, symmetric_mode=True)] = np.arange(S.shape[0])
    coo = pattern.tocoo()
    widths = np.zeros(S.shape[0])
    np.maximum.at(widths, place[coo.coords[0]], place[coo.coords[0]] - place[coo.coords[1]])
    return float((widths**2).sum())
