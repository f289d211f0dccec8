"""Numbers that look random (contract: `gsparse.kernels.contract`; kernel: `src/hashes.cu`)."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, Array
from gsparse.formats.launch import Launch
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_threads

_SOURCE, _THREADS = "hashes.cu", Launch().threads_per_block


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    return [(_SOURCE, expression("fill_hashes", dtype)) for dtype in COMPUTE_DTYPES if dtype.kind in "fc"]


def fill_hashes(device: Device, out: Array, offset: int) -> None:
    """Launch one thread for each number."""
    args = np.int64(out.size), np.uint32(offset % 2**32), out
    launch_threads(device, _SOURCE, expression("fill_hashes", out.dtype), out.size, _THREADS, args)
