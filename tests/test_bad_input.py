"""A bad input raises one clear error (requirement, actual input, remedy) and leaves nothing half-built."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
import gsparse.device
import gsparse.device.cupy
import gsparse.device.gpu
import gsparse.device.select
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.gpu import GpuDevice
from gsparse.device.select import get_device
from gsparse.errors import (
    DeviceError,
    DeviceMemoryError,
    DtypeError,
    FormatError,
    GsparseError,
    ShapeError,
    StructureError,
)
from gsparse.sparse.construction import device_arrays
from tests.proof.emulated_device import EmulatedDevice
from tests.support import on_device

S = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 0], [4, 0, 5], [0, 0, 6]]))
DATA, INDICES, INDPTR = S.data, S.indices, S.indptr


@pytest.fixture
def A(device: Device) -> Any:
    return GpuSparseMatrix(S, device=device)


def assert_works(A: Any) -> None:
    np.testing.assert_allclose(A @ [1.0, 2.0, 3.0], S @ [1.0, 2.0, 3.0])
    np.testing.assert_allclose(A.T @ [1.0, 2.0, 3.0, 4.0], S.T @ [1.0, 2.0, 3.0, 4.0])


def with_arrays(**arrays: Any) -> Any:
    """Return a copy of S with other arrays, which SciPy does not check when they are assigned."""
    made = S.copy()
    for name, array in arrays.items():
        setattr(made, name, array)
    return made


# ------------------------------------------------------------------------------------------------ construction

# Bad input: (argument of the constructor, options, error, words of the message).
BAD_SOURCES: dict[str, Any] = {
    "indptr decreases": ((DATA, INDICES, [0, 3, 2, 5, 6]), {}, StructureError, "must not decrease.*row 1.*3 to 2"),
    "indptr starts at 1": ((DATA, INDICES, [1, 2, 3, 5, 6]), {}, StructureError, "index pointer should start with 0"),
    "indptr too short": ((DATA, INDICES, [0, 2, 3, 6]), {}, StructureError, "size 4 should be 5"),
    "indptr too long": ((DATA, INDICES, [0, 2, 3, 5, 6, 6]), {}, StructureError, "size 6 should be 5"),
    "indptr ends behind the entries": ((DATA, INDICES, [0, 2, 3, 5, 9]), {}, StructureError, "Last value"),
    "indptr of floats": ((DATA, INDICES, INDPTR * 1.0), {}, StructureError, "must be integers, got float64.*astype"),
    "indices negative": ((DATA, [0, 2, -1, 0, 2, 2], INDPTR), {}, StructureError, "0 to 2, they span -1 to 2"),
    "indices too large": ((DATA, [0, 2, 1, 0, 2, 3], INDPTR), {}, StructureError, "0 to 2, they span 0 to 3.*shape"),
    "indices beyond int32": ((DATA, [0, 2, 1, 0, 2, 2**33], INDPTR), {}, StructureError, "they span 0 to 8589934592"),
    "indices beyond int64": (
        (DATA, np.full(6, 2**63, np.uint64), INDPTR),
        {},
        StructureError,
        "indices must lie in 0 to 2, they span -",
    ),
    "indices of floats": ((DATA, INDICES * 1.0, INDPTR), {}, StructureError, "must be integers, got float64.*astype"),
    "indices of booleans": ((DATA, INDICES > 0, INDPTR), {}, StructureError, "must be integers, got bool.*astype"),
    "data too short": ((DATA[:4], INDICES, INDPTR), {}, StructureError, "same size"),
    "data of two dimensions": ((DATA.reshape(2, 3), INDICES, INDPTR), {}, StructureError, "should be 1-D"),
    "row of floats": ((DATA[:1], ([0.5], [1])), {}, StructureError, "must be integers, got float64"),
    "row negative": ((DATA[:1], ([-1], [1])), {}, StructureError, "negative axis 0 index: -1"),
    "row too large": ((DATA[:1], ([9], [1])), {}, StructureError, "index 9 exceeds matrix dimension 4"),
    "row and col of two lengths": ((DATA[:2], ([0], [1, 2])), {}, StructureError, "same length"),
    "three dimensions": (np.ones((2, 2, 2)), {"shape": None}, StructureError, "3D"),
    "a file name": ("a.mtx", {"shape": None}, StructureError, r"GpuSparseMatrix\.from_file\('a\.mtx'\)"),
    "a sparse tensor": (
        SimpleNamespace(layout="torch.sparse_csr"),
        {"shape": None},
        StructureError,
        r"C\.values\(\), C\.col_indices",
    ),
    "a path": (Path("a.mtx"), {"shape": None}, StructureError, r"GpuSparseMatrix\.from_file\('a\.mtx'\)"),
    "nothing": (
        None,
        {"shape": None},
        StructureError,
        r"of None: give a SciPy sparse array.*\(data, indices, indptr\)",
    ),
    "a scalar": (3.0, {"shape": None}, StructureError, "scalar"),
    "negative shape": ((-1, 3), {"shape": None}, StructureError, "cannot be negative"),
    "another shape": (S, {"shape": (2, 2)}, StructureError, "size 5 should be 3"),
    "objects": (np.array([[object()]]), {"shape": None}, DtypeError, "does not support dtype object.*float64"),
    "strings": ([["a"]], {"shape": None}, DtypeError, "does not support dtype <U1.*float64"),
    "half precision": (np.ones((4, 3), np.float16), {}, DtypeError, "does not support dtype float16.*float32"),
    "half precision asked for": (S, {"dtype": np.float16}, DtypeError, r"float16: convert with astype\(float\)"),
    "unknown format": (S, {"format": "fast"}, FormatError, "unknown format 'fast': use one of auto, csr_scalar"),
    "no format": (S, {"format": ""}, FormatError, "unknown format ''"),
    "100 threads": (S, {"threads_per_block": 100}, FormatError, r"one of \(128, 256, 512\), got 100"),
    "symmetry unknown": (S, {"symmetric": "yes"}, FormatError, "symmetric must be.*True.*'hermitian'.*got 'yes'"),
    "symmetry by a number": (S, {"symmetric": 1}, FormatError, "symmetric must be.*got 1"),
    "tuning unknown": (S, {"tune": "x"}, FormatError, r"tune must be one of \(False, True, 'lazy'\), got 'x'"),
    "compression unknown": (
        S,
        {"compress": "yes"},
        FormatError,
        r"compress must be one of \(False, True, 'columns', 'values'\), got 'yes'",
    ),
    "fewer products than none": (S, {"expected_products": -1}, FormatError, "at least 1, got -1"),
    "no products": (S, {"expected_products": 0}, FormatError, "at least 1, got 0"),
    "products by a word": (S, {"expected_products": "many"}, FormatError, "at least 1, got 'many'"),
    "row and col of floats in one array": (
        (DATA[:2], np.array([[0.0, 1.0], [0.0, 1.0]])),
        {},
        StructureError,
        "must be integers, got float64.*astype",
    ),
    "indices of floats in a sparse array": (
        with_arrays(indices=INDICES * 1.0),
        {},
        StructureError,
        "must (hold|be) integers, got float64.*astype",
    ),
    "unknown dtype": (S, {"dtype": "number"}, DtypeError, "dtype must name a dtype of NumPy.*got 'number'"),
    "shape of words": (S, {"shape": "ab"}, ShapeError, "shape must be two integers.*got 'ab'"),
    "shape of floats": (S, {"shape": (4.5, 3)}, ShapeError, r"shape must be two integers.*got \(4\.5, 3\)"),
    "no schedule of that name": (
        S,
        {"format": "csr", "schedule": "fast"},
        FormatError,
        "format='csr' has no schedule 'fast': use 'scalar' or 'vector'",
    ),
    "a schedule in a list": (S, {"format": "csr", "schedule": ["vector"]}, FormatError, r"no schedule \['vector'\]"),
    "a schedule without a format": (S, {"schedule": "vector"}, FormatError, "leave it out, or use format='csr'"),
    "a schedule of another format": (
        S,
        {"format": "ellpack", "schedule": "vector"},
        FormatError,
        "format='ellpack' has no schedule 'vector': leave it out, or use format='csr'",
    ),
    "two schedules": (S, {"format": "csr_scalar", "schedule": "vector"}, FormatError, "use 'scalar'"),
    "a format for values that stay on the host": (
        S.astype(np.longdouble),
        {"format": "ellpack"},
        FormatError,
        r"format='ellpack' takes values.*got (float|complex)\d+: convert with astype\(float\)",
    ),
    "a schedule for values that stay on the host": (
        S.astype(np.longdouble),
        {"format": "csr", "schedule": "vector"},
        FormatError,
        r"format='csr_vector' takes values.*convert with astype\(float\)",
    ),
    "symmetry of a rectangle": (S, {"symmetric": True}, ShapeError, r"takes a square matrix, got shape \(4, 3\)"),
    "symmetry of a vector": (
        sp.csr_array(np.ones(3)),
        {"shape": None, "symmetric": "hermitian"},
        ShapeError,
        r"takes a square matrix, got shape \(3,\)",
    ),
    "entries to print by a word": (S, {"maxprint": "all"}, ShapeError, "maxprint must be a number.*got 'all'"),
    "fewer entries to print than none": (S, {"maxprint": -1}, ShapeError, "at least 0, got -1"),
    "no threads": (S, {"threads_per_block": 0}, FormatError, r"one of \(128, 256, 512\), got 0"),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_a_bad_source_makes_no_matrix_and_keeps_no_array(device: Device, case: str) -> None:
    source, options, error, words = BAD_SOURCES[case]
    options = {"shape": (4, 3)} | options
    arrays = [np.array(part) for part in source] if isinstance(source, tuple) and len(source) == 3 else []
    constructor_argument = tuple(arrays) or source
    instances = []

    class Watched(GpuSparseMatrix):
        def __new__(cls, *args: Any, **options: Any) -> Any:
            new = super().__new__(cls)
            instances.append(weakref.ref(new))
            return new

    with pytest.raises(error, match=words) as caught:
        Watched(constructor_argument, device=device, **options)
    assert issubclass(caught.type, GsparseError)
    assert issubclass(caught.type, ValueError), "SciPy's users catch ValueError"
    watched = instances + [weakref.ref(array) for array in arrays]
    assert len(instances) == 1
    del caught, constructor_argument, arrays
    assert_gone(watched)


def assert_gone(watched: list[Any]) -> None:
    if any(ref() is not None for ref in watched):  # reference cycles, such as those of tracebacks, need the collector
        gc.collect()
    assert [ref for ref in watched if ref() is not None] == []


def test_a_wrong_keyword_is_refused_in_the_name_of_the_class_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"GpuSparseMatrix.*'fromat'") as caught:
        GpuSparseMatrix(S, fromat="csr_vector")
    assert "DeviceMatrix" not in str(caught.value)


def test_a_failed_constructor_keeps_nothing_on_the_device(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Any] = []
    upload = device.upload

    def watching(host: Any) -> Any:
        array = upload(host)
        watched.append(weakref.ref(array))
        return array

    monkeypatch.setattr(device, "upload", watching)
    with pytest.raises(StructureError):
        GpuSparseMatrix((DATA, [0, 2, 1, 0, 2, 3], INDPTR), shape=(4, 3), device=device)
    assert len(watched) == 3
    assert_gone(watched)


DEVICE_SOURCES: dict[str, Any] = {
    "indptr decreases": ((DATA, INDICES, [0, 3, 2, 5, 6]), "indptr must not decrease"),
    "indptr starts at 1": ((DATA, INDICES, [1, 2, 3, 5, 6]), "indptr must run from 0.*from 1"),
    "indptr too short": ((DATA, INDICES, [0, 2, 3, 6]), r"num_rows \+ 1 = 5 elements, got shape \(4,\)"),
    "indptr ends behind the entries": ((DATA, INDICES, [0, 2, 3, 5, 9]), "one length|indptr must run from 0 to the 6"),
    "indices of floats": ((DATA, INDICES * 1.0, INDPTR), "indices must hold integers, got float64.*astype"),
    "indices too large": ((DATA, [0, 2, 1, 0, 2, 3], INDPTR), "0 to 2, they span 0 to 3"),
    "data too short": ((DATA[:4], INDICES, INDPTR), r"one length, got \(4,\), \(6,\)"),
    "row too large": ((DATA[:2], ([0, 9], [1, 1])), "row indices must lie in 0 to 3, they span 0 to 9"),
    "row and col of two lengths": ((DATA[:2], ([0], [1, 2])), r"one length, got \(1,\), \(2,\), \(2,\)"),
    "two dimensions missing": (np.ones(3), "two dimensions"),
    "four parts": ((DATA, INDICES, INDPTR, INDPTR), "got 4 parts"),
}


@pytest.mark.parametrize("case", DEVICE_SOURCES)
def test_bad_arrays_on_the_device_are_refused_there(device: Device, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, words = DEVICE_SOURCES[case]
    monkeypatch.setattr("gsparse.matrix.constructor.device_of_source", lambda _: device)

    def bring(part: Any) -> Any:
        return tuple(map(bring, part)) if isinstance(part, tuple) else on_device(device, np.asarray(part))

    with pytest.raises((StructureError, ShapeError), match=words):
        GpuSparseMatrix(bring(source), shape=(4, 3), device=device)


# -------------------------------------------------------------- arrays that were changed after the first product


BAD_WRITES: dict[str, Any] = {
    "data shorter": ("data", DATA[:2], StructureError, r"one length, got \(2,\), \(6,\)"),
    "data of two dimensions": ("data", DATA.reshape(2, 3), StructureError, r"got \(2, 3\), \(6,\)"),
    "data of strings": ("data", np.array(list("abcdef")), DtypeError, "needs numbers"),
    "indices shorter": ("indices", INDICES[:2], StructureError, "from 0 to the 2 entries.*to 6"),
    "indices of floats": ("indices", INDICES * 1.0, StructureError, "integers, got float64"),
    "indices too large": ("indices", INDICES + 1, StructureError, "they span 1 to 3"),
    "indices negative": ("indices", INDICES - 1, StructureError, "they span -1 to 1"),
    "indptr shorter": ("indptr", INDPTR[:-1], StructureError, r"num_rows \+ 1 = 5"),
    "indptr too far": ("indptr", INDPTR + np.array([0, 0, 0, 0, 3]), StructureError, "one length|must run"),
    "indptr decreases": ("indptr", INDPTR[[0, 2, 1, 3, 4]], StructureError, "must not decrease"),
}


@pytest.mark.parametrize("format", ["auto", "ellpack"])
@pytest.mark.parametrize("case", BAD_WRITES)
@pytest.mark.few(8)
def test_a_bad_write_is_refused_by_the_next_product_and_can_be_corrected(A: Any, case: str, format: str) -> None:
    name, value, error, words = BAD_WRITES[case]
    A = GpuSparseMatrix(A, format=format)
    assert_works(A)
    setattr(A, name, value.copy())
    for _ in range(2):
        with pytest.raises(error, match=words):
            A @ np.ones(3)
    setattr(A, name, getattr(S, name).copy())
    assert_works(A)


# ----------------------------------------------------------------------------------------------- operands and out

Call = Callable[[Any], Any]
READ_ONLY = np.zeros(4)
READ_ONLY.flags.writeable = False
SHARED = np.ones(9)
COLUMNS = np.ones((9, 2))


def product(x: Any, **options: Any) -> Call:
    return lambda A: gsparse.spmv(A, np.ones(3) if x is None else x, **options)


BAD_OPERANDS: dict[str, tuple[Call, type[Exception], str]] = {
    "x too short": (lambda A: A @ np.ones(2), ShapeError, r"\(4, 3\) takes x of shape \(3,\) or \(3, k\), got \(2,\)"),
    "x too long": (lambda A: A @ np.ones(4), ShapeError, r"got \(4,\)"),
    "x @ A": (lambda A: np.ones(3) @ A, ShapeError, r"takes X of shape \(4,\) or \(k, 4\), got \(3,\)"),
    "A.T @ x": (lambda A: A.T @ np.ones(3), ShapeError, r"\(3, 4\) takes x of shape \(4,\) .*got \(3,\)"),
    "rmatvec": (lambda A: A.rmatvec(np.ones(3)), ShapeError, r"takes x of shape \(4,\), got \(3,\)"),
    "matvec, columns": (lambda A: A.matvec(np.ones((3, 2))), ShapeError, r"shape \(3,\), got \(3, 2\)"),
    "matmat, a vector": (lambda A: A.matmat(np.ones(3)), ShapeError, r"shape \(3, k\), got \(3,\)"),
    "columns too long": (lambda A: A @ np.ones((4, 2)), ShapeError, r"got \(4, 2\)"),
    "spmm, a vector": (lambda A: gsparse.spmm(A, np.ones(3)), ShapeError, r"\(3, k\), got \(3,\)"),
    "three dimensions": (lambda A: A @ np.ones((3, 1, 1)), ShapeError, "vectors and matrices, got 3 dimensions"),
    "objects": (
        lambda A: A @ np.array([object()] * 3),
        DtypeError,
        "needs numbers, got .* vector of object: use astype",
    ),
    "strings": (lambda A: A @ np.array(["1"] * 3), DtypeError, "needs numbers, got .*vector of <U1"),
    "dates": (lambda A: A @ np.zeros(3, "M8[s]"), DtypeError, "needs numbers, got .*datetime64"),
    "alpha a string": (product(None, alpha="2"), DtypeError, "alpha must be a number, got str"),
    "alpha an array": (product(None, alpha=np.ones(4)), ShapeError, "must be a scalar"),
    "beta an array": (product(None, beta=np.ones(4), out=np.zeros(4)), ShapeError, "must be a scalar"),
    "beta without out": (product(None, beta=2), ShapeError, "pass out=, or leave beta at 0"),
    "beta NaN without out": (product(None, beta=np.nan), ShapeError, "pass out="),
    "out a list": (product(None, out=[0.0] * 4), DeviceError, "out must be an array of the same type as x.*list"),
    "out too short": (product(None, out=np.zeros(3)), ShapeError, r"out must have shape \(4,\), got \(3,\)"),
    "out a column": (product(None, out=np.zeros((4, 1))), ShapeError, r"out must have shape \(4,\), got \(4, 1\)"),
    "out float32": (product(None, out=np.zeros(4, np.float32)), DtypeError, "dtype float64, got float32"),
    "out real, alpha complex": (product(None, alpha=1j, out=np.zeros(4)), DtypeError, "complex128, got float64"),
    "out strided": (product(None, out=np.zeros(8)[::2]), ShapeError, r"contiguous, got strides \(16,\).*temporary"),
    "out read-only": (product(None, out=READ_ONLY), ValueError, "out is read-only: pass a writable"),
    "x and out the same": (product(SHARED[:3], out=SHARED[:4]), ValueError, "x and out overlap.*another out"),
    "x and out partly the same": (product(SHARED[:3], out=SHARED[2:6]), ValueError, "x and out overlap"),
    "x within out, strided": (product(SHARED[:5:2], out=SHARED[1:5]), ValueError, "x and out overlap"),
    "columns overlapping": (
        lambda A: gsparse.spmm(A, COLUMNS[:3], out=COLUMNS[2:6]),
        ValueError,
        "x and out overlap",
    ),
    "a scalar": (lambda A: A @ 3, ValueError, r"use '\*' instead"),
    "None": (lambda A: A @ None, TypeError, "unsupported operand"),
    "dot of None": (lambda A: A.dot(None), TypeError, "unsupported operand"),
    "None @ A": (lambda A: None @ A, TypeError, "unsupported operand"),
    "integer factor too large": (
        lambda A: gsparse.spmv(A.astype(np.int8), np.ones(3, np.int8), alpha=300),
        OverflowError,
        "300 out of bounds for int8",
    ),
    "integer factor beyond int64": (
        lambda A: gsparse.spmv(A.astype(np.int64), np.ones(3, np.int64), alpha=2**70),
        OverflowError,
        "too large",
    ),
}


@pytest.mark.parametrize("case", BAD_OPERANDS)
def test_a_bad_operand_is_refused_and_the_matrix_stays_usable(A: Any, case: str) -> None:
    call, error, words = BAD_OPERANDS[case]
    before = SHARED.copy()
    with pytest.raises(error, match=words):
        call(A)
    np.testing.assert_array_equal(SHARED, before)
    assert_works(A)


# -------------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("matrix", "error", "words"),
    [
        (sp.eye_array(3).tocsr(), TypeError, r"must be a GpuSparseMatrix .*got csr_array: use GpuSparseMatrix\(A\)"),
        (gsparse.GpuSparseMatrix(np.ones(3), device="cpu"), ShapeError, r"two dimensions, got shape \(3,\)"),
    ],
)
def test_products_by_name_refuse_other_matrices(matrix: Any, error: Any, words: str) -> None:
    for multiply in (gsparse.spmv, gsparse.spmm):
        with pytest.raises(error, match=words):
            multiply(matrix, np.ones((3, 1)))


@pytest.mark.parametrize("name", ["tpu", "gpu:x", "cpu:1", "gpu:-1", "gpu:1.5", "auto:0", "GPU 0"])
def test_an_unknown_device_is_refused_with_a_list_of_known_ones(name: str) -> None:
    with pytest.raises(DeviceError, match=f"unknown device '{name}': use 'auto', 'cpu', 'gpu' or 'gpu:N'"):
        GpuSparseMatrix(S, device=name)


def no_cupy(name: str) -> Any:
    raise ImportError(f"No module named {name!r}")


def a_cupy(count: Callable[[], int]) -> Callable[[str], Any]:
    runtime = SimpleNamespace(getDeviceCount=count, getDevice=lambda: 0)
    return lambda name: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


def no_driver() -> int:
    raise RuntimeError("cudaErrorNoDevice")


WITHOUT_GPU = {
    "no CuPy": (no_cupy, "CuPy is not installed: pip install 'gsparse-gpu.*device='cpu'"),
    "no driver": (a_cupy(no_driver), "cudaErrorNoDevice.*use device='cpu'"),
    "no GPU": (a_cupy(lambda: 0), "found none.*use device='cpu'"),
}


@pytest.mark.parametrize("asked", ["device=", "GSPARSE_DEVICE"])
@pytest.mark.parametrize("name", ["gpu", "cuda", "HIP"])
@pytest.mark.parametrize("case", WITHOUT_GPU)
def test_a_requested_gpu_that_is_missing_is_refused(
    case: str, name: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importer, words = WITHOUT_GPU[case]
    monkeypatch.setattr(gsparse.device.cupy, "import_module", importer)
    if asked == "GSPARSE_DEVICE":
        monkeypatch.setenv(asked, name)
    with pytest.raises(DeviceError, match=words):
        GpuSparseMatrix(S, device=name if asked == "device=" else None)


def test_a_gpu_number_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gsparse.device.gpu, "import_cupy", lambda: a_cupy(lambda: 2)("cupy"))
    with pytest.raises(DeviceError, match=r"'gpu:7' was asked for, CuPy sees 2 GPU\(s\): use gpu:0 to gpu:1"):
        get_device("gpu:7")


class CupyArray:
    """An array that `device_of` considers to be on GPU 3."""

    __module__ = "cupy"
    device = SimpleNamespace(id=3)
    ndim, shape, dtype = 1, (3,), np.dtype(float)


def test_a_vector_of_another_device_is_refused(A: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = EmulatedDevice(32)
    elsewhere.name = "gpu:3"
    monkeypatch.setattr(gsparse.device.select, "gpu_device", lambda index: elsewhere)
    x = CupyArray()
    assert gsparse.device.device_of(x) is elsewhere
    with pytest.raises(DeviceError, match=f"matrix lives on {A.device.name}, the vector on gpu:3: bring one"):
        A.matvec(x)
    with pytest.raises(DeviceError, match=r"out must be an array of the same type as x.*CupyArray"):
        A.matvec(np.ones(3), out=CupyArray())
    for operation in (lambda: A + x, lambda: A.multiply(x), lambda: A.maximum(x), lambda: A.minimum(x), lambda: A / x):
        with pytest.raises(DeviceError, match=f"matrix lives on {A.device.name}, the array on gpu:3: bring one"):
            operation()
    with pytest.raises(DeviceError, match=f"out must live on {A.device.name}"):
        A.sum(axis=1, out=x)
    assert_works(A)


# --------------------------------------------------------------------------------------------------- out of memory


class SmallDevice(EmulatedDevice):
    """A device that refuses allocations larger than its room, as `GpuDevice` does."""

    room = 10**9

    def _refuse(self, nbytes: int) -> None:
        if nbytes > self.room:
            raise DeviceMemoryError(f"{self.name} is out of memory: {nbytes} bytes; free now {self.room:,} bytes.")

    def upload(self, host: Any) -> Any:
        self._refuse(host.nbytes)
        return super().upload(host)

    def empty(self, shape: Any, dtype: Any) -> Any:
        self._refuse(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return super().empty(shape, dtype)


@pytest.mark.whole
def test_running_out_of_memory_leaves_everything_usable() -> None:
    device = SmallDevice(32)
    x = np.arange(300.0)
    small = GpuSparseMatrix(S, device=device)
    dense = np.eye(300)
    dense[0] = 1
    wide = sp.csr_array(dense)
    A = GpuSparseMatrix(wide, device=device, format="ellpack")
    device.room = 30_000  # enough for vectors and CSR, but not for 300 rows padded to 300 entries
    for _ in range(2):
        with pytest.raises(DeviceMemoryError, match=r"out of memory.*bytes; free now 30,000") as caught:
            A @ x
        assert isinstance(caught.value, MemoryError)
        assert_works(small)
    assert A._prepared()[0]._formats.products == {}
    assert A.plan.format == "ellpack"
    with pytest.raises(DeviceMemoryError):
        GpuSparseMatrix(sp.csr_array(np.ones((100, 100))), device=device)
    device.room = 10**9
    np.testing.assert_allclose(A @ x, wide @ x)
    np.testing.assert_allclose(A.T @ x, wide.T @ x)


def test_a_write_that_does_not_fit_is_uploaded_later() -> None:
    device = SmallDevice(32)
    A = GpuSparseMatrix(S, device=device)
    assert_works(A)
    A.data[:] *= 2
    device.room = 10
    with pytest.raises(DeviceMemoryError):
        A @ np.ones(3)
    device.room = 10**9
    np.testing.assert_allclose(A @ np.ones(3), 2 * (S @ np.ones(3)))


def fill_the_device(device: Device) -> None:
    with device.memory_guard():
        device.empty(10**6, np.float64)


class OutOfMemoryError(MemoryError):
    """Stands for the error of CuPy's allocator."""


