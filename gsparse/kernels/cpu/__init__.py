"""The kernels compiled for the CPU by numba, and the threads that run them."""

from __future__ import annotations

from collections.abc import Callable

from gsparse.kernels.cpu.convert import csr_to_blocked_ellpack, csr_to_ellpack
from gsparse.kernels.cpu.limits import register_with_threadpoolctl
from gsparse.kernels.cpu.spmm import csr_spmm
from gsparse.kernels.cpu.spmv import blocked_ellpack, csr_scalar, csr_vector, ellpack
from gsparse.kernels.cpu.transpose import csr_transpose

__all__ = [
    "SPMV",
    "blocked_ellpack",
    "csr_scalar",
    "csr_spmm",
    "csr_to_blocked_ellpack",
    "csr_to_ellpack",
    "csr_transpose",
    "csr_vector",
    "ellpack",
]

SPMV: dict[str, Callable[..., None]] = {
    "csr_scalar": csr_scalar,
    "csr_vector": csr_vector,
    "ellpack": ellpack,
    "blocked_ellpack": blocked_ellpack,
}

register_with_threadpoolctl()
