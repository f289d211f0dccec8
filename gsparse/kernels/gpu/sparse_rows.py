"""Selecting, copying, scaling and summing entries and rows, and operations on arrays of indices.

The contract is in `gsparse.kernels.algebra`, the kernels in `src/sparse_rows.cu`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.launch import ITEM_TYPES, Source, constant, num_tiles, tally

_SOURCE = Source("sparse_rows.cu", 256)
# Number of lanes that share an unsorted row in `diagonal_entries`.
_DIAGONAL_LANES = constant(_SOURCE.file, "GS_DIAGONAL_LANES")
# The dtypes that kernels copy in place of values, one for each size.
ITEMS = tuple(ITEM_TYPES.values())
# The rules by which entries are selected, and their numbers in kernels. Only "nonzero" must read values while it
# counts.
_RULES = {rule: constant(_SOURCE.file, f"GS_{rule.upper()}") for rule in ("marked", "placed", "nonzero", "triangle")}
_BYTE = ITEMS[0]

# The byte that -1 consists of.
_ALL_BITS = 0xFF


def _item(data: Array) -> np.dtype[Any]:
    return ITEM_TYPES[data.dtype.itemsize]


def as_items(data: Array) -> Array:
    """Return the values as a view. Its dtype is the one that kernels copy for values of this size."""
    item = _item(data)
    return data if data.dtype == item else data.view(item)


def row_numbers(device: Device, indptr: Array, nnz: int) -> Array:
    """Return the row number of each entry, found tile by tile."""
    rows, num_rows = device.empty(nnz, indptr.dtype), int(indptr.size) - 1
    args = (np.int64(nnz), np.int64(num_rows), indptr, rows)
    _SOURCE.launch_tiles(device, "row_numbers", (indptr.dtype,), nnz + num_rows, args)
    return rows


# ------------------------------------------------------------------------------------------------------- selections


def keep_entries(device: Device, csr: Csr, keep: Array) -> Csr:
    """Return the entries where `keep` is true. Entries are counted tile by tile, then copied. Synchronizes."""
    return _selected(device, csr, "marked", marks=keep.view(_BYTE))


def drop_zeros(device: Device, csr: Csr) -> Csr:
    """Return the entries that are not 0: count them, and copy them unless none is 0. Synchronizes."""
    return _selected(device, csr, "nonzero")


def map_columns(device: Device, csr: Csr, places: Array, num_cols: int) -> Csr:
    """Return the entries whose columns have a new place. Entries are counted, then copied. Synchronizes."""
    selected = _selected(device, csr, "placed", places=places)
    return Csr((csr.num_rows, num_cols), selected.indptr, selected.indices, selected.data, longest=csr.longest)


def triangle(device: Device, csr: Csr, offset: int, upper: bool) -> Csr:
    """Return the entries on one side of the diagonal: count them, then copy them. Synchronizes."""
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

    For "nonzero", return the matrix itself if none of its values is 0.
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
    args: Any = (*source[:4], values, *parameters, *counts)
    _SOURCE.launch_tiles(device, "count_selected", (counted, index, number), positions, args)
    (nnz,) = device.counts.read()  # synchronizes
    if rule == "nonzero" and nnz == csr.nnz:
        return csr
    indptr, indices = device.empty(csr.num_rows + 1, index), device.empty(nnz, index)
    selected = Csr(csr.shape, indptr, indices, device.empty(nnz, csr.dtype), csr.is_canonical, csr.longest)
    args = (*source, counts[0], indptr, indices, as_items(selected.data))
    _SOURCE.launch_tiles(device, "copy_selected", (item, index, number), positions, args)
    return selected


def _bits_of_values(dtype: np.dtype[Any]) -> np.int64:
    """Return the bits of values (of up to 8 bytes) that are compared with 0: all but the sign bits."""
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
        The number of entries of each row or, with `taken`, the row pointers of the matrix from which rows are taken.
    taken : array of int64, optional
        The numbers of the rows that are taken.

    Returns
    -------
    indptr : array, shape (num_rows + 1,)
        Its dtype is that of `values`, or int64 if `values` has a dtype that cannot hold the number of entries.
    nnz : int
    """
    num_rows = int(values.size if taken is None else taken.size)
    if not num_rows:
        return device.xp.zeros(1, values.dtype), 0
    offsets = sum_tiles(device, values, taken)
    (nnz,) = device.counts.read()  # synchronizes
    return point_to_rows(device, values, offsets, values.dtype if nnz <= MAX_INT32 else np.int64, taken), nnz


