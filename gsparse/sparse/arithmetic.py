"""Sparse results of two matrices, or of a matrix and dense factors: products, sums, comparisons, scaling."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import StructureError
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.algebra import COMPARISONS, KnownProduct
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import BlockPattern
from gsparse.sparse.block_products import BlockProduct, block_patterns
from gsparse.sparse.canonical import canonical, computed, in_common, without_zeros
from gsparse.sparse.reshaping import dense_of


def scaled_values(device: Device, csr: Csr, factors: Array) -> Array:
    """Return each entry of a matrix times the factor in the entry's row and column.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
    factors : array
        The factors, on the device, of shape (num_rows, num_cols), (1, num_cols), (num_rows, 1) or (1, 1). They are
        broadcast to the shape of the matrix.

    Returns
    -------
    array, shape (nnz,)
        The new values, in the common dtype of values and factors by NumPy's rules.
    """
    if factors.size == 1:
        return csr.data * factors.reshape(())
    kernels = kernels_of(device)
    dtype = csr.dtype if csr.dtype == factors.dtype else np.result_type(csr.dtype, factors.dtype)
    if 1 not in factors.shape:
        return csr.data * kernels.edits.take_elements(device, csr, factors)
    values = computed(csr, dtype)
    scale = kernels.sparse_rows.scale_columns if factors.shape[0] == 1 else kernels.sparse_rows.scale_rows
    factors = factors.reshape(-1)
    if factors.dtype != values.dtype:
        factors = factors.astype(values.dtype)
    products = scale(device, values, factors if factors.flags.c_contiguous else device.xp.ascontiguousarray(factors))
    return products if products.dtype == dtype else products.astype(dtype)


# Smallest sum of the numbers of entries of both matrices for which searching for dense blocks pays.
_WORTH_A_LOOK = 100_000

# Number of parts into which the rows of a product are divided if memory does not suffice for all rows together.
_PARTS = 8


def product(device: Device, a: Csr, b: Csr) -> Csr:
    """Return A·B in canonical form, without zeros, as SciPy does.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    a, b : Csr
        Of shapes (M, K) and (K, N). Rows may be unsorted and have duplicates.

    Returns
    -------
    Csr
        Of shape (M, N), in the common dtype of A and B by NumPy's rules. Synchronizes.
    """
    result, a, b = _factors(device, a, b)
    return _product_of_entries(device, a, b, result)


def _factors(device: Device, a: Csr, b: Csr) -> tuple[np.dtype[Any], Csr, Csr]:
    """Return the dtype of a product, and A and B with values and indices of the dtypes that kernels need.

    Synchronizes.
    """
    result = a.dtype if a.dtype == b.dtype else np.result_type(a.dtype, b.dtype)
    device.compile_ahead("A @ A", result, a.indices.dtype)
    a, b = in_common(computed(a, result), canonical(device, computed(b, result)))
    return result, a, b


def _product_of_entries(device: Device, a: Csr, b: Csr, result: np.dtype[Any]) -> Csr:
    """Return A·B for the results of `_factors`, computed in parts if memory does not suffice. Synchronizes."""
    try:
        with device.memory_guard():
            c = kernels_of(device).sparse_products.spgemm(device, a, b)
    except MemoryError:
        c = None
    # Leaving the `except` block has dropped the traceback, and with it the arrays that it kept alive.
    return _without_zeros(device, product_in_parts(device, a, b) if c is None else c, result)


def may_have_blocks(a: Csr, b: Csr) -> bool:
    """Return whether matrices are large enough that looking for dense blocks may make their product faster."""
    return min(a.nnz, b.nnz) > 0 and a.nnz + b.nnz >= _WORTH_A_LOOK


def product_of_blocks(
    device: Device, a: Csr, b: Csr, of_a: tuple[int, int], of_b: tuple[int, int]
) -> tuple[Csr, tuple[int, int] | None]:
    """Return A·B and its block size, for matrices of full dense blocks.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    a, b : Csr
        As for `product`.
    of_a, of_b : (int, int)
        The block sizes of A and B.

    Returns
    -------
    (Csr, (int, int) or None)
        The product, as from `product`, and its block size. The block size is None if the product was computed by
        entries, or if zeros were dropped. Synchronizes.
    """
    result, a, b = _factors(device, a, b)
    try:
        with device.memory_guard():
            found = _product_of_blocks(device, a, b, of_a, of_b)
    except MemoryError:
        found = None
    if found is None:
        return _product_of_entries(device, a, b, result), None
    c = _without_zeros(device, kernels_of(device).sparse_rows.drop_zeros(device, found[0]), result)
    return c, found[1] if c.nnz == found[0].nnz else None


def _product_of_blocks(
    device: Device, a: Csr, b: Csr, of_a: tuple[int, int], of_b: tuple[int, int]
) -> tuple[Csr, tuple[int, int]] | None:
    """Return A·B, zeros included, and its block size; None if computing by entries is faster."""
    patterns = block_patterns(device, a, b, of_a, of_b)
    known = None if patterns is None else BlockProduct.of(device, *patterns, a.dtype)
    return None if known is None else (known.product(a.data, b.data), known.pattern.blocksize)


def product_in_parts(device: Device, a: Csr, b: Csr) -> Csr:
    """Return A·B without zeros. This needs little more memory than the result, but takes twice the time of `product`.

    Synchronizes.

    The rows of A are divided into parts. Each part is multiplied twice. The first time, only the entries of its rows
    are counted. Then the arrays of the result are allocated, and the second product of each part is copied into them.
    If memory does not suffice for a part, the part is halved.

    Parameters
    ----------
    a, b : Csr
        Both have the same compute dtype and index dtype. B is in canonical form.

    Raises
    ------
    DeviceMemoryError
        If memory does not suffice for the result and the product of a single row.
    """
    xp, parts, lengths = device.xp, list[tuple[int, int]](), list[Array]()
    bounds = [a.num_rows * part // _PARTS for part in range(_PARTS + 1)]
    waiting = [part for part in pairwise(bounds) if part[0] < part[1]][::-1]
    while waiting:
        start, end = waiting.pop()
        part = _product_of_rows(device, a, b, start, end, is_last_try=end - start == 1)
        if part is None:
            waiting += [((start + end) // 2, end), (start, (start + end) // 2)]
            continue
        parts.append((start, end))
        lengths.append(part.indptr[1:] - part.indptr[:-1])
        del part
    nnz = sum(int(of_part.sum()) for of_part in lengths)  # synchronizes
    index = a.indices.dtype if nnz <= MAX_INT32 else np.dtype(np.int64)
    with device.memory_guard():
        indptr, indices, data = xp.zeros(a.num_rows + 1, index), device.empty(nnz, index), device.empty(nnz, a.dtype)
        xp.cumsum(xp.concatenate([lengths[0][:0], *lengths]) if lengths else indptr[1:], out=indptr[1:], dtype=index)
    for start, end in parts:
        part = _product_of_rows(device, a, b, start, end, is_last_try=True)
        assert part is not None
        place = int(indptr[start])  # synchronizes
        indices[place : place + part.nnz], data[place : place + part.nnz] = part.indices, part.data
        del part
    return Csr((a.num_rows, b.num_cols), indptr, indices, data, is_canonical=True)


def _product_of_rows(device: Device, a: Csr, b: Csr, start: int, end: int, is_last_try: bool) -> Csr | None:
    """Return the product of A's rows `start` to ``end - 1`` with B; None if memory does not suffice. Synchronizes.

    If `is_last_try`, raise MemoryError instead of returning None.
    """
    try:
        with device.memory_guard():
            kernels = kernels_of(device)
            return kernels.sparse_products.spgemm(
                device, kernels.sparse_rows.slice_rows(device, a, start, end - start), b
            )
    except MemoryError:
        if is_last_try:
            raise
    return None


def combine(device: Device, operation: str, a: Csr, b: Csr) -> Csr:
    """Apply an operation to the elements of two matrices, as SciPy does.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    operation : str
        A member of `gsparse.kernels.algebra.UNION`, or "times".
    a, b : Csr
        Two matrices of the same shape. Rows may be unsorted and have duplicates.

    Returns
    -------
    Csr
        Canonical and without zeros. Values are boolean for comparisons, else in the common dtype of A and B by NumPy's
        rules. If A, B and the result have the same structure, the result shares A's row pointers and columns.
        Synchronizes.
    """
    common = a.dtype if a.dtype == b.dtype else np.result_type(a.dtype, b.dtype)
    # Comparisons, minima and maxima add up duplicates in the common dtype. There, sums of integers wrap around, and
    # True + True is True.
    a, b = (canonical(device, part.with_data(part.data.astype(common, copy=False))) for part in (a, b))
    a, b = in_common(computed(a, common), computed(b, common))
    c = kernels_of(device).sparse_pairs.combine_rows(device, operation, a, b, common == np.uint64)
    return _without_zeros(device, c, np.dtype(np.bool_) if operation in COMPARISONS else common)


def multiply_broadcast(device: Device, a: Csr, b: Csr) -> Csr:
    """Return the elementwise product of two matrices, one of which has a single row, column or element.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    a, b : Csr
        Two matrices whose shapes can be broadcast.

    Returns
    -------
    Csr
        The product, which may share arrays with `a` or `b`. It has no zeros, as in SciPy, unless one of the matrices
        has a single element. Synchronizes.
    """
    if a.num_cols == b.num_rows == 1 != a.num_rows and b.num_cols != 1:  # a column and a row
        return product(device, a, b)
    if b.num_cols == a.num_rows == 1 != b.num_rows and a.num_cols != 1:
        return product(device, b, a)
    if a.num_rows == 1 != b.num_rows or a.num_cols == 1 != b.num_cols:
        a, b = b, a
    factors = dense_of(device, b)
    if factors.size == 1:
        return a.with_data(scaled_values(device, a, factors))
    common = np.result_type(a.dtype, b.dtype)
    a = canonical(device, a.with_data(a.data.astype(common, copy=False)))
    with np.errstate(all="ignore"):  # SciPy's loops give no warnings of infinities.
        scaled = a.with_data(scaled_values(device, a, factors))
    return replace(without_zeros(device, scaled), is_canonical=True)


def _narrowed(csr: Csr, dtype: np.dtype[Any]) -> Csr:
    """Return a matrix, known to be canonical, with values cast to `dtype`. Integers wrap, as in SciPy's loops."""
    if csr.is_canonical and csr.dtype == dtype:
        return csr
    return replace(csr, data=csr.data.astype(dtype, copy=False), is_canonical=True)


