"""`gsparse.sparse.csr_matrix` behaves as SciPy's `csr_matrix`, and shares its arrays with the array flavour."""

from __future__ import annotations

import copy
import operator
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la
from scipy.sparse import csgraph

import gsparse
import gsparse.linalg
import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import HostFallbackError, MatrixProductWarning, ShapeError
from gsparse.matrix.gpu_sparse_matrix import TransposedMatrix
from gsparse.matrix.matrix_flavour import CscMatrix, CsrMatrix
from tests.support import host, on_device

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")

# Our classes, and SciPy's class of the same format and flavour.
SCIPY_CLASSES = {
    GpuSparseMatrix: sp.csr_array,
    TransposedMatrix: sp.csc_array,
    CsrMatrix: sp.csr_matrix,
    CscMatrix: sp.csc_matrix,
}


def square(dtype: Any = float) -> Any:
    """Return a square matrix with small integers as values, so that sums and products are exact."""
    rng = np.random.default_rng(4)
    dense = np.where(rng.random((6, 6)) < 0.5, rng.integers(-4, 5, (6, 6)), 0)
    return sp.csr_matrix(dense + np.eye(6, dtype=int) * 9, dtype=dtype)


@pytest.fixture
def S() -> Any:
    return square()


@pytest.fixture
def M(device: Device, S: Any) -> Any:
    return gsparse.sparse.csr_matrix(S, device=device)


def assert_same(got: Any, expected: Any) -> None:
    """Check that a result has the type, the shape, the dtype and the values of SciPy's."""
    assert SCIPY_CLASSES.get(type(got), type(got)) is type(expected)
    if isinstance(expected, np.ndarray | np.generic) or sp.issparse(expected):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if sp.issparse(expected):
        got, expected = got.toarray(), expected.toarray()
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-15)  # (a mean has roundings)


# ------------------------------------------------------------------------------------------------ what SciPy accepts


def needs_csr_matrix(A: Any) -> Any:
    """Sum what the rows multiply to, as a package does that was written for `csr_matrix` alone."""
    if not isinstance(A, sp.csr_matrix) or not sp.isspmatrix_csr(A):
        raise TypeError(f"A must be a csr_matrix, got {type(A).__name__}")
    degrees = A.sum(axis=1)
    weighted = sp.diags(np.asarray(degrees).ravel(), format="csr") * A * np.ones(A.shape[1])
    return weighted * A, A.getrow(2).todense(), A.getcol(1).T * A, (A**2).max(axis=0)


def test_code_that_checks_for_csr_matrix_runs_on_the_device(M: Any, S: Any) -> None:
    assert sp.issparse(M) and sp.isspmatrix(M) and sp.isspmatrix_csr(M) and not isinstance(M, sp.sparray)
    assert isinstance(M.T, sp.csc_matrix) and sp.isspmatrix_csc(M.T)
    for got, expected in zip(needs_csr_matrix(M), needs_csr_matrix(S), strict=True):
        assert_same(got, expected)


def test_boundary_conditions_are_condensed_as_by_scikit_fem(M: Any, S: Any) -> None:
    inner, outer, b = np.array([0, 2, 3, 5]), np.array([1, 4]), np.arange(6.0)

    def condense(A: Any) -> tuple[Any, Any]:
        x = np.zeros(6)
        x[outer] = 2.0
        return A[inner].T[inner].T, b[inner] - A[inner].T[outer].T @ x[outer]

    with gsparse.strict():
        condensed, right = condense(M)
    expected, expected_right = condense(S)
    assert_same(condensed, expected)
    np.testing.assert_array_equal(right, expected_right)


# ---------------------------------------------------------------------------------------------------------- operations

