"""Vectors that look random and are computed on the device: start vectors and test vectors of methods.

Eigensolvers have `gsparse.linalg.eigen.krylov_space.random_vector` instead, whose elements do not depend on the number
of ranks that share them. It takes twice as many passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of

__all__ = ["hashed_vector"]

# The distance of the row numbers of two vectors: 2³² divided by the square of the golden ratio.
_STRIDE = 1640531527


def hashed_vector(device: Device, size: int, dtype: np.dtype[Any], number: int = 0, first_row: int = 0) -> Array:
    """Return hashes of the row numbers, real numbers between -1/2 and 1/2.

    A multiplication alone would leave a sequence that rises and falls regularly, so that it has little of most
    eigenvectors of a grid. Folding the upper bits into the lower ones, and another multiplication, mend that.

    Parameters
    ----------
    device : Device
    size : int
    dtype : dtype
        Of the vector. The elements of a complex one are real.
    number : int
        Which vector: those with other numbers are independent of it.
    first_row : int
        The number of the first row. The parts of a vector on several ranks are those of the vector on one.
    """
    vector = device.empty(size, dtype)
    kernels_of(device).fill_hashes(device, vector, number * _STRIDE + first_row)
    return vector
