"""Norms of a matrix and of its rows and columns, and the spectral radius, computed on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator
from scipy.sparse.linalg import norm as scipy_norm

from gsparse.device.dtypes import Array, compute_dtype
from gsparse.errors import ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.eigen.eigs import eigs
from gsparse.linalg.eigen.eigsh import eigsh
from gsparse.linalg.eigen.svds import svds
from gsparse.linalg.operators import MatrixOperator, as_operator, device_for, solve_dtype
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import ask_matrix
from gsparse.linalg.small_matrices import as_dense
from gsparse.matrix.matrix_like import MatrixLike, is_device_matrix
from gsparse.matrix.reductions import CASTS_FIRST, sums_along, sums_of_all

# Norms that are the largest or smallest sum of absolute values along an axis: from `ord` to (axis, which sum).
_OF_SUMS = {1.0: (0, "maximum"), -1.0: (0, "minimum"), np.inf: (1, "maximum"), -np.inf: (1, "minimum")}


def norm(x: Any, ord: Any = None, axis: Any = None) -> Any:
    """Return a norm of a sparse matrix, or of each of its rows or columns. Synchronizes.

    Parameters
    ----------
    x : GpuSparseMatrix or a view of one, DistributedMatrix, or sparse array of SciPy, shape (M, N)
        Repeated entries are added up first. SciPy computes the norm of its own arrays, and of matrices in extended
        precision.
    ord : {None, 'fro', 'f', inf, -inf, 1, -1, 2} or number, optional
        As in `scipy.sparse.linalg.norm`. The Frobenius norm by default, or the 2-norm of vectors.
    axis : {None, int, (int, int)}, optional
        0 for the norm of each column, 1 for the norm of each row; by default, the norm of the matrix.

    Returns
    -------
    float or ndarray
        In the precision of the matrix, as in SciPy; an array of shape (N,) or (M,) if `axis` is a number.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As SciPy's function does.

    Notes
    -----
    The 2-norm of a matrix is its largest singular value, from `svds`. All other norms of a matrix, and the 1-norms and
    2-norms of its rows and columns, read the values once if they are floating-point numbers. For the remaining norms,
    SciPy's function runs on the device matrix, and makes temporary matrices.

    Examples
    --------
    >>> import gsparse, gsparse.linalg, scipy.sparse
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.diags_array([3.0, -4.0]), device="cpu")
    >>> float(gsparse.linalg.norm(A)), float(gsparse.linalg.norm(A, 1))
    (5.0, 4.0)
    """
    result = ask_matrix(x, "norm", (), {"ord": ord, "axis": axis})
    if result is not NotImplemented:
        return result
    if isinstance(x, LinearOperator):
        raise TypeError(
            f"norm reads the entries of a sparse matrix, got {type(x).__name__}: for operators, use svds(A, 1, "
            "return_singular_vectors=False), the 2-norm, or onenormest(A)"
        )
    if not is_device_matrix(x) or x.ndim != 2 or compute_dtype(x.dtype) is None:
        return scipy_norm(x, ord, axis)
    axes = _parse_axis(axis)
    if axes == (0, 1):
        result = _matrix_norm(x, ord, axis)
        if result is not None:
            return result
    elif axes is not None and x.dtype.kind in "fc":
        if ord == 1:
            return _downloaded(x, sums_along(x, axes[0], "absolute", summed=True))
        if ord in (None, 2):
            return _downloaded(x, sums_along(x, axes[0], "square", summed=True), np.sqrt)
    return scipy_norm(x, ord, axis)


def _matrix_norm(x: MatrixLike, ord: Any, axis: Any) -> Any:
    """Return the norm of a matrix; None if SciPy's function must compute it or raise the error."""
    if ord in (None, "fro", "f"):
        return _frobenius(x)
    if not isinstance(ord, int | float | np.number):
        return None
    if ord == 2:
        return _two_norm(x)
    if ord in _OF_SUMS and x.dtype.kind in "fc":
        sums_axis, extreme = _OF_SUMS[float(ord)]
        sums_axis = sums_axis if axis is None or axis[0] % 2 == 0 else 1 - sums_axis
        return _extreme_sum(x, sums_axis, extreme)
    return None


def _two_norm(matrix: Any) -> Any:
    """Return the largest singular value."""
    if min(matrix.shape) < 2:
        return _frobenius(matrix)
    return svds(matrix, 1, multiplicities=False, return_singular_vectors=False)[0]


def _parse_axis(axis: Any) -> tuple[int, ...] | None:
    """Return the axes in ascending order; None if they are invalid."""
    if axis is None:
        return (0, 1)
    axes = axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(part, int | np.integer) and -2 <= part < 2 for part in axes):
        return None
    numbers = tuple(sorted({int(part) % 2 for part in axes}))
    return numbers if 0 < len(numbers) == len(axes) else None


def _frobenius(matrix: MatrixLike) -> Any:
    """Return the Frobenius norm: the square root of the sum of the squares. Integers are squared as float64."""
    convert = None if matrix.dtype.kind in "fc" else lambda data: data.astype(np.float64)
    total = sums_of_all(matrix, "square", convert, summed=True)
    real = _real(matrix)
    square = matrix.device.download(total)[0] if total.size else np.float64(0)  # synchronizes
    return real.type(np.sqrt(square))


def _extreme_sum(matrix: MatrixLike, axis: int, extreme: str) -> Any:
    """Return the largest or the smallest sum of absolute values along an axis."""
    device, sums = matrix.device, sums_along(matrix, axis, "absolute", summed=True)
    if not sums.size:
        return getattr(np, extreme).reduce(np.zeros(0))  # NumPy's error
    with device.active(), device.memory_guard():
        extreme_sum = kernels_of(device).reductions.extreme_entries(device, None, sums, extreme, int(sums.size))
    return _downloaded(matrix, extreme_sum)[0]


def _real(matrix: MatrixLike) -> np.dtype[Any]:
    """Return the real dtype of the matrix's precision; float64 for integers."""
    return np.dtype(np.float64) if matrix.dtype.kind in "biu" else np.zeros(0, matrix.dtype).real.dtype


def _downloaded(matrix: MatrixLike, values: Array, function: Any = None) -> Any:
    """Return device values, or `function` of them, as a NumPy array of the dtype that SciPy returns."""
    host = matrix.device.download(values)  # synchronizes
    host = host if function is None else function(host)
    widens = CASTS_FIRST and matrix.dtype == np.float32
    with np.errstate(over="ignore"):
        return host.astype(np.float64 if widens else _real(matrix), copy=False)


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
        Whether A is Hermitian. By default, a sparse A is tested, and a dense array or an operator counts as
        non-Hermitian.
    v0 : array, shape (n,), optional
        Start vector: NumPy or CuPy. A random one by default.
    tol : float, optional
        Relative tolerance of the residual. The error of the radius is about `tol` squared for a Hermitian matrix.
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
