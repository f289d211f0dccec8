"""Transposing on the CPU: SciPy's counting sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.formats import Csr

__all__ = ["csr_transpose", "is_symmetric"]


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Transpose; within each row of the result columns keep the order of the rows they come from."""
    columns = sp.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape).tocsc()
    indptr, indices = (part.astype(csr.indices.dtype, copy=False) for part in (columns.indptr, columns.indices))
    return Csr(csr.shape[::-1], indptr, indices, columns.data)


def is_symmetric(device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
    """Compare with the transpose, which is dropped again."""
    other = csr_transpose(device, csr)
    other = other.with_data(np.conjugate(other.data)) if hermitian else other
    same_structure = np.array_equal(csr.indptr, other.indptr) and np.array_equal(csr.indices, other.indices)
    if same_structure and np.array_equal(csr.data, other.data):
        return True
    return tolerance > 0 and _is_near(csr, other, tolerance)


def _is_near(csr: Csr, other: Csr, tolerance: float) -> bool:
    """Compare the difference of two matrices with the largest magnitude in each row of the first."""
    one, two = (sp.csr_array((part.data, part.indices, part.indptr), shape=part.shape) for part in (csr, other))
    with np.errstate(invalid="ignore", over="ignore"):  # (inf - inf is NaN, which is near nothing)
        difference = sp.csr_array(one - two)
    allowed, filled = np.zeros(csr.num_rows), np.flatnonzero(np.diff(csr.indptr))
    if filled.size:
        allowed[filled] = tolerance * np.maximum.reduceat(_sizes(csr.data), csr.indptr[filled])
    return bool((_sizes(difference.data) <= np.repeat(allowed, np.diff(difference.indptr))).all())


def _sizes(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return magnitudes: of a complex number the larger of its two parts, which cannot overflow."""
    sizes: npt.NDArray[np.float64] = np.maximum(np.abs(values.real), np.abs(values.imag)).astype(np.float64)
    return sizes
