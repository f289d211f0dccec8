"""The `device` fixture, which runs a test on the CPU backend, on emulated GPUs of 32 and 64 lanes, and on a real GPU if
CuPy finds one, and fixtures for arrays of a device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gsparse.device.base import Device
from gsparse.device.select import DEVICE_VARIABLE, get_device
from gsparse.errors import DeviceError
from tests.proof.emulated_device import EmulatedDevice
from tests.untraced import compile_untraced

compile_untraced()

DEVICES = ("cpu", "emulated:32", "emulated:64", pytest.param("gpu", marks=pytest.mark.gpu))


def make_device(name: str) -> Device:
    """Return the device with this name, or skip the test if it is not available."""
    if name.startswith("emulated"):
        return EmulatedDevice(int(name.partition(":")[2]))
    try:
        device = get_device(name)
    except DeviceError as error:
        pytest.skip(str(error))
    if device.kind == "gpu" and os.environ.get("GSPARSE_TEST_NO_POOL"):
        # Under compute-sanitizer, each array must be an allocation of its own: a memory pool would hide reads past the
        # end of an array.
        device.xp.cuda.set_allocator(None)
    return device


@pytest.fixture(autouse=True)
def cpu_by_default(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the CPU where a test names no device, also on a machine with a GPU, unless the test is marked `gpu`."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv(DEVICE_VARIABLE, "cpu")


@pytest.fixture(params=DEVICES, scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    return make_device(request.param)


@pytest.fixture(params=DEVICES[1:], scope="session")
def gpu_device(request: pytest.FixtureRequest) -> Device:
    """Return an emulated GPU or a real one, for tests of what a CPU does not do."""
    return make_device(request.param)


@pytest.fixture(params=("cpu", pytest.param("gpu", marks=pytest.mark.gpu)), scope="session")
def real_device(request: pytest.FixtureRequest) -> Device:
    return make_device(request.param)


class DeviceArray(np.ndarray):
    """A stand-in for CuPy's arrays: arrays of the device that are no arrays of the host."""

    def get(self) -> Any:
        return np.asarray(self)


@pytest.fixture(params=["cpu", "emulated:32"])
def pretend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, Callable[[Any], Any]]:
    """Return a device, and a function that makes arrays which pass for its own."""
    chosen = make_device(request.param)
    for name, module in list(sys.modules.items()):
        if name.startswith("gsparse.matrix.") and hasattr(module, "device_of"):
            monkeypatch.setattr(module, "device_of", lambda x: chosen if isinstance(x, DeviceArray) else None)
    return chosen, lambda x: np.array(x).view(DeviceArray)


@pytest.fixture
def on_gpu() -> tuple[Device, Callable[[Any], Any]]:
    """Return a GPU, and a function that makes arrays of it."""
    device = make_device("gpu")
    return device, device.xp.array
