"""Checks of the arguments of a product; each error names the requirement, what came, and the remedy."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.interchange import DenseInput
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError, ShapeError


def check_device(device: Device, x: DenseInput) -> None:
    """Refuse a vector that lives on another GPU."""
    if x.gpu is not None and x.gpu is not device:
        raise DeviceError(f"the matrix lives on {device.name}, the vector on {x.gpu.name}: bring one to the other")


def check_matrix(A: Any) -> None:
    """Refuse what is not a matrix of two dimensions on a device."""
    if not hasattr(A, "_prepared"):
        raise TypeError(f"A must be a GpuSparseMatrix or a view of one, got {type(A).__name__}: use GpuSparseMatrix(A)")
    if len(A.shape) != 2:
        raise ShapeError(f"A must have two dimensions, got shape {A.shape}: use A.reshape(1, -1)")


def check_x(A: Any, x: Array, transposed: bool, ndim: int | None) -> None:
    """Refuse a vector or columns of the wrong shape; `ndim` is the only number of dimensions allowed, if given."""
    size = A.shape[0] if transposed else A.shape[1]
    if x.ndim not in ((1, 2) if ndim is None else (ndim,)) or x.shape[0] != size:
        shape = {1: f"({size},)", 2: f"({size}, k)", None: f"({size},) or ({size}, k)"}[ndim]
        raise ShapeError(f"dimension mismatch: A of shape {A.shape} takes x of shape {shape}, got {x.shape}")


def check_out(
    device: Device, x: Array, out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], beta: Any
) -> None:
    """Refuse an `out` that a product of this shape and dtype cannot be written to."""
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
