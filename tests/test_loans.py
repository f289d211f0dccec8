"""No product is stale after any way of writing to a matrix that SciPy offers, and every loan ends.

Each test applies the same operations to a matrix and to its SciPy counterpart, and compares their products.
"""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable
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
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix
from gsparse.matrix.loans import ArrayPair
from tests.conftest import make_device
from tests.seeds import num_examples
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
    """Return a matrix and its SciPy counterpart, with unsorted and repeated columns, an empty row and stored zeros."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 6, SHAPE[0])
    lengths[3] = 0
    S = with_types(from_lengths(lengths, SHAPE[1], rng), dtype, np.int32, rng)
    S.data[[2, 11]] = 0
    return GpuSparseMatrix(S.copy(), device=device, format=format), S.copy()


def assert_same(A: Any, S: Any) -> None:
    """Compare every kind of product of a matrix and its SciPy counterpart."""
    assert A.shape == S.shape
    S = S.copy()  # drops unused room behind the last entry, which SciPy's tocoo would read as entries
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


# -------------------------------------------------- every way to write: each function takes and returns a matrix


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
@pytest.mark.few(6)
def test_a_product_sees_every_write(device: Device, write: str, dtype: Any) -> None:
    A, S = make_pair(device, dtype)
    assert_same(A, S)
    A, S = WRITES[write](A), WRITES[write](S)
    assert_same(A, S)
    assert type(A) is GpuSparseMatrix
    assert A.dtype == S.dtype
    A, S = imul(A), imul(S)  # a second write
    assert_same(A, S)
    np.testing.assert_array_equal(A.toarray(), S.toarray())


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.few(10)
def test_a_write_to_a_transposed_view_reaches_the_matrix(device: Device, write: str) -> None:
    A, S = make_pair(device)
    V, W = A.T, S.T
    assert_same(A, S)
    try:
        W = WRITES[write](W)
    except (IndexError, ValueError) as error:  # the write fits SHAPE, but not its transpose: our view refuses it, too
        with pytest.raises(type(error)):
            WRITES[write](V)
        return
    V = WRITES[write](V)
    assert_same(V, W)
    # SciPy's `resize` writes to the row pointers of the matrix of which `W` is a view, but not to its columns.
    assert_same(A, make_pair(device)[1] if write == "resize, smaller" else S)


def _sum(M: Any) -> Any:
    """Return M + M in canonical form, which SciPy's sum of unsorted rows does not have."""
    total = M + M
    if type(total) in (sp.csr_array, sp.csc_array):
        total.sum_duplicates()
    return total


# Views and copies of a matrix: a write to the original must appear in each of them exactly if it does in SciPy.
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
    "A + A": _sum,
    "constructed": lambda M: type(M)(M, copy=True),
    "sorted_indices": lambda M: M.sorted_indices(),
}
IN_PLACE = ("A *= 2", "through data", "through indices", "through indptr", "sort_indices", "data bound", "item, new")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("warm", [False, True], ids=["before any product", "after products"])
@pytest.mark.few(4)
def test_views_and_copies_share_writes_exactly_as_scipys_do(device: Device, view: str, dtype: Any, warm: bool) -> None:
    for write in IN_PLACE:
        A, S = make_pair(device, dtype)
        if view in ("abs(A)", "astype"):  # for these, SciPy sums repeated entries in the matrix itself
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
        np.testing.assert_allclose(V.toarray(), W.toarray(), rtol=1e-14)  # hypot on a GPU rounds differently
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
        original = target.copy()
        target[:] = 99
        np.testing.assert_allclose(A @ x, sp.csr_array((original[: data.size], indices, indptr), shape=SHAPE) @ x)
        target[:] = original
        A.data[:] = -1
        np.testing.assert_array_equal(target, original, err_msg=name)
        np.testing.assert_array_equal(S @ x, expected)


# ------------------------------------------------------------------------------------------------------- loans

# Ways to hold an array: a function that makes a holder of the array, and one that gets the array back from the holder.
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
    else:  # moves the boundary between two rows back and forth
        array[1] = array[2] if array[1] != array[2] else array[0]


