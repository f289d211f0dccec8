"""Sparse algebra on the arrays of a device, one body for every device: products, combinations, selections."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as product_of
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.formats import Csr
from gsparse.kernels.algebra import UNION
from gsparse.sparse.arithmetic import CsrProduct, combine, multiply_broadcast, product
from gsparse.sparse.canonical import canonical
from gsparse.sparse.reshaping import select_columns, select_rows, triangle
from tests.support import DTYPES, INDEX_DTYPES, STRUCTURES, from_lengths, host, on_device, with_types

SCIPY = {
    "plus": lambda a, b: a + b,
    "minus": lambda a, b: a - b,
    "times": lambda a, b: a.multiply(b),
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
}


def on(device: Device, S: Any) -> Csr:
    """Bring the arrays of a SciPy matrix to a device as they are."""
    return Csr(S.shape, *(on_device(device, part) for part in (S.indptr, S.indices, S.data)))


def scipy_of(csr: Csr) -> sp.csr_array:
    """Return the matrix as SciPy's; it must be in canonical form."""
    S = sp.csr_array((host(csr.data), host(csr.indices), host(csr.indptr)), shape=csr.shape)
    S.check_format(full_check=True)
    falls = np.flatnonzero(np.diff(S.indices.astype(np.int64)) <= 0) + 1
    assert np.isin(falls, S.indptr).all(), "columns are not in ascending order within each row"
    return S


def assert_same(got: Csr, want: Any) -> None:
    """Compare structure, values and dtype with a SciPy matrix, to the last bit."""
    want = sp.csr_array(want)
    want.sum_duplicates()
    found = scipy_of(got)
    assert found.shape == want.shape
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found.indptr, want.indptr)
    np.testing.assert_array_equal(found.indices, want.indices)
    np.testing.assert_array_equal(found.data, want.data)


def assert_same_entries(got: Csr, want: sp.csr_array) -> None:
    """Compare with a SciPy matrix to the last bit, whatever the order of the entries of each row."""
    found = sp.csr_array((host(got.data), host(got.indices), host(got.indptr)), shape=got.shape)
    found.sort_indices()
    want.sort_indices()
    for part in ("shape", "indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, part), getattr(want, part))


def whole_numbers(S: sp.csr_array, rng: np.random.Generator, dtype: Any = float) -> sp.csr_array:
    """Return the same structure with small whole numbers, some of them 0, whose sums and products are exact."""
    made = S.copy()
    dtype = np.dtype(dtype)
    values = rng.integers(0 if dtype.kind == "u" else -2, 3, S.nnz)
    made.data = (values + 1j * rng.integers(-2, 3, S.nnz) if dtype.kind == "c" else values).astype(dtype)
    return made


def assert_product_is_exact_enough(C: sp.csr_array, A: sp.csr_array, B: sp.csr_array) -> None:
    """Check |computed - exact| ≤ c·eps·(|A|·|B|) entry by entry."""
    wide = np.clongdouble if C.dtype.kind == "c" else np.longdouble
    dense = [np.zeros(M.shape, wide) for M in (A, B)]
    sizes = [np.zeros(M.shape, np.longdouble) for M in (A, B)]
    for M, values, size in zip((A, B), dense, sizes, strict=True):
        coo = M.tocoo()
        np.add.at(values, coo.coords, coo.data.astype(wide))
        np.add.at(size, coo.coords, abs(coo.data.astype(wide)))
    allowed = (np.diff(A.indptr)[:, None] + 8) * 2 * np.finfo(C.dtype).eps * (sizes[0] @ sizes[1])
    assert (abs(C.toarray() - dense[0] @ dense[1]) <= allowed).all()


# ---------------------------------------------------------------------------- products

# Shapes of (A, B) by the lengths of their rows: few products a row, hundreds, and more than a table in shared memory
# holds, in one window of columns and in several.
PAIRS: dict[str, Any] = {
    "few products": lambda rng: (from_lengths(rng.integers(0, 6, 70), 50, rng), from_lengths(np.full(50, 4), 45, rng)),
    "hundreds of products": lambda rng: (
        from_lengths(rng.integers(0, 30, 19), 90, rng),
        from_lengths(rng.integers(0, 20, 90), 400, rng),
    ),
    "wide rows": lambda rng: (
        from_lengths(rng.integers(0, 90, 7), 100, rng),
        from_lengths(rng.integers(0, 80, 100), 5000, rng),
    ),
    "rows of every kind": lambda rng: (
        from_lengths([0, 1, 3, 200, 0, 17, 60, 2], 120, rng),
        from_lengths(np.where(np.arange(120) == 7, 600, rng.integers(0, 9, 120)), 1200, rng),
    ),
    "long rows of B": lambda rng: (from_lengths([3, 0, 5], 6, rng), from_lengths(np.full(6, 900), 3000, rng)),
    "columns in several windows": lambda rng: (
        from_lengths([40, 2, 0], 50, rng),
        from_lengths(np.full(50, 30), 600_000, rng),
    ),
    "one column": lambda rng: (from_lengths(rng.integers(0, 3, 65), 9, rng), from_lengths(np.full(9, 1), 1, rng)),
    "empty A": lambda rng: (sp.csr_array((5, 7)), from_lengths(np.full(7, 3), 8, rng)),
    "empty B": lambda rng: (from_lengths(np.full(4, 3), 7, rng), sp.csr_array((7, 8))),
    "no inner dimension": lambda rng: (sp.csr_array((5, 0)), sp.csr_array((0, 8))),
    "no rows": lambda rng: (sp.csr_array((0, 7)), from_lengths(np.full(7, 3), 8, rng)),
    "no columns": lambda rng: (from_lengths(np.full(4, 3), 7, rng), sp.csr_array((7, 0))),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_product_has_the_entries_of_scipys_and_exact_values(
    device: Device, pair: str, rng: np.random.Generator
) -> None:
    A, B = (whole_numbers(S, rng) for S in PAIRS[pair](rng))
    assert_same(product(device, on(device, A), on(device, B)), A @ B)


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", COMPUTE_DTYPES, ids=str)
def test_a_product_is_right_for_every_type(device: Device, dtype: Any, index: Any, rng: np.random.Generator) -> None:
    A, B = (with_types(S, dtype, index, rng) for S in PAIRS["rows of every kind"](rng))
    C = scipy_of(product(device, on(device, A), on(device, B)))
    assert C.indices.dtype == index
    assert C.dtype == dtype
    if dtype.kind == "i":
        assert (C != A @ B).nnz == 0
    else:
        assert_product_is_exact_enough(C, A, B)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.uint64, np.float32], ids=str)
