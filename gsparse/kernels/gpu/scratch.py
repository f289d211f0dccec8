"""Scratch of products that add up parts of rows: arrays that belong to a bound product, one set a stream.

Products of one matrix may run on several streams at once, and products captured in a CUDA graph whenever the graph is
launched, so each stream and each capture has arrays of its own. Counts begin at 0, and kernels leave them at 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import LongRows
from gsparse.formats.launch import Launch
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_threads

__all__ = ["Scratch", "records"]


class Scratch:
    """Arrays of these sizes and dtypes for each stream, all zero at first.

    Parameters
    ----------
    device : Device
    arrays : tuple of (int, dtype)
    """

    def __init__(self, device: Device, *arrays: tuple[int, Any]) -> None:
        self._device, self._arrays = device, arrays
        self._kept: dict[Any, tuple[Array, ...]] = {}

    def get(self) -> tuple[Array, ...]:
        """Give those of the caller's current stream."""
        key = self._device.stream_key()
        found = self._kept.get(key)
        if found is None:
            with self._device.aside():
                found = self._kept[key] = tuple(self._device.xp.zeros(size, dtype) for size, dtype in self._arrays)
        return found


def records(device: Device, long_rows: LongRows) -> Array:
    """Give the chunks of long rows as kernels read them (struct Chunk, long_rows.cuh): a record of 32 bytes each."""
    rows, found = long_rows, device.empty((long_rows.num_chunks, 8), np.int32)
    args = (np.int32(rows.num_chunks), rows.rows, rows.begins, rows.ends, rows.first_chunk, rows.chunk_rows, found)
    name, threads = expression("list_chunks", rows.rows.dtype), Launch().threads_per_block
    launch_threads(device, "setup_rows.cu", name, rows.num_chunks, threads, args)
    return found
