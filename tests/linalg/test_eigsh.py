"""Eigenvalues of Hermitian matrices: equal to LAPACK's for every option, all copies of multiple ones, and SciPy's
rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from gsparse import GpuSparseMatrix, strict
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import ShapeError
from gsparse.linalg import EigenResult, eigs, eigsh, svds
from gsparse.linalg.eigen import inner_solve
from gsparse.linalg.eigen.krylov_space import KrylovSpace, Space
from gsparse.linalg.eigen.problem import GENERAL, HERMITIAN, general_keys, hermitian_order
from gsparse.linalg.eigen.transforms import Transform
from gsparse.linalg.operators import as_operator
from tests.linalg.problems import laplacian
from tests.support import DTYPES, host, on_device, random_values

SIZE = 150
MASS = sp.csr_array(
    sp.diags_array([0.2, 1.0, 0.2], offsets=[-1, 0, 1], shape=(SIZE, SIZE)) + sp.diags_array(np.linspace(0, 1, SIZE))
)


def hermitian(dtype: Any = float, *, shift: float = 0.0, seed: int = 0) -> sp.csr_array:
    """Return a random sparse Hermitian matrix; it is positive definite with a shift of 20."""
    rng = np.random.default_rng(seed)
    S = sp.random_array((SIZE, SIZE), density=8 / SIZE, rng=rng, format="csr")
    S = sp.csr_array((random_values(rng, S.nnz, dtype), S.indices, S.indptr), shape=S.shape)
    return sp.csr_array(S + S.conj().T + shift * sp.eye_array(SIZE), dtype=dtype)


def transformed(values: np.ndarray, sigma: float | None, mode: str) -> np.ndarray:
    if sigma is None:
        return values
    numerator = {"normal": 1, "buckling": values, "cayley": values + sigma}[mode]
    return numerator / (values - sigma)


def exact(S: Any, k: int, which: str, M: Any = None, sigma: float | None = None, mode: str = "normal") -> np.ndarray:
    """Return the wanted eigenvalues, ascending, from LAPACK in double precision."""
    A = S.toarray().astype(complex if S.dtype.kind == "c" else float)
    B = None if M is None else M.toarray()
    if mode == "buckling":
        values = 1 / scipy.linalg.eigvalsh(np.eye(len(A)) if B is None else B, A)
    else:
        values = scipy.linalg.eigvalsh(A, B)
    return np.sort(values[hermitian_order(transformed(values, sigma, mode), which)[:k]])


def assert_pairs(S: Any, w: np.ndarray, v: np.ndarray, M: Any = None, *, inner: Any = None, tol: float = 0.0) -> None:
    """Check residuals row by row, and that the vectors are orthonormal."""
    wide = complex if S.dtype.kind == "c" else float
    S, v, eps = S.astype(wide), v.astype(wide), np.finfo(v.dtype).eps
    right = v if M is None else M @ v
    bound = abs(S) @ abs(v) + abs(right) * abs(w)
    scale = abs(S).sum(axis=1).max()
    allowed = (100 * eps + 2 * tol) * (bound + scale * np.linalg.norm(v, axis=0))
    assert (abs(S @ v - right * w) <= allowed).all()
    gram = v.conj().T @ (v if inner is None and M is None else (M if inner is None else inner) @ v)
    np.testing.assert_allclose(gram, np.eye(len(w)), atol=200 * eps)


@pytest.mark.parametrize("which", [w for w in HERMITIAN if w != "SM"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_eigsh_finds_the_wanted_eigenvalues(real_device: Device, which: str, dtype: Any) -> None:
    S = hermitian(dtype)
    w, v = eigsh(GpuSparseMatrix(S, device=real_device), 5, which=which)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(np.sort(w), exact(S, 5, which), rtol=30 * eps, atol=30 * eps)
    assert (w.dtype, v.dtype) == (np.empty(0, dtype).real.dtype, dtype)
    assert_pairs(S, w, v)
    if np.dtype(dtype).kind != "c":
        assert (np.diff(w) >= 0).all()
    else:  # the most wanted first, as SciPy
        assert list(hermitian_order(w, which)) == list(range(5))


@pytest.mark.few(1)
def test_eigsh_runs_on_every_device(device: Device) -> None:
    S = laplacian(11)
    w, v = eigsh(GpuSparseMatrix(S, device=device), 4, which="LA", tol=1e-10)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(S.toarray())[-4:], rtol=1e-12)
    assert_pairs(S, w, v, tol=1e-10)
    assert type(v) is np.ndarray


def side_values(side: int, dimensions: int) -> np.ndarray:
    """Return all eigenvalues of the Laplacian of a square or a cube, ascending."""
    line = 2 - 2 * np.cos(np.pi * np.arange(1, side + 1) / (side + 1))
    values = line
    for _ in range(dimensions - 1):
        values = np.add.outer(values, line).ravel()
    return np.sort(values)


def cube(side: int) -> sp.csr_array:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    return sp.csr_array(sp.kronsum(sp.kronsum(line, line), line))


@pytest.mark.parametrize("tol", [1e-4, 1e-8, 0])
@pytest.mark.parametrize("which", ["LA", "SA", "SM", "BE", "LM"])
@pytest.mark.few(6)
def test_all_copies_of_multiple_eigenvalues_are_found(real_device: Device, which: str, tol: float) -> None:
    # Eigenvalues of a square are double, those of a cube are triple or sixfold.
    for S, values in ((laplacian(13), side_values(13, 2)), (cube(8), side_values(8, 3))):
        wanted = np.sort(values[hermitian_order(values, which)[:9]])
        found = eigsh(GpuSparseMatrix(S, device=real_device), 9, which=which, tol=tol, full_output=True)
        np.testing.assert_allclose(found.eigenvalues, wanted, rtol=max(10 * tol, 1e-12), atol=1e-12)
        assert found.runs > 1
        assert_pairs(S, *found, tol=tol)


REPEATED = {
    "identity": sp.eye_array(100, format="csr"),
    "zero": sp.csr_array((100, 100)),
    "complex": sp.csr_array(sp.kron(sp.eye_array(40), np.array([[2, 1j], [-1j, 2]]))),
    "complete graph": sp.csr_array(np.ones((60, 60)) - np.eye(60)),
    "star": sp.csr_array(np.pad(np.ones((50, 1)), ((1, 0), (0, 50))) + np.pad(np.ones((1, 50)), ((0, 50), (1, 0)))),
    "three values": sp.csr_array(sp.diags_array(np.repeat([3.0, 2.0, 1.0], [1, 2, 97]))),
    "rank one": sp.csr_array(np.outer(np.arange(50.0), np.arange(50.0))),
}


@pytest.mark.parametrize("which", HERMITIAN)
@pytest.mark.parametrize("name", REPEATED)
def test_the_search_for_copies_ends_whatever_the_spectrum(name: str, which: str) -> None:
    S = REPEATED[name]
    A, values = GpuSparseMatrix(S, device="cpu"), np.linalg.eigvalsh(S.toarray())
    for k in (1, 2, 5):
        wanted = np.sort(values[hermitian_order(values, which)[:k]])
        found = eigsh(A, k, which=which, full_output=True)
        np.testing.assert_allclose(
            np.sort(abs(found.eigenvalues)), np.sort(abs(wanted)), atol=1e-10 * abs(values).max()
        )
        assert found.restarts <= 20
        assert_pairs(S, *found)
        try:
            assert eigsh(A, k, which=which, maxiter=5, full_output=True).restarts <= 20
        except sla.ArpackNoConvergence as failure:
            assert len(failure.eigenvalues) <= k


def claims_of_eigsh(S: sp.csr_array, A: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Return what `eigsh` says, and what is right, as numbers that are the same for equally wanted eigenvalues."""
    values = np.linalg.eigvalsh(S.toarray())
    for sigma in (None, 0.4 * (abs(values).max() or 1)):
        for which in HERMITIAN:
            exact_values = transformed(values, sigma, "normal")
            with suppress(sla.ArpackNoConvergence):
                found = eigsh(A, sigma=sigma, which=which, return_eigenvectors=False, **options)
                yield abs(transformed(found, sigma, "normal")), abs(exact_values[hermitian_order(exact_values, which)])


