"""What ranks exchange, picked out and put back (contract: `gsparse.kernels.contract`; kernels: `src/halo.cu`)."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.gpu.expressions import expression

__all__ = ["gather", "num_scatter_dots", "scatter_add"]

_SOURCE = "halo.cu"
_THREADS = 256
# Blocks that walk over what is added, and so leave a partial sum each.
_MAX_BLOCKS = 528


def gather(device: Device, x: Array, numbers: Array, out: Array) -> None:
    """Launch one thread an element."""
    if out.size:
        kernel = device.kernel(_SOURCE, expression("gather", x.dtype, numbers.dtype))
        kernel((-(-out.size // _THREADS),), (_THREADS,), (np.int64(out.size), x, numbers, out))


def num_scatter_dots(count: int) -> int:
    """Give the number of blocks."""
    return max(1, min(-(-count // _THREADS), _MAX_BLOCKS))


def scatter_add(
    device: Device, values: Array, numbers: Array, y: Array, x: Array | None = None, dots: Array | None = None
) -> None:
    """Launch one thread an element; with sums, few enough blocks that there are few of them."""
    args = np.int64(values.size), values, numbers, y
    if dots is not None:
        kernel = device.kernel(_SOURCE, expression("scatter_add_dots", y.dtype, numbers.dtype))
        kernel((num_scatter_dots(values.size),), (_THREADS,), (*args, x, dots))
    elif values.size:
        kernel = device.kernel(_SOURCE, expression("scatter_add", y.dtype, numbers.dtype))
        kernel((-(-values.size // _THREADS),), (_THREADS,), args)
