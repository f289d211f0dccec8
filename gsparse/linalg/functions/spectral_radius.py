"""The spectral radius: the largest magnitude of an eigenvalue."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from gsparse.device.dtypes import Array
from gsparse.errors import ShapeError
from gsparse.linalg.eigen.eigs import eigs
from gsparse.linalg.eigen.eigsh import eigsh
from gsparse.linalg.eigen.filters import as_dense
from gsparse.linalg.operators import MatrixOperator, as_operator, device_for, solve_dtype
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# Matrices of at most this size are solved as dense ones.
_SMALL = 16


def spectral_radius(
    A: Any,
    *,
    hermitian: bool | None = None,
    v0: Array | None = None,
    tol: float = 1e-6,
    maxiter: int | None = None,
) -> float:
    """Return the largest magnitude of an eigenvalue. Synchronizes.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (n, n)
        Real or complex.
    hermitian : bool, optional
        Whether A is Hermitian, which is tested by default if A is sparse. A dense array or an operator is taken for a
        general one.
    v0 : array, shape (n,), optional
        Start vector: NumPy or CuPy. A random one by default.
    tol : float, optional
        Relative accuracy of the residual. The radius of a Hermitian matrix is accurate to about its square.
    maxiter : int, optional
        Maximum number of restarts; 10·n by default.

    Returns
    -------
    float
        The magnitude, accurate to about `tol`.

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        If the eigenvalue does not converge within `maxiter` restarts.
    ShapeError
        If A is not square, or v0 does not have n elements.
    TypeError
        If A is no matrix or operator.
    ValueError
        If `maxiter` is not positive, or a value of A or v0 is not finite.
    DeviceError
        If A is on one GPU and v0 on another.
    DeviceMemoryError

    Examples
    --------
    >>> import scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import spectral_radius
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(400, 400))
    >>> round(spectral_radius(GpuSparseMatrix(S, device="cpu")), 4)
    3.9999
    """
    if len(np.shape(A)) != 2 or A.shape[0] != A.shape[1]:
        raise ShapeError(f"expected square matrix (shape={np.shape(A)})")
    device = device_for(A, v0)
    with device.active(), device.memory_guard():
        operator = as_operator(A, device)
        if operator.whole_shape[0] <= _SMALL and operator.ranks is None:
            dense = as_dense(operator, device, solve_dtype(operator))
            return float(abs(scipy.linalg.eigvals(dense)).max(initial=0)) if dense.size else 0.0
        if hermitian is None:
            hermitian = False
            if isinstance(operator, MatrixOperator):
                with SquareMatrix.of(operator.matrix, "spectral_radius", finite=False) as matrix:
                    hermitian = matrix.is_hermitian()
    solve: Any = eigsh if hermitian else eigs
    options = {"v0": v0, "tol": tol, "maxiter": maxiter, "multiplicities": False, "return_eigenvectors": False}
    values = solve(A, 1, which="LM", **options)
    return float(abs(values).max())
