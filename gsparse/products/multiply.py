"""Products: check → plan → launch → result.

`spmv` and `spmm` take a `gsparse.GpuSparseMatrix` or a transposed or conjugated view of one. NumPy in gives NumPy out,
CuPy in gives CuPy out on the caller's current stream, and so for libraries of `gsparse.device.interchange`.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.counters import TOTAL, Stats
from gsparse.device.dense import DenseInput, parse_dense
from gsparse.device.dtypes import Array, compute_dtype, storage_dtype
from gsparse.device.interchange import taken
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError, ShapeError
from gsparse.products.prepared import Operand

__all__ = ["Multiplicand", "multiply", "multiply_columns_quickly", "multiply_quickly", "result_dtype", "spmm", "spmv"]


class Multiplicand(Protocol):
    """What a product asks of a matrix."""

    shape: tuple[int, ...]
    device: Device
    stats: Stats

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def operand(self, *, transpose: bool = False, adjoint: bool = False) -> tuple[Operand, bool]:
        """Give the operand to multiply by, and whether its values are to be conjugated."""
        ...

    def host_product(self, x: Array, *, transpose: bool, adjoint: bool) -> Array:
        """Multiply through SciPy, where no kernel computes in the result's dtype."""
        ...


def spmv(A: Multiplicand, x: Array, alpha: Any = 1, beta: Any = 0, out: Array | None = None) -> Array:
    """Multiply a sparse matrix by a vector: out = alpha·A·x + beta·out.

    Parameters
    ----------
    A : GpuSparseMatrix
        Of shape (M, N), or a transposed or conjugated view of one.
    x : array_like, shape (N,)
        NumPy, or CuPy on A's GPU; or an array of PyTorch, JAX or Numba, taken where it lies, which gives one of the
        same library. A vector that is not contiguous, or of another dtype than the product is computed in, is copied
        first.
    alpha, beta : scalar, optional
        Where beta is 0, `out` is never read: NaN in it does not survive.
    out : array, shape (M,), optional
        Contiguous, of the result's dtype, not overlapping `x`; NumPy or CuPy as `x` is. With device arrays and a
        result dtype that kernels compute in (floating and complex ones, int64), nothing is allocated.

    Returns
    -------
    array, shape (M,)
        `out` where it was given. The dtype is NumPy's promotion of A, x, alpha and beta. For device vectors the call
        returns when the kernel is in the stream's queue; for host vectors it waits for the result.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError
        Each says what is required and what came.

    Examples
    --------
    >>> import gsparse, numpy, scipy.sparse
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.diags_array([2.0, 3.0, 4.0]), device="cpu")
    >>> y = numpy.array([1.0, 1.0, numpy.nan])
    >>> gsparse.spmv(A, [1.0, 1.0, 1.0], alpha=10, out=y)
    array([20., 30., 40.])
    """
    return multiply(A, x, alpha=alpha, beta=beta, out=out, ndim=1)


