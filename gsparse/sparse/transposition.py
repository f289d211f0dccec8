"""The transpose of a sparse matrix, to be made again for other values."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of


class CsrTranspose:
    """The transposes of matrices that differ in their values only.

    The second call finds the order in which the values are read, an integer for each entry, and keeps it. So a matrix
    that is transposed only once takes no more memory than its transpose.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._structure: Csr | None = None
        self._order: Array | None = None

    def __call__(self, csr: Csr) -> Csr:
        """Return the transpose. The structure must be the same each time. The first two calls may synchronize."""
        device = self._device
        if self._structure is None:
            result = kernels_of(device).transpose.csr_transpose(device, csr)
            self._structure = result.with_data(device.no_values(csr.dtype))
            return result
        if self._order is None:
            numbers = device.xp.arange(csr.nnz, dtype=np.int32 if csr.nnz <= MAX_INT32 else np.int64)
            self._order = kernels_of(device).transpose.csr_transpose(device, csr.with_data(numbers)).data
        return self._structure.with_data(device.xp.take(csr.data, self._order))
