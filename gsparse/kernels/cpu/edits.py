"""Finding, inserting and writing single entries; operations with dense arrays of the matrix's shape; and gradients.

The contract is in `gsparse.kernels.algebra`. A part owns consecutive rows, samples or entries. Values that are only
copied are read as integers of the same size, so that loops are compiled once per size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.cpu.compiling import compiled, compiled_loosely
from gsparse.kernels.cpu.rows import first_row, lower_bound
from gsparse.kernels.cpu.sparse_rows import ITEMS, Rows

# The rows and columns of new entries, or of elements whose values are requested.
Places = tuple[Array, Array]
# The three arrays of the transpose and the values of A; or `gradient`, `x`, and the gradients of x and of A's values.
Four = tuple[Array, Array, Array, Array]


def _items(data: Array) -> Array:
    return data.view(ITEMS[data.dtype.itemsize])


def _search_cost(csr: Csr, count: int, is_sorted: bool) -> int:
    """Estimate the number of entries that `count` searches read: a few of a sorted row, otherwise the whole row."""
    return count * (8 if is_sorted else 1 + csr.nnz // max(csr.num_rows, 1))


def find_entries(device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> tuple[Array, int, bool]:
    """Find the position of each element. Search sorted rows by bisection, and read other rows completely."""
    positions = np.empty(rows.size, np.int64)
    cost = _search_cost(csr, rows.size, is_sorted)
    run_parts(_find_entries, cost, (rows, columns), is_sorted, csr.indptr, csr.indices, positions)
    return positions, int(np.count_nonzero(positions == -1)), not is_sorted and bool((positions == -2).any())


def sample_entries(device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> Array:
    """Return the values of the elements. Search sorted rows by bisection, and read other rows completely."""
    values = np.zeros(rows.size, csr.dtype)
    cost = _search_cost(csr, rows.size, is_sorted)
    arrays = (_items(csr.data), _items(values)) if is_sorted else (csr.data, values)
    run_parts(_sample_entries, cost, (rows, columns), is_sorted, csr.indptr, csr.indices, *arrays)
    return values


def sample_entry(device: Device, csr: Csr, row: int, column: int) -> Any:
    """Return one element of a matrix with sorted rows."""
    begin, end = int(csr.indptr[row]), int(csr.indptr[row + 1])
    k = begin + int(np.searchsorted(csr.indices[begin:end], column))
    return csr.data[k] if k < end and csr.indices[k] == column else csr.dtype.type(0)


def put_values(device: Device, data: Array, positions: Array, values: Array) -> None:
    """Write values to the positions that are not negative."""
    remains = positions >= 0
    if remains.all():
        data[positions] = values
    else:
        data[positions[remains]] = values if values.size == 1 else values[remains]


def insert_entries(device: Device, csr: Csr, rows: Array, columns: Array, values: Array, is_sorted: bool) -> Csr:
    """Count the new entries of each row, then merge old and new entries row by row."""
    nnz = csr.nnz + rows.size
    index = csr.indices.dtype if nnz <= MAX_INT32 else np.dtype(np.int64)
    indptr = np.zeros(csr.num_rows + 1, index)
    np.cumsum(np.bincount(rows, minlength=csr.num_rows), out=indptr[1:])
    indptr += csr.indptr
    result = Csr(csr.shape, indptr, np.empty(nnz, index), np.empty(nnz, csr.dtype), csr.is_canonical and is_sorted)
    old, new = (csr.indptr, csr.indices, _items(csr.data)), (indptr, result.indices, _items(result.data))
    run_parts(_insert_entries, nnz + csr.num_rows, old, new, columns, _items(values), is_sorted)
    return result


def add_entries(device: Device, csr: Csr, dense: Array) -> None:
    """Add the entries of all rows to the dense array."""
    data, flat = csr.data, dense.reshape(-1)
    if csr.dtype.kind in "iu":  # not for booleans: the sum of 256 bytes would be 0
        data, flat = _items(data), _items(flat)
    run_parts(_add_entries, csr.nnz + csr.num_rows, (csr.indptr, csr.indices, data), csr.num_cols, flat)


def take_elements(device: Device, csr: Csr, dense: Array) -> Array:
    """Return the elements of a dense array, which is read row by row in its memory order."""
    elements = np.empty(csr.nnz, dense.dtype)
    if not dense.size:
        return elements
    dense = dense if dense.flags.f_contiguous else np.ascontiguousarray(dense)
    strides = tuple(stride // dense.dtype.itemsize for stride in dense.strides)
    source, flat = (csr.indptr, csr.indices, _items(elements)), dense.reshape(-1, order="A")
    run_parts(_take_elements, csr.nnz + csr.num_rows, source, strides, _items(flat))
    return elements


# ---------------------------------------------------------------------------------------------------------- kernels


@compiled
def _find_entries(
    part: int, num_parts: int, samples: Places, is_sorted: bool, indptr: Array, indices: Array, positions: Array
) -> None:
    rows, columns = samples
    for i in range(part * rows.size // num_parts, (part + 1) * rows.size // num_parts):
        row, column = np.uint64(rows[np.uint64(i)]), columns[np.uint64(i)]
        begin, end = np.int64(indptr[row]), np.int64(indptr[row + np.uint64(1)])
        position: Any = np.int64(-1)
        if is_sorted:
            k = lower_bound(indices, begin, end, column)
            if k < end and indices[np.uint64(k)] == column:
                position = k
        else:
            for k in range(begin, end):
                if indices[np.uint64(k)] == column:
                    position = k if position == -1 else np.int64(-2)
        positions[np.uint64(i)] = position


@compiled
def _sample_entries(
    part: int, num_parts: int, samples: Places, is_sorted: bool, indptr: Array, indices: Array, data: Array, sums: Array
) -> None:
    rows, columns = samples
    for i in range(part * rows.size // num_parts, (part + 1) * rows.size // num_parts):
        row, column = np.uint64(rows[np.uint64(i)]), columns[np.uint64(i)]
        begin, end = np.int64(indptr[row]), np.int64(indptr[row + np.uint64(1)])
        if is_sorted:
            k = lower_bound(indices, begin, end, column)
            if k < end and indices[np.uint64(k)] == column:
                sums[np.uint64(i)] = data[np.uint64(k)]
            continue
        for k in range(begin, end):
            if indices[np.uint64(k)] == column:
                sums[np.uint64(i)] += data[np.uint64(k)]


@compiled
def _insert_entries(
    part: int, num_parts: int, old: Rows, new: Rows, columns: Array, values: Array, is_sorted: bool
) -> None:
    """Merge the old and the new entries of each row. `columns` and `values` have the new entries, sorted by row."""
    indptr, indices, data = old
    new_indptr, new_indices, new_data = new
    for row in range(first_row(part, num_parts, new_indptr), first_row(part + 1, num_parts, new_indptr)):
        k, end = np.int64(indptr[np.uint64(row)]), np.int64(indptr[np.uint64(row + 1)])
        to, to_end = np.int64(new_indptr[np.uint64(row)]), np.int64(new_indptr[np.uint64(row + 1)])
        i = to - k
        i_end = to_end - end
        while to < to_end:
            takes_old = k < end and (i == i_end or (is_sorted and indices[np.uint64(k)] < columns[np.uint64(i)]))
            if takes_old:
                new_indices[np.uint64(to)], new_data[np.uint64(to)] = indices[np.uint64(k)], data[np.uint64(k)]
                k += 1
            else:
                new_indices[np.uint64(to)], new_data[np.uint64(to)] = columns[np.uint64(i)], values[np.uint64(i)]
                i += 1
            to += 1


@compiled
def _add_entries(part: int, num_parts: int, source: Rows, num_cols: int, dense: Array) -> None:
    indptr, indices, data = source
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        begin = np.int64(row) * num_cols
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            dense[np.uint64(begin + np.int64(indices[np.uint64(k)]))] += data[np.uint64(k)]


@compiled
def _take_elements(part: int, num_parts: int, source: Rows, strides: tuple[int, int], dense: Array) -> None:
    indptr, indices, elements = source
    row_stride, column_stride = strides
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        begin = np.int64(row) * row_stride
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            place = begin + np.int64(indices[np.uint64(k)]) * column_stride
            elements[np.uint64(k)] = dense[np.uint64(place)]


# -------------------------------------------------------------------------------------------------------- gradients


def dot_rows(device: Device, rows: Array, columns: Array, left: Array, right: Array) -> Array:
    """For each entry, sum the products of a row of `left` and a conjugated row of `right`, in column order."""
    dots, width = np.zeros(rows.size, left.dtype), left.shape[1]
    run_parts(_dot_rows, rows.size * (1 + width), rows, columns, left.reshape(-1), right.reshape(-1), width, dots)
    return dots


def product_gradients(device: Device, transposed: Csr, values: Array, gradient: Array, x: Array) -> tuple[Array, Array]:
    """Compute both gradients in a loop over the transpose's rows. A simpler loop does this if x has a single column."""
    width = x.shape[1]
    of_x, of_values = np.zeros(x.size, x.dtype), np.zeros(values.size, x.dtype)
    entries = (transposed.indptr, transposed.indices, transposed.data, values)
    arrays = (gradient.reshape(-1), x.reshape(-1), of_x, of_values)
    if width == 1:
        run_parts(_vector_gradients, values.size + x.size, entries, arrays)
    else:
        run_parts(_columns_gradients, (values.size + x.shape[0]) * (1 + width), entries, arrays, width)
    return of_x.reshape(x.shape), of_values


