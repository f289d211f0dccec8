"""What ranks exchange, picked out and put back (contract: `gsparse.kernels.contract`)."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array

__all__ = ["gather", "num_scatter_dots", "scatter_add"]


def gather(device: Device, x: Array, numbers: Array, out: Array) -> None:
    """Take elements (in "clip" mode NumPy writes `out` directly)."""
    np.take(x, numbers, out=out, mode="clip")


def num_scatter_dots(count: int) -> int:
    """Return how many partial sums `scatter_add` leaves: one."""
    return 1


def scatter_add(
    device: Device,
    values: Array,
    numbers: Array,
    y: Array,
    x: Array | None = None,
    dots: Array | None = None,
) -> None:
    """Add to elements, each number once.

    NumPy's warnings are switched off, since a GPU gives none: a right-hand side that has broken down goes on with inf.
    """
    with np.errstate(all="ignore"):
        y[numbers] += values
    if x is not None and dots is not None:
        dots[0] = np.vdot(x[numbers].astype(dots.dtype), values)