def claims_of_eigs(S: sp.csr_array, A: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
    values, is_real = np.linalg.eigvals(S.toarray()), S.dtype.kind != "c"
    for which in GENERAL:
        keys = [general_keys(values, which, is_real)]
        with suppress(sla.ArpackNoConvergence):
            keys.append(general_keys(eigs(A, which=which, return_eigenvectors=False, **options), which, is_real))
            yield keys[1], np.sort(keys[0])


def claims_of_svds(S: sp.csr_array, A: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
    values = np.linalg.svd(S.toarray(), compute_uv=False)
    for which, wanted in (("LM", values), ("SM", values[::-1])):
        with suppress(sla.ArpackNoConvergence):
            yield svds(A, which=which, return_singular_vectors=False, **options), wanted


GENERAL_BLOCK = np.array([[2.0, 1, 0], [0, 1, 3], [-1, 0, 4]])


@pytest.mark.parametrize("name", [*REPEATED, "grid", "general"])
@pytest.mark.parametrize("claims", [claims_of_eigsh, claims_of_eigs, claims_of_svds])
def test_a_few_cycles_find_all_copies_or_make_no_claim(claims: Any, name: str) -> None:
    others = {"grid": laplacian(9), "general": sp.csr_array(sp.kron(sp.eye_array(24), GENERAL_BLOCK))}
    S = {**REPEATED, **others}[name]
    if claims is claims_of_eigsh and name == "general":
        S = sp.csr_array(S + S.T)
    A, num_claims = GpuSparseMatrix(S, device="cpu"), 0
    for maxiter, k, ncv in product((1, 2, 3, 5), (2, 6), (None, 9)):
        for found, wanted in claims(S, A, k=k, ncv=ncv, maxiter=maxiter):
            np.testing.assert_allclose(np.sort(found), np.sort(wanted[:k]), atol=1e-6 * max(abs(wanted).max(), 1e-3))
            num_claims += 1
    assert num_claims


def test_without_the_search_for_multiplicities_each_eigenvalue_is_found_once(real_device: Device) -> None:
    A = GpuSparseMatrix(cube(8), device=real_device)
    found = eigsh(A, 4, which="LA", tol=1e-6, multiplicities=False, full_output=True)
    distinct = np.unique(side_values(8, 3).round(10))
    assert abs(distinct[:, None] - found.eigenvalues).min(axis=0).max() < 1e-8
    assert found.eigenvalues[0] < side_values(8, 3)[-4] - 0.1  # copies are missing
    assert found.runs == 1


def test_clusters_are_told_apart(real_device: Device) -> None:
    values = np.concatenate([np.linspace(0, 5, 300), 9 + 1e-9 * np.arange(6), 10 + 1e-3 * np.arange(3)])
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((values.size, values.size)))[0]
    S = sp.csr_array((Q * values) @ Q.T)
    w, v = eigsh(GpuSparseMatrix(S, device=real_device), 9, which="LA")
    np.testing.assert_allclose(w, np.sort(values)[-9:], rtol=1e-14)
    assert_pairs(S, w, v)


@pytest.mark.whole
def test_k_may_be_almost_n(real_device: Device) -> None:
    S = hermitian()
    for k in (SIZE - 1, SIZE - 2, SIZE // 2):
        w, v = eigsh(GpuSparseMatrix(S, device=real_device), k, which="SA")
        np.testing.assert_allclose(w, np.linalg.eigvalsh(S.toarray())[:k], atol=1e-12)
        assert_pairs(S, w, v)
    w = eigsh(GpuSparseMatrix(S, device=real_device), 3, which="LM", ncv=4, return_eigenvectors=False)
    np.testing.assert_allclose(w, exact(S, 3, "LM"), rtol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 7, 30])
def test_tiny_problems_are_solved_as_dense_ones(real_device: Device, n: int) -> None:
    S = sp.csr_array(laplacian(6)[:n, :n])
    A = GpuSparseMatrix(S, device=real_device)
    found = eigsh(A, 1, which="SA", full_output=True)
    np.testing.assert_allclose(found.eigenvalues, np.linalg.eigvalsh(S.toarray())[:1], atol=1e-14)
    assert found.restarts == 0
    with pytest.warns(RuntimeWarning, match="k >= N"), pytest.raises(TypeError, match="toarray"):
        eigsh(A, n)
    with pytest.warns(RuntimeWarning, match="k >= N"):
        np.testing.assert_allclose(eigsh(S.toarray(), n)[0], np.linalg.eigvalsh(S.toarray()), atol=1e-14)


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize("mode", ["normal", "buckling", "cayley"])
def test_tiny_problems_with_a_shift_or_its_inverse_are_solved(
    real_device: Device, mode: str, has_mass: bool, rng: np.random.Generator
) -> None:
    n, sigma = 12, 0.7
    S, noise = sp.csr_array(laplacian(4)[:n, :n]), rng.standard_normal((n, n))
    M = sp.csr_array(noise @ noise.T + n * np.eye(n)) if has_mass else None
    shifted = (S - sigma * (sp.eye_array(n) if M is None else M)).toarray()
    expected = np.sort(sla.eigsh(S, 3, M=M, sigma=sigma, mode=mode, return_eigenvectors=False, v0=np.ones(n)))
    inverse = np.linalg.inv(shifted)
    A = GpuSparseMatrix(S, device=real_device)
    for options in ({}, {"OPinv": inverse}):
        found = eigsh(A, 3, M=M, sigma=sigma, mode=mode, full_output=True, **options)
        np.testing.assert_allclose(np.sort(found.eigenvalues), expected, rtol=1e-10)
        assert options or found.restarts == 0
        inner = S if mode == "buckling" else M
        assert_pairs(S, found.eigenvalues, found.eigenvectors, M, inner=inner)


# ---------------------------------------------------------------- generalized problems and transforms


@pytest.mark.parametrize("which", ["LM", "SA", "BE"])
@pytest.mark.parametrize("M", [MASS, sp.csr_array(sp.diags_array(np.linspace(1, 2, SIZE)))], ids=["mass", "diagonal"])
def test_generalized_eigenpairs_are_those_of_lapack(real_device: Device, which: str, M: Any) -> None:
    S = hermitian()
    A, B = GpuSparseMatrix(S, device=real_device), GpuSparseMatrix(M, device=real_device)
    w, v = eigsh(A, 4, M=B, which=which)
    np.testing.assert_allclose(w, exact(S, 4, which, M), rtol=1e-11)
    assert_pairs(S, w, v, M)
    factors = sla.splu(sp.csc_array(M))
    inverse = sla.LinearOperator(M.shape, factors.solve, dtype=float)
    np.testing.assert_allclose(eigsh(A, 4, M=B, which=which, Minv=inverse)[0], w, rtol=1e-10)


@pytest.mark.parametrize("sigma", [0.5, 13.0])
@pytest.mark.parametrize("mode", ["normal", "buckling", "cayley"])
@pytest.mark.parametrize("has_mass", [False, True])
def test_every_mode_of_a_shift_finds_the_eigenvalues_of_lapack(
    real_device: Device, sigma: float, mode: str, has_mass: bool
) -> None:
    S = hermitian(shift=20.0)
    M = None if not has_mass else hermitian(seed=1) if mode == "buckling" else MASS
    A, B = GpuSparseMatrix(S, device=real_device), None if M is None else GpuSparseMatrix(M, device=real_device)
    found = eigsh(A, 4, M=B, sigma=sigma, mode=mode, full_output=True)
    np.testing.assert_allclose(found.eigenvalues, exact(S, 4, "LM", M, sigma, mode), rtol=1e-10)
    assert_pairs(S, *found, M, inner=S if mode == "buckling" else None)
    assert found.inner.solves >= found.products
    with pytest.raises(ValueError, match="unrecognized mode"):
        eigsh(A, 4, sigma=sigma, mode="other")


@pytest.mark.parametrize("which", ["LM", "LA", "SA", "BE"])
@pytest.mark.few(2)
def test_which_refers_to_transformed_eigenvalues(real_device: Device, which: str) -> None:
    S = hermitian(complex) if which == "LM" else hermitian()
    w = eigsh(GpuSparseMatrix(S, device=real_device), 4, sigma=0.3, which=which, return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(w), exact(S, 4, which, None, 0.3), rtol=1e-9)


@pytest.mark.parametrize(("sigma", "method"), [(-1.0, "cg with amg"), (19.6, "factors"), (19.6, "minres")])
@pytest.mark.parametrize("tol", [0, 1e-6])
def test_inner_solves_fit_the_matrix(sigma: float, method: str, tol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_solve, "_FEW_ROWS", 0)
    monkeypatch.setattr(inner_solve, "_MAX_FACTORED_ROWS", 1000 if method == "factors" else 0)
    S = hermitian(shift=20.0)
    found = eigsh(GpuSparseMatrix(S, device="cpu"), 4, sigma=sigma, tol=tol, full_output=True)
    np.testing.assert_allclose(found.eigenvalues, exact(S, 4, "LM", None, sigma), rtol=max(10 * tol, 1e-9))
    assert found.inner.method == method
    assert method in str(found)
    if method == "factors":
        assert found.inner.rtol == found.inner.iterations == 0
    else:
        assert found.inner.rtol == pytest.approx(max(tol / 10, 50 * 2.2e-16), rel=0.01)
        assert found.inner.iterations >= found.inner.solves
    assert found.residuals.max() <= max(20 * tol, 1e-10)


def test_an_inner_solve_that_fails_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_solve, "_FEW_ROWS", 0)
    monkeypatch.setattr(inner_solve, "_MAX_FACTORED_ROWS", 0)
    monkeypatch.setattr(inner_solve, "_MAX_ITERATIONS", 1)
    monkeypatch.setattr(inner_solve, "minres", lambda K, b, **options: sla.minres(K, b, maxiter=1) and _Failed(b))
    with pytest.raises(ValueError, match=r"tried cg with amg, minres.*OPinv"):
        eigsh(GpuSparseMatrix(hermitian(shift=20.0), device="cpu"), 4, sigma=17.0)


