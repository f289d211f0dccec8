"""CuPy, imported when a GPU is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gsparse.errors import DeviceError

__all__ = ["import_cupy"]


def import_cupy() -> Any:
    """Import CuPy and make sure that it sees a GPU.

    Raises
    ------
    DeviceError
        Saying what is missing and how to get it.
    """
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            "a GPU was asked for, but CuPy is not installed: pip install 'gsparse[cuda13]' (or cuda12, rocm), "
            "or use device='cpu'"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its runtime's own error types, which need the runtime to be named
        raise DeviceError(f"a GPU was asked for, CuPy found no driver or GPU ({error}); use device='cpu'") from error
    if count == 0:
        raise DeviceError("a GPU was asked for, but CuPy found none; use device='cpu'")
    return cupy
