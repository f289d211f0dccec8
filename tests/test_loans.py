"""A stale product cannot be produced, in whatever way SciPy offers to write to a matrix; and loans end.

Every test puts a matrix and a SciPy twin through exactly the same operations and compares their products.
"""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import HostLoanWarning
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.arrays import initialize as initialize_matrix
from gsparse.matrix.gpu_sparse_matrix import TransposedMatrix
from gsparse.matrix.host_operations import READING_METHODS
from gsparse.matrix.loans import Mirror, held_elsewhere
from tests.conftest import make_device
from tests.support import assert_product, from_lengths, host, on_device, random_values, with_types

pytestmark = [
    pytest.mark.filterwarnings("ignore::gsparse.errors.HostLoanWarning"),
    pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning"),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
]

SHAPE = (20, 17)
DTYPES = (np.float64, np.complex128)
ARRAYS = ("data", "indices", "indptr")


def make_pair(device: Device, dtype: Any = float, format: str = "auto") -> tuple[Any, Any]:
    """Give a matrix and its SciPy twin: unsorted and repeated columns, an empty row, stored zeros."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 6, SHAPE[0])
    lengths[3] = 0
    S = with_types(from_lengths(lengths, SHAPE[1], rng), dtype, np.int32, rng)
    S.data[[2, 11]] = 0
    return GpuSparseMatrix(S.copy(), device=device, format=format), S.copy()


def assert_same(A: Any, S: Any) -> None:
    """Compare every kind of product of a matrix and its twin."""
    assert A.shape == S.shape
    S = S.copy()  # which leaves out room behind the last entry; SciPy's tocoo would take it for entries
    rng = np.random.default_rng(1)
    dtype = np.result_type(S.dtype, np.float64)
    x, z = random_values(rng, S.shape[1], dtype), random_values(rng, S.shape[0], dtype)
    assert_product(A @ x, S, x, dtype=dtype)
    assert_product(A.T @ z, S.T, z, dtype=dtype)
    assert_product(z @ A, S.T, z, dtype=dtype)
    assert_product(A.rmatvec(z), S.T.conj(), z, dtype=dtype)
    assert_product(A.conj() @ x, S.conj(), x, dtype=dtype)
    X = np.stack([x, 2 * x], axis=1)
    assert_product(A @ X, S, X, dtype=dtype)


# ------------------------------------------------------------------ every way to write: matrix in, matrix out


def imul(M: Any) -> Any:
    M *= 2
    return M


def itruediv(M: Any) -> Any:
    M /= 4
    return M


def iadd(M: Any) -> Any:
    M += sp.eye_array(*SHAPE, format="csr")
    return M


def isub(M: Any) -> Any:
    M -= sp.eye_array(*SHAPE, format="csr")
    return M


def assigned(key: Any, value: Any) -> Any:
    def write(M: Any) -> Any:
        M[key] = value
        return M

    return write


def positive_entries(M: Any) -> Any:
    M[abs(M) > 0.7] = 3
    return M


def called(name: str, *args: Any, **options: Any) -> Any:
    def write(M: Any) -> Any:
        getattr(M, name)(*args, **options)
        return M

    return write


def through(name: str, index: Any, value: Any) -> Any:
    def write(M: Any) -> Any:
        getattr(M, name)[index] = value
        return M

    return write


def bound(name: str, function: Any) -> Any:
    def write(M: Any) -> Any:
        setattr(M, name, function(getattr(M, name)))
        return M

    return write


def row_emptied(M: Any) -> Any:
    M.indptr[5] = M.indptr[4]
    return M


def pruned(M: Any) -> Any:
    M.data, M.indices = np.append(M.data, [7, 7, 7]), np.append(M.indices, np.int32([0, 1, 2]))
    M.prune()
    return M


def columns_swapped(M: Any) -> Any:
    M.indices[:] = SHAPE[1] - 1 - M.indices
    return M


def data_of_transpose(M: Any) -> Any:
    M.T.data[4] = -5
    return M


def indices_of_transpose(M: Any) -> Any:
    M.T.indices[4] = 9
    return M


def arrays_of_another_structure(M: Any) -> Any:
    M.indptr, M.indices, M.data = np.arange(21, dtype=np.int32), np.zeros(20, np.int32), np.ones(20)
    return M


def dtype_set(M: Any) -> Any:
    M.dtype = np.int64 if M.dtype.kind == "f" else np.float64
    if M.dtype.kind == "f":
        M.indices, M.indptr = np.repeat(M.indices, 2), M.indptr * 2
    return M


KEY_WRITES = {
    "A *= 2": imul,
    "item, stored": assigned((2, slice(None)), 4.5),
    "item, new": assigned((3, 5), 4.5),
    "through data": through("data", slice(3, 9), -2),
    "through indices": columns_swapped,
    "through indptr": row_emptied,
    "data bound": bound("data", lambda data: data + 1),
    "indices bound": bound("indices", lambda indices: indices[::-1]),
    "sum_duplicates": called("sum_duplicates"),
    "resize, more columns": called("resize", SHAPE[0], 40),
}

WRITES = KEY_WRITES | {
    "A /= 4": itruediv,
    "A += sparse": iadd,
    "A -= sparse": isub,
    "row": assigned(7, np.arange(SHAPE[1])),
    "row, sparse": assigned(([7],), sp.csr_array(np.arange(SHAPE[1])[None])),
    "slice": assigned((slice(2, 9, 2), slice(3, 5)), 1.5),
    "column": assigned((slice(None), [4]), -1),
    "fancy": assigned(([1, 5, 9], [2, 0, 16]), [1.0, 2.0, 3.0]),
    "boolean rows": assigned(np.arange(SHAPE[0]) % 3 == 0, 2),
    "boolean mask": assigned(np.add.outer(np.arange(SHAPE[0]), np.arange(SHAPE[1])) % 5 == 0, -3),
    "sparse boolean mask": positive_entries,
    "setdiag": called("setdiag", 8),
    "setdiag, below": called("setdiag", np.arange(1.0, 18.0), k=-2),
    "resize, smaller": called("resize", 9, 11),
    "resize, more rows": called("resize", 31, SHAPE[1]),
    "resize, fewer columns": called("resize", SHAPE[0], 5),
    "eliminate_zeros": called("eliminate_zeros"),
    "sort_indices": called("sort_indices"),
    "prune": pruned,
    "indptr bound": bound("indptr", lambda indptr: np.append(np.sort(indptr[:-1] // 2), indptr[-1])),
    "all bound": arrays_of_another_structure,
    "data bound, another dtype": bound("data", lambda data: data.astype(np.complex64)),
    "data bound, strided": bound("data", lambda data: np.repeat(data, 2)[::2] + 1),
    "indices bound, int64": bound("indices", lambda indices: indices[::-1].astype(np.int64)),
    "through A.T.data": data_of_transpose,
    "through A.T.indices": indices_of_transpose,
    "dtype": dtype_set,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("write", WRITES)
def test_a_product_sees_every_write(device: Device, write: str, dtype: Any) -> None:
    A, S = make_pair(device, dtype)
    assert_same(A, S)
    A, S = WRITES[write](A), WRITES[write](S)
    assert_same(A, S)
    assert type(A) is GpuSparseMatrix
    assert A.dtype == S.dtype
    A, S = imul(A), imul(S)  # and the next one
    assert_same(A, S)
    np.testing.assert_array_equal(A.toarray(), S.toarray())


@pytest.mark.parametrize("format", gsparse.FORMATS[1:])
@pytest.mark.parametrize("write", KEY_WRITES)
def test_every_format_is_converted_anew_after_a_write(device: Device, write: str, format: str) -> None:
    A, S = make_pair(device, format=format)
    assert_same(A, S)
    A, S = WRITES[write](A), WRITES[write](S)
    assert_same(A, S)
    assert write == "A += sparse" or A.plan.format == format


@pytest.mark.parametrize("write", WRITES)
def test_a_write_to_a_transposed_view_reaches_the_matrix(device: Device, write: str) -> None:
    A, S = make_pair(device)
    V, W = A.T, S.T
    assert_same(A, S)
    try:
        W = WRITES[write](W)
    except (IndexError, ValueError) as error:  # made for SHAPE, not for its transpose: ours refuses it as well
        with pytest.raises(type(error)):
            WRITES[write](V)
        return
    V = WRITES[write](V)
    assert_same(V, W)
    assert_same(A, S)


# Of a matrix or of SciPy's twin: what `write` does to the original must show in it, or must not, as in SciPy.
VIEWS = {
    "A.T": lambda M: M.T,
    "A.T.T": lambda M: M.T.T,
    "A.H": lambda M: M.H if hasattr(M, "H") else M.T.conj(),
    "A.conj()": lambda M: M.conj(),
    "A.conj().T": lambda M: M.conj().T,
    "A.copy()": lambda M: M.copy(),
    "copy.copy": copy.copy,
    "A.transpose(copy=True)": lambda M: M.transpose(copy=True),
    "A[2:9]": lambda M: M[2:9],
    "A[:]": lambda M: M[:],
    "A[:, 3:9]": lambda M: M[:, 3:9],
    "2*A": lambda M: 2 * M,
    "-A": lambda M: -M,
    "abs(A)": abs,
    "astype, same": lambda M: M.astype(M.dtype),
    "astype": lambda M: M.astype(np.complex64),
    "A + A": lambda M: M + M,
    "constructed": lambda M: type(M)(M, copy=True),
    "sorted_indices": lambda M: M.sorted_indices(),
}
IN_PLACE = ("A *= 2", "through data", "through indices", "through indptr", "sort_indices", "data bound", "item, new")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("warm", [False, True], ids=["before any product", "after products"])
def test_views_and_copies_share_writes_exactly_as_scipys_do(device: Device, view: str, dtype: Any, warm: bool) -> None:
    for write in IN_PLACE:
        A, S = make_pair(device, dtype)
        if view in ("abs(A)", "astype"):  # SciPy adds up repeated entries for these, in the matrix itself
            A.sum_duplicates(), S.sum_duplicates()
        V, W = VIEWS[view](A), VIEWS[view](S)
        if warm:
            assert_same(V, W)
            assert_same(A, S)
        A, S = WRITES[write](A), WRITES[write](S)
        assert_same(V, W)
        assert_same(A, S)
        if view not in ("abs(A)", "astype"):
            assert_same(VIEWS[view](A), VIEWS[view](S))  # taken after the write
        through("data", slice(0, 4), 11)(V), through("data", slice(0, 4), 11)(W)
        assert_same(V, W)
        assert_same(A, S)
        V.indices[:] = V.indices[::-1].copy()
        W.indices[:] = W.indices[::-1].copy()
        np.testing.assert_allclose(V.toarray(), W.toarray(), rtol=1e-14)  # (a GPU's hypot rounds otherwise)
        np.testing.assert_array_equal(A.toarray(), S.toarray())


def test_a_matrix_is_independent_of_the_arrays_it_was_made_from(device: Device) -> None:
    _, S = make_pair(device)
    data, indices, indptr = S.data.copy(), S.indices.copy(), S.indptr.copy()
    large = np.concatenate([data, data])
    x = np.arange(float(SHAPE[1]))
    sources = {
        "csr_array": (S, S.data),
        "parts": ((data, indices, indptr), data),
        "view of a larger array": ((large[: data.size], indices, indptr), large),
        "buffer": ((np.frombuffer(bytearray(data.tobytes())), indices, indptr), None),
    }
    for name, (source, written) in sources.items():
        expected = S @ x
        A = GpuSparseMatrix(source, shape=SHAPE, device=device)
        target = source[0] if written is None else written
        kept = target.copy()
        target[:] = 99
        np.testing.assert_allclose(A @ x, sp.csr_array((kept[: data.size], indices, indptr), shape=SHAPE) @ x)
        target[:] = kept
        A.data[:] = -1
        np.testing.assert_array_equal(target, kept, err_msg=name)
        np.testing.assert_array_equal(S @ x, expected)


# ------------------------------------------------------------------------------------------------------- loans

# How an array may be held: from the array, something that keeps it alive; and how to reach the memory through that.
HOLDS = {
    "itself": (lambda a: a, lambda h: h),
    "view": (lambda a: a[1:], lambda h: h),
    "view of a view": (lambda a: a[1:][1:][:3], lambda h: h),
    "strided view": (lambda a: a[1:][::2], lambda h: h),
    "asarray": (np.asarray, lambda h: h),
    "reshape": (lambda a: a.reshape(1, -1), lambda h: h.reshape(-1)),
    "ravel": (np.ravel, lambda h: h),
    "memoryview": (memoryview, np.asarray),
    "memoryview of a view": (lambda a: memoryview(a[2:]), np.asarray),
    "array over a memoryview": (lambda a: np.asarray(memoryview(a)), lambda h: h),
    "bytes": (lambda a: a.view(np.uint8), None),
    "list": (lambda a: [a], lambda h: h[0]),
    "dictionary of tuples": (lambda a: {"kept": (a[1:], 3)}, lambda h: h["kept"][0]),
    "closure": (lambda a: lambda: a, lambda h: h()),
    "iterator": (lambda a: iter([a]), None),
    "dlpack": (np.from_dlpack, lambda h: h),
    "transposed view": (lambda a: a[:, None].T, lambda h: h[0]),
    "ctypes": (lambda a: a.ctypes, lambda h: h._arr),
    "weak reference": (weakref.ref, lambda h: h()),
}
WRITABLE = tuple(name for name, (_, reach) in HOLDS.items() if reach)


def put(array: np.ndarray, name: str, step: int) -> None:
    """Write something valid that changes the products."""
    if name == "data":
        array[0] += 1 + step
    elif name == "indices":
        array[0] = (array[0] + 1) % SHAPE[1]
    else:  # moves the boundary between two rows forth and back
        array[1] = array[2] if array[1] != array[2] else array[0]


@pytest.fixture
def uploads(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the arrays brought to the device."""
    counted: list[int] = []
    upload = device.upload

    def counting(array: Any) -> Any:
        counted.append(array.size)
        return upload(array)

    monkeypatch.setattr(device, "upload", counting)
    return counted


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("hold", WRITABLE)
def test_a_loan_lasts_as_long_as_it_is_held_and_no_longer(
    device: Device, hold: str, name: str, uploads: list[int]
) -> None:
    if (hold, name) == ("strided view", "indptr"):
        pytest.skip("no single boundary between rows can be moved through every other one")
    take, reach = HOLDS[hold]
    A, S = make_pair(device)
    held, twins = take(getattr(A, name)), take(getattr(S, name))
    for step in range(3):
        assert_same(A, S)
        assert A._mirrors[name].on_loan
        before = uploads.copy()
        put(reach(held), name, step), put(reach(twins), name, step)
        assert_same(A, S)
        assert len(uploads) > len(before), "the write was not brought to the device"
    assert [n for n in ARRAYS if A._mirrors[n].lent] == [name], "another array counts as lent"
    put(reach(held), name, 5), put(reach(twins), name, 5)
    del held, twins
    assert not A._mirrors[name].on_loan
    assert_same(A, S)
    uploads.clear()
    assert_same(A, S)
    assert not A._mirrors[name].lent
    vectors = {SHAPE[0], SHAPE[1], 2 * SHAPE[1]}
    assert set(uploads) <= vectors, "an array was uploaded though nobody held it"


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("part", ["whole", "view", "strided"])
def test_an_array_that_was_bound_is_watched_while_it_is_held(
    device: Device, part: str, name: str, uploads: list[int]
) -> None:
    A, S = make_pair(device)
    assert_same(A, S)
    kept = []
    for M in (A, S):
        value = getattr(M, name)
        base = {"whole": value.copy(), "view": np.concatenate([value, value]), "strided": np.repeat(value, 2)}[part]
        view = {"whole": base, "view": base[: value.size], "strided": base[::2]}[part]
        setattr(M, name, view)
        del view, value
        kept.append(base)
    del M, base
    for step in range(3):
        assert_same(A, S)
        for base in kept:
            put(base[::2] if part == "strided" else base, name, step)
        del base
        assert_same(A, S)
    kept.clear()
    assert_same(A, S)
    assert not A._mirrors[name].lent
    uploads.clear()
    assert_same(A, S)
    assert not [size for size in uploads if size == A._mirrors[name].on_device.size]


