"""The choice of the backend that has the kernels of a device."""

from __future__ import annotations

from functools import cache

from gsparse._interrupt import uninterrupted
from gsparse.device.base import Device
from gsparse.kernels.contract import Kernels
from gsparse.profiling.recording import recorded_call


def kernels_of(device: Device) -> Kernels:
    """Return the modules that implement the contract for a device: `gsparse.kernels.cpu` or `gsparse.kernels.gpu`."""
    return _cpu_kernels() if device.is_host else _gpu_kernels()


# The backends are imported when first used, because importing numba alone takes longer than importing all of gsparse.
@cache
@recorded_call("import", "kernels of the CPU")
def _cpu_kernels() -> Kernels:
    with uninterrupted():
        from gsparse.kernels.cpu import KERNELS

    return KERNELS


@cache
@recorded_call("import", "kernels of GPUs")
def _gpu_kernels() -> Kernels:
    from gsparse.kernels.gpu import KERNELS

    return KERNELS
