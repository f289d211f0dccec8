"""Counts that the blocks of a launch leave, and their sum, which the host reads (struct Tally, `src/tiles.cuh`)."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.gpu.scratch import Scratch
from gsparse.kernels.gpu.source_constants import constant

# Positions of a tile, and threads of a block that has one.
TILE, TILE_THREADS = constant("tiles.cuh", "GS_TILE"), constant("tiles.cuh", "GS_TILE_THREADS")

# The number of blocks that have arrived, for each stream of each device.
_arrivals: WeakKeyDictionary[Device, Scratch] = WeakKeyDictionary()


def num_tiles(size: int, tile: int = TILE) -> int:
    """Return the number of tiles that hold `size` positions."""
    return -(-size // tile)


def tally(device: Device, blocks: int, place: int = 0) -> tuple[Array, Any, Array]:
    """Return the arguments of a launch whose blocks leave counts: the counts, the arrivals, and the sum.

    After the launch, the counts are those of the blocks before each block, and the sum is element `place` of what
    ``device.counts.read(place + 1)`` returns. A launch without blocks writes no sum.
    """
    arrivals = _arrivals.get(device)
    if arrivals is None:
        arrivals = _arrivals.setdefault(device, Scratch(device, (1, np.dtype(np.uint32))))
    total = device.counts.array
    return (device.empty(blocks, np.int64), *arrivals.get(), total[place:] if place else total)
