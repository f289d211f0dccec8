"""Dask arrays of matrices on a device: into a distributed matrix, out of one, and through operations of dask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.linalg import cg
from tests.conftest import make_device
from tests.linalg.problems import laplacian

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
da = pytest.importorskip("dask.array")
from gsparse.distributed import LocalGpuCluster, distribute  # noqa: E402

pytestmark = pytest.mark.whole

S = sp.random_array((60, 40), density=0.2, format="csr", rng=0)
X, Z = np.random.default_rng(1).standard_normal((40, 3)), np.random.default_rng(2).standard_normal((60, 2))


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "gpu":
        make_device("gpu")
    return str(request.param)


@pytest.fixture(scope="module")
def client(device: str) -> Iterator[Any]:
    with (
        LocalGpuCluster(2 if device == "cpu" else 1, device=device) as cluster,
        distributed.Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def lazy(device: str, client: Any) -> Any:
    """S as a dask array in chunks of 17 rows, which are matrices on the device."""
    return da.from_array(S.toarray(), chunks=(17, 40)).map_blocks(GpuSparseMatrix, device=device)


def kind_of(chunk: Any) -> np.ndarray[Any, Any]:
    """Return the class and the device of a chunk, as an array of one row and one column."""
    return np.array([[f"{type(chunk).__name__} {chunk.device.kind}"]])


OPERATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rows": (lambda A: A[2:50], lambda S: S[2:50]),
    "rows by number": (lambda A: A[[1, 57, 3]], lambda S: S[[1, 57, 3]]),
    "columns": (lambda A: A[:, 5:9], lambda S: S[:, 5:9]),
    "columns by number": (lambda A: A[:, [7, 2]], lambda S: S[:, [7, 2]]),
    "other chunks": (lambda A: A.rechunk((20, 11)), lambda S: S),
    "scaled": (lambda A: 2 * A, lambda S: 2 * S),
    "log1p": (lambda A: da.log1p(abs(A)), lambda S: np.log1p(abs(S))),
    "below": (lambda A: da.concatenate([A, A]), lambda S: sp.vstack([S, S])),
    "beside": (lambda A: da.concatenate([A, A], axis=1), lambda S: sp.hstack([S, S])),
    "transpose": (lambda A: A.T, lambda S: S.T),
    "Gram matrix": (lambda A: A.T.dot(A), lambda S: S.T @ S),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_dask_keep_class_and_device(lazy: Any, device: str, name: str) -> None:
    ours, scipys = OPERATIONS[name]
    result, expected = ours(lazy), scipys(S)
    kinds = result.map_blocks(kind_of, dtype=object, chunks=(1, 1), meta=np.empty((0, 0), object)).compute()
    assert set(kinds.ravel()) <= {f"{cls} {device}" for cls in ("GpuSparseMatrix", "TransposedMatrix")}
    np.testing.assert_allclose(result.compute().toarray(), expected.toarray(), rtol=1e-13)


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda A: A.sum(),
    "sum of columns": lambda A: A.sum(axis=0),
    "sum of rows": lambda A: A.sum(axis=1, keepdims=True),
    "mean": lambda A: A.mean(),
    "means of columns": lambda A: A.mean(axis=0),
    "max": lambda A: A.max(axis=1),
    "min": lambda A: A.min(axis=0),
    "argmax": lambda A: A.argmax(axis=1),
    "A @ X": lambda A: A @ X if isinstance(A, np.ndarray) else A.dot(da.from_array(X, chunks=(40, 3))),
    "A.T @ Z": lambda A: A.T @ Z if isinstance(A, np.ndarray) else A.T.dot(da.from_array(Z, chunks=(17, 2))),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_products_of_dask_match_numpy(lazy: Any, name: str) -> None:
    got = REDUCTIONS[name](lazy).compute()
    np.testing.assert_allclose(got, REDUCTIONS[name](S.toarray()), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1), (1,)])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "argmax"])
def test_keepdims_gives_a_dense_array_with_all_dimensions(name: str, axis: Any, keepdims: bool) -> None:
    if name == "argmax" and isinstance(axis, tuple):
        axis = axis[0] if len(axis) == 1 else None
    got = getattr(GpuSparseMatrix(S, device="cpu"), name)(axis=axis, keepdims=keepdims)
    expected = getattr(S.toarray(), name)(axis=axis, keepdims=keepdims)
    assert isinstance(got, np.ndarray) or not keepdims
    np.testing.assert_allclose(got.toarray() if sp.issparse(got) else got, expected, rtol=1e-13)
    assert np.shape(got) == np.shape(expected)


def chunks_of(kind: str, device: str) -> Callable[[Any], Any]:
    """Return a function that converts a dense chunk to another kind of chunk."""
    if kind == "CuPy":
        return lambda chunk: __import__("cupy").asarray(chunk)
    if kind == "CuPy, sparse":
        return lambda chunk: __import__("cupyx.scipy.sparse", fromlist=[""]).csr_matrix(
            __import__("cupy").asarray(chunk)
        )
    if kind == "SciPy":
        return sp.csr_array
    return (lambda chunk: chunk) if kind == "NumPy" else lambda chunk: GpuSparseMatrix(chunk, device=device)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float64", "int16", "bool", "complex64"])
@pytest.mark.parametrize("kind", ["ours", "SciPy", "NumPy", "CuPy", "CuPy, sparse"])
def test_chunks_become_a_matrix_and_come_back(client: Any, device: str, kind: str, dtype: str) -> None:
    if "CuPy" in kind and (device == "cpu" or (dtype == "int16" and "sparse" in kind)):
        pytest.skip("needs a GPU" if device == "cpu" else "CuPy has no sparse matrices of integers")
    part = (10 * S).astype(dtype)
    array = da.from_array(part.toarray(), chunks=(17, 40)).map_blocks(
        chunks_of(kind, device), meta=np.empty((0, 0), dtype)
    )
    with gsparse.from_dask(array, client, device=device) as A:
        assert (A.shape, A.dtype) == (S.shape, np.dtype(dtype))
        assert set(A.devices) == {"gpu:0" if device == "gpu" else "cpu"}
        np.testing.assert_array_equal(A.toarray(), part.toarray())
        x = np.arange(40.0)
        np.testing.assert_allclose(A @ x, part @ x, rtol=1e-5)
        back = A.to_dask()
        assert isinstance(back._meta, GpuSparseMatrix)
    assert back.chunks[0] == tuple(np.diff(A.row_bounds))  # the chunks remain although the matrix is closed
    assert set(back.map_blocks(kind_of, chunks=(1, 1), meta=np.empty((0, 0), object)).compute().ravel()) == {
        f"GpuSparseMatrix {device}"
    }
    np.testing.assert_array_equal(back.compute().toarray(), part.toarray())


def test_rows_on_a_device_take_options_and_need_not_have_a_chunk_for_each_rank(client: Any, device: str) -> None:
    square = laplacian(8)
    one = da.from_array(square.toarray(), chunks=64).map_blocks(GpuSparseMatrix, device=device)
    with gsparse.from_dask(one, client, device=device, format="csr") as A:
        np.testing.assert_array_equal((A @ A).toarray(), (square @ square).toarray())
        assert "csr" in str(A)
        assert A.to_dask().chunks == ((64,), (64,))


def test_unknown_sizes_of_chunks_are_computed(lazy: Any, client: Any, device: str) -> None:
    mask = np.arange(60) % 3 != 0
    unknown = lazy[da.from_array(mask, chunks=17)]
    assert np.isnan(unknown.shape[0])
    with gsparse.from_dask(unknown, client, device=device) as A:
        np.testing.assert_array_equal(A.toarray(), S[mask].toarray())


def cleared(chunk: Any) -> Any:
    chunk.data[:] = 0
    return chunk


def test_a_write_to_a_chunk_does_not_change_the_matrix(client: Any, device: str) -> None:
    with distribute(S, client, device=device) as A:
        assert not A.to_dask().map_blocks(cleared, meta=GpuSparseMatrix((0, 0), device="cpu")).compute().toarray().any()
        np.testing.assert_array_equal(A.toarray(), S.toarray())


def test_a_permuted_matrix_has_its_chunks_in_the_original_order(client: Any, device: str) -> None:
    shuffled = laplacian(7)[np.random.default_rng(3).permutation(49)]
    with distribute(shuffled, client, device=device, reorder="rcm") as A:
        np.testing.assert_array_equal(A.to_dask().compute().toarray(), shuffled.toarray())


def library_of(chunk: Any) -> np.ndarray[Any, Any]:
    return np.array([type(chunk).__module__.partition(".")[0]])


@pytest.mark.parametrize("library", ["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def test_vectors_stay_in_the_library_of_their_chunks(client: Any, device: str, library: str) -> None:
    if library == "cupy" and device == "cpu":
        pytest.skip("needs a GPU")
    matrix, b = laplacian(9), np.random.default_rng(4).standard_normal(81)
    vector = da.from_array(b, chunks=20)
    if library == "cupy":
        vector = vector.map_blocks(__import__("cupy").asarray)
    with distribute(matrix, client, device=device) as A:
        x, info = cg(A, vector, rtol=1e-11)
        assert info == 0
        for result, expected in (
            (x, sp.linalg.spsolve(matrix.tocsc(), b)),
            (A @ vector, matrix @ b),
            (A.T @ vector, matrix.T @ b),
        ):
            kinds = result.map_blocks(library_of, chunks=(1,), meta=np.empty(0, object)).compute()
            assert set(kinds) == {library}
            np.testing.assert_allclose(result.map_blocks(as_numpy, meta=np.empty(0)).compute(), expected, atol=1e-8)


def as_numpy(chunk: Any) -> Any:
    return chunk.get() if hasattr(chunk, "get") else chunk
