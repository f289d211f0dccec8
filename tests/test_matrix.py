"""Construction, results, operators and statistics of `GpuSparseMatrix`: they are SciPy's, on the device if possible."""

from __future__ import annotations

import copy
import logging
import operator
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DeviceError, DtypeError, HostFallbackError, MatrixProductWarning, ShapeError
from gsparse.matrix.elementwise import VALUE_FUNCTIONS
from gsparse.matrix.gpu_sparse_matrix import UFUNC_METHODS, TransposedMatrix
from tests.support import DTYPES, INDEX_DTYPES, assert_product, from_lengths, host, on_device, random_values, with_types

SHAPE = (12, 9)


def make(dtype: Any = float, *, canonical: bool = True) -> Any:
    """Return a SciPy matrix with values of both signs within (-0.9, 0.9), where every value function is defined."""
    rng = np.random.default_rng(5)
    S = with_types(from_lengths(rng.integers(0, 6, SHAPE[0]), SHAPE[1], rng), dtype, np.int32, rng)
    if canonical:
        S.sum_duplicates()
    if S.dtype.kind in "fc":
        S.data /= 1.2 * abs(S.data).max()
    return S


@pytest.fixture
def S() -> Any:
    return make()


@pytest.fixture
def A(device: Device, S: Any) -> Any:
    return GpuSparseMatrix(S, device=device)


def assert_equal(got: Any, expected: Any) -> None:
    """Compare anything with SciPy's: arrays, scalars and sparse matrices, with dtypes."""
    assert sp.issparse(got) == sp.issparse(expected)
    if sp.issparse(got):
        assert got.format == expected.format
        got, expected = got.toarray(), expected.toarray()
    assert np.asarray(got).dtype == np.asarray(expected).dtype
    rtol = 4 * np.finfo(np.asarray(got).dtype).eps if np.asarray(got).dtype.kind in "fc" else 0
    np.testing.assert_allclose(host(got), expected, rtol=rtol, atol=rtol)


def assert_on(device: Device, A: Any) -> None:
    assert isinstance(A, GpuSparseMatrix)
    assert A.device is device
    assert device.owns(A.device_data)


# ------------------------------------------------------------------------------------------------ construction

SCIPY_FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
SOURCES: dict[str, Any] = {
    **{f"{name}_array": lambda S, name=name: S.asformat(name) for name in SCIPY_FORMATS},
    **{f"{name}_matrix": lambda S, name=name: sp.csr_matrix(S).asformat(name) for name in SCIPY_FORMATS},
    "dense": lambda S: S.toarray(),
    "dense, column-major": lambda S: np.asfortranarray(S.toarray()),
    "np.matrix": lambda S: np.asmatrix(S.toarray()),
    "lists": lambda S: S.toarray().tolist(),
    "(data, (row, col))": lambda S: (S.data, S.tocoo().coords),
    "(data, (row, col)), lists": lambda S: (S.data.tolist(), [c.tolist() for c in S.tocoo().coords]),
    "(data, indices, indptr)": lambda S: (S.data, S.indices, S.indptr),
    "(data, indices, indptr), lists": lambda S: tuple(part.tolist() for part in (S.data, S.indices, S.indptr)),
    "(data, indices, indptr), int64": lambda S: (S.data, S.indices.astype(np.int64), S.indptr.astype(np.int64)),
    "(data, indices, indptr), int16": lambda S: (S.data, S.indices.astype(np.int16), S.indptr.astype(np.int16)),
    "GpuSparseMatrix, on the CPU": lambda S: GpuSparseMatrix(S, device="cpu"),
    "transposed view, on the CPU": lambda S: GpuSparseMatrix(S.T.tocsr(), device="cpu").T,
    "conjugated view, on the CPU": lambda S: GpuSparseMatrix(S.conj(), device="cpu").conj(),
}


@pytest.mark.parametrize("dtype", [None, np.float32, np.complex128])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_matrix_is_made_from_every_form_that_scipy_accepts(device: Device, source: str, dtype: Any, S: Any) -> None:
    A = GpuSparseMatrix(SOURCES[source](S), shape=SHAPE, dtype=dtype, device=device)
    assert_on(device, A)
    assert sp.issparse(A)
    assert isinstance(A, sp.csr_array)
    assert isinstance(A, sp.sparray)
    assert A.dtype == (dtype or float)
    np.testing.assert_allclose(A.toarray(), S.toarray(), rtol=1e-6)
    assert_product(A @ np.arange(9.0), S.astype(A.dtype), np.arange(9.0))


@pytest.mark.parametrize("dtype", [float, np.complex128])
@pytest.mark.parametrize("view", ["A", "A.T", "A.conj()", "A.H", "A.T.T"])
@pytest.mark.few(3)
def test_a_matrix_made_from_another_is_on_its_device(device: Device, view: str, dtype: Any) -> None:
    S = make(dtype)
    A = GpuSparseMatrix(S, device=device, format="ellpack", threads_per_block=512)
    given, expected = {
        "A": (A, S),
        "A.T": (A.T, S.T),
        "A.conj()": (A.conj(), S.conj()),
        "A.H": (A.H, S.T.conj()),
        "A.T.T": (A.T.T, S),
    }[view]
    B = GpuSparseMatrix(given)
    assert_on(device, B)
    np.testing.assert_array_equal(B.toarray(), expected.toarray())
    assert B.plan.format == "ellpack", "the request is inherited"
    assert B.plan.launch.threads_per_block == 512
    assert GpuSparseMatrix(given, format="csr_scalar").plan.format == "csr_scalar"
    wide = GpuSparseMatrix(given, dtype=np.complex64)
    assert wide.dtype == np.complex64
    np.testing.assert_allclose(wide.toarray(), expected.toarray(), rtol=1e-6)
    x, larger = np.arange(20.0), sp.csr_array((S.data, S.indices, S.indptr), shape=(12, 20))
    assert_product(GpuSparseMatrix(A, shape=(12, 20)) @ x, larger, x)


def test_repeated_coordinates_add_up(device: Device) -> None:
    A = GpuSparseMatrix(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), device=device)
    np.testing.assert_array_equal(A.toarray(), [[0, 3], [4, 0]])
    np.testing.assert_array_equal(A @ [1.0, 10.0], [30, 4])


