"""Scratch of products that add up parts of rows: arrays that belong to a bound product, one set a stream.

Products of one matrix may run on several streams at once, and products captured in a CUDA graph whenever the graph is
launched, so each stream and each capture has arrays of its own. Counts begin at 0, and kernels leave them at 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.device import Device
from gsparse.formats import LongRows

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
    xp, rows, place = device.xp, long_rows, long_rows.chunk_rows
    begins = rows.begins[place] + (xp.arange(rows.num_chunks) - rows.first_chunk[place]) * rows.chunk_size
    found = xp.zeros((rows.num_chunks, 8), np.int32)
    found[:, :2] = begins.view(np.int32).reshape(-1, 2)
    found[:, 2] = xp.minimum(rows.ends[place] - begins, rows.chunk_size)
    found[:, 3], found[:, 4], found[:, 5] = rows.rows[place], place, rows.first_chunk[place]
    found[:, 6] = rows.first_chunk[place + 1] - rows.first_chunk[place]
    return found
