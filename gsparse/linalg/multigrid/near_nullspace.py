"""Near-nullspace candidates: vectors that a matrix nearly maps to zero, which every level of a hierarchy preserves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import ShapeError
from gsparse.kernels.backends import kernels_of


def rigid_body_modes(coordinates: Any) -> npt.NDArray[np.float64]:
    """Return the rigid body modes of an elastic body: the motions that do not deform it.

    They are the near-nullspace candidates `B` of `gsparse.linalg.amg` for linear elasticity, with ``block_size=2`` or
    ``block_size=3``.

    Parameters
    ----------
    coordinates : array_like, shape (num_points, 2) or (num_points, 3)
        The coordinates of the points, in the order of the matrix: the displacements of point i are its unknowns
        ``d * i`` to ``d * i + d - 1`` in d dimensions. On the host or on a device.

    Returns
    -------
    ndarray of float64, shape (2 * num_points, 3) or (3 * num_points, 6)
        On the host. The columns are the translations along the axes, then the rotations: in the plane, or about the
        x, y and z axes through the centre of the points.

    Raises
    ------
    ShapeError
        If there are not two or three coordinates for each point.

    Notes
    -----
    Points that are clamped in all directions, and so have no rows in the matrix, are left out of `coordinates`. All
    other points must have the same number of unknowns. So a point that is clamped only in some directions keeps all of
    its rows: make those of the clamped displacements rows of the identity, with the value on the right-hand side, and
    set the modes to 0 there.

    References
    ----------
    .. [1] P. Vaněk, J. Mandel, M. Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order
       elliptic problems", Computing 56, 1996.

    Examples
    --------
    >>> from gsparse.linalg import rigid_body_modes
    >>> rigid_body_modes([[0.0, 0.0], [2.0, 0.0]])
    array([[ 1.,  0.,  0.],
           [ 0.,  1., -1.],
           [ 1.,  0.,  0.],
           [ 0.,  1.,  1.]])
    """
    points = np.asarray(coordinates.get() if hasattr(coordinates, "get") else coordinates, np.float64)
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise ShapeError(f"coordinates must have the shape (num_points, 2) or (num_points, 3), got {points.shape}")
    count, dimensions = points.shape
    points = points - (points.mean(axis=0) if count else 0)
    modes = np.zeros((count, dimensions, 3 if dimensions == 2 else 6))
    for axis in range(dimensions):
        modes[:, axis, axis] = 1
    # The rotation in the plane of two axes moves the first one against the coordinate of the second one.
    planes = ((0, 1),) if dimensions == 2 else ((1, 2), (2, 0), (0, 1))
    for column, (first, second) in enumerate(planes, dimensions):
        modes[:, first, column] = 0 - points[:, second]
        modes[:, second, column] = points[:, first]
    return modes.reshape(count * dimensions, -1)


def default_candidates(device: Device, size: int, block_size: int, dtype: np.dtype[Any]) -> Array:
    """Return a constant for each unknown of a node. All rows of a single candidate are the same element in memory."""
    xp = device.xp
    if block_size == 1:
        return xp.broadcast_to(xp.ones((1, 1), dtype), (size, 1))
    return xp.ascontiguousarray(xp.tile(xp.eye(block_size, dtype=dtype), (size // block_size, 1)))


def parse_candidates(device: Device, B: Any, size: int, dtype: np.dtype[Any], name: str) -> Array:
    """Return the candidates that a caller passed, on the device, of shape (size, k).

    Raises
    ------
    ShapeError, TypeError
        If B does not have a row for each row of the matrix, or is complex where the matrix is real.
    ValueError
        If a value is NaN or infinite.
    """
    array = B if device_of(B) is not None else np.asarray(B)
    array = array.reshape(-1, 1) if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[0] != size or array.shape[1] < 1:
        raise ShapeError(f"{name} must have a row for each of the {size} rows of A, got shape {array.shape}")
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and dtype.kind != "c"):
        raise TypeError(f"{name} must be of real numbers for a matrix of {dtype}, got {array.dtype}: use {name}.real")
    # A copy, because updates use the candidates again, and the caller may have changed the array by then.
    array = array.astype(dtype, order="C") if device.owns(array) else device.upload(np.array(array, dtype, order="C"))
    if kernels_of(device).reductions.first_where(device, array, "not finite") is not None:  # synchronizes
        raise ValueError(f"{name} must be finite, it has NaN or infinite values")
    return array
