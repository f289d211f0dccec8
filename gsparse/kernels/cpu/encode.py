"""Encodings: columns as distances from a base, values as positions in a table, and rows as patterns.

The contract is in `gsparse.kernels.set_up`. Each part of a loop owns consecutive items, which are runs, blocks of runs,
keys, blocks of keys, or blocks of rows. All parts have the same number of items. But in the loop that hashes rows, all
parts have about the same number of entries plus rows (`first_row`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Columns, Csr
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.entries import RUN
from gsparse.kernels.cpu.rows import first_row, lower_bound

# No encoding is used in CSR order: on one thread, narrow columns make products 10 to 25 % slower, and reading values
# through a table takes longer than reading float32 values (7-point 100**3, 27-point 64**3).
CSR_CODES: tuple[np.dtype[Any], ...] = ()
LOOKS_UP = False
# Consecutive rows of one pattern are multiplied together.
SHARES_RUNS = True

# Number of runs in a block. `run_span` measures the largest span of each block's runs.
_SPAN_RUNS = 1024
# Maximum number of blocks of keys. The distinct keys of each block are collected separately. The number of blocks does
# not depend on the number of threads, and so the results do not depend on that number.
_KEY_BLOCKS = 64
# Number of slots of the hash table in which the distinct keys of a block are collected.
_SLOTS = 8192

# Odd numbers with pseudorandom bits: 2**64 divided by the golden ratio, and a multiplier of SplitMix64.
_ROW_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)

# Number of rows of a block in `rows_follow`. A thread stops in a block at the first row that differs from its pattern.
_BLOCK_ROWS = 4096


def run_span(device: Device, columns: Array, num_cols: int) -> int:
    """Return the largest span of a run."""
    spans = np.zeros(-(-columns.size // (_SPAN_RUNS * RUN)), np.int64)
    run_parts(_measure_spans, columns.size, columns, spans)
    return int(spans.max(initial=0))


def encode_columns(device: Device, columns: Array, dtype: Any) -> Columns:
    """Encode each column as its distance from the smallest column of its run."""
    codes, bases = np.empty(columns.size, dtype), np.empty(-(-columns.size // RUN), np.int32)
    run_parts(_encode_runs, columns.size, columns, codes, bases)
    return Columns(codes, bases)


def distinct_keys(device: Device, keys: Array, limit: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
    """Find the distinct keys of each block, and then the distinct keys among all blocks' distinct keys."""
    # Use few blocks for few keys. Otherwise, each block would have fewer keys than the limit, and only the second
    # search would notice that the number of distinct keys is too large.
    places = _find_distinct(keys, limit, min(max(keys.size // (4 * limit), 1), _KEY_BLOCKS))
    among = None if places is None else _find_distinct(keys[places], limit, 1)
    if places is None or among is None:
        return None
    places = places[among]
    table = keys[places]
    order = np.argsort(table)
    return table[order], places[order]


def encode_keys(device: Device, keys: Array, table: Array, dtype: Any) -> Array:
    """Return the position of each key in the table."""
    codes = np.empty(keys.size, dtype)
    run_parts(_encode_keys, keys.size, keys, table, codes)
    return codes


def survives_halving(device: Device, data: Array) -> bool:
    """Return whether float64 or complex128 values are the same in single precision. Test a sample of them first."""
    values = data.view(np.float64)
    for part in (values[:: max(1, values.size // 1024)], values):
        with np.errstate(over="ignore", invalid="ignore"):  # 1e300, for instance, overflows in float32.
            back = part.astype(np.float32).astype(np.float64)
        if not np.array_equal(np.ascontiguousarray(part).view(np.uint64), back.view(np.uint64)):
            return False
    return True


@inlined
def _bounds(columns: Array, run: int) -> tuple[Any, Any]:
    """Return the smallest and the largest column of a run without its padding; 0, 0 if the run has only padding."""
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
            # -1 becomes the largest number of an unsigned dtype, which is the padding code.
            codes[np.uint64(k)] = column - low if column >= 0 else -1


def _find_distinct(keys: Array, limit: int, num_blocks: int) -> npt.NDArray[np.int64] | None:
    """Return the first position of each distinct key of each block; None if a block has more than `limit` such keys."""
    listed, counts = np.empty((num_blocks, limit), np.int64), np.zeros(num_blocks, np.int64)
    run_parts(_collect_blocks, keys.size, keys, listed, counts)
    if counts.max() > limit:
        return None
    return np.concatenate([block[:count] for block, count in zip(listed, counts, strict=True)])


@partial(compiled, allocates=True)
def _collect_blocks(part: int, num_parts: int, keys: Array, listed: Array, counts: Array) -> None:
    """List the positions of each block's distinct keys, and count them. The count of too many is ``limit + 1``."""
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
            slot = ((np.uint64(key) ^ (np.uint64(key) >> np.uint64(32))) * _ROW_MULTIPLIER) >> np.uint64(64 - 13)
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
            place = lower_bound(table, np.int64(0), np.int64(table.size - 1), key)
        codes[np.uint64(k)] = place


class Rows(NamedTuple):
    """Row pointers, columns, and the bits of the values (`_words`). `words` is None if values are not compared."""

    indptr: Array
    indices: Array
    words: Array | None


def row_keys(device: Device, csr: Csr, values: bool) -> Array:
    """Return a hash of each row's offsets and, if `values`, its values."""
    keys = np.empty(csr.num_rows, np.uint64)
    words = _words(csr.data) if values else None
    run_parts(_hash_rows, csr.nnz + csr.num_rows, csr.indptr, csr.indices, words, keys)
    return keys


def rows_follow(
    device: Device, csr: Csr, codes: Array, representatives: Array, values: bool
) -> npt.NDArray[np.int32] | None:
    """Compare each row with its representative. Return the representatives' lengths, or None if a row differs."""
    followed = np.ones(-(-csr.num_rows // _BLOCK_ROWS), np.bool_)
    words = _words(csr.data) if values else None
    rows = (csr.indptr, csr.indices, words)
    run_parts(_compare_blocks, csr.nnz + csr.num_rows, rows, codes, representatives, followed)
    if not followed.all():
        return None
    lengths: npt.NDArray[np.int32] = (csr.indptr[representatives + 1] - csr.indptr[representatives]).astype(np.int32)
    return lengths


def gather_rows(
    device: Device, csr: Csr, representatives: Array, indptr: Array, num_entries: int, values: bool
) -> tuple[Array, Array | None]:
    """Return the representative rows' offsets and, if `values` is True, their values, else None."""
    lengths = np.diff(indptr)
    begins = csr.indptr[representatives].astype(np.int64) - indptr[:-1]
    entries = np.repeat(begins, lengths) + np.arange(num_entries)
    offsets = (csr.indices[entries].astype(np.int64) - np.repeat(representatives, lengths)).astype(np.int32)
    return offsets, csr.data[entries] if values else None


def _words(data: Array) -> Array:
    """Return the bits of the values as unsigned integers, in one row per value. A complex128 takes two integers."""
    return data.view(f"u{min(data.itemsize, 8)}").reshape(data.size, max(data.itemsize // 8, 1))


@inlined
def _mix(key: Any, word: Any) -> Any:
    # The shift moves the high bits down, and the next product spreads them over all bits again.
    key = (key ^ word) * _ROW_MULTIPLIER
    return (key ^ (key >> np.uint64(29))) * _MIXER


@compiled
def _hash_rows(part: int, num_parts: int, indptr: Array, indices: Array, words: Array | None, keys: Array) -> None:
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        begin, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
        key = _mix(np.uint64(0), np.uint64(end - begin))
        for k in range(begin, end):
            key = _mix(key, np.uint64(np.int64(indices[np.uint64(k)]) - row))
            if words is not None:
                for i in range(words.shape[1]):
                    key = _mix(key, np.uint64(words[np.uint64(k), np.uint64(i)]))
        keys[np.uint64(row)] = key ^ (key >> np.uint64(32))


@inlined
def _follows(row: Any, model: Any, indptr: Array, indices: Array, words: Array | None) -> bool:
    begin, other = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(model)])
    length = np.int64(indptr[np.uint64(row + 1)]) - begin
    if np.int64(indptr[np.uint64(model + 1)]) - other != length:
        return False
    same = True
    for j in range(length):
        column, expected = np.int64(indices[np.uint64(begin + j)]), np.int64(indices[np.uint64(other + j)])
        same &= column - row == expected - model
        if words is not None:
            for i in range(words.shape[1]):
                same &= words[np.uint64(begin + j), np.uint64(i)] == words[np.uint64(other + j), np.uint64(i)]
    return same


@compiled
def _compare_blocks(
    part: int, num_parts: int, rows: Rows, codes: Array, representatives: Array, followed: Array
) -> None:
    indptr, indices, words = rows
    num_rows = indptr.size - 1
    for block in range(part * followed.size // num_parts, (part + 1) * followed.size // num_parts):
        for row in range(block * _BLOCK_ROWS, min((block + 1) * _BLOCK_ROWS, num_rows)):
            model = np.int64(representatives[np.uint64(codes[np.uint64(row)])])
            if not _follows(np.int64(row), model, indptr, indices, words):
                followed[block] = False
                return
