"""Selecting, copying, scaling and summing entries and rows. The contract is in `gsparse.kernels.algebra`.

All threads get rows with about the same number of entries. If the size of a result is not known in advance, a first
pass counts the entries of each row, and a second pass copies the entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import map_elements, run_parts
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.cpu.compiling import compiled, inlined, specialized
from gsparse.kernels.cpu.instructions import prefetch
from gsparse.kernels.cpu.rows import first_row

# The arrays of a matrix: indptr, indices, data.
Rows = tuple[Array, Array, Array]

# For each number of bytes of a value, the dtype as which values are read if they are only copied.
ITEMS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


# A row is prefetched this number of rows before it is copied.
_AHEAD = 8


def row_numbers(device: Device, indptr: Array, nnz: int) -> Array:
    """Return the row number of each entry."""
    return np.repeat(np.arange(indptr.size - 1, dtype=indptr.dtype), np.diff(indptr))


def keep_entries(device: Device, csr: Csr, keep: Array) -> Csr:
    """Return the entries where `keep` is true. Count the selected entries of each row, then copy them."""
    return _selected(csr, _kept, keep)


def drop_zeros(device: Device, csr: Csr) -> Csr:
    """Return the entries that are not 0. Return `csr` itself if no entry is 0, which is usual."""
    keep = csr.data if csr.dtype == np.bool_ else map_elements(lambda values: values != 0, csr.data)
    return csr if keep.all() else keep_entries(device, csr, keep)


def map_columns(device: Device, csr: Csr, places: Array, num_cols: int) -> Csr:
    """Return the entries whose columns have a new number in `places`. Count them in each row, then copy them."""
    return replace(_selected(csr, _mapped, places), shape=(csr.num_rows, num_cols))


def numbers_from_start(device: Device, numbers: Array, size: int) -> Array | None:
    """Return the indices, with negative ones counted from the start; None if an index is out of range."""
    if not numbers.size:
        return np.zeros(0, np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    if low < -size or high >= size:
        return None
    numbers = np.ascontiguousarray(numbers, np.int64)
    return np.where(numbers < 0, numbers + size, numbers) if low < 0 else numbers


def count_numbers(device: Device, numbers: Array, size: int) -> Array:
    """Return the number of times that each number occurs."""
    return np.bincount(numbers, minlength=size)


def are_in_range(device: Device, numbers: Array, size: int) -> bool:
    """Return whether all numbers are in the range from 0 up to, but not including, `size`."""
    return not numbers.size or (int(numbers.min()) >= 0 and int(numbers.max()) < size)


def places_of(device: Device, numbers: Array, size: int, dtype: Any) -> Array | None:
    """Return an array with the index of each number at the place that the number names; None if a number repeats."""
    places, own = np.full(size, -1, dtype), np.arange(numbers.size, dtype=dtype)
    places[numbers] = own
    return places if np.array_equal(places[numbers], own) else None


def triangle(device: Device, csr: Csr, offset: int, upper: bool) -> Csr:
    """Return the entries on one side of a diagonal. Count these entries of each row, then copy them."""
    return _selected(csr, _inside, (offset, upper))


def _selected(csr: Csr, select: Any, choice: Any) -> Csr:
    """Return the entries that the function `select` selects: `_kept`, `_mapped` or `_inside`."""
    counts, cost = np.zeros(csr.num_rows + 1, np.int64), csr.nnz + csr.num_rows
    run_parts(_count(select), cost, csr.indptr, csr.indices, choice, counts)
    np.cumsum(counts, out=counts)
    nnz = int(counts[-1])
    kept = Csr(csr.shape, counts.astype(csr.indptr.dtype), np.empty(nnz, csr.indices.dtype), np.empty(nnz, csr.dtype))
    run_parts(_copy(select), cost, _rows(csr), _rows(kept), choice)
    return kept


def _rows(csr: Csr) -> Rows:
    """Return the arrays of a matrix, with values as integers of the same size, because values are only copied."""
    return csr.indptr, csr.indices, csr.data.view(ITEMS[csr.dtype.itemsize])


def slice_rows(device: Device, csr: Csr, start: int, count: int) -> Csr:
    """Return a copy of `count` rows from `start` on."""
    indptr = csr.indptr[start : start + count + 1]
    begin, end = int(indptr[0]), int(indptr[-1])
    parts = (indptr - indptr.dtype.type(begin), csr.indices[begin:end].copy(), csr.data[begin:end].copy())
    return Csr((count, csr.num_cols), *parts, csr.is_canonical)


def take_rows(device: Device, csr: Csr, rows: Array) -> Csr:
    """Return a matrix of these rows, which are copied one by one."""
    ends = (csr.indptr[1:] - csr.indptr[:-1])[rows].cumsum(dtype=np.int64)
    nnz = int(ends[-1]) if ends.size else 0
    index = csr.indptr.dtype if nnz <= MAX_INT32 else np.dtype(np.int64)
    indptr = np.zeros(rows.size + 1, index)
    indptr[1:] = ends
    parts = indptr, np.empty(nnz, index), np.empty(nnz, csr.dtype)
    taken = Csr((rows.size, csr.num_cols), *parts, csr.is_canonical)
    run_parts(_copy_rows, nnz + rows.size, rows, _rows(csr), _rows(taken))
    return taken


def scale_rows(device: Device, csr: Csr, factors: Array) -> Array:
    """Return the products of values and row factors."""
    products = np.empty_like(csr.data)
    run_parts(_scale_rows, csr.nnz + csr.num_rows, csr.indptr, csr.data, factors, products)
    return products


def scale_columns(device: Device, csr: Csr, factors: Array) -> Array:
    """Return the products of values and column factors."""
    products = np.empty_like(csr.data)
    run_parts(_scale_columns, csr.nnz, csr.indices, csr.data, factors, products)
    return products


def sum_runs(device: Device, data: Array, starts: Array) -> Array:
    """Return the sums of runs. NumPy's warnings are off, because SciPy's loops do not warn."""
    with np.errstate(all="ignore"):
        return np.add.reduceat(data, starts) if starts.size else data[:0]


def diagonal_entries(device: Device, csr: Csr, offset: int, out: Array | None = None) -> Array:
    """Return a diagonal. Read all entries of the rows that the diagonal crosses."""
    first, size = max(-offset, 0), csr.diagonal_size(offset)
    diagonal = np.empty(size, csr.dtype) if out is None else out
    diagonal.fill(0)
    run_parts(_sum_diagonal, csr.nnz + size, first, offset, csr.indptr, csr.indices, csr.data, diagonal)
    return diagonal


# Functions that return whether an entry is selected, and its new column.


@inlined
def _kept(row: int, k: Any, indices: Array, keep: Array) -> tuple[Any, Any]:
    return keep[k], indices[k]


@inlined
def _mapped(row: int, k: Any, indices: Array, places: Array) -> tuple[Any, Any]:
    place = places[np.uint64(indices[k])]
    return place >= 0, place


@inlined
def _inside(row: int, k: Any, indices: Array, choice: tuple[int, bool]) -> tuple[Any, Any]:
    """Select a triangle. `choice` holds the offset of its diagonal, and whether the triangle is the upper one."""
    distance = np.int64(indices[k]) - row - choice[0]
    return (distance >= 0 if choice[1] else distance <= 0), indices[k]


combined: Any = None  # One of the functions above; a global variable of each kernel that `specialized` returns.


@specialized
def _count(part: int, num_parts: int, indptr: Array, indices: Array, choice: Any, counts: Array) -> None:
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        count = np.int64(0)
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            count += np.int64(combined(row, np.uint64(k), indices, choice)[0])
        counts[np.uint64(row + 1)] = count


@specialized
def _copy(part: int, num_parts: int, rows: Rows, selected: Rows, choice: Any) -> None:
    indptr, indices, data = rows
    new_indptr, new_indices, new_data = selected
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        place = np.uint64(new_indptr[np.uint64(row)])
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            is_selected, column = combined(row, np.uint64(k), indices, choice)
            if is_selected:
                new_indices[place], new_data[place] = column, data[np.uint64(k)]
                place += np.uint64(1)


@compiled
def _scale_rows(part: int, num_parts: int, indptr: Array, data: Array, factors: Array, products: Array) -> None:
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        factor = factors[np.uint64(row)]
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            products[np.uint64(k)] = data[np.uint64(k)] * factor


@compiled
def _scale_columns(part: int, num_parts: int, indices: Array, data: Array, factors: Array, products: Array) -> None:
    for k in range(part * data.size // num_parts, (part + 1) * data.size // num_parts):
        products[np.uint64(k)] = data[np.uint64(k)] * factors[np.uint64(indices[np.uint64(k)])]


@compiled
def _copy_rows(part: int, num_parts: int, numbers: Array, rows: Rows, taken: Rows) -> None:
    indptr, indices, data = rows
    taken_indptr, taken_indices, taken_data = taken
    for row in range(first_row(part, num_parts, taken_indptr), first_row(part + 1, num_parts, taken_indptr)):
        if row + 2 * _AHEAD < numbers.size:
            prefetch(indptr, np.uint64(numbers[np.uint64(row + 2 * _AHEAD)]), 1)
            later = np.uint64(indptr[np.uint64(numbers[np.uint64(row + _AHEAD)])])
            prefetch(indices, later, 1)
            prefetch(data, later, 1)
            prefetch(data, later + np.uint64(8), 1)
        start = np.uint64(indptr[np.uint64(numbers[np.uint64(row)])])
        to, end = np.uint64(taken_indptr[np.uint64(row)]), np.uint64(taken_indptr[np.uint64(row + 1)])
        for k in range(end - to):
            taken_indices[to + np.uint64(k)] = indices[start + np.uint64(k)]
            taken_data[to + np.uint64(k)] = data[start + np.uint64(k)]


@compiled
def _sum_diagonal(
    part: int, num_parts: int, first: int, offset: int, indptr: Array, indices: Array, data: Array, diagonal: Array
) -> None:
    for i in range(part * diagonal.size // num_parts, (part + 1) * diagonal.size // num_parts):
        row = first + i
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            if np.int64(indices[np.uint64(k)]) == row + offset:
                diagonal[np.uint64(i)] += data[np.uint64(k)]
