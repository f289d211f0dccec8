"""Sums, differences, extremes and comparisons of a matrix with a matrix, a dense array or a scalar.

The result is sparse if the operation returns 0 for 0 and 0, or for 0 and the scalar. For a comparison that is true for
zeros, such as ``==``, the opposite comparison is computed first. The result has an entry wherever the opposite has no
entry.
Results with a dense array are dense: on the host for a NumPy array, on the device for an array of the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY, Array, result_dtype
from gsparse.formats import Csr
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.matrix.dense_operands import check_home, is_on_device, is_scalar, is_zero_dimensional_object, sparse_result
from gsparse.matrix.host_operations import run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.reductions import lines_of
from gsparse.matrix.sparse_operations import combine_sparse, combined, is_sparse, matrix_of, shape_mismatch
from gsparse.sparse.construction import check_dtype
from gsparse.sparse.editing import missing_entries
from gsparse.sparse.reshaping import added_to, dense_of, full


class Combination(NamedTuple):
    """A method of SciPy that combines a matrix with a second operand.

    Attributes
    ----------
    function : callable
        ``function(xp, matrix, other)`` combines dense arrays of the array module `xp`.
    kernel : str
        The kernels' name of the operation, or of its opposite if it is a comparison that is true for 0 and 0.
    reflected : bool
        Whether the matrix is the second operand, as in ``other - A``.
    symbol, opposite : str
        The operators of a comparison and of its opposite, which SciPy's warnings name.
    opposite_method : str
        The name of the method of the opposite comparison.
    """

    function: Callable[[Any, Any, Any], Any]
    kernel: str
    reflected: bool = False
    symbol: str = ""
    opposite: str = ""
    opposite_method: str = ""

    @property
    def is_true_for_zeros(self) -> bool:
        """Whether this is a comparison that is true for 0 and 0."""
        return self.symbol in ("==", "<=", ">=")


COMBINATIONS = {
    "__add__": Combination(lambda xp, a, b: a + b, "plus"),
    "__radd__": Combination(lambda xp, a, b: b + a, "plus", reflected=True),
    "__sub__": Combination(lambda xp, a, b: a - b, "minus"),
    "__rsub__": Combination(lambda xp, a, b: b - a, "minus", reflected=True),
    "maximum": Combination(lambda xp, a, b: xp.maximum(a, b), "maximum"),
    "minimum": Combination(lambda xp, a, b: xp.minimum(a, b), "minimum"),
    "__eq__": Combination(lambda xp, a, b: a == b, "ne", False, "==", "!=", "__ne__"),
    "__ne__": Combination(lambda xp, a, b: a != b, "ne", False, "!=", "==", "__eq__"),
    "__lt__": Combination(lambda xp, a, b: a < b, "lt", False, "<", ">=", "__ge__"),
    "__ge__": Combination(lambda xp, a, b: a >= b, "lt", False, ">=", "<", "__lt__"),
    "__gt__": Combination(lambda xp, a, b: a > b, "gt", False, ">", "<=", "__le__"),
    "__le__": Combination(lambda xp, a, b: a <= b, "gt", False, "<=", ">", "__gt__"),
}
_SUMS = ("__add__", "__radd__", "__sub__", "__rsub__")
_EXTREMES = ("maximum", "minimum")


def _combining(name: str) -> Callable[..., Any]:
    """Return the method `name`, which `COMBINATIONS` describes."""

    def method(self: MatrixLike, other: Any) -> Any:
        check_home(self, None if is_sparse(other) else other)
        if is_scalar(other):
            scalar = other.get()[()] if is_on_device(other) else other  # synchronizes
            return _with_scalar(self, name, scalar[()] if isinstance(scalar, np.ndarray) else scalar)
        if is_sparse(other):
            return _with_sparse(self, name, other)
        return _with_dense(self, name, other)

    method.__name__, method.__doc__ = name, getattr(sp.csr_array, name).__doc__
    return method


def _warn_of_inefficiency(text: str) -> None:
    warnings.warn(text, sp.SparseEfficiencyWarning, stacklevel=frames_to_the_caller())


def _complement(matrix: MatrixLike, csr: Csr) -> Any:
    """Return the boolean matrix that is true where `csr` has no entry.

    `csr` is canonical. It describes the transpose if `matrix` is stored by columns.
    """
    device = matrix.device
    with device.active(), device.memory_guard():
        missing = missing_entries(device, csr)  # synchronizes
    return matrix_of(matrix, missing, matrix.shape, type(matrix))


# ------------------------------------------------------------------------------------------------------------ matrices


def _with_sparse(matrix: MatrixLike, name: str, other: Any) -> Any:
    """Combine with a sparse matrix.

    Raises
    ------
    ValueError
        If the shapes differ, except in a comparison by ``==`` or ``!=``, which is then False or True, as in SciPy.
    """
    combination = COMBINATIONS[name]
    if other.shape != matrix.shape:
        if combination.symbol in ("==", "!="):
            return combination.symbol == "!="
        raise shape_mismatch(matrix.shape, other.shape, broadcasts=False)
    if combination.is_true_for_zeros:
        _warn_of_inefficiency(
            f"Comparing two sparse matrices using {combination.symbol} is inefficient. "
            f"Try using {combination.opposite} instead."
        )
    csr = combine_sparse(matrix, combination.kernel, other, reflected=combination.reflected)
    if csr is None:
        return run_on_host(matrix, name, other)
    if combination.is_true_for_zeros:
        return _complement(matrix, csr)
    return combined(matrix, csr)


# ------------------------------------------------------------------------------------------------------------- scalars


def _with_scalar(matrix: MatrixLike, name: str, scalar: Any) -> Any:
    """Combine a matrix with a scalar."""
    if name in _SUMS:
        return _sum_with_scalar(matrix, name, scalar)
    if matrix.dtype.char in HOST_ONLY or np.asarray(scalar).dtype.kind not in "biufc":
        return run_on_host(matrix, name, scalar)
    if name in _EXTREMES:
        result = _extreme_with_scalar(matrix, name, scalar)
    else:
        result = _comparison_with_scalar(matrix, name, scalar)
    return run_on_host(matrix, name, scalar) if result is None else result


def _sum_with_scalar(matrix: MatrixLike, name: str, scalar: Any) -> Any:
    """Return A + 0, 0 + A, A - 0 or 0 - A. Other scalars are refused."""
    if scalar == 0:
        return -matrix.copy() if name == "__rsub__" else matrix.copy()
    if name == "__rsub__":
        raise NotImplementedError(
            "subtracting a sparse array from a nonzero scalar is not supported, because the result would be dense: "
            "use scalar - A.toarray()"
        )
    if name == "__sub__":
        raise NotImplementedError(
            "subtracting a nonzero scalar from a sparse array is not supported, because the result would be dense: "
            "use A.toarray() - scalar"
        )
    raise NotImplementedError(
        "adding a nonzero scalar to a sparse array is not supported, because the result would be dense: use "
        "A.toarray() + scalar"
    )


def _extreme_with_scalar(matrix: MatrixLike, name: str, scalar: Any) -> Any:
    """Return the maximum or minimum of each element and a scalar, as a sparse matrix.

    If the result for 0 is not 0, all elements are stored.
    """
    function: np.ufunc = getattr(np, name)
    if not function(0, scalar):
        return sparse_result(matrix, name, scalar)
    sign = "positive" if name == "maximum" else "negative"
    _warn_of_inefficiency(f"Taking {name} with a {sign} number results in a dense matrix.")
    check_dtype(function(np.zeros(1, matrix.dtype), scalar).dtype)  # NumPy raises an error for 300 and int8.
    device, (csr, _) = matrix.device, lines_of(matrix, None, summed=False)
    with device.active(), device.memory_guard():
        return matrix_of(
            matrix,
            full(device, getattr(device.xp, name)(dense_of(device, csr), scalar)),
            matrix.shape,
            type(matrix),
        )


def _comparison_with_scalar(matrix: MatrixLike, name: str, scalar: Any) -> Any:
    """Return the comparison with a scalar, or None if SciPy has to compute it."""
    combination = COMBINATIONS[name]
    zero_is_true = bool(combination.function(np, 0, scalar))
    if not zero_is_true:
        if np.isnan(scalar) or _is_out_of_range(matrix.dtype, scalar):
            return matrix_of(matrix, _no_entries(matrix), matrix.shape, type(matrix))
        return sparse_result(matrix, name, _in_matrix_dtype(matrix.dtype, scalar))
    _warn_of_inefficiency(
        f"Comparing a sparse matrix with {scalar} using {combination.symbol} is inefficient. "
        f"Try using {combination.opposite} instead."
    )
    if np.isnan(scalar) or _is_out_of_range(matrix.dtype, scalar):
        return _complement(matrix, _no_entries(matrix))
    opposite = sparse_result(matrix, combination.opposite_method, _in_matrix_dtype(matrix.dtype, scalar))
    if opposite is None:
        return None
    return _complement(matrix, opposite._arrays.current(opposite._stored_shape).csr)


def _is_integer(scalar: Any) -> bool:
    return isinstance(scalar, int | np.integer) and not isinstance(scalar, bool)


def _is_out_of_range(dtype: np.dtype[Any], scalar: Any) -> bool:
    """Return whether an integer dtype cannot hold an integer scalar.

    Such a scalar is above or below all values, so a comparison with it has the same result for all values and for 0.
    """
    if dtype.kind not in "iu" or not _is_integer(scalar):
        return False
    bounds = np.iinfo(dtype)
    return not bounds.min <= int(scalar) <= bounds.max


def _in_matrix_dtype(dtype: np.dtype[Any], scalar: Any) -> Any:
    """Cast an integer scalar to an integer dtype. Return any other scalar unchanged.

    Without the cast, NumPy's common dtype might be float64, which rounds large integers.
    """
    return dtype.type(scalar) if dtype.kind in "iu" and _is_integer(scalar) else scalar


def _no_entries(matrix: MatrixLike) -> Csr:
    """Return a boolean matrix without entries, of the shape in which `matrix` is stored."""
    device, shape = matrix.device, matrix._stored_shape
    with device.active(), device.memory_guard():
        index = matrix._arrays.current(shape).csr.indptr.dtype
        xp = device.xp
        return Csr(shape, xp.zeros(shape[0] + 1, index), xp.zeros(0, index), xp.zeros(0, np.bool_), is_canonical=True)


# -------------------------------------------------------------------------------------------------------- dense arrays


def _repeated(device: Device, other: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of a dense array in which rows or columns are repeated to a shape."""
    try:
        return device.xp.broadcast_to(other, shape)
    except ValueError:
        raise shape_mismatch(shape, other.shape, broadcasts=True) from None


