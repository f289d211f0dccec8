"""The values of a sparse matrix times factors of rows, of columns or of entries."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.canonical import computed


def scaled_values(device: Device, csr: Csr, factors: Array) -> Array:
    """Return the value of each entry times the element of a dense array that belongs to it.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
    factors : array
        On the device, of shape (num_rows, num_cols), (1, num_cols) for factors of columns, (num_rows, 1) for factors
        of rows, or (1, 1) for one factor of all entries.

    Returns
    -------
    array, shape (nnz,)
        Of the dtype that NumPy gives the product.
    """
    if factors.size == 1:
        return csr.data * factors.reshape(())
    kernels = kernels_of(device)
    dtype = csr.dtype if csr.dtype == factors.dtype else np.result_type(csr.dtype, factors.dtype)
    if 1 not in factors.shape:
        return csr.data * kernels.edits.take_elements(device, csr, factors)
    values = computed(csr, dtype)
    scale = kernels.sparse_rows.scale_columns if factors.shape[0] == 1 else kernels.sparse_rows.scale_rows
    factors = factors.reshape(-1)
    if factors.dtype != values.dtype:
        factors = factors.astype(values.dtype)
    products = scale(device, values, factors if factors.flags.c_contiguous else device.xp.ascontiguousarray(factors))
    return products if products.dtype == dtype else products.astype(dtype)
