"""Indices, writes and conversions: values, sharing, warnings and operands of the device, beside SciPy's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DeviceError
from tests.support import assert_product, from_lengths, host

pytestmark = pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")


@pytest.fixture
def S() -> sp.csr_array:
    """Return a matrix of whole numbers in canonical form, with empty rows."""
    rng = np.random.default_rng(5)
    S = from_lengths(rng.integers(0, 6, 30), 25, rng)
    S.sum_duplicates()
    S.data = np.arange(1.0, S.nnz + 1)
    return S


def assert_same(A: Any, S: Any) -> None:
    """Compare shape, dtype, structure and values, and a product."""
    assert A.shape == S.shape
    assert A.dtype == S.dtype
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(A, part), getattr(S, part))
    x = np.arange(1.0, S.shape[1] + 1)
    assert_product(A @ x, S, x)


# ------------------------------------------------------------------------------------------------------------- writes


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32, np.complex128], ids=str)
def test_blocks_of_extended_precision_are_written_in_the_dtype_of_the_matrix(
    device: Device, S: Any, dtype: Any
) -> None:
    block = sp.csr_array(np.array([[0, 1.5, 2]], np.longdouble))
    repeated = sp.csr_array((np.array([0.5, 0.5], np.longdouble), [1, 1], [0, 2]), shape=(1, 3))
    for part in (block, repeated, block.tocoo(), GpuSparseMatrix(block, device="cpu"), block[:, 1:2], block.toarray()):
        T = S.astype(dtype)
        A = GpuSparseMatrix(T.copy(), device=device)
        for M in (A, T):
            M[3:5, : part.shape[1]] = part.tocoo() if M is T and isinstance(part, GpuSparseMatrix) else part
        assert A.dtype == dtype
        np.testing.assert_array_equal(A.toarray(), T.toarray())


def test_a_write_leaves_matrices_alone_that_share_device_arrays(device: Device, S: Any) -> None:
    A = GpuSparseMatrix(S, device=device)
    others = [A.copy(), 2 * A, A.conj(), A[:], A.reshape(25, 30), A.T.tocsr(), GpuSparseMatrix(A), A.tocsc()]
    before = [other.toarray() for other in others]
    A[:, 3], A[2, 2:5] = 7, np.arange(3.0)
    A *= 3
    A.eliminate_zeros()
    A.setdiag(4)
    A.resize(20, 20)
    for other, expected in zip(others, before, strict=True):
        np.testing.assert_array_equal(other.toarray(), expected)


@pytest.mark.parametrize("name", ["A.T", "copy.copy"])
def test_a_write_to_entries_is_seen_by_matrices_that_share_the_arrays(device: Device, name: str, S: Any) -> None:
    view = {"A.T": lambda M: M.T, "copy.copy": copy.copy}[name]
    A = GpuSparseMatrix(S.copy(), device=device)
    V, W = view(A), view(S)
    for M in (A, S):
        M.__imul__(2)
        M[tuple(part[0] for part in S.nonzero())] = 50  # an entry
    np.testing.assert_array_equal(V.toarray(), W.toarray())
    for M in (A, S):
        M[tuple(part[0] for part in (S.toarray() == 0).nonzero())] = 60  # a new one
    np.testing.assert_array_equal(V.toarray(), W.toarray())
    np.testing.assert_array_equal(A.toarray(), S.toarray())


def test_the_arrays_of_a_symmetric_matrix_and_of_its_transpose_are_independent(device: Device) -> None:
    S = sp.csr_array(np.array([[1.0, 2.0], [2.0, 1.0]]))
    A = GpuSparseMatrix(S, device=device)
    B = A.T.tocsr()
    A.data[0] = 7
    np.testing.assert_array_equal(B.toarray(), S.toarray())


def test_a_write_ends_a_declared_symmetry_except_by_a_real_factor(device: Device) -> None:
    S = sp.csr_array(np.array([[1.0, 2.0], [2.0, 3.0]]))
    for write, stays in (
        (lambda M: M.__imul__(2), True),
        (lambda M: M.sum_duplicates(), True),
        (lambda M: M.__setitem__((0, 1), 9.0), False),
        (lambda M: M.setdiag([5.0, 6.0]), False),
        (lambda M: M.resize(2, 3), False),
    ):
        A, T = GpuSparseMatrix(S, device=device, symmetric=True), S.copy()
        write(A), write(T)
        assert bool(A._arrays.options.symmetric) is stays
        np.testing.assert_array_equal(A.T @ np.ones(A.shape[0]), T.T @ np.ones(A.shape[0]))


def test_writes_to_a_conjugate_are_those_of_scipy(device: Device) -> None:
    S = sp.csr_array(np.array([[1 + 2j, 0], [3 - 1j, 4j]]))
    A, T = GpuSparseMatrix(S, device=device).conj(), S.conj()
    for M in (A, T):
        M[0, 0], M[0, 1] = 5j, 6
        M.__imul__(1j)
        M[1, :] = [1, 2 + 1j]
    assert_same(A, T)
    np.testing.assert_array_equal(A[[0, 1], [1, 1]], T[[0, 1], [1, 1]])


def test_a_write_while_an_array_is_held_reaches_the_holder(device: Device, S: Any) -> None:
    A = GpuSparseMatrix(S.copy(), device=device)
    held, expected = A.data, S.data
    for M in (A, S):
        M.__imul__(3)
        M[tuple(part[1] for part in S.nonzero())] = -1
        M.eliminate_zeros()
    np.testing.assert_array_equal(held, expected)
    assert sum(A.stats.host_operations.values())
    del held, expected
    assert_same(A, S)


def test_a_frozen_matrix_allows_what_changes_nothing(device: Device, S: Any) -> None:
    A = GpuSparseMatrix(S, device=device).freeze()
    with gsparse.strict():
        A.sum_duplicates(), A.sort_indices(), A.prune(), A.check_format()
        A.resize(30, 25)
        for write in (lambda: A.__setitem__((0, 0), 1), lambda: A.setdiag(1), lambda: A.__imul__(2), A.eliminate_zeros):
            with pytest.raises(ValueError, match="frozen: write to a copy"):
                write()
    assert_same(A, S)


def test_only_new_entries_warn_as_in_scipy(device: Device, S: Any) -> None:
    A, (rows, columns) = GpuSparseMatrix(S, device=device), S.nonzero()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A[rows[0], columns[0]] = 2
        A.setdiag(1)
        A.eliminate_zeros()
    with pytest.warns(
        sp.SparseEfficiencyWarning, match="Changing the sparsity structure of a GpuSparseMatrix"
    ) as caught:
        A[29, 0] = 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ((30, 0), 1, IndexError),
        (([0, 40], [1, 1]), 1, IndexError),
        (([0, 1, 2], [0, 1]), 1, IndexError),
        ((0, 0), [1, 2], ValueError),
        ((slice(0, 3), slice(0, 3)), np.ones((2, 2)), ValueError),
        ((slice(0, 3), slice(0, 3)), sp.csr_array((2, 3)), ValueError),
        ((slice(None), 1.5), 1, IndexError),
        ((slice(None), 1.0), 1, ValueError),
        (np.ones((3, 3), bool), 1, IndexError),
    ],
    ids=str,
)
def test_a_wrong_write_raises_as_in_scipy_and_changes_nothing(
    device: Device, key: Any, value: Any, error: type, S: Any
) -> None:
    A = GpuSparseMatrix(S, device=device)
    for M in (A, S.copy()):
        with pytest.raises(error):
            M[key] = value
    assert_same(A, S)


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.float32, np.complex64])
def test_values_are_cast_to_the_dtype_of_the_matrix_as_in_scipy(device: Device, dtype: Any, S: Any) -> None:
    S = S.astype(dtype)
    A = GpuSparseMatrix(S.copy(), device=device)
    for M in (A, S):
        M[2, :] = np.arange(25) * 20.0
        M[:, 4] = 1
        M.setdiag(3.0)
        M.setdiag(np.arange(20), 2)  # of which much is new: the matrix gets the dtype of both
    assert_same(A, S)


@pytest.mark.parametrize("factor", [2, -1, True, 0.5, np.float64(3), np.int64(2), np.uint8(3), 2j, 300])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32, np.complex64, np.bool_])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_factor_in_place_is_cast_or_refused_as_by_numpy(device: Device, dtype: Any, factor: Any, S: Any) -> None:
    S = S.astype(dtype)
    A = GpuSparseMatrix(S.copy(), device=device)
    try:
        S *= factor
    except (TypeError, OverflowError) as error:
        with pytest.raises(type(error)):
            A *= factor
        return
    A *= factor
    assert_same(A, S)


def test_a_matrix_with_more_columns_than_int32_can_number_is_written(device: Device) -> None:
    S = sp.csr_array((np.ones(2), np.array([0, 2**40]), np.array([0, 1, 2])), shape=(2, 2**40 + 1))
    A = GpuSparseMatrix(S.copy(), device=device)
    for M in (A, S):
        M[[1, 0, 1], [2**39, 2**40, 2**39]] = [1.0, 2.0, 3.0]
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(A, part), getattr(S, part))
    assert A.indices.dtype == np.int64


# ------------------------------------------------------------------------------------------------------------ vectors


@pytest.mark.whole
def test_inner_products_of_vectors_are_numbers_computed_on_the_device(device: Device, S: Any) -> None:
    A, D = GpuSparseMatrix(S, device=device), S.toarray()
    with gsparse.strict():
        for i, j in ((0, 0), (3, 4), (7, 7)):
            product = A[i] @ A[j]
            assert isinstance(product, np.ndarray)
            assert product.shape == ()
            assert product == D[i] @ D[j]
        products = A[1].stats.products
        v = A[1]
        assert v @ D[1] == D[1] @ D[1]
        assert v.stats.products == products + 1


# -------------------------------------------------------------------------------------------------------- conversions


@pytest.mark.parametrize("order", [None, "C", "F"])
def test_dense_arrays_have_the_order_of_scipys(device: Device, order: Any, S: Any) -> None:
    A = GpuSparseMatrix(S, device=device)
    for M, T in ((A, S), (A.T, S.T), (A[0], S[0].tocsr())):
        got, want = M.toarray(order=order), T.toarray(order=order)
        np.testing.assert_array_equal(got, want)
        assert got.flags.c_contiguous == want.flags.c_contiguous
        assert got.flags.f_contiguous == want.flags.f_contiguous
        out = np.full(T.shape, 9.0, order="F")
        assert M.toarray(out=out) is out
        np.testing.assert_array_equal(out, want)
    for wrong in (
        {"out": np.zeros((2, 2))},
        {"out": np.zeros(S.shape), "order": "C"},
        {"out": np.zeros((60, 25))[::2]},
    ):
        for M in (A, S):
            with pytest.raises(ValueError, match=r"[oO]ut"):
                M.toarray(**wrong)


# ------------------------------------------------------------------------------------------------ operands of a device


def check_indices_of_the_device(device: Device, make: Callable[[Any], Any], S: Any) -> None:
    """Compare selections by arrays of the device, which stay there if they are dense."""
    A, rows, columns = GpuSparseMatrix(S, device=device), np.array([3, -1, 3]), np.array([0, 5, -25])
    with gsparse.strict():
        entries = A[make(rows), make(columns)]
        np.testing.assert_array_equal(host(entries), S[rows, columns])
        np.testing.assert_array_equal(A[make(rows)].toarray(), S[rows].toarray())
        np.testing.assert_array_equal(A[1:9, make(columns)].toarray(), S[1:9, columns].toarray())
        np.testing.assert_array_equal(
            A[make(rows)[:, None], make(columns)].toarray(), S[rows[:, None], columns].toarray()
        )
        mask = S.toarray() > 9
        np.testing.assert_array_equal(host(A[make(mask)]), S[mask])
        assert A[make(np.array(2)), 1] == S[2, 1]
        with pytest.raises(IndexError, match="out of range"):
            A[make([30])]


def check_writes_of_the_device(device: Device, make: Callable[[Any], Any], S: Any) -> None:
    """Compare writes of arrays of the device to places that arrays of the device select."""
    A, rows, columns = GpuSparseMatrix(S.copy(), device=device), np.array([3, -1, 3]), np.array([0, 5, 0])
    with gsparse.strict():
        for M, made in ((A, make), (S, np.asarray)):
            M[made(rows), made(columns)] = made([1.0, 2.0, 3.0])
            M[4:8, 2:6] = made(np.arange(16.0).reshape(4, 4))
            M[made(M.toarray() > 60)] = made(np.array(5.0))
            M[9] = made(np.arange(25))
            M.setdiag(made(np.arange(20.0)))
            M.setdiag(made([1, 2, 3]), -4)
            M.__imul__(made(np.array(2.0)))
    assert_same(A, S)


def check_dense_results_of_the_device(device: Device, make: Callable[[Any], Any], S: Any) -> None:
    """Compare what is written to an array of the device."""
    out = make(np.full(S.shape, 9.0))
    with gsparse.strict():
        assert GpuSparseMatrix(S, device=device).toarray(out=out) is out
    np.testing.assert_array_equal(host(out), S.toarray())


CHECKS = (check_indices_of_the_device, check_writes_of_the_device, check_dense_results_of_the_device)


@pytest.mark.parametrize("check", CHECKS)
def test_arrays_of_the_device_select_and_are_written(check: Any, pretend: Any, S: Any) -> None:
    check(*pretend, S)


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS)
def test_arrays_of_cupy_select_and_are_written(check: Any, on_gpu: Any, S: Any) -> None:
    check(*on_gpu, S)


@pytest.mark.gpu
def test_matrices_of_cupy_have_copies_or_the_same_arrays(on_gpu: Any, S: Any) -> None:
    device, make = on_gpu
    A = GpuSparseMatrix(S, device=device)
    assert isinstance(A[make([0, 1]), make([2, 3])], type(make([0.0])))
    for M, T in ((A, S), (A.T, S.T), (A[3], S[3].tocsr()), (gsparse.sparse.csr_matrix(A), S)):
        own, shared = M.to_cupy(), M.to_cupy(copy=False)
        assert own.data.data.ptr != shared.data.data.ptr == M.device_data.data.ptr
        for C in (own, shared):
            np.testing.assert_array_equal(host(C.toarray()), T.toarray())
    assert A.to_cupy(copy=False).indices.data.ptr == A.device_indices.data.ptr
    B = GpuSparseMatrix(A.to_cupy(copy=False))
    assert B.device_data.data.ptr == A.device_data.data.ptr


@pytest.mark.gpu
def test_an_index_of_a_gpu_is_refused_by_a_matrix_on_the_host(on_gpu: Any, S: Any) -> None:
    A, make = GpuSparseMatrix(S, device="cpu"), on_gpu[1]
    for call in (lambda: A[make([0])], lambda: A.setdiag(make([1.0])), lambda: A.__setitem__(0, make(np.ones(25)))):
        with pytest.raises(DeviceError, match="the matrix lives on cpu"):
            call()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 5), (5, 2), (2, 3), (4, 4)])
@pytest.mark.parametrize("block", [(2, 3), (1, 3), (2, 1), (1, 1), (0, 3), (0, 0)])
def test_a_sparse_block_is_refused_as_by_scipy_also_where_nothing_is_selected(
    device: Device, shape: tuple[int, int], block: tuple[int, int]
) -> None:
    S, B = sp.csr_array(shape), sp.csr_array(np.ones(block))
    A = GpuSparseMatrix(S, device=device)
    errors = []
    for M in (A, S):
        try:
            M[0:2, 0:3] = B
            errors.append("")
        except ValueError as error:
            errors.append(str(error))
    # Where a block is broadcast to nothing, SciPy passes on an error of NumPy's, and we write nothing.
    assert errors[0] == ("" if errors[1].startswith("zero-size array") else errors[1])
    np.testing.assert_array_equal(A.toarray(), S.toarray())
