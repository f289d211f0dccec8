"""Products and solves with a matrix whose values are an argument, and their derivatives.

Libraries that differentiate automatically (`gsparse.torch`, `gsparse.jax`) call these functions, which import none of
them. A(v) is the matrix with the structure of A and the values v. The three functions below are enough to express each
other's derivatives. G is the gradient of a real number with respect to the result. As in PyTorch, a small change dz of
an argument z changes that number by the real part of conj(gradient of z)·dz.

    function                                              gradients

    product         y = A(v)·x                            v: G_i·conj(x_j)            x: A(v)ᴴ·G
      adjoint       y = A(v)ᴴ·x                           v: x_i·conj(G_j)            x: A(v)·G
    entry_products  y_(i,j) = l_i·conj(r_j)               l: A(G)·r                   r: A(G)ᴴ·l
    solution        A(v)·x = b, with A(v)ᴴ·w = G          v: -w_i·conj(x_j)           b: w
      adjoint       A(v)ᴴ·x = b, with A(v)·w = G          v: -x_i·conj(w_j)           b: w

Products such as G_i·conj(x_j) are computed only for the entries (i, j) of A. If the vectors have several columns, the
products are summed over the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.interchange import DenseInput, parse_dense
from gsparse.errors import DtypeError, ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.accelerated import AdjointOperator
from gsparse.linalg.operators import as_operator
from gsparse.linalg.registry import METHODS
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix
from gsparse.products.checks import check_device, check_matrix
from gsparse.products.multiply import multiply
from gsparse.products.prepared import PreparedMatrix

# A row of the transpose is long if it has more than _LONG_ROW entries and more than _LONG_RATIO times the mean. The
# kernel `product_gradients` is slow for such rows, because it has only a few threads per row.
_LONG_ROW, _LONG_RATIO = 2048, 32


def parse_matrix(A: Any) -> DeviceMatrix:
    """Return A if it is a two-dimensional matrix on a device; raise an error otherwise.

    Raises
    ------
    TypeError, ShapeError, DtypeError
        The message says what is required and what was passed.
    """
    check_matrix(A)
    if A.dtype.char in HOST_ONLY:
        raise DtypeError(f"{A.dtype} has no device arithmetic: use A.astype(float)")
    matrix: DeviceMatrix = A
    return matrix


def check_square_solver(solver: Callable[..., Any]) -> None:
    """Raise an error for a function of `gsparse.linalg` that does not solve square systems.

    Raises
    ------
    ValueError
        If `solver` is a preconditioner, an eigensolver, or a solver for least squares.
    """
    method = METHODS.get(getattr(solver, "__name__", ""))
    if method is not None and (method.kind != "solver" or method.least_squares):
        raise ValueError(f"solver must be one for square systems, such as gsparse.linalg.cg, got {method.name}")


def with_values(A: DeviceMatrix, values: Any, *, symmetric: bool | None = None) -> DeviceMatrix:
    """Return A with other values, in CSR format, because a conversion does not pay for few products.

    Parameters
    ----------
    A : DeviceMatrix
    values : array, shape (nnz,), or None
        Of dtype float32, float64, complex64 or complex128, in the order of ``A.data``. They are not copied if they are
        on the device of A. They must not be written while the matrix is in use. None: return A itself.
    symmetric : bool or None
        Whether the matrix is symmetric; None to test it when it matters.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    if values is None:
        return A
    data = parse_dense(values)
    check_device(A.device, data)
    if data.shape != (A.nnz,):
        raise ShapeError(f"a matrix with {A.nnz} stored entries takes as many values, got shape {data.shape}")
    if data.dtype.kind not in "fc" or data.dtype.char in HOST_ONLY or data.dtype.itemsize < 4:
        raise DtypeError(f"values must be float32, float64, complex64 or complex128, got {data.dtype}: convert them")
    arrays = A._arrays.with_values(_on_device(A.device, data), A._stored_shape)
    known = arrays.prepared
    assert known is not None
    options = replace(arrays.options, symmetric=symmetric)
    arrays.prepared = PreparedMatrix.of_result(A.device, known.csr, options, known.structure, known.source)
    matrix: DeviceMatrix = A._with_arrays(arrays, A.shape)
    return matrix


def product(A: DeviceMatrix, values: Any, x: Any, *, adjoint: bool = False) -> Any:
    """Return A(values)·x, or A(values)ᴴ·x with `adjoint`, as an array of the same library as x.

    Parameters
    ----------
    A : DeviceMatrix
    values : array, shape (nnz,), or None
        See `with_values`.
    x : array, shape (N,) or (N, k)
        With `adjoint`, of shape (M,) or (M, k).
    adjoint : bool

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError
    """
    matrix = with_values(A, values, symmetric=False)
    if adjoint and values is not None:
        _remember_transposition(matrix)
    return multiply(matrix, x, adjoint=adjoint)


