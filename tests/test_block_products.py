"""Products of two sparse matrices that consist of dense blocks, computed block by block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.formats import Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.backends import kernels_of
from gsparse.sparse import arithmetic
from gsparse.sparse.arithmetic import CsrProduct, product, product_of_blocks
from gsparse.sparse.block_products import block_pattern, block_patterns
from tests.proof.emulated_device import EmulatedDevice
from tests.support import INDEX_DTYPES, host, on_device, with_types
from tests.test_dense_blocks import STRUCTURES, of_blocks
from tests.test_sparse_algebra import whole_numbers

Size = tuple[int, int, int]


@pytest.fixture(autouse=True)
def multiplies_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply also such matrices by blocks that could be multiplied faster by entries."""
    monkeypatch.setattr("gsparse.kernels.cpu.blocks._FEWEST_PRODUCTS", 0)
    monkeypatch.setattr("gsparse.kernels.gpu.blocks._MOST_LOOKS", 1000.0)


def upload(device: Device, S: sp.csr_array) -> Csr:
    return Csr(S.shape, *(on_device(device, part) for part in (S.indptr, S.indices, S.data)), is_canonical=True)


def two(name: str, sizes: Size, rng: np.random.Generator) -> tuple[sp.csr_array, sp.csr_array]:
    """Return A with blocks of p x q in a structure, and B with blocks of q x r and 0 to 3 blocks in a block row."""
    p, q, r = sizes
    lengths, num_block_cols = STRUCTURES[name](rng)
    A = of_blocks(lengths, num_block_cols, (p, q), rng)
    return A, of_blocks(rng.integers(0, 4, num_block_cols), 37, (q, r), rng)


def by_blocks(device: Device, a: Csr, b: Csr, sizes: Size) -> CsrProduct:
    """Return the product of two matrices with blocks of p x q and q x r. It is made by blocks."""
    p, q, r = sizes
    made = CsrProduct(device, a, b, (block_pattern(device, a, (p, q)), block_pattern(device, b, (q, r))))
    assert made.pattern is not None
    assert made.pattern.blocksize == (p, r)
    return made


def assert_alike(result: Csr, expected: Csr) -> None:
    """Check that two products have the same stored entries, whose values are close, NaN and inf included."""
    for part in ("indptr", "indices"):
        np.testing.assert_array_equal(host(getattr(result, part)), host(getattr(expected, part)))
        assert getattr(result, part).dtype == getattr(expected, part).dtype
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    tolerance = 0.0 if result.dtype.kind in "iu" else 50 * float(np.finfo(result.dtype).eps)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(host(result.data), host(expected.data), rtol=tolerance, atol=tolerance)


def assert_within_the_bound(result: Csr, A: sp.csr_array, B: sp.csr_array) -> None:
    """Check |computed - exact| ≤ c·eps·(|A|·|B|) for each entry."""
    S = sp.csr_array((host(result.data), host(result.indices), host(result.indptr)), shape=result.shape)
    wide = np.longdouble
    error = abs(S.toarray() - A.toarray().astype(wide) @ B.toarray().astype(wide))
    bound = abs(A).toarray() @ abs(B).toarray()
    length = int(np.diff(A.indptr).max(initial=0)) + 4
    assert np.all(error <= 2 * length * np.finfo(result.dtype).eps * bound)


