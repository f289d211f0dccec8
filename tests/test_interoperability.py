"""Arrays and operators of other libraries: used in place, with results of the same library."""

from __future__ import annotations

import os
import sys
import types
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse
import gsparse.linalg
import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device import interchange
from gsparse.device.base import Device
from gsparse.errors import DeviceError, DtypeError
from gsparse.matrix import host_operations
from tests.conftest import make_device
from tests.support import assert_product, host


@pytest.fixture
def S() -> Any:
    return sp.csr_array(sp.random_array((30, 20), density=0.2, rng=np.random.default_rng(7)))


@pytest.fixture
def A(device: Device, S: Any) -> GpuSparseMatrix:
    return GpuSparseMatrix(S, device=device)


# ------------------------------------------------------------------------------------------ arrays of other libraries


def of_torch(array: Any) -> Any:
    return pytest.importorskip("torch", reason="needs PyTorch").from_numpy(array)


def of_jax(array: Any, platform: str = "cpu") -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # by default JAX allocates three quarters of a GPU
    jax = pytest.importorskip("jax", reason="needs JAX")
    return jax.device_put(array, jax.devices(platform)[0])


class Tensor:
    """An array of a stand-in for another library: it supports indexing and conversion only."""

    __module__ = "made_here"

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self._array[key])


@pytest.fixture(autouse=True)
def made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_here", SimpleNamespace(of=Tensor))
    monkeypatch.setitem(interchange.LIBRARIES, "made_here", interchange.Library("made_here:of"))


MAKERS = {"torch": of_torch, "jax": of_jax, "made here": Tensor}

# Products: each function multiplies a matrix, ours or SciPy's, with arrays that `make` converts from NumPy's.
PRODUCTS: dict[str, Any] = {
    "A @ x": lambda A, make: A @ make(np.linspace(-1, 1, 20)),
    "A @ X": lambda A, make: A @ make(np.linspace(-1, 1, 60).reshape(20, 3)),
    "A @ X, no columns": lambda A, make: A @ make(np.ones((20, 0))),
    "A @ X, every other column": lambda A, make: A @ make(np.linspace(-1, 1, 80).reshape(20, 4))[:, ::2],
    "z @ A": lambda A, make: make(np.linspace(-1, 1, 30)) @ A,
    "Z @ A": lambda A, make: make(np.linspace(-1, 1, 60).reshape(2, 30)) @ A,
    "A.T @ z": lambda A, make: A.T @ make(np.linspace(-1, 1, 30)),
    "A.H @ Z": lambda A, make: A.conj().T @ make(np.linspace(-1, 1, 60).reshape(30, 2)),
    "A @ integers": lambda A, make: A @ make(np.arange(20, dtype=np.int32)),
    "A @ complex": lambda A, make: A @ make(np.linspace(-1, 1, 20) * 1j),
    "A.dot(x)": lambda A, make: A.dot(make(np.linspace(-1, 1, 20))),
}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("library", MAKERS)
@pytest.mark.few(4)
def test_a_product_with_an_array_of_another_library_returns_its_type(
    A: Any, S: Any, library: str, product: str
) -> None:
    make, multiply = MAKERS[library], PRODUCTS[product]
    got = multiply(A, make)
    assert type(got) is type(make(np.ones(3)))
    eps = np.finfo(np.asarray(got).dtype).eps  # JAX computes in float32 by default
    np.testing.assert_allclose(np.asarray(got), multiply(S, lambda array: array), rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("library", MAKERS)
def test_methods_and_functions_accept_arrays_of_other_libraries(A: Any, S: Any, library: str) -> None:
    make = MAKERS[library]
    x, X = make(np.ones(20, np.float32)), make(np.ones((20, 2), np.float32))
    for got, expected in (
        (A.matvec(x), S @ np.ones(20)),
        (A.matvec(X[:, :1]), S @ np.ones((20, 1))),
        (A.rmatvec(make(np.ones(30, np.float32))), S.T @ np.ones(30)),
        (A.matmat(X), S @ np.ones((20, 2))),
        (gsparse.spmv(A, x, 2), 2 * S @ np.ones(20)),
        (gsparse.spmm(A, X, -1), -S @ np.ones((20, 2))),
    ):
        assert type(got) is type(x)
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", MAKERS)
@pytest.mark.few(1)
def test_solvers_and_preconditioners_return_arrays_of_the_library_of_their_input(device: Device, library: str) -> None:
    make = MAKERS[library]
    line = sp.csr_array(sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(40, 40)))
    A, b = GpuSparseMatrix(line, device=device), np.linspace(0, 1, 40, dtype=np.float32)
    M = gsparse.linalg.jacobi(A)
    expected = la.spsolve(line.tocsc(), b)
    for solve, options in (
        (gsparse.linalg.cg, {"M": M, "x0": make(np.ones(40, np.float32))}),
        (gsparse.linalg.cg, {"inner_dtype": "float32"}),
        (gsparse.linalg.gmres, {}),
        (gsparse.linalg.lsmr, {}),
    ):
        x = solve(A, make(b), **options)[0]
        assert type(x) is type(make(b))
        np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-2, atol=1e-3)
    X, info = gsparse.linalg.cg(A, make(np.stack([b, -b], axis=1)), rtol=1e-6)
    assert info == 0
    np.testing.assert_allclose(np.asarray(X), np.stack([expected, -expected], axis=1), rtol=1e-4, atol=1e-5)
    preconditioned = M @ make(b)
    assert type(preconditioned) is type(make(b))
    np.testing.assert_allclose(np.asarray(preconditioned), b / 2.5, rtol=1e-6)


