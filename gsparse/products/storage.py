"""From CSR to the arrays that products read: how values are stored, what each format would take, and its arrays.

`Entries` adds values to a `gsparse.products.structure.Structure`, and hands both to the functions of each format
(`gsparse.formats.registry`). Each piece is made on the device when it is first needed, and kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Stored, Values
from gsparse.formats.registry import REGISTRY, Examination, Storage, find_format
from gsparse.formats.row_pattern import Patterns
from gsparse.kernels.backends import kernels_of
from gsparse.products.dictionary import find_dictionary
from gsparse.products.structure import Structure, find_patterns, find_row_dictionary

__all__ = ["MAX_VALUES", "Entries", "halved"]

# Largest number of distinct values that pays: their table has to stay in the first-level cache.
MAX_VALUES = 4096


@dataclass(eq=False)
class Entries:
    """A structure with values: what the products of one operand read.

    Parameters
    ----------
    structure : Structure
    csr : Csr
        With values of the dtype they are read in.
    compute : dtype
        In which products compute.
    compress : bool
        Whether less may be stored than CSR does.
    """

    structure: Structure
    csr: Csr
    compute: np.dtype[Any]
    compress: bool

    @cached_property
    def values(self) -> Values:
        """Values in CSR's order, in as few bytes as hold them all exactly. Synchronizes."""
        return compressed(self.structure.device, self.csr.data, self.compute) if self.compress else self.plain_values

    @property
    def plain_values(self) -> Values:
        """Values in CSR's order, as they are."""
        return Values(self.csr.data)

    @cached_property
    def patterns(self) -> Patterns | None:
        """Rows by their offsets and values, where few are distinct and take less than values of each row's own."""
        if self.structure.pattern_facts is None:
            return None
        device, itemsize = self.structure.device, self.compute.itemsize
        rows = find_row_dictionary(device, self.csr, values=True)
        if rows is None or rows.size * (4 + itemsize) > self.csr.num_rows * itemsize:
            return None  # (hardly any row shares its values)
        found = find_patterns(device, self.csr, rows, values=True)
        if found is None:
            return None
        size = found.nbytes(itemsize)
        # Values are looked at only where they may take less: there are as many positions as entries at least.
        return found if size <= self.csr.nnz or size <= self.bytes_with_own_values else None

    @property
    def bytes_with_own_values(self) -> int:
        """Bytes of row patterns of offsets, with values at the positions of slices."""
        structure = self.structure
        assert structure.pattern_facts is not None
        slices = 8 * (structure.pitch // structure.device.lanes + 1)
        return structure.pattern_facts.nbytes + slices + self.values.nbytes_at(structure.rows.blocked_stored)

    def pattern_entries(self, patterns: Patterns, with_values: bool) -> tuple[Array, Array | None]:
        """Return the offsets of all patterns, one after the other, and where asked for their values."""
        device, rows = self.structure.device, (patterns.representatives, patterns.indptr, patterns.num_entries)
        offsets, values = kernels_of(device).gather_rows(device, self.csr, *rows, with_values)
        return offsets, None if values is None else _cast(device, values, self.compute)

    def storages(self, examined: Collection[str]) -> dict[str, Storage]:
        """Describe how each format that fits would store the matrix. Synchronizes.

        Parameters
        ----------
        examined : collection of str
            Formats for which columns, values and slices are looked at. Others are described from row statistics alone.
        """
        found = {}
        examination = Examination.FULL if len(examined) == 1 else Examination.SHARED
        for name, format in REGISTRY.items():
            if self.structure.device.kind in format.costs and format.fits(self.structure.rows):
                storage = format.describe(self, examination if name in examined else Examination.NONE)
                if storage is not None:
                    found[name] = storage
        return found

    def stored(self, format: str) -> Stored:
        """Build a format. Synchronizes.

        Raises
        ------
        FormatError
            Where the matrix does not fit the format.
        """
        stored: Stored = find_format(format).build(self)
        return stored


def compressed(device: Device, data: Array, compute: np.dtype[Any]) -> Values:
    """Give values as one, or by dictionary, or in half the precision, whichever pays and is exact. Synchronizes."""
    if not data.size:
        return Values(data)
    found = _by_table(device, data, compute)
    narrow = _HALVES.get(data.dtype)
    if narrow is None or (found is not None and (found.codes is None or kernels_of(device).LOOKS_UP)):
        return found or Values(data)
    values = halved(device, data)
    return Values(values) if values is not data else found or Values(data)


def halved(device: Device, data: Array) -> Array:
    """Give values in half the precision where every one comes back from it, else as they are. Synchronizes."""
    narrow = _HALVES.get(data.dtype)
    if narrow is None or not data.size or not kernels_of(device).survives_halving(device, data):
        return data
    return data.astype(narrow)


_HALVES = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


def _cast(device: Device, table: Array, dtype: np.dtype[Any]) -> Array:
    """Cast a small device array by way of the host: CuPy's own casts flush subnormal float32 values. Synchronizes."""
    return table if table.dtype == dtype else device.upload(device.download(table).astype(dtype))


def _by_table(device: Device, data: Array, compute: np.dtype[Any]) -> Values | None:
    """Give values as places in a table of the distinct ones, told apart by their bits. Synchronizes."""
    is_wide = data.dtype.itemsize > 8
    keys = _mixed(data) if is_wide else data.view(np.dtype(f"uint{8 * data.dtype.itemsize}"))
    found = find_dictionary(device, keys, MAX_VALUES)
    if found is None or (found.size > 1 and found.nbytes >= data.nbytes):
        return None
    if is_wide:
        # Two words in one are a hash: see that the values come back.
        table = data[device.upload(found.places)]
        if not bool((table[found.codes].view(np.uint64) == data.view(np.uint64)).all()):  # synchronizes
            return None
    else:
        table = found.table.view(data.dtype)
    return Values(None if found.size == 1 else found.codes, _cast(device, table, compute))


def _mixed(data: Array) -> Array:
    """Mix the two words of each value into one."""
    words = data.view(np.uint64).reshape(-1, 2)
    return words[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ (words[:, 1] + (words[:, 1] >> np.uint64(29)))
