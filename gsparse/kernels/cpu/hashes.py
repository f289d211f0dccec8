"""Numbers that look random; the contract is in `gsparse.kernels.contract`."""

from __future__ import annotations

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array

# Odd numbers whose multiples, modulo 2³², have bits that look random (Knuth; the finalizer of MurmurHash3).
MULTIPLIERS = (2654435761, 0x85EBCA6B)


def fill_hashes(device: Device, out: Array, offset: int) -> None:
    """Hash all numbers at once."""
    hashes = np.arange(1, out.size + 1, dtype=np.uint32)
    hashes += np.uint32(offset % 2**32)
    for multiplier in MULTIPLIERS:
        hashes *= np.uint32(multiplier)
        hashes ^= hashes >> np.uint32(16)
    out[...] = hashes * np.float64(2.0**-32) - 0.5