def prefix_sums(device: Device, values: Array, *, is_total_read: bool = True) -> Array:
    """Return the sum of the values before each value (int64), followed by the total.

    `is_total_read` is described in `sum_tiles`.
    """
    offsets = sum_tiles(device, values, is_total_read=is_total_read) if values.size else values
    return point_to_rows(device, values, offsets, np.int64)


def sum_tiles(device: Device, values: Array, taken: Array | None = None, *, is_total_read: bool = True) -> Array:
    """Return the sum of the sizes before each tile of rows. Write the total to ``device.counts`` if `is_total_read`.

    A caller that does not read the total must pass False: the total could overwrite a number that this thread is about
    to read after work on another stream.
    """
    num_rows = int(values.size if taken is None else taken.size)
    counts = tally(device, num_tiles(num_rows))
    if not is_total_read:
        counts = (*counts[:2], device.empty(1, np.int64))
    args = (np.int64(num_rows), taken, values, *counts)
    _SOURCE.launch_tiles(device, "sum_sizes", (values.dtype, int(taken is not None)), num_rows, args)
    return counts[0]


def point_to_rows(device: Device, values: Array, offsets: Array, dtype: Any, taken: Array | None = None) -> Array:
    """Return row pointers of the given dtype. `offsets` holds the sum of the sizes before each tile of rows.

    `values` and `taken` have the same meaning as in `row_pointers`.
    """
    num_rows = int(values.size if taken is None else taken.size)
    if not num_rows:
        return device.xp.zeros(1, dtype)
    indptr = device.empty(num_rows + 1, dtype)
    args, types = (np.int64(num_rows), taken, values, offsets, indptr), (values.dtype, indptr.dtype)
    _SOURCE.launch_tiles(device, "point_to_rows", (*types, int(taken is not None)), num_rows, args)
    return indptr


def slice_rows(device: Device, csr: Csr, start: int, count: int) -> Csr:
    """Return the rows: shift the row pointers, then copy the entries. Synchronizes."""
    index, indptr = csr.indptr.dtype, device.empty(count + 1, csr.indptr.dtype)
    args: Any = (np.int64(count), csr.indptr[start:], indptr, device.counts.array)
    _SOURCE.launch(device, "slice_pointers", (index,), count + 1, args)
    first, end = device.counts.read(2)  # synchronizes
    nnz = end - first
    indices, data = device.empty(nnz, index), device.empty(nnz, csr.dtype)
    rows = Csr((count, csr.num_cols), indptr, indices, data, csr.is_canonical, csr.longest)
    args = (np.int64(nnz), np.int64(first), csr.indices, as_items(csr.data), rows.indices, as_items(rows.data))
    _SOURCE.launch_tiles(device, "copy_entries", (_item(csr.data), index), nnz, args)
    return rows


def take_rows(device: Device, csr: Csr, rows: Array) -> Csr:
    """Return the rows. Sum their lengths, then copy their entries, one per thread. Synchronizes."""
    item, num_rows = _item(csr.data), int(rows.size)
    taken = device.xp.ascontiguousarray(rows.astype(np.int64, copy=False))
    indptr, nnz = row_pointers(device, csr.indptr, taken)  # synchronizes
    index = indptr.dtype
    csr = csr.with_index_dtype(index)
    indices, data = device.empty(nnz, index), device.empty(nnz, csr.dtype)
    result = Csr((num_rows, csr.num_cols), indptr, indices, data, csr.is_canonical, csr.longest)
    source = (taken, csr.indptr, csr.indices, as_items(csr.data))
    args = (np.int64(nnz), np.int64(num_rows), indptr, *source, result.indices, as_items(result.data))
    _SOURCE.launch_tiles(device, "take_rows", (item, index), nnz + num_rows, args)
    return result


# ----------------------------------------------------------------------------------------------------------- values


def scale_rows(device: Device, csr: Csr, factors: Array) -> Array:
    """Return the value of each entry times the factor of its row."""
    products = device.empty(csr.nnz, csr.dtype)
    args = (np.int64(csr.nnz), np.int64(csr.num_rows), csr.indptr, csr.data, factors, products)
    _SOURCE.launch_tiles(device, "scale_rows", (csr.dtype, csr.indptr.dtype), csr.nnz + csr.num_rows, args)
    return products


def scale_columns(device: Device, csr: Csr, factors: Array) -> Array:
    """Return the value of each entry times the factor of its column."""
    products = device.empty(csr.nnz, csr.dtype)
    args = (np.int64(csr.nnz), csr.indices, csr.data, factors, products)
    _SOURCE.launch_tiles(device, "scale_columns", (csr.dtype, csr.indptr.dtype), csr.nnz, args)
    return products


