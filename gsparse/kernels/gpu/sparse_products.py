"""Products of two sparse matrices (contract: `gsparse.kernels.algebra`; kernels: see `src/products.cuh`).

If rows are short or have similar lengths, they are merged (`merged_rows.py`, which also makes this choice). Otherwise
the rows of the result are divided into classes (`row_classes.py`), each with its own kernel. In both cases, the entries
of each row are counted first, and then written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.algebra import KnownProduct
from gsparse.kernels.gpu import merged_rows, row_classes
from gsparse.kernels.gpu.launch import Source, constant
from gsparse.kernels.gpu.merged_rows import MOST_SLOTS, MergePlan, Slots, plan_merge, slots_limit
from gsparse.kernels.gpu.row_classes import (
    COUNT_LIMITS,
    FILL_LIMITS,
    FIRST_TABLE,
    WIDE,
    Classes,
    RowClass,
    classify,
    longest_rows,
    num_products,
    sizes_and_longest,
)
from gsparse.kernels.gpu.sparse_rows import drop_zeros, point_to_rows, row_pointers

_SORTED, _TABLES = (
    Source(file, constant(file, "GS_PRODUCT_THREADS"))
    for file in ("sparse_products_sorted.cu", "sparse_products_tables.cu")
)

# The products of a row are sorted in registers of eight lanes: up to 16, 32 and 64 products in 2, 4 and 8 registers.
_SORT_LANES, _REGISTERS = constant(_SORTED.file, "GS_SORT_LANES"), (2, 4, 8)
# Sort keys have 32 bits if there are at most this many columns, otherwise 64. Six bits hold the number of the product.
_NARROW_COLUMNS = (1 << 32 - constant(_SORTED.file, "GS_NUMBER_BITS")) - 1
# If there are at most this many rows, all rows are counted with one size of table that is large enough for all. Finding
# their classes would take longer.
_ONE_CLASS_ROWS = 20_000
# With at most this many columns, a wide row has at most two windows of columns (row_classes.py).
_FEW_COLUMNS = 65_536
# A number larger than the number of products of any row.
_MANY = 2**63
# If A has at least this many entries and the longest rows are unknown, it is worth finding them, because rows that can
# be merged need no classes.
_WORTH_A_LOOK = 100_000
# The tables for rows that are not sorted: number of lanes that share a table, and number of slots.
_COUNT_TABLES = ((32, 512), (32, 1024), (128, 4096))
_FILL_TABLES = ((8, 64), (32, 256), (128, 1024))


def spgemm(device: Device, a: Csr, b: Csr) -> Csr:
    """Return the product: count the entries of each row, fill the rows, and drop zeros. Synchronizes."""
    c, _ = _product(device, a, b, False)
    has_zeros = c.nnz and device.counts.read_flag()  # synchronizes
    return drop_zeros(device, c) if has_zeros else c


def spgemm_known(device: Device, a: Csr, b: Csr) -> KnownProduct:
    """Return the product with its classes of rows or its plan of merging, without slots. Synchronizes."""
    c, order = _product(device, a, b, True)
    return KnownProduct(c, replace(order, places=None) if isinstance(order, Slots) else order)


def spgemm_values(device: Device, a: Csr, b: Csr, known: KnownProduct) -> KnownProduct:
    """Compute the values for known columns, with the bits of the first product. Synchronizes if there are wide rows.

    If rows are merged, the first call finds the slots, and stores them in the result.
    """
    c, order = known.result.with_data(device.empty(known.result.nnz, a.dtype)), known.order
    if isinstance(order, Slots):
        order = merged_rows.with_places(device, a, b, c, order)
        merged_rows.fill(device, a, b, c, order, (None, None))
    else:
        _fill(device, a, b, c, order, False)
    return KnownProduct(c, order)


def _product(device: Device, a: Csr, b: Csr, keeps_slots: bool) -> tuple[Csr, Slots | Classes]:
    """Return A·B with all entries of its structure, even if they are 0. Synchronizes.

    Also return the classes of rows or, if rows are merged, `Slots`. These contain the slots of all rows if the slots
    take little memory; with `keeps_slots`, if they take at most as much memory as the result.
    """
    longest = None if a.longest is None or b.longest is None else (a.longest, b.longest)
    plan = None if longest is None else plan_merge(a, b, longest, device.lanes)
    if plan is None and a.nnz >= _WORTH_A_LOOK:  # known lengths are upper bounds: the true ones may allow a merge
        longest = longest_rows(device, a, b)  # synchronizes
        plan = plan_merge(a, b, longest, device.lanes)
    sizes = None
    if plan is not None:
        merged, sizes = _product_of_merged_rows(device, a, b, plan, keeps_slots)
        if merged is not None:
            return merged
    return _product_in_classes(device, a, b, _MANY if longest is None else longest[0] * longest[1], sizes)


def _product_in_classes(device: Device, a: Csr, b: Csr, most: int, sizes: Array | None) -> tuple[Csr, Classes]:
    """Return A·B and the classes of its rows. Synchronizes.

    `most` is the maximum number of products of a row. `sizes` holds the number of entries of each row; None if they
    have not been counted yet.
    """
    index, is_narrow, products = a.indices.dtype, b.num_cols <= _FEW_COLUMNS, None
    if sizes is None:
        table = next((n for n, limit in enumerate(COUNT_LIMITS[0]) if most <= limit), None)
        if table is not None and a.num_rows <= _ONE_CLASS_ROWS:
            counted = Classes((RowClass(FIRST_TABLE + table, None, a.num_rows),), 0, a.indptr[:0], a.indptr[:0])
        else:
            products = num_products(device, a, b)
            counted = classify(device, products, products, COUNT_LIMITS[is_narrow])  # synchronizes
        sizes = _row_sizes(device, a, b, counted)
    else:
        products = num_products(device, a, b)
    classes = classify(device, sizes, products, FILL_LIMITS[is_narrow])  # synchronizes
    indptr = point_to_rows(device, sizes, classes.offsets, np.int64 if classes.total > MAX_INT32 else index)
    a, b, c = _allocated(device, a, b, indptr, classes.total, None if most == _MANY else most)
    _fill(device, a, b, c, classes, True)
    return c, classes


def _allocated(
    device: Device, a: Csr, b: Csr, indptr: Array, nnz: int, longest: int | None = None
) -> tuple[Csr, Csr, Csr]:
    """Return A, B and their product, all in the index dtype of `indptr`. The product is not filled in yet."""
    index = indptr.dtype
    indices, data = device.empty(nnz, index), device.empty(nnz, a.dtype)
    c = Csr((a.num_rows, b.num_cols), indptr, indices, data, is_canonical=True, longest=longest)
    return a.with_index_dtype(index), b.with_index_dtype(index), c


def _product_of_merged_rows(
    device: Device, a: Csr, b: Csr, plan: MergePlan, keeps_slots: bool
) -> tuple[tuple[Csr, Slots] | None, Array]:
    """Return A·B, its `Slots`, and the number of entries of each row. Synchronizes.

    A·B is None if a row of the product has more entries than slots can number.
    """
    sizes, flag = device.empty(a.num_rows, a.indices.dtype), device.empty(1, np.uint32)
    places = merged_rows.empty_places(device, plan, a.num_rows) if plan.has_few_products else None
    merged_rows.merge(device, a, b, plan, (0, a.num_rows), sizes=sizes, places=places, flag=flag)
    if plan.has_few_products and a.nnz < _WORTH_A_LOOK:  # another launch would take longer
        longest, (indptr, nnz) = plan.most, row_pointers(device, sizes)  # synchronizes
    else:
        offsets, nnz, longest = sizes_and_longest(device, sizes)  # synchronizes
        if longest > MOST_SLOTS:
            return None, sizes
        indptr = point_to_rows(device, sizes, offsets, np.int64 if nnz > MAX_INT32 else sizes.dtype)
    limit = slots_limit(nnz * (indptr.dtype.itemsize + a.dtype.itemsize), keeps_slots)
    if plan.pitch * a.num_rows > limit:
        places = None
    slots = Slots(plan, longest, places)
    a, b, c = _allocated(device, a, b, indptr, nnz, longest)
    merged_rows.fill(device, a, b, c, slots, _zero_flag(device, flag))
    return (c, slots), sizes


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    keys = np.dtype(np.uint32), np.dtype(np.uint64)
    # Matrices with 64-bit indices have 64-bit keys.
    indices_and_keys = [(INDEX_DTYPES[0], keys[0]), *((index, keys[1]) for index in INDEX_DTYPES)]
    return [
        *merged_rows.instantiations(),
        *row_classes.instantiations(),
        *_TABLES.variants("spgemm_count", INDEX_DTYPES, _COUNT_TABLES),
        *_TABLES.variants("spgemm_fill", COMPUTE_DTYPES, INDEX_DTYPES, _FILL_TABLES, (0, 1)),
        *_SORTED.variants("spgemm_count_sorted", indices_and_keys, _REGISTERS),
        *_SORTED.variants("spgemm_fill_sorted", COMPUTE_DTYPES, indices_and_keys, _REGISTERS, (0, 1)),
    ]


def _key_dtype(num_cols: int, index: Any) -> np.dtype[Any]:
    """Return the dtype of the keys with which the products of a row are sorted."""
    return np.dtype(np.uint32 if index == np.int32 and num_cols <= _NARROW_COLUMNS else np.uint64)


def _row_sizes(device: Device, a: Csr, b: Csr, counted: Classes) -> Array:
    """Return the number of entries of each row of the product. `counted` holds the classes of the rows."""
    index, classes = a.indices.dtype, counted.classes
    # Rows without products are in no class, and the kernel for wide rows adds to `sizes`. Both need zeros.
    is_complete = sum(c.count for c in classes if c.number != WIDE) == a.num_rows
    sizes = device.empty(a.num_rows, index) if is_complete else device.xp.zeros(a.num_rows, index)
    structure = (a.indptr, a.indices, b.indptr, b.indices, sizes)
    for c in classes:
        if c.number == WIDE:
            row_classes.count_wide(device, c, a, b, sizes)
            continue
        args = (np.int64(c.count), c.rows, *structure)
        if c.number < FIRST_TABLE:
            types: Any = (index, _key_dtype(b.num_cols, index), _REGISTERS[c.number - 1])
            _SORTED.launch(device, "spgemm_count_sorted", types, c.count * _SORT_LANES, args)
        else:
            types = (index, *_COUNT_TABLES[c.number - FIRST_TABLE])
            _TABLES.launch(device, "spgemm_count", types, c.count * types[1], args)
    return sizes


def _zero_flag(device: Device, flag: Array | None) -> tuple[Array | None, Array | None]:
    """Return the arguments with which kernels report that a sum is 0 (`struct ZeroFlag` in products.cuh)."""
    if flag is None:
        return None, None
    device.counts.lower_flag()
    return flag, device.counts.flag


def _fill(device: Device, a: Csr, b: Csr, c: Csr, classes: Classes, structure: bool) -> None:
    """Write the values of the product to `c` and, if `structure`, its columns. A value that is 0 sets the flag."""
    index = c.indices.dtype
    arrays = (a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, c.indptr, c.indices, c.data)
    flags = _zero_flag(device, classes.flag if structure else None)
    for group in classes.classes:
        rows = None if group.rows is None else group.rows.astype(index, copy=False)
        if group.number == WIDE:
            if structure:
                row_classes.fill_wide_columns(device, rows, group.count, a, b, c)
            row_classes.fill_wide_values(device, rows, group.count, a, b, c, flags)
            continue
        args = (np.int64(group.count), rows, *arrays, *flags)
        if group.number < FIRST_TABLE:
            types: Any = (a.dtype, index, _key_dtype(c.num_cols, index), _REGISTERS[group.number - 1], int(structure))
            _SORTED.launch(device, "spgemm_fill_sorted", types, group.count * _SORT_LANES, args)
        else:
            types = (a.dtype, index, *_FILL_TABLES[group.number - FIRST_TABLE], int(structure))
            _TABLES.launch(device, "spgemm_fill", types, group.count * types[2], args)
