"""Elementwise products and quotients, and comparisons with a scalar whose results are sparse.

A dense operand lives on the host or on the device of the matrix. The product or quotient of a matrix and a dense array
is sparse.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.dtypes import HOST_ONLY, Array, compute_dtype
from gsparse.device.select import device_of
from gsparse.errors import DeviceError
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.host_operations import run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.reductions import lines_of
from gsparse.matrix.sparse_operations import csr_of, matrix_of, shape_mismatch, with_values
from gsparse.sparse.arithmetic import combine, scaled_values
from gsparse.sparse.reshaping import dense_of, repeated

# ---------------------------------------------------------------------------------------------------- operands


def is_scalar(value: Any) -> bool:
    """Return whether a value is a scalar to SciPy, or an array of the device without dimensions."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return bool(np.isscalar(value) or (is_on_device(value) and value.ndim == 0))


def is_on_device(value: Any) -> bool:
    """Return whether a value is a dense array of a GPU."""
    return device_of(value) is not None and not hasattr(value, "tocsr")


def is_zero_dimensional_object(value: Any) -> bool:
    """Return whether NumPy can only wrap the value as one object, whose class may define the operation."""
    array = np.asanyarray(value)
    return bool(array.ndim == 0 and array.dtype == object)


def check_home(matrix: MatrixLike, other: Any) -> None:
    """Raise an error if `other` is an array of a GPU on which the matrix does not live."""
    home = device_of(other)
    if home is not None and home is not matrix.device:
        raise DeviceError(f"the matrix lives on {matrix.device.name}, the array on {home.name}: bring one to the other")


def _array_of(matrix: MatrixLike, other: Any) -> Any:
    """Return an operand as an array of the matrix's device or of NumPy; None for an object of another kind.

    Raises
    ------
    DeviceError
        If the operand lives on a GPU on which the matrix does not live.
    """
    if isinstance(other, np.ndarray):
        return np.asarray(other)
    if device_of(other) is not None:
        check_home(matrix, other)
        return other
    return None if is_zero_dimensional_object(other) else np.asarray(other)


def _is_computed_here(matrix: MatrixLike, other: Any) -> bool:
    """Return whether kernels support the dtypes of a matrix and of a dense array."""
    own, others = matrix.dtype, other.dtype
    return not (own.char in HOST_ONLY or others.char in HOST_ONLY) and own.kind in "biufc" and others.kind in "biufc"


# ------------------------------------------------------------------------------------- products and quotients


def multiply_dense(matrix: MatrixLike, other: Any) -> Any:
    """Multiply a matrix by a dense array, element by element; return a matrix of the same structure.

    Raises
    ------
    ValueError
        If the shapes do not match.
    """
    factors = _array_of(matrix, other)
    if factors is None:
        return NotImplemented
    product = _scaled(matrix, factors)
    return run_on_host(matrix, "multiply", other) if product is None else product


def divide_by_dense(matrix: MatrixLike, other: Any) -> Any:
    """Divide a matrix by a dense array: multiply by the reciprocals, as SciPy does."""
    divisors = _array_of(matrix, other)
    if divisors is None:
        return NotImplemented
    quotient = None
    if _is_computed_here(matrix, divisors):
        with matrix.device.active():
            quotient = _scaled(
                matrix, (np if isinstance(divisors, np.ndarray) else matrix.device.xp).divide(1, divisors)
            )
    return run_on_host(matrix, "__truediv__", other) if quotient is None else quotient


def _scaled(matrix: MatrixLike, factors: Array) -> Any:
    """Multiply each entry by the factor in its row and column. Return None if SciPy has to compute the product."""
    if not _is_computed_here(matrix, factors):
        return None  # extended precision
    if factors.dtype == np.float16:  # With float16, SciPy may return a matrix that its methods refuse to convert.
        factors = factors.astype(np.float32)
    if factors.ndim > 2 or (matrix.shape in ((1,), (1, 1)) and factors.size != 1):
        return _dense_product(matrix, factors)
    new_shape, shape = _broadcast_shape(matrix.shape, factors.shape), (1, *factors.shape)[-2:]
    device, prepared = matrix.device, matrix._arrays.current(matrix._stored_shape)
    if isinstance(factors, np.ndarray):
        factors = device.upload(factors)
    with device.active(), device.memory_guard():
        factors = factors.reshape(shape).T if matrix._by_columns else factors.reshape(shape)
        csr = repeated(device, prepared.csr, factors.shape)
        values = csr.with_data(device.xp.conjugate(csr.data)) if matrix._arrays.data.conjugated else csr
        values = scaled_values(device, values, factors)
    # A matrix's arrays may be longer than its last row pointer says, but `values` is not longer. So they do not fit.
    if new_shape != matrix.shape or matrix._arrays.indices.current_array().size != csr.nnz:
        return matrix_of(matrix, csr.with_data(values), new_shape, type(matrix))
    return with_values(matrix, values, (True,) if factors.size == 1 else ())


