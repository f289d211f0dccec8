"""SciPy's functions as SciPy's tests see them here: every sparse argument becomes a GpuSparseMatrix first."""

from __future__ import annotations

import functools
from typing import Any

import scipy._lib._array_api as array_api
import scipy.sparse as sp

from gsparse import GpuSparseMatrix

__all__ = ["converting"]

# What SciPy's tests ask which functions take other arrays than NumPy's (from SciPy 1.18 on also in scipy.sparse).
CAPABILITIES: dict[Any, Any] = getattr(array_api, "xp_capabilities_table", {})


def on_device(argument: Any) -> Any:
    """Make a sparse array or matrix a GpuSparseMatrix; leave everything else alone."""
    if sp.issparse(argument) and argument.ndim == 2 and not isinstance(argument, GpuSparseMatrix):
        return GpuSparseMatrix(argument)
    return argument


def converting(function: Any) -> Any:
    """Give the function with its sparse arguments converted first."""

    @functools.wraps(function)
    def convert(*args: Any, **options: Any) -> Any:
        return function(*map(on_device, args), **{name: on_device(value) for name, value in options.items()})

    if function in CAPABILITIES:
        CAPABILITIES[convert] = CAPABILITIES[function]
    return convert
