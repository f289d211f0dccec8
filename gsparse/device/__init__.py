"""Devices: arrays, streams, copies, compilation, threads, caches, and arrays of other libraries.

Read the files in this order:

1. `base`: `Device`, the interface through which the rest of the package uses a device. Its base classes are in `memory`
   (arrays) and `streams`.
2. `cpu` and `gpu`: the two implementations. The streams of a GPU are in `gpu_streams`. `select` finds a device by its
   name, or the device of an array.
3. `dtypes`: the dtypes in which kernels compute.
4. `interchange`: the dense arrays that callers pass, also arrays of other libraries, whose memory is kept until kernels
   have read it.
5. `compilation`: CUDA sources, which threads compile ahead of time, and `launching`, which launches kernels. `threads`:
   the threads of the CPU.
6. `counters`: the statistics of a matrix, and `strict()`. `cache`: the folders for files that later processes read.
   `locks`, `cupy`: helpers.
"""

from gsparse.device.base import Device
from gsparse.device.select import device_of, get_device

__all__ = ["Device", "device_of", "get_device"]