class _Failed:
    """The result of a solve that has found nothing."""

    def __init__(self, b: np.ndarray) -> None:
        self.x, self.iterations = 0 * b, 1


def test_a_singular_shifted_matrix_is_an_error() -> None:
    S = sp.csr_array(sp.diags_array(np.arange(100.0)) + 1e-300 * sp.eye_array(100, k=1))
    with pytest.raises(RuntimeError, match="choose another sigma"):
        eigsh(GpuSparseMatrix(S, device="cpu"), 3, sigma=7.0)


def graph_laplacian(n: int) -> sp.csr_array:
    """Return the Laplacian of an n x n grid. 0 is an eigenvalue, and nearly all others are double."""
    degrees = np.r_[1.0, np.full(n - 2, 2.0), 1.0]
    line = sp.diags_array([-np.ones(n - 1), degrees, -np.ones(n - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kronsum(line, line))


@pytest.mark.parametrize("sigma", [0.0, -1e-15, 1e-14, -1e-12, -1e-9])
@pytest.mark.parametrize("kind", ["Laplacian", "other signs", "scaled", "three components", "with a mass"])
def test_a_shift_at_an_eigenvalue_gives_all_pairs_next_to_it(real_device: Device, kind: str, sigma: float) -> None:
    S, M = graph_laplacian(12), None
    rng = np.random.default_rng(3)
    if kind in ("other signs", "scaled"):
        values = rng.choice([-1.0, 1.0], 144) if kind == "other signs" else rng.random(144) + 0.5
        S = sp.csr_array(sp.diags_array(values) @ S @ sp.diags_array(values))
    elif kind == "three components":
        S = sp.csr_array(sp.block_diag([S, graph_laplacian(9), graph_laplacian(10)]))
    elif kind == "with a mass":
        M = sp.csr_array(sp.diags_array(rng.random(144) + 1))
    found = eigsh(GpuSparseMatrix(S, device=real_device), 6, M, sigma, full_output=True)
    np.testing.assert_allclose(found.eigenvalues, exact(S, 6, "LM", M, sigma), atol=1e-13)
    assert np.max(found.residuals) < 1e-9
    assert_pairs(S, *found, M, tol=1e-9)


def test_a_shift_may_be_a_double_eigenvalue_inside_the_spectrum() -> None:
    S = graph_laplacian(12)
    values = np.linalg.eigvalsh(S.toarray())
    sigma = float(values[5])
    w = eigsh(GpuSparseMatrix(S, device="cpu"), 5, sigma=sigma, return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(abs(w - sigma)), np.sort(abs(values - sigma))[:5], atol=1e-12)


def test_the_first_eigenvalues_of_a_large_laplacian_take_solves_with_multigrid() -> None:
    S = graph_laplacian(110)
    found = eigsh(GpuSparseMatrix(S, device="cpu"), 3, sigma=0, full_output=True)
    second = 2 - 2 * np.cos(np.pi / 110)
    np.testing.assert_allclose(found.eigenvalues, [0, second, second], atol=1e-11)
    assert found.inner.method == "cg with amg"


def test_the_callers_inverse_is_used(real_device: Device) -> None:
    S = hermitian(shift=20.0)
    factors = sla.splu(sp.csc_array(S - 3 * sp.eye_array(SIZE)))
    inverse = sla.LinearOperator(S.shape, factors.solve, dtype=float)
    found = eigsh(GpuSparseMatrix(S, device=real_device), 4, sigma=3, OPinv=inverse, full_output=True)
    np.testing.assert_allclose(found.eigenvalues, exact(S, 4, "LM", None, 3), rtol=1e-12)
    assert found.inner.method == "given"
    assert np.isnan(found.residuals).all()  # A is not multiplied with, because it may be a placeholder


def test_a_semidefinite_mass_matrix_gives_the_finite_eigenvalues_next_to_the_shift(real_device: Device) -> None:
    S, M = hermitian(shift=20.0), sp.csr_array(sp.diags_array(np.r_[np.zeros(30), np.ones(SIZE - 30)]))
    w, v = eigsh(GpuSparseMatrix(S, device=real_device), 4, M=GpuSparseMatrix(M, device=real_device), sigma=1.0)
    values = scipy.linalg.eigvals(S.toarray(), M.toarray())
    values = values[np.isfinite(values)].real
    np.testing.assert_allclose(w, np.sort(values[np.argsort(abs(values - 1))[:4]]), rtol=1e-9)
    assert np.linalg.norm(S @ v - M @ v * w, axis=0).max() < 1e-8


@pytest.mark.parametrize(("solve", "n"), [(eigsh, 30), (eigsh, 200), (eigs, 30)])
def test_fewer_than_k_finite_eigenvalues_are_an_error_that_has_them(real_device: Device, solve: Any, n: int) -> None:
    A = GpuSparseMatrix(sp.csr_array(sp.diags_array(np.arange(1.0, n + 1))), device=real_device)
    M = sp.csr_array(sp.diags_array(np.r_[1.0, 1.0, np.zeros(n - 2)]))
    np.testing.assert_allclose(solve(A, 2, M, 0.5)[0], [1, 2], rtol=1e-12)
    with pytest.raises(sla.ArpackNoConvergence, match="2/4 eigenvectors") as caught:  # SciPy raises an ArpackError
        solve(A, 4, M, 0.5)
    np.testing.assert_allclose(caught.value.eigenvalues, [1, 2], rtol=1e-12)


# ---------------------------------------------------------------- SciPy's rules


def test_no_convergence_raises_scipys_error_with_the_pairs_that_converged(real_device: Device) -> None:
    values = np.concatenate([np.linspace(0, 1, 300), [1.001, 5.0, 9.0]])
    S = sp.csr_array(sp.diags_array(values))
    with pytest.raises(sla.ArpackNoConvergence, match="No convergence") as caught:
        eigsh(GpuSparseMatrix(S, device=real_device), 4, which="LA", maxiter=2)
    w, v = caught.value.eigenvalues, caught.value.eigenvectors
    np.testing.assert_allclose(w, [5.0, 9.0], rtol=1e-12)
    assert_pairs(S, w, v)


def test_the_kind_of_v0_decides_the_kind_of_the_result(real_device: Device) -> None:
    S, v0 = hermitian(), np.random.default_rng(3).standard_normal(SIZE)
    A = GpuSparseMatrix(S, device=real_device)
    w, v = eigsh(A, 3, v0=on_device(real_device, v0))
    assert real_device.owns(w)
    assert real_device.owns(v)
    np.testing.assert_allclose(host(w), exact(S, 3, "LM"), rtol=1e-12)
    with pytest.raises(ShapeError, match="v0"):
        eigsh(A, 3, v0=v0[1:])
    with pytest.raises(ValueError, match="not zero"):
        eigsh(A, 3, v0=0 * v0)


def test_results_are_the_same_to_the_bit(device: Device) -> None:
    A = GpuSparseMatrix(laplacian(10), device=device)
    first, second = (eigsh(A, 3, which="LA", tol=1e-6) for _ in range(2))
    other = eigsh(A, 3, which="LA", tol=1e-6, rng=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[1], other[1])
    np.testing.assert_allclose(first[0], other[0], rtol=1e-9)


@pytest.mark.parametrize(
    "make", [lambda S: S.toarray(), sla.aslinearoperator, sp.coo_array], ids=["dense", "operator", "COO"]
)
def test_eigsh_accepts_everything_that_multiplies(make: Any) -> None:
    S = hermitian()
    np.testing.assert_allclose(eigsh(make(S), 4)[0], exact(S, 4, "LM"), rtol=1e-12)
    np.testing.assert_allclose(eigsh(make(S), 4, sigma=0.2, tol=1e-9)[0], exact(S, 4, "LM", None, 0.2), rtol=1e-7)


def test_integers_are_computed_in_double_precision(real_device: Device) -> None:
    S = sp.csr_array(laplacian(12), dtype=np.int32)
    w, v = eigsh(GpuSparseMatrix(S, device=real_device), 2, which="SA")
    assert v.dtype == np.float64
    np.testing.assert_allclose(w, side_values(12, 2)[:2], rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"which": "LR"}, "which must be"),
        ({"ncv": 6}, "ncv must be"),
        ({"maxiter": 0}, "maxiter"),
        ({"OPinv": MASS}, "OPinv"),
        ({"Minv": MASS}, "Minv"),
        ({"sigma": 1.0, "Minv": MASS}, "Minv"),
        ({"sigma": 1j}, "real"),
        ({"M": sp.eye_array(3)}, "wrong M dimensions"),
    ],
)
def test_misuse_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eigsh(GpuSparseMatrix(hermitian(), device="cpu"), **{"k": 6, **options})
    with pytest.raises(ValueError, match="square"):
        eigsh(sp.csr_array((3, 4)), 1)