# Operations whose sparse results stay on the device; the type of a result says its flavour and its format.
ON_DEVICE: dict[str, Any] = {
    "M * M": lambda M: M * M,
    "M @ M": lambda M: M @ M,
    "M * x": lambda M: M * np.arange(6.0),
    "x * M": lambda M: np.arange(6.0) * M,
    "M * X": lambda M: M * np.ones((6, 2)),
    "M * 2": lambda M: M * 2,
    "2 * M": lambda M: 2 * M,
    "numpy.float64(2) * M": lambda M: np.float64(2) * M,
    "M / 2": lambda M: M / 2,
    "M ** 3": lambda M: M**3,
    "M ** 1": lambda M: M**1,
    "M * np.matrix": lambda M: M * np.asmatrix(np.ones((6, 2))),
    "M * np.matrix of a column": lambda M: M * np.asmatrix(np.ones((6, 1))),
    "np.matrix * M": lambda M: np.asmatrix(np.ones((2, 6))) * M,
    "np.matrix @ M": lambda M: np.asmatrix(np.ones((2, 6))) @ M,
    "M.dot(M)": lambda M: M.dot(M),
    "M.dot(x)": lambda M: M.dot(np.arange(6.0)),
    "M + M.T": lambda M: M + M.T,
    "M.T - M": lambda M: M.T - M,
    "M.multiply(M)": lambda M: M.multiply(M),
    "M.maximum(M.T)": lambda M: M.maximum(M.T),
    "M != M.T": lambda M: M != M.T,
    "M > 3": lambda M: M > 3,
    "-M": lambda M: -M,
    "abs(M)": abs,
    "M.power(2)": lambda M: M.power(2),
    "M.sign()": lambda M: M.sign(),
    "M.astype(int)": lambda M: M.astype(int),
    "M.asfptype()": lambda M: M.astype(np.int32).asfptype(),
    "M.T": lambda M: M.T,
    "M.T.T": lambda M: M.T.T,
    "M.T * M": lambda M: M.T * M,
    "M.getH()": lambda M: M.getH(),
    "M.conj()": lambda M: M.conj(),
    "M.copy()": lambda M: M.copy(),
    "M.tocsr()": lambda M: M.tocsr(),
    "M.tocsc()": lambda M: M.tocsc(),
    "M.T.tocsr()": lambda M: M.T.tocsr(),
    "M[2]": lambda M: M[2],
    "M[-1, :]": lambda M: M[-1, :],
    "M[:, 3]": lambda M: M[:, 3],
    "M[:, numpy.int64(-2)]": lambda M: M[:, np.int64(-2)],
    "M[1:4, 2]": lambda M: M[1:4, 2],
    "M[[0, 2], 3]": lambda M: M[[0, 2], 3],
    "M[4, [5, 1]]": lambda M: M[4, [5, 1]],
    "M[1:5:2]": lambda M: M[1:5:2],
    "M[mask]": lambda M: M[np.arange(6) % 2 == 0],
    "M.T[2]": lambda M: M.T[2],
    "M.getrow(-2)": lambda M: M.getrow(-2),
    "M.getcol(2)": lambda M: M.getcol(2),
    "M.getnnz()": lambda M: M.getnnz(),
    "M.get_shape()": lambda M: M.get_shape(),
    "M.getmaxprint()": lambda M: M.getmaxprint(),
    "M.diagonal(1)": lambda M: M.diagonal(1),
    "M.trace()": lambda M: M.trace(),
    **{
        f"M{view}.{name}({axis})": lambda M, name=name, axis=axis, view=view: getattr(M.T if view else M, name)(axis)
        for name in ("sum", "mean", "max", "min", "nanmax", "argmax", "argmin")
        for axis in (None, 0, 1, -1)
        for view in ("", ".T")
    },
    "M.sum(0, dtype=int)": lambda M: M.sum(0, dtype=int),
    "M.sum(1, dtype=int)": lambda M: M.sum(1, dtype=int),
    "M.sum(axis=(1,))": lambda M: M.sum(axis=(1,)),
    "M.mean(0, dtype=float32)": lambda M: M.mean(0, dtype=np.float32),
}
# Operations that SciPy computes on the host, or whose results are of types of SciPy's or NumPy's.
MIXED: dict[str, Any] = {
    "M[2, 3]": lambda M: M[2, 3],
    "M[[0, 1], [2, 3]]": lambda M: M[[0, 1], [2, 3]],
    "M[None, 1]": lambda M: M[None, 1],
    "list(M)[1]": lambda M: list(M)[1],
    "M + X": lambda M: M + np.ones((6, 6)),
    "X - M": lambda M: np.ones((6, 6)) - M,
    "M == M": lambda M: M == M.T,
    "M / M": lambda M: M / (M + M.T),
    "M.todense()": lambda M: M.todense(),
    "M.toarray()": lambda M: M.toarray(),
    "M.tocoo()": lambda M: M.tocoo(),
    "M.tobsr()": lambda M: M.tobsr(),
    "M.tolil()": lambda M: M.tolil(),
    "M.reshape(4, 9)": lambda M: M.reshape(4, 9).tocsr(),
    "M.getnnz(axis=0)": lambda M: M.getnnz(axis=0),
    "M ** 0": lambda M: M**0,
    "sum of longdouble": lambda M: M.astype(np.longdouble).sum(axis=0),
    "hstack": lambda M: sp.hstack([M, M], format="csr").tocsr()[0].todense(),
}


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", ON_DEVICE)
def test_an_operation_on_the_device_keeps_the_flavour(M: Any, S: Any, name: str) -> None:
    with gsparse.strict():
        got = ON_DEVICE[name](M)
    assert_same(got, ON_DEVICE[name](S))
    if sp.issparse(got) and got.format in ("csr", "csc"):
        assert got.device is M.device


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning", "ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", MIXED)
def test_an_operation_with_other_results_keeps_the_flavour(M: Any, S: Any, name: str) -> None:
    assert_same(MIXED[name](M), MIXED[name](S))


