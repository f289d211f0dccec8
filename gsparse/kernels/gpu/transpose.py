"""Symmetry and transposition (contract: `gsparse.kernels.contract`)."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.formats import Csr
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_threads
from gsparse.kernels.gpu.survey import THREADS

__all__ = ["csr_transpose", "is_symmetric"]


def is_symmetric(device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
    """Look every entry's mirror image up, by binary search. Synchronizes."""
    differs = device.xp.zeros(1, np.int32)
    data = csr.data if csr.dtype in COMPUTE_DTYPES else csr.data.astype(np.int64)
    name = expression("mirrored", csr.indptr.dtype, data.dtype)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, data, np.int32(hermitian), np.float64(tolerance), differs)
    launch_threads(device, "setup_entries.cu", name, csr.num_rows, THREADS, args)
    return not device.download(differs)[0]  # synchronizes


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Transpose: a stable sort by column keeps the rows in order, so columns of the result rise. Synchronizes.

    The sort is CuPy's; NumPy's in the emulator.
    """
    xp = device.xp
    order = xp.argsort(csr.indices, kind="stable")
    rows = xp.searchsorted(csr.indptr[1:], order, side="right").astype(csr.indices.dtype)
    indptr = xp.zeros(csr.num_cols + 1, csr.indptr.dtype)
    xp.cumsum(xp.bincount(csr.indices, minlength=csr.num_cols), out=indptr[1:])  # synchronizes
    return Csr(csr.shape[::-1], indptr, rows, csr.data[order])