def test_a_product_has_the_dtype_that_scipy_gives_it(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    A, B = (whole_numbers(S, rng, dtype) for S in PAIRS["hundreds of products"](rng))
    assert_same(product(device, on(device, A), on(device, B)), A @ B)
    assert_same(product(device, on(device, A.astype(np.int16)), on(device, B)), A.astype(np.int16) @ B)


def test_a_product_is_the_same_to_the_bit_each_time(device: Device, rng: np.random.Generator) -> None:
    A, B = PAIRS["rows of every kind"](rng)
    a, b = on(device, A), on(device, B)
    first = scipy_of(product(device, a, b))
    for _ in range(3):
        assert_same(product(device, a, b), first)


def test_subnormal_infinite_and_undefined_values_go_through_a_product(device: Device) -> None:
    for dtype in (np.float32, np.float64):
        tiny = np.finfo(dtype).smallest_subnormal
        A = sp.csr_array(np.array([[1, 0, 0], [0, np.inf, 0], [0, 0, np.nan], [2, 1, 0]], dtype))
        B = sp.csr_array(np.array([[tiny, 3 * tiny], [0, 1], [1, 0]], dtype))
        C = product(device, on(device, A), on(device, B))
        want = A @ B
        want.sort_indices()
        np.testing.assert_array_equal(host(C.indices), want.indices)
        np.testing.assert_array_equal(host(C.data), want.data)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pair", ["few products", "rows of every kind", "columns in several windows", "empty A"])
def test_a_product_is_made_again_for_new_values(
    device: Device, pair: str, dtype: Any, rng: np.random.Generator
) -> None:
    A, B = PAIRS[pair](rng)
    B.sum_duplicates()
    made = CsrProduct(device, *(on(device, with_types(S, dtype, np.int32, rng)) for S in (A, B)))
    a, b = (on(device, with_types(S, dtype, np.int32, rng)) for S in (A, B))
    again = made.update(a, b)
    fresh = CsrProduct(device, a, b).result
    for one, other in ((again.indptr, fresh.indptr), (again.indices, fresh.indices), (again.data, fresh.data)):
        np.testing.assert_array_equal(host(one), host(other))


# ---------------------------------------------------------------------------- two matrices of one shape


@pytest.mark.parametrize("operation", sorted(UNION | {"times"}))
@pytest.mark.parametrize("structure", STRUCTURES)
def test_combinations_equal_scipys(device: Device, structure: str, operation: str, rng: np.random.Generator) -> None:
    A = whole_numbers(STRUCTURES[structure](rng), rng)
    B = A[rng.permutation(A.shape[0])]
    assert_same(combine(device, operation, on(device, A), on(device, B)), SCIPY[operation](A, B))


@pytest.mark.parametrize("operation", SCIPY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128, np.int16, np.uint64])
def test_matrices_of_one_structure_share_it_with_the_result(
    device: Device, operation: str, dtype: Any, rng: np.random.Generator
):
    S = from_lengths(rng.integers(0, 40, 150), 90, rng)
    S.sum_duplicates()
    A, B = (whole_numbers(S, rng, dtype) for _ in range(2))
    a = on(device, A)
    for b in (a.with_data(on_device(device, B.data)), on(device, B)):  # the same arrays, and equal ones
        assert_same(combine(device, operation, a, b), SCIPY[operation](A, B))
    A.data[:], B.data[:] = 3, 2
    result = combine(device, "plus", on(device, A), b := on(device, B))
    assert_same(result, A + B)
    assert combine(device, "plus", b, b).indices is b.indices
    moved = B.copy()
    moved.indices = (moved.indices + 1) % 90  # as many entries in each row
    moved.sort_indices()
    assert_same(combine(device, operation, on(device, A), on(device, moved)), SCIPY[operation](A, moved))


