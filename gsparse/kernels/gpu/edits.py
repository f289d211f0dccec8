"""Finding, inserting and writing single entries, and dense arrays (kernels: `src/sparse_edits.cu`).

The contract is in `gsparse.kernels.algebra`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.launch import FLOATS, ITEM_TYPES, Source, constant, expression, launch_blocks, tally
from gsparse.kernels.gpu.sparse_rows import as_items, row_numbers

_SOURCE = Source("sparse_edits.cu", 256)
# The count of elements without an entry is increased by this number for each element with several entries.
_SEVERAL = constant(_SOURCE.file, "GS_SEVERAL")
# Numbers of lanes that share the columns of an entry; _COLUMNS holds the largest number of columns for each. A whole
# warp shares more columns.
_WIDTHS, _COLUMNS = (1, 4), (2, 16)
# Numbers of lanes that share a row in a product with one column; _LENGTHS holds the largest mean row length for each.
_LANES, _LENGTHS = (4, 8), (6, 24)


def find_entries(device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> tuple[Array, int, bool]:
    """Return the position of each element. A thread searches a sorted row, and a warp an unsorted one. Synchronizes."""
    count, positions = int(rows.size), device.empty(rows.size, np.int64)
    if not count:
        return positions, 0, False
    threads = count * (1 if is_sorted else device.lanes)
    counts = tally(device, -(-threads // _SOURCE.threads))
    args = (np.int64(count), rows, columns, np.int32(is_sorted), csr.indptr, csr.indices, positions, *counts)
    _SOURCE.launch(device, "find_entries", (csr.indptr.dtype,), threads, args)
    (total,) = device.counts.read()  # synchronizes
    num_several, num_missing = divmod(total, _SEVERAL)
    return positions, num_missing, num_several > 0


def sample_entries(device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> Array:
    """Return the values of the elements, found as in `find_entries`."""
    count, index, values = int(rows.size), csr.indptr.dtype, device.empty(rows.size, csr.dtype)
    source = (np.int64(count), rows, columns, csr.indptr, csr.indices)
    if is_sorted:
        items = as_items(values)
        _SOURCE.launch(device, "sample_sorted", (items.dtype, index), count, (*source, as_items(csr.data), items))
    else:
        _SOURCE.launch(device, "sample_entries", (csr.dtype, index), count * device.lanes, (*source, csr.data, values))
    return values


def sample_entry(device: Device, csr: Csr, row: int, column: int) -> Any:
    """Return one element. A thread finds the element, and writes its value to host memory. Synchronizes."""
    items = as_items(csr.data)
    place = (np.int64(row), np.int64(column))
    args = (*place, csr.indptr, csr.indices, items, device.counts.array_of(items.dtype))
    launch_blocks(device, _SOURCE.file, expression("sample_entry", items.dtype, csr.indptr.dtype), 1, 1, args)
    return device.counts.read_value(csr.dtype)  # synchronizes


def put_values(device: Device, data: Array, positions: Array, values: Array) -> None:
    """Write the values, with one thread per position."""
    items = as_items(data)
    args = (np.int64(positions.size), np.int32(values.size == 1), positions, as_items(values), items)
    _SOURCE.launch(device, "put_values", (items.dtype,), int(positions.size), args)


def insert_entries(device: Device, csr: Csr, rows: Array, columns: Array, values: Array, is_sorted: bool) -> Csr:
    """Find the positions of the new entries, then copy old and new entries to new arrays."""
    count, nnz = int(rows.size), csr.nnz
    if nnz + count > MAX_INT32:
        csr = csr.with_index_dtype(np.int64)
    index, places = csr.indptr.dtype, device.empty(count, np.int64)
    args: Any = (np.int64(count), rows, columns, np.int32(is_sorted), csr.indptr, csr.indices, places)
    _SOURCE.launch(device, "insertion_places", (index,), count, args)
    indptr, indices = device.empty(csr.num_rows + 1, index), device.empty(nnz + count, index)
    result = Csr(csr.shape, indptr, indices, device.empty(nnz + count, csr.dtype), csr.is_canonical and is_sorted)
    items = as_items(csr.data)
    old, new = (csr.indptr, csr.indices, items), (rows, columns, as_items(values), places)
    args = (np.int64(nnz), np.int64(csr.num_rows), np.int64(count), *old, *new, indptr, indices, as_items(result.data))
    _SOURCE.launch(device, "insert_entries", (items.dtype, index), max(nnz, count, csr.num_rows + 1), args)
    return result


def add_entries(device: Device, csr: Csr, dense: Array) -> None:
    """Add each entry to its element, with one thread per entry, or one per row if A may have duplicate entries."""
    data, types = _as_numbers(csr.data), (_as_numbers(dense).dtype, csr.indptr.dtype)
    sizes, arrays = (np.int64(csr.num_cols), np.int32(csr.dtype == np.bool_)), (csr.indices, data, _as_numbers(dense))
    if csr.is_canonical:
        rows = row_numbers(device, csr.indptr, csr.nnz)
        _SOURCE.launch(device, "add_entries", types, csr.nnz, (np.int64(csr.nnz), *sizes, rows, *arrays))
    else:
        _SOURCE.launch(device, "add_rows", types, csr.num_rows, (np.int64(csr.num_rows), *sizes, csr.indptr, *arrays))


def _as_numbers(data: Array) -> Array:
    """Return floating-point and complex numbers unchanged, and other values as integers of the same size."""
    return data if data.dtype.kind in "fc" else as_items(data)


def take_elements(device: Device, csr: Csr, dense: Array) -> Array:
    """Return the elements of `dense` at A's entries, read by one thread each. `dense` may have any strides."""
    rows, elements = row_numbers(device, csr.indptr, csr.nnz), device.empty(csr.nnz, dense.dtype)
    strides = (np.int64(stride // dense.dtype.itemsize) for stride in dense.strides)
    items = as_items(elements)
    args = (np.int64(csr.nnz), *strides, rows, csr.indices, dense.view(items.dtype), items)
    _SOURCE.launch(device, "take_elements", (items.dtype, csr.indptr.dtype), csr.nnz, args)
    return elements


# -------------------------------------------------------------------------------------------------------- gradients


def _choose(amount: float, limits: tuple[int, ...], widths: tuple[int, ...]) -> int:
    """Return ``widths[i]`` for the first limit i that `amount` does not exceed; the last width if it exceeds all."""
    return widths[sum(amount > limit for limit in limits)]


def dot_rows(device: Device, rows: Array, columns: Array, left: Array, right: Array) -> Array:
    """Return the inner products, each computed by a group of lanes."""
    dots, width = device.empty(rows.size, left.dtype), left.shape[1]
    lanes = _choose(width, _COLUMNS, (*_WIDTHS, device.lanes))
    args = (np.int64(rows.size), np.int64(width), rows, columns, left, right, dots)
    _SOURCE.launch(device, "dot_rows", (left.dtype, rows.dtype, lanes), rows.size * lanes, args)
    return dots


def product_gradients(device: Device, transposed: Csr, values: Array, gradient: Array, x: Array) -> tuple[Array, Array]:
    """Return both gradients. A few lanes, or a warp if X has several columns, compute a row of the transpose."""
    width, num_rows, index = x.shape[1], transposed.num_rows, transposed.indptr.dtype
    of_x, of_values = device.empty(x.shape, x.dtype), device.empty(values.size, x.dtype)
    matrix = (transposed.indptr, transposed.indices, transposed.data, values)
    arrays = (gradient, x, of_x, of_values)
    if width == 1:
        lanes = _choose(transposed.nnz / max(num_rows, 1), _LENGTHS, (*_LANES, device.lanes))
        args: Any = (np.int64(num_rows), *matrix, *arrays)
        _SOURCE.launch(device, "vector_gradients", (x.dtype, index, lanes), num_rows * lanes, args)
        return of_x, of_values
    if not width:
        device.fill_bytes(of_values, 0)
    lanes = _choose(width, _COLUMNS[1:], (*_WIDTHS[1:], device.lanes))
    args = (np.int64(num_rows), np.int64(width), *matrix, *arrays)
    _SOURCE.launch(device, "columns_gradients", (x.dtype, index, lanes), num_rows * device.lanes, args)
    return of_x, of_values


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    items, numbers = ITEM_TYPES.values(), {*COMPUTE_DTYPES, *(item for size, item in ITEM_TYPES.items() if size < 8)}
    return [
        *_SOURCE.variants("put_values", items),
        *_SOURCE.variants("find_entries insertion_places", INDEX_DTYPES),
        *_SOURCE.variants("sample_entries", COMPUTE_DTYPES, INDEX_DTYPES),
        *_SOURCE.variants("add_entries add_rows", sorted(numbers, key=str), INDEX_DTYPES),
        *_SOURCE.variants("dot_rows", FLOATS, INDEX_DTYPES, (*_WIDTHS, lanes)),
        *_SOURCE.variants("vector_gradients", FLOATS, INDEX_DTYPES, (*_LANES, lanes)),
        *_SOURCE.variants("columns_gradients", FLOATS, INDEX_DTYPES, (*_WIDTHS[1:], lanes)),
        *_SOURCE.variants("sample_sorted sample_entry insert_entries take_elements", items, INDEX_DTYPES),
    ]
