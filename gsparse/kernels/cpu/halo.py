"""What ranks exchange, picked out and put back (contract: `gsparse.kernels`)."""

from __future__ import annotations

import numpy as np

from gsparse.device.dtypes import Array

__all__ = ["gather", "scatter_add"]


def gather(device: object, x: Array, numbers: Array, out: Array) -> None:
    """Take elements (in "clip" mode NumPy writes `out` directly)."""
    np.take(x, numbers, out=out, mode="clip")


def scatter_add(device: object, values: Array, numbers: Array, y: Array) -> None:
    """Add to elements, each number once."""
    y[numbers] += values
