"""Dictionaries: few distinct keys among many, found on the device, and a code for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of

__all__ = ["Dictionary", "code_dtype", "find_dictionary"]


def code_dtype(size: int) -> np.dtype[Any]:
    """Give the dtype that holds the places of a table of this size."""
    return np.dtype(np.uint8 if size <= 256 else np.uint16)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Keys by their place in a table.

    Attributes
    ----------
    device : Device
    keys : array on the device
    table : array of the keys' dtype on the device
        Distinct keys, rising.
    places : ndarray of int64
        Where each of these stands among the keys.
    """

    device: Device
    keys: Array
    table: Array
    places: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        return int(self.places.size)

    @property
    def nbytes(self) -> int:
        """Bytes of table and codes."""
        return int(self.table.nbytes) + int(self.keys.size) * code_dtype(self.size).itemsize

    @cached_property
    def codes(self) -> Array:
        """The place of each key in the table, of uint8 or uint16 on the device."""
        return kernels_of(self.device).encode_keys(self.device, self.keys, self.table, code_dtype(self.size))


def find_dictionary(device: Device, keys: Array, limit: int) -> Dictionary | None:
    """Find the distinct ones of some keys; None where these are more than `limit`. Synchronizes.

    Parameters
    ----------
    device : Device
    keys : array of uint32 or uint64 on the device
    limit : int
        At most 4096.
    """
    found = kernels_of(device).distinct_keys(device, keys, limit)
    if found is None:
        return None
    table, places = found
    return Dictionary(device, keys, device.upload(table), places)
