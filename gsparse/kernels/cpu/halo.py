"""What ranks exchange, picked out and put back (contract: `gsparse.kernels`)."""

from __future__ import annotations

import numpy as np

from gsparse._typing import Array

__all__ = ["gather", "scatter_add"]


def gather(device: object, x: Array, numbers: Array, out: Array) -> None:
    """Take elements (in "clip" mode NumPy writes `out` directly)."""
    np.take(x, numbers, out=out, mode="clip")


def scatter_add(device: object, values: Array, numbers: Array, y: Array) -> None:
    """Add to elements, each number once; without NumPy's warnings, as on a GPU: a column that broke down goes on."""
    with np.errstate(all="ignore"):
        y[numbers] += values