def full_gpu(error: Exception) -> tuple[GpuDevice, list[bool]]:
    """Return a GPU whose allocations raise this error, and a list to which each emptying of its pool appends."""
    emptied: list[bool] = []
    pool = SimpleNamespace(free_all_blocks=lambda: emptied.append(True))
    runtime = SimpleNamespace(memGetInfo=lambda: (1_000, 80_000), getDevice=lambda: 0)
    memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    device = GpuDevice.__new__(GpuDevice)
    device.index, device.name = 0, "gpu:0"
    device.xp = SimpleNamespace(
        get_default_memory_pool=lambda: pool, cuda=SimpleNamespace(runtime=runtime, memory=memory)
    )

    def empty(shape: Any, dtype: Any) -> None:
        raise error

    device._array = empty
    return device, emptied


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("8,000,000 bytes"),
        MemoryError("std::bad_alloc"),
        MemoryError("std::bad_alloc: out_of_memory: RMM failure"),
    ],
    ids=repr,
)
def test_an_out_of_memory_error_of_an_allocator_is_translated_and_the_pool_freed(error: MemoryError) -> None:
    device, emptied = full_gpu(error)
    assert device.try_empty((10**6,), np.dtype(float)) is None
    with pytest.raises(DeviceMemoryError, match=rf"gpu:0 .*{error}; free now 1,000 of 80,000.*A.release\(\)"):
        fill_the_device(device)
    assert emptied == [True]


