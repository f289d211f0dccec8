"""Elements of vectors that ranks exchange: gathered, and added back; the contract is in `gsparse.kernels.contract`."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array


def gather(device: Device, x: Array, numbers: Array, out: Array) -> None:
    """Gather elements. NumPy writes to `out` directly in "clip" mode only."""
    np.take(x, numbers, out=out, mode="clip")


def num_scatter_dots(count: int) -> int:
    """Return the number of partial sums that `scatter_add` stores: one."""
    return 1


def scatter_add(
    device: Device,
    values: Array,
    numbers: Array,
    y: Array,
    x: Array | None = None,
    dots: Array | None = None,
) -> None:
    """Add values to elements of `y`.

    NumPy's warnings are switched off, because a GPU has none: a solve that has broken down continues with inf.
    """
    with np.errstate(all="ignore"):
        y[numbers] += values
    if x is not None and dots is not None:
        dots[0] = np.vdot(x[numbers].astype(dots.dtype), values)