def test_a_shape_makes_an_empty_matrix(device: Device) -> None:
    for shape in ((3, 4), (0, 4), (4, 0), (0, 0)):
        A = GpuSparseMatrix(shape, device=device)
        assert (A.shape, A.nnz, A.dtype) == (shape, 0, np.float64)
        np.testing.assert_array_equal(A @ np.ones(shape[1]), np.zeros(shape[0]))
        np.testing.assert_array_equal(A.T @ np.ones(shape[0]), np.zeros(shape[1]))
        assert (A @ np.ones((shape[1], 2))).shape == (shape[0], 2)
        assert (A + A).nnz == (2 * A).nnz == abs(A).nnz == A.sum() == 0
        assert_equal(A.toarray(), sp.csr_array(shape).toarray())


def test_a_one_dimensional_array_works_through_scipy(device: Device) -> None:
    v = np.array([0.0, 3.0, 0.0, 4.0])
    A, s = GpuSparseMatrix(v, device=device), sp.csr_array(v)
    assert A.shape == s.shape == (4,)
    assert A @ np.arange(4.0) == s @ np.arange(4.0)
    assert_equal(2 * A, 2 * s)
    np.testing.assert_array_equal((A + A).toarray(), (s + s).toarray())
    A[1] = 7.0
    assert A @ np.ones(4) == 11


