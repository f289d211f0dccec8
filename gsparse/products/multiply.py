"""Products: check the arguments → prepare the matrix → launch the kernel → return the result.

`spmv` and `spmm` take a `gsparse.GpuSparseMatrix` or a transposed or conjugated view of one. The result is an array of
the same library as x (NumPy, CuPy, or one of `gsparse.device.interchange`), on the caller's current stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, cast

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.counters import TOTAL, Stats
from gsparse.device.dtypes import Array, compute_dtype, result_dtype, storage_dtype
from gsparse.device.interchange import DenseInput, as_own_array, parse_dense
from gsparse.device.streams import NO_CONTEXT
from gsparse.products.building import Product
from gsparse.products.checks import check_device, check_matrix, check_out, check_scalars, check_x, is_zero
from gsparse.products.prepared import PreparedMatrix
from gsparse.products.transposing import ByColumns
from gsparse.profiling import recording
from gsparse.profiling.recording import span


class MultipliableMatrix(Protocol):
    """The attributes and methods of a matrix that products use."""

    shape: tuple[int, ...]
    device: Device
    stats: Stats

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def _prepared(self, *, transpose: bool = False, adjoint: bool = False) -> tuple[PreparedMatrix, bool]:
        """Return the prepared matrix to multiply by, and whether the product must conjugate its values."""
        ...

    def _factor(
        self, storage: np.dtype[Any], *, transpose: bool, adjoint: bool
    ) -> tuple[PreparedMatrix | ByColumns, bool]:
        """Return the object that one product with values of dtype `storage` uses, and whether to conjugate."""
        ...

    def _host_product(self, x: Array, *, transpose: bool, adjoint: bool) -> Array:
        """Multiply with SciPy, for result dtypes that no kernel supports."""
        ...


def spmv(A: MultipliableMatrix, x: Array, alpha: Any = 1, beta: Any = 0, out: Array | None = None) -> Array:
    """Multiply a sparse matrix by a vector: out = alpha·A·x + beta·out.

    Parameters
    ----------
    A : GpuSparseMatrix
        Of shape (M, N), or a transposed or conjugated view of one.
    x : array_like, shape (N,)
        An array of NumPy, or of CuPy on A's GPU. An array of PyTorch, JAX or Numba is read in place, and the result is
        an array of the same library. A vector is copied first if it is not contiguous, or if its dtype is not the
        compute dtype: the result's dtype, or int64 for integers and booleans.
    alpha, beta : scalar, optional
        If beta is not 0, `out` is required. If beta is 0, the contents of `out` are not read, so a NaN in them has no
        effect.
    out : array, shape (M,), optional
        A contiguous array of the same library as `x` and of the result's dtype, which does not overlap `x`. Nothing is
        allocated if both arrays are on the device, `x` needs no copy, and the result dtype is int64, floating or
        complex.

    Returns
    -------
    array, shape (M,)
        `out` if it was passed. The dtype is NumPy's promotion of A, x, alpha and beta, with float32 in place of
        float16. For a device vector, the call returns when the kernel is in the stream's queue. For a host vector, it
        waits for the result.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError
        Each message says what is required and what was received.
    TypeError
        If A is not a GpuSparseMatrix, or x is sparse.
    ValueError
        If `out` is read-only or overlaps x.
    OverflowError
        If the result has an integer dtype that cannot hold alpha or beta.

    Examples
    --------
    >>> import gsparse, numpy, scipy.sparse
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.diags_array([2.0, 3.0, 4.0]), device="cpu")
    >>> y = numpy.array([1.0, 1.0, numpy.nan])
    >>> gsparse.spmv(A, [1.0, 1.0, 1.0], alpha=10, out=y)
    array([20., 30., 40.])
    """
    return multiply(A, x, alpha=alpha, beta=beta, out=out, ndim=1)


def spmm(A: MultipliableMatrix, x: Array, alpha: Any = 1, beta: Any = 0, out: Array | None = None) -> Array:
    """Multiply a sparse matrix by k dense columns: out = alpha·A·X + beta·out.

    Parameters
    ----------
    A : GpuSparseMatrix
        Of shape (M, N), or a transposed or conjugated view of one.
    x : array_like, shape (N, k)
        X, an array as for `spmv`. On the device, neither a row-major nor a column-major array is copied.
    alpha, beta : scalar, optional
        As for `spmv`.
    out : array, shape (M, k), optional
        An array of the result's dtype, with any strides, whose elements overlap neither each other nor `x`.

    Returns
    -------
    array, shape (M, k)
        `out` if it was passed, else a row-major array. Synchronization is as for `spmv`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError, TypeError, OverflowError
        As for `spmv`.
    ValueError
        If `out` is read-only, overlaps x, or has elements that share memory.

    Examples
    --------
    >>> import gsparse, numpy, scipy.sparse
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.diags_array([2.0, 3.0]), device="cpu")
    >>> gsparse.spmm(A, numpy.ones((2, 3)))
    array([[2., 2., 2.],
           [3., 3., 3.]])
    """
    return multiply(A, x, alpha=alpha, beta=beta, out=out, ndim=2)


@dataclass(frozen=True)
class _Types:
    """The dtypes of one product: of its result, of the computation (None: SciPy computes), and of the values read."""

    result: np.dtype[Any]
    compute: np.dtype[Any] | None
    storage: np.dtype[Any]

    @classmethod
    def of(cls, matrix: np.dtype[Any], vector: np.dtype[Any], alpha: Any = 1, beta: Any = 0) -> _Types:
        result = result_dtype(matrix, vector, alpha, beta)
        compute = compute_dtype(result)
        return cls(result, compute, result if compute is None else storage_dtype(matrix, compute))


_types_of_plain_product = lru_cache(maxsize=256)(_Types.of)


def multiply(
    A: MultipliableMatrix,
    x: Array,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    out: Array | None = None,
    transpose: bool = False,
    adjoint: bool = False,
    ndim: int | None = None,
) -> Array:
    """Compute alpha·op(A)·x + beta·out for a vector or several columns; op is A, its transpose or its adjoint."""
    check_matrix(A)
    vector, target, device = _parse_vector(x), None if out is None else as_own_array(out), A.device
    plain = type(alpha) is type(beta) is int and alpha == 1 and beta == 0
    if not plain:
        check_scalars(alpha=alpha, beta=beta)
    check_device(device, vector)
    x = vector.array
    check_x(A, x, transpose or adjoint, ndim)
    types = _types_of_plain_product(A.dtype, x.dtype) if plain else _Types.of(A.dtype, x.dtype, alpha, beta)
    if out is not None or not plain:
        rows = A.shape[1] if transpose or adjoint else A.shape[0]
        check_out(device, x, target, (rows, *x.shape[1:]), types.result, beta)
    if types.compute is None:
        product = alpha * A._host_product(x, transpose=transpose, adjoint=adjoint)
        product = _copy_to_out(product if is_zero(beta) else product + beta * target, target)
    else:
        prepared, conjugate = A._factor(types.storage, transpose=transpose, adjoint=adjoint)
        with device.active(), device.memory_guard():
            product = _run(prepared, conjugate, types, x, None if plain else (alpha, beta), target, A.stats)
        A.stats.products += 1
        TOTAL.products += 1
    return vector.returned(product) if out is None else out


def multiply_quickly(
    prepared: PreparedMatrix, x: Array, out: Array | None, conjugate: bool, stats: Stats
) -> Array | None:
    """Compute A·x without checks and conversions, or return None if they are necessary.

    Neither is necessary for a contiguous vector on the matrix's device and in its dtype.

    Parameters
    ----------
    prepared : PreparedMatrix
        The current state of the matrix.
    x : array
    out : array or None
        The array for the result. If it is None, a new one is allocated.
    conjugate : bool
        Whether to multiply by the conjugates of the values.
    stats : Stats
        The product is counted here.

    Returns
    -------
    array or None
        The result, which is `out` if it was passed. None if the caller has to use `multiply`; `out` is then unchanged.
    """
    device, csr = prepared.device, prepared.csr
    shape, dtype = csr.shape, csr.data.dtype
    if not device.can_read_vectors(x, out, shape, dtype):
        return None
    product = prepared.plain_product or prepared.own_product()
    if product is None:
        return None
    if out is None:
        out = device.try_empty((shape[0],), dtype)
        if out is None:
            return None
    alpha, beta = product.scalars
    if recording.recorder is None:
        product.multiply(x, out, alpha, beta, conjugate)
    else:
        with _span(product, prepared, stats, x, out):
            product.multiply(x, out, alpha, beta, conjugate)
    stats.products += 1
    TOTAL.products += 1
    return out


def multiply_columns_quickly(prepared: PreparedMatrix, X: Array, conjugate: bool, stats: Stats) -> Array | None:
    """Compute A·X with dense columns without checks and conversions, or return None if they are necessary.

    Returns
    -------
    array or None
        The result. None if the caller has to use `multiply`.
    """
    device, csr, product = prepared.device, prepared.csr, prepared.plain_columns
    shape, dtype = csr.shape, csr.data.dtype
    if not device.can_read_columns(X, shape[1], dtype):
        return None
    if X.shape[1] == 1:
        y = multiply_quickly(prepared, X.reshape(-1), None, conjugate, stats)
        return None if y is None else y.reshape(-1, 1)
    if product is None:
        return None
    Y = device.try_empty((shape[0], X.shape[1]), dtype)
    if Y is None:
        return None
    alpha, beta = product.scalars
    if recording.recorder is None:
        product.multiply(X, Y, alpha, beta, conjugate)
    else:
        with _span(product, prepared, stats, X, Y):
            product.multiply(X, Y, alpha, beta, conjugate)
    stats.products += 1
    TOTAL.products += 1
    return Y


def _run(
    prepared: PreparedMatrix | ByColumns,
    conjugate: bool,
    types: _Types,
    x: Array,
    scalars: tuple[Any, Any] | None,
    out: Array | None,
    stats: Stats,
) -> Array:
    """Copy x to the device if necessary, launch the kernel, and return the result where the caller wants it.

    Parameters
    ----------
    scalars : (scalar, scalar) or None
        alpha and beta; None for 1 and 0.
    stats : Stats
        The counters of the matrix, with the name that a profile shows.
    """
    device, compute = prepared.device, cast(np.dtype[Any], types.compute)
    on_host = not device.owns(x)
    device_x = _compute_array(device, x, compute)
    direct = out is not None and out.dtype == compute and device.owns(out)
    y: Array = out if direct else device.empty((prepared.csr.num_rows, *x.shape[1:]), compute)
    if scalars is not None and not direct and not is_zero(scalars[1]):
        y[...] = _compute_array(device, out, compute)
    launch = partial(_launch, prepared, stats)
    if x.ndim == 1:
        launch(prepared.product(types.storage, compute), device_x, y, scalars, types, conjugate)
    elif x.shape[1] == 1 and device_x.flags.c_contiguous and y.flags.c_contiguous:
        vectors = device_x.reshape(-1), y.reshape(-1)
        launch(prepared.product(types.storage, compute), *vectors, scalars, types, conjugate)
    else:
        launch(prepared.columns(types.storage, compute), device_x, y, scalars, types, conjugate)
    if y is out:
        return out
    if compute != types.result:
        y = y.astype(types.result)  # As NumPy casts: numbers other than 0 become True; narrower integers wrap around.
    return _copy_to_out(device.download_vector(y) if on_host else y, out)


def _launch(
    prepared: PreparedMatrix | ByColumns,
    stats: Stats,
    product: Product,
    x: Array,
    y: Array,
    scalars: tuple[Any, Any] | None,
    types: _Types,
    conjugate: bool,
) -> None:
    if scalars is None:
        alpha, beta = product.scalars
    else:
        alpha, beta = _kernel_scalar(scalars[0], types), _kernel_scalar(scalars[1], types)
    with NO_CONTEXT if recording.recorder is None else _span(product, prepared, stats, x, y):
        product.multiply(x, y, alpha, beta, conjugate)


def _span(product: Product, prepared: PreparedMatrix | ByColumns, stats: Stats, x: Array, y: Array) -> Any:
    """Return the context manager in which an open profile records a product."""
    name = "A @ x" if x.ndim == 1 else f"A @ X, {x.shape[1]} columns"
    if prepared.transpose is not None:
        name = f"{name}, A stored by columns"
    nbytes = product.nbytes + x.nbytes + y.nbytes
    return span("product", name, prepared.device, label_of(prepared, stats, product), nbytes)


def label_of(prepared: PreparedMatrix | ByColumns, stats: Stats, product: Product) -> tuple[Any, ...]:
    """Return the label of a matrix in profiles: its name, shape, number of entries, dtype and format."""
    csr = prepared.csr
    return stats.name, csr.shape, int(csr.data.size), csr.data.dtype, product.format


def _parse_vector(x: Any) -> DenseInput:
    if type(x) is DenseInput:
        return x
    if sp.issparse(x):
        raise TypeError(f"x must be dense, got a sparse {type(x).__name__}: use A @ x, or x.toarray()")
    return parse_dense(x)


def _kernel_scalar(scalar: Any, types: _Types) -> Any:
    """Return alpha or beta in the compute dtype. It is first cast to the result dtype, so that uint64 wraps around."""
    compute = cast(np.dtype[Any], types.compute)
    return compute.type(scalar) if compute == types.result else types.result.type(scalar).astype(compute)


def _compute_array(device: Device, x: Array, compute: np.dtype[Any]) -> Array:
    """Return x on the device in the compute dtype.

    Vectors become contiguous; the columns' memory order does not change.
    """
    if device.owns(x):
        x = x if x.dtype == compute else x.astype(compute)
        return device.xp.ascontiguousarray(x) if x.ndim == 1 else x
    x = x if x.dtype == compute else x.astype(compute)
    if x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous:
        return device.upload(x.T).T
    return device.upload(x)


def _copy_to_out(product: Array, out: Array | None) -> Array:
    if out is None:
        return product
    out[...] = product
    return out
