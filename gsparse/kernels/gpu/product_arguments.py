"""The arguments and the types that the kernels of all products with a vector have in common."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, cast

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.device.launching import Passed
from gsparse.formats import Columns, Values
from gsparse.kernels.contract import Multiply
from gsparse.kernels.gpu.expressions import NARROW, plain_types

__all__ = ["SLOTS", "entry_args", "stored_types", "value_type", "with_num_dots"]

# The arguments that each call of a product passes, in the kernels' order.
SLOTS = (Passed.X, Passed.Y, Passed.ALPHA, Passed.BETA, Passed.READ_Y, Passed.CONJUGATE)


def with_num_dots(multiply: Callable[..., None], num_dots: int) -> Multiply:
    """Set the number of partial sums of conj(x)·y that a product leaves in `dots`: one for each block, or none."""
    product: Any = multiply
    product.num_dots = num_dots
    return cast(Multiply, product)


def entry_args(values: Values, columns: Columns | None = None) -> tuple[Any, ...]:
    """Return the arguments that kernels read entries by (Entries, entries.cuh)."""
    value_args = (values.codes, values.table)
    return value_args if columns is None else (columns.codes, columns.bases, *value_args)


def value_type(values: Values) -> np.dtype[Any] | str:
    """Return the type of stored values, as a template argument."""
    return "Same" if values.codes is None else values.codes.dtype


def stored_types() -> list[tuple[Any, np.dtype[Any]]]:
    """List each type of stored values with each dtype that products of them compute in."""
    return [*plain_types(), *product((*NARROW, "Same"), COMPUTE_DTYPES)]