@pytest.mark.parametrize("size", [15, SIZE])
def test_values_that_are_not_finite_are_an_error(real_device: Device, size: int) -> None:
    S = hermitian()[:size, :size]
    S.data[7] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        eigsh(GpuSparseMatrix(S, device=real_device), 3)


# ---------------------------------------------------------------- work


def test_full_output_counts_what_was_done(real_device: Device) -> None:
    A = GpuSparseMatrix(hermitian(), device=real_device)
    found = eigsh(A, 3, tol=1e-8, full_output=True)
    assert isinstance(found, EigenResult)
    w, v = found
    assert_pairs(hermitian(), w, v, tol=1e-8)
    assert A.stats.products >= found.products
    residuals = np.linalg.norm(hermitian() @ v - v * w, axis=0)
    np.testing.assert_allclose(found.residuals, residuals, rtol=1e-3, atol=1e-13)
    assert "3 eigenvalues" in str(found)


def test_filters_are_used_where_reading_the_basis_costs_more_than_products(real_device: Device) -> None:
    A = GpuSparseMatrix(laplacian(40), device=real_device)
    found = eigsh(A, 3, which="LA", tol=1e-8, full_output=True, multiplicities=False)
    assert A.stats.products > 2.5 * found.products
    np.testing.assert_allclose(found.eigenvalues, np.unique(side_values(40, 2).round(10))[-3:], rtol=1e-9)