ASSEMBLIES: dict[str, Any] = {
    "kron": lambda module, A, B: module.kron(A, B),
    "kronsum": lambda module, A, B: module.kronsum(A, B),
    "hstack": lambda module, A, B: module.hstack([A, B]),
    "vstack": lambda module, A, B: module.vstack([A, B]),
    "block_diag": lambda module, A, B: module.block_diag([A, B]),
    "block_array": lambda module, A, B: module.block_array([[A, B]]),
    "tril": lambda module, A, B: module.tril(A),
    "triu": lambda module, A, B: module.triu(A, 1, format="csc"),
}


@pytest.mark.parametrize("second", [CsrMatrix, GpuSparseMatrix, sp.csr_matrix, sp.csr_array, np.asarray])
@pytest.mark.parametrize("name", ASSEMBLIES)
@pytest.mark.filterwarnings("ignore:.*`kron`.*:DeprecationWarning")
def test_functions_that_assemble_return_the_flavour_of_their_operands(S: Any, name: str, second: Any) -> None:
    B = second(S.toarray())
    got = ASSEMBLIES[name](gsparse.sparse, gsparse.sparse.csr_matrix(S, device="cpu"), B)
    expected = ASSEMBLIES[name](sp, S, B)
    assert isinstance(got, sp.spmatrix) is isinstance(expected, sp.spmatrix)
    np.testing.assert_array_equal(got.toarray(), expected.toarray())
    assert type(got) in SCIPY_CLASSES


# Operands of every flavour; our own come with those of SciPy that they stand for.
OPERANDS: dict[str, tuple[Any, Any]] = {
    "our array": (GpuSparseMatrix, sp.csr_array),
    "our matrix": (CsrMatrix, sp.csr_matrix),
    "our array's view": (lambda S, device: GpuSparseMatrix(S, device=device).T, lambda S: sp.csr_array(S).T),
    "our matrix's view": (lambda S, device: CsrMatrix(S, device=device).T, lambda S: sp.csr_matrix(S).T),
    **{
        name: (lambda S, device, name=name: getattr(sp, name)(S), getattr(sp, name))
        for name in ("csr_array", "csr_matrix", "csc_array", "csc_matrix", "coo_matrix")
    },
}
PAIRS = [(first, second) for first in OPERANDS for second in OPERANDS if "our matrix" in first + second]
# Pairs that the device computes: those that begin with ours, and those that Python lets ours compute because its class
# is derived from that of the first operand.
TAKES_OVER = (("csr_matrix", "our matrix"), ("csc_matrix", "our matrix's view"))
OPERATORS = {"*": operator.mul, "@": operator.matmul, "+": operator.add, "-": operator.sub, "!=": operator.ne}


