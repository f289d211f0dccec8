"""Devices, where arrays live: array module, streams, copies, compilation, threads, caches, arrays of other libraries.

Read the files in this order:

1. `base`: the `Device`, which is everything that the rest of the package knows about a device.
2. `cpu` and `gpu`: the two implementations. `select` finds the device of a name or of an array.
3. `dtypes`: the dtypes in which kernels compute.
4. `dense` and `interchange`: dense arrays as callers pass them, also arrays of other libraries.
5. `staging`: copies through pinned memory. `compilation`: CUDA sources. `threads`: the threads of the CPU.
6. `counters`: the statistics of a matrix, and `strict()`. `cache`: the folders for files that later processes read.
   `locks`, `cupy`: helpers.
"""

from gsparse.device.base import Device
from gsparse.device.select import device_of, get_device

__all__ = ["Device", "device_of", "get_device"]
