"""Dictionaries: the distinct keys among many, found on the device, and for each key a code that stands for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of


def code_dtype(size: int) -> np.dtype[Any]:
    """Return the dtype of the codes for a table of this size."""
    return np.dtype(np.uint8 if size <= 256 else np.uint16)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The distinct keys among many, in a table. The code of a key is its index in the table.

    Attributes
    ----------
    device : Device
    keys : array on the device
    table : array of the keys' dtype on the device
        The distinct keys, in increasing order.
    places : ndarray of int64
        For each key of the table, an index at which it stands in `keys`; on the host.
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
        """Bytes of the table and of the codes."""
        return int(self.table.nbytes) + int(self.keys.size) * code_dtype(self.size).itemsize

    @cached_property
    def codes(self) -> Array:
        """The code of each key, of uint8 or uint16 on the device."""
        return kernels_of(self.device).encode.encode_keys(self.device, self.keys, self.table, code_dtype(self.size))


def find_dictionary(device: Device, keys: Array, limit: int) -> Dictionary | None:
    """Return the dictionary of some keys, or None if more than `limit` of them are distinct. Synchronizes.

    Parameters
    ----------
    device : Device
    keys : array of uint32 or uint64 on the device
    limit : int
        At most 4096.
    """
    distinct = kernels_of(device).encode.distinct_keys(device, keys, limit)
    if distinct is None:
        return None
    table, places = distinct
    return Dictionary(device, keys, device.upload(table), places)