@compiled_loosely
def _dot_rows(
    part: int, num_parts: int, rows: Array, columns: Array, left: Array, right: Array, width: int, dots: Array
) -> None:
    for e in range(part * rows.size // num_parts, (part + 1) * rows.size // num_parts):
        one, other = np.int64(rows[np.uint64(e)]) * width, np.int64(columns[np.uint64(e)]) * width
        total = dots[np.uint64(e)]
        for c in range(width):
            total += left[np.uint64(one + c)] * np.conj(right[np.uint64(other + c)])
        dots[np.uint64(e)] = total


@compiled
def _vector_gradients(part: int, num_parts: int, entries: Four, arrays: Four) -> None:
    indptr, indices, numbers, values = entries
    gradient, x, of_x, of_values = arrays
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        factor, total = np.conj(x[np.uint64(row)]), of_x[np.uint64(row)]
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            number, element = np.uint64(numbers[np.uint64(k)]), gradient[np.uint64(indices[np.uint64(k)])]
            total += np.conj(values[number]) * element
            of_values[number] = element * factor
        of_x[np.uint64(row)] = total


@compiled_loosely
def _columns_gradients(part: int, num_parts: int, entries: Four, arrays: Four, width: int) -> None:
    indptr, indices, numbers, values = entries
    gradient, x, of_x, of_values = arrays
    for row in range(first_row(part, num_parts, indptr), first_row(part + 1, num_parts, indptr)):
        own = np.int64(row) * width
        for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
            number, other = np.uint64(numbers[np.uint64(k)]), np.int64(indices[np.uint64(k)]) * width
            value, total = np.conj(values[number]), of_values[number]
            for c in range(width):
                of_x[np.uint64(own + c)] += value * gradient[np.uint64(other + c)]
            for c in range(width):
                total += gradient[np.uint64(other + c)] * np.conj(x[np.uint64(own + c)])
            of_values[number] = total