def test_a_search_for_copies_ends_soon_although_the_filter_hides_most_eigenvalues(real_device: Device) -> None:
    wanted = np.array([17.7, 20.8, 25.3, 27.9, 28.5, 58.65])
    values = np.concatenate([np.linspace(0.02, 16.7, 1071), wanted])
    A = GpuSparseMatrix(sp.diags_array(values), device=real_device)
    result = eigsh(A, 6, tol=1e-9, full_output=True)
    np.testing.assert_allclose(result.eigenvalues, wanted, rtol=1e-8)
    assert result.runs == 2
    assert result.restarts < 10


def test_pairs_that_a_filter_leaves_inaccurate_are_improved_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    A, values = GpuSparseMatrix(laplacian(20), device="cpu"), side_values(20, 2)
    polished: list[Any] = []
    module = sys.modules["gsparse.linalg.eigen.eigsh"]
    polish = module._polished
    monkeypatch.setattr(module, "_SLACK", 0.0)
    monkeypatch.setattr(module, "_polished", lambda solved: polished.append(polish(solved)) or polished[-1])
    found = eigsh(A, 4, which="LA", tol=1e-6, full_output=True)
    (improved,) = polished
    assert improved.rule is None
    np.testing.assert_allclose(found.eigenvalues, values[-4:], rtol=1e-11)


