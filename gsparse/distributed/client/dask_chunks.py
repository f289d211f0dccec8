"""Chunks of dask arrays that are matrices on a device: dask learns how to join, select and multiply them.

Without this module, dask handles a `GpuSparseMatrix` by the rules for SciPy's arrays, which bring it to the host.
"""

from __future__ import annotations

from typing import Any

from dask.array.dispatch import concatenate_lookup, take_lookup, tensordot_lookup

from gsparse.matrix.assembly import hstack, vstack
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix


def _concatenate(matrices: list[Any], axis: int = 0) -> Any:
    """Join matrices below each other (axis 0) or side by side (axis 1)."""
    return (hstack if axis % 2 else vstack)(matrices)


def _take(matrix: Any, numbers: Any, axis: int = 0) -> Any:
    """Return some rows (axis 0) or columns (axis 1)."""
    return matrix[:, numbers] if axis % 2 else matrix[numbers]


def _tensordot(a: Any, b: Any, axes: tuple[Any, Any]) -> Any:
    """Return the sum of products over one axis of each operand, one of which is a matrix on a device.

    Raises
    ------
    ValueError
        If the sum runs over more than one axis of an operand.
    """
    (a_axis, *more), (b_axis, *others) = axes
    if more or others:
        raise ValueError(f"tensordot of a sparse matrix takes one axis of each operand, got {axes}")
    return (a.T if a_axis % a.ndim != a.ndim - 1 else a) @ (b.T if b_axis % b.ndim else b)


for lookup, function in ((concatenate_lookup, _concatenate), (take_lookup, _take), (tensordot_lookup, _tensordot)):
    lookup.register(DeviceMatrix, function)
