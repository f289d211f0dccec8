"""Encodings in fewer bytes (contract: `gsparse.kernels.set_up`; kernels: `src/setup_entries.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats import Columns, Csr
from gsparse.formats.launch import Launch
from gsparse.kernels.gpu.launch import NARROW, Source, constant

# Each thread has a row of its own, so it does not help if rows of the same pattern are adjacent.
SHARES_RUNS = False

# The dtypes to which columns in CSR order may be narrowed. LOOKS_UP says whether codes of values, which are looked up
# in a table, are faster to read than values in half the precision.
CSR_CODES = (np.dtype(np.uint16),)
LOOKS_UP = True

SOURCE = Source("setup_entries.cu", Launch().threads_per_block)
# Maximum number of threads of kernels in which all threads update one word. This is enough to fill any GPU, and few
# enough that atomic operations do not queue.
_MOST_THREADS = 1056 * SOURCE.threads
# Number of slots of the hash table of distinct keys, including a slot for the key 0; and the number of keys that the
# first download brings.
_SLOTS, _FIRST_KEYS = constant(SOURCE.file, "GS_SLOTS") + 1, 256


def run_span(device: Device, columns: Array, num_cols: int) -> int:
    """Return the largest distance between two columns of one run. Synchronizes."""
    span = device.xp.zeros(1, np.uint64)
    args = (np.int64(columns.size), columns, span)
    SOURCE.launch(device, "run_span", (columns.dtype,), min(columns.size, _MOST_THREADS), args)
    return int(device.download(span)[0])  # synchronizes


def encode_columns(device: Device, columns: Array, dtype: Any) -> Columns:
    """Return the base of each run, and the distance of each column from it."""
    dtype = np.dtype(dtype)
    codes = device.empty(columns.size, dtype)
    bases = device.empty(-(-columns.size // device.lanes), np.int32)
    args = (np.int64(columns.size), columns, bases, codes)
    SOURCE.launch(device, "encode_columns", (columns.dtype, dtype), columns.size, args)
    return Columns(codes, bases)


def distinct_keys(device: Device, keys: Array, limit: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
    """Collect the distinct keys in a hash table, and return them. Synchronizes."""
    # The hash table, the number of its keys, and the list of (key, position).
    memory = device.xp.zeros(_SLOTS + 1 + 2 * limit, np.uint64)
    args = (np.int64(keys.size), keys, np.int32(limit), memory, memory[_SLOTS:], memory[_SLOTS + 1 :])
    SOURCE.launch(device, "collect_keys", (keys.dtype,), min(keys.size, _MOST_THREADS), args)
    words = device.download(memory[_SLOTS : _SLOTS + 1 + 2 * min(_FIRST_KEYS, limit)])  # synchronizes
    count = int(words[0])
    if count > limit:
        return None
    if 1 + 2 * count > words.size:
        words = device.download(memory[_SLOTS : _SLOTS + 1 + 2 * count])  # synchronizes
    table, places = words[1 : 1 + 2 * count : 2].astype(keys.dtype), words[2 : 2 + 2 * count : 2].astype(np.int64)
    order = np.argsort(table)
    return table[order], places[order]


def encode_keys(device: Device, keys: Array, table: Array, dtype: Any) -> Array:
    """Return the position of each key in the table."""
    codes = device.empty(keys.size, dtype)
    args = (np.int64(keys.size), keys, np.int32(table.size), table, codes)
    SOURCE.launch(device, "encode_keys", (keys.dtype, codes.dtype), keys.size, args)
    return codes


def survives_halving(device: Device, data: Array) -> bool:
    """Return whether float32 holds all values exactly, and stop at the first value that it does not. Synchronizes."""
    differs, words = device.xp.zeros(1, np.int32), data.view(np.int64)
    args = (np.int64(words.size), words, differs)
    SOURCE.launch(device, "survive", (words.dtype,), min(words.size, _MOST_THREADS), args)
    return not device.download(differs)[0]  # synchronizes


def _words(csr: Csr, values: bool) -> tuple[np.int32, Array | None, np.dtype[Any]]:
    """Return the number of words per value, the values as words, and their dtype; 0 and None without `values`."""
    size = csr.data.dtype.itemsize
    word = np.dtype(np.int32) if size == 4 else np.dtype(np.int64)
    if not values:
        return np.int32(0), None, word
    return np.int32(size // word.itemsize), csr.data.view(word), word


def row_keys(device: Device, csr: Csr, values: bool) -> Array:
    """Return for each row a hash of its offsets and, if `values`, of its values."""
    keys = device.empty(csr.num_rows, np.uint64)
    words, data, word = _words(csr, values)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, words, data, keys)
    SOURCE.launch(device, "row_keys", (csr.indptr.dtype, word), csr.num_rows, args)
    return keys


def rows_follow(
    device: Device, csr: Csr, codes: Array, representatives: Array, values: bool
) -> npt.NDArray[np.int32] | None:
    """Compare rows with their representatives; return the representatives' lengths or None. Synchronizes."""
    result = device.xp.zeros(1 + representatives.size, np.int32)
    words, data, word = _words(csr, values)
    rows = (np.int64(csr.num_rows), csr.indptr, csr.indices, words, data, codes)
    args = (*rows, np.int32(representatives.size), representatives, result)
    SOURCE.launch(device, "rows_follow", (csr.indptr.dtype, word, codes.dtype), csr.num_rows, args)
    differs, lengths = np.split(device.download(result), [1])  # synchronizes
    return None if differs[0] else lengths


def gather_rows(
    device: Device, csr: Csr, representatives: Array, indptr: Array, num_entries: int, values: bool
) -> tuple[Array, Array | None]:
    """Return the offsets of the representative rows and, if `values`, their values."""
    offsets = device.empty(num_entries, np.int32)
    gathered = device.empty(num_entries, csr.data.dtype) if values else None
    words, data, word = _words(csr, values)
    rows = (np.int32(representatives.size), representatives, indptr, csr.indptr, csr.indices, words, data)
    args = (*rows, offsets, None if gathered is None else gathered.view(word))
    SOURCE.launch(device, "gather_rows", (csr.indptr.dtype, word), representatives.size * device.lanes, args)
    return offsets, gathered


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    words, keys = (np.dtype(np.int32), np.dtype(np.int64)), (np.dtype(np.uint32), np.dtype(np.uint64))
    return [
        *SOURCE.variants("survive", words[1:]),
        *SOURCE.variants("run_span", INDEX_DTYPES),
        *SOURCE.variants("encode_columns", INDEX_DTYPES, NARROW),
        *SOURCE.variants("row_keys gather_rows", INDEX_DTYPES, words),
        *SOURCE.variants("rows_follow", INDEX_DTYPES, words, NARROW),
        *SOURCE.variants("collect_keys", keys),
        *SOURCE.variants("encode_keys", keys, NARROW),
    ]