def _without_zeros(device: Device, csr: Csr, dtype: np.dtype[Any]) -> Csr:
    """Cast a canonical matrix to `dtype`, and drop integers that became 0 because they wrapped. May synchronize."""
    csr = _narrowed(csr, dtype)
    is_wrapped = dtype.kind in "iu" and dtype.itemsize < 8
    return replace(kernels_of(device).sparse_rows.drop_zeros(device, csr), is_canonical=True) if is_wrapped else csr


class CsrProduct:
    """A product of two sparse matrices that can be computed again for other values.

    The structure of the result is computed once, so that `update` only multiplies and adds. On a GPU, the first
    `update` also stores, for each product of two entries in a short row, to which entry of the result it is added. It
    does so only if this takes no more memory than the result.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    a, b : Csr
        Of shapes (M, K) and (K, N); B in canonical form.
    patterns : (BlockPattern, BlockPattern), optional
        The block patterns of A and B, if both consist of full dense blocks. The product is then computed by blocks if
        that is faster.

    Raises
    ------
    StructureError
        If B is not in canonical form.
    """

    def __init__(
        self, device: Device, a: Csr, b: Csr, patterns: tuple[BlockPattern, BlockPattern] | None = None
    ) -> None:
        self._device = device
        self._dtype = np.result_type(a.dtype, b.dtype)
        self._structure = (a.shape, a.nnz, b.shape, b.nnz)
        a, b = in_common(computed(a, self._dtype), computed(b, self._dtype))
        is_sorted = (
            b.is_canonical or not kernels_of(device).layout.survey(device, b.indptr, b.indices, False).num_unsorted
        )
        if not is_sorted:
            raise StructureError("the second matrix must have sorted rows without duplicates: call sum_duplicates()")
        self._blocks = None if patterns is None else BlockProduct.of(device, *patterns, a.dtype)
        if self._blocks is None:
            self._known = kernels_of(device).sparse_products.spgemm_known(device, a, b)
        else:
            self._known = KnownProduct(self._blocks.product(a.data, b.data))

    @property
    def pattern(self) -> BlockPattern | None:
        """The blocks of the result if it was computed by blocks, else None."""
        return None if self._blocks is None else self._blocks.pattern

    @property
    def nbytes(self) -> int:
        """Bytes of the result and of the arrays that are kept for updates."""
        kept = self._known.order if self._blocks is None else self._blocks
        return self._known.result.nbytes + int(getattr(kept, "nbytes", 0))

    @property
    def result(self) -> Csr:
        """A·B in canonical form, with an entry wherever entries of A and B are multiplied, even if their sum is 0."""
        return _narrowed(self._known.result, self._dtype)

    def forget_values(self) -> None:
        """Free the values of `result`; `update` computes them again."""
        known = self._known.result
        self._known = replace(self._known, result=known.with_data(self._device.empty(0, known.dtype)))

    def update(self, a: Csr, b: Csr) -> Csr:
        """Return the product of matrices that have the structures of A and B but other values. Synchronizes.

        Raises
        ------
        StructureError
            If a shape or a number of entries differs from that of A or B.
        """
        if (a.shape, a.nnz, b.shape, b.nnz) != self._structure:
            raise StructureError(
                f"the structure was found for shapes and numbers of entries {self._structure}, "
                f"got {(a.shape, a.nnz, b.shape, b.nnz)}: make a new product"
            )
        a, b = computed(a, self._dtype), computed(b, self._dtype)
        if self._blocks is not None:
            values = self._blocks.values(a.data, b.data)
            self._known = KnownProduct(self._known.result.with_data(values))
            return self.result
        a, b, result = in_common(a, b, self._known.result)
        known = replace(self._known, result=result)
        self._known = kernels_of(self._device).sparse_products.spgemm_values(self._device, a, b, known)
        return self.result