def test_a_tensor_is_read_and_written_in_place(S: Any) -> None:
    A = GpuSparseMatrix(S, device="cpu")
    x, out = of_torch(np.linspace(0, 1, 20)), of_torch(np.full(30, np.nan))
    taken = interchange.LIBRARIES["torch"].import_array(x)
    assert taken.ctypes.data == x.data_ptr()
    assert A.matvec(x, out=out) is out
    assert_product(out.numpy(), S, x.numpy())
    y = A @ x
    assert interchange.LIBRARIES["torch"].import_array(y).ctypes.data == y.data_ptr()
    both = of_torch(np.ones(40))
    with pytest.raises(ValueError, match="x and out overlap"):
        A.matvec(both[:20], out=both[5:35])


def test_a_tensor_that_requires_a_gradient_is_refused_with_the_remedy(A: Any, S: Any) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    x = torch.ones(20, dtype=torch.float64, requires_grad=True)
    z = torch.ones(30, dtype=torch.float64, requires_grad=True)
    for call in (lambda: A @ x, lambda: z @ A, lambda: A.matvec(x), lambda: gsparse.spmv(A, x)):
        with pytest.raises(TypeError, match=r"gsparse\.torch\.matmul\(A, x\) .*x\.detach\(\)"):
            call()
    with torch.no_grad():
        assert_product((A @ x).numpy(), S, np.ones(20))
    assert_product((A @ x.detach()).numpy(), S, np.ones(20))


@pytest.mark.parametrize("library", MAKERS)
def test_values_of_another_library_are_those_of_a_matrix(A: Any, S: Any, library: str) -> None:
    values = np.linspace(1, 2, S.nnz, dtype=np.float32)
    found = A.with_data(MAKERS[library](values))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.data, values)


def test_tensors_that_are_not_dense_numbers_are_refused(A: Any, S: Any) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    for x, words in (
        (torch.ones(20, dtype=torch.bfloat16), "not this Tensor: .*BFloat16"),
        (torch.eye(20).to_sparse(), "not this Tensor: .*to_dense"),
    ):
        with pytest.raises(DtypeError, match=words):
            A @ x
    lazy = torch.from_numpy(np.linspace(0, 1j, 20)).conj()
    assert lazy.is_conj()
    assert_product((A @ lazy).numpy(), S, np.linspace(0, 1j, 20).conj())


