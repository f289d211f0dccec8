"""The options of a set-up by smoothed aggregation, its near-nullspace, and the seconds of its phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.compilation import COMPILE_NOTICE
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import ShapeError
from gsparse.kernels.aggregation import MEASURES
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix
from gsparse.matrix.product_methods import declared_block_shape

_Result = TypeVar("_Result")


class Phases:
    """Measures the times of named phases, each of which may run several times.

    Parameters
    ----------
    device : Device
        The device on which the phases queue their work. It must be the active one.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._compilations = device, COMPILE_NOTICE.compilations
        self._readers: list[tuple[str, Callable[[], float | None]]] = []

    def run(self, name: str, function: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
        """Return ``function(*args, **options)``, and add its time to the phase `name`."""
        results: list[_Result] = []
        self._readers.append((name, self._device.timed(lambda: results.append(function(*args, **options)))))
        return results[0]

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase, in the order of their first runs. Call this when the device is idle."""
        seconds: dict[str, float] = {}
        for name, read in self._readers:
            seconds[name] = seconds.get(name, 0.0) + (read() or 0.0)
        return seconds

    def line(self, seconds: dict[str, float]) -> str:
        """Return the milliseconds of phases as text, with a remark if kernels have been compiled during the set-up."""
        times = ", ".join(f"{name} {1e3 * time:.3g}" for name, time in seconds.items())
        is_first = COMPILE_NOTICE.compilations > self._compilations
        return f"{times}; compiling kernels included" if is_first else times


SYMMETRIES = ("hermitian", "symmetric", "nonsymmetric")
# The default threshold θ of each measure of strength, as in PyAMG.
_THETAS = {"classical": 0.1, "symmetric": 0.0}


@dataclass(frozen=True)
class Strength:
    """The measure of strong connections on one level, and its threshold.

    Attributes
    ----------
    measure : str
        One of `gsparse.kernels.aggregation.MEASURES`.
    theta : float
    drops : bool
        Whether prolongators are smoothed with the filtered matrix, whose weak entries are added to the diagonal.
    """

    measure: str
    theta: float
    drops: bool

    @property
    def dropping_theta(self) -> float:
        """The threshold below which prolongators ignore connections; 0 if they use all connections."""
        return self.theta if self.drops else 0.0


@dataclass(frozen=True)
class AggregationOptions:
    """Options of smoothed aggregation, see `gsparse.linalg.amg`.

    Attributes
    ----------
    block_size : int
    symmetry : {"hermitian", "symmetric", "nonsymmetric"} or None
        None: "hermitian" or "nonsymmetric", depending on the matrix.
    strengths : tuple of Strength
        One for each level; the last one also applies to all coarser levels.
    max_levels, max_coarse : int
    """

    block_size: int
    symmetry: str | None
    strengths: tuple[Strength, ...]
    max_levels: int
    max_coarse: int

    def strength(self, depth: int) -> Strength:
        """Return the `Strength` of level number `depth`; the finest level has number 0."""
        return self.strengths[min(depth, len(self.strengths) - 1)]


def parse_options(
    A: Any, block_size: int | None, symmetry: str | None, strength: Any, max_levels: int, max_coarse: int
) -> AggregationOptions:
    """Check the options of `amg` for a matrix, and return them. The default of `block_size` comes from a BSR matrix.

    Raises
    ------
    ValueError
        If an option has no allowed value.
    """
    if block_size is None:
        rows, columns = blocks_of(A)
        block_size = rows if rows == columns else 1
    if index(block_size) < 1 or A.shape[0] % block_size:
        raise ValueError(f"block_size must divide the number of rows, {A.shape[0]}, got {block_size}")
    if symmetry is not None and symmetry not in SYMMETRIES:
        raise ValueError(f"symmetry must be None or one of {', '.join(map(repr, SYMMETRIES))}, got {symmetry!r}")
    if index(max_levels) < 1 or index(max_coarse) < 1:
        raise ValueError(f"max_levels and max_coarse must be at least 1, got {max_levels} and {max_coarse}")
    strengths = strength if isinstance(strength, list) else [strength]
    if not strengths:
        raise ValueError("strength must have an element for the finest level, got an empty list")
    return AggregationOptions(block_size, symmetry, tuple(map(_parse_strength, strengths)), max_levels, max_coarse)


def blocks_of(A: Any) -> tuple[int, int]:
    """Return the block size of a BSR matrix, or of a matrix made from one; (1, 1) for others. Synchronizes."""
    if isinstance(A, DeviceMatrix):
        return declared_block_shape(A) or (1, 1)
    return A.blocksize if sp.issparse(A) and A.format == "bsr" else (1, 1)


def _parse_strength(strength: Any) -> Strength:
    name, options = strength if isinstance(strength, tuple) else (strength, {})
    if name is None and not options:
        return Strength("symmetric", 0.0, False)
    if name not in MEASURES:
        names = ", ".join(map(repr, MEASURES))
        raise ValueError(
            f"strength must be None, {names} or (name, {{'theta': number}}), got {strength!r}: "
            "for other measures, pass a hierarchy of PyAMG"
        )
    if not isinstance(options, Mapping) or {*options} - {"theta"}:
        raise ValueError(f"the strength {name!r} has the option 'theta', got {options!r}")
    theta = options.get("theta", _THETAS[name])
    if not (isinstance(theta, Real) and 0 <= float(theta) <= 1):
        raise ValueError(f"theta must be a number between 0 and 1, got {theta!r}")
    return Strength(name, float(theta), name == "classical")


def rigid_body_modes(coordinates: Any) -> npt.NDArray[np.float64]:
    """Return the rigid body modes of an elastic body: the motions that do not deform it.

    They are the near-nullspace candidates `B` of `gsparse.linalg.amg` for linear elasticity, with ``block_size=2`` or
    ``block_size=3``.

    Parameters
    ----------
    coordinates : array_like, shape (num_points, 2) or (num_points, 3)
        The coordinates of the points, on the host or on a device, in the order of the matrix: in d dimensions, the
        displacements of point i are the unknowns ``d * i`` to ``d * i + d - 1``.

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
    Omit points that are clamped in all directions from `coordinates`, because they have no rows in the matrix. All
    other points must have the same number of unknowns. So a point that is clamped in some directions keeps all of its
    rows: replace the rows of its clamped displacements by rows of the identity, with the value on the right-hand side,
    and set the modes to 0 there.

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
    # A rotation in the plane of two axes: the displacement along the first axis is minus the coordinate along the
    # second.
    planes = ((0, 1),) if dimensions == 2 else ((1, 2), (2, 0), (0, 1))
    for column, (first, second) in enumerate(planes, dimensions):
        modes[:, first, column] = 0 - points[:, second]
        modes[:, second, column] = points[:, first]
    return modes.reshape(count * dimensions, -1)


def parse_candidates(
    device: Device, size: int, dtype: np.dtype[Any], options: AggregationOptions, symmetry: str, B: Any, BH: Any
) -> tuple[Array, Array]:
    """Return the candidates of a matrix and of its adjoint, two device arrays of shape (size, k).

    If the user passed none, they are a constant for each unknown of a node.

    Raises
    ------
    ShapeError, TypeError
        If an array does not have `size` rows, or is complex although the matrix is real.
    ValueError
        If a value is NaN or infinite, or the two arrays do not fit each other or the symmetry.
    """
    if BH is not None and symmetry != "nonsymmetric":
        raise ValueError(f"BH is for nonsymmetric matrices, this one is {symmetry}: use symmetry='nonsymmetric'")
    if B is None:
        right = _default_candidates(device, size, options.block_size, dtype)
    else:
        right = _parse_array(device, B, size, dtype, "B")
    left = right if BH is None else _parse_array(device, BH, size, dtype, "BH")
    if left.shape != right.shape:
        raise ValueError(f"B and BH must have as many columns, got {right.shape[1]} and {left.shape[1]}")
    return right, left


def _default_candidates(device: Device, size: int, block_size: int, dtype: np.dtype[Any]) -> Array:
    """Return a constant for each unknown of a node. The rows of a single candidate share one element in memory."""
    xp = device.xp
    if block_size == 1:
        return xp.broadcast_to(xp.ones((1, 1), dtype), (size, 1))
    return xp.ascontiguousarray(xp.tile(xp.eye(block_size, dtype=dtype), (size // block_size, 1)))


def _parse_array(device: Device, B: Any, size: int, dtype: np.dtype[Any], name: str) -> Array:
    array = B if device_of(B) is not None else np.asarray(B)
    array = array.reshape(-1, 1) if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[0] != size or array.shape[1] < 1:
        raise ShapeError(f"{name} must have a row for each of the {size} rows of A, got shape {array.shape}")
    if array.dtype.kind not in "biufc" or (array.dtype.kind == "c" and dtype.kind != "c"):
        raise TypeError(f"{name} must be of real numbers for a matrix of {dtype}, got {array.dtype}: use {name}.real")
    # Make a copy: updates use the candidates again, and the user may have changed the array by then.
    array = array.astype(dtype, order="C") if device.owns(array) else device.upload(np.array(array, dtype, order="C"))
    if kernels_of(device).reductions.first_where(device, array, "not finite") is not None:  # synchronizes
        raise ValueError(f"{name} must be finite, it has NaN or infinite values")
    return array