def test_an_array_bound_to_two_matrices_reaches_both(device: Device) -> None:
    (A, S), (B, T) = make_pair(device), make_pair(device)
    B.data, T.data = A.data, S.data
    for writers in ((A, S), (B, T), (B, T), (A, S)):
        for M in writers:
            M.data[2:7] *= 3
        assert_same(A, S)
        assert_same(B, T)


def test_no_product_uploads_the_matrix_again_after_the_loan(device: Device, uploads: list[int]) -> None:
    A, S = make_pair(device)
    x = on_device(device, np.ones(SHAPE[1]))
    for name in ARRAYS:
        getattr(A, name)[:1] += 0
    A @ x
    assert sorted(uploads[-3:]) == sorted([S.nnz, S.nnz, SHAPE[0] + 1]), "one upload of each when the loans are over"
    uploads.clear()
    for _ in range(3):
        A @ x
    assert uploads == []
    held = A.data
    for _ in range(3):
        A @ x
    assert uploads == [S.nnz] * 3, "one upload a product while it is held, of what is held alone"
    del held


def test_the_plan_is_kept_while_only_values_are_written(device: Device) -> None:
    A, S = make_pair(device)
    stats = A.operand()[0].stats
    for M in (A, S):
        M.data[:] = 2
    assert_same(A, S)
    assert A.operand()[0].stats is stats