@pytest.mark.parametrize("kind", ["csr", "coo", "dense", "coordinates", "parts"])
def test_device_arrays_are_accepted_without_a_host_copy(
    device: Device, kind: str, S: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On an emulated device, a matrix of SciPy stands in for one of CuPy: it has the same attributes, and the device's
    # arrays are NumPy's.
    if device.kind == "gpu" and device.xp is not np:
        sparse = pytest.importorskip("cupyx.scipy.sparse").csr_matrix(sp.csr_matrix(S))
    else:
        sparse = S
        monkeypatch.setattr("gsparse.matrix.constructor.device_of_source", lambda _: device)
    row, col = (on_device(device, c) for c in S.tocoo().coords)
    shuffled = on_device(device, np.random.default_rng(0).permutation(S.nnz))
    source = {
        "csr": sparse,
        "coo": sparse.tocoo(),
        "dense": on_device(device, S.toarray()),
        "coordinates": (on_device(device, S.data)[shuffled], (row[shuffled], col[shuffled])),
        "parts": tuple(on_device(device, part) for part in (S.data, S.indices, S.indptr)),
    }[kind]
    monkeypatch.setattr(device, "upload", lambda array: pytest.fail("went through the host"))
    download = device.download  # a few numbers about the structure may be copied to the host

    def only_facts(array: Any) -> Any:
        return download(array) if array.dtype == np.uint64 else pytest.fail("went through the host")

    monkeypatch.setattr(device, "download", only_facts)
    A = GpuSparseMatrix(source, shape=SHAPE)
    monkeypatch.undo()
    assert_on(device, A)
    np.testing.assert_array_equal(A.toarray(), S.toarray())
    assert_product(A @ np.arange(9.0), S, np.arange(9.0))


def test_copy_decides_whether_device_arrays_are_shared(device: Device, S: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gsparse.matrix.constructor.device_of_source", lambda _: device)
    parts = tuple(on_device(device, part) for part in (S.data, S.indices, S.indptr))
    for shared in (True, False):
        A = GpuSparseMatrix(parts, shape=SHAPE, copy=not shared)
        assert device.xp.may_share_memory(A.device_data, parts[0]) == shared
        assert device.xp.may_share_memory(A.device_indices, parts[1]) == shared
        assert device.xp.may_share_memory(A.device_indptr, parts[2]) == shared


def test_an_environment_variable_selects_the_device(monkeypatch: pytest.MonkeyPatch, S: Any) -> None:
    monkeypatch.setenv("GSPARSE_DEVICE", "cpu")
    assert GpuSparseMatrix(S).device.name == "cpu"
    monkeypatch.setenv("GSPARSE_DEVICE", "tpu")
    with pytest.raises(gsparse.GsparseError, match="unknown device 'tpu'"):
        GpuSparseMatrix(S)
    assert GpuSparseMatrix(S, device="cpu").device.name == "cpu"


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
def test_the_dtype_of_indices_is_kept(device: Device, index: Any, rng: np.random.Generator) -> None:
    large = 2**33 if index == np.int64 else 9
    coordinates = np.array([0, 2], index), np.array([1, large - 1], index)
    A = GpuSparseMatrix(([1.0, 2.0], coordinates), shape=(3, large), device=device)
    assert A.device_indices.dtype == A.device_indptr.dtype == A.indices.dtype == index
    assert A.stored.columns.codes.dtype == index
    A = GpuSparseMatrix(with_types(make(), float, index, rng), device=device)
    x = np.arange(9.0)
    assert_product(A @ x, sp.csr_array(A.toarray()), x)
    assert A.copy().device_indices.dtype == (2 * A).device_indices.dtype == A.device_indices.dtype


# ----------------------------------------------------------------------------------------------------- results

# Operations for which SciPy returns a CSR matrix. Our results stay on the device.
STAYS: dict[str, Any] = {
    "2*A": lambda A, B: 2 * A,
    "A*2": lambda A, B: A * 2,
    "np.float64(2)*A": lambda A, B: np.float64(2) * A,
    "np.float32(2)*A": lambda A, B: np.float32(2) * A,
    "np.array(2)*A": lambda A, B: np.array(2) * A,
    "1j*A": lambda A, B: 1j * A,
    "A/3": lambda A, B: A / 3,
    "-A": lambda A, B: -A,
    "abs(A)": lambda A, B: abs(A),
    "round(A)": lambda A, B: round(A, 1),
    "A.astype": lambda A, B: A.astype(np.float32),
    "A.astype(int)": lambda A, B: (9 * A).astype(int),
    "A.real": lambda A, B: A.real,
    "A.imag": lambda A, B: A.imag,
    "A.conj()": lambda A, B: A.conj(),
    "A.copy()": lambda A, B: A.copy(),
    "A.T.T": lambda A, B: A.T.T,
    "A.multiply(2)": lambda A, B: A.multiply(2),
    "A.dot(2)": lambda A, B: A.dot(2),
    "A.power(2)": lambda A, B: A.power(2),
    "A**3": lambda A, B: A**3,
    "A + A": lambda A, B: A + A,
    "A + B": lambda A, B: A + B,
    "B + A": lambda A, B: B + A,
    "A - B": lambda A, B: A - B,
    "B - A": lambda A, B: B - A,
    "A * B": lambda A, B: A * B,
    "A @ B.T": lambda A, B: A @ B.T.tocsr(),
    "A @ A.T": lambda A, B: A @ A.T,
    "A > 0": lambda A, B: A > 0.1,
    "A != B": lambda A, B: A != B,
    "A.maximum(0)": lambda A, B: A.maximum(0),
    "A.minimum(B)": lambda A, B: A.minimum(B),
    "A[2:5]": lambda A, B: A[2:5],
    "A[[3, 1]]": lambda A, B: A[[3, 1]],
    "A[:, 2:4]": lambda A, B: A[:, 2:4],
    "A[mask]": lambda A, B: A[np.arange(12) % 2 == 0],
    "A * dense": lambda A, B: (A * np.ones(SHAPE)).tocsr(),
    "A / dense": lambda A, B: (A / np.full(SHAPE, 2.0)).tocsr(),
    "A.multiply(row)": lambda A, B: A.multiply(np.arange(9.0)).tocsr(),
    "A.multiply(column)": lambda A, B: A.multiply(np.arange(12.0)[:, None]).tocsr(),
    "A.sorted_indices()": lambda A, B: A.sorted_indices(),
    "A.tocsr()": lambda A, B: A.tocsr(),
    "A.T.tocsr()": lambda A, B: A.T.tocsr(),
    "A.asformat": lambda A, B: A.asformat("csr"),
    "A += B": lambda A, B: A.__iadd__(B) if hasattr(A, "__iadd__") and A.__iadd__(B) is not NotImplemented else A + B,
    "list(A)[3]": lambda A, B: list(A)[3],
    # SciPy returns these in COO.
    "A[3]": lambda A, B: A[3].tocsr(),
    "A[:, 3]": lambda A, B: A[:, 3].tocsr(),
    "A.T[3]": lambda A, B: A.T[3].tocsr(),
    "A[3, ::-2]": lambda A, B: A[3, ::-2].tocsr(),
    "A.reshape(9, 12)": lambda A, B: A.reshape(9, 12).tocsr(),
    "A.reshape(-1)": lambda A, B: A.reshape(-1).tocsr(),
    "A.T.reshape, F": lambda A, B: A.T.reshape((18, 6), order="F").tocsr(),
    "A == B": lambda A, B: A == B,
    "A >= 1": lambda A, B: A >= 1,
    "A <= 1": lambda A, B: A <= 1,
    "A.multiply(sparse row)": lambda A, B: A.multiply(B[:1]),
    **{f"A.{name}()": lambda A, B, name=name: getattr(A, name)() for name in VALUE_FUNCTIONS},
}


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize("operation", STAYS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::scipy.sparse.SparseEfficiencyWarning")
def test_results_equal_scipys_and_stay_on_the_device(device: Device, operation: str, dtype: Any) -> None:
    S, T = make(dtype), (make(dtype)[::-1]).tocsr()
    apply = STAYS[operation]
    A = GpuSparseMatrix(S, device=device)
    try:
        expected = apply(S, T)
    except (TypeError, ValueError, AttributeError) as error:  # such as comparing complex numbers
        with pytest.raises((type(error), TypeError)):
            apply(A, T)
        return
    with gsparse.strict():
        got = apply(A, GpuSparseMatrix(T, device=device))
    assert_equal(got, expected)
    assert_on(device, got)
    assert_equal(apply(A, T), expected)
    if got.ndim == 2:
        x = np.arange(float(got.shape[1]))
        np.testing.assert_allclose(got @ x, expected @ x, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got.T @ (expected @ x), expected.T @ (expected @ x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", VALUE_FUNCTIONS)
@pytest.mark.parametrize("dtype", [np.bool_, np.int32, *DTYPES], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_value_functions_equal_scipys_also_for_repeated_entries(device: Device, name: str, dtype: Any) -> None:
    S = make(dtype, canonical=False)
    A = GpuSparseMatrix(S.copy(), device=device)
    try:
        expected = getattr(S, name)()
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            getattr(A, name)()
        return
    if expected.dtype == np.float16:  # from booleans: sparse matrices of SciPy do not support this dtype
        pytest.skip("SciPy's own result is half precision")
    got = getattr(A, name)()
    assert_equal(got, expected)
    assert_on(device, got)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.float32, np.complex128], ids=str)
def test_repeated_entries_are_cast_before_they_are_added_up(device: Device, dtype: Any) -> None:
    columns, indptr = np.array([1, 1, 2, 0, 0]), np.array([0, 3, 5])
    S = sp.csr_array((np.array([200, 100, 1, 1, 255], np.uint8), columns, indptr), shape=(2, 4))
    for source in (S, sp.csr_array((S.data > 0, columns, indptr), shape=S.shape)):
        A = GpuSparseMatrix(source.copy(), device=device)
        for ours, theirs in ((A, source), (A.T, source.T)):
            assert_equal(ours.astype(dtype), theirs.copy().astype(dtype))


@pytest.mark.parametrize("change", ["2*A", "-A", "abs(A)", "A.astype", "A.conj()", "A.copy()", "A.sin()", "A.T.T"])
def test_results_with_the_same_structure_share_the_plan(device: Device, change: str, A: Any) -> None:
    A @ np.ones(9)
    stats = A._prepared()[0].stats
    other = STAYS[change](A, None)
    assert other._prepared()[0].stats is stats
    other._prepared()[0].plan_for_many_products()
    assert other.plan.format == A.plan.format
    assert other.plan == A.plan or change == "A.astype"  # of which other bytes are predicted
    assert other.device_indices is A.device_indices
    assert other.device_indptr is A.device_indptr


def test_views_share_the_device_arrays(device: Device) -> None:
    A = GpuSparseMatrix(make(complex), device=device)
    for view in (A.T, A.T.T, A.conj().T):
        assert view.device_indices is A.device_indices
    assert isinstance(A.T, TransposedMatrix)
    assert isinstance(A.T, sp.csc_array)
    assert isinstance(A.H, sp.csc_array)
    assert isinstance(A.T.T, GpuSparseMatrix)
    assert A.T.shape == A.H.shape == (9, 12)
    np.testing.assert_array_equal(host(A.conj().device_data), np.conj(host(A.device_data)))
    np.testing.assert_array_equal(A.H.toarray(), A.toarray().conj().T)
    with pytest.raises(ValueError, match="axes"):
        A.transpose((0, 1))


# -------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("view", ["A", "A.T", "A.conj()", "A.H"])
@pytest.mark.parametrize("trip", [copy.deepcopy, lambda A: A.copy(), lambda A: pickle.loads(pickle.dumps(A))])
@pytest.mark.few(2)
def test_copies_and_pickles_are_independent_equals(device: Device, view: str, trip: Any) -> None:
    A = GpuSparseMatrix(make(complex), device=device, format="ellpack", threads_per_block=128)
    given = {"A": A, "A.T": A.T, "A.conj()": A.conj(), "A.H": A.H}[view]
    expected = given.toarray()
    made = trip(given)
    assert type(made) is type(given)
    np.testing.assert_array_equal(made.toarray(), expected)
    assert made._arrays.options == given._arrays.options
    x = np.arange(float(made.shape[1]))
    np.testing.assert_allclose(made @ x, expected @ x)
    made.data[:] = 0
    np.testing.assert_array_equal(made @ x, np.zeros(made.shape[0]))
    np.testing.assert_array_equal(given.toarray(), expected)
    np.testing.assert_allclose(given @ x, expected @ x)


def test_files_are_written_and_read(A: Any, S: Any, tmp_path: Path, device: Device) -> None:
    sp.save_npz(tmp_path / "A.npz", A)
    sp.save_npz(tmp_path / "AT.npz", A.T)
    np.testing.assert_array_equal(sp.load_npz(tmp_path / "A.npz").toarray(), S.toarray())
    np.testing.assert_array_equal(sp.load_npz(tmp_path / "AT.npz").toarray(), S.T.toarray())
    scipy.io.mmwrite(tmp_path / "A.mtx", A)
    for name in ("A.npz", "A.mtx"):
        read = GpuSparseMatrix.from_file(tmp_path / name, device=device, dtype=np.float32, format="csr_vector")
        assert_on(device, read)
        assert read.dtype == np.float32
        assert read.plan.format == "csr_vector"
        np.testing.assert_allclose(read.toarray(), S.toarray(), rtol=1e-6)


def test_texts_describe_the_matrix_and_name_its_device(A: Any, S: Any, device: Device) -> None:
    assert repr(A) == f"<GpuSparseMatrix: {repr(S)[1:-1]}, on {device.name}>"
    assert str(A) == repr(A) + str(S).removeprefix(repr(S))
    assert str(A).count("sparse array of dtype") == 1 and str(A).count("Coords") == 1
    for view in (A.T, A.H, A[0]):
        assert str(view).startswith(f"{view!r}\n  Coords\tValues") and f", on {device.name}>" in str(view)
    html = A._repr_html_()
    for words in ("GpuSparseMatrix", "12 × 9", "float64", f"{S.nnz:,}", device.name, A.plan.format):
        assert words in html
    assert "format" not in GpuSparseMatrix(S.astype(np.longdouble), device=device)._repr_html_()
    table = str(A.plan)
    candidates = {*gsparse.FORMATS} - {"auto", "row_lanes", "row_pattern", "bsr"}
    for words in (device.name, "12 x 9", f"{S.nnz} entries", "MB per product", "padding", *candidates):
        assert words in table


def test_the_number_of_printed_entries_can_change_after_printing(A: Any, S: Any) -> None:
    for number in (50, 4, 8):
        A.maxprint = S.maxprint = number
        assert str(A).splitlines()[2:] == str(S).splitlines()[2:]
    assert pickle.loads(pickle.dumps(A)).maxprint == 8


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
@pytest.mark.parametrize("cls", [GpuSparseMatrix, TransposedMatrix, gsparse.sparse.csr_matrix])
def test_a_matrix_of_extended_precision_is_made_from_a_transposed_view(device: Device, dtype: Any, cls: Any) -> None:
    S = make(float).astype(dtype)
    L = GpuSparseMatrix(S, device=device)
    for view, want in ((L.T, S.T), (L, S)):
        np.testing.assert_array_equal(cls(view).toarray(), want.toarray())
    for ask in (lambda: L.plan, lambda: L.plan_for(4), lambda: L.stored):
        with pytest.raises(DtypeError, match=r"no device multiplies values of .*: use astype\(float\)"):
            ask()


def test_arrays_of_another_byte_order_are_converted(A: Any, S: Any, device: Device) -> None:
    swapped = S.data.astype(S.dtype.newbyteorder())
    for B in (A.with_data(swapped), A.astype(swapped.dtype), GpuSparseMatrix(A, dtype=swapped.dtype)):
        assert B.dtype == S.dtype
        np.testing.assert_array_equal(B.toarray(), S.toarray())
    rows = np.arange(SHAPE[0]).astype(np.dtype(np.int64).newbyteorder())
    np.testing.assert_array_equal(A[rows[::-1]].toarray(), S.toarray()[::-1])
    d = np.linspace(1, 2, SHAPE[1])
    scaled = A.multiply(d.astype(d.dtype.newbyteorder()))
    np.testing.assert_array_equal(scaled.toarray(), S.multiply(d).toarray())


def test_a_boolean_matrix_that_is_declared_hermitian_stays_boolean(device: Device) -> None:
    dense = np.array([[1, 2j, 0], [-2j, 0, 3], [0, 3, 0]])
    A = GpuSparseMatrix(dense, device=device, symmetric="hermitian").astype(bool)
    want = sp.csr_array(dense != 0)
    for got in (A.tocsc(), A + A.T, A.T):
        assert got.dtype == bool
        np.testing.assert_array_equal(got.toarray(), want.toarray())
    assert A.tocsc().data.dtype == bool
    x = np.array([True, False, False])
    np.testing.assert_array_equal(A.T @ x, want.T @ x)


def test_a_matrix_that_gets_another_shape_need_not_be_symmetric(device: Device) -> None:
    A = GpuSparseMatrix(np.eye(3), device=device, symmetric=True)
    B = GpuSparseMatrix(A, shape=(3, 5))
    assert B.shape == (3, 5)
    np.testing.assert_array_equal(B.T @ np.ones(3), [1, 1, 1, 0, 0])


def test_large_unsigned_indices_do_not_become_negative(A: Any) -> None:
    with pytest.raises(IndexError, match=r"index \(18446744073709551615\) out of range"):
        A[np.array([2**64 - 1], np.uint64)]
    np.testing.assert_array_equal(A[np.array([3], np.uint8)].toarray(), A[3:4].toarray())


def test_an_assignment_whose_warning_is_an_error_writes_nothing(A: Any, S: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(sp.SparseEfficiencyWarning):
            A[0] = 7.0
    np.testing.assert_array_equal(A.toarray(), S.toarray())


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_a_diagonal_is_written_to_an_array_of_the_device(device: Device, dtype: Any) -> None:
    S = (make(float) * 100).astype(dtype)
    A = GpuSparseMatrix(S, device=device)
    for view, want in ((A, S), (A.T, S.T)):
        out = on_device(device, np.full(8, 7, dtype))
        assert view.diagonal(1 if view is A else -1, out=out) is out
        np.testing.assert_array_equal(host(out), want.diagonal(1 if view is A else -1))
    with pytest.raises(ValueError, match="out dimensions do not match shape"):
        A.diagonal(out=on_device(device, np.zeros(3, dtype)))
    if device.kind == "gpu" and type(out) is not np.ndarray:
        with pytest.raises(DeviceError, match=f"out must live on {device.name}"):
            A.diagonal(out=np.zeros(9, dtype))


def test_properties_can_be_looked_up_in_the_class() -> None:
    assert callable(type(GpuSparseMatrix.stats).__get__)  # the property itself


# ------------------------------------------------------------------------------------------------ NumPy's functions


class ArrayLike:
    """A table like those of pandas: it is not an array, but can be converted to one."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.array, dtype)


@pytest.mark.parametrize("wrap", [np.asarray, list, tuple, np.asmatrix, ArrayLike])
@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_operands_of_any_type_multiply_as_arrays_do(A: Any, S: Any, wrap: Any, ndim: int) -> None:
    x, z = (np.arange(float(n)) + 1 for n in (9, 12))
    if wrap is np.asmatrix:
        x, z = x[:, None], z[None]
    elif ndim == 2:
        x, z = np.stack([x, -x], axis=1), np.stack([z, -z])
    np.testing.assert_allclose(np.asarray(A @ wrap(x)), S @ x)
    np.testing.assert_allclose(np.asarray(A.dot(wrap(x))), S @ x)
    np.testing.assert_allclose(np.asarray(A.T @ wrap(np.ascontiguousarray(z.T))), S.T @ z.T)
    if wrap is not ArrayLike:  # its own operator would be called first
        np.testing.assert_allclose(np.asarray(wrap(z) @ A), z @ S)


def test_operators_of_numpy_arrays_defer_to_the_matrix(A: Any, S: Any, device: Device) -> None:
    D = np.arange(108.0).reshape(SHAPE)
    z = np.arange(12.0)
    assert_equal(z @ A, z @ S)
    assert_equal(np.matmul(z, A), z @ S)
    assert_equal(D + A, D + S)
    assert_equal(np.subtract(D, A), D - S)
    assert_on(device, np.multiply(2.0, A))
    assert_on(device, np.positive(A))
    for name in VALUE_FUNCTIONS:
        if name != "sqrt":  # not defined for all of these values
            assert_on(device, getattr(np, name)(A))
            assert_equal(getattr(np, name)(A), getattr(S, name)())
    assert_equal(np.negative(A), -S)
    assert_equal(np.absolute(A), abs(S))
    assert_equal(np.conjugate(A), S.conj())
    assert_equal(np.greater(A, 0.1), S > 0.1)
    assert_equal(np.less(0.1, A), S > 0.1)
    for unserved in (np.exp, np.cos, np.isnan):
        with pytest.raises(TypeError, match="unsupported operand"):
            unserved(A)
    with pytest.raises(TypeError, match="unsupported operand"):
        np.add.reduce(A)
    assert all(hasattr(A, name) for names in UFUNC_METHODS.values() for name in names if name != "__rpow__")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize("change", [operator.iadd, operator.isub, operator.imul, operator.imatmul])
def test_dense_arrays_change_in_place_as_with_scipy(A: Any, S: Any, change: Any, dtype: Any) -> None:
    if change is operator.imatmul:
        A, S = A[:9], S[:9]
    got, expected = (change(np.ones(S.shape, dtype), M) for M in (A, S))
    if got.dtype != expected.dtype:  # ours wrote into an array that holds the sum; SciPy's operators never do
        assert (got.dtype, expected.dtype) == (np.float32, np.float64)
        expected = expected.astype(np.float32)
    if sp.issparse(expected):  # SciPy's product with a dense array is in COO
        got, expected = got.tocsr(), expected.tocsr()
    assert_equal(got, expected)


def test_a_sum_in_place_is_written_into_the_array(A: Any, S: Any) -> None:
    dense = kept = np.ones(SHAPE)
    dense += A
    assert dense is kept
    np.testing.assert_array_equal(kept, 1 + S.toarray())


def test_linear_operators_and_the_matrix_multiply_each_other(A: Any, S: Any) -> None:
    operator = A.as_linear_operator()
    assert isinstance(operator, LinearOperator)
    x, z, X = np.arange(9.0), np.arange(12.0), np.ones((9, 3))
    assert_equal(operator @ x, S @ x)
    assert_equal(operator.H @ z, S.T @ z)
    assert_equal(operator @ X, S @ X)
    assert_equal(operator.rmatmat(np.ones((12, 2))), S.T @ np.ones((12, 2)))
    assert_equal(aslinearoperator(A) @ x, S @ x)
    assert_equal(aslinearoperator(A).H @ z, S.T @ z)
    other = aslinearoperator(sp.eye_array(9, format="csr") * 2)
    assert_equal((A @ other) @ x, (S @ other) @ x)
    products = A.stats.products
    operator @ x
    assert A.stats.products == products + 1, "ran on the device, through this matrix"


def test_scipys_solvers_accept_the_matrix(device: Device) -> None:
    S = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(40, 40), format="csr")
    A = GpuSparseMatrix(S, device=device)
    with gsparse.strict():
        x, info = cg(A, np.ones(40), rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(S @ x, np.ones(40), rtol=1e-8)


def test_operands_without_a_meaning_are_refused_as_by_scipy(A: Any, S: Any) -> None:
    for M in (A, S):
        with pytest.raises(ValueError, match="Scalar operands are not allowed, use '\\*' instead"):
            M @ np.array(3.0)
        with pytest.raises(ValueError, match="Scalar operands are not allowed, use '\\*' instead"):
            3.0 @ M
        with pytest.raises(ValueError, match="dimension"):
            M @ np.ones((9, 2, 2))
        with pytest.raises(TypeError):
            M @ object()
        with pytest.raises(TypeError):
            M + object()
        with pytest.raises(ValueError, match="ambiguous"):
            bool(M)
        with pytest.raises(TypeError):
            len(M)


DERIVED = {
    "rows": lambda A: A[:3],
    "sum": lambda A: A + sp.eye_array(5, k=1, format="csr"),
    "product": lambda A: A @ sp.eye_array(5, k=1, format="csr"),
    "other values": lambda A: A.with_data(np.arange(1.0, 26.0)) if hasattr(A, "with_data") else _filled(A),
    "times a complex number": lambda A: A * 1j,
}


def _filled(S: Any) -> Any:
    return sp.csr_array((np.arange(1.0, 26.0), S.indices, S.indptr), shape=S.shape)


@pytest.mark.parametrize("symmetric", [True, "hermitian"])
@pytest.mark.parametrize("name", DERIVED)
def test_a_declared_symmetry_is_not_assumed_for_results_that_lack_it(
    real_device: Device, name: str, symmetric: Any
) -> None:
    H = np.add.outer(np.arange(1.0, 6.0), np.arange(1.0, 6.0))
    H = H + 1j * np.subtract.outer(np.arange(5.0), np.arange(5.0)) if symmetric == "hermitian" else H
    S = sp.csr_array(H)
    got, expected = (DERIVED[name](M) for M in (GpuSparseMatrix(S, device=real_device, symmetric=symmetric), S))
    x = np.arange(1.0, 1.0 + expected.shape[0])
    np.testing.assert_allclose(got.T @ x, expected.T @ x, rtol=1e-13)


def test_a_matrix_that_is_not_square_is_not_symmetric(real_device: Device, S: Any) -> None:
    with pytest.raises(ShapeError, match=r"symmetric=True takes a square matrix, got shape \(12, 9\)"):
        GpuSparseMatrix(S, device=real_device, symmetric=True)


# ---------------------------------------------------------------------------------- made from a scipy.sparse.spmatrix

# Expressions that are matrix products for an `spmatrix`, but elementwise for a sparse array.
MATRIX_PRODUCTS: dict[str, Any] = {
    "A * x": lambda A: A * np.arange(1.0, 6.0),
    "A * X": lambda A: A * np.ones((5, 5)),
    "A * S": lambda A: A * sp.eye_array(5, format="csr"),
    "A * A": lambda A: A * A,
    "x * A": lambda A: np.arange(1.0, 6.0) * A,
    "S * A": lambda A: sp.eye_array(5, format="csr") * A,
    "A ** n": lambda A: A**2,
}
# Matrices made from it, with which the same code would continue.
COME_OF_IT: dict[str, Any] = {
    "itself": lambda A: A,
    "2 * A": lambda A: 2 * A,
    "A.T": lambda A: A.T,
    "a copy": lambda A: A.copy(),
    "a sum": lambda A: A + A,
    "a slice": lambda A: A[:, :],
    "constructed": GpuSparseMatrix,
    "with_data": lambda A: A.with_data(A.device_data),
    "pickled": lambda A: pickle.loads(pickle.dumps(A)),
}


@pytest.mark.parametrize("operator", MATRIX_PRODUCTS)
def test_an_operator_that_was_the_matrix_product_of_a_scipy_matrix_warns_once(operator: str) -> None:
    S = sp.random_array((5, 5), density=0.6, format="csr", rng=np.random.default_rng(1))
    A = GpuSparseMatrix(sp.csr_matrix(S), device="cpu")
    multiply = MATRIX_PRODUCTS[operator]
    with pytest.warns(MatrixProductWarning, match=r"is elementwise.*made from a sparse matrix.*write . @") as caught:
        found = multiply(A)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)], "where the operator is written"
    np.testing.assert_array_equal(found.toarray(), multiply(S).toarray())
    multiply(A)  # a second warning would be an error
    multiply(GpuSparseMatrix(S, device="cpu"))


@pytest.mark.parametrize("name", COME_OF_IT)
def test_matrices_made_from_a_matrix_that_warns_also_warn(name: str) -> None:
    A = GpuSparseMatrix(sp.csr_matrix(np.arange(1.0, 26.0).reshape(5, 5)), device="cpu")
    with pytest.warns(MatrixProductWarning):
        COME_OF_IT[name](A) * np.ones(5)


def test_operations_that_are_the_same_for_matrices_and_arrays_do_not_warn() -> None:
    A = GpuSparseMatrix(sp.csr_matrix(np.eye(5)), device="cpu")
    for found in (
        2 * A,
        A * 2.0,
        A / 2,
        np.float64(2) * A,
        A.multiply(np.ones(5)),
        A.power(2),
        A.dot(2),
        A @ np.ones(5),
    ):
        assert found.shape in ((5,), (5, 5))


# ------------------------------------------------------------------------------------------------ stats and strict


def test_operations_on_the_host_are_counted_and_logged(A: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="gsparse"):
        A @ np.ones(9)
        A.rmatvec(np.ones(12))
        2 * A
        assert A.stats.products == 2
        assert not A.stats.host_operations
        assert not caplog.records
        A.tolil()
        A.tolil()
        A.todok()
        A.data[:1] = 0
    assert A.stats.host_operations == {"tolil": 2, "todok": 1, "data": 1}
    assert [record.name for record in caplog.records] == ["gsparse"] * 4
    products, *others = str(A.stats).splitlines()
    assert products.split() == ["2", "products", "on", "the", "device"]
    assert [line.split()[:2] for line in others] == [["2", "tolil,"], ["1", "todok,"], ["1", "data,"]]
    assert "tolil ran on the host" in caplog.text
    assert "todok ran on the host" in caplog.text
    assert (2 * A).stats.products == 0, "counts are each matrix's own"


NAN = float("nan")
ON_DEVICE = {
    "product": lambda A: A @ np.ones(9),
    "columns": lambda A: A @ np.ones((9, 2)),
    "transposed": lambda A: A.T @ np.ones(12),
    "adjoint": lambda A: A.H @ np.ones(12),
    "from the left": lambda A: np.ones(12) @ A,
    "mapped": lambda A: abs(-A).sin() @ np.ones(9),
    "copied": lambda A: GpuSparseMatrix(A.copy()) @ np.ones(9),
    "device arrays": lambda A: (A.device_data, A.device_indices, A.device_indptr),
    "texts": lambda A: (str(A), repr(A), str(A.T), repr(A.T)),
    "plan": lambda A: (str(A.plan), A.stored.nbytes, A.shape, A.dtype, A.nnz),
    "sparse products": lambda A: (A @ A.T, A.T @ A, A.T @ sp.csc_array(A.shape), sp.csr_array(A.shape[::-1]) @ A),
    "indexing": lambda A: (A[1:], A[::-2], A[[0, 0, -1]], A[:, [1, 0]], A[np.ix_([0], [1, 1])], A.T[1:, ::2]),
    "diagonals": lambda A: (A.diagonal(), A.diagonal(1), A.T.diagonal(-2), A.diagonal(10**6)),
    "masks": lambda A: (A[np.arange(A.shape[0]) % 2 == 0], A[:, np.zeros(A.shape[1], bool)], A[:2, 1:], A[[], :]),
    "conversions": lambda A: (A.T.tocsr(), A.tocsc(), A.tocsc().tocsr()),
    "other formats": lambda A: (A.tocoo(), A.T.tocoo(), A.asformat("coo")),
    "dense results": lambda A: (A.toarray(), A.todense(), A.T.toarray(order="C"), A / A, A[[0, 1], [2, 3]], A[A > 0]),
    "dense operands": lambda A: (A + np.ones(A.shape), np.ones(A.shape) - A, A.maximum(np.ones(9)), np.ones(9) <= A),
    "scalars": lambda A: (A == 0, A != 1, A <= 0, A >= -1, A.maximum(2), A.minimum(-1), A > NAN, A != NAN),
    "dense comparisons": lambda A: (A == A, A <= A, sp.csr_array(A.shape) <= A),
    "entries": lambda A: (A[1, 2], A[-1, -1], A[[0], [1]], A[1], A[:, 1], list(A), A[A != 0], A[None, 0], A[..., 0]),
    "shapes": lambda A: (A.reshape(-1), A.reshape(9, 12), A[:1]._broadcast_to((5, 9)), A.nonzero(), A.sorted_indices()),
    "one dimension": lambda A: (A[1].sum(), A[1].max(), A[1][2], A[1][1:], A[1] @ A[2], A @ A[1], A[1] @ np.ones(9)),
    "counts": lambda A: (A._getnnz(axis=0), A._getnnz(axis=1), A.has_sorted_indices, A.has_canonical_format),
    "repeated entries": lambda A: abs(GpuSparseMatrix(make(canonical=False), device=A.device).sin().astype(np.float32)),
}
# Statements that write to a matrix.
WRITES_ON_DEVICE: dict[str, Any] = {
    "an entry": lambda A: A.__setitem__((2, 3), 4.0),
    "a block": lambda A: A.__setitem__((slice(1, 5, 2), slice(None, 4)), 1.5),
    "a sparse block": lambda A: A.__setitem__((slice(0, 4), slice(0, 4)), sp.eye_array(4)),
    "entries": lambda A: A.__setitem__(([0, 0, 3], [1, 1, 2]), [1.0, 2.0, 3.0]),
    "a mask": lambda A: A.__setitem__(A > 0, 3.0),
    "a diagonal": lambda A: A.setdiag(np.arange(9.0)),
    "in place": lambda A: (A.__imul__(2), A.__itruediv__(4.0)),
    "order": lambda A: (A.sort_indices(), A.sum_duplicates(), A.eliminate_zeros(), A.prune(), A.check_format()),
    "shape": lambda A: (A.resize(5, 5), A.resize(7, 20)),
}
ON_HOST = {
    "tolil": lambda A: A.tolil(),
    "todok": lambda A: A.T.todok(),
    "data": lambda A: A.data,
    "indptr": lambda A: A.T.indptr,
    "astype": lambda A: A.astype(np.longdouble),
    "__add__": lambda A: A + np.ones(A.shape, np.longdouble),
}


@pytest.mark.parametrize("operation", ON_DEVICE)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_strict_allows_operations_that_run_on_the_device(A: Any, operation: str) -> None:
    with gsparse.strict():
        ON_DEVICE[operation](A)
    assert not A.stats.host_operations


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("write", WRITES_ON_DEVICE)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_strict_allows_writes(device: Device, write: str, canonical: bool) -> None:
    S = make(canonical=canonical)
    for A, expected in (
        (GpuSparseMatrix(S, device=device), S.copy()),
        (GpuSparseMatrix(S, device=device).T, S.copy().T),
    ):
        x = np.arange(float(A.shape[1]))
        A @ x
        with gsparse.strict():
            WRITES_ON_DEVICE[write](A)
        assert not A.stats.host_operations
        WRITES_ON_DEVICE[write](expected)
        np.testing.assert_allclose(A.toarray(), expected.toarray(), rtol=1e-14)
        np.testing.assert_allclose(
            A @ np.arange(float(A.shape[1])), expected @ np.arange(float(A.shape[1])), rtol=1e-12
        )


def test_a_write_while_an_array_is_held_is_counted_and_refused_by_strict(A: Any, S: Any) -> None:
    held = A.data
    with gsparse.strict(), pytest.raises(HostFallbackError):
        A[0, 0] = 5
    A *= 2
    np.testing.assert_array_equal(held, 2 * S.data)
    del held
    with gsparse.strict():
        A *= 2
    np.testing.assert_array_equal(A.toarray(), 4 * S.toarray())


@pytest.mark.parametrize("operation", ON_HOST)
def test_strict_refuses_operations_that_would_run_on_the_host(A: Any, S: Any, operation: str) -> None:
    with gsparse.strict(), pytest.raises(HostFallbackError, match=f"({operation}) has no device path.*strict"):
        ON_HOST[operation](A)
    np.testing.assert_array_equal(A.toarray(), S.toarray())  # and allows it again outside


def test_strict_ends_with_its_block_and_applies_to_its_thread_only(A: Any) -> None:
    found = []
    with pytest.raises(KeyError), gsparse.strict():
        raise KeyError
    A.tolil()
    with gsparse.strict():
        with gsparse.strict():
            pass
        with pytest.raises(HostFallbackError):
            A.tolil()
        thread = threading.Thread(target=lambda: found.append(A.tolil().nnz))
        thread.start()
        thread.join()
    assert found == [A.nnz]


# ------------------------------------------------------------------------------------------------- rare dtypes


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_extended_precision_works_through_the_host(device: Device, dtype: Any) -> None:
    S = make(dtype)
    S.data += dtype(2) ** -60  # no narrower dtype can represent this value
    A = GpuSparseMatrix(S.copy(), device=device)
    x, z = np.arange(9).astype(dtype), np.arange(12).astype(dtype)
    for got, expected in (
        (A @ x, S @ x),
        (A.T @ z, S.T @ z),
        (A.H @ z, S.T.conj() @ z),
        (A.rmatvec(z), S.T.conj() @ z),
        (A @ np.ones(9), S @ np.ones(9)),
        (gsparse.spmv(A, x, alpha=2, beta=3, out=z.copy()), 2 * (S @ x) + 3 * z),
        (2 * A, 2 * S),
        (abs(A), abs(S)),
        (A + A, S + S),
        (A.conj(), S.conj()),
        (A.copy(), S.copy()),
        (A.T, S.T),
    ):
        assert_equal(got, expected)
    A.data[:], S.data[:] = 1, 1
    assert_equal(A @ x, S @ x)
    narrow = np.float64 if dtype == np.longdouble else np.complex128
    assert_equal(A.astype(narrow), S.astype(narrow))
    assert_on(device, A.astype(narrow))
    assert_equal(GpuSparseMatrix(make(), device=device).astype(dtype), make().astype(dtype))
    assert_equal(GpuSparseMatrix(make(), device=device) @ x, make() @ x)


IN_EXTENDED_PRECISION: dict[str, Any] = {
    "reshape": lambda A: A.reshape(18, 6),
    "reshape by columns": lambda A: A.reshape(18, 6, order="F"),
    "todia": lambda A: A.todia(),
    "tobsr": lambda A: A.tobsr((3, 3)),
    "tocoo": lambda A: A.tocoo(),
    "toarray": lambda A: A.toarray(order="F"),
    "nonzero": lambda A: A.nonzero(),
    "diagonal": lambda A: A.diagonal(1),
    "trace": lambda A: A.trace(),
    "entries of rows": lambda A: A.count_nonzero(axis=1),
    "rows": list,
    "a row": lambda A: A[3],
    "elements": lambda A: A[[1, 2, 1], [0, 3, 8]],
    "sum": lambda A: A.sum(axis=0),
    "greatest": lambda A: A.max(axis=1),
    "maximum": lambda A: A.maximum(0),
    "minimum": lambda A: A.minimum(A.T.T * 2),
    "comparison": lambda A: A != A.T.T * 2,
    "multiplied by a column": lambda A: A.multiply(np.arange(12.0)[:, None]),
    "divided by an array": lambda A: A / np.arange(1, 10),
    "divided by a matrix": lambda A: A / (A * 2),
    "sparse product": lambda A: A @ A.T,
    "power": lambda A: A.power(2),
    "sine": lambda A: A.sin(),
    "sum with an array": lambda A: A + np.ones(A.shape),
    "columns": lambda A: A @ np.ones((9, 2)),
}


@pytest.mark.parametrize("operation", IN_EXTENDED_PRECISION)
@pytest.mark.few(8)
def test_methods_in_extended_precision_return_what_scipy_returns(device: Device, operation: str) -> None:
    S = make(np.longdouble)
    S.data += np.longdouble(2) ** -60
    got, expected = (IN_EXTENDED_PRECISION[operation](M) for M in (GpuSparseMatrix(S.copy(), device=device), S))
    for ours, theirs in zip(*((M if isinstance(M, (list, tuple)) else [M]) for M in (got, expected)), strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize(
    "convert",
    [
        lambda A: A.tocsc(),
        lambda A: A.todia(),
        lambda A: A.tobsr(),
        lambda A: A.diagonal(),
        lambda A: A.toarray(order="K"),
        lambda A: A.toarray(order="C", out=np.zeros(A.shape)),
        lambda A: A.toarray(out=np.zeros(len(A.toarray()) + 1)),
        lambda A: A.toarray(out=np.zeros(A.shape, np.float32)),
        lambda A: A.toarray(out=np.zeros(2 * A.shape[0])[::2]),
        lambda A: A._broadcast_to((2, 2, *A.shape)),
        lambda A: A._broadcast_to((2, 3)),
        lambda A: A.count_nonzero(axis=2),
        lambda A: A + 1,
        lambda A: A - 1,
        lambda A: 1 - A,
    ],
)
def test_an_array_of_one_dimension_refuses_what_scipys_does(device: Device, convert: Any) -> None:
    S = sp.coo_array(np.array([0.0, 2.0, 0.0, 3.0, 4.0])).tocsr()
    with pytest.raises((ValueError, NotImplementedError)) as theirs:
        convert(S)
    with pytest.raises(type(theirs.value)):
        convert(GpuSparseMatrix(S, device=device))


@pytest.mark.parametrize("dtype", [np.float16, object, "U3", "M8[s]"])
def test_dtypes_that_sparse_matrices_do_not_support_are_refused(A: Any, dtype: Any) -> None:
    with pytest.raises(DtypeError, match="does not support dtype"):
        A.astype(dtype)


def test_products_with_half_precision_vectors_are_computed_in_single_precision(A: Any, S: Any) -> None:
    x = np.arange(9).astype(np.float16)
    assert (A.astype(np.float32) @ x).dtype == np.float32
    np.testing.assert_allclose(A @ x, S @ x.astype(float))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.float32, np.complex64], ids=str)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_operands_of_half_precision_give_scipys_results(device: Device, dtype: Any) -> None:
    S, D, half = sp.csr_array(np.eye(3, dtype=dtype)), np.arange(9).reshape(3, 3).astype(np.float16), np.float16(0.5)
    A = GpuSparseMatrix(S, device=device)
    for apply in (
        lambda M: M + D, lambda M: D + M, lambda M: M - D, lambda M: M.maximum(D), lambda M: M.minimum(D),
        lambda M: M == D, lambda M: M @ D, lambda M: D @ M, lambda M: M.minimum(half), lambda M: M.maximum(half),
        lambda M: M / half,
    ):  # fmt: skip
        try:
            want = apply(S)
        except ValueError as error:
            with pytest.raises(ValueError, match="does not support dtype float16"):
                apply(A)
            assert "float16" in str(error)
            continue
        got = apply(A)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(*(part.toarray() if sp.issparse(part) else part for part in (got, want)))
    for d in (D, D[:1], D[:, :1], 1 + D[0]):  # SciPy's products of some dtypes cannot be converted to arrays.
        for apply in (lambda M, d: M.multiply(d), lambda M, d: d * M, lambda M, d: M / (d + 1)):
            got = apply(A, d)
            assert got.dtype == np.result_type(dtype, np.float32)
            np.testing.assert_allclose(got.toarray(), apply(S.astype(got.dtype), d).toarray())


# ------------------------------------------------------------------------------------------------------- threads


def test_threads_multiply_a_shared_matrix_and_their_own_matrices_at_once(device: Device) -> None:
    S = from_lengths(np.full(200, 5), 150, np.random.default_rng(2))
    shared = GpuSparseMatrix(S, device=device, format="blocked_ellpack")
    barrier = threading.Barrier(8)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            rng = np.random.default_rng(number)
            mine = (number + 1.0) * S
            own = GpuSparseMatrix(mine, device=device, format=gsparse.FORMATS[number % len(gsparse.FORMATS)])
            barrier.wait()  # all threads start the first product, which converts and transposes, at the same time
            for _ in range(5):
                x, z = random_values(rng, 150, float), random_values(rng, 200, float)
                assert_product(shared @ x, S, x)
                assert_product(shared.T @ z, S.T, z)
                assert_product(own @ x, mine, x)
                assert_product(own.rmatvec(z), mine.T, z)
                assert_product((2 * shared) @ x, 2 * S, x)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