class OfSomeGpu:
    """An array of an unknown library whose DLPack device is a GPU."""

    __module__ = "somebodys"
    array = np.linspace(0, 1, 20)

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("only CuPy can look at it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class OfTheHost:
    """An array in host memory that supports DLPack, but no protocol of NumPy."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_host_memory_is_multiplied_in_place_through_dlpack_alone(A: Any, S: Any) -> None:
    x = np.linspace(0, 1, 20)
    for got in (A @ OfTheHost(x), A.matvec(OfTheHost(x)), gsparse.spmv(A, OfTheHost(x))):
        assert_product(got, S, x)
    assert_product(OfTheHost(np.ones(30)) @ A, S.T, np.ones(30))
    taken = interchange.as_own_array(OfTheHost(x))
    assert taken.ctypes.data == x.ctypes.data


class OfAnOlderOne:
    """An array like `OfSomeGpu`, but with the CUDA array interface in place of DLPack."""

    __module__ = "somebodys"
    array = np.linspace(0, 2, 20)
    __cuda_array_interface__ = None


def test_gpu_memory_is_passed_to_cupy_by_the_protocol_that_it_supports(S: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look(protocol: str) -> Any:
        return lambda x: asked.append(protocol) or x.array

    stream = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0))
    cupy = SimpleNamespace(from_dlpack=look("DLPack"), asarray=look("CUDA array interface"), cuda=stream)
    monkeypatch.setattr(interchange, "import_cupy", lambda: cupy)
    monkeypatch.setattr(interchange, "kept_until_read", lambda view: view)
    A = GpuSparseMatrix(S, device="cpu")
    for x in (OfSomeGpu(), OfAnOlderOne()):
        assert_product(A @ x, S, x.array)
    assert asked == ["DLPack", "CUDA array interface"]
    assert_product(A.matvec(OfSomeGpu()), S, OfSomeGpu.array)


def test_a_product_is_written_into_an_array_of_another_library(A: Any, S: Any) -> None:
    out = Tensor(np.full(30, np.nan))
    for call in (lambda x: A.matvec(x, out=out), lambda x: gsparse.spmv(A, x, out=out)):
        out[...]._array[:] = np.nan
        assert call(Tensor(np.ones(20))) is out
        assert_product(np.asarray(out), S, np.ones(20))
    with pytest.raises(ValueError, match="out is read-only"):
        A.matvec(Tensor(np.ones(20)), out=Tensor(np.frombuffer(bytes(240))))


def test_gpu_memory_without_cupy_is_refused_with_the_remedy(S: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cupy() -> Any:
        raise DeviceError("CuPy is not installed")

    monkeypatch.setattr(interchange, "import_cupy", no_cupy)
    with pytest.raises(DeviceError, match="CuPy is not installed"):
        GpuSparseMatrix(S, device="cpu") @ OfSomeGpu()


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "jax", "numba"])
def test_arrays_of_other_libraries_stay_on_the_gpu(S: Any, library: str) -> None:
    device = make_device("gpu")
    make = {"torch": cuda_tensor, "jax": jax_array, "numba": numba_array}[library]
    A = GpuSparseMatrix(S, device=device)
    x, X = np.linspace(0, 1, 20, dtype=np.float32), np.linspace(0, 1, 40, dtype=np.float32).reshape(20, 2)
    for values in (x, X):
        with gsparse.strict():
            got = A @ make(values)
        assert type(got) is type(make(values))
        assert interchange.is_on_gpu(got)
        # JAX converts to float32 on its own stream, for which DLPack waits, and the CUDA array interface does not.
        np.testing.assert_allclose(host(interchange.as_own_array(got)), S @ values, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_memory_that_jax_frees_is_not_written_before_it_has_been_read(on_gpu: tuple[Device, Any]) -> None:
    jax = pytest.importorskip("jax", reason="needs JAX")
    n = 300_000
    S = sp.diags_array([np.ones(n, np.float32)] * 41, offsets=range(-20, 21), shape=(n, n))
    A = GpuSparseMatrix(sp.csr_array(S), device=on_gpu[0])
    other, spoil = jax_array(np.zeros(n, np.float32)), jax.jit(lambda x: x + 1000)
    for value in range(1, 20):
        for _ in range(6):  # the stream of the product is busy for a while
            A @ A.device.xp.ones(n, np.float32)
        y = A @ jax.block_until_ready(jax_array(np.full(n, value, np.float32)))
        held = [spoil(other) for _ in range(3)]  # JAX may give them the memory of the right-hand side
        assert np.asarray(y)[n // 2] == 41 * value
        del held


def jax_array(array: Any) -> Any:
    return of_jax(array, "gpu")


def cuda_tensor(array: Any) -> Any:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    return torch.from_numpy(array).cuda()


def numba_array(array: Any) -> Any:
    cuda = pytest.importorskip("numba.cuda", reason="needs numba.cuda")
    if not cuda.is_available():
        pytest.skip("numba.cuda sees no GPU")
    return cuda.to_device(array)


# ------------------------------------------------------------------------------------------------------- operators


@pytest.fixture
def square(device: Device) -> tuple[Any, Any]:
    line = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(25, 25))
    S = sp.csr_array(line + sp.eye_array(25, k=3) * 0.25)
    return S, GpuSparseMatrix(S, device=device)


# Expressions of SciPy's operators that contain a matrix A, ours or SciPy's, with P = aslinearoperator(A).
ALGEBRA: dict[str, Any] = {
    "A + 2*I": lambda P, M: P + 2 * la.aslinearoperator(sp.eye_array(25)),
    "I - A": lambda P, M: la.aslinearoperator(sp.eye_array(25)) - P,
    "A @ A": lambda P, M: P @ P,
    "A @ B, B an operator of SciPy's": lambda P, M: P @ la.aslinearoperator(sp.eye_array(25) * 3),
    "B @ A, B an operator of SciPy's": lambda P, M: la.aslinearoperator(sp.eye_array(25) * 3) @ P,
    "A ** 3": lambda P, M: P**3,
    "-A / 2": lambda P, M: -P * 0.5,
    "A.T": lambda P, M: P.T,
    "A.H @ A": lambda P, M: P.H @ P,
    "an operator of functions": lambda P, M: la.LinearOperator((25, 25), matvec=M.dot, rmatvec=M.T.dot, dtype=float),
}


@pytest.mark.parametrize("expression", ALGEBRA)
@pytest.mark.parametrize("how", ["aslinearoperator", "as_linear_operator"])
def test_operators_are_added_scaled_and_chained(square: Any, how: str, expression: str) -> None:
    S, A = square
    make = la.aslinearoperator if how == "aslinearoperator" else GpuSparseMatrix.as_linear_operator
    ours, theirs = ALGEBRA[expression](make(A), A), ALGEBRA[expression](la.aslinearoperator(S), S)
    rng = np.random.default_rng(3)
    with gsparse.strict():  # nothing leaves the device
        for x in (rng.standard_normal(25), rng.standard_normal((25, 4))):
            np.testing.assert_allclose(ours @ x, theirs @ x, atol=1e-10)
            np.testing.assert_allclose(ours.T @ x, theirs.T @ x, atol=1e-10)


def test_a_shifted_operator_solves_without_being_assembled(square: Any) -> None:
    S, A = square
    b = np.linspace(0, 1, 25)
    shifted = la.aslinearoperator(A) + 2 * la.aslinearoperator(sp.eye_array(25))
    x, info = la.gmres(shifted, b, rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(x, la.spsolve((S + 2 * sp.eye_array(25)).tocsc(), b), atol=1e-8)


# ------------------------------------------------------------------------------------ tables, and graphs of networkx


@pytest.mark.parametrize("package", ["pandas", "xarray"])
def test_pandas_and_xarray_tables_multiply_as_with_scipy(A: Any, S: Any, package: str) -> None:
    module = pytest.importorskip(package, reason=f"needs {package}")
    vector, table = (module.Series, module.DataFrame) if package == "pandas" else (module.DataArray,) * 2
    for x in (vector(np.linspace(0, 1, 20)), table(np.linspace(0, 1, 40).reshape(20, 2))):
        got, expected = A @ x, S @ x
        assert type(got) is type(expected)
        np.testing.assert_allclose(got, expected, atol=1e-12)


def test_networkx_ranks_with_our_matrix_in_place_of_scipys(
    real_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    networkx = pytest.importorskip("networkx", reason="needs networkx")
    graph = networkx.gnp_random_graph(60, 0.08, seed=3, directed=True)
    expected = networkx.pagerank(graph)
    made = []
    to_scipy = networkx.to_scipy_sparse_array

    def to_ours(*args: Any, **options: Any) -> GpuSparseMatrix:
        made.append(GpuSparseMatrix(to_scipy(*args, **options), device=real_device))
        return made[-1]

    monkeypatch.setattr(networkx, "to_scipy_sparse_array", to_ours)
    got = networkx.pagerank(graph)
    assert len(made) == 1
    for node, rank in expected.items():
        assert got[node] == pytest.approx(rank, rel=1e-9)


# --------------------------------------------------------------------------------------------- anndata, dask, `dir`


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize("name", ["itself", "A.T", "a subclass", "csr_matrix"])
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning"
)  # raised by anndata because of its dependencies
def test_anndata_writes_our_matrix_as_it_writes_scipys(
    real_device: Device, tmp_path: Path, name: str, suffix: str
) -> None:
    anndata = pytest.importorskip("anndata", reason="needs anndata: pip install anndata")
    S = sp.random_array((30, 20), density=0.1, format="csr", rng=np.random.default_rng(1))
    classes = {"a subclass": type("Subclass", (GpuSparseMatrix,), {}), "csr_matrix": gsparse.sparse.csr_matrix}
    cls = classes.get(name, GpuSparseMatrix)
    A = cls(S, device=real_device)
    A, S = (A.T, S.T) if name == "A.T" else (A, S)
    path = tmp_path / f"table.{suffix}"
    table = anndata.AnnData(A, layers={"doubled": 2 * A})
    assert table.X is A
    getattr(table, "write_" + suffix)(path)
    read = getattr(anndata, "read_" + suffix)(path)
    assert read.X.format == S.format
    np.testing.assert_array_equal(read.X.toarray(), S.toarray())
    np.testing.assert_array_equal(read.layers["doubled"].toarray(), 2 * S.toarray())
    assert not A.stats.host_operations.keys() & {"data", "indices", "indptr"}


def test_a_matrix_can_be_made_if_anndata_lacks_an_expected_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed(GpuSparseMatrix):
        """A class without a registered writer."""

    monkeypatch.setitem(sys.modules, "anndata", types.ModuleType("anndata"))
    monkeypatch.setitem(sys.modules, "anndata._io.specs", None)
    assert Changed(sp.eye_array(3), device="cpu").nnz == 3


def test_dask_sizeof_returns_the_bytes_of_a_matrix(device: Device) -> None:
    sizeof = pytest.importorskip("dask.sizeof", reason="needs dask").sizeof
    S = sp.eye_array(5000, format="csr")
    A = GpuSparseMatrix(S, device=device)
    size = S.data.nbytes + S.indices.nbytes + S.indptr.nbytes
    for M in (A, A.T, A.copy(), GpuSparseMatrix(S, dtype=np.longdouble, device=device)):
        assert size <= sizeof(M) <= size + S.nnz * 8 + 1000
        assert sys.getsizeof(M) == sizeof(M)
    A @ np.ones(5000)
    values = A.data
    assert size <= sizeof(A) <= size + 1000, "each array counts once"
    assert values.size == 5000


# Public attributes that SciPy's arrays do not have.
OURS = {
    *(
        "H",
        "accelerated",
        "as_linear_operator",
        "block_shape",
        "device",
        "device_data",
        "device_indices",
        "device_indptr",
    ),
    *(
        "distribute",
        "freeze",
        "from_file",
        "matmat",
        "matvec",
        "name",
        "plan",
        "plan_for",
        "release",
        "rmatmat",
        "rmatvec",
    ),
    *("stats", "stored", "to_cupy", "with_data"),
}


def test_dir_lists_the_public_attributes(A: Any, S: Any) -> None:
    matrix, spmatrix = gsparse.sparse.csr_matrix(A), sp.csr_matrix(S)
    for M, theirs in ((A, S), (A.T, S.T), (matrix, spmatrix), (matrix.T, spmatrix.T)):
        ours = OURS if M.format == "csr" else OURS - {"from_file"}
        public = {name for name in dir(M) if not name.startswith("_")}
        assert public == {name for name in dir(theirs) if not name.startswith("_")} | ours
        assert all(hasattr(M, name) for name in dir(M))


@pytest.mark.parametrize(
    ("function", "counterpart"),
    [
        (sp.triu, "gsparse.sparse.triu"),
        (sp.find, "gsparse.sparse.find"),
        (lambda A: sp.kron(A, A), "gsparse.sparse.kron"),
        (lambda A: sp.vstack([A, A]), "gsparse.sparse.vstack"),
        (lambda A: sp.block_diag([A, A]), "gsparse.sparse.block_diag"),
        (la.norm, "gsparse.linalg.norm"),
        (lambda A: la.spsolve(A @ A.T + sp.eye_array(30), np.ones(30)), "gsparse.linalg.spsolve"),
    ],
)
def test_a_function_of_scipy_that_copies_a_matrix_from_a_gpu_names_its_counterpart_once(
    S: Any, function: Any, counterpart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_operations, "_named", set())
    A = GpuSparseMatrix(S, device=make_device("emulated:32"))
    with pytest.warns(sp.SparseEfficiencyWarning, match=f": {counterpart} computes") as caught:
        function(A)
    assert [Path(warning.filename).name for warning in caught if counterpart in str(warning.message)] == [
        Path(__file__).name
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="SciPy's")
        function(A)
        function(GpuSparseMatrix(S, device="cpu"))  # copies nothing
        assert A.tocoo().nnz == A.nnz == A.data.size  # the program asks for host arrays itself
