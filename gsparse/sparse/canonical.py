"""Canonical form: columns increase within each row, and no place of the matrix has two entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array, compute_dtype
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of


def canonical(device: Device, csr: Csr) -> Csr:
    """Return the matrix in canonical form: itself if it is, else sorted, with duplicates added up in their order.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Of any dtype for which there is a compute dtype.

    Returns
    -------
    Csr
        Shares the arrays of `csr` where nothing had to change. Its values have the same dtype, so that sums of integers
        wrap, and True + True is True. Synchronizes.
    """
    if csr.is_canonical:
        return csr
    kernels, dtype = kernels_of(device), csr.dtype
    if not kernels.layout.survey(device, csr.indptr, csr.indices, False).num_unsorted:
        return replace(csr, is_canonical=True)
    xp, csr = device.xp, sorted_rows(device, computed(csr, dtype))
    is_first = first_of_each_place(device, csr)
    if kernels.reductions.first_where(device, is_first, "zero") is not None:  # synchronizes
        sums = kernels.sparse_rows.sum_runs(
            device, csr.data, xp.flatnonzero(is_first).astype(csr.indices.dtype)
        )  # synchronizes
        csr = replace(kernels.sparse_rows.keep_entries(device, csr, is_first), data=sums)
    return replace(csr, data=csr.data.astype(dtype, copy=False), is_canonical=True)


def sorted_rows(device: Device, csr: Csr) -> Csr:
    """Return the matrix with sorted rows, in which entries of one column keep their order. Synchronizes.

    The matrix is transposed twice, because the rows of a transpose are sorted.
    """
    kernels = kernels_of(device)
    return kernels.transpose.csr_transpose(device, kernels.transpose.csr_transpose(device, csr))


def first_of_each_place(device: Device, csr: Csr) -> Array:
    """Return whether each entry of sorted rows is the first one in its row and column."""
    rows = kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz)
    is_first = device.xp.ones(csr.nnz, np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]) | (csr.indices[1:] != csr.indices[:-1])
    return is_first


def computed(csr: Csr, dtype: Any) -> Csr:
    """Return the matrix with values of the dtype in which results of `dtype` are computed.

    Raises
    ------
    TypeError
        If no kernel computes in `dtype`.
    """
    compute = compute_dtype(dtype)
    if compute is None:
        raise TypeError(f"no kernel computes in {np.dtype(dtype)}")
    return csr if csr.dtype == compute else csr.with_data(csr.data.astype(compute))


def in_common(*matrices: Csr) -> tuple[Csr, ...]:
    """Return the matrices with index arrays of one dtype: int64 if any has it."""
    dtype = matrices[0].indices.dtype
    if all(part.indices.dtype == dtype for part in matrices):
        return matrices
    common = np.result_type(*(part.indices.dtype for part in matrices))
    return tuple(part.with_index_dtype(common) for part in matrices)
