"""Matrices that are made of others, and the names of `gsparse.sparse`, which are those of `scipy.sparse`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.joined_matrices import block_array, block_diag, hstack, vstack
from gsparse.matrix.matrix_flavour import CsrMatrix
from gsparse.matrix.matrix_product import MatrixProduct
from gsparse.matrix.operands import csr_operands, in_format, made, matrices_of, on_host
from gsparse.matrix.simple_matrices import coo_array, diags_array, eye_array, random_array
from gsparse.sparse.canonical import canonical, kronecker
from gsparse.sparse.reshaping import triangle


def kron(A: Any, B: Any, format: str | None = None, *, device: Any = None) -> Any:
    """Return the Kronecker product of two matrices, as `scipy.sparse.kron` does.

    Parameters
    ----------
    A, B : matrix
        Sparse or dense, of the host or of a device. An entry that A or B does not store makes none in the result.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default where the first operand lives that is on a device.

    Returns
    -------
    GpuSparseMatrix
        In canonical form, of the dtype that NumPy gives the product of both dtypes, where SciPy's result is of float64
        if A or B has no entries. Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.kron(sp.eye_array(2, device="cpu"), [[1.0, 2.0]]).toarray()
    array([[1., 2., 0., 0.],
           [0., 0., 1., 2.]])
    """
    home, (a, b) = csr_operands(device, A, B)
    if a is None or b is None:
        return in_format(GpuSparseMatrix(sp.kron(on_host(A), on_host(B)), device=home), format, (A, B))
    with home.active(), home.memory_guard():
        csr = kronecker(home, a, b)
    return made(home, csr, format, (A, B))


def kronsum(A: Any, B: Any, format: str | None = None, *, device: Any = None) -> Any:
    """Return the Kronecker sum of two square matrices, as `scipy.sparse.kronsum` does.

    Parameters
    ----------
    A, B : matrix
        Square, sparse or dense, of the host or of a device.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default where the first operand lives that is on a device.

    Returns
    -------
    GpuSparseMatrix
        The sum of ``kron(I, A)`` and ``kron(B, I)``, each with the identity of the size of the other matrix, in
        canonical form. Synchronizes.

    Raises
    ------
    ValueError
        If A or B is not square.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(30, 30), device="cpu")
    >>> sp.kronsum(line, line).shape
    (900, 900)
    """
    operands = A, B
    home, (A, B) = matrices_of(device, operands)
    for name, matrix in (("A", A), ("B", B)):
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"{name} is not square")
    dtype = np.result_type(A.dtype, B.dtype)
    left = kron(eye_array(B.shape[0], dtype=dtype, device=home), A)
    return in_format(left + kron(B, eye_array(A.shape[0], dtype=dtype, device=home)), format, operands)


def tril(A: Any, k: int = 0, format: str | None = None, *, device: Any = None) -> Any:
    """Return the entries on and below a diagonal, as `scipy.sparse.tril` does.

    Parameters
    ----------
    A : matrix
        Sparse or dense, of the host or of a device.
    k : int
        The diagonal: 0 is the main one, and positive numbers lie above it.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default where A does.

    Returns
    -------
    GpuSparseMatrix
        Of the shape of A, in canonical form. Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.tril([[1.0, 2.0], [3.0, 4.0]], device="cpu").toarray()
    array([[1., 0.],
           [3., 4.]])
    """
    return _triangle(A, k, format, device, upper=False)


def triu(A: Any, k: int = 0, format: str | None = None, *, device: Any = None) -> Any:
    """Return the entries on and above a diagonal, as `scipy.sparse.triu` does.

    Parameters
    ----------
    A, k, format, device : optional
        As those of `gsparse.sparse.tril`.

    Returns
    -------
    GpuSparseMatrix
        Of the shape of A, in canonical form. Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.triu([[1.0, 2.0], [3.0, 4.0]], device="cpu").toarray()
    array([[1., 2.],
           [0., 4.]])
    """
    return _triangle(A, k, format, device, upper=True)


def _triangle(A: Any, k: int, format: str | None, device: Any, *, upper: bool) -> Any:
    home, (csr,) = csr_operands(device, A)
    if csr is None:
        return in_format(GpuSparseMatrix((sp.triu if upper else sp.tril)(on_host(A), k), device=home), format, (A,))
    with home.active(), home.memory_guard():
        csr = triangle(home, canonical(home, csr), int(k), upper)
    return made(home, csr, format, (A,))


def find(A: Any) -> Any:
    """Return rows, columns and values of the entries that are not 0, as `scipy.sparse.find` does.

    Parameters
    ----------
    A : matrix
        Sparse or dense, of the host or of a device.

    Returns
    -------
    rows : ndarray of int, shape (n,)
        On the host. Synchronizes.
    columns : ndarray of int, shape (n,)
        On the host.
    values : ndarray, shape (n,)
        On the host.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> rows, columns, values = sp.find(sp.eye_array(2, k=1, n=3, device="cpu"))
    >>> columns.tolist()
    [1, 2]
    """
    return sp.find(on_host(A))


PUBLIC_NAMES: dict[str, Any] = {
    "MatrixProduct": MatrixProduct,
    "csr_array": GpuSparseMatrix,
    "csr_matrix": CsrMatrix,
    "issparse": sp.issparse,
    **{
        function.__name__: function
        for function in (
            *(coo_array, diags_array, eye_array, kron, kronsum, block_array, block_diag, hstack, vstack),
            *(tril, triu, find, random_array),
        )
    },
}
