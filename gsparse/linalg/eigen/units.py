"""Powers of two by which eigensolvers scale A and M, so that no square overflows or underflows.

Eigensolvers add up squares of vectors that were multiplied by A, and by Aᴴ·A for singular values. Where the norm of A
or M is far from 1, these leave the range of the dtype, although the eigenvalues do not. The problem

    A·2^-a · x = μ · M·2^-m · x          has the eigenvalues μ = λ·2^(m - a) and the same eigenvectors

up to their lengths. Powers of two round nothing. A norm that needs no scaling has the exponent 0, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.krylov_space import Space, random_vector

# By the bytes of a real number: norms from 2 to the power -n to 2 to the power n need no scaling. Squares of residuals,
# which are rounding errors of products, are in range then. So are squares of products with Aᴴ·A in double precision.
_RANGE = {4: 30, 8: 200}
# Where the product with numbers up to 1 overflows, the numbers are scaled by 2 to this power.
_SHRINK = -64


def exponent_of_product(multiply: Callable[[Array], Array], space: Space) -> int | None:
    """Return an even e for which 2^-e times an operator has a norm near 1. Synchronizes.

    The exponent is found by the product with a random vector. It is None if the product is zero or not finite.
    """
    x, xp = random_vector(space, 0), space.device.xp
    for shrink in (0, _SHRINK):
        with np.errstate(all="ignore"):
            y = multiply(x * 2.0**shrink)
            # The roots of the largest elements do not overflow if ranks add them up.
            roots = xp.zeros(1) if not y.size else xp.sqrt(abs(y).max().reshape(1).astype(np.float64))
            root = float(space.download(space.sum_over_ranks(roots))[0])
        if root == 0:
            return None
        if np.isfinite(root):
            return 2 * int(np.frexp(root)[1]) - shrink
    return None


def needed_exponent(exponents: Iterable[int | None], dtype: np.dtype[Any]) -> int:
    """Return the largest exponent of several terms if their sum has to be scaled, otherwise 0.

    Both powers of two are normal numbers of the dtype.
    """
    info = np.finfo(dtype)
    largest, limit = max((e for e in exponents if e is not None), default=0), int(info.maxexp) - 2
    return 0 if abs(largest) <= _RANGE[info.dtype.itemsize] else int(np.clip(largest, -limit, limit))


def times_power(array: Any, exponent: int) -> Any:
    """Return numbers times 2 to a power, which may be out of range while the result is in range."""
    if not exponent:
        return array
    half = exponent // 2
    return array * 2.0**half * 2.0 ** (exponent - half)