def test_the_host_waits_once_per_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, cycles = [], []
    device, cycle = get_device("cpu"), KrylovSpace.cycle
    for name in ("read_async", "synchronize"):
        plain = getattr(device, name)
        monkeypatch.setattr(device, name, lambda *args, plain=plain: waits.append(1) or plain(*args))

    def counting(self: KrylovSpace, *args: Any) -> Any:
        before = len(waits)
        result = cycle(self, *args)
        cycles.append(len(waits) - before)
        return result

    monkeypatch.setattr(KrylovSpace, "cycle", counting)
    eigsh(GpuSparseMatrix(hermitian(), device=device), 3)
    assert cycles
    assert set(cycles) == {1}


def test_a_warm_cycle_allocates_nothing(real_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []
    bind = KrylovSpace._bind

    def watched(self: KrylovSpace, *args: Any) -> Any:
        calls = bind(self, *args)
        if runs:  # kernels are compiled and scratch memory is made by the first cycle
            monkeypatch.setattr(type(real_device), "empty", lambda *args: pytest.fail("an allocation"))
        runs.append(len(calls))
        return calls

    monkeypatch.setattr(KrylovSpace, "_bind", watched)
    A = GpuSparseMatrix(hermitian(), device=real_device)
    space = KrylovSpace(Space(real_device, np.dtype(float), SIZE, SIZE), 12, True)
    transform = Transform(as_operator(A, real_device).bind(real_device, np.dtype(float)), True)
    space.start(on_device(real_device, np.random.default_rng(0).standard_normal(SIZE)))
    space.begin(np.zeros((1, 0)))
    space.cycle(transform, 6)
    space.cycle(transform, 12)
    assert len(runs) == 2


@pytest.mark.parametrize(("solve", "which"), [(eigsh, "SA"), (eigs, "LM"), (svds, "LM"), (svds, "SM")])
def test_eigensolvers_run_nothing_on_the_host(
    real_device: Device, solve: Any, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.linalg.eigen.singular_triplets._MAX_FACTORED", 0)
    A = GpuSparseMatrix(hermitian(), device=real_device)
    with strict():
        solve(A, 3, which=which, tol=1e-6)
    assert not A.stats.host_operations
