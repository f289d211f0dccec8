"""SciPy's solvers as SciPy's tests see them here: every sparse argument becomes a GpuSparseMatrix first."""

from __future__ import annotations

import functools
from typing import Any

import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

from gsparse import GpuSparseMatrix

__all__ = ["CONVERTING", "converting"]

SOLVERS = (
    *("cg", "cgs", "bicg", "bicgstab", "gmres", "lgmres", "gcrotmk", "minres", "qmr", "tfqmr", "lsqr", "lsmr"),
    *("eigsh", "eigs", "svds", "lobpcg", "expm_multiply", "onenormest", "norm", "spsolve", "inv", "expm"),
    *("aslinearoperator", "matrix_power"),
)


def on_device(argument: Any) -> Any:
    """Make a sparse array or matrix a GpuSparseMatrix; leave everything else alone."""
    if sp.issparse(argument) and argument.ndim == 2 and not isinstance(argument, GpuSparseMatrix):
        return GpuSparseMatrix(argument)
    return argument


def converting(function: Any) -> Any:
    """Give the solver with its sparse arguments converted first."""

    @functools.wraps(function)
    def solve(*args: Any, **options: Any) -> Any:
        return function(*map(on_device, args), **{name: on_device(value) for name, value in options.items()})

    return solve


CONVERTING = {f"scipy.sparse.linalg.{name}": converting(getattr(splinalg, name)) for name in SOLVERS}
