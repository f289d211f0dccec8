"""Entries and rows of a sparse matrix, selected, taken, scaled and added up, and lists of their numbers.

The contract is in `gsparse.kernels.algebra`, the kernels in `src/sparse_rows.cu` and `src/indices.cu`.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.expressions import ITEM_TYPES, constant, expression
from gsparse.kernels.gpu.launch import TILE_THREADS, launch_blocks, launch_threads, num_tiles, tally

_SOURCE = "sparse_rows.cu"
_THREADS = 256
# Lanes that share an unsorted row of `diagonal_entries`.
_DIAGONAL_LANES = constant(_SOURCE, "GS_DIAGONAL_LANES")
# What is moved without being computed with: one dtype for each size.
ITEMS = tuple(ITEM_TYPES.values())
# Rules by which entries are selected, with the numbers that kernels know them by. All but "nonzero" are counted without
# a look at the values.
_RULES = {rule: constant(_SOURCE, f"GS_{rule.upper()}") for rule in ("marked", "placed", "nonzero", "triangle")}
_BYTE = ITEMS[0]

_INDICES = "indices.cu"
# The byte of which -1 consists.
_ALL_BITS = 0xFF


def _countings(index: Any) -> list[tuple[Any, Any, int]]:
    """List the template arguments of `count_selected`."""
    nonzero = _RULES["nonzero"]
    without_values = [(_BYTE, index, rule) for rule in _RULES.values() if rule != nonzero]
    return [*without_values, *((item, index, nonzero) for item in ITEMS)]


def _item(data: Array) -> np.dtype[Any]:
    return ITEM_TYPES[data.dtype.itemsize]


def as_items(data: Array) -> Array:
    """Return the values as a dtype of the same size by which they are moved."""
    item = _item(data)
    return data if data.dtype == item else data.view(item)


def row_numbers(device: Device, indptr: Array, nnz: int) -> Array:
    """Find the rows of the entries of each tile."""
    rows, num_rows = device.empty(nnz, indptr.dtype), int(indptr.size) - 1
    args = (np.int64(nnz), np.int64(num_rows), indptr, rows)
    _launch_tiles(device, expression("row_numbers", indptr.dtype), nnz + num_rows, args)
    return rows


def _launch_tiles(device: Device, name: str, positions: int, args: Any) -> None:
    launch_blocks(device, _SOURCE, name, num_tiles(positions), TILE_THREADS, args)


# ------------------------------------------------------------------------------------------------------- selections


def keep_entries(device: Device, csr: Csr, keep: Array) -> Csr:
    """Count the marked entries of each tile, then copy them. Synchronizes."""
    return _selected(device, csr, "marked", marks=keep.view(_BYTE))


def drop_zeros(device: Device, csr: Csr) -> Csr:
    """Count the values that are not 0, and copy them if there are others. Synchronizes."""
    return _selected(device, csr, "nonzero")


def map_columns(device: Device, csr: Csr, places: Array, num_cols: int) -> Csr:
    """Count the entries in columns that have a place, then copy them. Synchronizes."""
    selected = _selected(device, csr, "placed", places=places)
    return Csr((csr.num_rows, num_cols), selected.indptr, selected.indices, selected.data, longest=csr.longest)


def triangle(device: Device, csr: Csr, offset: int, upper: bool) -> Csr:
    """Count the entries on one side of the diagonal, then copy them. Synchronizes."""
    return _selected(device, csr, "triangle", offset=offset, upper=upper)


def _selected(
    device: Device,
    csr: Csr,
    rule: str,
    *,
    marks: Array | None = None,
    places: Array | None = None,
    offset: int = 0,
    upper: bool = False,
) -> Csr:
    """Return the entries that a rule selects, in their order. Synchronizes.

    The result of "nonzero" is the matrix itself if none of its values is 0.
    """
    index, item, data, number = csr.indptr.dtype, _item(csr.data), as_items(csr.data), _RULES[rule]
    positions = csr.nnz + csr.num_rows
    if not positions:
        return csr
    parameters = (marks, places, _bits_of_values(csr.dtype), np.int64(offset), np.int32(upper))
    source = (np.int64(csr.nnz), np.int64(csr.num_rows), csr.indptr, csr.indices, data, *parameters)
    counts = tally(device, num_tiles(positions))
    counted = item if rule == "nonzero" else _BYTE
    values = data if counted == item else None
    name = expression("count_selected", counted, index, number)
    _launch_tiles(device, name, positions, (*source[:4], values, *parameters, *counts))
    (nnz,) = device.counts.read()  # synchronizes
    if rule == "nonzero" and nnz == csr.nnz:
        return csr
    indptr, indices = device.empty(csr.num_rows + 1, index), device.empty(nnz, index)
    selected = Csr(csr.shape, indptr, indices, device.empty(nnz, csr.dtype), csr.is_canonical, csr.longest)
    args = (*source, counts[0], indptr, indices, as_items(selected.data))
    _launch_tiles(device, expression("copy_selected", item, index, number), positions, args)
    return selected


def _bits_of_values(dtype: np.dtype[Any]) -> np.int64:
    """Return the mask with which values of up to 8 bytes are tested for 0: all bits but those of signs."""
    if dtype.kind not in "fc":
        return np.int64(-1)
    real = np.zeros(1, dtype).real.dtype
    bits = 2 ** (8 * real.itemsize - 1) - 1
    return np.int64(bits << 32 | bits) if dtype.kind == "c" and real.itemsize == 4 else np.int64(bits)


# ------------------------------------------------------------------------------------------------------------- rows


def row_pointers(device: Device, values: Array, taken: Array | None = None) -> tuple[Array, int]:
    """Return row pointers and their last element, the number of entries. Synchronizes.

    Parameters
    ----------
    device : Device
    values : array of int32 or int64
        The number of entries of each row, or the row pointers of the matrix from which rows are taken.
    taken : array of int64, optional
        The numbers of the rows that are taken.

    Returns
    -------
    indptr : array, shape (num_rows + 1,)
        Of the dtype of `values`, or int64 if that cannot hold the number of entries.
    nnz : int
    """
    num_rows = int(values.size if taken is None else taken.size)
    if not num_rows:
        return device.xp.zeros(1, values.dtype), 0
    offsets = sum_tiles(device, values, taken)
    (nnz,) = device.counts.read()  # synchronizes
    return point_to_rows(device, values, offsets, values.dtype if nnz <= MAX_INT32 else np.int64, taken), nnz


def prefix_sums(device: Device, values: Array, *, is_total_read: bool = True) -> Array:
    """Return the sum of the values before each one (int64), and the sum of all of them as the last element.

    `is_total_read` says whether the caller reads the sum of all from ``device.counts`` (see `sum_tiles`).
    """
    offsets = sum_tiles(device, values, is_total_read=is_total_read) if values.size else values
    return point_to_rows(device, values, offsets, np.int64)


def sum_tiles(device: Device, values: Array, taken: Array | None = None, *, is_total_read: bool = True) -> Array:
    """Return the sum of the sizes before each tile of rows, and leave the sum of all to ``device.counts``.

    If the caller does not read that sum, it is left elsewhere: a write that nobody waits for could meet a number that
    this thread reads on another stream.
    """
    num_rows = int(values.size if taken is None else taken.size)
    counts = tally(device, num_tiles(num_rows))
    if not is_total_read:
        counts = (*counts[:2], device.empty(1, np.int64))
    name = expression("sum_sizes", values.dtype, int(taken is not None))
    _launch_tiles(device, name, num_rows, (np.int64(num_rows), taken, values, *counts))
    return counts[0]


def point_to_rows(device: Device, values: Array, offsets: Array, dtype: Any, taken: Array | None = None) -> Array:
    """Return the row pointers of the given dtype, where `offsets` has the sum of the sizes before each tile of rows.

    `values` and `taken` are those of `row_pointers`.
    """
    num_rows = int(values.size if taken is None else taken.size)
    if not num_rows:
        return device.xp.zeros(1, dtype)
    indptr = device.empty(num_rows + 1, dtype)
    name = expression("point_to_rows", values.dtype, indptr.dtype, int(taken is not None))
    _launch_tiles(device, name, num_rows, (np.int64(num_rows), taken, values, offsets, indptr))
    return indptr


def slice_rows(device: Device, csr: Csr, start: int, count: int) -> Csr:
    """Shift the row pointers, then copy the entries between the first and the last one. Synchronizes."""
    index, indptr = csr.indptr.dtype, device.empty(count + 1, csr.indptr.dtype)
    args: Any = (np.int64(count), csr.indptr[start:], indptr, device.counts.array)
    launch_threads(device, _SOURCE, expression("slice_pointers", index), count + 1, TILE_THREADS, args)
    first, end = device.counts.read(2)  # synchronizes
    nnz = end - first
    indices, data = device.empty(nnz, index), device.empty(nnz, csr.dtype)
    rows = Csr((count, csr.num_cols), indptr, indices, data, csr.is_canonical, csr.longest)
    arrays = (csr.indices, as_items(csr.data), rows.indices, as_items(rows.data))
    _launch_tiles(
        device, expression("copy_entries", _item(csr.data), index), nnz, (np.int64(nnz), np.int64(first), *arrays)
    )
    return rows


def take_rows(device: Device, csr: Csr, rows: Array) -> Csr:
    """Add up the lengths of the rows, then copy entry by entry. Synchronizes."""
    item, num_rows = _item(csr.data), int(rows.size)
    taken = device.xp.ascontiguousarray(rows.astype(np.int64, copy=False))
    indptr, nnz = row_pointers(device, csr.indptr, taken)  # synchronizes
    index = indptr.dtype
    csr = csr.with_index_dtype(index)
    indices, data = device.empty(nnz, index), device.empty(nnz, csr.dtype)
    result = Csr((num_rows, csr.num_cols), indptr, indices, data, longest=csr.longest)
    source = (taken, csr.indptr, csr.indices, as_items(csr.data))
    args = (np.int64(nnz), np.int64(num_rows), indptr, *source, result.indices, as_items(result.data))
    _launch_tiles(device, expression("take_rows", item, index), nnz + num_rows, args)
    return result


# ----------------------------------------------------------------------------------------------------------- values


def scale_rows(device: Device, csr: Csr, factors: Array) -> Array:
    """Multiply each entry by the factor of its row."""
    products = device.empty(csr.nnz, csr.dtype)
    args = (np.int64(csr.nnz), np.int64(csr.num_rows), csr.indptr, csr.data, factors, products)
    _launch_tiles(device, expression("scale_rows", csr.dtype, csr.indptr.dtype), csr.nnz + csr.num_rows, args)
    return products


def scale_columns(device: Device, csr: Csr, factors: Array) -> Array:
    """Multiply each entry by the factor of its column."""
    products = device.empty(csr.nnz, csr.dtype)
    args = (np.int64(csr.nnz), csr.indices, csr.data, factors, products)
    _launch_tiles(device, expression("scale_columns", csr.dtype, csr.indptr.dtype), csr.nnz, args)
    return products


def sum_runs(device: Device, data: Array, starts: Array) -> Array:
    """Add each run up in order, with a thread for each run."""
    sums = device.empty(starts.size, data.dtype)
    args = (np.int64(starts.size), np.int64(data.size), starts, data, sums)
    name = expression("sum_runs", data.dtype, starts.dtype)
    launch_threads(device, _SOURCE, name, starts.size, _THREADS, args)
    return sums


def diagonal_entries(device: Device, csr: Csr, offset: int, out: Array | None = None) -> Array:
    """Search the rows that meet the diagonal, or look at all of their entries if they may not be sorted."""
    first, size = max(-offset, 0), csr.diagonal_size(offset)
    diagonal = device.empty(size, csr.dtype) if out is None else out
    args = (np.int64(size), np.int64(first), np.int64(offset), csr.indptr, csr.indices, csr.data, diagonal)
    kernel, lanes = ("sorted_diagonal_entries", 1) if csr.is_canonical else ("diagonal_entries", _DIAGONAL_LANES)
    launch_threads(device, _SOURCE, expression(kernel, csr.dtype, csr.indptr.dtype), size * lanes, _THREADS, args)
    return diagonal


def numbers_from_start(device: Device, numbers: Array, size: int) -> Array | None:
    """Check each number and add the size to negative ones. Synchronizes."""
    if numbers.dtype == np.uint64 and not are_in_range(device, numbers, size):  # synchronizes
        return None  # As int64, the largest numbers would be negative ones.
    checked = device.empty(int(numbers.size), np.int64)
    return checked if _are_valid(device, numbers, size, checked) else None  # synchronizes


def are_in_range(device: Device, numbers: Array, size: int) -> bool:
    """Check each number. Synchronizes."""
    return _are_valid(device, numbers, size, None)  # synchronizes


def _are_valid(device: Device, numbers: Array, size: int, checked: Array | None) -> bool:
    count = int(numbers.size)
    if not count:
        return True
    if numbers.dtype not in INDEX_DTYPES or not numbers.flags.c_contiguous:
        numbers = device.xp.ascontiguousarray(numbers, np.int64)
    blocks = num_tiles(count)
    args: Any = (np.int64(count), np.int64(size), numbers, checked, *tally(device, blocks))
    launch_blocks(device, _INDICES, expression("check_numbers", numbers.dtype), blocks, TILE_THREADS, args)
    return device.counts.read() == [0]  # synchronizes


def count_numbers(device: Device, numbers: Array, size: int) -> Array:
    """Add one for each number, in any order."""
    counts = device.xp.zeros(size, np.int64)
    name, blocks = expression("count_numbers", numbers.dtype), num_tiles(int(numbers.size))
    launch_blocks(device, _INDICES, name, blocks, TILE_THREADS, (np.int64(numbers.size), numbers, counts))
    return counts


def places_of(device: Device, numbers: Array, size: int, dtype: Any) -> Array | None:
    """Claim the place of each number. Synchronizes."""
    count, places = int(numbers.size), device.empty(size, dtype)
    device.fill_bytes(places, _ALL_BITS)
    if not count:
        return places
    blocks = num_tiles(count)
    args: Any = (np.int64(count), numbers, places, *tally(device, blocks))
    launch_blocks(device, _INDICES, expression("place_numbers", places.dtype), blocks, TILE_THREADS, args)
    return places if device.counts.read() == [0] else None  # synchronizes


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    names = []
    for index in INDEX_DTYPES:
        names.append(expression("row_numbers", index))
        names += [expression("count_selected", *kernel) for kernel in _countings(index)]
        names += [expression("copy_selected", item, index, rule) for item, rule in product(ITEMS, _RULES.values())]
        names += [expression(name, item, index) for name in ("take_rows", "copy_entries") for item in ITEMS]
        names.append(expression("slice_pointers", index))
        names += [expression("sum_sizes", index, is_taken) for is_taken in (0, 1)]
        outs = {index, np.dtype(np.int64)}
        names += [
            expression("point_to_rows", index, out, taken) for out, taken in product(sorted(outs, key=str), (0, 1))
        ]
        others = ("sum_runs", "diagonal_entries", "sorted_diagonal_entries", "scale_rows", "scale_columns")
        names += [expression(name, dtype, index) for name, dtype in product(others, COMPUTE_DTYPES)]
    kernels = [(_SOURCE, name) for name in names]
    names = [
        expression(name, index)
        for name in ("check_numbers", "count_numbers", "place_numbers")
        for index in INDEX_DTYPES
    ]
    return kernels + [(_INDICES, name) for name in names]
