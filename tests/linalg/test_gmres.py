"""GMRES and flexible GMRES: SciPy's conventions, the basis, and the end of a cycle."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from gsparse import GpuSparseMatrix, get_num_threads, set_num_threads
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, DtypeError, ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu import basis as gpu_basis
from gsparse.linalg import jacobi, minres
from gsparse.linalg.krylov.gmres import PROGRAM, fgmres, gmres
from gsparse.linalg.krylov.solve_state import SolveState
from tests.support import host, on_device, random_values

# Number of unknowns: more than the two blocks of an emulated device process at the same time.
SIZE = 600


def convection(size: int, dtype: type | str = float) -> sp.csr_array:
    """Return a nonsymmetric matrix for which GMRES takes dozens of iterations."""
    made = sp.diags_array([-1.4, 2.5, -0.6, 0.3], offsets=[-1, 0, 1, 7], shape=(size, size)).tocsr().astype(dtype)
    return made * (1 + 0.2j) if made.dtype.kind == "c" else made


def right_side(size: int, dtype: type | str = float) -> np.ndarray:
    return random_values(np.random.default_rng(1), size, dtype)


def scipy_norms(*args: object, **kwargs: object) -> tuple[np.ndarray, int, list[float]]:
    norms: list[float] = []
    x, info = sla.gmres(*args, callback=norms.append, callback_type="pr_norm", **kwargs)
    return x, info, norms


@pytest.mark.parametrize("restart", [3, 20, 4000])
@pytest.mark.few(1)
def test_gmres_follows_scipy(device: Device, restart: int) -> None:
    size = SIZE if restart < 100 else 90
    S, b = convection(size), right_side(size)
    M = sp.diags_array(1 / (2 + np.random.default_rng(2).random(size))).tocsr()
    for preconditioner in (None, M):
        x, info, norms = scipy_norms(S, b, restart=restart, M=preconditioner, rtol=1e-8)
        got = gmres(
            GpuSparseMatrix(S, device=device), b, restart=restart, rtol=1e-8, full_output=True,
            M=None if preconditioner is None else GpuSparseMatrix(preconditioner, device=device),
        )  # fmt: skip
        assert (got.info, got.iterations) == (info, len(norms))
        np.testing.assert_allclose(got.residuals[1:] / np.linalg.norm(b), norms, rtol=1e-6)
        assert np.linalg.norm(S @ got.x - b) <= 1e-8 * np.linalg.norm(b)
        np.testing.assert_allclose(got.x, x, atol=1e-6)


@pytest.mark.whole
def test_gmres_basis_in_single_precision_reaches_the_same_residual(device: Device) -> None:
    S, b = convection(SIZE), right_side(SIZE)
    A = GpuSparseMatrix(S, device=device)
    full = gmres(A, b, rtol=1e-12, restart=15, full_output=True)
    half = gmres(A, b, rtol=1e-12, restart=15, basis_dtype=np.float32, full_output=True)
    assert full.info == half.info == 0
    assert np.linalg.norm(S @ half.x - b) <= 1e-12 * np.linalg.norm(b)
    assert half.iterations <= full.iterations + 15
    with pytest.raises(DtypeError, match="basis"):
        gmres(A, b, basis_dtype=np.int32)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.xslow)])
def test_the_basis_is_orthogonal_also_where_one_gram_schmidt_pass_fails(device: Device, dtype: str) -> None:
    # Singular values over twelve orders of magnitude: classical Gram–Schmidt without a second pass loses orthogonality
    # within ten vectors.
    rng, size, steps = np.random.default_rng(3), 300, 40
    U = np.linalg.qr(rng.standard_normal((size, size)))[0]
    V = np.linalg.qr(rng.standard_normal((size, size)))[0]
    A = ((U * np.logspace(0, -12, size)) @ V).astype(dtype)
    state = SolveState(device, PROGRAM, np.dtype(dtype), 1, 64)
    w, u = on_device(device, rng.standard_normal(size).astype(dtype)), device.xp.zeros(size, dtype)
    state.set(norm=np.linalg.norm(host(w).astype(float)), limit=np.inf)
    basis = kernels_of(device).basis.Arnoldi(device, state, w, u, steps, np.dtype(dtype))
    for j in range(steps):
        u[...] = on_device(device, A @ host(w))
        basis.project(j)()
        basis.orthogonalize(j)()
    assert state.read()["cycle_end"] == 0
    Q = host(basis.vectors)[:, 0].astype(float)
    assert np.max(abs(Q @ Q.T - np.eye(steps))) <= 30 * np.finfo(dtype).eps
    # A times the first vectors lies in the span of all vectors: the relation behind the small problem.
    images = A.astype(float) @ Q[:-1].T
    assert np.max(abs(images - Q.T @ (Q @ images))) <= 100 * np.finfo(dtype).eps


class Ranks:
    """A single rank, which counts how often it would communicate with others."""

    def __init__(self) -> None:
        self.calls = 0

    def allreduce(self, sums: object) -> None:
        self.calls += 1

    def wait(self, is_done: object) -> None:
        pass

    def agreed(self, values: np.ndarray) -> np.ndarray:
        return values

    def observe(self, iteration: object) -> None:
        pass


def run_arnoldi(device: Device, ranks: Ranks | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Run iterations of Arnoldi's process with a diagonal matrix; return the basis and the scalars."""
    rng, size, steps = np.random.default_rng(4), 700, 20
    state = SolveState(device, PROGRAM, np.dtype(float), 2, 64, ranks)
    w, u = on_device(device, rng.standard_normal(2 * size)), device.xp.zeros(2 * size)
    diagonal = on_device(device, rng.standard_normal(2 * size))
    state.set(norm=np.linalg.norm(host(w).reshape(2, -1), axis=1), limit=np.inf)
    basis = kernels_of(device).basis.Arnoldi(device, state, w, u, steps, np.dtype(float))
    for j in range(steps):
        u[...] = diagonal * w
        basis.project(j)()
        basis.orthogonalize(j)()
    return host(basis.vectors), state.read().cells


