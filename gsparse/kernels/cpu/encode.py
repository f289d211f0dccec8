"""Set-up of encodings: columns as distances from a base, values as places in a table.

The contract is in `gsparse.kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.formats import Columns
from gsparse.kernels import MAX_MISSING
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN
from gsparse.threads import run_parts

__all__ = ["encode_columns", "encode_keys", "run_span"]

# Runs whose greatest span is noted together, and blocks of keys that report what they miss, up to _BLOCK_MISSING each:
# fixed numbers, so that nothing depends on the threads.
_SPAN_RUNS = 1024
_KEY_BLOCKS = 64
_BLOCK_MISSING = MAX_MISSING // _KEY_BLOCKS


def run_span(device: object, columns: Array, num_cols: int) -> int:
    """Measure the widest run of positions."""
    spans = np.zeros(-(-columns.size // (_SPAN_RUNS * RUN)), np.int64)
    run_parts(_measure_spans, columns.size, columns, spans)
    return int(spans.max(initial=0))


def encode_columns(device: object, columns: Array, dtype: Any) -> Columns:
    """Write columns as distances from the least one of their run."""
    codes, bases = np.empty(columns.size, dtype), np.empty(-(-columns.size // RUN), np.int32)
    run_parts(_encode_runs, columns.size, columns, codes, bases)
    return Columns(codes, bases)


def encode_keys(device: object, keys: Array, table: Array, dtype: Any) -> tuple[Array, Array]:
    """Look each key up in the table; distinct keys that are not there are reported."""
    codes = np.empty(keys.size, dtype)
    missing, counts = np.empty((_KEY_BLOCKS, _BLOCK_MISSING), keys.dtype), np.zeros(_KEY_BLOCKS, np.int64)
    run_parts(_encode_blocks, keys.size, keys, table, codes, missing, counts)
    return codes, np.unique(np.concatenate([missing[i, :count] for i, count in enumerate(counts)]))


@inlined
def _bounds(columns: Array, run: int) -> tuple[Any, Any]:
    """Give the least and the greatest column of a run, padding aside; 0, 0 where all is padding."""
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


@inlined
def _place(table: Array, key: Any) -> Any:
    """Find the first place in the table whose key is not less; the table's size where all are less."""
    low, high = np.int64(0), np.int64(table.size)
    while low < high:
        middle = (low + high) // 2
        if table[np.uint64(middle)] < key:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _report(missing: Array, count: int, key: Any) -> int:
    """Add a key to those that a block misses, unless it is among them already."""
    for i in range(count):
        if missing[i] == key:
            return count
    missing[count] = key
    return count + 1


@compiled
def _encode_blocks(
    part: int, num_parts: int, keys: Array, table: Array, codes: Array, missing: Array, counts: Array
) -> None:
    for block in range(part * counts.size // num_parts, (part + 1) * counts.size // num_parts):
        place, count = np.int64(0), 0
        for k in range(block * keys.size // counts.size, (block + 1) * keys.size // counts.size):
            key = keys[np.uint64(k)]
            # Neighbours are often equal.
            if place >= table.size or table[np.uint64(place)] != key:
                place = _place(table, key)
                if place >= table.size or table[np.uint64(place)] != key:
                    count = _report(missing[block], count, key)
                    if count == missing.shape[1]:
                        break
                    continue
            codes[np.uint64(k)] = place
        counts[block] = count
