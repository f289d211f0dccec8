"""What the kernels of all products with a vector have in common: arguments, types, and how they are bound."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, Array
from gsparse.device.launching import Passed
from gsparse.formats import Columns, Values
from gsparse.kernels.contract import Multiply
from gsparse.kernels.gpu.expressions import BLOCK_DOTS, NARROW, NO_DOTS, expression, plain_types
from gsparse.kernels.gpu.launch import bind_product, launch_blocks

# The arguments that each call of a product passes, in the kernels' order.
SLOTS = (Passed.X, Passed.Y, Passed.ALPHA, Passed.BETA, Passed.READ_Y, Passed.CONJUGATE)


class ProductKernel(NamedTuple):
    """A kernel of a product y = A·x that exists with and without partial sums of conj(x)·y.

    Attributes
    ----------
    source : str
        The file in `src/`.
    name : str
    types : tuple
        The template arguments, without the last one, which is `NO_DOTS` or `BLOCK_DOTS`.
    """

    source: str
    name: str
    types: tuple[Any, ...]

    def expression(self, dots: str) -> str:
        """Return the C++ name expression of the kernel with or without partial sums."""
        return expression(self.name, *self.types, dots)


def bind_with_dots(
    device: Device,
    kernel: ProductKernel,
    blocks: int,
    threads_per_block: int,
    args: tuple[Any, ...],
    dtype: np.dtype[Any],
) -> Multiply:
    """Bind a kernel to all arguments that do not change between calls, so that a product is one launch.

    Parameters
    ----------
    device : Device
    kernel : _Kernel
    blocks, threads_per_block : int
    args : tuple
        The kernel's arguments before the vectors.
    dtype : dtype
        The compute dtype.
    """
    sizes = blocks, threads_per_block
    plain = bind_product(device, kernel.source, kernel.expression(NO_DOTS), *sizes, (*args, *SLOTS, None), dtype)

    def multiply(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, dots: Array | None = None) -> None:
        if dots is None:
            plain(x, y, alpha, beta, conjugate)
            return
        vectors = x, y, alpha, beta, np.int32(bool(beta)), np.int32(bool(conjugate)), dots
        launch_blocks(device, kernel.source, kernel.expression(BLOCK_DOTS), *sizes, (*args, *vectors))

    return with_num_dots(multiply, blocks)


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
