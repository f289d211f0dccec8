"""Devices, where arrays live: array module, streams, copies, compilation, threads, caches, arrays of other libraries.

Read the files in this order:

1. `base`: the `Device`, which is everything that the rest of the package knows about a device. Its arrays are described
   in `memory`, and its streams in `streams`.
2. `cpu` and `gpu`: the two implementations. The streams of a GPU are in `gpu_streams`. `select` finds the device of a
   name or of an array.
3. `dtypes`: the dtypes in which kernels compute.
4. `interchange`: dense arrays as callers pass them, also arrays of other libraries, whose memory it keeps until it has
   been read.
5. `compilation`: CUDA sources, compiled also by other threads, and `launching`, which launches kernels. `threads`: the
   threads of the CPU.
6. `counters`: the statistics of a matrix, and `strict()`. `cache`: the folders for files that later processes read.
   `locks`, `cupy`: helpers.
"""

from gsparse.device.base import Device
from gsparse.device.select import device_of, get_device

__all__ = ["Device", "device_of", "get_device"]