def test_results_are_the_same_if_sums_are_added_over_ranks(device: Device) -> None:
    vectors, cells = run_arnoldi(device)
    ranks = Ranks()
    shared, others = run_arnoldi(device, ranks)
    np.testing.assert_array_equal(shared, vectors)
    np.testing.assert_array_equal(others, cells)
    assert ranks.calls == (1 if device.kind == "gpu" else 2) * len(vectors)


@pytest.mark.parametrize("teams", [1, 2, 8])
def test_a_basis_of_more_vectors_than_a_block_holds_is_right(
    gpu_device: Device, teams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, cells = run_arnoldi(gpu_device)
    monkeypatch.setattr(gpu_basis, "_TEAMS", teams)
    monkeypatch.setattr(gpu_basis, "_BLOCKS", 5)
    others, other_cells = run_arnoldi(gpu_device)
    np.testing.assert_allclose(others, vectors, atol=1e-13)
    np.testing.assert_allclose(other_cells, cells, rtol=1e-12)


def test_gmres_is_the_same_for_any_number_of_threads() -> None:
    S, b = convection(3000), right_side(3000)
    before, found = get_num_threads(), []
    try:
        for threads in (1, 3):
            set_num_threads(threads)
            found.append(gmres(GpuSparseMatrix(S, device="cpu"), b, maxiter=2)[0])
    finally:
        set_num_threads(before)
    np.testing.assert_array_equal(*found)


# ------------------------------------------------------------------ flexible


class Varying:
    """A preconditioner that differs in each call."""

    def __init__(self, S: sp.csr_array) -> None:
        self.shape, self.dtype, self.calls = S.shape, S.dtype, 0
        self.inverse = sla.splu(S.tocsc())

    def matvec(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return self.inverse.solve(x.reshape(-1)) * (1 + self.calls % 3) + 0.3 * np.roll(x.reshape(-1), self.calls)


def test_flexible_gmres_accepts_a_preconditioner_that_changes(device: Device) -> None:
    S, b = convection(120), right_side(120)
    A, M = GpuSparseMatrix(S, device=device), Varying(S)
    got = fgmres(A, b, M=M, rtol=1e-10, restart=12, full_output=True)
    assert got.info == 0
    assert np.linalg.norm(S @ got.x - b) <= 1e-10 * np.linalg.norm(b)
    assert M.calls == got.iterations, "a preconditioner on the host is not called in vain"
    # Within a cycle, the recorded residual is the true one, also with a preconditioner that changes.
    first = fgmres(A, b, M=Varying(S), restart=5, maxiter=1, full_output=True, rtol=1e-14)
    np.testing.assert_allclose(first.residuals[-1], np.linalg.norm(S @ first.x - b), rtol=1e-8)


def test_flexible_gmres_solves_with_a_matrix_as_preconditioner(device: Device) -> None:
    S, b = convection(200), right_side(200)
    A = GpuSparseMatrix(S, device=device)
    M = GpuSparseMatrix(sp.diags_array(1 / (2 + np.random.default_rng(2).random(200))).tocsr(), device=device)
    for options in ({}, {"basis_dtype": np.float32}):
        got = gmres(A, b, M=M, flexible=True, rtol=1e-11, full_output=True, **options)
        assert got.info == 0
        assert np.linalg.norm(S @ got.x - b) <= 1e-11 * np.linalg.norm(b)
        # The recorded residual is that of A·x = b. GMRES that is not flexible records the one of M·A·x = M·b.
        first = gmres(A, b, M=M, flexible=True, restart=5, maxiter=1, full_output=True, **options)
        np.testing.assert_allclose(first.residuals[-1], np.linalg.norm(S @ first.x - b), rtol=1e-5)


# --------------------------------------------------------------- conventions


@pytest.mark.parametrize("kind", ["pr_norm", "legacy", "x"])
@pytest.mark.parametrize("maxiter", [2, 17, 400])
def test_callback_and_maxiter_mean_what_they_do_in_scipy(kind: str, maxiter: int) -> None:
    S, b = convection(150), right_side(150)
    expected: list[object] = []
    x, info = sla.gmres(S, b, restart=6, maxiter=maxiter, callback=expected.append, callback_type=kind)
    came: list[object] = []
    A, options = GpuSparseMatrix(S, device="cpu"), {"restart": 6, "maxiter": maxiter, "callback_type": kind}
    result = gmres(A, b, callback=came.append, full_output=True, **options)
    got = result.x
    assert result.info == info
    assert len(came) == len(expected)
    if kind == "x":
        np.testing.assert_array_equal(came[-1], got)
    else:
        assert all(isinstance(norm, float) for norm in came)
        np.testing.assert_allclose(came, expected, rtol=1e-9)
    np.testing.assert_allclose(got, x, atol=1e-9)


def test_callback_without_its_type_warns_as_in_scipy() -> None:
    S, b = convection(30), right_side(30)
    with pytest.warns(DeprecationWarning, match="callback_type"):
        _, info = gmres(GpuSparseMatrix(S, device="cpu"), b, callback=lambda _: None, maxiter=3)
    assert info == 3
    with pytest.raises(ValueError, match="callback_type"):
        gmres(S, b, callback=print, callback_type="y")
    with pytest.raises(ValueError, match="restart"):
        gmres(S, b, restart=0)
    with pytest.raises(ShapeError, match="square"):
        gmres(sp.csr_array((3, 4)), np.ones(3))


def test_one_column_gives_a_vector_as_in_scipy(device: Device) -> None:
    S = convection(70)
    x, info = gmres(GpuSparseMatrix(S, device=device), (S @ np.ones(70))[:, None], x0="Mb", rtol=1e-10)
    assert (x.shape, info) == ((70,), 0)
    np.testing.assert_allclose(x, 1, atol=1e-8)


def test_a_lucky_breakdown_ends_with_the_solution(device: Device) -> None:
    # Three distinct eigenvalues: the space ends after three vectors.
    S, b = sp.diags_array(np.repeat([1.0, 2.0, 5.0], 40)).tocsr(), right_side(120)
    got = gmres(GpuSparseMatrix(S, device=device), b, rtol=1e-13, full_output=True)
    assert (got.info, got.iterations) == (0, 3)
    np.testing.assert_allclose(S @ got.x, b, atol=1e-12)


def test_a_singular_matrix_is_not_reported_as_a_success(device: Device) -> None:
    S = sp.csr_array(np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    b = np.array([1.0, 0, 1])
    got = gmres(GpuSparseMatrix(S, device=device), b, rtol=1e-8, full_output=True)
    assert got.info == 30  # After a breakdown `info` is maxiter, 10·N by default, as in SciPy.
    assert "singular" in got.advice
    np.testing.assert_allclose(S @ (S @ got.x), S @ b, atol=1e-14)


def test_a_singular_preconditioner_is_not_reported_as_a_success(device: Device) -> None:
    S, M = sp.diags_array([2.0, 3, 4]).tocsr(), sp.diags_array([1.0, 1, 0]).tocsr()
    b, x0 = np.array([0.0, 1, 1]), np.array([1.0, 0, 0])
    with pytest.warns(ConvergenceWarning):
        x, info = gmres(GpuSparseMatrix(S, device=device), b, x0, M=GpuSparseMatrix(M, device=device), rtol=1e-15)
    assert info > 0
    np.testing.assert_allclose(M @ (S @ x), M @ b, atol=1e-14)


def test_flexible_gmres_refuses_an_unknown_option_in_its_own_name() -> None:
    S, b = convection(20), right_side(20)
    with pytest.raises(TypeError, match=r"fgmres\(\) got an unexpected keyword argument 'inner_dtype'"):
        fgmres(S, b, inner_dtype=np.float32)


def test_host_operators_are_not_called_more_often_than_by_scipy() -> None:
    S, b = convection(100), right_side(100)
    counts = []
    for solve in (sla.gmres, gmres):
        calls: list[int] = []
        A = sla.LinearOperator(S.shape, matvec=lambda x, calls=calls: calls.append(1) or S @ x, dtype=S.dtype)
        assert solve(A, b, restart=30, rtol=1e-7)[1] == 0
        counts.append(len(calls))
    assert counts[1] <= counts[0] + 1  # SciPy omits the product with an initial guess of 0


def test_printed_residuals_say_which_norm_they_are_in(real_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    S, b = convection(60), right_side(60)
    A = GpuSparseMatrix(S, device=real_device)
    M = jacobi(A)
    watched = "preconditioned residual norm(M r)"
    found = gmres(A, b, M=M, full_output=True, progress=True)
    np.testing.assert_allclose(found.residuals[0], np.linalg.norm(b / 2.5))
    assert found.norm == watched
    assert f"; {watched} " in str(found) and f"; {watched} " in found.log()
    assert f"{watched} " in capsys.readouterr().err
    for other in (gmres(A, b, full_output=True), fgmres(A, b, M=M, full_output=True)):
        np.testing.assert_allclose(other.residuals[0], np.linalg.norm(b))
        assert other.norm == "residual"
        assert "; residual " in str(other)
    T = sp.csr_array(S + S.T)
    found = minres(GpuSparseMatrix(T, device=real_device), b, M=jacobi(T), full_output=True)
    np.testing.assert_allclose(found.residuals[0], np.sqrt(b @ (b / 5)))
    assert "; preconditioned residual sqrt(<r, M r>) " in str(found)
    assert minres(T, b, full_output=True).norm == "residual"