def broadcast_pairs() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the pairs of different shapes that can be broadcast, of 0, 1 and 3 rows and columns."""
    shapes = list(product_of((0, 1, 3), repeat=2))
    for shape, other in product_of(shapes, shapes):
        if shape != other and all(m == n or 1 in (m, n) for m, n in zip(shape, other, strict=True)):
            yield shape, other


@pytest.mark.parametrize(("shape", "other"), list(broadcast_pairs()))
def test_products_of_rows_columns_and_empty_matrices_have_scipys_shape_and_entries(
    device: Device, shape: tuple[int, int], other: tuple[int, int]
) -> None:
    a, b = (sp.csr_array(np.arange(2.0, 2 + m * n).reshape(m, n)) for m, n in (shape, other))
    with device.active():
        got = multiply_broadcast(device, on(device, a), on(device, b))
    assert got.shape == np.broadcast_shapes(shape, other)
    np.testing.assert_array_equal(scipy_of(got).toarray(), a.toarray() * b.toarray())


def test_subnormal_values_are_not_treated_as_zero(device: Device) -> None:
    for dtype in (np.float32, np.float64):
        tiny = np.finfo(dtype).smallest_subnormal
        A, B = sp.csr_array(np.array([[tiny, 1, -tiny]], dtype)), sp.csr_array(np.array([[0, 1, 2 * tiny]], dtype))
        for operation in ("plus", "minus", "maximum", "minimum", "ne", "lt", "gt"):
            assert_same(combine(device, operation, on(device, A), on(device, B)), SCIPY[operation](A, B))


# ---------------------------------------------------------------------------- parts of one matrix


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_canonical_form_equals_scipys(device: Device, structure: str, rng: np.random.Generator) -> None:
    for dtype in (np.float64, np.int8, np.bool_):
        S = whole_numbers(STRUCTURES[structure](rng), rng, dtype)
        S.data *= dtype(50)  # sums wrap in int8
        want = S.copy()
        want.sum_duplicates()
        assert_same(canonical(device, on(device, S)), want)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_rows_columns_and_triangles_of_difficult_structures_equal_scipys(
    device: Device, structure: str, rng: np.random.Generator
) -> None:
    S = STRUCTURES[structure](rng)
    S.sum_duplicates()
    a, (num_rows, num_cols) = on(device, S), S.shape
    rows = rng.integers(0, num_rows, 33) if num_rows else np.zeros(0, np.int64)
    columns = rng.integers(0, num_cols, 33) if num_cols else np.zeros(0, np.int64)
    assert_same(select_rows(device, a, on_device(device, rows)), S[rows])
    assert_same_entries(select_columns(device, a, on_device(device, columns)), S[:, columns])
    for offset in (-3, 0, 2):
        assert_same(triangle(device, a, offset, upper=True), sp.triu(S, offset, format="csr"))
        assert_same(triangle(device, a, offset, upper=False), sp.tril(S, offset, format="csr"))
