"""Symmetry (contract: `gsparse.kernels.set_up`)."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.formats import Csr
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_threads
from gsparse.kernels.gpu.survey import THREADS


def is_symmetric(device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
    """Look up the mirror image of each entry by binary search. Synchronizes."""
    differs = device.xp.zeros(1, np.int32)
    data = csr.data if csr.dtype in COMPUTE_DTYPES else csr.data.astype(np.int64)
    name = expression("mirrored", csr.indptr.dtype, data.dtype)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, data, np.int32(hermitian), np.float64(tolerance), differs)
    launch_threads(device, "setup_entries.cu", name, csr.num_rows, THREADS, args)
    return not device.download(differs)[0]  # synchronizes
