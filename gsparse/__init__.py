"""Sparse matrices that live on the GPU and work wherever SciPy expects one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gsparse._interrupt  # noqa: F401 This must be the first import of gsparse; `_interrupt` says why.
from gsparse._version import __version__
from gsparse.device.counters import strict, total_stats
from gsparse.device.threads import get_num_threads, set_num_threads
from gsparse.errors import GsparseError
from gsparse.matrix import assembly
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.upper_layers import UPPER_LAYERS
from gsparse.products import FORMATS
from gsparse.products.multiply import spmm, spmv
from gsparse.profiling.profile import profile
from gsparse.sparse import PUBLIC_NAMES

__all__ = [
    "FORMATS",
    "GpuSparseMatrix",
    "GsparseError",
    "__version__",
    "get_num_threads",
    "profile",
    "set_num_threads",
    "spmm",
    "spmv",
    "strict",
    "total_stats",
]


def _imported_later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that, when called, imports ``module.name`` and calls that."""

    def call(*args: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*args, **options)

    return call


UPPER_LAYERS.update(
    distribute=_imported_later("gsparse.distributed", "distribute"),
    accelerated=_imported_later("gsparse.linalg.accelerated", "AcceleratedOperator"),
    html=_imported_later("gsparse.plot", "html"),
)

PUBLIC_NAMES.update(assembly.PUBLIC_NAMES)

_SUBMODULES = ("distributed", "files", "jax", "linalg", "plot", "sparse", "torch")


def __getattr__(name: str) -> Any:
    """Import a submodule when it is first used, as SciPy does."""
    if name in _SUBMODULES:
        return import_module(f"gsparse.{name}")
    if name == "from_dask":
        return import_module("gsparse.distributed").from_dask
    raise AttributeError(f"module 'gsparse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_SUBMODULES]


if "dask" in sys.modules:  # so that dask joins and multiplies chunks of this class on their device
    import_module("gsparse.distributed.client.dask_chunks")
