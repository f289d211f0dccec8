"""Vectors that look random and are computed on the device: start vectors and test vectors of methods.

Eigensolvers have `gsparse.linalg.eigen.krylov_space.random_vector` instead: it has a seed, and complex vectors have
random imaginary parts. It takes many passes over the vector; this one takes one kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of

# Each vector hashes row numbers that begin this much later: 2³² divided by the square of the golden ratio.
_STRIDE = 1640531527


def hashed_vector(device: Device, size: int, dtype: np.dtype[Any], number: int = 0, first_row: int = 0) -> Array:
    """Return hashes of the row numbers, which are real numbers between -1/2 and 1/2.

    The hash multiplies twice, and folds the upper bits into the lower ones each time. One multiplication alone would
    give a sequence that rises and falls regularly, and hardly contains most eigenvectors of a grid.

    Parameters
    ----------
    device : Device
    size : int
    dtype : dtype
        Of the vector. The elements of a complex one are real.
    number : int
        Which vector: those with other numbers are independent of it.
    first_row : int
        The number of the first row: a rank that passes that of its own first row gets its part of the whole vector.
    """
    vector = device.empty(size, dtype)
    kernels_of(device).steps.fill_hashes(device, vector, number * _STRIDE + first_row)
    return vector
