"""The bandwidth of a device: that of a copy which is too large for caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.threads import run_parts

# Bytes of the array that is copied: more than the last cache of most devices holds.
_COPIED_BYTES = 1 << 27


def measure_copy_bandwidth(device: Any) -> float:
    """Return the bandwidth of a copy too large for caches, in bytes read and written per second. Synchronizes.

    On a CPU all threads copy.
    """
    with device.active(), device.memory_guard():
        source, target = device.xp.zeros(_COPIED_BYTES, np.uint8), device.xp.ones(_COPIED_BYTES, np.uint8)
        if device.xp is np:
            seconds = device.seconds_of(lambda: run_parts(_copy_part, _COPIED_BYTES, target, source))
        else:
            seconds = device.seconds_of(lambda: device.xp.copyto(target, source))
    return 2 * _COPIED_BYTES / float(seconds)


def _copy_part(part: int, num_parts: int, target: Any, source: Any) -> None:
    begin, end = (source.size * k // num_parts for k in (part, part + 1))
    np.copyto(target[begin:end], source[begin:end])
