"""Small dense matrices on the host, which BLAS and LAPACK compute with one thread.

Between two of them the GPU works, so that the other threads of BLAS have gone to sleep. To wake them takes longer than
the work of one thread, by far in a container or on a virtual machine: 35 ms instead of 0.5 for the eigenvalues of a
matrix with 65 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["with_one_blas_thread"]

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
    """Return the libraries with threads that this process has loaded. NumPy and SciPy have loaded theirs."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
