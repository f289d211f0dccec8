"""SciPy's functions as SciPy's tests see them here: every sparse argument becomes a GpuSparseMatrix first."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy._lib._array_api as array_api

from gsparse import GpuSparseMatrix

__all__ = ["converting"]

# What SciPy's tests ask which functions take other arrays than NumPy's (from SciPy 1.18 on also in scipy.sparse).
CAPABILITIES: dict[Any, Any] = getattr(array_api, "xp_capabilities_table", {})

# Functions that SciPy tests with dense matrices only.
DENSE_TESTS = ("minres",)


def on_device(argument: Any, kinds: tuple[type, ...]) -> Any:
    """Make a matrix of these kinds a GpuSparseMatrix; leave everything else alone."""
    if isinstance(argument, kinds) and argument.ndim == 2 and not isinstance(argument, GpuSparseMatrix):
        return GpuSparseMatrix(argument)
    return argument


def converting(function: Any, kinds: tuple[type, ...]) -> Any:
    """Give the function with its arguments of these kinds converted first."""
    first_kinds = (*kinds, np.ndarray) if function.__name__ in DENSE_TESTS else kinds

    @functools.wraps(function)
    def convert(*args: Any, **options: Any) -> Any:
        given = (on_device(value, kinds if position else first_kinds) for position, value in enumerate(args))
        return function(*given, **{name: on_device(value, kinds) for name, value in options.items()})

    if function in CAPABILITIES:
        CAPABILITIES[convert] = CAPABILITIES[function]
    return convert
