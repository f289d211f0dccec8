"""The device with a given name, and the device of an array."""

from __future__ import annotations

import os
import re
from functools import lru_cache

import numpy as np

from gsparse.device.base import Device
from gsparse.device.cpu import cpu_device
from gsparse.device.cupy import import_cupy
from gsparse.device.gpu import gpu_device
from gsparse.errors import DeviceError, SettingsError

DEVICE_VARIABLE = "GSPARSE_DEVICE"

_NAMES = re.compile(r"auto|cpu(:0?)?|(gpu|cuda|hip|rocm)(:\d*)?", re.IGNORECASE)


@lru_cache(maxsize=1)
def _gpu_available() -> bool:
    try:
        import_cupy()
    except DeviceError:
        return False
    return True


def default_device_name() -> str:
    """Return the environment variable ``GSPARSE_DEVICE`` if it is set, otherwise "auto".

    Raises
    ------
    SettingsError
        If the variable is not the name of a device.
    """
    name = os.environ.get(DEVICE_VARIABLE) or "auto"
    if not _NAMES.fullmatch(name):
        raise SettingsError(_unknown(f"{name!r} in the environment variable {DEVICE_VARIABLE}"))
    return name


def _unknown(device: str) -> str:
    return f"unknown device {device}: use 'auto', 'cpu', 'gpu' or 'gpu:N'"


def get_device(name: str | Device | None = None) -> Device:
    """Return the device with a given name.

    Parameters
    ----------
    name : {"auto", "cpu", "gpu", "gpu:N"} or Device, optional
        "auto" is the current GPU if there is one, otherwise the CPU. "cuda", "hip" and "rocm" mean the same as "gpu",
        and "cpu:0" the same as "cpu". The default is `default_device_name()`.

    Raises
    ------
    DeviceError
        If the name is unknown or the device does not exist.
    SettingsError
        If the default is not the name of a device.

    Examples
    --------
    >>> from gsparse.device.select import get_device
    >>> get_device("cpu")
    <CpuDevice cpu>
    """
    if isinstance(name, Device):
        return name
    requested = default_device_name() if name is None else name
    if not _NAMES.fullmatch(str(requested)):
        hint = f" (CuPy's device {requested} is 'gpu:{requested}')" if str(requested).isdecimal() else ""
        raise DeviceError(_unknown(repr(requested)) + hint)
    kind, _, index = str(requested).lower().partition(":")
    if kind == "cpu":
        return cpu_device()
    if kind == "auto":
        return current_gpu() if _gpu_available() else cpu_device()
    return gpu_device(int(index)) if index else current_gpu()


def current_gpu() -> Device:
    """Return CuPy's current device."""
    return gpu_device(import_cupy().cuda.runtime.getDevice())


def device_of(array: object) -> Device | None:
    """Return the GPU on which a CuPy array or sparse matrix lives, or None for anything on the host."""
    if isinstance(array, np.ndarray):
        return None
    package = type(array).__module__.partition(".")[0]
    if package not in ("cupy", "cupyx"):
        return None
    values = array if package == "cupy" else getattr(array, "data", None)  # CuPy's sparse matrices are in cupyx.
    cupy_device = getattr(values, "device", None)
    return None if cupy_device is None else gpu_device(cupy_device.id)
