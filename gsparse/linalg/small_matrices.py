"""Small dense matrices and eigenproblems, a limit of one BLAS thread, and pseudorandom vectors on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.linalg

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.operators import DenseOperator, MatrixOperator, Operator, RankGroup
from gsparse.sparse.reshaping import dense_of

# Matrices with at most this many rows are inverted on the host, where 100 rows take 0.5 ms. On a GPU, 100 rows take 1
# to 2 ms, and up to a second the first time, because CuPy then loads cuSOLVER.
_HOST_ROWS = 256
# A matrix counts as regular if its condition number in the 1-norm is at most this value divided by eps. Other matrices
# are singular and get a pseudo-inverse.
_REGULAR = 1e-3
# Eigenvalues and singular values count as zero if they are at most this factor times eps·√n times the largest one.
_NOISE = 4.0


P = ParamSpec("P")
R = TypeVar("R")
Host = npt.NDArray[Any]


def with_one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function in which BLAS uses one thread.

    Examples
    --------
    >>> import numpy
    >>> @with_one_blas_thread
    ... def largest(A):
    ...     return float(numpy.linalg.eigvalsh(A).max())
    >>> largest(numpy.diag([1.0, 2.0]))
    2.0
    """

    @wraps(function)
    def limited(*args: P.args, **options: P.kwargs) -> R:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **options)

    return limited


@cache
def _libraries() -> Any:
    """Return the controller of the thread pools of all loaded libraries, such as the BLAS of NumPy and SciPy."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


# Vector number k hashes the row numbers plus k times this stride: 2³² divided by the square of the golden ratio.
_STRIDE = 1640531527


def hashed_vector(device: Device, size: int, dtype: np.dtype[Any], number: int = 0, first_row: int = 0) -> Array:
    """Return a device vector of pseudorandom real numbers between -1/2 and 1/2, made from the row numbers.

    The hash multiplies twice, and folds the upper bits into the lower ones each time. One multiplication alone would
    give a sequence that rises and falls regularly, and is nearly orthogonal to most eigenvectors of a grid.

    Parameters
    ----------
    device : Device
    size : int
    dtype : dtype
        The dtype of the vector. If it is complex, the imaginary parts are zero.
    number : int
        Number of the vector. Vectors of different numbers are independent.
    first_row : int
        Number of the first row. A rank passes the number of its own first row, and gets its part of the whole vector.
    """
    vector = device.empty(size, dtype)
    kernels_of(device).steps.fill_hashes(device, vector, number * _STRIDE + first_row)
    return vector


def as_dense(operator: Operator, device: Device, dtype: np.dtype[Any]) -> Host:
    """Return an operator as a dense host array. If its entries cannot be read, multiply by the identity."""
    if isinstance(operator, MatrixOperator):
        matrix: Any = operator.matrix
        return np.asarray(matrix.toarray()).astype(dtype, copy=False)
    if isinstance(operator, DenseOperator):
        array = operator.array
        return np.asarray(array if isinstance(array, np.ndarray) else device.download(array)).astype(dtype, copy=False)
    rows, columns = operator.shape
    product = operator.bind(device, dtype)
    y, identity = device.xp.zeros(rows, dtype), device.upload(np.eye(columns, dtype=dtype))
    result = np.empty((rows, columns), dtype)
    for column in range(columns):
        product(identity[column], y)
        result[:, column] = device.download(y)  # synchronizes
    return result


def hermitian_pairs(A: Host, M: Host | None) -> tuple[Host, Host]:
    """Return all eigenvalues of A·x = λ·M·x, ascending, and M-orthonormal eigenvectors, for Hermitian A and M.

    If M is only semidefinite, return the finite eigenvalues only.
    """
    if M is None:
        values, vectors = np.linalg.eigh(np.asarray_chkfinite(A))
        return values, vectors
    try:
        return scipy.linalg.eigh(A, M)  # type: ignore[no-any-return]
    except scipy.linalg.LinAlgError:
        values, vectors = scipy.linalg.eig(A, M)
    is_finite = np.isfinite(values)
    values, vectors = values[is_finite].real, vectors[:, is_finite]
    order = np.argsort(values, kind="stable")
    values, vectors = values[order], vectors[:, order]
    norms = np.sqrt(np.maximum(np.einsum("ij,ij->j", vectors.conj(), M @ vectors).real, np.finfo(A.dtype).tiny))
    vectors = vectors / norms
    return values, vectors.real if A.dtype.kind != "c" and M.dtype.kind != "c" else vectors


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return float64, or complex128 for a complex dtype: dense problems are solved in double precision."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def rows_of(vectors: Host, dtype: np.dtype[Any], device: Device) -> Array:
    """Return the columns of a host array as rows of a device array."""
    return device.upload(np.ascontiguousarray(vectors.T).astype(dtype))


def agreed(ranks: RankGroup | None, values: Host, vectors: Host) -> tuple[Host, Host]:
    """Return the first rank's `values` and `vectors` on all ranks, because other hosts may compute other signs."""
    if ranks is None:
        return values, vectors
    rows, dtype = np.atleast_2d(values), np.result_type(values, vectors)
    both = ranks.agreed(np.vstack([rows.astype(dtype), vectors.astype(dtype)]))
    first = both[: len(rows)].reshape(values.shape)
    return (first if values.dtype.kind == "c" else first.real).copy(), both[len(rows) :].copy()


