"""Element-wise work: where the structure stays, values are mapped on the device and the plan is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.matrix.arrays import Mirrors
from gsparse.matrix.host_operations import HostedOperations
from gsparse.matrix.loans import Mirror
from gsparse.sparse.construction import check_dtype

__all__ = ["ElementwiseOperations", "is_scalar"]

# Functions that map 0 to 0, so that they act on the stored values alone: SciPy's, NumPy's and CuPy's common names.
VALUE_FUNCTIONS = (
    *("sin", "tan", "arcsin", "arctan", "sinh", "tanh", "arcsinh", "arctanh", "rint", "sign", "expm1", "log1p"),
    *("deg2rad", "rad2deg", "floor", "ceil", "trunc", "sqrt"),
)

MAPPED_DOC = """Map the stored values with `numpy.{}`, on the device.

        Returns
        -------
        GpuSparseMatrix
            Of the same structure, with values of the dtype that NumPy's function gives.
        """

# NumPy's functions as the methods that serve them: (forward, reflected).
UFUNC_METHODS = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "power": ("__pow__", "__rpow__"),
    "maximum": ("maximum", "maximum"),
    "minimum": ("minimum", "minimum"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
    "square": ("_square",),
    "negative": ("__neg__",),
    "absolute": ("__abs__",),
    "conjugate": ("conjugate",),
    "positive": ("copy",),
    **{name: (name,) for name in VALUE_FUNCTIONS},
}


def is_scalar(value: object) -> bool:
    """Tell whether SciPy treats a value as a scalar."""
    return np.isscalar(value) or (isinstance(value, np.ndarray) and value.ndim == 0)


class ElementwiseOperations(HostedOperations):
    """Mixin: operators and functions that act on stored values one by one."""

    def _map_values(
        self,
        name: str,
        function: Callable[[Any, Array], Array],
        *args: Any,
        linear: bool = False,
        hermitian: bool = False,
    ) -> Any:
        """Give a matrix of the same structure with mapped values.

        Parameters
        ----------
        name : str
            SciPy's method, with `args`, for where the device cannot: extended precision, or repeated entries, which
            have to be added up before a function that is not linear.
        function : callable
            Of the array module and the values; gives a new array.
        linear : bool
            Whether the function of a sum is the sum of the function's values.
        hermitian : bool
            Whether the function of a conjugate is the conjugate of the function's value, everywhere: a Hermitian matrix
            then stays one.
        """
        device, mirrors = self.device, self._mirrors
        if self.dtype.char in HOST_ONLY:
            return self._on_host(name, *args)
        operand = self.current_operand()
        if not (linear or operand.is_canonical):
            return self._on_host(name, *args)
        values = mirrors["data"].resident()
        with device.active(), device.memory_guard():
            values = function(device.xp, device.xp.conjugate(values) if mirrors["data"].conjugated else values)
        # Equal values stay equal; but conjugates, times a complex number, do not stay conjugates.
        return self._with_values(values, symmetries=(True, "hermitian") if hermitian else (True,))

    def _with_values(self, values: Array, *, symmetries: tuple[bool | str, ...] = ()) -> Any:
        """Give a matrix of the same structure over these device values.

        Parameters
        ----------
        values : array
        symmetries : tuple
            The symmetries that these values still have where this matrix was declared to have them.
        """
        device, operand, mirrors, request = self.device, self.current_operand(), self._mirrors, self._request
        if request.symmetric and request.symmetric not in symmetries:
            request = replace(request, symmetric=None)
        new = {n: Mirror(device, on_device=values) if n == "data" else mirror.share() for n, mirror in mirrors.items()}
        matrix = self._with_mirrors(type(self), Mirrors(new, operand.with_data(values, request)), self.shape)
        matrix._request = request
        return matrix

    def _scaled(self, factor: Any) -> Any:
        factor = factor[()] if isinstance(factor, np.ndarray) else factor  # (CuPy takes no arrays of NumPy's)
        is_real = not np.iscomplexobj(factor)
        return self._map_values("__mul__", lambda xp, values: values * factor, factor, linear=True, hermitian=is_real)

    def multiply(self, other: Any) -> Any:
        """Multiply element by element, by a scalar on the device, by an array on the host.

        Parameters
        ----------
        other : scalar, array_like or sparse array
            Of a shape that broadcasts to this matrix's.

        Returns
        -------
        GpuSparseMatrix
            On the same device; by a scalar with the same structure and plan.
        """
        return self._scaled(other) if is_scalar(other) else self._on_host("multiply", other)

    def __mul__(self, other: Any) -> Any:
        if not is_scalar(other):
            self._warn_of_operator("A * x", "write A @ x for the product, A.multiply(x) for the elementwise one")
        return self.multiply(other)

    def __rmul__(self, other: Any) -> Any:
        if not is_scalar(other):
            self._warn_of_operator("x * A", "write x @ A for the product, A.multiply(x) for the elementwise one")
        return self.multiply(other)

    def __pow__(self, other: Any) -> Any:
        self._warn_of_operator("A ** n", "write A @ A for the product, A.power(n) for the elementwise one")
        return self._on_host("__pow__", other)

    def __truediv__(self, other: Any) -> Any:
        if not is_scalar(other):
            return self._on_host("__truediv__", other)
        # SciPy's rule: divide in float64 wherever that holds the values, float32 ones too.
        wide = self.astype(np.float64, copy=False) if np.can_cast(self.dtype, np.float64) else self
        return wide._scaled(1.0 / other)

    def __neg__(self) -> Any:
        if self.dtype.kind == "b":
            raise NotImplementedError("negating a boolean sparse array is not supported: use astype(int) first")
        return self._map_values("__neg__", lambda xp, values: -values, linear=True, hermitian=True)

    def __abs__(self) -> Any:
        return self._map_values("__abs__", lambda xp, values: xp.abs(values), hermitian=True)

    def __round__(self, ndigits: int = 0) -> Any:
        return self._map_values("__round__", lambda xp, values: xp.around(values, ndigits), ndigits, hermitian=True)

    def _square(self) -> Any:
        return self._map_values("power", lambda xp, values: values * values, 2, hermitian=True)

    def _real(self) -> Any:
        if self.dtype.kind != "c":
            return self.copy()
        return self._map_values(
            "_real", lambda xp, values: xp.ascontiguousarray(values.real), linear=True, hermitian=True
        )

    def _imag(self) -> Any:
        return self._map_values("_imag", lambda xp, values: xp.array(values.imag), linear=True)

    def astype(self, dtype: Any, casting: Any = "unsafe", copy: bool = True) -> Any:
        """Cast the values, on the device; the structure stays. Repeated entries are added up first, as SciPy does.

        Parameters
        ----------
        dtype : dtype
            Of the result's values.
        casting : {"no", "equiv", "safe", "same_kind", "unsafe"}
            What may be lost, as for NumPy's `astype`.
        copy : bool
            Whether a matrix that has this dtype already comes back as a copy.

        Returns
        -------
        GpuSparseMatrix
            On the same device.

        Raises
        ------
        TypeError
            Where `casting` does not allow it.
        """
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self.copy() if copy else self
        check_dtype(dtype)
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"cannot cast {self.dtype} to {dtype} under the rule {casting!r}")
        if dtype.char in HOST_ONLY:
            return self._on_host("astype", dtype)
        return self._map_values("astype", lambda xp, values: values.astype(dtype), dtype, hermitian=True)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Serve NumPy's functions: ``np.sin(A)``, ``ndarray @ A``, ``np.float64(2) * A``, ``ndarray += A``."""
        names = UFUNC_METHODS.get(ufunc.__name__)
        if method != "__call__" or names is None or options.keys() - {"axes"}:  # (`y @= A` comes with axes)
            raise TypeError(f"unsupported operand type(s) for numpy.{ufunc.__name__} ({method}): {type(self).__name__}")
        mine = inputs[0] if isinstance(inputs[0], ElementwiseOperations) else inputs[-1]
        reflected = mine is not inputs[0]
        operator = getattr(mine, names[-1 if reflected else 0], None)
        if operator is None:
            return NotImplemented
        result = operator(*(inputs[:-1] if reflected else inputs[1:]))
        if out is None or result is NotImplemented or sp.issparse(result) or result.shape != out[0].shape:
            return result  # (in place, `dense *= A` gives a sparse result and `y @= A` another shape, as in SciPy)
        if not np.can_cast(result.dtype, out[0].dtype, "same_kind"):
            return result  # (and `integers += A` floats)
        out[0][...] = result
        return out[0]


def _mapped(name: str) -> Callable[[ElementwiseOperations], Any]:
    def method(self: ElementwiseOperations) -> Any:
        return self._map_values(name, lambda xp, values: getattr(xp, name)(values))

    method.__name__ = name
    method.__doc__ = MAPPED_DOC.format(name)
    return method


for _name in VALUE_FUNCTIONS:
    setattr(ElementwiseOperations, _name, _mapped(_name))
