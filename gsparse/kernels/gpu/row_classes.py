"""Classes of rows of a sparse matrix product. Each class has its own kernel.

If the rows of a product are all short, or have similar lengths, they are merged instead (`merged_rows.py`). The kernels
that classify rows, and the kernels for wide rows, are in `src/row_classes.cu`.

class    0            1 to 3                        4 to 6                            7
rows     no products  at most 16, 32, 64 products   a table in shared memory holds    wide: no table holds them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.kernels.gpu.launch import TILE_THREADS, Source, constant, expression, launch_blocks, num_tiles, tally
from gsparse.kernels.gpu.sparse_rows import point_to_rows, row_pointers, sum_tiles

_SOURCE = Source("row_classes.cu", constant("row_classes.cu", "GS_COUNT_THREADS"))
_CLASSES, FIRST_TABLE = constant(_SOURCE.file, "GS_ROW_CLASSES"), constant(_SOURCE.file, "GS_FIRST_TABLE")
WIDE = _CLASSES - 1
# The largest size of rows in each class with a table. The size of a row is its number of products while entries are
# counted, and its number of entries while they are filled in. The second tuple is for matrices with few columns, where
# the kernel for wide rows is fast because a row has few windows.
COUNT_LIMITS = ((384, 896, 3584), (384, 896, 896))
FILL_LIMITS = ((40, 160, 640), (40, 160, 160))
# To save launches, a class joins the following class that has rows, if its own rows are fewer than this number, or than
# this fraction of the other class's rows. Each kernel, except the one for wide rows, can also process rows of lower
# classes.
_FEW_ROWS = (20_000, 20_000, 20_000, 4_000, 4_000, 500)
_SMALL_PART = 0.2
# Numbers of lanes that count the products of a row: for at most _SHORT_ROWS entries per row of A, and for longer rows.
_PRODUCT_LANES, _SHORT_ROWS = (8, 32), 16

_WIDE_THREADS = constant(_SOURCE.file, "GS_WIDE_THREADS")
# Number of columns of a window, and numbers of entries of a window: for values of up to 8 bytes, and for larger values.
_COLUMNS = constant(_SOURCE.file, "GS_WINDOW_COLUMNS")
_ENTRIES = constant(_SOURCE.file, "GS_WINDOW_ENTRIES"), constant(_SOURCE.file, "GS_WINDOW_ENTRIES") // 2
# Up to this many blocks are launched without reading how many are needed. Surplus blocks have nothing to do, and take
# less time than waiting for that number.
_FEW_BLOCKS = 4096
# Maximum number of lanes that read a row of B together.
_MAX_LANES = constant(_SOURCE.file, "GS_WIDE_LANES")


@dataclass(frozen=True)
class RowClass:
    """The rows of one class.

    Attributes
    ----------
    number : int
        The number of the class, from 1 to 7.
    rows : array or None
        The row numbers; None for all rows of the matrix.
    count : int
        Number of rows.
    """

    number: int
    rows: Array | None
    count: int


@dataclass(frozen=True)
class Classes:
    """The classes of all rows that have products, and the sum of the sizes of all rows (see `COUNT_LIMITS`).

    Attributes
    ----------
    classes : tuple of RowClass
    total : int
        The sum of the sizes.
    offsets : array of int64
        The sum of the sizes of all rows before each tile of rows (`gsparse.kernels.gpu.sparse_rows.point_to_rows`).
    flag : array of uint32, shape (1,)
        A flag that is 0. Later kernels may set it.
    """

    classes: tuple[RowClass, ...]
    total: int
    offsets: Array
    flag: Array

    @property
    def nbytes(self) -> int:
        """Number of bytes of the arrays of row numbers."""
        return sum(int(group.rows.nbytes) for group in self.classes if group.rows is not None)


def longest_rows(device: Device, a: Csr, b: Csr) -> tuple[int, int]:
    """Return the lengths of the longest rows of two matrices. Synchronizes."""
    for place, csr in enumerate((a,) if b is a else (a, b)):
        if not csr.num_rows:
            return 0, 0
        find_longest(device, csr.indptr, csr.num_rows, 0, place)
    longest = device.counts.read(2)  # synchronizes
    return longest[0], longest[0 if b is a else 1]


def sizes_and_longest(device: Device, sizes: Array) -> tuple[Array, int, int]:
    """Return the sum of the sizes before each tile of rows, the total, and the largest size. Synchronizes.

    There is at least one row.
    """
    offsets = sum_tiles(device, sizes)
    find_longest(device, sizes, int(sizes.size), 1, 1)
    total, longest = device.counts.read(2)  # synchronizes
    return offsets, total, longest


def find_longest(device: Device, values: Array, num_rows: int, sizes: int, place: int) -> None:
    """Write the largest row length to element `place` of ``device.counts``. If `sizes`, `values` are lengths."""
    args = (np.int64(num_rows), values, *tally(device, num_tiles(num_rows), place))
    _SOURCE.launch_tiles(device, "longest_row", (values.dtype, sizes), num_rows, args)


def num_products(device: Device, a: Csr, b: Csr) -> Array:
    """Return the number of products for each row of A·B. Larger numbers than 2³¹ - 1 become 2³¹ - 1."""
    index, lanes = a.indices.dtype, _PRODUCT_LANES[a.nnz > _SHORT_ROWS * a.num_rows]
    products = device.empty(a.num_rows, index)
    args = (np.int64(a.num_rows), a.indptr, a.indices, b.indptr, products)
    _SOURCE.launch(device, "spgemm_products", (index, lanes), a.num_rows * lanes, args)
    return products


def classify(device: Device, sizes: Array, products: Array | None, limits: tuple[int, int, int]) -> Classes:
    """Return the classes of rows that have products. Synchronizes.

    A class with a table takes rows whose size is at most its limit. Classes of sorted rows compare `products` instead;
    without `products`, they are not used. A row belongs to the first class that takes it. Small classes join a higher
    one.
    """
    index, num_rows, blocks = sizes.dtype, int(sizes.size), num_tiles(int(sizes.size))
    of_row, flag = device.empty(num_rows, np.uint8), device.empty(1, np.uint32)
    counts, arrivals, totals = tally(device, (_CLASSES + 1) * (blocks + 1))
    if not num_rows:
        return Classes((), 0, counts[:0], device.xp.zeros(1, np.uint32))
    args: Any = (np.int64(num_rows), sizes, products, of_row, flag, counts, arrivals, totals)
    _SOURCE.launch_tiles(device, "classify_rows", (index, *limits), num_rows, args)
    *by_class, total = device.counts.read(_CLASSES + 1)  # synchronizes
    _join_small_classes(by_class)
    rows = None
    if max(by_class) < num_rows:
        rows = device.empty(num_rows, index)
        args = (np.int64(num_rows), of_row, counts, rows)
        _SOURCE.launch_tiles(device, "group_rows", (index,), num_rows, args)
    classes, start = list[RowClass](), 0
    for number, count in enumerate(by_class):
        if count and number:
            classes.append(RowClass(number, None if rows is None else rows[start : start + count], count))
        start += count
    return Classes(tuple(classes), total, counts[_CLASSES * blocks : (_CLASSES + 1) * blocks], flag)


def _join_small_classes(by_class: list[int]) -> None:
    """Change `by_class` so that small classes join the following class that has rows.

    Rows without products may join too, because they have no entries.
    """
    for number in range(WIDE - 1):
        above = next((n for n in range(number + 1, WIDE) if by_class[n]), number)
        if above > number and by_class[number] < max(_FEW_ROWS[above - 1], _SMALL_PART * by_class[above]):
            by_class[above] += by_class[number]
            by_class[number] = 0


def count_wide(device: Device, group: RowClass, a: Csr, b: Csr, sizes: Array | None) -> Array:
    """Add the number of entries of each wide row to `sizes`; return the number for each row and window of columns."""
    windows, index = _num_windows(b), a.indices.dtype
    counts = device.empty(group.count * windows, np.int32)
    args: Any = (*_shape_of(group.rows, group.count, b), a.indptr, a.indices, b.indptr, b.indices, counts, sizes)
    name = expression("spgemm_count_wide", index)
    launch_blocks(device, _SOURCE.file, name, group.count * windows, TILE_THREADS, args)
    return counts


def fill_wide_columns(device: Device, rows: Array | None, num_rows: int, a: Csr, b: Csr, c: Csr) -> None:
    """Write the columns of wide rows to `c`."""
    counts = count_wide(device, RowClass(0, rows, num_rows), a, b, None) if _num_windows(b) > 1 else None
    structure = (a.indptr, a.indices, b.indptr, b.indices, counts, c.indptr, c.indices)
    args: Any = (*_shape_of(rows, num_rows, b), *structure)
    name = expression("spgemm_columns_wide", c.indices.dtype)
    launch_blocks(device, _SOURCE.file, name, num_rows * _num_windows(b), TILE_THREADS, args)


def fill_wide_values(
    device: Device, rows: Array | None, num_rows: int, a: Csr, b: Csr, c: Csr, flags: tuple[Array | None, Array | None]
) -> None:
    """Write the values of wide rows to `c`, whose columns are known. May synchronize.

    If there are flags, they are set if a value is 0.
    """
    index, size = c.indices.dtype, _ENTRIES[c.dtype.itemsize > 8]
    windows = device.empty(num_rows, index)
    args: Any = (np.int32(size), np.int64(num_rows), rows, c.indptr, windows)
    _SOURCE.launch(device, "count_windows", (index,), num_rows, args)
    blocks = num_rows + c.nnz // size  # an upper bound
    if blocks <= _FEW_BLOCKS:
        first_window = point_to_rows(device, windows, sum_tiles(device, windows, is_total_read=False), index)
    else:
        first_window, blocks = row_pointers(device, windows)  # synchronizes
    arrays = (a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, c.indptr, c.indices, c.data)
    args = (np.int64(num_rows), rows, first_window, *arrays, *flags)
    launch_blocks(device, _SOURCE.file, expression("spgemm_values_wide", c.dtype, index), blocks, _WIDE_THREADS, args)


def _num_windows(b: Csr) -> int:
    return -(-b.num_cols // _COLUMNS)


def _shape_of(rows: Array | None, num_rows: int, b: Csr) -> tuple[Any, ...]:
    """Return kernel arguments: the number of windows, lanes per row of B, the number of rows, and the row numbers."""
    lanes = min(1 << (b.nnz // max(b.num_rows, 1)).bit_length(), _MAX_LANES)
    return np.int64(_num_windows(b)), np.int32(lanes), np.int64(num_rows), rows


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    return [
        *_SOURCE.variants("spgemm_products", INDEX_DTYPES, _PRODUCT_LANES),
        *_SOURCE.variants("classify_rows", INDEX_DTYPES, (*COUNT_LIMITS, *FILL_LIMITS)),
        *_SOURCE.variants("group_rows spgemm_count_wide spgemm_columns_wide count_windows", INDEX_DTYPES),
        *_SOURCE.variants("longest_row", INDEX_DTYPES, (0, 1)),
        *_SOURCE.variants("spgemm_values_wide", COMPUTE_DTYPES, INDEX_DTYPES),
    ]
