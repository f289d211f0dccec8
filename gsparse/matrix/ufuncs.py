"""NumPy's functions of a matrix: ``np.sin(A)``, ``array @ A``, ``np.float64(2) * A``, ``array += A``."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.matrix.elementwise import VALUE_FUNCTIONS
from gsparse.matrix.matrix_like import MatrixLike, is_device_matrix

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


class Ufuncs(MatrixLike):
    """NumPy's functions of a matrix."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Serve NumPy's functions: ``np.sin(A)``, ``ndarray @ A``, ``np.float64(2) * A``, ``ndarray += A``."""
        names = UFUNC_METHODS.get(ufunc.__name__)
        if method != "__call__" or names is None or options.keys() - {"axes"}:  # NumPy passes `axes` for `y @= A`.
            raise TypeError(f"unsupported operand type(s) for numpy.{ufunc.__name__} ({method}): {type(self).__name__}")
        matrix = inputs[0] if is_device_matrix(inputs[0]) else inputs[-1]
        reflected = matrix is not inputs[0]
        operator = getattr(matrix, names[-1 if reflected else 0], None)
        if operator is None:
            return NotImplemented
        result = operator(*(inputs[:-1] if reflected else inputs[1:]))
        if out is None or result is NotImplemented or sp.issparse(result) or result.shape != out[0].shape:
            return result  # In place, `dense *= A` gives a sparse result, and `y @= A` another shape, as in SciPy.
        if not np.can_cast(result.dtype, out[0].dtype, "same_kind"):
            return result  # `integers += A` gives floats.
        out[0][...] = result
        return out[0]
