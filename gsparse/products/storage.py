"""From CSR to the arrays that products read: the encoding of the values, and the storage in each format.

A `MatrixPreparation` consists of a `gsparse.products.structure.Structure` and values. The file of each format has
functions that describe and build the format from it. Each array is made on the device when it is first needed, and is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, StoredMatrix, Values
from gsparse.formats.registry import COMPRESSED, REGISTRY, AnalysisLevel, Encoding, Storage, StorageFormat, find_format
from gsparse.kernels.backends import kernels_of
from gsparse.products.structure import SparsityPattern, Structure

# Largest number of distinct values for which a table is fast: it has to fit in the first-level cache.
MAX_VALUES = 4096

_Value = TypeVar("_Value")


@dataclass(eq=False)
class MatrixPreparation:
    """The structure and the values of a matrix, with everything that the products of one dtype need.

    Parameters
    ----------
    structure : Structure
    csr : Csr
        The arrays, with values of the dtype in which products read them.
    compute : dtype
        The dtype in which products compute.
    encoding : Encoding
        Which parts of the matrix may be stored in fewer bytes than CSR takes.
    """

    structure: Structure
    csr: Csr
    compute: np.dtype[Any]
    encoding: Encoding = COMPRESSED
    # The results of `made`, by name. Copies for other encodings share this dictionary (`encoded`).
    _made: dict[str, Any] = field(default_factory=dict, repr=False)

    def encoded(self, encoding: Encoding) -> MatrixPreparation:
        """Return the same matrix with another encoding. Both share the results of `made`."""
        return self if encoding == self.encoding else replace(self, encoding=encoding)

    @property
    def sparsity(self) -> SparsityPattern:
        """The row pointers and columns, with their statistics."""
        return self.structure.sparsity

    def made(self, name: str, make: Callable[[], _Value]) -> _Value:
        """Return the result of `make()`. Later calls with the same name return the stored result."""
        if name not in self._made:
            self._made[name] = make()
        value: _Value = self._made[name]
        return value

    @property
    def values(self) -> Values:
        """The values in CSR's order, compressed without loss where `encoding.values` is true. Synchronizes."""
        if not self.encoding.values:
            return self.plain_values
        return self.made("values", lambda: compress_values(self.sparsity.device, self.csr.data, self.compute))

    @property
    def plain_values(self) -> Values:
        """The values in CSR's order, not compressed."""
        return Values(self.csr.data)

    def storages(self, analyzed: Collection[str]) -> dict[str, tuple[Storage, ...]]:
        """Describe how each format that fits would store the matrix. Synchronizes.

        Parameters
        ----------
        analyzed : collection of str
            Names of the formats for which the matrix is analyzed (`AnalysisLevel`). If there are several, each is
            described with all encodings that `encoding` allows, so that the plan can choose. Formats without analysis
            are described from the row statistics, and from blocks that are known already.
        """
        storages = {}
        level = AnalysisLevel.FULL if len(analyzed) == 1 else AnalysisLevel.SHARED
        for name, format in REGISTRY.items():
            if self.sparsity.device.kind in format.costs and format.fits(self.sparsity.rows):
                is_compared = level is AnalysisLevel.SHARED and name in analyzed
                encodings = self.encoding.within() if is_compared else (self.encoding,)
                described = self._describe(format, level if name in analyzed else AnalysisLevel.NONE, encodings)
                if described:
                    storages[name] = described
        return storages

    def _describe(
        self, format: StorageFormat, level: AnalysisLevel, encodings: Sequence[Encoding]
    ) -> tuple[Storage, ...]:
        """Describe a format with each of these encodings. Encodings that store the same arrays are described once."""
        described: dict[tuple[str, str], Storage] = {}
        for encoding in encodings:
            storage = format.describe(self.encoded(encoding), level)
            if storage is not None:
                described.setdefault((storage.columns, storage.values), replace(storage, encoding=encoding))
        return tuple(described.values())

    def stored(self, format: str) -> StoredMatrix:
        """Build the arrays of a format. Synchronizes.

        Raises
        ------
        FormatError
            If the matrix cannot be stored in the format.
        """
        stored: StoredMatrix = find_format(format).build(self)
        return stored


def code_dtype(size: int) -> np.dtype[Any]:
    """Return the dtype of indices into a table of `size` elements."""
    return np.dtype(np.uint8 if size <= 256 else np.uint16)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The distinct keys of an array in a table, and the code of each key, which is its index in the table.

    Attributes
    ----------
    device : Device
    keys : array on the device
    table : array of the keys' dtype on the device
        The distinct keys, in increasing order.
    places : ndarray of int64
        For each key of the table, an index at which `keys` has it; on the host.
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
    """Return the distinct keys of an array, or None if there are more than `limit`. Synchronizes.

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


def compress_values(device: Device, data: Array, compute: np.dtype[Any]) -> Values:
    """Encode values without loss: as one value, by a table, in half the precision, or plain. Synchronizes."""
    if not data.size:
        return Values(data)
    by_table = _encode_by_table(device, data, compute)
    narrow = _HALVES.get(data.dtype)
    if narrow is None or (by_table is not None and (by_table.codes is None or kernels_of(device).encode.LOOKS_UP)):
        return by_table or Values(data)
    values = halve_precision(device, data)
    return Values(values) if values is not data else by_table or Values(data)


def halve_precision(device: Device, data: Array) -> Array:
    """Return values in half the precision if that represents each of them exactly, else `data`. Synchronizes."""
    narrow = _HALVES.get(data.dtype)
    if narrow is None or not data.size or not kernels_of(device).encode.survives_halving(device, data):
        return data
    return data.astype(narrow)


_HALVES = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


def cast_table(device: Device, table: Array, dtype: np.dtype[Any]) -> Array:
    """Cast a small device array on the host, because CuPy's casts flush subnormal float32 values. Synchronizes."""
    return table if table.dtype == dtype else device.upload(device.download(table).astype(dtype))


def _encode_by_table(device: Device, data: Array, compute: np.dtype[Any]) -> Values | None:
    """Encode values by a table of the bitwise distinct ones, or return None if that saves nothing. Synchronizes."""
    is_wide = data.dtype.itemsize > 8
    keys = _hash_words(data) if is_wide else data.view(np.dtype(f"uint{8 * data.dtype.itemsize}"))
    dictionary = find_dictionary(device, keys, MAX_VALUES)
    if dictionary is None or (dictionary.size > 1 and dictionary.nbytes >= data.nbytes):
        return None
    if is_wide:
        # The keys are hashes, which can collide: compare the decoded values with the original ones.
        table = data[device.upload(dictionary.places)]
        if not bool((table[dictionary.codes].view(np.uint64) == data.view(np.uint64)).all()):  # synchronizes
            return None
    else:
        table = dictionary.table.view(data.dtype)
    return Values(None if dictionary.size == 1 else dictionary.codes, cast_table(device, table, compute))


def _hash_words(data: Array) -> Array:
    """Return a 64-bit hash of each 128-bit value."""
    words = data.view(np.uint64).reshape(-1, 2)
    return words[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ (words[:, 1] + (words[:, 1] >> np.uint64(29)))
