"""Sparse matrices that live on the GPU and work wherever SciPy expects one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gsparse.errors import GsparseError
from gsparse.matrix import GpuSparseMatrix
from gsparse.ops import spmm, spmv
from gsparse.plan import FORMATS
from gsparse.stats import strict, total_stats
from gsparse.threads import get_num_threads, set_num_threads

__version__ = "0.1.0.dev0"

__all__ = [
    "FORMATS",
    "GpuSparseMatrix",
    "GsparseError",
    "get_num_threads",
    "set_num_threads",
    "spmm",
    "spmv",
    "strict",
    "total_stats",
]

_SUBMODULES = ("distributed", "files", "linalg", "plot")


def __getattr__(name: str) -> Any:
    """Import a part when it is first used, as SciPy does."""
    if name in _SUBMODULES:
        return import_module(f"gsparse.{name}")
    raise AttributeError(f"module 'gsparse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_SUBMODULES, "__version__"]
