"""The checks of CSR arrays from outside the package, made once where the arrays enter."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.errors import StructureError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of


def refuse_arrays(device: Device, shape: tuple[int, int], indptr: Array, indices: Array, data: Array) -> NoReturn:
    """Raise the error for arrays that do not describe a matrix, after finding the reason step by step. Synchronizes."""
    used = max(int(indptr[-1]), 0) if indptr.ndim == 1 and indptr.size else 0  # synchronizes
    check_structure(device, with_values(Csr(shape, indptr, indices[:used], data[:used]), data))
    raise AssertionError("the survey refused arrays that describe a matrix")


def with_values(csr: Csr, data: Array) -> Csr:
    """Return a structure with these values.

    SciPy's arrays may be longer than the last row pointer says, so surplus values at the end are cut off. A caller
    whose values must fit exactly checks their number before.
    """
    if csr.indices.ndim != 1 or data.ndim != 1 or data.size < csr.nnz:
        raise StructureError(
            f"data and indices must be vectors of one length, got {data.shape}, {csr.indices.shape}: assign both"
        )
    return csr.with_data(data if data.size == csr.nnz else data[: csr.nnz])


def common_index_dtype(indptr: Array, indices: Array) -> tuple[Array, Array]:
    """Return row pointers and columns in int32 if both dtypes fit into it, else in int64. Copies only if necessary."""
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.dtype.kind not in "iu":
            raise StructureError(f"{name} must hold integers, got {array.dtype}: convert it with astype(numpy.int32)")
    narrow, wide = INDEX_DTYPES
    dtype = narrow if all(np.can_cast(a.dtype, narrow) for a in (indptr, indices)) else wide
    return indptr.astype(dtype, copy=False), indices.astype(dtype, copy=False)


def check_structure(device: Device, csr: Csr) -> None:
    """Raise a StructureError if the arrays are no valid CSR matrix. Synchronizes."""
    indptr, indices = csr.indptr, csr.indices
    if indptr.shape != (csr.num_rows + 1,):
        raise StructureError(f"indptr must have num_rows + 1 = {csr.num_rows + 1} elements, got shape {indptr.shape}")
    first, last = int(indptr[0]), int(indptr[-1])  # synchronizes
    if first != 0 or last != csr.nnz:
        raise StructureError(f"indptr must run from 0 to the {csr.nnz} entries, it runs from {first} to {last}")
    row = kernels_of(device).reductions.first_where(device, indptr[1:] < indptr[:-1], "not zero")  # synchronizes
    if row is not None:
        begin, end = int(indptr[row]), int(indptr[row + 1])  # synchronizes
        raise StructureError(f"indptr must not decrease, it does at row {row}, from {begin} to {end}")
    if csr.nnz == 0:
        return
    low, high = int(indices.min()), int(indices.max())  # synchronizes
    if low < 0 or high >= csr.num_cols:
        raise StructureError(
            f"indices must lie in 0 to {csr.num_cols - 1}, they span {low} to {high}: is the shape right?"
        )
