"""Transposing on the CPU: SciPy's counting sort."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.formats import Csr

__all__ = ["csr_transpose", "is_symmetric"]


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Transpose; within each row of the result columns keep the order of the rows they come from."""
    columns = sp.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape).tocsc()
    indptr, indices = (part.astype(csr.indices.dtype, copy=False) for part in (columns.indptr, columns.indices))
    return Csr(csr.shape[::-1], indptr, indices, columns.data)


def is_symmetric(device: Device, csr: Csr, hermitian: bool) -> bool:
    """Compare with the transpose, which is dropped again."""
    other = csr_transpose(device, csr)
    data = np.conjugate(other.data) if hermitian else other.data
    same_structure = np.array_equal(csr.indptr, other.indptr) and np.array_equal(csr.indices, other.indices)
    return same_structure and np.array_equal(csr.data, data)