def test_one_warning_says_that_a_loan_is_held(device: Device) -> None:
    A, _ = make_pair(device)
    x = np.ones(SHAPE[1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        A.data[0] = 1
        A @ x  # the loan is over already
        assert not caught
        held = A.data
        for _ in range(3):
            A @ x
            A.T @ np.ones(SHAPE[0])
    ours = [w for w in caught if w.category is HostLoanWarning]
    assert len(ours) == (1 if device.kind == "gpu" else 0)
    for w in ours:
        assert "A.data" in str(w.message)
        assert "freeze" in str(w.message)
        assert device.name in str(w.message)
    del held


# ---------------------------------------------------------------------------------------------------- freezing


@pytest.mark.parametrize("write", sorted(WRITES.keys() - {"A += sparse", "A -= sparse", "resize, more columns"}))
def test_a_frozen_matrix_refuses_to_be_written(device: Device, write: str) -> None:
    A, S = make_pair(device)
    assert A.freeze() is A
    by_array = write.startswith("through")  # (then it is NumPy that says so)
    with pytest.raises(ValueError, match="read-only" if by_array else "matrix is frozen.*copy"):
        WRITES[write](A)
    assert_same(A, S)
    np.testing.assert_array_equal(A.toarray(), S.toarray())


def test_frozen_arrays_are_read_only_and_no_loan(device: Device, uploads: list[int]) -> None:
    A, S = make_pair(device)
    A.freeze()
    assert_same(A, S)
    held = {name: getattr(A, name) for name in ARRAYS} | {f"A.T.{name}": getattr(A.T, name) for name in ARRAYS}
    assert not any(array.flags.writeable for array in held.values())
    for name in ARRAYS:
        np.testing.assert_array_equal(held[name], getattr(S, name))
        assert not A._mirrors[name].lent
    uploads.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A @ on_device(device, np.ones(SHAPE[1]))
    assert uploads == []
    B = A.copy()  # which is nobody's frozen matrix
    B.data[:] = 5
    assert_same(A, S)
    assert set((B @ np.ones(SHAPE[1])) % 5) == {0.0}


def test_freezing_cuts_off_who_holds_a_writable_array(device: Device) -> None:
    A, S = make_pair(device)
    held = A.data
    A.freeze()
    for _ in range(3):
        held[:] += 1
        assert_same(A, S)
        np.testing.assert_array_equal(A.toarray(), S.toarray())
        np.testing.assert_array_equal(A.data, S.data)


def test_release_keeps_loans_and_values(device: Device) -> None:
    A, S = make_pair(device)
    assert_same(A, S)
    A.toarray()
    A.release()
    assert all(mirror._host is None for mirror in A._mirrors.values()), "an idle host copy was kept"
    assert A._operand is None
    assert_same(A, S)
    held = A.data
    A.release()
    held[:], S.data[:] = 4, 4
    assert_same(A, S)
    del held
    A.release()
    assert_same(A, S)
    S.data[:] = A.data[:] = 6
    A.release()
    assert_same(A, S)


# ------------------------------------------------------------------------------------------ what SciPy computes


@pytest.mark.parametrize("canonical", [True, False])
def test_what_the_host_computes_is_no_staler_than_a_product(device: Device, canonical: bool) -> None:
    A, S = make_pair(device)
    if canonical:
        A.sum_duplicates(), S.sum_duplicates()
    for step in range(4):
        for M in (A, S):
            M.data[step] += 10
            if step % 2:
                M.T.data[-1] -= 3
        if step != 2:
            assert_same(A, S)
        np.testing.assert_array_equal(A.sum(axis=1), S.sum(axis=1))
        np.testing.assert_array_equal(A.toarray(), S.toarray())
        np.testing.assert_array_equal(A.T.toarray(), S.T.toarray())
        np.testing.assert_array_equal(A[4:6].toarray(), S[4:6].toarray())


@pytest.mark.parametrize("through_view", [False, True])
def test_what_the_host_has_read_is_no_loan(device: Device, through_view: bool) -> None:
    A, S = make_pair(device)
    A.sum_duplicates(), S.sum_duplicates()
    A @ np.ones(SHAPE[1])
    total = A.T.sum() if through_view else A.sum()
    assert total == pytest.approx(S.sum())
    S.data[0] = A.data[0] = 50
    A @ np.ones(SHAPE[1])
    assert not A._mirrors["data"].lent, "what the sum was computed from is still held"
    assert A.T.sum() == pytest.approx(S.sum())
    A.resize(SHAPE[0], 40), S.resize(SHAPE[0], 40)
    np.testing.assert_array_equal(A.toarray(), S.toarray())
    np.testing.assert_array_equal(A.T.toarray(), S.T.toarray())


def test_the_host_reads_another_part_of_the_same_memory(device: Device) -> None:
    A, S = make_pair(device)
    for M in (A, S):
        M.sum_duplicates()
        M.data = np.arange(2.0 * M.nnz)[: M.nnz]
    del M
    x = np.ones(SHAPE[1])
    for _ in range(2):  # the first may still upload, the second finds the loan over
        np.testing.assert_allclose(A @ x, S @ x)
    assert A.sum() == S.sum()
    for M in (A, S):
        M.data = M.data.base[M.nnz :]
    del M
    for _ in range(2):
        np.testing.assert_allclose(A @ x, S @ x)
    assert A.sum() == S.sum()


@pytest.mark.parametrize("change", ["made", "written"])
def test_a_transposed_copy_is_made_once_however_often_a_view_is_taken(
    device: Device, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, S = make_pair(device)
    if change == "made":
        A, S = A + A, S + S
    else:
        A.data[:], S.data[:] = 2, 2
    made: list[int] = []
    transpose = kernels_of(device).csr_transpose
    monkeypatch.setattr(kernels_of(device), "csr_transpose", lambda *args: made.append(1) or transpose(*args))
    z = np.arange(float(SHAPE[0]))
    for _ in range(3):
        assert_product(A.H @ z, S.T, z)
        assert_product(A.T @ z, S.T, z)
        assert_product(A.rmatvec(z), S.T, z)
    assert len(made) == 1


# ----------------------------------------------------------------------------------------------------- threads


def test_threads_multiply_while_another_takes_and_drops_loans(device: Device) -> None:
    A, S = make_pair(device, np.complex128)
    V = A.conj()
    x = np.arange(SHAPE[1]) + 1j
    expected, conjugated = S @ x, S.conj() @ x
    errors: list[BaseException] = []
    stop = threading.Event()

    def run(step: Any) -> None:
        try:
            while not stop.is_set():
                step()
        except BaseException as error:
            errors.append(error)
            stop.set()

    def multiply() -> None:
        np.testing.assert_allclose(A @ x, expected)
        np.testing.assert_allclose(V @ x, conjugated)
        np.testing.assert_allclose(A.T.conj() @ (S @ x), S.T.conj() @ (S @ x))

    def take_and_drop() -> None:
        for M in (A, V):
            held = M.data
            held[0] += 0
            indices = M.indices
            del held, indices

    def share_and_release() -> None:
        B = A.copy()
        B.data[:] = 0
        A.conj().data[:] = 0
        A.toarray()
        A.release()

    threads = [threading.Thread(target=run, args=(s,)) for s in (multiply, multiply, take_and_drop, share_and_release)]
    for thread in threads:
        thread.start()
    stop.wait(0.6)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert_same(A, S)


def test_a_loan_taken_in_a_thread_is_seen_by_products_of_others(device: Device) -> None:
    A, S = make_pair(device)
    steps = 20
    ask, answer = threading.Semaphore(0), threading.Semaphore(0)

    def writer() -> None:
        held = A.data
        for step in range(steps):
            ask.acquire()
            held[step] = step
            answer.release()

    thread = threading.Thread(target=writer)
    thread.start()
    for step in range(steps):
        ask.release()
        answer.acquire()
        S.data[step] = step
        np.testing.assert_allclose(A @ np.ones(SHAPE[1]), S @ np.ones(SHAPE[1]), atol=1e-12)
    thread.join()
    assert_same(A, S)


# -------------------------------------------------------------------- what the mechanism relies on: CPython, NumPy


def test_references_are_counted_exactly(device: Device) -> None:
    """Fails where CPython counts references in another way than `gsparse.matrix.loans` allows for."""
    mirror = Mirror(device, on_device=device.upload(np.arange(6.0)))
    assert not mirror.on_loan
    mirror.lend()
    assert not mirror.on_loan, "a loan that nobody kept"
    for hold, (take, _) in HOLDS.items():
        held = take(mirror.lend())
        assert mirror.on_loan, hold
        also = held
        del held
        assert mirror.on_loan, hold
        del also
        assert not mirror.on_loan, f"{hold}: something still holds the array"
        mirror.resident()
        assert not mirror.lent, hold
        assert np.all(host(mirror.resident()) == np.arange(6.0)), hold


def test_views_refer_to_the_array_that_owns_their_memory() -> None:
    """Fails where NumPy no longer collapses a chain of views, which counting one array's references rests on."""
    owner = np.arange(8.0)
    assert owner[1:][::2][:2].reshape(1, -1).T.base is owner
    assert memoryview(owner).obj is owner
    assert np.asarray(memoryview(owner)).base.obj is owner


def test_held_elsewhere_follows_views_to_their_owner() -> None:
    class Holder:
        array: Any

    def held(own: int) -> bool:  # (a failing assertion would hold what it shows)
        return held_elsewhere(holder.array, own)

    holder = Holder()
    holder.array = np.arange(5.0)
    found = [held(0), held(1)]
    again = holder.array
    found += [held(1), held(2)]
    del again
    large = np.arange(9.0)
    holder.array = large[2:]
    found += [held(1)]
    sibling = large[:1]
    del large
    found += [held(1)]
    del sibling
    found += [held(1)]
    holder.array = np.frombuffer(bytearray(16))  # memory that no array owns is anybody's
    found += [held(1)]
    holder.array = np.arange(7.0)
    weak = weakref.ref(holder.array)
    found += [held(1)]
    del weak
    found += [held(1)]
    assert found == [True, False, True, False, True, True, False, True, True, False]
    assert not held_elsewhere(None, 1)


def test_a_reference_cycle_is_a_loan_until_it_is_collected(device: Device) -> None:
    A, S = make_pair(device)
    cycle: list[Any] = [A.data]
    cycle.append(cycle)
    array = cycle[0]
    array[0], S.data[0] = 8, 8
    del array, cycle
    assert_same(A, S)
    gc.collect()
    assert_same(A, S)
    assert not A._mirrors["data"].lent


# ------------------------------------------------------------------------- what the mechanism relies on: SciPy


@pytest.mark.parametrize("cls", [GpuSparseMatrix, TransposedMatrix])
def test_initialize_sets_what_scipys_constructor_does(cls: type) -> None:
    """Fails where SciPy's constructor keeps something else in a new array than `arrays.initialize` sets."""
    scipys = cls._scipy_base((3, 4))
    mine: Any = cls.__new__(cls)
    initialize_matrix(mine, (3, 4))
    arrays = {"data", "indices", "indptr"}
    cached = {"_has_sorted_indices", "_has_canonical_format"}  # SciPy computes these anew where they are missing
    assert vars(scipys).keys() - arrays - cached == vars(mine).keys()
    assert mine.shape == scipys.shape
    assert mine._shape == scipys._shape
    assert mine.maxprint == scipys.maxprint
    assert mine.ndim == 2


@pytest.mark.parametrize("base", [sp.csr_array, sp.csc_array])
def test_every_method_we_serve_is_one_of_scipys(base: type) -> None:
    """Fails where SciPy renames a method that it calls itself: ours would no longer stand in for it."""
    private = {
        *("_getnnz", "_real", "_imag", "_broadcast_to", "_shape_as_2d", "_swap", "_with_data"),
        *("_matmul_vector", "_matmul_multivector", "_matmul_sparse", "_deduped_data"),
    }
    served = {
        *READING_METHODS,
        *private,
        "transpose",
        "conjugate",
        "astype",
        "dot",
        "tocsr",
        "copy",
        "prune",
        "__pow__",
    }
    # (`trace` and its like are in SciPy's base class; every one must be found somewhere in it.)
    assert [name for name in sorted(served) if not hasattr(base, name)] == []


def test_scipy_takes_its_arrays_through_the_three_attributes() -> None:
    """Fails where SciPy keeps a fourth array, or the same ones under other names."""
    S = sp.csr_array(np.eye(3))
    assert {name for name, value in vars(S).items() if isinstance(value, np.ndarray)} == set(ARRAYS)


# ---------------------------------------------------------------------------------- every mixture of all of it


class Loans(RuleBasedStateMachine):
    """Writes, loans, views and products in any order, against SciPy's."""

    device: Device
    pairs = Bundle("pairs")
    holds = Bundle("holds")

    @initialize(target=pairs, dtype=st.sampled_from(DTYPES), format=st.sampled_from(gsparse.FORMATS))
    def make(self, dtype: Any, format: str) -> Any:
        self.known: list[Any] = []
        return self._keep(make_pair(self.device, dtype, format))

    def _keep(self, pair: Any) -> Any:
        self.known.append(pair)
        return pair

    # (Those left out make SciPy add up repeated entries in the matrix they are taken of.)
    @rule(target=pairs, pair=pairs, view=st.sampled_from(sorted(VIEWS.keys() - {"abs(A)", "astype"})))
    def view(self, pair: Any, view: str) -> Any:
        return self._keep(tuple(VIEWS[view](M) for M in pair))

    @rule(pair=pairs, name=st.sampled_from(ARRAYS[:2]), where=st.integers(0, 15), value=st.integers(0, 8))
    def write(self, pair: Any, name: str, where: int, value: int) -> None:
        for M in pair:
            array = getattr(M, name)
            if where < array.size:
                array[where] = value % min(M.shape)

    @rule(pair=pairs, factor=st.sampled_from([2, -1, 0.5]))
    def scale(self, pair: Any, factor: float) -> None:
        for M in pair:
            M.__imul__(factor)

    @rule(pair=pairs, i=st.integers(0, 6), j=st.integers(0, 16), value=st.integers(-3, 3))
    def assign(self, pair: Any, i: int, j: int, value: int) -> None:
        for M in pair:
            if j < M.shape[1] and i < M.shape[0]:
                M[i, j] = value

    @rule(pair=pairs, method=st.sampled_from(["sum_duplicates", "sort_indices", "eliminate_zeros", "prune"]))
    def tidy(self, pair: Any, method: str) -> None:
        for M in pair:
            getattr(M, method)()

    @rule(pair=pairs, name=st.sampled_from(ARRAYS))
    def rebind(self, pair: Any, name: str) -> None:
        for M in pair:
            setattr(M, name, np.array(getattr(M, name)))

    parts = st.sampled_from([slice(None), slice(1, None, 2)])

    @rule(target=holds, pair=pairs, name=st.sampled_from(ARRAYS[:2]), part=parts)
    def hold(self, pair: Any, name: str, part: slice) -> Any:
        return {"limit": min(pair[1].shape), "arrays": [getattr(M, name)[part] for M in pair]}

    @rule(held=holds, value=st.integers(0, 8))
    def write_held(self, held: Any, value: int) -> None:
        for array in held["arrays"]:
            array[:3] = value % held["limit"]

    @rule(held=holds)
    def drop(self, held: Any) -> None:
        held["arrays"].clear()

    @rule(pair=pairs)
    def release(self, pair: Any) -> None:
        pair[0].release()

    @rule(pair=pairs)
    def compare_on_host(self, pair: Any) -> None:
        A, S = pair
        np.testing.assert_allclose(A.toarray(), S.toarray(), rtol=1e-6, atol=1e-6)
        assert A.nnz == S.nnz

    @rule(pair=pairs)
    def multiply(self, pair: Any) -> None:
        assert_same(*pair)

    @invariant()
    def every_product_is_right(self) -> None:
        for A, S in getattr(self, "known", [])[-4:]:
            x = np.arange(1.0, 1 + S.shape[1])
            np.testing.assert_allclose(A @ x, S @ x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "examples", "steps"), [("cpu", 40, 30), ("emulated:32", 8, 15)])
def test_no_order_of_writes_loans_views_and_products_gives_a_stale_one(name: str, examples: int, steps: int) -> None:
    machine = type("LoansOnDevice", (Loans,), {"device": make_device(name)})
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)
