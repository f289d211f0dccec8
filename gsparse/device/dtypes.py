"""Types and dtype tables shared by all layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["COMPUTE_DTYPES", "HOST_ONLY", "INDEX_DTYPES", "Array", "compute_dtype", "storage_dtype"]

# A NumPy or CuPy array. CuPy ships no type stubs and may be absent, so the two cannot be told apart statically.
Array = Any

# The types that kernels compute in. Integers and booleans are computed exactly modulo 2**64 and then cast down, which
# is what SciPy's own loops give.
COMPUTE_DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(name) for name in ("float32", "float64", "complex64", "complex128", "int64")
)
# Type codes of extended precision, real and complex: no device has arithmetic for them, so they stay on the host.
HOST_ONLY = "gG"
INDEX_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.int32), np.dtype(np.int64))


def compute_dtype(result: npt.DTypeLike) -> np.dtype[Any] | None:
    """Give the dtype kernels compute in for a product whose result dtype is `result`; None if no kernel can.

    Extended precision (`longdouble`) has no device arithmetic.
    """
    dtype = np.dtype(result)
    if dtype in COMPUTE_DTYPES:
        return dtype
    return np.dtype(np.int64) if dtype.kind in "biu" else None


def storage_dtype(stored: npt.DTypeLike, compute: np.dtype[Any]) -> np.dtype[Any]:
    """Give the dtype in which matrix values of dtype `stored` are read by a kernel that computes in `compute`.

    Floating values are read as they are stored and widened in registers; integers are widened once beforehand.
    """
    dtype = np.dtype(stored)
    return dtype if dtype in COMPUTE_DTYPES and dtype.kind in "fc" and np.can_cast(dtype, compute) else compute
