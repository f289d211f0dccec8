"""SciPy's and CuPy's functions accept the matrix and return the same results as for SciPy's own matrices."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.csgraph as graph
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.counters import TOTAL
from gsparse.device.select import get_device
from tests.support import host, matrix_folder

SIZE = 120
DTYPES = ("float64", "complex128")

# Codes that sum in different orders differ by rounding errors, which iterating to 1e-12 damps.
RTOL = 1e-12
AGREEMENT = 1e-8


@dataclass
class Problem:
    """The other arguments of a call, and the count of its steps."""

    b: Any
    X: Any
    M: Any
    steps: int = 0

    def count(self, *_: Any) -> None:
        self.steps += 1


@dataclass(frozen=True)
class Case:
    """A call on a matrix.

    Attributes
    ----------
    call : callable
        It takes the matrix and a `Problem`, and returns results that have to agree: arrays, numbers, sparse arrays, or
        tuples of them.
    matrix : str
        A name in `MATRICES`.
    products : bool
        Whether it multiplies by the matrix on the device. Other calls copy it, factorize it or traverse its structure.
    derived : bool
        Whether it multiplies by matrices made from this one (shifted, scaled), on the device too.
    complex : bool
        Whether it takes complex matrices.
    """

    call: Callable[[Any, Problem], Any]
    matrix: str = "general"
    products: bool = True
    complex: bool = True
    derived: bool = False


def definite(rng: np.random.Generator, dtype: str) -> Any:
    """Return a Hermitian, positive definite matrix of random couplings and a diagonal that keeps eigenvalues apart."""
    C = general(rng, dtype) * 0.2
    return sp.csr_array((C + C.conj().T) / 2 + sp.diags_array(np.linspace(3, 12, SIZE)))


def general(rng: np.random.Generator, dtype: str, columns: int = SIZE) -> Any:
    """Return a diagonally dominant matrix without symmetry."""
    S = sp.random_array((SIZE, columns), density=0.05, rng=rng, format="csr")
    if dtype == "complex128":
        S = S + 1j * sp.random_array((SIZE, columns), density=0.05, rng=rng, format="csr")
    return sp.csr_array(S * 0.3 + sp.eye_array(SIZE, columns) * 4).astype(dtype)


MATRICES: dict[str, Callable[[np.random.Generator, str], Any]] = {
    "definite": definite,
    "general": general,
    "tall": lambda rng, dtype: general(rng, dtype, 50),
}


def krylov(name: str, matrix: str = "general", **options: Any) -> Case:
    """Return a case for a solver of SciPy: its solution and convergence flag, with a callback that counts steps."""
    tolerance = {"rtol": RTOL} if name == "minres" else {"rtol": RTOL, "atol": 0.0}
    solve = getattr(la, name)
    return Case(lambda A, p: solve(A, p.b, callback=p.count, **tolerance, **options), matrix)


def pairs(values: Any, vectors: Any) -> Any:
    """Return the sorted eigenvalues, and the projector on the eigenvectors, which does not depend on their signs."""
    order = np.argsort(values)
    return values[order], vectors @ vectors.conj().T


def singular(result: Any) -> Any:
    u, s, vh = result
    return np.sort(s), u @ np.diag(s) @ vh


def counted_lobpcg(A: Any, p: Problem) -> Any:
    values, vectors, history = la.lobpcg(A, p.X[:, :3].copy(), tol=1e-10, maxiter=200, retResidualNormsHistory=True)
    p.steps = len(history)
    return pairs(values, vectors)


def counted(result: Any, p: Problem, x: int, steps: int) -> Any:
    p.steps = result[steps]
    return result[x]


def saved(A: Any) -> Any:
    file = io.BytesIO()
    sp.save_npz(file, A)
    file.seek(0)
    return sp.load_npz(file)


def algebra(A: Any, p: Problem) -> Any:
    L = la.aslinearoperator(A)
    return (2 * L + L @ L - L).matvec(p.b), L.H.matvec(p.b), L.T.matvec(p.b), (L**2).matmat(p.X), L.rmatmat(p.X)


CASES: dict[str, Case] = {
    "cg": krylov("cg", "definite"),
    "cg, preconditioned": Case(lambda A, p: la.cg(A, p.b, M=p.M, rtol=RTOL, callback=p.count), "definite"),
    "cgs": krylov("cgs"),
    "bicg": krylov("bicg"),
    "bicgstab": krylov("bicgstab"),
    "gmres": krylov("gmres", callback_type="pr_norm", restart=15),
    "lgmres": krylov("lgmres"),
    "gcrotmk": krylov("gcrotmk"),
    "minres": Case(lambda A, p: la.minres(A, p.b.real, rtol=RTOL, callback=p.count), "definite", complex=False),
    "qmr": krylov("qmr"),
    "tfqmr": krylov("tfqmr"),
    "lsqr": Case(lambda A, p: counted(la.lsqr(A, p.b, atol=RTOL, btol=RTOL), p, 0, 2), "tall"),
    "lsmr": Case(lambda A, p: counted(la.lsmr(A, p.b, atol=RTOL, btol=RTOL), p, 0, 2), "tall"),
    "eigsh": Case(lambda A, p: pairs(*la.eigsh(A, 4, v0=p.b, tol=1e-12)), "definite"),
    "eigsh, shift-invert": Case(lambda A, p: pairs(*la.eigsh(A, 3, sigma=3.01, v0=p.b)), "definite", products=False),
    "eigs": Case(lambda A, p: np.sort_complex(la.eigs(A, 1, which="LR", v0=p.b, tol=1e-12, return_eigenvectors=False))),
    "svds, arpack": Case(lambda A, p: singular(la.svds(A, 3, v0=p.b[: A.shape[1]], tol=1e-12)), "tall"),
    "svds, lobpcg": Case(
        lambda A, p: np.sort(la.svds(A, 3, solver="lobpcg", rng=1, maxiter=300, return_singular_vectors=False)), "tall"
    ),
    "svds, propack": Case(lambda A, p: singular(la.svds(A, 3, solver="propack", rng=1, maxiter=50)), "tall"),
    "lobpcg": Case(counted_lobpcg, "definite"),
    "expm_multiply": Case(lambda A, p: la.expm_multiply(A, p.b), products=False, derived=True),
    "expm": Case(lambda A, p: la.expm(0.1 * A), products=False),
    "onenormest": Case(lambda A, p: la.onenormest(A)),
    "norm": Case(lambda A, p: tuple(la.norm(A, ord) for ord in ("fro", 1, np.inf)), products=False),
    "spsolve": Case(lambda A, p: la.spsolve(A, p.b), products=False),
    "splu": Case(lambda A, p: la.splu(A).solve(p.b), products=False),
    "spilu as preconditioner": Case(
        lambda A, p: la.gmres(
            A,
            p.b,
            M=la.LinearOperator(A.shape, la.spilu(A).solve, dtype=A.dtype),
            rtol=RTOL,
            callback=p.count,
            callback_type="pr_norm",
        )
    ),
    "factorized": Case(lambda A, p: la.factorized(A)(p.b), products=False),
    "inv": Case(lambda A, p: la.inv(A), products=False),
    "matrix_power": Case(lambda A, p: la.matrix_power(A, 3), products=False),
    "operator algebra": Case(algebra),
    "save_npz": Case(lambda A, p: saved(A), products=False),
}


def parameters() -> list[Any]:
    return [
        pytest.param(case, dtype, id=f"{name}-{dtype}")
        for name, case in CASES.items()
        for dtype in (DTYPES if case.complex else DTYPES[:1])
    ]


def assert_same(got: Any, expected: Any) -> None:
    """Check that two results agree in every part, and in dtypes."""
    if isinstance(expected, tuple):
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert_same(ours, theirs)
        return
    if sp.issparse(expected):
        assert sp.issparse(got)
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        assert abs(sp.coo_array(got) - sp.coo_array(expected)).max() <= AGREEMENT * abs(expected).max()
        return
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1)
    np.testing.assert_allclose(got, expected, rtol=AGREEMENT, atol=AGREEMENT * scale)


def assert_resident(A: GpuSparseMatrix, S: Any) -> None:
    """Check that a product is still right, and that no array stays on loan after it."""
    x = np.linspace(-1, 1, S.shape[1])
    before = A.stats.host_operations.copy()
    np.testing.assert_allclose(A @ x, S @ x, rtol=1e-12, atol=1e-12)
    assert not A._arrays.lent_names
    assert A.stats.host_operations == before


@pytest.mark.filterwarnings(
    "ignore::scipy.sparse.SparseEfficiencyWarning"
)  # splu and inv warn about CSR, also for SciPy's own matrices
@pytest.mark.parametrize(("case", "dtype"), parameters())
def test_function_accepts_the_matrix_and_returns_scipys_result(real_device: Device, case: Case, dtype: str) -> None:
    rng = np.random.default_rng(20)
    S = MATRICES[case.matrix](rng, dtype)
    b = rng.standard_normal(SIZE).astype(dtype)
    X = rng.standard_normal((SIZE, 4)).astype(dtype)
    M = sp.diags_array(1 / S.diagonal()) if S.shape[0] == S.shape[1] and S.diagonal().all() else None
    A = GpuSparseMatrix(S, device=real_device)
    ours, theirs = Problem(b, X, M), Problem(b, X, M)
    np.random.seed(7)  # onenormest draws from NumPy's global generator
    before = TOTAL.products
    got = case.call(A, ours)
    num_products = TOTAL.products - before
    np.random.seed(7)
    expected = case.call(S.copy(), theirs)
    assert_same(got, expected)
    # A GPU sums in another order, so an iteration that ends at a tolerance may take one step more or less.
    assert abs(ours.steps - theirs.steps) <= (real_device.kind == "gpu")
    assert A.stats.products > 0 or not case.products
    assert num_products > 0 or not case.derived
    assert_resident(A, S)


# ------------------------------------------------------------------------- grids and matrices from applications


def steps_of(A: Any, b: Any, **options: Any) -> tuple[Any, int]:
    count = Problem(b, None, None)
    x, info = la.cg(A, b, callback=count.count, **options)
    assert info == 0
    return x, count.steps


@pytest.mark.parametrize("n", [4, 9, 16])
def test_cg_takes_as_many_steps_as_scipy_on_a_7_point_grid(real_device: Device, n: int) -> None:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    S = sp.csr_array(sp.kronsum(sp.kronsum(line, line), line))
    assert abs(S + la.LaplacianNd((n, n, n), boundary_conditions="dirichlet").tosparse()).max() == 0
    A = GpuSparseMatrix(S, device=real_device)
    b = np.random.default_rng(3).standard_normal(n**3)
    (x, steps), (expected, wanted) = (steps_of(matrix, b, rtol=1e-10) for matrix in (A, S))
    assert steps == wanted
    np.testing.assert_allclose(x, expected, rtol=1e-8, atol=1e-10)
    assert A.stats.products >= steps


# Symmetric positive definite matrices, small enough to be solved in a test. Bus and stiffness matrices are shifted:
# otherwise rounding errors determine the number of steps.
DEFINITE = {"1138_bus": 1e-2, "bcsstk16": 1e-2, "nh2010": 1e-3}


@pytest.mark.parametrize("name", DEFINITE)
def test_cg_takes_as_many_steps_as_scipy_on_an_application_matrix(real_device: Device, name: str) -> None:
    with (matrix_folder() / "MATRICES.tsv").open() as table:
        facts = {row["name"]: row for row in csv.DictReader(table, delimiter="\t")}[name]
    assert facts["symmetry"] == "symmetric"
    S = sp.csr_array(sp.load_npz(matrix_folder() / f"{name}.npz")).astype(float)
    S = sp.csr_array(graph.laplacian(abs(S)) if name == "nh2010" else S)
    S = sp.csr_array(S + sp.eye_array(S.shape[0]) * abs(S).max() * DEFINITE[name])
    M = sp.diags_array(1 / S.diagonal())
    A = GpuSparseMatrix(S, device=real_device)
    b = np.random.default_rng(4).standard_normal(S.shape[0])
    (x, steps), (expected, wanted) = (steps_of(matrix, b, rtol=1e-8, M=M) for matrix in (A, S))
    assert steps == wanted
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-8 * abs(expected).max())


# ------------------------------------------------------------------------------------------- CuPy


@dataclass(frozen=True)
class CupyCase:
    """A call of a function of cupyx.scipy.sparse.linalg on our matrix.

    Attributes
    ----------
    call : callable
        It takes the module, the matrix and the right-hand side.
    reference : callable
        It returns SciPy's result for SciPy's matrix and the right-hand side.
    products : bool
        Whether it multiplies with gsparse.
    reason : str
        How it multiplies with gsparse, or why not.
    matrix : str
        A name in `MATRICES`.
    """

    call: Callable[[Any, Any, Any], Any]
    reference: Callable[[Any, Any], Any]
    reason: str
    matrix: str = "definite"
    products: bool = True


VIA_MATVEC = "_make_system → aslinearoperator: shape, dtype, matvec, rmatvec; not cupyx CSR, so no cuSPARSE short cut"
VIA_COLUMNS = "aslinearoperator takes no matmat of a foreign object: blocks go column by column through matvec"

CUPY_CASES: dict[str, CupyCase] = {
    "cg": CupyCase(lambda m, A, b: m.cg(A, b, rtol=RTOL)[0], la.spsolve, VIA_MATVEC),
    "cgs": CupyCase(lambda m, A, b: m.cgs(A, b, rtol=RTOL)[0], la.spsolve, VIA_MATVEC),
    "bicgstab": CupyCase(lambda m, A, b: m.bicgstab(A, b, rtol=RTOL)[0], la.spsolve, VIA_MATVEC),
    "gmres": CupyCase(lambda m, A, b: m.gmres(A, b, rtol=RTOL)[0], la.spsolve, VIA_MATVEC),
    "minres": CupyCase(lambda m, A, b: m.minres(A, b, tol=RTOL)[0], la.spsolve, VIA_MATVEC),
    "lsmr": CupyCase(
        lambda m, A, b: m.lsmr(A, b, atol=RTOL, btol=RTOL)[0],
        lambda S, b: la.lsmr(S, b, atol=RTOL, btol=RTOL)[0],
        "aslinearoperator; result_type(A, …) reads the operator's dtype",
        "tall",
    ),
    "eigsh": CupyCase(
        lambda m, A, b: m.eigsh(A, 4, return_eigenvectors=False),
        lambda S, b: np.sort(la.eigsh(S, 4, return_eigenvectors=False)),
        "takes it as it is: shape, ndim, dtype.char, A @ v",
    ),
    "svds": CupyCase(
        lambda m, A, b: m.svds(A, 3, return_singular_vectors=False)[::-1],
        lambda S, b: np.sort(la.svds(S, 3, return_singular_vectors=False))[::-1],
        "aslinearoperator, its H (rmatvec) and products of operators",
        "tall",
    ),
    "lobpcg": CupyCase(
        lambda m, A, b: m.lobpcg(A, A.device.xp.stack([b, b**2, b**3], axis=1), tol=1e-10, maxiter=200)[0][::-1],
        lambda S, b: np.sort(la.eigsh(S, 3, return_eigenvectors=False)),
        VIA_COLUMNS,
    ),
    "lsqr": CupyCase(
        lambda m, A, b: m.lsqr(A, b)[0],
        la.spsolve,
        "no operator but cuSOLVER's sparse QR; what is no cupyx CSR goes through csr_matrix(A), from our host arrays",
        products=False,
    ),
}

# Functions of cupyx.scipy.sparse.linalg that refuse our matrix, and why.
CUPY_REFUSALS = {
    "spsolve": "isinstance of cupyx's sparse classes; a factorization",
    "splu": "isinstance of cupyx's sparse classes; a factorization on the host",
    "spilu": "isinstance of cupyx's sparse classes; a factorization on the host",
    "factorized": "splu",
    "spsolve_triangular": "isinstance of cupyx's sparse classes",
    "norm": "isinstance of cupyx's sparse classes; scipy.sparse.linalg.norm takes ours",
}


@pytest.fixture
def cupyx_linalg() -> Any:
    return pytest.importorskip("cupyx.scipy.sparse.linalg", exc_type=ImportError)


@pytest.fixture
def gpu() -> Device:
    try:
        return get_device("gpu")
    except Exception as error:
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("name", CUPY_CASES)
def test_cupys_solver_accepts_the_matrix(cupyx_linalg: Any, gpu: Device, name: str) -> None:
    case, rng = CUPY_CASES[name], np.random.default_rng(21)
    S = MATRICES[case.matrix](rng, "float64")
    b = rng.standard_normal(SIZE)
    A = GpuSparseMatrix(S, device=gpu)
    got = case.call(cupyx_linalg, A, gpu.xp.asarray(b))
    assert gpu.owns(got)
    expected = case.reference(S, b)
    np.testing.assert_allclose(host(got), expected, rtol=1e-6, atol=1e-8 * abs(expected).max())
    assert (A.stats.products > 0) == case.products
    assert_resident(A, S)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CUPY_REFUSALS)
def test_cupys_function_refuses_the_matrix_with_a_type_or_value_error(
    cupyx_linalg: Any, gpu: Device, name: str, rng: np.random.Generator
) -> None:
    A = GpuSparseMatrix(MATRICES["definite"](rng, "float64"), device=gpu)
    b = () if name in ("splu", "spilu", "factorized", "norm") else (gpu.xp.ones(SIZE),)
    with pytest.raises((TypeError, ValueError)):
        getattr(cupyx_linalg, name)(A, *b)


@pytest.mark.parametrize("matrix", ["definite", "tall"])
def test_cupys_aslinearoperator_accepts_the_matrix_even_without_a_gpu(
    cupyx_linalg: Any, matrix: str, rng: np.random.Generator
) -> None:
    # All that _make_system, lsmr, svds and lobpcg use of a matrix; eigsh reads these attributes of the matrix itself.
    A = GpuSparseMatrix(MATRICES[matrix](rng, "complex128"), device="cpu")
    operator = cupyx_linalg.aslinearoperator(A)
    assert operator.shape == A.shape
    assert operator.dtype == A.dtype
    assert operator.H.shape == A.shape[::-1]
    assert A.ndim == 2
    assert A.dtype.char in "fdFD"