def tall_qr(device: Device, ranks: RankGroup | None, columns: Array) -> tuple[Array, Host]:
    """Return Q and R of the QR decomposition of a tall device array. Synchronizes.

    If ranks share the array, each decomposes its own rows, and all decompose the triangles of all ranks (J. Demmel et
    al., "Communication-optimal parallel and sequential QR and LU factorizations", SIAM J. Sci. Comput. 34(1), 2012).

    Returns
    -------
    Q : array
        This rank's rows of Q, on the device.
    R : ndarray, shape (k, k)
        The same on all ranks, on the host.
    """
    Q, R = device.xp.linalg.qr(columns)
    R = device.download(R)
    num_rows, size = R.shape
    if ranks is None or not size:
        return Q, R
    table, number = ranks.tabled(np.concatenate([R.ravel(), np.zeros((size - num_rows) * size, R.dtype)]))
    rotations, R = agreed(ranks, *np.linalg.qr(table.reshape(-1, size)))
    own = rotations[number * size : number * size + num_rows]
    return Q @ device.upload(np.ascontiguousarray(own)), R


def dense_inverse(device: Device, csr: Csr, hermitian: bool) -> Csr:
    """Return the inverse (of a singular matrix, the pseudo-inverse), with all entries stored. Synchronizes.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        A square matrix in canonical form. Singular matrices belong to problems without boundary conditions, whose
        solutions are only determined up to a constant.
    hermitian : bool
        Whether the matrix is Hermitian up to rounding.

    Raises
    ------
    FactorizationError
        If a value is not finite.
    """
    size, dtype = csr.num_rows, np.result_type(csr.dtype, np.float64)
    dense, xp, is_small = dense_of(device, csr).astype(dtype), device.xp, size <= _HOST_ROWS
    if is_small:
        dense, xp = device.download(dense), np  # synchronizes
    if hermitian:
        dense = (dense + dense.conj().T) / 2
    inverse = _inverse(xp, dense, float(np.finfo(csr.dtype).eps), hermitian) if size else dense
    indptr = xp.arange(0, size * size + 1, max(size, 1), dtype=csr.indptr.dtype)[: size + 1]
    columns = xp.tile(xp.arange(size, dtype=csr.indices.dtype), size)
    values = xp.ascontiguousarray(inverse).reshape(-1).astype(csr.dtype)
    if is_small:
        indptr, columns, values = (device.upload(part) for part in (indptr, columns, values))
    return Csr(csr.shape, indptr, columns, values, True)


@with_one_blas_thread
def _inverse(xp: Any, dense: Array, eps: float, hermitian: bool) -> Array:
    try:
        inverse = xp.linalg.inv(dense)
    except np.linalg.LinAlgError:  # NumPy raises it if a pivot is exactly zero
        return _pseudo_inverse(xp, dense, eps, hermitian)
    norms = xp.abs(dense).sum(axis=0).max() * xp.abs(inverse).sum(axis=0).max()
    condition = float(norms)  # synchronizes
    if np.isfinite(condition) and condition <= _REGULAR / eps:
        return (inverse + inverse.conj().T) / 2 if hermitian else inverse
    return _pseudo_inverse(xp, dense, eps, hermitian)


def _pseudo_inverse(xp: Any, dense: Array, eps: float, hermitian: bool) -> Array:
    if not xp.isfinite(dense).all():  # synchronizes
        raise FactorizationError(
            "amg: the coarsest matrix has a value that is not finite, because the values of A are too large for their "
            "dtype, or because A has not the symmetry that was declared: scale A, or leave symmetry= out"
        )
    noise = _NOISE * eps * dense.shape[0] ** 0.5
    if hermitian:
        values, left = xp.linalg.eigh(dense)
        right = left
    else:
        left, values, adjoint = xp.linalg.svd(dense)
        right = adjoint.conj().T
    sizes = xp.abs(values)
    is_noise = sizes <= noise * sizes.max()
    inverses = xp.where(is_noise, 0, 1 / xp.where(is_noise, 1, values))
    return (right * inverses) @ left.conj().T
