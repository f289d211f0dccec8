"""The device that a name means, and the device that an array lives on."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np

from gsparse.device.base import Device
from gsparse.device.cpu import cpu_device
from gsparse.device.cupy import import_cupy
from gsparse.device.gpu import gpu_device
from gsparse.errors import DeviceError

__all__ = ["current_gpu", "device_of", "get_device"]

DEVICE_VARIABLE = "GSPARSE_DEVICE"


@lru_cache(maxsize=1)
def _gpu_available() -> bool:
    try:
        import_cupy()
    except DeviceError:
        return False
    return True


def get_device(name: str | Device | None = None) -> Device:
    """Give a device by name.

    Parameters
    ----------
    name : {"auto", "cpu", "gpu", "gpu:N"} or Device, optional
        "auto" is the current GPU where there is one, else the CPU. "cuda", "hip" and "rocm" are other words for "gpu".
        Without a name, the environment variable ``GSPARSE_DEVICE``, else "auto".

    Raises
    ------
    DeviceError
        Where the name is unknown or the device is not there.

    Examples
    --------
    >>> from gsparse.device.select import get_device
    >>> get_device("cpu")
    <CpuDevice cpu>
    """
    if isinstance(name, Device):
        return name
    wanted = name or os.environ.get(DEVICE_VARIABLE) or "auto"
    kind, _, index = str(wanted).lower().partition(":")
    if kind == "cpu" and not index:
        return cpu_device()
    if kind == "auto" and not index:
        return current_gpu() if _gpu_available() else cpu_device()
    if kind in ("gpu", "cuda", "hip", "rocm") and (not index or index.isdecimal()):
        return gpu_device(int(index)) if index else current_gpu()
    raise DeviceError(f"unknown device {wanted!r}: use 'auto', 'cpu', 'gpu' or 'gpu:N'")


def current_gpu() -> Device:
    """Give CuPy's current device."""
    return gpu_device(import_cupy().cuda.runtime.getDevice())


def device_of(array: object) -> Device | None:
    """Give the GPU a CuPy array (or CuPy sparse matrix) lives on; None for anything of the host."""
    if isinstance(array, np.ndarray):
        return None
    package = type(array).__module__.partition(".")[0]
    if package not in ("cupy", "cupyx"):
        return None
    holder = array if package == "cupy" else getattr(array, "data", None)  # (cupyx: a sparse matrix)
    found = getattr(holder, "device", None)
    return None if found is None else gpu_device(found.id)
