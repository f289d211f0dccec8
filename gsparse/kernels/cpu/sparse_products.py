"""Products of two sparse matrices, row by row (Gustavson 1978). The contract is in `gsparse.kernels.algebra`.

Each part has an array `sums` with one element per column of the result, and an array `bits` with one bit per column.
The products of a row are added to `sums` in the order of the entries in A's row, and their columns are marked in
`bits`. A list has the numbers of the words of `bits` that are not 0. Reading these words in ascending order yields the
sorted row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.algebra import KnownProduct
from gsparse.kernels.cpu.compiling import compiled, inlined
from gsparse.kernels.cpu.instructions import num_trailing_zeros
from gsparse.kernels.cpu.rows import Int, first_row
from gsparse.kernels.cpu.sparse_rows import Rows, drop_zeros

# If fewer words of `bits` lie between the first and the last marked word than this multiple of the number of marked
# words, all of them are read. Otherwise, the list of marked words is sorted.
_SCAN_RATIO = 8
# The gaps of Shell's sort (Ciura 2001). Each gap is about 2.25 times the following gap.
_GAPS = (90927, 40412, 17961, 7983, 3548, 1577, 701, 301, 132, 57, 23, 10, 4, 1)


def spgemm(device: Device, a: Csr, b: Csr) -> Csr:
    """Compute the product, and drop its zeros."""
    c, has_zeros = _product(a, b)
    return drop_zeros(device, c) if has_zeros else c


def spgemm_known(device: Device, a: Csr, b: Csr) -> KnownProduct:
    """Compute the product with its zeros. This backend has no private data for `spgemm_values`."""
    return KnownProduct(_product(a, b)[0])


def _product(a: Csr, b: Csr) -> tuple[Csr, bool]:
    """Return the product, and whether a value is 0. First count the entries of each row, then sum the products."""
    products = products_before_rows(a, b)
    indptr = np.zeros(a.num_rows + 1, np.int64)
    run_parts(_count_rows, int(products[-1]), products, a.indptr, a.indices, b.indptr, b.indices, b.num_cols, indptr)
    np.cumsum(indptr, out=indptr)
    nnz = int(indptr[-1])
    index = a.indices.dtype if nnz <= MAX_INT32 else np.dtype(np.int64)
    c = Csr((a.num_rows, b.num_cols), indptr.astype(index), np.empty(nnz, index), np.empty(nnz, a.dtype))
    has_zeros = np.zeros(1, np.bool_)
    run_parts(_fill_rows, int(products[-1]), products, b.num_cols, _rows(a), _rows(b), _rows(c), has_zeros)
    return c, bool(has_zeros[0])


def spgemm_values(device: Device, a: Csr, b: Csr, known: KnownProduct) -> KnownProduct:
    """Compute the values of a product whose structure is known."""
    products, c = products_before_rows(a, b), known.result
    data = np.empty(c.nnz, a.dtype)
    result = c.with_data(data)
    run_parts(_fill_values, int(products[-1]), products, b.num_cols, _rows(a), _rows(b), _rows(result))
    return KnownProduct(result)


def _rows(csr: Csr) -> Rows:
    return csr.indptr, csr.indices, csr.data


def products_before_rows(a: Csr, b: Csr) -> Array:
    """Return, for each row, the number of products in all rows before it; the last element counts all products."""
    products = np.zeros(a.num_rows + 1, np.int64)
    run_parts(_count_products, a.nnz + a.num_rows, a.indptr, a.indices, b.indptr, products)
    return np.cumsum(products, out=products)


@compiled
def _count_products(part: int, num_parts: int, a_indptr: Array, a_indices: Array, b_indptr: Array, out: Array) -> None:
    for row in range(first_row(part, num_parts, a_indptr), first_row(part + 1, num_parts, a_indptr)):
        count = np.int64(0)
        for k in range(a_indptr[np.uint64(row)], a_indptr[np.uint64(row + 1)]):
            inner = a_indices[np.uint64(k)]
            count += np.int64(b_indptr[np.uint64(inner + 1)]) - np.int64(b_indptr[np.uint64(inner)])
        out[np.uint64(row + 1)] = count


@partial(compiled, allocates=True)
def _count_rows(
    part: int,
    num_parts: int,
    products: Array,
    a_indptr: Array,
    a_indices: Array,
    b_indptr: Array,
    b_indices: Array,
    num_cols: int,
    sizes: Array,
) -> None:
    begin, end = first_row(part, num_parts, products), first_row(part + 1, num_parts, products)
    if begin == end:
        return
    marks = np.full(num_cols, -1, np.int64)  # last row with an entry in each column
    for row in range(begin, end):
        count = np.int64(0)
        for k in range(a_indptr[np.uint64(row)], a_indptr[np.uint64(row + 1)]):
            inner = np.uint64(a_indices[np.uint64(k)])
            for p in range(b_indptr[inner], b_indptr[inner + np.uint64(1)]):
                column = np.uint64(b_indices[np.uint64(p)])
                count += marks[column] != row
                marks[column] = row
        sizes[np.uint64(row + 1)] = count


@partial(compiled, allocates=True)
def _fill_rows(
    part: int,
    num_parts: int,
    products: Array,
    num_cols: int,
    a_rows: Rows,
    b_rows: Rows,
    c_rows: Rows,
    has_zeros: Array,
) -> None:
    a_indptr, a_indices, a_data = a_rows
    b_indptr, b_indices, b_data = b_rows
    c_indptr, c_indices, c_data = c_rows
    begin, end = first_row(part, num_parts, products), first_row(part + 1, num_parts, products)
    if begin == end:
        return
    sums = np.empty(num_cols, a_data.dtype)
    bits = np.zeros(num_cols // 64 + 1, np.uint64)
    # Numbers of the words of `bits` that are not 0, in the order in which the words were first marked.
    words = np.empty(num_cols // 64 + 1, np.int64)
    one, six, low_bits = np.uint64(1), np.uint64(6), np.uint64(63)
    for row in range(begin, end):
        num_words = np.int64(0)
        for k in range(a_indptr[np.uint64(row)], a_indptr[np.uint64(row + 1)]):
            inner, a = np.uint64(a_indices[np.uint64(k)]), a_data[np.uint64(k)]
            for p in range(b_indptr[inner], b_indptr[inner + one]):
                column = np.uint64(b_indices[np.uint64(p)])
                product = a * b_data[np.uint64(p)]
                word, bit = bits[column >> six], one << (column & low_bits)
                if word & bit:
                    sums[column] += product
                    continue
                sums[column] = product
                bits[column >> six] = word | bit
                if not word:
                    words[np.uint64(num_words)] = column >> six
                    num_words += 1
        place = np.uint64(c_indptr[np.uint64(row)])
        first, count, is_list = _order(words, num_words)
        for i in range(count):
            number = np.uint64(words[np.uint64(i)] if is_list else first + i)
            word = bits[number]
            bits[number] = 0
            while word:
                column = (number << six) + num_trailing_zeros(word)
                c_indices[place] = column
                c_data[place] = sums[column]
                if sums[column] == 0:
                    has_zeros[0] = True
                place += one
                word &= word - one


@inlined
def _order(words: Array, num_words: Int) -> tuple[Any, Any, bool]:
    """Return (first word, number of words, whether to use the list), to read the marked words in ascending order.

    If the words are close together, all words from the first to the last are read, and the list is not sorted.
    """
    if num_words == 0:
        return np.int64(0), np.int64(0), False
    first = last = words[0]
    for i in range(1, num_words):
        first, last = min(first, words[np.uint64(i)]), max(last, words[np.uint64(i)])
    if last - first < _SCAN_RATIO * num_words:
        return first, last - first + 1, False
    for gap in _GAPS:
        for i in range(gap, num_words):
            word, j = words[np.uint64(i)], np.int64(i)
            while j >= gap and words[np.uint64(j - gap)] > word:
                words[np.uint64(j)] = words[np.uint64(j - gap)]
                j -= gap
            words[np.uint64(j)] = word
    return first, num_words, True


@partial(compiled, allocates=True)
def _fill_values(
    part: int, num_parts: int, products: Array, num_cols: int, a_rows: Rows, b_rows: Rows, c_rows: Rows
) -> None:
    a_indptr, a_indices, a_data = a_rows
    b_indptr, b_indices, b_data = b_rows
    c_indptr, c_indices, c_data = c_rows
    begin, end = first_row(part, num_parts, products), first_row(part + 1, num_parts, products)
    if begin == end:
        return
    places = np.empty(num_cols, np.int64)  # position in `c_data` of each column of the row
    for row in range(begin, end):
        for e in range(c_indptr[np.uint64(row)], c_indptr[np.uint64(row + 1)]):
            places[np.uint64(c_indices[np.uint64(e)])] = e
            c_data[np.uint64(e)] = 0
        for k in range(a_indptr[np.uint64(row)], a_indptr[np.uint64(row + 1)]):
            inner, a = np.uint64(a_indices[np.uint64(k)]), a_data[np.uint64(k)]
            for p in range(b_indptr[inner], b_indptr[inner + np.uint64(1)]):
                c_data[np.uint64(places[np.uint64(b_indices[np.uint64(p)])])] += a * b_data[np.uint64(p)]