def sum_runs(device: Device, data: Array, starts: Array) -> Array:
    """Return the sums; one thread sums each run in order."""
    sums = device.empty(starts.size, data.dtype)
    args = (np.int64(starts.size), np.int64(data.size), starts, data, sums)
    _SOURCE.launch(device, "sum_runs", (data.dtype, starts.dtype), starts.size, args)
    return sums


def diagonal_entries(device: Device, csr: Csr, offset: int, out: Array | None = None) -> Array:
    """Return the diagonal. Sorted rows are searched; of other rows, all entries are read."""
    first, size = max(-offset, 0), csr.diagonal_size(offset)
    diagonal = device.empty(size, csr.dtype) if out is None else out
    args = (np.int64(size), np.int64(first), np.int64(offset), csr.indptr, csr.indices, csr.data, diagonal)
    kernel, lanes = ("sorted_diagonal_entries", 1) if csr.is_canonical else ("diagonal_entries", _DIAGONAL_LANES)
    _SOURCE.launch(device, kernel, (csr.dtype, csr.indptr.dtype), size * lanes, args)
    return diagonal


def numbers_from_start(device: Device, numbers: Array, size: int) -> Array | None:
    """Return the indices counted from the start: add `size` to negative indices, and check all. Synchronizes."""
    if numbers.dtype == np.uint64 and not are_in_range(device, numbers, size):  # synchronizes
        return None  # uint64 numbers above the int64 range would become negative
    checked = device.empty(int(numbers.size), np.int64)
    return checked if _are_valid(device, numbers, size, checked) else None  # synchronizes


def are_in_range(device: Device, numbers: Array, size: int) -> bool:
    """Return whether all numbers are in range. Synchronizes."""
    return _are_valid(device, numbers, size, None)  # synchronizes


def _are_valid(device: Device, numbers: Array, size: int, checked: Array | None) -> bool:
    count = int(numbers.size)
    if not count:
        return True
    if numbers.dtype not in INDEX_DTYPES or not numbers.flags.c_contiguous:
        numbers = device.xp.ascontiguousarray(numbers, np.int64)
    args: Any = (np.int64(count), np.int64(size), numbers, checked, *tally(device, num_tiles(count)))
    _SOURCE.launch_tiles(device, "check_numbers", (numbers.dtype,), count, args)
    return device.counts.read() == [0]  # synchronizes


def count_numbers(device: Device, numbers: Array, size: int) -> Array:
    """Return how often each number occurs. The kernel counts with atomic additions."""
    counts = device.xp.zeros(size, np.int64)
    args = (np.int64(numbers.size), numbers, counts)
    _SOURCE.launch_tiles(device, "count_numbers", (numbers.dtype,), numbers.size, args)
    return counts


def places_of(device: Device, numbers: Array, size: int, dtype: Any) -> Array | None:
    """Return the index of each number; None if a number occurs twice. Synchronizes."""
    count, places = int(numbers.size), device.empty(size, dtype)
    device.fill_bytes(places, _ALL_BITS)
    if not count:
        return places
    args: Any = (np.int64(count), numbers, places, *tally(device, num_tiles(count)))
    _SOURCE.launch_tiles(device, "place_numbers", (places.dtype,), count, args)
    return places if device.counts.read() == [0] else None  # synchronizes


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    nonzero, others = [_RULES["nonzero"]], [number for rule, number in _RULES.items() if rule != "nonzero"]
    pointers = [(index, out) for index in INDEX_DTYPES for out in {index: 0, np.dtype(np.int64): 0}]
    values = "sum_runs diagonal_entries sorted_diagonal_entries scale_rows scale_columns"
    return [
        *_SOURCE.variants("row_numbers slice_pointers check_numbers count_numbers place_numbers", INDEX_DTYPES),
        *_SOURCE.variants("count_selected", ITEMS, INDEX_DTYPES, nonzero),
        *_SOURCE.variants("count_selected", [_BYTE], INDEX_DTYPES, others),
        *_SOURCE.variants("copy_selected", ITEMS, INDEX_DTYPES, _RULES.values()),
        *_SOURCE.variants("take_rows copy_entries", ITEMS, INDEX_DTYPES),
        *_SOURCE.variants("sum_sizes", INDEX_DTYPES, (0, 1)),
        *_SOURCE.variants("point_to_rows", pointers, (0, 1)),
        *_SOURCE.variants(values, COMPUTE_DTYPES, INDEX_DTYPES),
    ]
