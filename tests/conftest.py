"""One body for every device: the `device` fixture runs a test on the CPU backend, on emulated GPUs of 32 and 64 lanes,
and on a real GPU wherever CuPy finds one."""

from __future__ import annotations

import os

import pytest

from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import DeviceError
from tests.proof.emulated_device import EmulatedDevice

DEVICES = ("cpu", "emulated:32", "emulated:64", pytest.param("gpu", marks=pytest.mark.gpu))


def make_device(name: str) -> Device:
    """Give a device by its name in tests, or skip with the reason."""
    if name.startswith("emulated"):
        return EmulatedDevice(int(name.partition(":")[2]))
    try:
        device = get_device(name)
    except DeviceError as error:
        pytest.skip(str(error))
    if device.kind == "gpu" and os.environ.get("GSPARSE_TEST_NO_POOL"):
        # Under compute-sanitizer every array is an allocation of its own: a pool would hide reads past its end.
        device.xp.cuda.set_allocator(None)
    return device


@pytest.fixture(params=DEVICES, scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    return make_device(request.param)


@pytest.fixture(params=("cpu", pytest.param("gpu", marks=pytest.mark.gpu)), scope="session")
def real_device(request: pytest.FixtureRequest) -> Device:
    return make_device(request.param)
