"""Set-up of row patterns: a hash of each row, and whether each row equals the representative of its pattern.

The contract is in `gsparse.kernels.set_up`. A part that hashes owns consecutive rows, about the same number of
entries plus rows for each part (`first_row`). A part that compares owns consecutive blocks of rows, the same number for
each part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.rows import first_row

# Odd numbers whose bits look random: 2**64 over the golden ratio, and a multiplier of SplitMix64.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)

# Rows of a block of `rows_follow`. A part returns at the first row that does not follow its pattern.
_BLOCK_ROWS = 4096


class Rows(NamedTuple):
    """Row pointers, columns, and the bits of the values (`_words`), or None if values are not compared."""

    indptr: Array
    indices: Array
    words: Array | None


def row_keys(device: Device, csr: Csr, values: bool) -> Array:
    """Hash the offsets of each row, and its values if `values` is true."""
    keys = np.empty(csr.num_rows, np.uint64)
    words = _words(csr.data) if values else None
    run_parts(_hash_rows, csr.nnz + csr.num_rows, csr.indptr, csr.indices, words, keys)
    return keys


def rows_follow(
    device: Device, csr: Csr, codes: Array, representatives: Array, values: bool
) -> npt.NDArray[np.int32] | None:
    """Compare each row with the representative of its pattern, entry by entry."""
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
    """Copy the offsets of the representative rows, and their values if `values` is true."""
    lengths = np.diff(indptr)
    begins = csr.indptr[representatives].astype(np.int64) - indptr[:-1]
    entries = np.repeat(begins, lengths) + np.arange(num_entries)
    offsets = (csr.indices[entries].astype(np.int64) - np.repeat(representatives, lengths)).astype(np.int32)
    return offsets, csr.data[entries] if values else None


def _words(data: Array) -> Array:
    """Return the bits of each value: one integer in each row of the result, or two for complex128."""
    return data.view(f"u{min(data.itemsize, 8)}").reshape(data.size, max(data.itemsize // 8, 1))


@inlined
def _mix(key: Any, word: Any) -> Any:
    # The shift moves the high bits down, and the next product spreads them over all bits again.
    key = (key ^ word) * _MULTIPLIER
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
