"""Statistics of a structure, and positions of entries in padded formats (contract: `gsparse.kernels.set_up`).

The survey divides the rows into at most `_MAX_PARTS` equal parts. For each part, it counts the outputs of later
kernels. From these counts, the host knows how much to allocate, and each block of a later kernel knows where to write
(parts.cuh). After the survey, the host waits for the device only if rows are sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats import Csr, LaneSlices, LongRows, Slices, costs
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.gpu.launch import ITEM_TYPES, TILE_THREADS, Source, constant, expression, launch_blocks, records
from gsparse.kernels.set_up import Survey

# Number of rows that one block sorts.
SORTING_SCOPE = constant("setup_rows.cu", "GS_SCOPE")
# Rows with more entries than this are not stored in slices: a row of twice the lanes of a warp is enough work for a
# warp.
LONG_LENGTH = 64
SCALAR_LENGTH = costs.SCALAR_LENGTH
# Number of entries in a chunk of a long row.
CHUNK_SIZE = constant("long_rows.cuh", "GS_CHUNK")

_SOURCE = Source("setup_rows.cu", TILE_THREADS)
_SURVEY = Source("setup_survey.cu", _SOURCE.threads)
# Maximum number of parts. Each part is surveyed by a block. This is enough to fill any GPU, and few enough that each
# block of a later kernel can add up the counts of all parts before its own.
_MAX_PARTS = 1024
# Maximum number of blocks that read the column indices (eight per multiprocessor of an H200), and minimum number of
# column indices per thread.
_MAX_BLOCKS, _COLUMNS_PER_THREAD = 1056, 4
# The names of the statistics (setup_survey.cu) and of the counters (parts.cuh).
_FACTS = (
    "min_length", "max_length", "num_empty", "sum_squares", "long_entries", "num_falls", "first", "last", "min_column",
    "max_column", "num_unsorted", "run_span", "contradicted",
)  # fmt: skip
_COUNTERS = ("slice_positions", "short_positions", "long_positions")
# The value of `contradicted` (setup_survey.cu) if dense blocks of any size are impossible.
_ALL_SIZES = sum(1 << n | 1 << n + 16 for n in range(2, MAX_BLOCK + 1))
_LIMITS = tuple(constant(_SOURCE.file, "GS_FIRST_LIMIT") << i for i in range(constant(_SOURCE.file, "GS_LIMITS")))
_NUM_COUNTS = constant(_SOURCE.file, "GS_COUNTS")

_SORT_THREADS = 512


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of a survey. Later kernels compute positions of rows from them.

    Attributes
    ----------
    parts : array of int64, shape (num_parts * _NUM_COUNTS,)
        The counts of each part, a device array.
    totals : list of int
        Sums over all parts, on the host.
    part_rows : int
        Number of rows of a part, a multiple of `SORTING_SCOPE`.
    num_parts : int
    """

    parts: Array
    totals: list[int]
    part_rows: int
    num_parts: int

    stride = np.int32(_NUM_COUNTS)

    def total(self, counter: str) -> int:
        """Return the sum of a counter over all parts."""
        return self.totals[_COUNTERS.index(counter)]

    def of(self, counter: str) -> Array:
        """Return a view of `parts`. Its elements 0, `stride`, 2·`stride`, ... are this counter for each part."""
        return self.parts[_COUNTERS.index(counter) :]

    def above(self, limit: int) -> tuple[int, int]:
        """Return the number of rows longer than `limit`, one of `_LIMITS`, and the number of their chunks."""
        place = len(_COUNTERS) + 2 * _LIMITS.index(limit)
        return self.totals[place], self.totals[place + 1]