@pytest.mark.parametrize("symbol", OPERATORS)
@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.filterwarnings("ignore::gsparse.errors.MatrixProductWarning")
def test_an_operation_of_two_flavours_returns_that_of_scipy(S: Any, first: str, second: str, symbol: str) -> None:
    apply, operands = OPERATORS[symbol], (OPERANDS[first], OPERANDS[second])
    got = apply(*(ours(S, device="cpu") for ours, _ in operands))
    expected = apply(*(scipys(S) for _, scipys in operands))
    assert isinstance(got, sp.spmatrix) is isinstance(expected, sp.spmatrix)
    assert got.format == expected.format
    np.testing.assert_array_equal(got.toarray(), expected.toarray())
    if first.startswith("our") or ((first, second) in TAKES_OVER and symbol != "!="):
        assert type(got) in SCIPY_CLASSES


# -------------------------------------------------------------------------------------------- arrays of the device


def test_products_with_arrays_of_the_device_stay_there(M: Any, S: Any) -> None:
    x, X = np.arange(6.0), np.arange(12.0).reshape(6, 2)
    for got, expected in (
        (M * on_device(M.device, x), S * x),
        (M @ on_device(M.device, X), S @ X),
        (on_device(M.device, x) * M, x * S),
        (M.T * on_device(M.device, x), S.T * x),
    ):
        assert type(got) is type(on_device(M.device, x))
        np.testing.assert_array_equal(host(got), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_is_written_to_an_array_of_the_host(M: Any, S: Any, axis: int) -> None:
    out = np.asmatrix(np.zeros((1, 6) if axis == 0 else (6, 1)))
    assert M.sum(axis, out=out) is out
    np.testing.assert_array_equal(out, S.sum(axis))
    plain = np.zeros(out.shape)
    assert M.mean(axis, out=plain) is plain
    np.testing.assert_allclose(plain, S.mean(axis), rtol=1e-15)
    with pytest.raises(ValueError, match="out"):
        M.sum(axis, out=np.zeros(6))


# ------------------------------------------------------------------------------------------------------- conversions


def test_converting_between_the_flavours_shares_the_device_arrays_and_the_plan(device: Device, S: Any) -> None:
    A = GpuSparseMatrix(sp.csr_array(S), device=device)
    A @ np.ones(6)
    M = gsparse.sparse.csr_matrix(A)
    B = gsparse.sparse.csr_array(M)
    assert (type(M), type(B)) == (CsrMatrix, GpuSparseMatrix)
    for other in (M, B):
        for name in ("device_data", "device_indices", "device_indptr"):
            assert getattr(other, name) is getattr(A, name)
        assert other._arrays.prepared is A._arrays.prepared
        assert other.plan is A.plan
    assert_same(gsparse.sparse.csr_matrix(A.T), S.T.tocsr())


def test_a_converted_matrix_is_written_without_the_other(M: Any, S: Any) -> None:
    A = gsparse.sparse.csr_array(M)
    M[0, 0] = 50.0
    A.data[:] = 1.0
    np.testing.assert_array_equal(M.toarray() != S.toarray(), np.arange(36).reshape(6, 6) == 0)
    np.testing.assert_array_equal(A @ np.ones(6), S.getnnz(axis=1))


def test_the_warning_of_elementwise_operators_is_for_arrays_only(S: Any) -> None:
    x = np.ones(6)
    M = gsparse.sparse.csr_matrix(S, device="cpu")  # Warnings are errors in tests.
    np.testing.assert_array_equal(M * x, S * x)
    np.testing.assert_array_equal(gsparse.sparse.csr_matrix(GpuSparseMatrix(S, device="cpu")) * x, S * x)
    with pytest.warns(MatrixProductWarning, match=r"A \* x is elementwise"):
        gsparse.sparse.csr_array(M) * x


def test_a_matrix_has_two_dimensions(device: Device) -> None:
    vector = sp.coo_array(np.arange(4.0))
    for source in (vector, GpuSparseMatrix(vector, device=device)):
        with pytest.raises(ShapeError, match=r"two dimensions, got shape \(4,\): use A.reshape\(1, -1\)"):
            gsparse.sparse.csr_matrix(source, device=device)
    with pytest.raises(ValueError, match="unrecognized csr_matrix constructor input"):
        gsparse.sparse.csr_matrix((4,), device=device)
    with pytest.raises(ValueError, match="shape must have length"):
        gsparse.sparse.csr_matrix(np.eye(2), shape=(4,), device=device)
    for source in (np.arange(4.0), [0.0, 1.0, 2.0, 3.0], 5.0):
        assert_same(gsparse.sparse.csr_matrix(source, device=device), sp.csr_matrix(source))


@pytest.mark.parametrize("by_method", [True, False])
def test_the_shape_is_set_in_place(M: Any, S: Any, by_method: bool) -> None:
    view, expected = M.T, S.reshape(4, 9).tocsr()
    for shape in ((6, 6), (4, 9)):
        if by_method:
            M.set_shape(shape)
        else:
            M.shape = shape
    assert_same(M, expected)
    np.testing.assert_array_equal(M * np.arange(9.0), expected * np.arange(9.0))
    assert not M._arrays.lent_names
    assert_same(view, S.T)
    with pytest.raises(ValueError, match="cannot reshape"):
        M.set_shape((5, 5))


# ------------------------------------------------------------------------------------------- solvers, copies, options

SOLVERS: dict[str, Any] = {
    "scipy, cg": lambda A, b: la.cg(A, b, rtol=1e-12)[0],
    "scipy, gmres": lambda A, b: la.gmres(A, b, rtol=1e-12)[0],
    "scipy, lsmr": lambda A, b: la.lsmr(A, b, atol=1e-13, btol=1e-13)[0],
    "scipy, spsolve": la.spsolve,
    "scipy, splu": lambda A, b: la.splu(A.tocsc()).solve(b),
    "gsparse, cg with jacobi": lambda A, b: gsparse.linalg.cg(A, b, rtol=1e-12, M=gsparse.linalg.jacobi(A))[0],
    "gsparse, gmres with ilu0": lambda A, b: gsparse.linalg.gmres(A, b, rtol=1e-12, M=gsparse.linalg.ilu0(A))[0],
    "gsparse, bicgstab": lambda A, b: gsparse.linalg.bicgstab(A.T, b, rtol=1e-12)[0],
    "accelerated": lambda A, b: la.cg(A.accelerated(), b, rtol=1e-10)[0],
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning", "ignore::gsparse.errors.HostLoanWarning")
def test_solvers_take_the_matrix_flavour(device: Device, name: str) -> None:
    line = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(40, 40), format="csr")
    b = np.linspace(0, 1, 40)
    M = gsparse.sparse.csr_matrix(line, device=device)
    np.testing.assert_allclose(SOLVERS[name](M, b), la.spsolve(line.tocsc(), b), rtol=1e-4, atol=1e-9)


SCIPY_FUNCTIONS: dict[str, Any] = {
    "expm": lambda A: la.expm(A.astype(float) * 0.1).toarray(),
    "expm_multiply": lambda A: la.expm_multiply(A * 0.1, np.ones(6)),
    "inv": lambda A: la.inv(A.tocsc()).toarray(),
    "matrix_power": lambda A: la.matrix_power(A, 3),
    "norm": la.norm,
    "onenormest": la.onenormest,
    "svds": lambda A: la.svds(A, k=2, rng=0)[1],
    "eigsh": lambda A: la.eigsh(A + A.T, k=2, v0=np.ones(6))[0],
    "connected_components": lambda A: csgraph.connected_components(A)[1],
    "shortest_path": lambda A: csgraph.shortest_path(abs(A)),
    "laplacian": lambda A: csgraph.laplacian(abs(A) + abs(A.T)).toarray(),
    "hstack": lambda A: sp.hstack([A, A], format="csr"),
    "vstack": lambda A: sp.vstack([A, A]).toarray(),
    "kron": lambda A: sp.kron(A, A).toarray(),
    "block_diag": lambda A: sp.block_diag([A, A]).toarray(),
    "tril": lambda A: sp.tril(A).toarray(),
    "find": lambda A: sp.find(A)[2],
    "diags times A": lambda A: sp.diags(np.arange(6.0)) * A,
    "numpy.sum": lambda A: np.sum(A, axis=0),
    "numpy.sqrt": lambda A: np.sqrt(abs(A).todense()),
}


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning", "ignore:.*`kron`.*:DeprecationWarning")
@pytest.mark.parametrize("name", SCIPY_FUNCTIONS)
def test_functions_of_scipy_return_the_same(S: Any, name: str) -> None:
    got = SCIPY_FUNCTIONS[name](gsparse.sparse.csr_matrix(S, device="cpu"))
    expected = SCIPY_FUNCTIONS[name](S)
    assert isinstance(got, sp.spmatrix) is isinstance(expected, sp.spmatrix)
    assert isinstance(got, np.matrix) is isinstance(expected, np.matrix)
    got, expected = (part.toarray() if sp.issparse(part) else np.asarray(part) for part in (got, expected))
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


COPIES: dict[str, Any] = {
    "pickled": lambda M: pickle.loads(pickle.dumps(M)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "constructed": gsparse.sparse.csr_matrix,
    "with_data": lambda M: M.with_data(M.device_data),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_keep_the_class_and_the_options(S: Any, name: str) -> None:
    M = gsparse.sparse.csr_matrix(S, device="cpu", format="csr_vector", expected_products=7)
    for A, expected in ((M, S), (M.T, S.T)):
        if name == "constructed" and A is not M:
            continue
        made = COPIES[name](A)
        assert type(made) is type(A)
        assert made._arrays.options == A._arrays.options
        assert_same(made, expected)
        np.testing.assert_array_equal(made * np.ones(6), expected * np.ones(6))
    assert COPIES[name](M).plan.format == "csr_vector"


def test_plan_stats_repr_and_strict(M: Any, S: Any) -> None:
    M * np.ones(6)
    assert M.stats.products == 1
    assert M.plan.stats.nnz == S.nnz
    assert repr(M).startswith("<CsrMatrix: Compressed Sparse Row sparse matrix of dtype 'float64'")
    assert repr(M).endswith(f"on {M.device.name}>")
    assert repr(M.T).startswith("<CscMatrix: Compressed Sparse Column sparse matrix")
    assert str(M).startswith(repr(M).removesuffix(">"))
    assert str(M).partition(">")[2] == str(S).partition(">")[2], "the entries, as SciPy shows them"
    assert (M.getformat(), M.T.getformat()) == ("csr", "csc")
    with gsparse.strict(), pytest.raises(HostFallbackError):
        M.tolil()
    M.freeze()
    with pytest.raises(ValueError, match="frozen"):
        M.setdiag(1.0)


def test_a_file_is_read(tmp_path: Path, S: Any) -> None:
    sp.save_npz(tmp_path / "matrix.npz", S)
    M = gsparse.sparse.csr_matrix.from_file(tmp_path / "matrix.npz", device="cpu")
    assert_same(M, S)


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning", "ignore:invalid value:RuntimeWarning")
def test_the_deprecation_of_scipys_matrix_classes_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, S: Any
) -> None:
    sp.save_npz(tmp_path / "matrix.npz", S)
    sources = (S, S.toarray(), S.T, S.tocoo(), (S.data, S.indices, S.indptr), S.shape, tmp_path / "matrix.npz")

    def initialize(self: Any, *args: Any, **options: Any) -> None:  # as from SciPy 1.19 on
        name = type(self).__name__
        text = f"{name} is being replaced by {name.replace('matrix', 'array')}."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        super(sp.spmatrix, self).__init__(*args, **options)

    monkeypatch.setattr(sp.spmatrix, "__init__", initialize, raising=False)
    with pytest.warns(DeprecationWarning, match="csr_matrix is being replaced by csr_array"):
        sp.csr_matrix((2, 2))
    others = {
        "M.todia()": lambda M: M.todia(),
        "M.todok()": lambda M: M.todok(),
        "str(M)": str,
        "rows of longdouble": lambda M: list(M.astype(np.longdouble)),
        "products of longdouble": lambda M: M.astype(np.clongdouble).H @ M.astype(np.clongdouble).rmatvec(np.ones(6)),
    }
    operations = ON_DEVICE | MIXED | COPIES | others
    del operations["hstack"]  # a function of SciPy, which the user calls
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for source in sources:
            make = gsparse.sparse.csr_matrix.from_file if isinstance(source, Path) else gsparse.sparse.csr_matrix
            make(source, device="cpu")
        for operation in operations.values():
            operation(gsparse.sparse.csr_matrix(S, device="cpu"))
        M = gsparse.sparse.csr_matrix(S, device="cpu")
        M.setdiag(2.0)
        M[0, 1] = 3.0
        lent = M.data  # SciPy writes while it is held
        M[2, 5] = 4.0
        assert lent.size
        M.resize(4, 4)