def _broadcast_shape(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape of a matrix and of factors, which is usually the shape of the matrix.

    Raises
    ------
    ValueError
        If the shapes do not match.
    """
    rows, columns = (1, 1, *other)[-2:]
    if len(shape) == 2 and rows in (1, shape[0]) and columns in (1, shape[1]):
        return shape
    try:
        return np.broadcast_shapes(shape, other)
    except ValueError:
        raise shape_mismatch(shape, other, broadcasts=True) from None


def _dense_product(matrix: MatrixLike, factors: Array) -> Any:
    """Multiply elementwise where SciPy's result is dense: with more than two dimensions, or a matrix of one element."""
    if factors.ndim <= 2:
        return (factors * matrix.sum()).reshape(np.broadcast_shapes(matrix.shape, factors.shape))
    if isinstance(factors, np.ndarray):
        return np.multiply(matrix.toarray(), factors)
    with matrix.device.active(), matrix.device.memory_guard():
        return matrix.toarray(out=matrix.device.xp.empty(matrix.shape, matrix.dtype)) * factors


def divide_by_sparse(matrix: MatrixLike, other: Any) -> Any:
    """Divide by a sparse matrix of the same shape, as SciPy does: the result is dense, with NaN for 0 / 0.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if other.shape != matrix.shape:
        raise shape_mismatch(matrix.shape, other.shape, broadcasts=False)
    if HOST_ONLY.find(matrix.dtype.char) >= 0 or other.dtype.char in HOST_ONLY:
        return run_on_host(matrix, "__truediv__", other)
    # SciPy divides in double precision, and drops imaginary parts if the dividend is real.
    result = np.dtype(np.float64) if np.can_cast(matrix.dtype, np.float64) else matrix.dtype
    device, dtype = matrix.device, np.result_type(result, other.dtype)
    parts = [csr_of(matrix, part, matrix._by_columns) for part in (matrix, other)]
    with device.active(), device.memory_guard(), np.errstate(all="ignore"):
        dividend, divisor = (dense_of(device, csr.with_data(csr.data.astype(dtype, copy=False))) for csr in parts)
        quotient = dividend / divisor
        if dtype.kind == "c":  # 0 / 0 is NaN without an imaginary part.
            quotient = device.xp.where((dividend == 0) & (divisor == 0), dtype.type(np.nan), quotient)
    host = device.download_vector(quotient)  # synchronizes
    host = host.reshape(matrix.shape) if matrix.ndim == 1 else host.T if matrix._by_columns else host
    return matrix._ascontainer(host.astype(result, copy=False))


# ------------------------------------------------------------------------------------------------- scalars

# For each of SciPy's methods with a scalar: a function that computes it, and the kernels' name of the operation.
_WITH_SCALAR: dict[str, tuple[Callable[[Any, Any], Any], str | None]] = {
    "maximum": (np.maximum, "maximum"),
    "minimum": (np.minimum, "minimum"),
    "__ne__": (operator.ne, "ne"),
    "__lt__": (operator.lt, "lt"),
    "__gt__": (operator.gt, "gt"),
    "__eq__": (operator.eq, None),
    "__le__": (operator.le, None),
    "__ge__": (operator.ge, None),
}
# The kernels' names of the opposites of comparisons that they cannot compute.
_OPPOSITES = {"__eq__": "ne", "__le__": "gt", "__ge__": "lt"}


def sparse_result(matrix: MatrixLike, name: str, scalar: Any) -> Any:
    """Return the result of an operation that returns 0 for 0 and the scalar; None if SciPy has to compute it."""
    function, operation = _WITH_SCALAR[name]
    common = _common_dtype(matrix.dtype, scalar)
    if common is None:
        return None
    is_direct = _compares_exactly(matrix, operation, common, scalar)
    device, (csr, _) = matrix.device, lines_of(matrix, None, summed=True)
    with device.active(), device.memory_guard():
        if is_direct:
            apply = getattr(device.xp, name) if name in ("maximum", "minimum") else function
            other = common.type(scalar)
            values = device.map_values(lambda part: apply(part.astype(common, copy=False), other), csr.data)
            result = kernels_of(device).sparse_rows.drop_zeros(device, csr.with_data(values))
        else:
            # Compare with a matrix of the same structure whose values are the scalar: kernels handle subnormal numbers
            # exactly.
            scalars = csr.with_data(device.xp.full(csr.nnz, scalar, common))
            result = combine(device, operation or _OPPOSITES[name], csr, scalars)
            if operation is None:  # the entries for which the opposite is false
                result = combine(device, "ne", csr.with_data(device.xp.ones(csr.nnz, np.bool_)), result)
        result = replace(result, is_canonical=True)
    return matrix_of(matrix, result, matrix.shape, type(matrix))


def _compares_exactly(matrix: MatrixLike, operation: str | None, common: np.dtype[Any], scalar: Any) -> bool:
    """Return whether the array module compares exactly. CuPy does not, because it treats subnormal float32 as 0."""
    if matrix.device.is_host:
        return True
    if common.kind == "c":
        return False
    is_extreme = operation in ("maximum", "minimum")
    return common != np.float32 or (not is_extreme and bool(abs(scalar) >= np.finfo(common).tiny))


def _common_dtype(dtype: np.dtype[Any], scalar: Any) -> np.dtype[Any] | None:
    """Return the dtype in which NumPy compares values with a scalar; None if kernels do not compare in it."""
    try:
        common = np.result_type(dtype, scalar)
        common.type(scalar)
    except (TypeError, ValueError, OverflowError):  # for instance an integer that the dtype does not hold
        return None
    return None if common.kind not in "biufc" or compute_dtype(common) is None else common
