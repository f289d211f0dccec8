"""From CSR to the arrays that products read: the encoding of the values, and the storage in each format.

`MatrixPreparation` adds values to a `gsparse.products.structure.Structure`. The functions of each format
(`gsparse.formats.registry`) describe and build the format from both. Each array is made on the device when it is first
needed, and is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Stored, Values
from gsparse.formats.registry import COMPRESSED, REGISTRY, AnalysisLevel, Encoding, Storage, StorageFormat, find_format
from gsparse.formats.row_pattern import Patterns
from gsparse.kernels.backends import kernels_of
from gsparse.products.dictionary import find_dictionary
from gsparse.products.repeated_rows import find_patterns, find_row_dictionary
from gsparse.products.structure import Structure

# Largest number of distinct values for which a table is fast: it has to fit in the first-level cache.
MAX_VALUES = 4096


@dataclass(eq=False)
class MatrixPreparation:
    """A structure with values: everything that a prepared matrix stores for the products of one dtype.

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
    # What has been made, by name. The same matrix with other encodings shares it (`encoded`).
    _made: dict[str, Any] = field(default_factory=dict, repr=False)

    def encoded(self, encoding: Encoding) -> MatrixPreparation:
        """Return the same matrix for another encoding. Both share what either has made."""
        return self if encoding == self.encoding else replace(self, encoding=encoding)

    @property
    def values(self) -> Values:
        """The values in CSR's order, compressed without loss where `encoding.values` is true. Synchronizes."""
        if not self.encoding.values:
            return self.plain_values
        if "values" not in self._made:
            self._made["values"] = compress_values(self.structure.device, self.csr.data, self.compute)
        values: Values = self._made["values"]
        return values

    @property
    def plain_values(self) -> Values:
        """The values in CSR's order, not compressed."""
        return Values(self.csr.data)

    @property
    def patterns(self) -> Patterns | None:
        """The distinct rows by offsets and values. Synchronizes.

        None if there are too many, if `encoding` leaves the values plain, or if values of each row's own take less.
        """
        if not self.encoding.values:
            return None
        if "patterns" not in self._made:
            self._made["patterns"] = self._find_patterns()
        patterns: Patterns | None = self._made["patterns"]
        return patterns

    def _find_patterns(self) -> Patterns | None:
        if self.structure.pattern_stats is None:
            return None
        device, itemsize = self.structure.device, self.compute.itemsize
        rows = find_row_dictionary(device, self.csr, values=True)
        if rows is None or rows.size * (4 + itemsize) > self.csr.num_rows * itemsize:
            return None  # Hardly any rows share their values.
        patterns = find_patterns(device, self.csr, rows, values=True)
        if patterns is None:
            return None
        size = patterns.nbytes(itemsize)
        # Values of each row's own take at least a byte for each entry. Only if that could be less than `size`, they are
        # analyzed, which takes time.
        return patterns if size <= self.csr.nnz or size <= self.bytes_with_own_values else None

    @property
    def bytes_with_own_values(self) -> int:
        """Bytes of row patterns of offsets, and of values at the positions of slices."""
        structure = self.structure
        assert structure.pattern_stats is not None
        slices = 8 * (structure.pitch // structure.device.lanes + 1)
        return structure.pattern_stats.nbytes + slices + self.values.nbytes_at(structure.rows.blocked_stored)

    def pattern_entries(self, patterns: Patterns, with_values: bool) -> tuple[Array, Array | None]:
        """Return the offsets of all patterns, one pattern after the other, and their values if `with_values`."""
        device, rows = self.structure.device, (patterns.representatives, patterns.indptr, patterns.num_entries)
        offsets, values = kernels_of(device).encode.gather_rows(device, self.csr, *rows, with_values)
        return offsets, None if values is None else _cast(device, values, self.compute)

    def storages(self, analyzed: Collection[str]) -> dict[str, tuple[Storage, ...]]:
        """Describe how each format that fits would store the matrix. Synchronizes.

        Parameters
        ----------
        analyzed : collection of str
            Names of the formats for which the matrix is analyzed (`AnalysisLevel`). The other formats are described
            from the row statistics, and from blocks that are known already. If there are several, each is described
            with all encodings that `encoding` allows, so that the plan can choose among them.
        """
        storages = {}
        level = AnalysisLevel.FULL if len(analyzed) == 1 else AnalysisLevel.SHARED
        for name, format in REGISTRY.items():
            if self.structure.device.kind in format.costs and format.fits(self.structure.rows):
                is_compared = level is AnalysisLevel.SHARED and name in analyzed
                encodings = self.encoding.within() if is_compared else (self.encoding,)
                described = self._describe(format, level if name in analyzed else AnalysisLevel.NONE, encodings)
                if described:
                    storages[name] = described
        return storages

    def _describe(
        self, format: StorageFormat, level: AnalysisLevel, encodings: Sequence[Encoding]
    ) -> tuple[Storage, ...]:
        """Describe a format with each of these encodings, but only once where two of them store the same."""
        described: dict[tuple[str, str], Storage] = {}
        for encoding in encodings:
            storage = format.describe(self.encoded(encoding), level)
            if storage is not None:
                described.setdefault((storage.columns, storage.values), replace(storage, encoding=encoding))
        return tuple(described.values())

    def stored(self, format: str) -> Stored:
        """Build the arrays of a format. Synchronizes.

        Raises
        ------
        FormatError
            If the matrix cannot be stored in the format.
        """
        stored: Stored = find_format(format).build(self)
        return stored


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


def _cast(device: Device, table: Array, dtype: np.dtype[Any]) -> Array:
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
    return Values(None if dictionary.size == 1 else dictionary.codes, _cast(device, table, compute))


def _hash_words(data: Array) -> Array:
    """Hash the two 64-bit words of each value to one."""
    words = data.view(np.uint64).reshape(-1, 2)
    return words[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ (words[:, 1] + (words[:, 1] >> np.uint64(29)))
