"""Encodings in fewer bytes (contract: `gsparse.kernels.set_up`; kernels: `src/setup_entries.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats import Columns, Csr
from gsparse.kernels.gpu.expressions import NARROW, constant, expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.layout import THREADS

# Neighbouring threads have neighbouring rows of a row pattern, whatever the patterns of these rows are.
SHARES_RUNS = False

# The types that columns in the order of CSR may be encoded in, and whether looking a value up in a table is faster than
# reading it in half the precision.
CSR_CODES = (np.dtype(np.uint16),)
LOOKS_UP = True

SOURCE = "setup_entries.cu"
# The largest number of blocks of kernels that report to one word: enough to fill any GPU, few enough that their atomics
# do not queue.
_MAX_BLOCKS = 1056
# Slots of the hash table of distinct keys, with one for the key 0, and the number of keys that the first download
# brings to the host.
_SLOTS, _FIRST_KEYS = constant(SOURCE, "GS_SLOTS") + 1, 256


def _blocks(threads: int) -> int:
    return min(-(-threads // THREADS), _MAX_BLOCKS)


def run_span(device: Device, columns: Array, num_cols: int) -> int:
    """Find the largest distance between two columns of one run. Synchronizes."""
    span = device.xp.zeros(1, np.uint64)
    args = (np.int64(columns.size), columns, span)
    launch_blocks(device, SOURCE, expression("run_span", columns.dtype), _blocks(columns.size), THREADS, args)
    return int(device.download(span)[0])  # synchronizes


def encode_columns(device: Device, columns: Array, dtype: Any) -> Columns:
    """Return the base of each run, and the distance of each column from it."""
    dtype = np.dtype(dtype)
    codes = device.empty(columns.size, dtype)
    bases = device.empty(-(-columns.size // device.lanes), np.int32)
    name = expression("encode_columns", columns.dtype, dtype)
    launch_threads(device, SOURCE, name, columns.size, THREADS, (np.int64(columns.size), columns, bases, codes))
    return Columns(codes, bases)


def distinct_keys(device: Device, keys: Array, limit: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None:
    """Collect the distinct keys in a hash table. Synchronizes."""
    # The hash table, the number of keys in it, and the list of (key, position).
    memory = device.xp.zeros(_SLOTS + 1 + 2 * limit, np.uint64)
    args = (np.int64(keys.size), keys, np.int32(limit), memory, memory[_SLOTS:], memory[_SLOTS + 1 :])
    launch_blocks(device, SOURCE, expression("collect_keys", keys.dtype), _blocks(keys.size), THREADS, args)
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
    """Look up each key in a sorted table."""
    codes = device.empty(keys.size, dtype)
    name = expression("encode_keys", keys.dtype, np.dtype(dtype))
    args = (np.int64(keys.size), keys, np.int32(table.size), table, codes)
    launch_threads(device, SOURCE, name, keys.size, THREADS, args)
    return codes


def survives_halving(device: Device, data: Array) -> bool:
    """Test all values, and stop at the first that changes. Synchronizes."""
    differs, words = device.xp.zeros(1, np.int32), data.view(np.int64)
    args = (np.int64(words.size), words, differs)
    launch_blocks(device, SOURCE, expression("survive", words.dtype), _blocks(words.size), THREADS, args)
    return not device.download(differs)[0]  # synchronizes


def _words(csr: Csr, values: bool) -> tuple[np.int32, Array | None, np.dtype[Any]]:
    """View the values of a matrix as words: return the number of words in a value, the words and their type."""
    size = csr.data.dtype.itemsize
    word = np.dtype(np.int32) if size == 4 else np.dtype(np.int64)
    if not values:
        return np.int32(0), None, word
    return np.int32(size // word.itemsize), csr.data.view(word), word


def row_keys(device: Device, csr: Csr, values: bool) -> Array:
    """Hash the offsets of each row, and its values if `values` is true."""
    keys = device.empty(csr.num_rows, np.uint64)
    words, data, word = _words(csr, values)
    name = expression("row_keys", csr.indptr.dtype, word)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, words, data, keys)
    launch_threads(device, SOURCE, name, csr.num_rows, THREADS, args)
    return keys


def rows_follow(
    device: Device, csr: Csr, codes: Array, representatives: Array, values: bool
) -> npt.NDArray[np.int32] | None:
    """Compare each row with its representative. Synchronizes."""
    result = device.xp.zeros(1 + representatives.size, np.int32)
    words, data, word = _words(csr, values)
    name = expression("rows_follow", csr.indptr.dtype, word, codes.dtype)
    rows = (np.int64(csr.num_rows), csr.indptr, csr.indices, words, data, codes)
    args = (*rows, np.int32(representatives.size), representatives, result)
    launch_threads(device, SOURCE, name, csr.num_rows, THREADS, args)
    differs, lengths = np.split(device.download(result), [1])  # synchronizes
    return None if differs[0] else lengths


def gather_rows(
    device: Device, csr: Csr, representatives: Array, indptr: Array, num_entries: int, values: bool
) -> tuple[Array, Array | None]:
    """Copy the offsets of some rows, and their values if `values` is true."""
    offsets = device.empty(num_entries, np.int32)
    gathered = device.empty(num_entries, csr.data.dtype) if values else None
    words, data, word = _words(csr, values)
    name = expression("gather_rows", csr.indptr.dtype, word)
    rows = (np.int32(representatives.size), representatives, indptr, csr.indptr, csr.indices, words, data)
    args = (*rows, offsets, None if gathered is None else gathered.view(word))
    launch_threads(device, SOURCE, name, representatives.size * device.lanes, THREADS, args)
    return offsets, gathered


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    names = [expression("survive", np.dtype(np.int64))]
    for index in INDEX_DTYPES:
        names.append(expression("run_span", index))
        names += [expression("encode_columns", index, code) for code in NARROW]
        for word in map(np.dtype, (np.int32, np.int64)):
            names += [expression(name, index, word) for name in ("row_keys", "gather_rows")]
            names += [expression("rows_follow", index, word, code) for code in NARROW]
    for key in map(np.dtype, (np.uint32, np.uint64)):
        names += [expression("collect_keys", key), *(expression("encode_keys", key, code) for code in NARROW)]
    return [(SOURCE, name) for name in names]
