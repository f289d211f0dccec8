"""Checks of CSR arrays, made once when they enter the package, and of the arguments of each product.

Each error names the requirement, the value received, and the remedy.
"""

from __future__ import annotations

import numbers
from typing import Any, NoReturn

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.device.interchange import DenseInput
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError, ShapeError, StructureError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of


def refuse_arrays(device: Device, shape: tuple[int, int], indptr: Array, indices: Array, data: Array) -> NoReturn:
    """Find out why arrays do not describe a matrix, and raise the error that says so. Synchronizes."""
    used = max(int(indptr[-1]), 0) if indptr.ndim == 1 and indptr.size else 0  # synchronizes
    check_structure(device, with_values(Csr(shape, indptr, indices[:used], data[:used]), data))
    raise AssertionError("the survey refused arrays that describe a matrix")


def with_values(csr: Csr, data: Array) -> Csr:
    """Return a structure with these values.

    SciPy allows more values than the last row pointer says, so surplus values are cut off.
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
    """Raise a StructureError if the arrays do not form a valid CSR matrix. Synchronizes."""
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


def check_device(device: Device, x: DenseInput) -> None:
    """Refuse a vector that lives on another GPU."""
    if x.gpu is not None and x.gpu is not device:
        raise DeviceError(f"the matrix lives on {device.name}, the vector on {x.gpu.name}: bring one to the other")


def check_matrix(A: Any) -> None:
    """Raise an error unless A is a gsparse matrix, or a view of one, with two dimensions."""
    if not hasattr(A, "_prepared"):
        raise TypeError(f"A must be a GpuSparseMatrix or a view of one, got {type(A).__name__}: use GpuSparseMatrix(A)")
    if len(A.shape) != 2:
        raise ShapeError(f"A must have two dimensions, got shape {A.shape}: use A.reshape(1, -1)")


def check_x(A: Any, x: Array, transposed: bool, ndim: int | None) -> None:
    """Raise an error unless the vector or columns fit A. `ndim` is the required dimension, None for 1 or 2."""
    size = A.shape[0] if transposed else A.shape[1]
    if x.ndim not in ((1, 2) if ndim is None else (ndim,)) or x.shape[0] != size:
        shape = {1: f"({size},)", 2: f"({size}, k)", None: f"({size},) or ({size}, k)"}[ndim]
        raise ShapeError(f"dimension mismatch: A of shape {A.shape} takes x of shape {shape}, got {x.shape}")


def check_out(
    device: Device, x: Array, out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], beta: Any
) -> None:
    """Raise an error unless a product of this shape and dtype can be written to `out`."""
    if out is None:
        if not is_zero(beta):
            raise ShapeError("beta scales the contents of out: pass out=, or leave beta at 0")
        return
    if type(out) is not type(x) and not (isinstance(out, np.ndarray) and isinstance(x, np.ndarray)):
        raise DeviceError(f"out must be an array of the same type as x, {type(x)}, got {type(out)}")
    if device_of(out) is not device_of(x):  # on GPUs only
        raise DeviceError(f"out must live where x does, on {device.name}")
    if out.shape != shape:
        raise ShapeError(f"out must have shape {shape}, got {out.shape}")
    if out.dtype != dtype:
        raise DtypeError(f"out must have the product's dtype {dtype}, got {out.dtype}")
    if out.ndim == 1 and not out.flags.c_contiguous:
        raise ShapeError(f"out must be contiguous, got strides {out.strides}: use a temporary and copy")
    if out.ndim == 2 and _repeats_elements(out):
        raise ValueError(
            f"elements of out share memory, got strides {out.strides}: pass an array with separate elements"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out is read-only: pass a writable array")
    if _overlap(device.xp if device.owns(x) else np, x, out):
        raise ValueError("x and out overlap: a product cannot be computed in place, pass another out")


def _repeats_elements(out: Array) -> bool:
    """Return whether elements of an array of two dimensions may have the same address.

    They cannot if each row ends before the next one begins, or each column before the next one, as in every slice of an
    array that NumPy has made. For some arrays of `as_strided` the result is True although no elements share an address.
    """
    axes = sorted((abs(stride), length) for stride, length in zip(out.strides, out.shape, strict=True) if length > 1)
    extent = out.itemsize
    for stride, length in axes:
        if stride < extent:
            return bool(out.size > 0)
        extent += stride * (length - 1)
    return False


def _overlap(xp: Any, x: Array, out: Array) -> bool:
    """Return whether two arrays share an element. Interleaved columns of one array do not."""
    return bool(xp.may_share_memory(x, out) and (x.ndim == 1 or xp.shares_memory(x, out)))


def check_scalars(**scalars: Any) -> None:
    """Refuse factors that are not numbers."""
    for name, scalar in scalars.items():
        if getattr(scalar, "ndim", 0):
            raise ShapeError(f"{name} must be a scalar, got an array: multiply by it outside the product")
        if not isinstance(scalar, numbers.Number | np.generic) and getattr(scalar, "ndim", None) != 0:
            raise DtypeError(f"{name} must be a number, got {type(scalar).__name__}")


def is_zero(scalar: Any) -> bool:
    """Return whether a factor is 0."""
    return bool(scalar == 0)