def spmm(A: Multiplicand, x: Array, alpha: Any = 1, beta: Any = 0, out: Array | None = None) -> Array:
    """Multiply a sparse matrix by k dense columns: out = alpha·A·X + beta·out.

    Parameters
    ----------
    A : GpuSparseMatrix
        Of shape (M, N), or a transposed or conjugated view of one.
    x : array_like, shape (N, k)
        NumPy, CuPy or as for `spmv`, row- or column-major; neither is copied on the device.
    alpha, beta : scalar, optional
        As for `spmv`.
    out : array, shape (M, k), optional
        Of the result's dtype, of any strides, not overlapping `x`.

    Returns
    -------
    array, shape (M, k)
        Row-major unless `out` was given. Synchronisation as for `spmv`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

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
    """The dtypes of one product: what the caller gets, what kernels compute in, how matrix values are read."""

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
    A: Multiplicand,
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
    _check_matrix(A)
    vector, target, device = _parse_vector(x), taken(out), A.device
    plain = type(alpha) is type(beta) is int and alpha == 1 and beta == 0
    if not plain:
        _check_scalars(alpha=alpha, beta=beta)
    _check_home(device, vector)
    x = vector.array
    _check_x(A, x, transpose or adjoint, ndim)
    types = _types_of_plain_product(A.dtype, x.dtype) if plain else _Types.of(A.dtype, x.dtype, alpha, beta)
    if out is not None or not plain:
        rows = A.shape[1] if transpose or adjoint else A.shape[0]
        _check_out(device, x, target, (rows, *x.shape[1:]), types.result, beta)
    if types.compute is None:
        product = alpha * A.host_product(x, transpose=transpose, adjoint=adjoint)
        product = _deliver(product if _is_zero(beta) else product + beta * target, target)
    else:
        operand, conjugate = A.operand(transpose=transpose, adjoint=adjoint)
        with device.active(), device.memory_guard():
            product = _run(operand, conjugate, types, x, alpha, beta, target)
        A.stats.products += 1
        TOTAL.products += 1
    return vector.returned(product) if out is None else out


def multiply_quickly(A: Any, x: Array, out: Array | None = None) -> Array | None:
    """Compute A·x where nothing has to be made, brought or cast first: a product this matrix has computed before.

    Returns
    -------
    array or None
        None where `multiply` has to look closer.
    """
    operand = A.resident_operand()
    if operand is None or operand.own_product is None:
        return None
    device, csr, product = operand.device, operand.csr, operand.own_product
    if not device.takes(x, out, csr.shape, csr.data.dtype):
        return None
    if out is None:
        out = device.try_empty((csr.shape[0],), csr.data.dtype)
        if out is None:
            return None
    product.multiply(x, out, *product.scalars, False)
    A.stats.products += 1
    TOTAL.products += 1
    return out


def multiply_columns_quickly(A: Any, X: Array) -> Array | None:
    """Compute A·X in the same case for dense columns.

    Returns
    -------
    array or None
        None where `multiply` has to look closer.
    """
    operand = A.resident_operand()
    if operand is None or operand.own_columns is None:
        return None
    device, csr, product = operand.device, operand.csr, operand.own_columns
    if not device.takes_columns(X, csr.shape[1], csr.data.dtype):
        return None
    Y = device.try_empty((csr.shape[0], X.shape[1]), csr.data.dtype)
    if Y is None:
        return None
    product.multiply(X, Y, *product.scalars, False)
    A.stats.products += 1
    TOTAL.products += 1
    return Y


def _run(operand: Operand, conjugate: bool, types: _Types, x: Array, alpha: Any, beta: Any, out: Array | None) -> Array:
    device, compute = operand.device, cast(np.dtype[Any], types.compute)
    on_host = not device.owns(x)
    device_x = _compute_array(device, x, compute)
    direct = out is not None and out.dtype == compute and device.owns(out) and not _is_on_loan_of(operand, out)
    y: Array = out if direct else device.empty((operand.csr.num_rows, *x.shape[1:]), compute)
    read_y = not _is_zero(beta)
    if read_y and not direct:
        y[...] = _compute_array(device, out, compute)
    scalars = _kernel_scalar(alpha, types), _kernel_scalar(beta, types)
    if x.ndim == 1:
        operand.product(types.storage, compute).multiply(device_x, y, *scalars, conjugate)
    elif x.shape[1] == 1 and device_x.flags.c_contiguous and y.flags.c_contiguous:
        vectors = device_x.reshape(-1), y.reshape(-1)
        operand.product(types.storage, compute).multiply(*vectors, *scalars, conjugate)
    else:
        operand.columns(types.storage, compute).multiply(device_x, y, *scalars, conjugate)
    if y is out:
        return out
    if compute != types.result:
        y = y.astype(types.result)  # (to bool: whether it is not 0; to a narrower integer: modulo its size)
    return _deliver(device.download_vector(y) if on_host else y, out)


def result_dtype(matrix: np.dtype[Any], vector: np.dtype[Any], alpha: Any = 1, beta: Any = 0) -> np.dtype[Any]:
    """Give the dtype of a product, SciPy's and NumPy's promotion; half precision is computed and given as float32.

    Examples
    --------
    >>> import numpy as np
    >>> result_dtype(np.dtype("int8"), np.dtype("float32"))
    dtype('float32')
    """
    scalars = [s for s in (alpha, beta) if not (type(s) is int and s in (0, 1))]  # 1 and 0 promote nothing, not bool
    try:
        dtype = np.result_type(matrix, vector, *scalars)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufc":
        raise DtypeError(
            f"a product needs numbers, got a matrix of {matrix} and a vector of {vector}: use astype(float)"
        )
    if dtype.kind in "iu":
        for scalar in scalars:
            dtype.type(scalar)  # NumPy's own OverflowError where it does not fit
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _parse_vector(x: Any) -> DenseInput:
    if sp.issparse(x):
        raise TypeError(f"x must be dense, got a sparse {type(x).__name__}: use A @ x, or x.toarray()")
    return parse_dense(x)


def _check_home(device: Device, x: DenseInput) -> None:
    """Refuse a vector of another GPU."""
    if x.home is not None and x.home is not device:
        raise DeviceError(f"the matrix lives on {device.name}, the vector on {x.home.name}: bring one to the other")


def _check_matrix(A: Multiplicand) -> None:
    if not hasattr(A, "operand"):
        raise TypeError(f"A must be a GpuSparseMatrix or a view of one, got {type(A).__name__}: use GpuSparseMatrix(A)")
    if len(A.shape) != 2:
        raise ShapeError(f"A must have two dimensions, got shape {A.shape}: use A.reshape(1, -1)")


def _check_x(A: Multiplicand, x: Array, transposed: bool, ndim: int | None) -> None:
    wanted = A.shape[0] if transposed else A.shape[1]
    if x.ndim not in ((1, 2) if ndim is None else (ndim,)) or x.shape[0] != wanted:
        shape = {1: f"({wanted},)", 2: f"({wanted}, k)", None: f"({wanted},) or ({wanted}, k)"}[ndim]
        raise ShapeError(f"dimension mismatch: A of shape {A.shape} takes x of shape {shape}, got {x.shape}")


def _check_out(
    device: Device, x: Array, out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], beta: Any
) -> None:
    if out is None:
        if not _is_zero(beta):
            raise ShapeError("beta scales what out holds: give out=, or leave beta at 0")
        return
    if type(out) is not type(x) and not (isinstance(out, np.ndarray) and isinstance(x, np.ndarray)):
        raise DeviceError(f"out must be an array of the kind x is, {type(x)}, got {type(out)}")
    if device_of(out) is not device_of(x):  # on GPUs only
        raise DeviceError(f"out must live where x does, on {device.name}")
    if out.shape != shape:
        raise ShapeError(f"out must have shape {shape}, got {out.shape}")
    if out.dtype != dtype:
        raise DtypeError(f"out must have the product's dtype {dtype}, got {out.dtype}")
    if out.ndim == 1 and not out.flags.c_contiguous:
        raise ShapeError(f"out must be contiguous, got strides {out.strides}: use a temporary and copy")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only: give a writable array")
    if _overlap(device.xp if device.owns(x) else np, x, out):
        raise ValueError("x and out overlap: a product cannot be computed in place, give another out")


def _overlap(xp: Any, x: Array, out: Array) -> bool:
    """Tell whether two arrays share an element; columns of one array may lie between each other's."""
    return bool(xp.may_share_memory(x, out) and (x.ndim == 1 or xp.shares_memory(x, out)))


