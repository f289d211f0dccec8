"""Solves with factors, for small matrices and for those with which every iteration fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.errors import FactorizationError
from gsparse.linalg.direct.factorization import Factorization
from gsparse.linalg.direct.libraries import choose_library
from gsparse.linalg.direct.superlu import SUPERLU, estimate_operations
from gsparse.linalg.preconditioners.square_matrix import as_matrix
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

# Rows and columns up to which a dense least-squares solution is computed by singular values: about a second.
_DENSE = 600
# Rows up to which factors are computed on the host without an estimate: dense ones of 2 000 rows take 64 MB and a
# second.
_SMALL = 2000
# Largest estimate of the operations of a factorization on the host: about a minute at 1 Gflop/s. The estimate is for an
# envelope method, which needs at least as many operations as SuperLU with its order by minimum degree.
_MAX_OPERATIONS = 5e10
# Steps of iterative refinement.
_REFINEMENTS = 3


def solve_directly(A: Any, b: npt.NDArray[Any], *, least_squares: bool = False) -> npt.NDArray[Any]:
    """Solve A·X = B with a factorization, or minimize the norm of B − A·X. Synchronizes.

    Parameters
    ----------
    A : sparse array, shape (M, N)
        In double precision. Its device decides which libraries can factorize it.
    b : ndarray, shape (M, k)
        On the host.
    least_squares : bool
        Whether a small singular matrix is solved in the sense of least squares.

    Returns
    -------
    ndarray, shape (N, k)
        The solution. For a rectangular matrix, and with `least_squares` for one of at most 600 rows, this is the
        least-squares solution with the smallest norm.

    Raises
    ------
    FactorizationError
        If the matrix is singular, or a factorization would take too long.
    DeviceMemoryError
        If the factors do not fit into memory.
    """
    matrix: Any = as_matrix(A, "solve")
    if max(matrix.shape) <= _DENSE and (least_squares or matrix.shape[0] != matrix.shape[1]):
        solution: npt.NDArray[Any] = np.linalg.lstsq(matrix.toarray(), b, rcond=None)[0]
        return solution
    if matrix.shape[0] != matrix.shape[1]:
        return _solve_augmented(sp.csr_array(matrix), b, matrix.device)
    return _solve_square(matrix, b)


def _solve_square(A: Any, b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Solve with factors. If the library of the GPU does not find a solution, SuperLU tries, which exchanges rows.

    Libraries for GPUs exchange rows within small blocks only, and so fail for some regular matrices.
    """
    if choose_library(None, A.device, "general")[0].runs_on_host:
        _check_cost(A)
        return _solve_with(None, A, b)
    try:
        return _solve_with(None, A, b)
    except FactorizationError:
        _check_cost(A)
        return _solve_with(SUPERLU.name, A, b)


def _check_cost(A: Any) -> None:
    """Raise an error if a factorization on the host would take too long."""
    if A.shape[0] <= _SMALL:
        return
    S = sp.csr_array(A)
    S.sum_duplicates()
    if estimate_operations(S) > _MAX_OPERATIONS:
        raise FactorizationError("a factorization would take more than a minute, as estimated from the envelope")


def _solve_with(library: str | None, A: Any, b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Factorize, and refine the solution."""
    factors = Factorization(A, library=library, name="solve")
    with np.errstate(all="ignore"):
        x = factors.solve(b)
        best, smallest = x, np.linalg.norm(b - A @ x)
        for _ in range(_REFINEMENTS):
            x = x + factors.solve(b - A @ x)
            norm = np.linalg.norm(b - A @ x)
            if not norm < smallest / 2:
                break
            best, smallest = x, norm
    if not np.isfinite(best).all():
        raise FactorizationError("the matrix is singular to working precision")
    solution: npt.NDArray[Any] = best
    return solution


def _solve_augmented(S: sp.csr_array, b: npt.NDArray[Any], device: Any) -> npt.NDArray[Any]:
    """Solve a least-squares problem of full rank as a square system (Björck 1967).

    With more equations than unknowns: s·y + A·x = b and Aᴴ·y = 0, where s·y is the residual. With fewer, the solution
    of smallest norm: x − Aᴴ·y = 0 and A·x = b.
    """
    rows, columns = S.shape
    scale = float(np.median(abs(S.data))) if S.nnz else 1.0
    if rows >= columns:
        system = sp.block_array([[scale * sp.eye_array(rows), S], [S.conj().T, None]], format="csr")
        right = np.concatenate([b, np.zeros((columns, b.shape[1]), b.dtype)])
        return _solve_square(GpuSparseMatrix(system, device=device), right)[rows:]
    system = sp.block_array([[scale * sp.eye_array(columns), S.conj().T], [S, None]], format="csr")
    right = np.concatenate([np.zeros((columns, b.shape[1]), b.dtype), b])
    return _solve_square(GpuSparseMatrix(system, device=device), right)[:columns]
