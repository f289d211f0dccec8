"""The GPU backend: CUDA C++ in `src/`, bound and launched here."""

from gsparse.kernels.gpu.convert import csr_to_blocked_ellpack, csr_to_ellpack, csr_transpose
from gsparse.kernels.gpu.spmm import csr_spmm
from gsparse.kernels.gpu.spmv import blocked_ellpack, csr_scalar, csr_vector, ellpack

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

SPMV = {"csr_scalar": csr_scalar, "csr_vector": csr_vector, "ellpack": ellpack, "blocked_ellpack": blocked_ellpack}