def _is_on_loan_of(operand: Operand, out: Array) -> bool:
    """Tell whether `out` is one of the matrix's own arrays on loan, which a kernel would read while it writes."""
    on_loan = operand.request.expected_products == 1
    return on_loan and any(operand.device.xp.may_share_memory(out, array) for array in operand.source)


def _check_scalars(**scalars: Any) -> None:
    for name, scalar in scalars.items():
        if getattr(scalar, "ndim", 0):
            raise ShapeError(f"{name} must be a scalar, got an array: multiply by it outside the product")
        if not isinstance(scalar, numbers.Number | np.generic) and getattr(scalar, "ndim", None) != 0:
            raise DtypeError(f"{name} must be a number, got {type(scalar).__name__}")


def _kernel_scalar(scalar: Any, types: _Types) -> Any:
    """Give a factor in the compute dtype; to integers by way of the result's, so that uint64 wraps."""
    compute = cast(np.dtype[Any], types.compute)
    return compute.type(scalar) if compute == types.result else types.result.type(scalar).astype(compute)


def _is_zero(scalar: Any) -> bool:
    return bool(scalar == 0)


def _compute_array(device: Device, x: Array, compute: np.dtype[Any]) -> Array:
    """Bring x to the device in the compute dtype: vectors contiguous, columns in whichever order they are."""
    if device.owns(x):
        x = x if x.dtype == compute else x.astype(compute)
        return device.xp.ascontiguousarray(x) if x.ndim == 1 else x
    x = x if x.dtype == compute else x.astype(compute)
    if x.ndim == 2 and x.flags.f_contiguous and not x.flags.c_contiguous:
        return device.upload(x.T).T
    return device.upload(x)


def _deliver(product: Array, out: Array | None) -> Array:
    if out is None:
        return product
    out[...] = product
    return out
