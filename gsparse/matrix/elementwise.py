"""Elementwise operations, which map the values on the device, and keep the structure and the plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import numpy as np

from gsparse.device.dtypes import HOST_ONLY, Array, in_native_order
from gsparse.device.interchange import as_own_array
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError, MatrixProductWarning, ShapeError
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.matrix.dense_operands import check_home, divide_by_dense, divide_by_sparse, is_scalar, multiply_dense
from gsparse.matrix.host_operations import run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.reductions import lines_of
from gsparse.matrix.sparse_operations import is_sparse, matrix_of, multiply_entries, with_values
from gsparse.sparse.canonical import canonical
from gsparse.sparse.construction import check_dtype

# ------------------------------------------------------------------------------------------------------------- tables


class ValueMap(NamedTuple):
    """A function of the stored values that maps 0 to 0, so that the structure stays.

    Attributes
    ----------
    function : callable
        ``function(xp, values, *args)`` returns a new array; `xp` is the array module of the device.
    host : (str, ...)
        The name and the arguments of SciPy's method for values of extended precision; by default, the name of this
        method.
    linear : bool
        Whether f(a + b) = f(a) + f(b), so that repeated entries need not be added up.
    sums_after : bool
        Whether repeated entries are mapped before they are added up. Otherwise they are added up first.
    hermitian : bool
        Whether f(conj(a)) = conj(f(a)) for all a: then a Hermitian matrix stays Hermitian.
    doc : str, optional
        The method's docstring.
    """

    function: Callable[..., Array]
    host: tuple[Any, ...] = ()
    linear: bool = False
    sums_after: bool = False
    hermitian: bool = False
    doc: str | None = None


# Functions that map 0 to 0 and have the same name in SciPy, NumPy and CuPy.
VALUE_FUNCTIONS = (
    *("sin", "tan", "arcsin", "arctan", "sinh", "tanh", "arcsinh", "arctanh", "rint", "sign", "expm1", "log1p"),
    *("deg2rad", "rad2deg", "floor", "ceil", "trunc", "sqrt"),
)

_FUNCTION_DOC = """Map the stored values with `numpy.{}`, on the device.

        Returns
        -------
        GpuSparseMatrix
            Of the same structure, with values of the dtype that NumPy's function returns.
        """


_ABSOLUTE = ValueMap(lambda xp, values: xp.abs(values), hermitian=True)
_IMAGINARY = ValueMap(lambda xp, values: xp.array(values.imag), linear=True)
_SQUARE = ValueMap(lambda xp, values: values * values, ("power", 2), hermitian=True)
_NEGATE = ValueMap(lambda xp, values: -values, ("__neg__",), linear=True, hermitian=True)
_REAL = ValueMap(lambda xp, values: xp.ascontiguousarray(values.real), ("_real",), linear=True, hermitian=True)
_ROUND = ValueMap(lambda xp, values, digits: xp.around(values, digits), ("__round__",), hermitian=True)
_CAST = ValueMap(lambda xp, values, dtype: values.astype(dtype), ("astype",), sums_after=True, hermitian=True)
_POWER = ValueMap(lambda xp, values, n, dtype: _raised(values.astype(dtype, copy=False), n), ("power",))
# A Hermitian matrix times a complex number is not Hermitian.
_SCALE = ValueMap(lambda xp, values, factor: values * factor, ("__mul__",), linear=True)
_SCALE_BY_REAL = _SCALE._replace(hermitian=True)


def _mapped(name: str, value_map: ValueMap) -> Callable[[MatrixLike], Any]:
    """Return the method `name`, without parameters, that applies `value_map`."""
    value_map = value_map._replace(host=value_map.host or (name,))

    def method(self: MatrixLike) -> Any:
        return _map_values(self, value_map)

    method.__name__, method.__doc__ = name, value_map.doc
    return method


def _of_numpy(name: str) -> Callable[[MatrixLike], Any]:
    """Return the method that maps the values with one of `VALUE_FUNCTIONS`."""
    return _mapped(name, ValueMap(lambda xp, values: getattr(xp, name)(values), doc=_FUNCTION_DOC.format(name)))


# ------------------------------------------------------------------------------------------------------------- values


def _map_values(matrix: MatrixLike, value_map: ValueMap, *args: Any) -> Any:
    """Return a matrix of the same structure with mapped values."""
    device, arrays = matrix.device, matrix._arrays
    if matrix.dtype.char in HOST_ONLY:
        return run_on_host(matrix, *value_map.host, *args)
    if not args and not device.is_host:
        value_map.function(np, np.empty(0, matrix.dtype))  # raises NumPy's errors, because CuPy accepts more dtypes
    prepared = arrays.current(matrix._stored_shape)
    if not (value_map.linear or prepared.is_canonical):
        csr, _ = lines_of(matrix, None, summed=not value_map.sums_after)
        with device.active(), device.memory_guard():
            csr = csr.with_data(value_map.function(device.xp, csr.data, *args))
            check_dtype(csr.dtype)
            csr = canonical(device, csr) if value_map.sums_after else csr
        return matrix_of(matrix, csr, matrix.shape, type(matrix))
    values = arrays.data.current_array()
    with device.active(), device.memory_guard():
        values = device.xp.conjugate(values) if arrays.data.conjugated else values
        values = value_map.function(device.xp, values, *args)
    check_dtype(values.dtype)
    # Equal values stay equal. Conjugates stay conjugates only under the functions that say so.
    return with_values(matrix, values, (True, "hermitian") if value_map.hermitian else (True,))


def scale(matrix: MatrixLike, factor: Any) -> Any:
    """Multiply all values by a scalar."""
    factor = factor[()] if isinstance(factor, np.ndarray) else factor  # CuPy takes no arrays of NumPy.
    check_home(matrix, factor)
    return _map_values(matrix, _SCALE if np.iscomplexobj(factor) else _SCALE_BY_REAL, factor)


def _raised(values: Array, n: Any) -> Array:
    """Raise values to a power, with NumPy's errors and dtype: CuPy raises no errors."""
    power = np.ones(1, values.dtype) ** (n if device_of(n) is None else n.get()[()])
    return (values**n).astype(power.dtype, copy=False)


