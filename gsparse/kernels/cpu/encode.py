"""Set-up of encodings: columns as distances from a base, values as positions in a table.

The contract is in `gsparse.kernels.set_up`. A part of a loop owns consecutive runs, blocks of runs, blocks of keys,
or keys, the same number for each part.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Columns
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN

# Number of runs in a block of runs, of which only the greatest span is stored.
_SPAN_RUNS = 1024
# Largest number of blocks of keys. Each block collects its distinct keys. Like the number above, it is fixed, so that
# results do not depend on the number of threads.
_KEY_BLOCKS = 64
# Slots of the hash table with which a block of keys is searched.
_SLOTS = 8192

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def run_span(device: Device, columns: Array, num_cols: int) -> int:
    """Return the span of the widest run of positions."""
    spans = np.zeros(-(-columns.size // (_SPAN_RUNS * RUN)), np.int64)
    run_parts(_measure_spans, columns.size, columns, spans)
    return int(spans.max(initial=0))


def encode_columns(device: Device, columns: Array, dtype: Any) -> Columns:
    """Encode columns as distances from the least column of their run."""
    codes, bases = np.empty(columns.size, dtype), np.empty(-(-columns.size // RUN), np.int32)
    run_parts(_encode_runs, columns.size, columns, codes, bases)
    return Columns(codes, bases)


def distinct_keys(device: Device, keys: Array, limit: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
    """Collect the distinct keys of each block, then those of all blocks."""
    # Blocks of few keys would each stay below the limit, and only the second search would find that there are too many.
    places = _find_distinct(keys, limit, min(max(keys.size // (4 * limit), 1), _KEY_BLOCKS))
    among = None if places is None else _find_distinct(keys[places], limit, 1)
    if places is None or among is None:
        return None
    places = places[among]
    table = keys[places]
    order = np.argsort(table)
    return table[order], places[order]


def encode_keys(device: Device, keys: Array, table: Array, dtype: Any) -> Array:
    """Look up each key in the table."""
    codes = np.empty(keys.size, dtype)
    run_parts(_encode_keys, keys.size, keys, table, codes)
    return codes


def survives_halving(device: Device, data: Array) -> bool:
    """Convert the values to half the precision and back, and compare: first a sample, then all of them."""
    values = data.view(np.float64)
    for part in (values[:: max(1, values.size // 1024)], values):
        with np.errstate(over="ignore", invalid="ignore"):  # 1e300 overflows, and a warning would not help the user
            back = part.astype(np.float32).astype(np.float64)
        if not np.array_equal(np.ascontiguousarray(part).view(np.uint64), back.view(np.uint64)):
            return False
    return True


@inlined
def _bounds(columns: Array, run: int) -> tuple[Any, Any]:
    """Return the least and the greatest column of a run without its padding; 0, 0 if the run is all padding."""
    low, high = np.int64(2**62), np.int64(-1)
    for k in range(run * RUN, min((run + 1) * RUN, columns.size)):
        column = np.int64(columns[np.uint64(k)])
        low, high = min(low, column if column >= 0 else low), max(high, column)
    if high < 0:
        return np.int64(0), np.int64(0)
    return low, high


@compiled
def _measure_spans(part: int, num_parts: int, columns: Array, spans: Array) -> None:
    num_runs = -(-columns.size // RUN)
    for block in range(part * spans.size // num_parts, (part + 1) * spans.size // num_parts):
        widest = np.int64(0)
        for run in range(block * _SPAN_RUNS, min((block + 1) * _SPAN_RUNS, num_runs)):
            low, high = _bounds(columns, run)
            widest = max(widest, high - low)
        spans[block] = widest


@compiled
def _encode_runs(part: int, num_parts: int, columns: Array, codes: Array, bases: Array) -> None:
    for run in range(part * bases.size // num_parts, (part + 1) * bases.size // num_parts):
        low, _ = _bounds(columns, run)
        bases[np.uint64(run)] = low
        for k in range(run * RUN, min((run + 1) * RUN, columns.size)):
            column = np.int64(columns[np.uint64(k)])
            # -1 becomes the largest number of an unsigned type: the padding code.
            codes[np.uint64(k)] = column - low if column >= 0 else -1


def _find_distinct(keys: Array, limit: int, num_blocks: int) -> npt.NDArray[np.int64] | None:
    """Return the first place of each distinct key of each block, or None if a block has more of them than the limit."""
    listed, counts = np.empty((num_blocks, limit), np.int64), np.zeros(num_blocks, np.int64)
    run_parts(_collect_blocks, keys.size, keys, listed, counts)
    if counts.max() > limit:
        return None
    return np.concatenate([block[:count] for block, count in zip(listed, counts, strict=True)])


@partial(compiled, allocates=True)
def _collect_blocks(part: int, num_parts: int, keys: Array, listed: Array, counts: Array) -> None:
    """List positions of the distinct keys of each block; if there are too many, their number is ``limit + 1``."""
    num_blocks, limit = listed.shape
    slots = np.empty(_SLOTS, np.int64)
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        slots[:] = -1
        count, place = np.int64(0), np.int64(-1)
        for k in range(block * keys.size // num_blocks, (block + 1) * keys.size // num_blocks):
            key = keys[np.uint64(k)]
            # Consecutive keys are often equal.
            if place >= 0 and keys[np.uint64(place)] == key:
                continue
            slot = ((np.uint64(key) ^ (np.uint64(key) >> np.uint64(32))) * _MULTIPLIER) >> np.uint64(64 - 13)
            while slots[slot] >= 0 and keys[np.uint64(slots[slot])] != key:
                slot = (slot + np.uint64(1)) % np.uint64(_SLOTS)
            if slots[slot] < 0:
                if count == limit:
                    counts[block] = limit + 1
                    return
                slots[slot] = k
                listed[block, count] = k
                count += 1
            place = slots[slot]
        counts[block] = count


@compiled
def _encode_keys(part: int, num_parts: int, keys: Array, table: Array, codes: Array) -> None:
    place = np.int64(0)
    for k in range(part * keys.size // num_parts, (part + 1) * keys.size // num_parts):
        key = keys[np.uint64(k)]
        # Consecutive keys are often equal.
        if table[np.uint64(place)] != key:
            low, high = np.int64(0), np.int64(table.size - 1)
            while low < high:
                middle = (low + high) // 2
                if table[np.uint64(middle)] < key:
                    low = middle + 1
                else:
                    high = middle
            place = low
        codes[np.uint64(k)] = place
