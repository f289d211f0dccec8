"""Where arrays live: array module, streams, copies, compilation, threads, caches, arrays of other libraries."""

from gsparse.device.base import Device
from gsparse.device.select import device_of, get_device

__all__ = ["Device", "device_of", "get_device"]
