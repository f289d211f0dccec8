"""From a function that takes the matrix with all other arguments to a product that is bound to its matrix first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats.launch import Launch
from gsparse.kernels.contract import BindProduct, Multiply


def bound(kernel: Callable[..., None]) -> BindProduct:
    """Turn ``kernel(matrix, x, y, alpha, beta, conjugate)`` into a `BindProduct`; the CPU needs no launch."""

    def bind(device: Device, matrix: Any, dtype: np.dtype[Any], launch: Launch) -> Multiply:
        def multiply(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
            kernel(matrix, x, y, alpha, beta, conjugate)

        product: Any = multiply
        product.num_dots = 0
        return cast(Multiply, product)

    bind.__name__, bind.__doc__ = kernel.__name__, kernel.__doc__
    return bind