def test_an_out_of_memory_error_of_the_host_is_not_taken_for_one_of_the_gpu() -> None:
    error = MemoryError("Unable to allocate 8 GiB")
    device, emptied = full_gpu(error)
    with pytest.raises(MemoryError) as caught:
        fill_the_device(device)
    assert caught.value is error
    assert not emptied


def test_valid_arrays_of_the_device_are_accepted(device: Device) -> None:
    """They are similar to the bad ones above."""
    module: ModuleType = device.xp
    dense = on_device(device, S.toarray())
    for source in (dense, (on_device(device, DATA), tuple(map(module.asarray, map(np.array, S.nonzero()))))):
        shape, indptr, indices, data = device_arrays(device, source, None, None, False)
        assert tuple(shape) == (4, 3)
        assert all(map(device.owns, (indptr, indices, data)))
        assert int(indptr[-1]) == 6


# --------------------------------------------------------------------------------------------------------- remedies

MISMATCHES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "sum": (lambda A, B: A + B, "they must be the same"),
    "difference": (lambda A, B: A - B, "they must be the same"),
    "comparison": (lambda A, B: A < B, "they must be the same"),
    "maximum": (lambda A, B: A.maximum(B), "they must be the same"),
    "quotient": (lambda A, B: A / B, "they must be the same"),
    "elementwise product": (lambda A, B: A * B, "they must be equal, or 1, along each axis"),
    "sum with a dense array": (lambda A, B: A + B.toarray(), "they must be equal, or 1, along each axis"),
    "product with a dense array": (lambda A, B: A.multiply(B.toarray()), "they must be equal, or 1, along each axis"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_shapes_that_do_not_fit_are_named_with_what_is_needed(case: str) -> None:
    operation, required = MISMATCHES[case]
    A, B = (gsparse.GpuSparseMatrix(sp.eye_array(n), device="cpu") for n in (5, 3))
    words = rf"inconsistent shapes \(5, 5\) and \(3, 3\): {required}; A\[rows, columns\] selects"
    for other in (B, sp.csr_array(B)):
        with pytest.raises(ShapeError, match=words):
            operation(A, other)


def test_a_right_hand_side_or_a_guess_of_another_length_names_the_length() -> None:
    A = gsparse.GpuSparseMatrix(sp.eye_array(5), device="cpu")
    with pytest.raises(ShapeError, match=r"\(5, 5\) and \(4,\): b must have shape \(5,\) or \(5, k\)"):
        gsparse.linalg.cg(A, np.ones(4))
    with pytest.raises(ShapeError, match=r"x0 \(4,\) are incompatible: x0 must have shape \(5,\)"):
        gsparse.linalg.cg(A, np.ones(5), np.ones(4))
    with pytest.raises(ShapeError, match=r"x0 \(5,\) are incompatible: x0 must have shape \(5, 2\)"):
        gsparse.linalg.cg(A, np.ones((5, 2)), np.ones(5))


@pytest.mark.parametrize("text", [["some words", "more"], np.array([["some", "words"]]), np.array([[1, "a"]], object)])
def test_text_is_refused_with_what_to_do(text: Any) -> None:
    with pytest.raises(
        DtypeError, match=r"dtype .*: use astype\(float\), or encode text and categories as numbers first$"
    ):
        gsparse.GpuSparseMatrix(text, device="cpu")


def test_a_number_of_a_device_is_refused_and_the_first_cpu_is_the_cpu() -> None:
    for number in (0, 1):
        words = rf"unknown device {number}: use .* \(CuPy's device {number} is 'gpu:{number}'\)"
        with pytest.raises(DeviceError, match=words):
            gsparse.GpuSparseMatrix(sp.eye_array(5), device=number)
    for name in ("", True, "cpu:1"):
        with pytest.raises(DeviceError, match="unknown device"):
            gsparse.GpuSparseMatrix(sp.eye_array(5), device=name)
    assert gsparse.GpuSparseMatrix(sp.eye_array(5), device="cpu:0").device.name == "cpu"
