"""Statistics of a matrix's structure, and its long rows (contract: `gsparse.kernels.set_up`).

The survey counts, in each of at most `_MAX_PARTS` equal parts of the rows, what later kernels will find there. From
these counts the host knows how much to allocate, and each block of a later kernel where its output begins (parts.cuh).
After the survey, nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import LongRows
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.launch import Launch
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.spmv import CHUNK_SIZE
from gsparse.kernels.set_up import Survey

# Rows sorted by one block.
SORTING_SCOPE = constant("setup_rows.cu", "GS_SCOPE")
# A row with twice as many entries as a warp has lanes keeps a warp busy.
LONG_LENGTH = 64

THREADS = Launch().threads_per_block
SOURCE = "setup_rows.cu"
# The largest number of parts of the rows, one for each block: enough to fill any GPU, and few enough that a block can
# add up the counts of those before it.
_MAX_PARTS = 1024
# The largest number of blocks that share the columns (eight for each multiprocessor of an H200), and the smallest
# number of columns of a thread.
_MAX_BLOCKS, _COLUMNS_PER_THREAD = 1056, 4
# The statistics (setup_survey.cu), the counters (parts.cuh), and the limits above which long rows are counted.
_FACTS = (
    "min_length", "max_length", "num_empty", "sum_squares", "long_entries", "num_falls", "first", "last", "min_column",
    "max_column", "num_unsorted", "run_span", "contradicted",
)  # fmt: skip
_COUNTERS = ("slice_positions", "short_positions", "long_positions")
# The bits of `contradicted` if all numbers of rows and columns of a block are contradicted (block_sizes.cuh).
_ALL_SIZES = sum(1 << n | 1 << n + 16 for n in range(2, MAX_BLOCK + 1))
_LIMITS = tuple(constant(SOURCE, "GS_FIRST_LIMIT") << i for i in range(constant(SOURCE, "GS_LIMITS")))
_NUM_COUNTS = constant(SOURCE, "GS_COUNTS")


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of a survey, for the kernels that place rows.

    Attributes
    ----------
    parts : array of int64, shape (num_parts * _NUM_COUNTS,)
        The counts of each part, on the device.
    totals : list of int
        Sums over all parts, on the host.
    part_rows : int
        Rows of a part, a multiple of `SORTING_SCOPE`.
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
        """Return the array from a counter of the first part on; those of the other parts follow at each `stride`."""
        return self.parts[_COUNTERS.index(counter) :]

    def above(self, limit: int) -> tuple[int, int]:
        """Return the number of rows longer than a limit, and the number of their chunks."""
        place = len(_COUNTERS) + 2 * _LIMITS.index(limit)
        return self.totals[place], self.totals[place + 1]


def survey(device: Device, indptr: Array, indices: Array, spans: bool) -> Survey:
    """Examine row pointers and columns in one pass. Synchronizes."""
    num_rows = indptr.size - 1
    part_rows = SORTING_SCOPE * max(1, -(-num_rows // (SORTING_SCOPE * _MAX_PARTS)))
    num_parts = -(-num_rows // part_rows)
    totals = device.xp.zeros(len(_FACTS) + _NUM_COUNTS, np.uint64)
    parts = device.empty(num_parts * _NUM_COUNTS, np.int64)
    blocks = max(1, num_parts, min(-(-indices.size // (THREADS * _COLUMNS_PER_THREAD)), _MAX_BLOCKS))
    sizes = (np.int64(num_rows), np.int32(num_parts), np.int64(part_rows), np.int64(indices.size))
    limits = (np.int64(LONG_LENGTH), np.int32(spans))
    args = (*sizes, *limits, indptr, indices, totals, parts)
    launch_blocks(device, "setup_survey.cu", expression("survey", indptr.dtype), blocks, THREADS, args)
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
    """Decode the statistics: maxima are unsigned numbers, minima their complements, and 0 stands for none."""
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
    launch_blocks(device, SOURCE, expression(name, indptr.dtype), counts.num_parts, THREADS, args)


def long_rows(
    device: Device, indptr: Array, survey: Survey, limit: int, first: int | None = None
) -> tuple[LongRows, int]:
    """List the rows that are longer than a limit, in order."""
    counts: Counts = survey.counts
    num_long, num_chunks = counts.above(limit)
    # Two allocations for five arrays.
    longs, ints = device.empty(2 * num_long, np.int64), device.empty(2 * num_long + 1 + num_chunks, np.int32)
    begins, ends = longs[:num_long], longs[num_long:]
    rows, first_chunk, chunk_rows = ints[:num_long], ints[num_long : 2 * num_long + 1], ints[2 * num_long + 1 :]
    options = np.int32(_LIMITS.index(limit)), np.int64(-1 if first is None else first)
    args = (*options, indptr, counts.parts, rows, begins, ends, first_chunk, chunk_rows)
    _place(device, "place_long_rows", indptr, counts, *args)
    end = 0 if first is None else first + counts.total("long_positions")
    return LongRows(rows, begins, ends, first_chunk, chunk_rows, CHUNK_SIZE, limit), end
