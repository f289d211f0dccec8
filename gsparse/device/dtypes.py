"""Array types, and the dtypes in which values are stored and kernels compute."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.errors import DtypeError

# A NumPy or CuPy array. CuPy ships no type stubs and may be absent, so the two cannot be told apart statically.
Array = Any

# The dtypes in which kernels compute. Integers and booleans are computed exactly modulo 2**64 and then cast to their
# own dtype, which gives the same result as SciPy's loops.
COMPUTE_DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(name) for name in ("float32", "float64", "complex64", "complex128", "int64")
)
# Type codes of extended precision, real and complex. No device supports these dtypes, so such arrays stay on the host.
HOST_ONLY = "gG"
INDEX_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.int32), np.dtype(np.int64))


def in_native_order(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a host array in this machine's byte order, which kernels need; the same array if it is in that order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def result_dtype(matrix: np.dtype[Any], vector: np.dtype[Any], alpha: Any = 1, beta: Any = 0) -> np.dtype[Any]:
    """Return the dtype of a product by the promotion rules of NumPy, with float32 in place of float16.

    Raises
    ------
    DtypeError
        If the result would not consist of numbers.
    OverflowError
        If the result has an integer dtype that cannot hold alpha or beta.

    Examples
    --------
    >>> import numpy as np
    >>> result_dtype(np.dtype("int8"), np.dtype("float32"))
    dtype('float32')
    """
    # The integers 0 and 1 are left out, because they would promote booleans.
    scalars = [s for s in (alpha, beta) if not (type(s) is int and s in (0, 1))]
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
            dtype.type(scalar)  # Raises NumPy's OverflowError if the scalar does not fit.
    return np.dtype(np.float32) if dtype == np.float16 else dtype


@cache
def compute_dtype(result: npt.DTypeLike) -> np.dtype[Any] | None:
    """Return the dtype in which kernels compute a product of dtype `result`, or None if no kernel can.

    No kernel computes in extended precision (`longdouble`).
    """
    dtype = np.dtype(result)
    if dtype in COMPUTE_DTYPES:
        return dtype
    return np.dtype(np.int64) if dtype.kind in "biu" else None


def storage_dtype(stored: npt.DTypeLike, compute: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which a kernel that computes in `compute` reads matrix values of dtype `stored`.

    Kernels read floating-point values as they are stored and widen them in registers. Integers are widened once, before
    the first product.
    """
    dtype = np.dtype(stored)
    return dtype if dtype in COMPUTE_DTYPES and dtype.kind in "fc" and np.can_cast(dtype, compute) else compute
