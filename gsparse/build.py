"""From CSR to what products read: where entries are put, and how their columns and values are written down.

`Structure` is what the row pointers and columns alone decide, `Entries` what the values add. Each piece is made when
first needed, on the device, and kept; matrices that differ in values only share a structure. The primitives are each
backend's (`gsparse.kernels`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.device import Device
from gsparse.dictionary import encode
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
    padding_code,
)
from gsparse.kernels import NO_LIMIT
from gsparse.plan import FORMATS, MAX_PADDING, RowStats, Storage, fits, threads_per_row

__all__ = ["Entries", "Structure"]

# Rows and positions that int32 can number: what is only offered below it says so.
_INT32 = 2**31 - 1
# Distinct row patterns and values that pay at most: their table has to stay in the first cache.
MAX_PATTERNS = 4096
MAX_VALUES = 4096
# What columns may be narrowed to.
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))


@dataclass(frozen=True, eq=False)
class Patterns:
    """Distinct rows: a code a row, and a row that stands for each."""

    codes: Array
    representatives: Array
    indptr: Array
    num_entries: int


# What each format is made of, of the pieces of a structure that take memory.
_PIECES: dict[str, tuple[str, ...]] = {
    "csr_scalar": ("csr_columns", "_csr_long_rows"),
    "csr_vector": ("csr_columns", "_csr_long_rows"),
    "csr_adaptive": ("csr_columns", "row_blocks", "_csr_long_rows"),
    "csr_split": ("csr_columns", "tiles"),
    "ellpack": ("ellpack_columns",),
    "blocked_ellpack": ("slices", "slice_columns"),
    "row_pattern": ("patterns", "natural_slices"),
}


@dataclass(eq=False)
class Structure:
    """What row pointers and columns decide.

    Parameters
    ----------
    device : Device
    csr : Csr
        Without values: matrices with others share it.
    """

    device: Device
    csr: Csr

    @classmethod
    def of(cls, device: Device, csr: Csr) -> Structure:
        """Give the structure of a matrix."""
        return cls(device, csr.with_data(csr.data[:0].copy()))

    def keep(self, format: str) -> None:
        """Drop what was made but `format` does not need; it is made again when next needed. The statistics stay."""
        for name in set().union(*_PIECES.values()).difference(_PIECES.get(format, ())):
            self.__dict__.pop(name, None)

    @cached_property
    def rows(self) -> RowStats:
        """Measure the rows, in one pass. Synchronizes."""
        device, csr = self.device, self.csr
        found = device.kernels.measure_rows(device, csr.indptr, device.kernels.LONG_LENGTH)
        shortest, longest, empty, squares, places, split_places, num_long, long_entries = map(int, found)
        mean = csr.nnz / csr.num_rows if csr.num_rows else 0.0
        variance = squares / csr.num_rows - mean * mean if csr.num_rows else 0.0
        return RowStats(
            num_rows=csr.num_rows,
            num_cols=csr.num_cols,
            nnz=csr.nnz,
            min_length=shortest,
            max_length=longest,
            mean_length=mean,
            std_length=sqrt(max(variance, 0.0)),
            num_empty=empty,
            blocked_stored=places,
            split_stored=split_places,
            num_long=num_long,
            long_entries=long_entries,
        )

    # ------------------------------------------------------------- where entries go

    @cached_property
    def slices(self) -> Slices:
        """Cut rows into slices: in order where that pads little, else long rows apart, else sorted. Synchronizes."""
        stats, device, kernels = self.rows, self.device, self.device.kernels
        num_slices = -(-stats.num_rows // device.lanes)
        limit, scope, rows = NO_LIMIT, 1, None
        if stats.blocked_stored > MAX_PADDING * stats.nnz and stats.num_rows <= _INT32:
            limit = kernels.LONG_LENGTH if stats.num_long else NO_LIMIT
            if stats.split_stored + stats.long_entries > MAX_PADDING * stats.nnz:
                scope = kernels.SORTING_SCOPE
                rows = kernels.sort_rows(device, self.csr.indptr, limit)
            elif stats.num_long:
                rows = self._without_long_rows(num_slices * device.lanes, limit)
        offsets = kernels.slice_offsets(device, self.csr.indptr, rows, limit)
        places = stats.blocked_stored if rows is None else int(offsets[-1])  # synchronizes
        long_rows, end = (None, places) if limit == NO_LIMIT else self._long_rows(limit, places)
        return Slices(stats.num_rows, device.lanes, scope, offsets, rows, long_rows, limit, places, end)

    @cached_property
    def slice_facts(self) -> tuple[int, int, bool]:
        """Positions, bytes that say where rows are, and whether rows keep their order: known also once slices went."""
        return self.slices.num_positions, self.slices.nbytes, self.slices.rows is None

    @cached_property
    def natural_slices(self) -> Slices:
        """Cut rows into slices in their order, whatever that pads."""
        if self.slices.rows is None:
            return self.slices
        stats, device = self.rows, self.device
        offsets = device.kernels.slice_offsets(device, self.csr.indptr, None, NO_LIMIT)
        places = stats.blocked_stored
        return Slices(stats.num_rows, device.lanes, 1, offsets, None, None, NO_LIMIT, places, places)

    def _without_long_rows(self, num_places: int, limit: int) -> Array:
        """Give each place its row in order, -1 for rows past the last and for long ones."""
        xp, num_rows = self.device.xp, self.csr.num_rows
        rows = xp.full(num_places, -1, np.int32)
        numbers = xp.arange(num_rows, dtype=np.int32)
        rows[:num_rows] = xp.where(xp.diff(self.csr.indptr) > limit, np.int32(-1), numbers)
        return rows

    def _long_rows(self, limit: int, first: int | None = None) -> tuple[LongRows, int]:
        """Gather rows longer than `limit`, at their positions in CSR, or copied from `first` on; give the end too."""
        xp, run, chunk_size = self.device.xp, self.device.lanes, self.device.kernels.CHUNK_SIZE
        lengths = xp.diff(self.csr.indptr).astype(np.int64)
        rows = xp.flatnonzero(lengths > limit)  # synchronizes
        lengths, end = lengths[rows], 0
        if first is None:
            begins = self.csr.indptr[rows].astype(np.int64)
        else:
            ends = first + xp.cumsum(-(-lengths // run) * run)
            begins, end = ends - (-(-lengths // run) * run), int(ends[-1]) if rows.size else first  # synchronizes
        first_chunk = xp.zeros(rows.size + 1, np.int32)
        xp.cumsum(-(-lengths // chunk_size), out=first_chunk[1:])
        chunks = xp.arange(int(first_chunk[-1]), dtype=np.int32)  # synchronizes
        chunk_rows = (xp.searchsorted(first_chunk, chunks, side="right") - 1).astype(np.int32)
        long_rows = LongRows(
            rows.astype(np.int32), begins, begins + lengths, first_chunk, chunk_rows, chunk_size, limit
        )
        return long_rows, end

    def csr_long_rows(self, limit: int) -> LongRows | None:
        """Gather rows longer than `limit`, where they are in CSR. Synchronizes."""
        if self.rows.max_length <= limit or self.csr.num_rows > _INT32:
            return None
        found = self._csr_long_rows.get(limit)
        if found is None:
            found = self._csr_long_rows[limit] = self._long_rows(limit)[0]
        return found

    @cached_property
    def _csr_long_rows(self) -> dict[int, LongRows]:
        return {}

    @cached_property
    def row_blocks(self) -> RowBlocks:
        """Gather consecutive rows into blocks of about equal work; a long row has one to itself. Synchronizes."""
        xp, indptr, work = self.device.xp, self.csr.indptr, self.device.kernels.BLOCK_WORK
        num_rows, total = self.csr.num_rows, self.csr.num_rows + self.csr.nnz
        # Row i begins after indptr[i] entries and i rows; block b has the rows that begin in its share of `work`.
        begins = indptr + xp.arange(num_rows + 1, dtype=np.int64)
        cuts = xp.searchsorted(begins, xp.arange(0, total + work, work)).astype(np.int64)
        long_rows = self.csr_long_rows(work)
        cuts = [cuts, xp.array([0, num_rows])]
        if long_rows is not None:
            cuts += [long_rows.rows.astype(np.int64), long_rows.rows.astype(np.int64) + 1]
        first_rows = xp.unique(xp.minimum(xp.concatenate(cuts), num_rows))  # synchronizes
        return RowBlocks(first_rows.astype(np.int32), long_rows)

    @cached_property
    def tiles(self) -> Tiles:
        """Share out the merged list of entries and row ends equally. Synchronizes."""
        xp, indptr, size = self.device.xp, self.csr.indptr, self.device.kernels.TILE_WORK
        num_rows, total = self.csr.num_rows, self.csr.num_rows + self.csr.nnz
        ends = indptr[1:] + xp.arange(num_rows, dtype=np.int64)
        bounds = xp.minimum(xp.arange(-(-total // size) + 1, dtype=np.int64) * size, total)
        first_rows = xp.searchsorted(ends, bounds)
        # The row at a tile's end goes on past it where some of its entries lie before the end.
        rows, entries = first_rows[1:-1], bounds[1:-1] - first_rows[1:-1]
        carry_tiles = xp.flatnonzero(entries > indptr[rows])  # synchronizes
        rows = rows[carry_tiles]
        starts = xp.flatnonzero(xp.concatenate([xp.ones(min(rows.size, 1), bool), rows[1:] != rows[:-1]]))
        first_carry = xp.concatenate([starts, xp.array([rows.size])]).astype(np.int32)
        parts = (first_rows, rows[starts], carry_tiles)
        first_rows, split_rows, carry_tiles = (part.astype(np.int32) for part in parts)
        return Tiles(first_rows, size, split_rows, first_carry, carry_tiles)

    # ------------------------------------------------------------- columns

    def _narrowest(self, columns: Array, among: tuple[np.dtype[Any], ...]) -> np.dtype[Any]:
        """Give the narrowest dtype that holds columns above the base of their run. Synchronizes."""
        if among and columns.size and self.csr.num_cols <= _INT32:
            span = self.device.kernels.run_span(self.device, columns, self.csr.num_cols)
            for dtype in among:
                if span < padding_code(dtype):
                    return dtype
        plain: np.dtype[Any] = np.dtype(columns.dtype)
        return plain

    def _encoded(self, columns: Array, dtype: np.dtype[Any]) -> Columns:
        if dtype == columns.dtype:
            return Columns(columns)
        return self.device.kernels.encode_columns(self.device, columns, dtype)  # type: ignore[no-any-return]

    @cached_property
    def csr_column_dtype(self) -> np.dtype[Any]:
        """The narrowest dtype for columns in CSR's order. Synchronizes."""
        return self._narrowest(self.csr.indices, self.device.kernels.CSR_CODES)

    @cached_property
    def csr_columns(self) -> Columns:
        """Columns in CSR's order, encoded."""
        return self._encoded(self.csr.indices, self.csr_column_dtype)

    @cached_property
    def slice_column_dtype(self) -> np.dtype[Any]:
        """The dtype of columns at the positions of the slices: known also once these went. Synchronizes."""
        dtype: np.dtype[Any] = np.dtype(self.slice_columns.codes.dtype)
        return dtype

    @cached_property
    def slice_columns(self) -> Columns:
        """Columns at the positions of the slices, encoded. Synchronizes."""
        columns = self.plain_slice_columns()
        return self._encoded(columns, self._narrowest(columns, _NARROW))

    def plain_slice_columns(self) -> Array:
        """Lay columns out at the positions of the slices."""
        lay_out = self.device.kernels.lay_out
        return lay_out(
            self.device, self.csr.indptr, self.csr.indices, self.slices, padding_code(self.csr.indices.dtype)
        )

    @cached_property
    def ellpack_columns(self) -> Columns:
        """Columns column-major, encoded. Synchronizes."""
        columns = self.plain_ellpack_columns()
        return self._encoded(columns, self._narrowest(columns, _NARROW))

    def plain_ellpack_columns(self) -> Array:
        """Lay columns out column-major."""
        return self.ellpack(self.csr.indices, padding_code(self.csr.indices.dtype))

    @property
    def scalar_length(self) -> int:
        """Entries above which `csr_scalar` keeps a row apart."""
        return int(self.device.kernels.SCALAR_LENGTH)

    @property
    def vector_length(self) -> int:
        """Entries above which `csr_vector` keeps a row apart."""
        threads = threads_per_row(self.rows.typical_length, self.device.lanes, self.rows.num_rows)
        return max(int(self.device.kernels.VECTOR_LENGTH) * threads, 2 * self.scalar_length)

    @property
    def pitch(self) -> int:
        """Rows of ELLPACK, whole runs."""
        return -(-self.csr.num_rows // self.device.lanes) * self.device.lanes

    def ellpack(self, items: Array, padding: Any) -> Array:
        """Lay items out column-major."""
        width = self.rows.max_length
        return self.device.kernels.lay_out_ellpack(self.device, self.csr.indptr, items, width, self.pitch, padding)

    @cached_property
    def patterns(self) -> Patterns | None:
        """Rows by their offsets, where few are distinct. Synchronizes."""
        return find_patterns(self.device, self.csr, values=False)

    @cached_property
    def pattern_facts(self) -> tuple[int, int, int] | None:
        """How many distinct rows, their entries, and the bytes of codes: known also once these went. Synchronizes."""
        found = self.patterns
        return None if found is None else (int(found.representatives.size), found.num_entries, int(found.codes.nbytes))


def find_patterns(device: Device, csr: Csr, *, values: bool) -> Patterns | None:
    """Find the distinct rows of a matrix, by offsets (column minus row) and where asked by values too. Synchronizes."""
    xp, kernels = device.xp, device.kernels
    if max(csr.shape) > _INT32:
        return None
    if not csr.num_rows:
        return Patterns(xp.zeros(0, np.uint8), xp.zeros(0, np.int64), xp.zeros(1, np.int32), 0)
    found = encode(device, kernels.row_keys(device, csr, values), MAX_PATTERNS)
    if found is None:
        return None
    # A hash is no proof: each row is compared with one that has its code, whichever that is.
    representatives = some_places(xp, found.codes, found.table.size)
    if not kernels.rows_follow(device, csr, found.codes, representatives, values):
        return None
    indptr = xp.zeros(found.table.size + 1, np.int32)
    xp.cumsum(csr.indptr[representatives + 1] - csr.indptr[representatives], out=indptr[1:])
    return Patterns(found.codes, representatives, indptr, int(indptr[-1]))  # synchronizes


def some_places(xp: Any, codes: Array, size: int) -> Array:
    """Give, for each of `size` codes, a place where it stands."""
    places = xp.zeros(size, np.int64)
    places[codes] = xp.arange(codes.size)
    return places


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
        """Rows by their offsets and values, where few are distinct. Synchronizes."""
        if self.structure.pattern_facts is None:
            return None
        return find_patterns(self.structure.device, self.csr, values=True)

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
                storage = self._storage(format, examined=format in examined)
                if storage is not None:
                    found[format] = storage
        return found

    def _storage(self, format: str, *, examined: bool) -> Storage | None:
        structure, stats = self.structure, self.structure.rows
        values, columns, extra = Values(self.csr.data), np.dtype(self.csr.indices.dtype), 0
        if examined and self.compress:
            values = self.values
        if format == "row_pattern":
            return self._pattern_storage(values) if examined else None
        if format == "ellpack":
            positions = stats.max_length * structure.pitch
            if examined and self.compress and fits("blocked_ellpack", stats) and structure.slice_facts[2]:
                columns = structure.slice_column_dtype
        elif format == "blocked_ellpack":
            positions, extra = stats.blocked_stored, 8 * (structure.pitch // structure.device.lanes + 1)
            if examined:
                positions, extra, _ = structure.slice_facts
                columns = structure.slice_column_dtype if self.compress else columns
        else:
            positions, extra = stats.nnz, int(self.csr.indptr.nbytes)
            columns = structure.csr_column_dtype if examined and self.compress else columns
            if format in ("csr_adaptive", "csr_split"):
                extra += 4 * -(-(stats.nnz + stats.num_rows) // structure.device.kernels.BLOCK_WORK)
        narrow = columns.kind == "u"
        nbytes = extra + positions * columns.itemsize + narrow * 4 * -(-positions // structure.device.lanes)
        return Storage(str(columns), describe(values), positions, nbytes + _value_bytes(values, positions))

    def _pattern_storage(self, values: Values) -> Storage | None:
        facts, stats = self.structure.pattern_facts, self.structure.rows
        if facts is None:
            return None
        own = self.patterns
        if own is not None:
            facts = int(own.representatives.size), own.num_entries, int(own.codes.nbytes)
        num_patterns, num_entries, code_bytes = facts
        nbytes, columns = code_bytes + 4 * (num_patterns + 1 + num_entries), f"{num_patterns} rows"
        if own is not None:
            return Storage(columns, columns, stats.nnz, nbytes + num_entries * self.compute.itemsize)
        positions, num_slices = stats.blocked_stored, self.structure.pitch // self.structure.device.lanes
        nbytes += 8 * (num_slices + 1) + _value_bytes(values, positions)
        return Storage(columns, describe(values), positions, nbytes)

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
        columns = structure.ellpack_columns if self.compress else Columns(structure.plain_ellpack_columns())
        return Ellpack(shape, nnz, structure.rows.max_length, structure.pitch, columns, self._at(structure.ellpack))

    def _blocked_ellpack(self) -> BlockedEllpack:
        structure = self.structure
        columns = structure.slice_columns if self.compress else Columns(structure.plain_slice_columns())
        slices = structure.slices
        return BlockedEllpack(self.csr.shape, self.csr.nnz, slices, columns, self._at(self._laid_out_in(slices)))

    def _laid_out_in(self, slices: Slices) -> Any:
        device, indptr = self.structure.device, self.csr.indptr
        return lambda items, padding: device.kernels.lay_out(device, indptr, items, slices, padding)

    def _row_pattern(self) -> RowPattern:
        structure, csr, xp = self.structure, self.csr, self.structure.device.xp
        found = self.patterns or structure.patterns
        if found is None:
            raise FormatError(
                f"row_pattern stores at most {MAX_PATTERNS} distinct rows (offsets from the diagonal), and this matrix "
                "has more: use blocked_ellpack, or leave the choice to 'auto'"
            )
        entries = self._entries_of(found)
        rows = csr.indices[entries].astype(np.int64) - self._rows_of(found)
        common = (csr.shape, csr.nnz, found.codes, found.indptr, rows.astype(np.int32))
        if found is self.patterns:
            shared = _cast(structure.device, csr.data[entries], self.compute)
            return RowPattern(*common, pattern_values=shared, common=_most_common(xp, found.codes))
        slices = structure.natural_slices
        return RowPattern(*common, slices=slices, values=self._at(self._laid_out_in(slices)))

    def _entries_of(self, found: Patterns) -> Array:
        """Give the entries, in CSR's order, of the rows that stand for each pattern."""
        xp = self.structure.device.xp
        places = xp.arange(found.num_entries)
        pattern = xp.searchsorted(found.indptr, places, side="right") - 1
        return self.csr.indptr[found.representatives[pattern]] + (places - found.indptr[pattern])

    def _rows_of(self, found: Patterns) -> Array:
        """Give the row of each of those entries."""
        xp = self.structure.device.xp
        return found.representatives[xp.searchsorted(found.indptr, xp.arange(found.num_entries), side="right") - 1]


_BUILDERS: dict[str, Any] = {
    "csr_scalar": lambda entries: entries._csr(entries.structure.csr_long_rows(entries.structure.scalar_length)),
    "csr_vector": lambda entries: entries._csr(entries.structure.csr_long_rows(entries.structure.vector_length)),
    "csr_adaptive": lambda entries: entries._csr(entries.structure.row_blocks),
    "csr_split": lambda entries: entries._csr(entries.structure.tiles),
    "ellpack": Entries._ellpack,
    "blocked_ellpack": Entries._blocked_ellpack,
    "row_pattern": Entries._row_pattern,
}


def _most_common(xp: Any, codes: Array) -> int:
    """Give the code that most of some rows have. Synchronizes."""
    return int(xp.bincount(codes[:: max(1, codes.size // 4096)]).argmax()) if codes.size else 0  # synchronizes


def _value_bytes(values: Values, positions: int) -> int:
    table = 0 if values.table is None else int(values.table.nbytes)
    return table + (0 if values.codes is None else positions * int(values.codes.dtype.itemsize))


def describe(values: Values) -> str:
    """Say how values are written down, for the plan's table."""
    if values.table is None:
        return str(values.dtype)
    return "all equal" if values.codes is None else f"{values.codes.dtype} of {values.table.size}"


def compressed(device: Device, data: Array, compute: np.dtype[Any]) -> Values:
    """Give values as one, or by dictionary, or in half the precision, whichever pays and is exact. Synchronizes."""
    if not data.size:
        return Values(data)
    found = _dictionary(device, data)
    if found is not None and found[1].size == 1:
        return Values(None, _cast(device, found[1], compute))
    narrow = _HALVES.get(data.dtype)
    looked_up = found is not None and (device.kernels.LOOKS_UP or narrow is None)
    if not looked_up and narrow is not None and _survives(device, data, narrow):
        return Values(data.astype(narrow))
    if found is not None:
        codes, table = found
        return Values(codes, _cast(device, table, compute))
    return Values(data)


def _cast(device: Device, table: Array, dtype: np.dtype[Any]) -> Array:
    """Cast a small device array by way of the host: CuPy's own casts flush subnormal float32 values. Synchronizes."""
    return table if table.dtype == dtype else device.upload(device.download(table).astype(dtype))


_HALVES = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}


def _survives(device: Device, data: Array, narrow: np.dtype[Any]) -> bool:
    """Tell whether every value comes back from a narrower dtype with the same bits: a sample first. Synchronizes."""
    for part in (data[:: max(1, data.size // 1024)], data):
        bits = device.xp.ascontiguousarray(part).view(np.uint64)
        with np.errstate(over="ignore", invalid="ignore"):  # (1e300 does not survive, and nobody has to hear of it)
            back = part.astype(narrow).astype(data.dtype).view(np.uint64)
        if not bool((bits == back).all()):  # synchronizes
            return False
    return True


def _dictionary(device: Device, data: Array) -> tuple[Array, Array] | None:
    """Give codes and a table of the distinct values, told apart by their bits. Synchronizes."""
    if data.dtype.itemsize <= 8:
        keys = data.view(np.dtype(f"uint{8 * data.dtype.itemsize}"))
        found = encode(device, keys, MAX_VALUES)
        return None if found is None else (found.codes, device.upload(found.table.view(data.dtype)))
    words = data.view(np.uint64).reshape(-1, 2)
    keys = words[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ (words[:, 1] + (words[:, 1] >> np.uint64(29)))
    found = encode(device, keys, MAX_VALUES)
    if found is None:
        return None
    # Two words in one are a hash: see that the values come back.
    table = data[some_places(device.xp, found.codes, found.table.size)]
    same = (table[found.codes].view(np.uint64) == data.view(np.uint64)).all()
    return (found.codes, table) if bool(same) else None  # synchronizes