def _warn_of_operator(matrix: MatrixLike, operator: str, remedy: str) -> None:
    """Warn, once per matrix, that an operator is elementwise here but a matrix product of the source matrix."""
    if matrix._came_from_spmatrix:
        matrix._came_from_spmatrix = False
        warnings.warn(
            f"{operator} is elementwise: this matrix is a sparse array, but it was made from a sparse matrix, of "
            f"which {operator} is a matrix product; {remedy}",
            MatrixProductWarning,
            stacklevel=frames_to_the_caller(),
        )


class ElementWise(MatrixLike):
    """Methods that map the stored values and keep the structure."""

    def astype(self, dtype: Any, casting: Any = "unsafe", copy: bool = True) -> Any:
        """Cast the values, on the device.

        Repeated entries are cast first and then added up, as in SciPy. Otherwise, the structure stays.

        Parameters
        ----------
        dtype : dtype
            The dtype of the result, always in the byte order of this machine.
        casting : {"no", "equiv", "safe", "same_kind", "unsafe"}
            What may be lost, as for NumPy's `astype`.
        copy : bool
            Whether to return a copy of a matrix that has this dtype already.

        Returns
        -------
        GpuSparseMatrix
            On the same device.

        Raises
        ------
        TypeError
            If `casting` does not allow the conversion.
        DtypeError
            If a sparse matrix cannot have values of `dtype`, for instance of half precision.
        """
        dtype = np.dtype(dtype).newbyteorder("=")
        if dtype == self.dtype:
            return self.copy() if copy else self
        check_dtype(dtype)
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"cannot cast {self.dtype} to {dtype} under the rule {casting!r}")
        if dtype.char in HOST_ONLY:
            return run_on_host(self, "astype", dtype)
        return _map_values(self, _CAST, dtype)

    def multiply(self, other: Any) -> Any:
        """Multiply element by element, on the device.

        Parameters
        ----------
        other : scalar, array_like or sparse array
            Of a shape that broadcasts to this matrix's: a row (N,) or (1, N) scales columns, a column (M, 1) scales
            rows. NumPy, or CuPy on this matrix's GPU.

        Returns
        -------
        GpuSparseMatrix
            On the same device. For a scalar or a dense array, the structure and its preparation are kept. A single row
            or column is repeated if `other` has more. If this matrix has one element, and `other` is a dense array of
            several, the result is a dense array.

        Raises
        ------
        ValueError
            If the shapes do not match.
        DeviceError
            If `other` lives on another GPU.
        """
        if is_scalar(other):
            return scale(self, other)
        return multiply_entries(self, other) if is_sparse(other) else multiply_dense(self, other)

    def with_data(self, data: Any) -> Self:
        """Return a matrix of the same structure with other values.

        Everything that depends on the structure alone (statistics, positions of entries, encoded columns, row patterns)
        is not computed again.

        Parameters
        ----------
        data : array_like, shape (nnz,)
            An array of NumPy, or of CuPy on this matrix's GPU, in the order of `A.data`; or of PyTorch or JAX on
            either. A device array is used as it is and must not be written afterwards.

        Returns
        -------
        GpuSparseMatrix
            On the same device, with the dtype of `data`.

        Raises
        ------
        ShapeError
            If `data` does not have one value for each stored entry.
        DtypeError
            If no device computes with the dtype of the matrix or of `data`.
        DeviceError
            If `data` lives on another GPU.

        Examples
        --------
        >>> import gsparse, scipy.sparse
        >>> A = gsparse.GpuSparseMatrix(scipy.sparse.diags_array([2.0, 3.0]), device="cpu")
        >>> A.with_data([5.0, 7.0]) @ [1.0, 1.0]
        array([5., 7.])
        """
        data = as_own_array(data)
        home = device_of(data)
        if home is not None and home is not self.device:  # on GPUs only
            raise DeviceError(
                f"the matrix lives on {self.device.name}, the values on {home.name}: bring one to the other"
            )
        values = data if home is not None else in_native_order(np.array(data))
        nnz = self.nnz
        if values.shape != (nnz,):
            raise ShapeError(f"a matrix with {nnz} stored entries takes as many values, got shape {values.shape}")
        check_dtype(values.dtype)
        if HOST_ONLY.find(self.dtype.char) >= 0 or values.dtype.char in HOST_ONLY:
            raise DtypeError(
                f"no device computes with values of {values.dtype} in a matrix of {self.dtype}: use astype(float)"
            )
        if home is None:
            values = self.device.upload(values)
        return cast(Self, with_values(self, values))

    def __mul__(self, other: Any) -> Any:
        """Return A * other."""
        if not is_scalar(other):
            _warn_of_operator(self, "A * x", "write A @ x for the product, A.multiply(x) for the elementwise one")
        return self.multiply(other)

    def __rmul__(self, other: Any) -> Any:
        """Return other * A."""
        if not is_scalar(other):
            _warn_of_operator(self, "x * A", "write x @ A for the product, A.multiply(x) for the elementwise one")
        return self.multiply(other)

    def __pow__(self, other: Any) -> Any:
        """Return A ** other."""
        _warn_of_operator(self, "A ** n", "write A @ A for the product, A.power(n) for the elementwise one")
        return self.power(other)

    def power(self, n: Any, dtype: Any = None) -> Any:
        """Raise the stored values to a power that is not 0, on the device. Repeated entries are added up first.

        Parameters
        ----------
        n : scalar
            Not 0, for which all elements of the result would be 1.
        dtype : dtype, optional
            The dtype to which the values are cast first; by default the matrix's dtype.

        Returns
        -------
        GpuSparseMatrix
            Of the same structure.

        Raises
        ------
        NotImplementedError
            If `n` is 0 or no scalar.
        ValueError
            If integers are raised to a negative integer.
        """
        if not is_scalar(n):
            raise NotImplementedError(f"input is not scalar: {n!r}")
        if not n:
            raise NotImplementedError("zero power is not supported: all elements would be 1, use numpy.ones(A.shape)")
        if dtype is not None and np.dtype(dtype).char in HOST_ONLY:
            return run_on_host(self, "power", n, dtype)
        n = n[()] if isinstance(n, np.ndarray) else n
        return _map_values(self, _POWER, n, self.dtype if dtype is None else np.dtype(dtype))

    def __truediv__(self, other: Any) -> Any:
        """Return A / other."""
        if not is_scalar(other):
            if is_sparse(other):
                return divide_by_sparse(self, other)
            return divide_by_dense(self, other)
        # SciPy divides in float64 if it can hold the values, also for float32 values.
        wide = self.astype(np.float64, copy=False) if np.can_cast(self.dtype, np.float64) else self
        return scale(wide, 1.0 / other)

    def __neg__(self) -> Any:
        """Return -A."""
        if self.dtype.kind == "b":
            raise NotImplementedError("negating a boolean sparse array is not supported: use astype(int) first")
        return _map_values(self, _NEGATE)

    def __round__(self, ndigits: int = 0) -> Any:
        """Return round(A, ndigits)."""
        return _map_values(self, _ROUND, ndigits)

    def _real(self) -> Any:
        """Return the real parts, for SciPy's `real`."""
        return self.copy() if self.dtype.kind != "c" else _map_values(self, _REAL)

    __abs__ = _mapped("__abs__", _ABSOLUTE)
    _imag = _mapped("_imag", _IMAGINARY)
    _square = _mapped("_square", _SQUARE)
    sin = _of_numpy("sin")
    tan = _of_numpy("tan")
    arcsin = _of_numpy("arcsin")
    arctan = _of_numpy("arctan")
    sinh = _of_numpy("sinh")
    tanh = _of_numpy("tanh")
    arcsinh = _of_numpy("arcsinh")
    arctanh = _of_numpy("arctanh")
    rint = _of_numpy("rint")
    sign = _of_numpy("sign")
    expm1 = _of_numpy("expm1")
    log1p = _of_numpy("log1p")
    deg2rad = _of_numpy("deg2rad")
    rad2deg = _of_numpy("rad2deg")
    floor = _of_numpy("floor")
    ceil = _of_numpy("ceil")
    trunc = _of_numpy("trunc")
    sqrt = _of_numpy("sqrt")