def _with_dense(matrix: MatrixLike, name: str, other: Any) -> Any:
    """Combine with a dense array, or with an object that NumPy converts to one, such as a list.

    Raises
    ------
    ValueError
        If the shapes do not match.
    NotImplementedError
        For the maximum or minimum with an object that NumPy cannot convert.
    """
    if not (isinstance(other, np.ndarray) or is_on_device(other)):
        if name in _SUMS:
            return NotImplemented
        if is_zero_dimensional_object(other):
            if name in _EXTREMES:
                raise NotImplementedError(
                    "maximum or minimum with an unrecognized array type is not supported, got "
                    f"{type(other).__name__}: pass a scalar, an array or a sparse array"
                )
            return NotImplemented
        other = np.asanyarray(other)
    if any(part.dtype.char in HOST_ONLY or part.dtype.kind not in "biufc" for part in (matrix, other)):
        return run_on_host(matrix, name, other)
    device, other_is_on_device = matrix.device, is_on_device(other)
    with device.active(), device.memory_guard():
        other = other if other_is_on_device else device.upload(np.asarray(other))
        if name in _SUMS:
            other = _repeated(device, other, matrix.shape)
        result = _dense_result(matrix, name, other)
        if other_is_on_device:
            return result
        is_by_columns = result.ndim == 2 and result.flags.f_contiguous
        result = device.xp.ascontiguousarray(result.T if is_by_columns else result)
        host = device.download_vector(result)  # synchronizes
    host = host.T if is_by_columns else host
    return host if host.ndim > 2 else matrix._ascontainer(host)


