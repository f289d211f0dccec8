"""Computations with small dense matrices on the host, for which BLAS and LAPACK use one thread.

The GPU works between two of these computations, and meanwhile the other threads of BLAS go to sleep. Waking them takes
longer than computing with one thread. In a container or on a virtual machine the eigenvalues of a matrix with 65 rows
then take 35 ms instead of 0.5 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

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
