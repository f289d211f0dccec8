"""From CSR to what products read: how values are written down, what each format would take, and its arrays.

`Entries` adds values to a `gsparse.structure.Structure`. Each piece is made when first needed, on the device, and kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FormatError
from gsparse.formats import (
    BlockedEllpack,
    Columns,
    Csr,
    CsrEntries,
    Ellpack,
    LongRows,
    RowBlocks,
    RowPattern,
    Slices,
    Stored,
    Tiles,
    Values,
)
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import FORMATS, MAX_PADDING, Storage, fits
from gsparse.products.dictionary import find_dictionary
from gsparse.products.structure import MAX_PATTERNS, Patterns, Structure, find_patterns, find_row_dictionary

__all__ = ["MAX_VALUES", "Entries", "halved"]

# Distinct values that pay at most: their table has to stay in the first cache.
MAX_VALUES = 4096
# Codes of rows among which the most common one is looked for.
_SAMPLE = 4096


# Positions of ELLPACK up to which they are laid out only to look at, whatever they pad.
_MAX_LOOKED_AT = 2**16


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
        return (
            compressed(self.structure.device, self.csr.data, self.compute) if self.compress else Values(self.csr.data)
        )

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
        return found if size <= self.csr.nnz or size <= self._bytes_apart() else None

    def _bytes_apart(self) -> int:
        """Give the bytes of row patterns with values in slices."""
        structure = self.structure
        assert structure.pattern_facts is not None
        slices = 8 * (structure.pitch // structure.device.lanes + 1)
        return structure.pattern_facts.nbytes + slices + _value_bytes(self.values, structure.rows.blocked_stored)

    def storages(self, examined: Collection[str]) -> dict[str, Storage]:
        """Say how each format that fits would write the matrix down. Synchronizes.

        Parameters
        ----------
        examined : collection of str
            Formats for which columns, values and slices are looked at; others are described from row statistics, plain.
        """
        found = {}
        for format in FORMATS[1:]:
            if fits(format, self.structure.rows):
                storage = self._storage(format, examined)
                if storage is not None:
                    found[format] = storage
        return found

    def _storage(self, format: str, examined: Collection[str]) -> Storage | None:
        structure, stats, looked_at = self.structure, self.structure.rows, format in examined
        compress = looked_at and self.compress
        if format == "row_pattern":
            is_offered = looked_at and (len(examined) == 1 or structure.rows_repeat)
            return self._pattern_storage() if is_offered else None
        values = self.values if compress else Values(self.csr.data)
        columns, extra = np.dtype(self.csr.indices.dtype), 0
        if format == "ellpack":
            positions = stats.max_length * structure.pitch
            if compress:
                columns = self._ellpack_column_dtype(among_others=len(examined) > 1)
        elif format == "blocked_ellpack":
            positions, extra = stats.blocked_stored, 8 * (structure.pitch // structure.device.lanes + 1)
            if looked_at:
                positions, extra, _ = structure.slice_facts
                columns = structure.slice_column_dtype if self.compress else columns
        else:
            positions, extra = stats.nnz, int(self.csr.indptr.nbytes)
            columns = structure.csr_column_dtype if compress else columns
            if format in ("csr_adaptive", "csr_split"):
                extra += 4 * -(-(stats.nnz + stats.num_rows) // kernels_of(structure.device).BLOCK_WORK)
        narrow = columns.kind == "u"
        nbytes = extra + positions * columns.itemsize + narrow * 4 * -(-positions // structure.device.lanes)
        return Storage(_name(columns), describe(values), positions, nbytes + _value_bytes(values, positions))

    @property
    def _compresses_ellpack(self) -> bool:
        """Whether columns of ELLPACK are looked at; not where it pads a lot: laid out, they may take all memory."""
        positions = self.structure.rows.max_length * self.structure.pitch
        return self.compress and positions <= max(_MAX_LOOKED_AT, MAX_PADDING * self.csr.nnz)

    def _ellpack_column_dtype(self, *, among_others: bool) -> np.dtype[Any]:
        """Give the dtype of columns in ELLPACK; among others that of slices will do."""
        structure = self.structure
        if not among_others and self._compresses_ellpack:
            return structure.ellpack_column_dtype
        if among_others and fits("blocked_ellpack", structure.rows) and structure.slice_facts[2]:
            return structure.slice_column_dtype
        plain: np.dtype[Any] = np.dtype(self.csr.indices.dtype)
        return plain

    def _pattern_storage(self) -> Storage | None:
        facts, stats = self.structure.pattern_facts, self.structure.rows
        if facts is None:
            return None
        if self.patterns is not None:
            rows = f"{self.patterns.num_patterns} rows"
            nbytes = self.patterns.nbytes(self.compute.itemsize)
            return Storage(rows, rows, stats.nnz, nbytes, self.patterns.runs)
        rows, values = f"{facts.num_patterns} rows", describe(self.values)
        return Storage(rows, values, stats.blocked_stored, self._bytes_apart(), facts.runs)

    def _at(self, positions: Any) -> Values:
        """Lay values out by a function of items and padding."""
        values = self.values
        return values if values.codes is None else Values(positions(values.codes, 0), values.table)

    def stored(self, format: str) -> Stored:
        """Build a format. Synchronizes.

        Raises
        ------
        FormatError
            Where the matrix has too many distinct rows for `row_pattern`.
        """
        stored: Stored = _BUILDERS[format](self)
        return stored

    def _csr(self, schedule: LongRows | RowBlocks | Tiles | None) -> CsrEntries:
        structure = self.structure
        columns = structure.csr_columns if self.compress else Columns(self.csr.indices)
        return CsrEntries(self.csr.shape, self.csr.nnz, self.csr.indptr, columns, self.values, schedule)

    def _ellpack(self) -> Ellpack:
        structure, shape, nnz = self.structure, self.csr.shape, self.csr.nnz
        columns = structure.ellpack_columns if self._compresses_ellpack else Columns(structure.plain_ellpack_columns())
        return Ellpack(shape, nnz, structure.rows.max_length, structure.pitch, columns, self._at(structure.ellpack))

    def _blocked_ellpack(self) -> BlockedEllpack:
        structure = self.structure
        columns = structure.slice_columns if self.compress else Columns(structure.plain_slice_columns())
        slices = structure.slices
        return BlockedEllpack(self.csr.shape, self.csr.nnz, slices, columns, self._at(self._laid_out_in(slices)))

    def _laid_out_in(self, slices: Slices) -> Any:
        device, indptr = self.structure.device, self.csr.indptr
        return lambda items, padding: kernels_of(device).lay_out(device, indptr, items, slices, padding)

    def _row_pattern(self) -> RowPattern:
        structure, csr = self.structure, self.csr
        found, device = self.patterns or structure.patterns, structure.device
        if found is None:
            raise FormatError(
                f"row_pattern stores at most {MAX_PATTERNS} distinct rows (offsets from the diagonal), and this matrix "
                "has more: use blocked_ellpack, or leave the choice to 'auto'"
            )
        is_shared = found is self.patterns
        rows = (found.representatives, found.indptr, found.num_entries)
        offsets, shared = kernels_of(device).gather_rows(device, csr, *rows, is_shared)
        common = (csr.shape, csr.nnz, found.codes, found.indptr, offsets)
        if is_shared:
            shared = _cast(device, shared, self.compute)
            return RowPattern(*common, pattern_values=shared, common=_most_common(device, found.codes))
        slices = structure.natural_slices
        return RowPattern(*common, slices=slices, values=self._at(self._laid_out_in(slices)))


_BUILDERS: dict[str, Any] = {
    "csr_scalar": lambda entries: entries._csr(entries.structure.csr_long_rows(entries.structure.scalar_length)),
    "csr_vector": lambda entries: entries._csr(entries.structure.csr_long_rows(entries.structure.vector_length)),
    "csr_adaptive": lambda entries: entries._csr(entries.structure.row_blocks),
    "csr_split": lambda entries: entries._csr(entries.structure.tiles),
    "ellpack": Entries._ellpack,
    "blocked_ellpack": Entries._blocked_ellpack,
    "row_pattern": Entries._row_pattern,
}


def _most_common(device: Device, codes: Array) -> int:
    """Give the code that most of some rows have. Synchronizes."""
    step = max(1, codes.size // _SAMPLE)
    return int(np.bincount(device.download(codes[::step])).argmax()) if codes.size else 0  # synchronizes


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """Name a dtype: what NumPy takes microseconds for."""
    return str(dtype)


def _value_bytes(values: Values, positions: int) -> int:
    table = 0 if values.table is None else int(values.table.nbytes)
    return table + (0 if values.codes is None else positions * int(values.codes.dtype.itemsize))


def describe(values: Values) -> str:
    """Say how values are written down, for the plan's table."""
    if values.table is None:
        return _name(values.dtype)
    return "all equal" if values.codes is None else f"{_name(values.codes.dtype)} of {values.table.size}"


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
