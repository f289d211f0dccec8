"""Packing and adding of exchanged entries (contract: `gsparse.kernels.contract`; kernels: `src/halo.cu`)."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.source_constants import constant

_SOURCE = "halo.cu"
_THREADS = constant(_SOURCE, "GS_HALO_THREADS")
# The largest number of blocks of scatter_add_dots, and so of partial sums.
_MAX_BLOCKS = 528


def gather(device: Device, x: Array, numbers: Array, out: Array) -> None:
    """Launch one thread for each element."""
    name, args = expression("gather", x.dtype, numbers.dtype), (np.int64(out.size), x, numbers, out)
    launch_threads(device, _SOURCE, name, out.size, _THREADS, args)


def num_scatter_dots(count: int) -> int:
    """Return the number of blocks, each of which leaves a partial sum."""
    return max(1, min(-(-count // _THREADS), _MAX_BLOCKS))


def scatter_add(
    device: Device, values: Array, numbers: Array, y: Array, x: Array | None = None, dots: Array | None = None
) -> None:
    """Launch one thread for each element, or with `dots` at most `_MAX_BLOCKS` blocks that leave a partial sum each."""
    args = np.int64(values.size), values, numbers, y
    if dots is not None:
        name = expression("scatter_add_dots", y.dtype, numbers.dtype)
        launch_blocks(device, _SOURCE, name, num_scatter_dots(values.size), _THREADS, (*args, x, dots))
    else:
        launch_threads(device, _SOURCE, expression("scatter_add", y.dtype, numbers.dtype), values.size, _THREADS, args)
