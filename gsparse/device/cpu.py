"""The host as a device: NumPy arrays, and kernels that numba compiles for its threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device, alias_of
from gsparse.device.dtypes import Array

__all__ = ["CPU_LANES", "CpuDevice", "cpu_device"]

# Rows of a slice of blocked ELLPACK on the CPU: a slice's sums stay in registers and cache. 32 beat 8 by a tenth on
# 7-point problems.
CPU_LANES = 32


class CpuDevice(Device):
    """The host itself: NumPy arrays, threaded numba kernels."""

    kind = "cpu"
    is_host = True
    name = "cpu"
    lanes = CPU_LANES
    xp = np

    def owns(self, array: object) -> bool:
        return isinstance(array, np.ndarray)

    def upload(self, host: npt.NDArray[Any]) -> Array:
        return alias_of(np.ascontiguousarray(host))

    def download(self, array: Array) -> npt.NDArray[Any]:
        return np.array(array)

    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        return np.asarray(array)

    def __reduce__(self) -> tuple[Callable[[], Device], tuple[()]]:
        return cpu_device, ()


@cache
def cpu_device() -> CpuDevice:
    """Return the one device that stands for the host."""
    return CpuDevice()
