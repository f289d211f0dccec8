"""Conversions of CSR to the padded formats; the contract is in `gsparse.kernels`.

Both count the width of each slice, scan, and fill; ELLPACK is the one slice of all rows.
"""

from __future__ import annotations

import numpy as np

from gsparse._typing import Array
from gsparse.errors import FormatError
from gsparse.formats import BlockedEllpack, Csr, Ellpack
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.rows import Int, first_row
from gsparse.threads import run_parts

__all__ = ["csr_to_blocked_ellpack", "csr_to_ellpack"]

# ELLPACK rows filled at a time: enough that each column is written in whole cache lines, few enough that the rows read
# stay in the cache from one column to the next.
_FILL_ROWS = 64


def csr_to_ellpack(device: object, csr: Csr, width: int) -> Ellpack:
    """Pad every row to `width`, the length of the longest row."""
    longest = int(np.diff(csr.indptr).max(initial=0))
    if longest > width:
        raise FormatError(f"width must be that of the longest row, {longest}, got {width}: pass {longest}")
    indices = np.empty(width * csr.num_rows, csr.indices.dtype)
    data = np.empty(width * csr.num_rows, csr.data.dtype)
    run_parts(_fill_ellpack, indices.size, width, csr.indptr, csr.indices, csr.data, indices, data)
    return Ellpack(csr.shape, csr.nnz, width, csr.indptr, indices, data)


def csr_to_blocked_ellpack(device: object, csr: Csr, slice_size: int) -> BlockedEllpack:
    """Pad every row to the longest of its slice of `slice_size` rows."""
    num_slices = -(-csr.num_rows // slice_size)
    slice_offsets = np.zeros(num_slices + 1, np.int64)
    run_parts(_measure_slices, csr.num_rows, slice_size, csr.indptr, slice_offsets)
    np.cumsum(slice_offsets, out=slice_offsets)
    indices = np.empty(int(slice_offsets[-1]), csr.indices.dtype)
    data = np.empty(indices.size, csr.data.dtype)
    args = (slice_size, slice_offsets, csr.indptr, csr.indices, csr.data, indices, data)
    run_parts(_fill_blocked_ellpack, indices.size, *args)
    return BlockedEllpack(csr.shape, csr.nnz, slice_size, slice_offsets, csr.indptr, indices, data)


@compiled
def _measure_slices(part: int, num_parts: int, slice_size: int, indptr: Array, stored: Array) -> None:
    """Let ``stored[s + 1]`` be the entries, padding included, of slice s."""
    num_rows, num_slices = indptr.size - 1, stored.size - 1
    for index in range(part * num_slices // num_parts, (part + 1) * num_slices // num_parts):
        width = np.int64(0)
        for row in range(index * slice_size, min((index + 1) * slice_size, num_rows)):
            width = max(width, np.int64(indptr[row + 1]) - np.int64(indptr[row]))
        stored[index + 1] = width * slice_size


@inlined
def _fill_rows(
    first: Int,
    last: Int,
    begin: Int,
    stride: Int,
    width: Int,
    csr_indptr: Array,
    csr_indices: Array,
    csr_data: Array,
    indices: Array,
    data: Array,
) -> None:
    """Store rows `first` to `last` from position `begin` on; rows past the matrix's own are empty."""
    num_rows = csr_indptr.size - 1
    zero = data.dtype.type(0)
    for column in range(width):
        for row in range(first, last):
            source, end = np.int64(0), np.int64(0)
            if row < num_rows:
                source, end = np.int64(csr_indptr[np.uint64(row)]), np.int64(csr_indptr[np.uint64(row + 1)])
            length = end - source
            position = begin + column * stride + row - first
            if column < length:
                indices[np.uint64(position)] = csr_indices[np.uint64(source + column)]
                data[np.uint64(position)] = csr_data[np.uint64(source + column)]
            else:
                indices[np.uint64(position)] = csr_indices[np.uint64(end - 1)] if length > 0 else 0
                data[np.uint64(position)] = zero


@compiled
def _fill_ellpack(
    part: int,
    num_parts: int,
    width: int,
    csr_indptr: Array,
    csr_indices: Array,
    csr_data: Array,
    indices: Array,
    data: Array,
) -> None:
    num_rows = csr_indptr.size - 1
    last = (part + 1) * num_rows // num_parts
    for first in range(part * num_rows // num_parts, last, _FILL_ROWS):
        end = min(first + _FILL_ROWS, last)
        _fill_rows(first, end, first, num_rows, width, csr_indptr, csr_indices, csr_data, indices, data)


@compiled
def _fill_blocked_ellpack(
    part: int,
    num_parts: int,
    slice_size: int,
    slice_offsets: Array,
    csr_indptr: Array,
    csr_indices: Array,
    csr_data: Array,
    indices: Array,
    data: Array,
) -> None:
    first, last = first_row(part, num_parts, slice_offsets), first_row(part + 1, num_parts, slice_offsets)
    for index in range(first, last):
        begin = slice_offsets[index]
        width = (slice_offsets[index + 1] - begin) // slice_size
        row = index * slice_size
        _fill_rows(row, row + slice_size, begin, slice_size, width, csr_indptr, csr_indices, csr_data, indices, data)