def _dense_result(matrix: MatrixLike, name: str, other: Array) -> Array:
    """Combine with a dense array of the device, and return a dense array of the device."""
    device, (csr, _) = matrix.device, lines_of(matrix, None, summed=False)
    function = COMBINATIONS[name].function
    dtype = np.result_type(csr.dtype, other.dtype)
    if name in ("__add__", "__radd__"):
        return _sum_with_dense(matrix, csr, other, result_dtype(csr.dtype, other.dtype))
    dense = dense_of(device, csr)
    dense = dense.reshape(matrix.shape) if matrix.ndim == 1 else dense.T if matrix._by_columns else dense
    if dtype == np.float32 and COMBINATIONS[name].symbol and not device.is_host:
        return _compare_exactly(device, name, *(part.astype(dtype, copy=False) for part in (dense, other)))
    return function(device.xp, dense, other)


def _sum_with_dense(matrix: MatrixLike, csr: Csr, other: Array, dtype: np.dtype[Any]) -> Array:
    """Return the sum of a matrix and a dense device array, which is a dense device array."""
    device = matrix.device
    other = other.reshape(1, -1) if matrix.ndim == 1 else other.T if matrix._by_columns else other
    total = device.xp.array(other, dtype=dtype, order="C")  # a copy
    added_to(device, csr.with_data(csr.data.astype(dtype, copy=False)), total)
    return total.reshape(matrix.shape) if matrix.ndim == 1 else total.T if matrix._by_columns else total


def _compare_exactly(device: Device, name: str, a: Array, b: Array) -> Array:
    """Compare float32 numbers by their bits, because CuPy's comparisons treat subnormal numbers as 0."""
    xp, function = device.xp, COMBINATIONS[name].function
    is_nan = xp.isnan(a) | xp.isnan(b)
    result = function(xp, *(_order_of_bits(xp, part) for part in (a, b)))
    return result | is_nan if name == "__ne__" else result & ~is_nan


def _order_of_bits(xp: Any, values: Array) -> Array:
    """Return integers that have the same order as float32 numbers.

    A number that is not negative becomes its bits, read as int32. A negative number becomes minus its lower 31 bits.
    """
    bits = xp.ascontiguousarray(values).view(np.int32)
    return xp.where(bits < 0, -(bits & np.int32(0x7FFFFFFF)), bits)


class Combinations(MatrixLike):
    """Methods for sums, differences, extremes and comparisons."""

    __hash__: Any = None  # as SciPy's

    __add__ = _combining("__add__")
    __radd__ = _combining("__radd__")
    __sub__ = _combining("__sub__")
    __rsub__ = _combining("__rsub__")
    maximum = _combining("maximum")
    minimum = _combining("minimum")
    __eq__ = _combining("__eq__")
    __ne__ = _combining("__ne__")
    __lt__ = _combining("__lt__")
    __ge__ = _combining("__ge__")
    __gt__ = _combining("__gt__")
    __le__ = _combining("__le__")