def survey(device: Device, indptr: Array, indices: Array, spans: bool) -> Survey:
    """Return the statistics, computed in one pass over row pointers and columns. Synchronizes."""
    num_rows = indptr.size - 1
    part_rows = SORTING_SCOPE * max(1, -(-num_rows // (SORTING_SCOPE * _MAX_PARTS)))
    num_parts = -(-num_rows // part_rows)
    totals = device.xp.zeros(len(_FACTS) + _NUM_COUNTS, np.uint64)
    parts = device.empty(num_parts * _NUM_COUNTS, np.int64)
    blocks = max(1, num_parts, min(-(-indices.size // (_SURVEY.threads * _COLUMNS_PER_THREAD)), _MAX_BLOCKS))
    sizes = (np.int64(num_rows), np.int32(num_parts), np.int64(part_rows), np.int64(indices.size))
    limits = (np.int64(LONG_LENGTH), np.int32(spans))
    args = (*sizes, *limits, indptr, indices, totals, parts)
    _SURVEY.launch(device, "survey", (indptr.dtype,), blocks * _SURVEY.threads, args)
    words = device.download(totals).tolist()  # synchronizes
    counts = Counts(parts, words[len(_FACTS) :], part_rows, num_parts)
    facts = _read(words[: len(_FACTS)])
    may_consist_of_blocks = facts.pop("contradicted") != _ALL_SIZES
    return Survey(
        **facts,
        may_consist_of_blocks=may_consist_of_blocks,
        blocked_stored=counts.total("slice_positions"),
        split_stored=counts.total("short_positions"),
        num_long=counts.above(LONG_LENGTH)[0],
        counts=counts,
    )


def _read(words: list[int]) -> dict[str, int]:
    """Decode the statistics. Maxima are unsigned numbers, minima are complements of such numbers, and 0 means none."""
    facts = dict(zip(_FACTS, words, strict=True))
    sign, mask = 1 << 63, (1 << 64) - 1
    for name in ("min_length", "max_length", "min_column", "max_column"):
        word = facts[name]
        facts[name] = 0 if not word else (word if name.startswith("max") else mask - word) - sign
    for name in ("first", "last"):
        facts[name] -= facts[name] >> 63 << 64
    return facts


def _place(device: Device, name: str, indptr: Array, counts: Counts, *args: Any) -> None:
    args = (np.int64(indptr.size - 1), np.int64(counts.part_rows), *args)
    _SOURCE.launch(device, name, (indptr.dtype,), counts.num_parts * _SOURCE.threads, args)


def long_rows(
    device: Device, indptr: Array, survey: Survey, limit: int, first: int | None = None
) -> tuple[LongRows, int]:
    """Return the rows that are longer than `limit`, in the order of the matrix."""
    counts: Counts = survey.counts
    num_long, num_chunks = counts.above(limit)
    # Two allocations serve for all five arrays.
    longs, ints = device.empty(2 * num_long, np.int64), device.empty(2 * num_long + 1 + num_chunks, np.int32)
    begins, ends = longs[:num_long], longs[num_long:]
    rows, first_chunk, chunk_rows = ints[:num_long], ints[num_long : 2 * num_long + 1], ints[2 * num_long + 1 :]
    options = np.int32(_LIMITS.index(limit)), np.int64(-1 if first is None else first)
    args = (*options, indptr, counts.parts, rows, begins, ends, first_chunk, chunk_rows)
    _place(device, "place_long_rows", indptr, counts, *args)
    end = 0 if first is None else first + counts.total("long_positions")
    return LongRows(rows, begins, ends, first_chunk, chunk_rows, CHUNK_SIZE, limit), end


def cut_slices(
    device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
) -> tuple[Array | None, Array, int]:
    """Compute the positions of slices; if `sort`, sort the rows before that, and synchronize."""
    counts: Counts = survey.counts
    num_rows = indptr.size - 1
    num_slices = -(-num_rows // device.lanes)
    rows = short_rows = None
    if sort:
        rows, positions = sort_rows(device, indptr, counts, long_length, num_slices * device.lanes)
        positions_of_parts = np.int32(1), positions
        num_positions = int(device.download(positions[counts.num_parts :])[0])  # synchronizes
    else:
        short_rows = None if long_length == NO_LIMIT else device.empty(num_slices * device.lanes, np.int32)
        counter = "slice_positions" if long_length == NO_LIMIT else "short_positions"
        positions_of_parts, num_positions = (counts.stride, counts.of(counter)), counts.total(counter)
    offsets = (device.empty if num_slices else device.xp.zeros)(num_slices + 1, np.int64)
    args = (np.int64(num_slices), np.int64(long_length), *positions_of_parts, rows, indptr, offsets, short_rows)
    _place(device, "place_slices", indptr, counts, *args)
    return rows if sort else short_rows, offsets, num_positions


def sort_rows(device: Device, indptr: Array, counts: Counts, long_length: int, num_places: int) -> tuple[Array, Array]:
    """Sort the rows of each scope by descending length. Return them, and the number of positions of each part.

    Places of rows longer than `long_length`, and places after the last row, hold -1.
    """
    num_rows = indptr.size - 1
    rows, positions = device.empty(num_places, np.int32), device.xp.zeros(counts.num_parts + 1, np.int64)
    sizes = (np.int32(num_rows), np.int32(num_places), np.int64(long_length))
    args = (*sizes, indptr, np.int64(counts.part_rows), np.int32(counts.num_parts), rows, positions.view(np.uint64))
    name, blocks = expression("sort_rows", indptr.dtype), -(-num_rows // SORTING_SCOPE)
    launch_blocks(device, _SOURCE.file, name, blocks, _SORT_THREADS, args)
    return rows, positions


def lay_out(device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
    """Copy items from CSR order to the positions of slices and long rows, and return them."""
    long_rows, out = slices.long_rows, device.empty(slices.num_positions, items.dtype)
    num_places = slices.num_slices * device.lanes
    sizes = (np.int64(slices.num_rows), np.int64(num_places), np.int64(slices.long_length))
    layout = (slices.rows, slices.slice_offsets, np.int64(device.lanes), np.int32(0))
    _lay_out(device, indptr, items, padding, out, (*sizes, *layout), num_places)
    if long_rows is not None:
        args = (np.int32(long_rows.num_chunks), records(device, long_rows), indptr, *_items(items, padding, out))
        types = _item_type(items), indptr.dtype
        _SOURCE.launch(device, "lay_out_long", types, long_rows.num_chunks * device.lanes, args)
    return out


def lay_out_ellpack(device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any) -> Array:
    """Copy items from CSR order to the positions of ELLPACK, and return them."""
    out = device.empty(width * pitch, items.dtype)
    sizes = (np.int64(indptr.size - 1), np.int64(pitch), np.int64(NO_LIMIT))
    _lay_out(device, indptr, items, padding, out, (*sizes, None, None, np.int64(pitch), np.int32(width)), pitch)
    return out


def _lay_out(
    device: Device, indptr: Array, items: Array, padding: Any, out: Array, layout: tuple[Any, ...], num_places: int
) -> None:
    args = (*layout, indptr, *_items(items, padding, out))
    _SOURCE.launch(device, "lay_out", (_item_type(items), indptr.dtype), num_places, args)


def _item_type(items: Array) -> np.dtype[Any]:
    return ITEM_TYPES[items.dtype.itemsize]


def _items(items: Array, padding: Any, out: Array) -> tuple[Array, Any, Array]:
    """Return views of items, padding and output. Their dtype is an integer or complex type of the same size."""
    dtype = _item_type(items)
    return items.view(dtype), np.array(padding, items.dtype).view(dtype)[()], out.view(dtype)


def lane_rows(device: Device, csr: Csr, numbers: Array | None, most_steps: int) -> tuple[Array, Array, Array, Array]:
    """Count the frequent and the rare entries of each row. A warp does this, and writes the row's sort key."""
    num_rows = csr.num_rows
    found = device.empty((4, num_rows), np.int64)
    args = np.int64(num_rows), np.int64(most_steps), csr.indptr, csr.indices, numbers, found
    _SOURCE.launch(device, "lane_rows", (csr.indptr.dtype,), num_rows * device.lanes, args)
    keys, lanes, frequent_steps, rare_steps = found
    return device.xp.argsort(keys, kind="stable"), lanes, frequent_steps, rare_steps


def lane_positions(device: Device, csr: Csr, slices: LaneSlices) -> Array:
    """Return the position of each entry. A warp numbers the frequent and the rare columns of a row."""
    positions = device.empty(csr.nnz, np.int64)
    layout = slices.numbers, slices.places, slices.lanes, slices.frequent_offsets, slices.rare_offsets
    sizes = np.int64(csr.num_rows), np.int64(slices.num_frequent_positions), np.int32(slices.group)
    args = *sizes, csr.indptr, csr.indices, *layout, positions
    _SOURCE.launch(device, "lane_positions", (csr.indptr.dtype,), csr.num_rows * device.lanes, args)
    return positions


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    rows = "lane_positions lane_rows place_long_rows sort_rows place_slices"
    return [
        *_SOURCE.variants("list_chunks", (np.dtype(np.int32),)),
        *_SURVEY.variants("survey", INDEX_DTYPES),
        *_SOURCE.variants(rows, INDEX_DTYPES),
        *_SOURCE.variants("lay_out lay_out_long", ITEM_TYPES.values(), INDEX_DTYPES),
    ]