def entry_products(A: DeviceMatrix, left: Any, right: Any) -> Any:
    """Return left_i·conj(right_j) for each entry (i, j) of A, summed over columns, in the order of ``A.data``.

    Parameters
    ----------
    A : DeviceMatrix
        Its values are not read.
    left : array, shape (M,) or (M, k)
    right : array, shape (N,) or (N, k)
        Of the dtype of `left`.

    Returns
    -------
    array, shape (nnz,)
        Of the library of `left`, on the host or on the device as `left`.

    Raises
    ------
    ShapeError, DtypeError
        If the arrays do not fit the shape of A, or differ in their number of columns or their dtype.
    DeviceError
        If an array is on another GPU than A.
    """
    device, one, other = A.device, parse_dense(left), parse_dense(right)
    _check_pair(A, one, other)
    with device.active(), device.memory_guard():
        arrays = [_as_columns(device, array) for array in (one, other)]
        structure, by_columns = A._arrays.current(A._stored_shape).structure, A._by_columns
        rows, columns = structure.row_numbers, structure.sparsity.csr.indices
        if by_columns:
            arrays.reverse()
        dots = kernels_of(device).edits.dot_rows(device, rows, columns, *arrays)
        # The stored rows are the columns of A, so the kernel returns the conjugates of the products.
        dots = device.xp.conj(dots) if by_columns and dots.dtype.kind == "c" else dots
        dots = one.copy_back(device, dots)
    return one.returned(dots)


def product_gradients(A: DeviceMatrix, values: Any, gradient: Any, x: Any) -> tuple[Any, Any]:
    """Return the gradients of A(values)·x with respect to x and to `values`.

    They are A(values)ᴴ·gradient and ``entry_products(A, gradient, x)``. One pass over the entries computes both, unless
    A is a transposed view or has a column that is much longer than the mean.

    Parameters
    ----------
    A : DeviceMatrix
    values : array, shape (nnz,)
    gradient : array, shape (M,) or (M, k)
    x : array, shape (N,) or (N, k)
        All arrays are of one dtype, and `x` and `gradient` of one library on one device.

    Returns
    -------
    array, shape (N,) or (N, k)
    array, shape (nnz,)
        Both of the library of `x`, on the host or on the device as `x`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        As `entry_products` does.
    """
    device = A.device
    if A._by_columns or _has_long_columns(A):
        return product(A, values, gradient, adjoint=True), entry_products(A, gradient, x)
    G, v, vector = (parse_dense(array) for array in (gradient, values, x))
    _check_pair(A, G, vector)
    with device.active(), device.memory_guard():
        transposed, positions = A._arrays.current(A._stored_shape).structure.transposition
        arrays = (_on_device(device, v), _as_columns(device, G), _as_columns(device, vector))
        of_x, of_values = kernels_of(device).edits.product_gradients(
            device, transposed.sparsity.csr.with_data(positions), *arrays
        )
        of_x, of_values = (vector.copy_back(device, part) for part in (of_x.reshape(vector.shape), of_values))
    return vector.returned(of_x), vector.returned(of_values)


def solution(
    A: DeviceMatrix,
    values: Any,
    b: Any,
    solver: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    adjoint: bool = False,
) -> Any:
    """Return the solution of A(values)·x = b, or of A(values)ᴴ·x = b with `adjoint`.

    The `info` of the solver is dropped. Solvers of `gsparse.linalg` warn if they have not converged.

    Parameters
    ----------
    A : DeviceMatrix
    values : array, shape (nnz,), or None
    b : array, shape (N,) or (N, k)
    solver : callable
        A solver of `gsparse.linalg`. If it needs a Hermitian matrix, A and `M` are not transposed for `adjoint`.
    options : mapping
        Arguments of the solver. The preconditioner `M` is one for A(values), even if `adjoint` is set.
    adjoint : bool
    """
    matrix = with_values(A, values)
    options = dict(options)
    method = METHODS.get(getattr(solver, "__name__", ""))
    if adjoint and not (method is not None and method.hermitian):
        if values is not None:
            _remember_transposition(matrix)
        matrix = matrix.H
        if options.get("M") is not None:
            options["M"] = AdjointOperator(as_operator(options["M"], matrix.device, "M"))
    x, _ = solver(matrix, b, **options)
    return x


def _remember_transposition(matrix: DeviceMatrix) -> None:
    """Compute the transposed structure now, so that transposing a matrix of this structure only reorders its values."""
    device = matrix.device
    with device.active(), device.memory_guard():
        _ = matrix._arrays.current(matrix._stored_shape).structure.transposition


def _has_long_columns(A: DeviceMatrix) -> bool:
    """Return whether a column is much longer than the others. Synchronizes the first time."""
    device = A.device
    with device.active(), device.memory_guard():
        rows = A._arrays.current(A._stored_shape).structure.transposition[0].sparsity.rows
    return bool(rows.max_length > max(_LONG_ROW, _LONG_RATIO * rows.mean_length))


def _check_pair(A: DeviceMatrix, left: DenseInput, right: DenseInput) -> None:
    for array in (left, right):
        check_device(A.device, array)
    expected = tuple((size, *left.shape[1:]) for size in A.shape)
    if left.ndim not in (1, 2) or (left.shape, right.shape) != expected:
        raise ShapeError(
            f"a matrix of shape {A.shape} takes arrays of shapes {expected}, got {left.shape}, {right.shape}"
        )
    if left.dtype != right.dtype:
        raise DtypeError(f"both arrays must have one dtype, got {left.dtype} and {right.dtype}")


def _on_device(device: Device, array: DenseInput) -> Array:
    """Return a row-major array on a device. It shares memory with the caller's array if no copy is needed."""
    if device.owns(array.array):
        return device.xp.ascontiguousarray(array.array)
    return device.upload(np.ascontiguousarray(array.array))


def _as_columns(device: Device, array: DenseInput) -> Array:
    """Return a vector, or a matrix of several columns, as a two-dimensional array on a device."""
    return _on_device(device, array).reshape(array.shape[0], *(array.shape[1:] or (1,)))