@pytest.mark.parametrize("sizes", [(3, 3, 6), (6, 3, 6), (2, 5, 4), (1, 3, 1)], ids=str)
@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.few(6)
def test_a_product_by_blocks_has_the_entries_of_one_by_entries(
    device: Device, name: str, sizes: Size, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.kernels.gpu.blocks._SHORT", 1000)
    A, B = two(name, sizes, rng)
    a, b = upload(device, A), upload(device, B)
    result = by_blocks(device, a, b, sizes).result
    assert_alike(result, CsrProduct(device, a, b).result)
    assert_within_the_bound(result, A, B)


@pytest.mark.parametrize("rows", range(1, MAX_BLOCK + 1))
@pytest.mark.few(4)
def test_blocks_of_every_height_are_multiplied(device: Device, rows: int, rng: np.random.Generator) -> None:
    sizes = rows, MAX_BLOCK + 1 - rows, 1 + rows % 4
    A, B = two("empty block rows", sizes, rng)
    assert_within_the_bound(by_blocks(device, upload(device, A), upload(device, B), sizes).result, A, B)


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", COMPUTE_DTYPES, ids=str)
@pytest.mark.few(3)
def test_blocks_of_every_dtype_are_multiplied(device: Device, dtype: Any, index: Any, rng: np.random.Generator) -> None:
    A, B = (with_types(S, dtype, index, rng) for S in two("ragged", (3, 2, 4), rng))
    a, b = upload(device, A), upload(device, B)
    result = by_blocks(device, a, b, (3, 2, 4)).result
    assert result.indices.dtype == index
    assert_alike(result, CsrProduct(device, a, b).result)


@pytest.mark.parametrize(("first", "second"), [(np.int32, np.int64), (np.int64, np.int32)])
def test_matrices_of_different_types_are_multiplied(
    device: Device, first: Any, second: Any, rng: np.random.Generator
) -> None:
    A, B = two("even", (2, 2, 2), rng)
    a, b = upload(device, with_types(A, np.float32, first, rng)), upload(device, with_types(B, np.int16, second, rng))
    known = by_blocks(device, a, b, (2, 2, 2))
    expected = CsrProduct(device, a, b).result
    assert known.result.dtype == np.float32
    for result in (known.result, known.update(a, b)):
        np.testing.assert_array_equal(host(result.indices), host(expected.indices))
        np.testing.assert_allclose(host(result.data), host(expected.data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(0, 0), (3, 0), (0, 3)])
def test_a_product_without_blocks_is_empty(device: Device, lengths: tuple[int, int], rng: np.random.Generator) -> None:
    A, B = (of_blocks(np.full(40, length), 40, (2, 2), rng) for length in lengths)
    known = by_blocks(device, upload(device, A), upload(device, B), (2, 2, 2))
    assert known.update(upload(device, A), upload(device, B)).nnz == 0
    assert known.result.shape == (80, 80)


@pytest.mark.parametrize("shapes", [((0, 6), (6, 9)), ((6, 0), (0, 9)), ((6, 6), (6, 0))])
def test_matrices_without_rows_or_columns_are_multiplied(device: Device, shapes: Any) -> None:
    a, b = (upload(device, sp.csr_array(shape)) for shape in shapes)
    result = by_blocks(device, a, b, (3, 3, 3)).result
    assert (result.shape, result.nnz) == ((shapes[0][0], shapes[1][1]), 0)
    np.testing.assert_array_equal(host(result.indptr), np.zeros(shapes[0][0] + 1))


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_nan_and_inf_reach_the_same_entries_as_by_entries(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    A, B = (with_types(S, dtype, np.int32, rng) for S in two("ragged", (3, 4, 2), rng))
    A.data[rng.integers(0, A.nnz, 40)] = 0  # stored zeros, which make NaN of inf
    A.data[rng.integers(0, A.nnz, 5)] = np.nan
    B.data[rng.integers(0, B.nnz, 20)] = np.inf
    a, b = upload(device, A), upload(device, B)
    with np.errstate(invalid="ignore"):
        result, expected = by_blocks(device, a, b, (3, 4, 2)).result, CsrProduct(device, a, b).result
    assert 0 < np.isnan(host(result.data)).sum() < result.nnz
    assert np.isinf(host(result.data)).any() or np.dtype(dtype).kind == "c"
    assert_alike(result, expected)


def test_a_product_by_blocks_is_made_again_for_other_values(device: Device, rng: np.random.Generator) -> None:
    A, B = two("ragged", (3, 3, 2), rng)
    a, b = upload(device, A), upload(device, B)
    known = by_blocks(device, a, b, (3, 3, 2))
    made, structure = host(known.result.data).copy(), known.result.indices
    known.forget_values()
    assert known.result.data.size == 0
    assert known.nbytes > structure.nbytes
    again = known.update(a, b)
    assert again.indices is structure
    np.testing.assert_array_equal(host(again.data), made)
    np.testing.assert_allclose(host(known.update(a.with_data(2 * a.data), b).data), 2 * made, rtol=1e-13)


def test_the_order_in_which_threads_run_changes_no_bits(rng: np.random.Generator) -> None:
    A, B = two("ragged", (3, 3, 6), rng)
    results = []
    for seed in range(3):
        device = EmulatedDevice(32, seed)
        results.append(by_blocks(device, upload(device, A), upload(device, B), (3, 3, 6)).result)
    for result in results[1:]:
        np.testing.assert_array_equal(result.data, results[0].data)


def test_blocks_in_any_order_and_there_twice_are_added_up(device: Device, rng: np.random.Generator) -> None:
    A, B = two("even", (2, 3, 2), rng)
    lengths = np.diff(A.indptr)[0] // 3
    places = rng.integers(0, lengths, (A.shape[0] // 2, lengths)).repeat(2, axis=0)  # blocks of each row, some twice
    entries = (np.arange(A.shape[0])[:, None] * lengths + places)[..., None] * 3 + np.arange(3)
    U = sp.csr_array((A.data[entries.reshape(-1)], A.indices[entries.reshape(-1)], A.indptr), shape=A.shape)
    u = replace(upload(device, U), is_canonical=False)
    result, blocksize = product_of_blocks(device, u, upload(device, B), (2, 3), (3, 2))
    assert blocksize == (2, 2)
    expected = product(device, u, upload(device, B))
    np.testing.assert_array_equal(host(result.indices), host(expected.indices))
    np.testing.assert_allclose(host(result.data), host(expected.data), rtol=1e-12, atol=1e-12)


def test_blocks_of_different_sizes_are_divided(device: Device, rng: np.random.Generator) -> None:
    A, B = of_blocks(rng.integers(0, 5, 30), 20, (2, 6), rng), of_blocks(rng.integers(0, 5, 30), 20, (4, 3), rng)
    a, b = upload(device, A), upload(device, B)
    patterns = block_patterns(device, a, b, (2, 6), (4, 3))
    assert patterns is not None
    assert [pattern.blocksize for pattern in patterns] == [(2, 2), (2, 3)]
    assert_within_the_bound(product_of_blocks(device, a, b, (2, 6), (4, 3))[0], A, B)


def test_a_long_block_row_among_short_ones_is_multiplied_by_entries_on_a_gpu(
    device: Device, rng: np.random.Generator
) -> None:
    A, B = two("one dense block row", (3, 3, 2), rng)
    a, b = upload(device, A), upload(device, B)
    result, blocksize = product_of_blocks(device, a, b, (3, 3), (3, 2))
    assert (blocksize is None) == (device.kind == "gpu")
    assert_within_the_bound(result, A, B)


# ------------------------------------------------------------------------------------------------------ public products


@pytest.fixture
def looks_at_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for blocks in matrices that are too small to gain from it."""
    monkeypatch.setattr(arithmetic, "_WORTH_A_LOOK", 0)


@pytest.fixture
def needs_blocks(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """Make products computed by entries fail; those of patterns, with which products by blocks begin, still run."""
    kernels = kernels_of(device)
    monkeypatch.delattr(kernels.sparse_products, "spgemm")
    monkeypatch.delattr(kernels.sparse_products, "spgemm_values")


@pytest.mark.usefixtures("looks_at_small_matrices", "needs_blocks")
def test_a_product_of_matrices_of_blocks_is_computed_by_blocks(device: Device, rng: np.random.Generator) -> None:
    S, T = (whole_numbers(part, rng) for part in two("ragged", (3, 3, 6), rng))
    S.data[S.data == 0] = 1
    T.data = abs(T.data) + 1
    S.data = abs(S.data)
    A, B = GpuSparseMatrix(S, device=device), GpuSparseMatrix(T, device=device)
    C = A @ B
    np.testing.assert_array_equal(C.toarray(), (S @ T).toarray())
    assert C.nnz == (S @ T).nnz
    assert C._arrays.prepared.structure.sparsity.known_blocksize == (3, 6)
    assert C.block_shape == (3, 6)
    by_columns = B.T @ A.T
    assert by_columns.format == "csc"
    np.testing.assert_array_equal(by_columns.toarray(), (S @ T).toarray().T)
    assert by_columns.block_shape == (6, 3)


@pytest.mark.usefixtures("looks_at_small_matrices", "needs_blocks")
def test_zeros_of_a_product_by_blocks_are_dropped_as_scipy_drops_them(device: Device, rng: np.random.Generator) -> None:
    S, T = (whole_numbers(part, rng, np.int16) for part in two("ragged", (3, 3, 2), rng))
    expected = S @ T
    expected.eliminate_zeros()
    C = GpuSparseMatrix(S, device=device) @ GpuSparseMatrix(T, device=device)
    assert C.dtype == expected.dtype
    assert C.nnz == expected.nnz < (abs(S) @ abs(T)).nnz
    assert C.block_shape == (1, 1)
    np.testing.assert_array_equal(C.toarray(), expected.toarray())


@pytest.mark.usefixtures("looks_at_small_matrices", "needs_blocks")
def test_a_known_product_of_matrices_of_blocks_is_computed_by_blocks(device: Device, rng: np.random.Generator) -> None:
    S, T = two("ragged", (2, 2, 4), rng)
    A, B = GpuSparseMatrix(S, device=device), GpuSparseMatrix(T, device=device)
    known = gsparse.sparse.MatrixProduct(A, B)
    assert known.result.block_shape == (2, 4)
    np.testing.assert_allclose(known.result.toarray(), (S @ T).toarray(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(known.update(2 * A, B).toarray(), 2 * (S @ T).toarray(), rtol=1e-12, atol=1e-12)


def test_a_product_by_blocks_for_which_memory_does_not_suffice_is_made_by_entries(
    device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise MemoryError

    A, B = two("ragged", (3, 3, 2), rng)
    a, b = upload(device, A), upload(device, B)
    monkeypatch.setattr(kernels_of(device).blocks, "multiply_blocks", fails)
    result, blocksize = product_of_blocks(device, a, b, (3, 3), (3, 2))
    assert blocksize is None
    assert_alike(result, product(device, a, b))
