"""The import of CuPy, which is delayed until a GPU is first needed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from gsparse._interrupt import uninterrupted
from gsparse._version import install_command
from gsparse.errors import DeviceError


def import_cupy() -> Any:
    """Import CuPy, and check that it finds a GPU.

    Raises
    ------
    DeviceError
        If CuPy, the driver or a GPU is missing. The message says how to install CuPy.
    """
    try:
        if "cupy" not in sys.modules:
            with uninterrupted():
                import_module("cupy")
        cupy = import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            f"a GPU was asked for, but CuPy is not installed: {install_command('cuda13')} (or cuda12, rocm), "
            "or use device='cpu'"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # The error types are CUDA's or HIP's, and cannot be named without that runtime.
        raise DeviceError(
            f"a GPU was asked for, but CuPy found no driver or GPU ({error}): use device='cpu'"
        ) from error
    if count == 0:
        raise DeviceError("a GPU was asked for, but CuPy found none: use device='cpu'")
    return cupy
