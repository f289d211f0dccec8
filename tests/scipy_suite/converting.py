"""Wrap SciPy's functions, for SciPy's tests, so that each sparse argument is converted to a GpuSparseMatrix."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy._lib._array_api as array_api

from gsparse import GpuSparseMatrix

__all__ = ["converting"]

# The table in which SciPy's tests look up which functions take arrays of other libraries (scipy.sparse: from 1.18).
CAPABILITIES: dict[Any, Any] = getattr(array_api, "xp_capabilities_table", {})

# Functions that SciPy tests with dense matrices only.
DENSE_TESTS = ("minres",)


def on_device(argument: Any, kinds: tuple[type, ...]) -> Any:
    """Convert a matrix of these kinds to a GpuSparseMatrix, and return any other argument unchanged."""
    if isinstance(argument, kinds) and argument.ndim == 2 and not isinstance(argument, GpuSparseMatrix):
        return GpuSparseMatrix(argument)
    return argument


def converting(function: Any, kinds: tuple[type, ...]) -> Any:
    """Return the function, wrapped so that arguments of these kinds are converted first."""
    first_kinds = (*kinds, np.ndarray) if function.__name__ in DENSE_TESTS else kinds

    @functools.wraps(function)
    def convert(*args: Any, **options: Any) -> Any:
        converted = (on_device(value, kinds if position else first_kinds) for position, value in enumerate(args))
        return function(*converted, **{name: on_device(value, kinds) for name, value in options.items()})

    if function in CAPABILITIES:
        CAPABILITIES[convert] = CAPABILITIES[function]
    return convert
