"""Dictionaries: few distinct keys among many, found on the device, and a code for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse._typing import Array
from gsparse.device import Device

__all__ = ["Dictionary", "code_dtype", "encode"]

# Keys looked at before all of them are. Where more than half of these are distinct, nothing repeats enough to pay.
_SAMPLE = 4096


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Keys by their place in a table.

    Attributes
    ----------
    codes : array of uint8 or uint16 on the device, shape (num_keys,)
    table : ndarray of the keys' dtype
        Distinct keys, rising.
    """

    codes: Array
    table: npt.NDArray[Any]


def code_dtype(size: int) -> np.dtype[Any]:
    """Give the dtype that holds the places of a table of this size."""
    return np.dtype(np.uint8 if size <= 256 else np.uint16)


def encode(device: Device, keys: Array, limit: int) -> Dictionary | None:
    """Encode keys by a table of the distinct ones; None where these are more than `limit`. Synchronizes.

    The table begins with a sample. Each pass over the keys tells some that are missing, until none is or there are too
    many; so what comes out depends on the keys alone.

    Parameters
    ----------
    device : Device
    keys : array of uint32 or uint64 on the device
    limit : int
        At most 65 536.
    """
    step = max(1, keys.size // _SAMPLE)
    table = _distinct(device.download(device.xp.ascontiguousarray(keys[::step])))
    if table.size > min(limit, max(_SAMPLE // 2, keys.size // step // 2)):
        return None
    while True:
        codes, missing = device.kernels.encode_keys(device, keys, device.upload(table), code_dtype(table.size))
        if not missing.size:
            return Dictionary(codes, table)
        table = _distinct(np.concatenate([table, missing]))
        if table.size > limit:
            return None


def _distinct(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give distinct keys, rising (numpy.unique, by a hash table, takes ten times as long for a few thousand)."""
    keys = np.sort(keys)
    is_first = np.ones(keys.size, bool)
    is_first[1:] = keys[1:] != keys[:-1]
    return keys[is_first]
