"""Single entries of a sparse matrix: found, inserted, put into dense arrays (kernels: `src/sparse_edits.cu`).

The contract is in `gsparse.kernels.algebra`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.expressions import ITEM_TYPES, constant, expression
from gsparse.kernels.gpu.launch import TILE_THREADS, launch_blocks, launch_threads, tally
from gsparse.kernels.gpu.sparse_rows import row_numbers

_SOURCE = "sparse_edits.cu"
_THREADS = 256
# What a place with several entries adds to the count of places without one.
_SEVERAL = constant(_SOURCE, "GS_SEVERAL")


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    names = [expression("put_values", item) for item in ITEM_TYPES.values()]
    for index in INDEX_DTYPES:
        names += [expression(name, index) for name in ("find_entries", "insertion_places", "missing_entries")]
        names += [expression("sample_entries", dtype, index) for dtype in COMPUTE_DTYPES]
        numbers = {*COMPUTE_DTYPES, *(item for size, item in ITEM_TYPES.items() if size < 8)}
        adding = ("add_entries", "add_rows")
        names += [expression(name, dtype, index) for name in adding for dtype in sorted(numbers, key=str)]
        moving = ("sample_sorted", "sample_entry", "insert_entries", "take_elements")
        names += [expression(name, item, index) for name in moving for item in ITEM_TYPES.values()]
    return [(_SOURCE, name) for name in names]


def _as_items(data: Array) -> Array:
    item = ITEM_TYPES[data.dtype.itemsize]
    return data if data.dtype == item else data.view(item)


def _launch(device: Device, name: str, types: tuple[Any, ...], threads: int, args: Any) -> None:
    launch_threads(device, _SOURCE, expression(name, *types), threads, _THREADS, args)


def find_entries(device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> tuple[Array, int, bool]:
    """Search with a thread for each sample, or with a warp if rows are not sorted. Synchronizes."""
    count, positions = int(rows.size), device.empty(rows.size, np.int64)
    if not count:
        return positions, 0, False
    threads = count * (1 if is_sorted else device.lanes)
    counts = tally(device, -(-threads // TILE_THREADS))
    args = (np.int64(count), rows, columns, np.int32(is_sorted), csr.indptr, csr.indices, positions, *counts)
    launch_threads(device, _SOURCE, expression("find_entries", csr.indptr.dtype), threads, TILE_THREADS, args)
    (total,) = device.counts.read()  # synchronizes
    num_several, num_missing = divmod(total, _SEVERAL)
    return positions, num_missing, num_several > 0


def sample_entries(device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> Array:
    """Search as `find_entries` does."""
    count, index, values = int(rows.size), csr.indptr.dtype, device.empty(rows.size, csr.dtype)
    source = (np.int64(count), rows, columns, csr.indptr, csr.indices)
    if is_sorted:
        items = _as_items(values)
        _launch(device, "sample_sorted", (items.dtype, index), count, (*source, _as_items(csr.data), items))
    else:
        _launch(device, "sample_entries", (csr.dtype, index), count * device.lanes, (*source, csr.data, values))
    return values


def sample_entry(device: Device, csr: Csr, row: int, column: int) -> Any:
    """Let a thread search, which writes the value to memory of the host. Synchronizes."""
    items = _as_items(csr.data)
    place = (np.int64(row), np.int64(column))
    args = (*place, csr.indptr, csr.indices, items, device.counts.array_of(items.dtype))
    launch_blocks(device, _SOURCE, expression("sample_entry", items.dtype, csr.indptr.dtype), 1, 1, args)
    return device.counts.read_value(csr.dtype)  # synchronizes


def put_values(device: Device, data: Array, positions: Array, values: Array) -> None:
    """Write with a thread for each position."""
    items = _as_items(data)
    args = (np.int64(positions.size), np.int32(values.size == 1), positions, _as_items(values), items)
    _launch(device, "put_values", (items.dtype,), int(positions.size), args)


def insert_entries(device: Device, csr: Csr, rows: Array, columns: Array, values: Array, is_sorted: bool) -> Csr:
    """Find the places of the new entries, then move old and new entries."""
    count, nnz = int(rows.size), csr.nnz
    if nnz + count > MAX_INT32:
        csr = csr.with_index_dtype(np.int64)
    index, places = csr.indptr.dtype, device.empty(count, np.int64)
    args: Any = (np.int64(count), rows, columns, np.int32(is_sorted), csr.indptr, csr.indices, places)
    _launch(device, "insertion_places", (index,), count, args)
    indptr, indices = device.empty(csr.num_rows + 1, index), device.empty(nnz + count, index)
    result = Csr(csr.shape, indptr, indices, device.empty(nnz + count, csr.dtype), csr.is_canonical and is_sorted)
    items = _as_items(csr.data)
    old, new = (csr.indptr, csr.indices, items), (rows, columns, _as_items(values), places)
    args = (np.int64(nnz), np.int64(csr.num_rows), np.int64(count), *old, *new, indptr, indices, _as_items(result.data))
    _launch(device, "insert_entries", (items.dtype, index), max(nnz, count, csr.num_rows + 1), args)
    return result


def missing_entries(device: Device, csr: Csr) -> Csr:
    """Compute the row and the column of each missing entry from its number."""
    count = csr.num_rows * csr.num_cols - csr.nnz
    if count > MAX_INT32:
        csr = csr.with_index_dtype(np.int64)
    index = csr.indptr.dtype
    indptr, indices = device.empty(csr.num_rows + 1, index), device.empty(count, index)
    sizes = (np.int64(count), np.int64(csr.num_rows), np.int64(csr.num_cols))
    args = (*sizes, csr.indptr, csr.indices, indptr, indices)
    _launch(device, "missing_entries", (index,), max(count, csr.num_rows + 1), args)
    return Csr(csr.shape, indptr, indices, device.xp.ones(count, np.bool_), is_canonical=True)


def add_entries(device: Device, csr: Csr, dense: Array) -> None:
    """Add with a thread for each entry, or with a thread for each row if places may have several entries."""
    data, types = _as_numbers(csr.data), (_as_numbers(dense).dtype, csr.indptr.dtype)
    sizes, arrays = (np.int64(csr.num_cols), np.int32(csr.dtype == np.bool_)), (csr.indices, data, _as_numbers(dense))
    if csr.is_canonical:
        rows = row_numbers(device, csr.indptr, csr.nnz)
        _launch(device, "add_entries", types, csr.nnz, (np.int64(csr.nnz), *sizes, rows, *arrays))
    else:
        _launch(device, "add_rows", types, csr.num_rows, (np.int64(csr.num_rows), *sizes, csr.indptr, *arrays))


def _as_numbers(data: Array) -> Array:
    """Return floating-point and complex numbers as they are, and others as integers of their size."""
    return data if data.dtype.kind in "fc" else _as_items(data)


def take_elements(device: Device, csr: Csr, dense: Array) -> Array:
    """Read with a thread for each entry, whatever the strides of the array."""
    rows, elements = row_numbers(device, csr.indptr, csr.nnz), device.empty(csr.nnz, dense.dtype)
    strides = (np.int64(stride // dense.dtype.itemsize) for stride in dense.strides)
    items = _as_items(elements)
    args = (np.int64(csr.nnz), *strides, rows, csr.indices, dense.view(items.dtype), items)
    _launch(device, "take_elements", (items.dtype, csr.indptr.dtype), csr.nnz, args)
    return elements
