"""Sparse matrices that live on the GPU and work wherever SciPy expects one."""

from __future__ import annotations

from gsparse.errors import GsparseError
from gsparse.matrix import GpuSparseMatrix
from gsparse.ops import spmm, spmv
from gsparse.plan import FORMATS
from gsparse.stats import strict
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
]
