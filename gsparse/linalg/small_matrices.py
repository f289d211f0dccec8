"""Small dense matrices on the host, with one thread of BLAS, and vectors that look random, made on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of

P = ParamSpec("P")
R = TypeVar("R")


def with_one_blas_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function in which BLAS uses one thread.

    Examples
    --------
    >>> import numpy
    >>> @with_one_blas_thread
    ... def largest(A):
    ...     return float(numpy.linalg.eigvalsh(A).max())
    >>> largest(numpy.diag([1.0, 2.0]))
    2.0
    """

    @wraps(function)
    def limited(*args: P.args, **options: P.kwargs) -> R:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **options)

    return limited


@cache
def _libraries() -> Any:
    """Return the libraries with threads that this process has loaded, among them those of NumPy and SciPy."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


# Each vector hashes row numbers that begin this much later: 2³² divided by the square of the golden ratio.
_STRIDE = 1640531527


def hashed_vector(device: Device, size: int, dtype: np.dtype[Any], number: int = 0, first_row: int = 0) -> Array:
    """Return hashes of the row numbers, which are real numbers between -1/2 and 1/2.

    The hash multiplies twice, and folds the upper bits into the lower ones each time. One multiplication alone would
    give a sequence that rises and falls regularly, and hardly contains most eigenvectors of a grid.

    Parameters
    ----------
    device : Device
    size : int
    dtype : dtype
        Of the vector. The elements of a complex one are real.
    number : int
        Which vector: those with other numbers are independent of it.
    first_row : int
        The number of the first row: a rank that passes that of its own first row gets its part of the whole vector.
    """
    vector = device.empty(size, dtype)
    kernels_of(device).steps.fill_hashes(device, vector, number * _STRIDE + first_row)
    return vector
