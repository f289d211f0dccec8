"""Every kernel instantiation that run time can ask for, as C++ name expressions: one table for run time and proofs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gsparse._typing import COMPUTE_DTYPES, INDEX_DTYPES, storage_dtype

__all__ = ["CPP_TYPES", "expression", "instantiations", "threads_per_row_choices"]

CPP_TYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.complex64): "Complex<float>",
    np.dtype(np.complex128): "Complex<double>",
}


@cache
def expression(name: str, *arguments: np.dtype[Any] | int) -> str:
    """Write the C++ name expression of one instantiation.

    Examples
    --------
    >>> expression("csr_vector", np.dtype("float32"), np.dtype("float64"), np.dtype("int32"), 8)
    'csr_vector<float, double, int, 8>'
    """
    return f"{name}<{', '.join(str(a) if isinstance(a, int) else CPP_TYPES[a] for a in arguments)}>"


def threads_per_row_choices(lanes: int) -> tuple[int, ...]:
    """Give the powers of two from 2 to the lanes of a warp: the threads that `csr_vector` can give a row."""
    return tuple(2**power for power in range(1, lanes.bit_length()))


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel for a warp of `lanes` lanes."""
    found: list[tuple[str, str]] = []
    for index in INDEX_DTYPES:
        found.append(("convert.cu", expression("slice_sizes", index)))
        for stored in COMPUTE_DTYPES:
            for name in ("fill_ellpack", "fill_blocked_ellpack"):
                found.append(("convert.cu", expression(name, stored, index)))
            for compute in COMPUTE_DTYPES:
                if storage_dtype(stored, compute) == stored:
                    found += _products(stored, compute, index, lanes)
    return found


def _products(stored: Any, compute: Any, index: Any, lanes: int) -> list[tuple[str, str]]:
    types = (stored, compute, index)
    return [
        ("spmv_csr.cu", expression("csr_scalar", *types)),
        *(("spmv_csr.cu", expression("csr_vector", *types, threads)) for threads in threads_per_row_choices(lanes)),
        ("spmv_ellpack.cu", expression("ellpack", *types)),
        ("spmv_ellpack.cu", expression("blocked_ellpack", *types)),
        ("spmm_csr.cu", expression("csr_spmm", *types)),
    ]