@pytest.fixture
def uploads(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the sizes of all arrays that are uploaded to the device."""
    sizes: list[int] = []
    upload = device.upload

    def counting(array: Any) -> Any:
        sizes.append(array.size)
        return upload(array)

    monkeypatch.setattr(device, "upload", counting)
    return sizes


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("hold", WRITABLE)
@pytest.mark.few(6)
def test_a_loan_lasts_exactly_as_long_as_the_array_is_held(
    device: Device, hold: str, name: str, uploads: list[int]
) -> None:
    if (hold, name) == ("strided view", "indptr"):
        pytest.skip("a view of every other element cannot move a single boundary between rows")
    take, reach = HOLDS[hold]
    A, S = make_pair(device)
    held, expected = take(getattr(A, name)), take(getattr(S, name))
    for step in range(3):
        assert_same(A, S)
        assert getattr(A._arrays, name).on_loan
        before = uploads.copy()
        put(reach(held), name, step), put(reach(expected), name, step)
        assert_same(A, S)
        assert len(uploads) > len(before), "the write was not uploaded"
    assert A._arrays.lent_names == [name], "another array counts as lent"
    put(reach(held), name, 5), put(reach(expected), name, 5)
    del held, expected
    assert not getattr(A._arrays, name).on_loan
    assert_same(A, S)
    uploads.clear()
    assert_same(A, S)
    assert not getattr(A._arrays, name).lent
    vectors = {SHAPE[0], SHAPE[1], 2 * SHAPE[1]}
    assert set(uploads) <= vectors, "an array was uploaded although nothing held it"


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("part", ["whole", "view", "strided"])
def test_an_assigned_array_is_on_loan_while_it_is_held(
    device: Device, part: str, name: str, uploads: list[int]
) -> None:
    A, S = make_pair(device)
    assert_same(A, S)
    bound_arrays = []
    for M in (A, S):
        value = getattr(M, name)
        base = {"whole": value.copy(), "view": np.concatenate([value, value]), "strided": np.repeat(value, 2)}[part]
        view = {"whole": base, "view": base[: value.size], "strided": base[::2]}[part]
        setattr(M, name, view)
        del view, value
        bound_arrays.append(base)
    del M, base
    for step in range(3):
        assert_same(A, S)
        for base in bound_arrays:
            put(base[::2] if part == "strided" else base, name, step)
        del base
        assert_same(A, S)
    bound_arrays.clear()
    assert_same(A, S)
    assert not getattr(A._arrays, name).lent
    uploads.clear()
    assert_same(A, S)
    assert not [size for size in uploads if size == getattr(A._arrays, name).on_device.size]


def test_no_product_uploads_the_matrix_again_after_the_loan(device: Device, uploads: list[int]) -> None:
    A, S = make_pair(device)
    x = on_device(device, np.ones(SHAPE[1]))
    A @ x
    uploads.clear()
    for name in ARRAYS:
        getattr(A, name)[:1] += 0
    A @ x
    sizes = sorted([S.nnz, S.nnz, SHAPE[0] + 1])
    assert sorted(uploads) == sizes, "each array must be uploaded once after its loan ended"
    uploads.clear()
    for _ in range(3):
        A @ x
    assert uploads == []
    held = A.data
    for _ in range(3):
        held *= 2
        A @ x
    assert uploads == [S.nnz] * 3, "each product must upload the held array, and nothing else"
    del held


@pytest.mark.parametrize("name", ARRAYS)
def test_a_cpu_lends_an_array_without_a_copy_if_nothing_else_refers_to_it(name: str) -> None:
    A, S = make_pair(make_device("cpu"))
    assert_same(A, S)
    address = getattr(A._arrays, name).on_device.ctypes.data
    assert getattr(A, name).ctypes.data == address
    assert_same(A, S)
    assert getattr(A._arrays, name).on_device.ctypes.data == address


HOLDERS = {
    "a copy": lambda A: A.copy(),
    "a transposed copy": lambda A: A.transpose(copy=True),
    "a read-only array": lambda A: A._arrays.read()[0],
    "a slice of a read-only array": lambda A: A._arrays.read()[0][3:],
    "a device array": lambda A: A.device_data,
    "a slice of a device array": lambda A: A.device_data[3:],
    "a prepared matrix": lambda A: A._prepared()[0],
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_write_to_a_lent_array_changes_nothing_that_a_cpu_holds_elsewhere(holder: Callable[[Any], Any]) -> None:
    A, _ = make_pair(make_device("cpu"))
    held = holder(A)
    A.data[:] = np.nan
    data = held.csr.data if hasattr(held, "csr") else held if isinstance(held, np.ndarray) else held.device_data
    assert np.isfinite(data).all()
    assert np.isnan(A @ np.ones(SHAPE[1])).any()


def test_arrays_that_are_only_read_leave_the_format_on_a_cpu() -> None:
    A, S = make_pair(make_device("cpu"))
    assert A.plan.format
    A @ np.ones(SHAPE[1])
    before = A._arrays.prepared
    assert A.data.sum() == S.data.sum()
    assert (A.indices == S.indices).all()
    assert (A.indptr == S.indptr).all()
    A @ np.ones(SHAPE[1])
    assert A._arrays.prepared is before
    A.data[0] = np.nan
    assert np.isnan(A @ np.ones(SHAPE[1])).any()


def test_a_held_loan_warns_once(device: Device) -> None:
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
    by_array = write.startswith("through")  # in that case NumPy raises the error
    with pytest.raises(ValueError, match="read-only" if by_array else "matrix is frozen.*copy"):
        WRITES[write](A)
    assert_same(A, S)
    np.testing.assert_array_equal(A.toarray(), S.toarray())


def test_frozen_arrays_are_read_only_and_not_on_loan(device: Device, uploads: list[int]) -> None:
    A, S = make_pair(device)
    A.freeze()
    assert_same(A, S)
    held = {name: getattr(A, name) for name in ARRAYS} | {f"A.T.{name}": getattr(A.T, name) for name in ARRAYS}
    assert not any(array.flags.writeable for array in held.values())
    for name in ARRAYS:
        np.testing.assert_array_equal(held[name], getattr(S, name))
        assert not getattr(A._arrays, name).lent
    uploads.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A @ on_device(device, np.ones(SHAPE[1]))
    assert uploads == []
    B = A.copy()  # the copy is not frozen
    B.data[:] = 5
    assert_same(A, S)
    assert set((B @ np.ones(SHAPE[1])) % 5) == {0.0}


def test_freezing_detaches_arrays_held_as_writable(device: Device) -> None:
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
    assert all(pair._host is None for pair in A._arrays), "an idle host copy was kept"
    assert A._arrays.prepared is None
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
def test_host_operations_see_every_write(device: Device, canonical: bool) -> None:
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
        np.testing.assert_allclose(A.sum(axis=1), S.sum(axis=1), rtol=1e-13)
        np.testing.assert_array_equal(A.toarray(), S.toarray())
        np.testing.assert_array_equal(A.T.toarray(), S.T.toarray())
        np.testing.assert_array_equal(A[4:6].toarray(), S[4:6].toarray())


READS = {
    "tolil": lambda M: M.tolil(),
    "todok": lambda M: M.todok(),
    "argmax": lambda M: M.argmax(),
    "power": lambda M: M.power(2),
    "max": lambda M: M.max(axis=0),
    "product": lambda M: M @ M,
}


@pytest.mark.parametrize("dtype", [np.int8, np.longdouble])
@pytest.mark.parametrize("read", READS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.few(2)
def test_operations_that_read_add_no_repeated_entries_up(device: Device, read: str, dtype: Any) -> None:
    S = sp.csr_array((np.array([100, 100], dtype), [0, 0], [0, 2]), shape=(1, 1))
    A = GpuSparseMatrix(S, device=device)

    def results() -> list[Any]:
        return [(A @ sp.csr_array([[1.0]]))[0, 0], (A @ np.ones(1))[0], str(A), A.nnz, *A._getnnz(axis=1)]

    before = results()
    READS[read](A)
    assert results() == before


# ----------------------------------------------------------------------------------------------------- threads


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_threads_that_change_the_structure_of_one_matrix_leave_it_whole(device: Device) -> None:
    A, S = make_pair(device, np.float64)
    view, other = A.T, GpuSparseMatrix(S, device=device)
    errors: list[BaseException] = []
    stop = threading.Event()

    def run(step: Any, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                step(*(int(rng.integers(size)) for size in S.shape))
        except BaseException as error:
            errors.append(error)
            stop.set()

    def write(i: int, j: int) -> None:
        A[i, j] = 1.5
        A[i, j] = 0
        A.eliminate_zeros()

    def write_to_view(i: int, j: int) -> None:
        view[j, i] = 0
        view.sum_duplicates()
        A.setdiag(1)
        A.__imul__(1.0)

    def write_to_each_other(i: int, j: int) -> None:
        A[i, :] = other[i : i + 1]
        other[i, :] = A[i : i + 1]

    def write_back(i: int, j: int) -> None:
        other[:, j] = A[:, j : j + 1]
        A.data[:] += 0

    def read(i: int, j: int) -> None:
        A @ np.ones(S.shape[1])
        view @ np.ones(S.shape[0])
        A.copy()[i : i + 3].sum()

    steps = (write, write, write_to_view, write_to_each_other, write_back, read)
    threads = [threading.Thread(target=run, args=(step, seed)) for seed, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    stop.wait(0.6)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    for M in (A, other):
        M.check_format(full_check=True)
        np.testing.assert_allclose(M @ np.ones(S.shape[1]), M.toarray() @ np.ones(S.shape[1]))


# -------------------------------------------------------------------- what loans rely on: CPython, NumPy


def test_references_are_counted_exactly(device: Device) -> None:
    """Fails if CPython counts references in a way that `gsparse.matrix.loans` does not expect."""
    pair = ArrayPair(device, on_device=device.upload(np.arange(6.0)))
    assert not pair.on_loan
    pair.lend()
    assert not pair.on_loan, "the array counts as held, although nothing holds it"
    for hold, (take, _) in HOLDS.items():
        held = take(pair.lend())
        assert pair.on_loan, hold
        second = held
        del held
        assert pair.on_loan, hold
        del second
        assert not pair.on_loan, f"{hold}: something still holds the array"
        pair.current_array()
        assert not pair.lent, hold
        assert np.all(host(pair.current_array()) == np.arange(6.0)), hold


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
    assert not A._arrays.data.lent


# ------------------------------------------------------------------------- what loans rely on: SciPy


@pytest.mark.parametrize("base", [sp.csr_array, sp.csc_array])
def test_every_overridden_method_exists_in_scipy(base: type) -> None:
    """Fails if SciPy renames a method that it calls itself: our method would no longer override it."""
    called = ("_shape_as_2d", "_swap", "_with_data", "_deduped_data", "_ascontainer", "_allow_nd")
    ours = {
        *("H", "matvec", "rmatvec", "matmat", "rmatmat", "as_linear_operator", "with_data", "to_cupy", "distribute"),
        *("accelerated", "block_shape", "device_data", "device_indices", "device_indptr", "freeze", "release", "plan"),
        *(
            "stored",
            "data",
            "indices",
            "indptr",
            "device",
            "stats",
            "name",
            "from_file",
            "plan_for",
            "_arrays",
            "_by_columns",
        ),
        *("_lend", "_stored_shape", "_reduced_shape", "_selected_shape", "_prepared", "_host_product", "_own_types"),
        *("_with_arrays", "_repr_html_", "_transposed_class", "_square", "__annotations__", "__weakref__"),
        *("__copy__", "__deepcopy__", "__array_ufunc__"),
    }
    served = {*vars(DeviceMatrix), *called} - ours
    # Some methods, such as `trace`, are defined in SciPy's base classes.
    assert [name for name in sorted(served) if not hasattr(base, name)] == []


# -------------------------------------------------------------------------- random sequences of all operations


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

    # The two omitted views make SciPy sum repeated entries in the matrix itself.
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
        self._forget(pair[1])
        for M in pair:
            if j < M.shape[1] and i < M.shape[0]:
                M[i, j] = value

    @rule(pair=pairs, method=st.sampled_from(["sum_duplicates", "sort_indices", "eliminate_zeros", "prune"]))
    def tidy(self, pair: Any, method: str) -> None:
        A, S = pair
        # If another matrix shares some of the arrays, but not all, SciPy's methods leave it with rows that are none.
        shared = [[np.shares_memory(getattr(S, n), getattr(T, n)) for n in ARRAYS] for _, T in self.known]
        if any(any(which) and not all(which) for which in shared):
            return
        self._forget(S)
        for M in (A, S):
            getattr(M, method)()

    def _forget(self, S: Any) -> None:
        """Make SciPy forget what it knew of the entries before somebody wrote to `indices`."""
        for known in ("_has_sorted_indices", "_has_canonical_format"):
            vars(S).pop(known, None)

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


@pytest.mark.parametrize(
    ("name", "examples", "steps"), [("cpu", num_examples(40), 30), ("emulated:32", num_examples(8), 15)]
)
def test_no_sequence_of_writes_loans_and_views_gives_a_stale_product(name: str, examples: int, steps: int) -> None:
    machine = type("LoansOnDevice", (Loans,), {"device": make_device(name)})
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=limits)


def test_a_matrix_on_loan_keeps_the_options_of_its_user() -> None:
    A = GpuSparseMatrix(sp.eye_array(100, format="csr"), device="cpu", expected_products=70)
    data = A.data
    assert A @ np.ones(100) is not None
    prepared = A._prepared()[0]
    assert prepared.on_loan
    assert prepared.options.expected_products == 70
    assert "ranked by the time of 1 products" in A.plan.reason
    del data
    assert A @ np.ones(100) is not None
    prepared = A._prepared()[0]
    assert not prepared.on_loan
    prepared.plan_for_many_products()
    assert "ranked by the time of 70 products" in A.plan.reason
