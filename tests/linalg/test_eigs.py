"""Eigenvalues of general matrices: equal to LAPACK's for every option, conjugate pairs, and SciPy's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from gsparse import GpuSparseMatrix, linalg
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import eigs
from gsparse.linalg.eigen import inner_solve
from gsparse.linalg.eigen.problem import GENERAL, general_order
from gsparse.linalg.eigen.restarted import reordered
from tests.linalg.problems import convection
from tests.support import DTYPES, host, on_device, random_values

SIZE = 150
MASS = sp.csr_array(
    sp.diags_array([0.2, 1.0, 0.2], offsets=[-1, 0, 1], shape=(SIZE, SIZE)) + sp.diags_array(np.linspace(0, 1, SIZE))
)


def general(dtype: Any = float, seed: int = 0, size: int = SIZE) -> sp.csr_array:
    rng = np.random.default_rng(seed)
    S = sp.random_array((size, size), density=8 / size, rng=rng, format="csr")
    return sp.csr_array((random_values(rng, S.nnz, dtype), S.indices, S.indptr), shape=S.shape)


def exact(S: Any, k: int, which: str, M: Any = None, sigma: Any = None, part: str = "r") -> np.ndarray:
    """Return the wanted eigenvalues, the most wanted first, from LAPACK in double precision."""
    is_real = S.dtype.kind != "c"
    A = S.toarray().astype(float if is_real else complex)
    values = scipy.linalg.eigvals(A, None if M is None else M.toarray())
    if is_real:  # LAPACK's generalized eigenvalues of a real matrix are conjugate pairs up to rounding only
        upper = values[values.imag > 0]
        values = np.concatenate([values[values.imag == 0], upper, upper.conj()])
    nu = values
    if sigma is not None:
        nu = 1 / (values - sigma)
        if is_real and np.imag(sigma):
            other = 1 / (values - np.conj(sigma))
            nu = (nu + other) / 2 if part == "r" else (nu - other) / 2j
    return values[general_order(nu, which, is_real)[:k]]


def assert_same_values(found: np.ndarray, wanted: np.ndarray, rtol: float) -> None:
    """Compare two sets of complex values; each one must have a partner of its own."""
    distances = abs(found[:, None] - wanted)
    rows, columns = scipy.optimize.linear_sum_assignment(distances)
    assert distances[rows, columns].max() <= rtol * abs(wanted).max()


def assert_pairs(S: Any, w: np.ndarray, v: np.ndarray, M: Any = None, tol: float = 0.0) -> None:
    """Check residuals row by row, and the norms of the vectors."""
    eps = np.finfo(v.dtype).eps
    S, v = S.astype(complex), v.astype(complex)
    right = v if M is None else M @ v
    bound = abs(S) @ abs(v) + abs(right) * abs(w)
    scale = abs(S).sum(axis=1).max()
    assert (abs(S @ v - right * w) <= (300 * eps + 2 * tol) * (bound + scale)).all()
    np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1, rtol=20 * eps)


@pytest.mark.parametrize("which", [w for w in GENERAL if w not in ("SM", "SI")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(6)
def test_eigs_finds_the_wanted_eigenvalues(real_device: Device, which: str, dtype: Any) -> None:
    S = general(dtype)
    wanted = exact(S, 6, which)
    w, v = eigs(GpuSparseMatrix(S, device=real_device), 6, which=which)
    assert w.dtype == v.dtype == np.result_type(dtype, np.complex64)
    assert_same_values(w, wanted, 300 * np.finfo(dtype).eps)
    assert_pairs(S, w, v)
    order = general_order(w, which, np.dtype(dtype).kind != "c")
    np.testing.assert_allclose(w[order], w, rtol=1e-5)  # the most wanted first


@pytest.mark.parametrize("k", [3, 4, 5])
def test_real_matrices_have_conjugate_pairs(real_device: Device, k: int) -> None:
    S = general()
    w, v = eigs(GpuSparseMatrix(S, device=real_device), k)
    wanted = exact(S, k, "LM")
    assert_same_values(w, wanted, 1e-12)
    for place in np.flatnonzero(w[:-1].imag > 0):  # the partner follows, with the conjugate vector up to a phase
        np.testing.assert_allclose(w[place + 1], w[place].conj(), rtol=1e-13)
        assert abs(v[:, place] @ v[:, place + 1]) > 1 - 1e-10


@pytest.mark.few(1)
def test_eigs_runs_on_every_device(device: Device) -> None:
    S = convection(10)
    w, v = eigs(GpuSparseMatrix(S, device=device), 3, which="LR", tol=1e-9)
    assert_same_values(w, exact(S, 3, "LR"), 1e-8)
    assert_pairs(S, w, v, tol=1e-9)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("sigma", [0.3, 0.3 + 0.5j])
@pytest.mark.parametrize("M", [None, MASS], ids=["standard", "mass"])
def test_eigenvalues_next_to_a_shift_are_those_of_lapack(
    real_device: Device, dtype: Any, sigma: complex, M: Any
) -> None:
    S = general(dtype)
    mass = None if M is None else GpuSparseMatrix(M.astype(dtype), device=real_device)
    found = eigs(GpuSparseMatrix(S, device=real_device), 4, M=mass, sigma=sigma, full_output=True)
    assert_same_values(found.eigenvalues, exact(S, 4, "LM", M, sigma), 1e-9)
    assert_pairs(S, *found, M, tol=1e-11)
    assert found.inner.method == "factors"


@pytest.mark.parametrize("part", ["r", "i"])
def test_oppart_chooses_eigenvalues_by_a_part_of_the_inverse(real_device: Device, part: str) -> None:
    S = general()
    w = eigs(GpuSparseMatrix(S, device=real_device), 4, sigma=0.2 + 0.4j, OPpart=part, return_eigenvectors=False)
    assert_same_values(w, exact(S, 4, "LM", None, 0.2 + 0.4j, part), 1e-9)


def test_generalized_eigenpairs_are_those_of_lapack(real_device: Device) -> None:
    S = general()
    A, B = (GpuSparseMatrix(part, device=real_device) for part in (S, MASS))
    w, v = eigs(A, 4, M=B)
    assert_same_values(w, exact(S, 4, "LM", MASS), 1e-10)
    assert_pairs(S, w, v, MASS)
    inverse = sla.LinearOperator(MASS.shape, sla.splu(sp.csc_array(MASS)).solve, dtype=float)
    assert_same_values(eigs(A, 4, M=B, Minv=inverse)[0], w, 1e-10)


def test_gmres_solves_where_there_are_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_solve, "_FEW_ROWS", 0)
    S = convection(14)
    found = eigs(GpuSparseMatrix(S, device="cpu"), 4, sigma=0.1, tol=1e-8, full_output=True)
    assert found.inner.method == "gmres with ilu0"
    assert_same_values(found.eigenvalues, exact(S, 4, "LM", None, 0.1), 1e-7)
    inverse = sla.LinearOperator(S.shape, sla.splu(sp.csc_array(S - 0.1 * sp.eye_array(S.shape[0]))).solve, dtype=float)
    given = eigs(GpuSparseMatrix(S, device="cpu"), 4, sigma=0.1, OPinv=inverse, full_output=True)
    assert given.inner.method == "given"
    assert_same_values(given.eigenvalues, found.eigenvalues, 1e-7)


@pytest.mark.parametrize("dtype", [float, complex])
def test_all_copies_of_multiple_eigenvalues_are_found(real_device: Device, dtype: Any) -> None:
    B = general(dtype, size=60)
    S = sp.csr_array(sp.block_diag([B, B, B]))
    found = eigs(GpuSparseMatrix(S, device=real_device), 6, full_output=True)
    assert_same_values(found.eigenvalues, exact(S, 6, "LM"), 1e-11)
    assert found.runs > 1
    assert_pairs(S, *found)


def test_eigenvalues_beside_a_defective_block_and_of_the_identity_are_found(real_device: Device) -> None:
    jordan = sp.csr_array(sp.diags_array([np.full(90, 2.0), np.ones(89)], offsets=[0, 1]))
    S = sp.csr_array(sp.block_diag([jordan, sp.diags_array([7.0, 7.0, 5.0])]))
    w = eigs(GpuSparseMatrix(S, device=real_device), 3, return_eigenvectors=False)
    assert_same_values(w, np.array([7.0, 7.0, 5.0]), 1e-10)
    w, v = eigs(GpuSparseMatrix(sp.eye_array(100, format="csr"), device=real_device), 4)
    np.testing.assert_allclose(w, 1, atol=1e-13)
    assert np.linalg.matrix_rank(v) == 4


def test_reordering_keeps_a_schur_form() -> None:
    A = np.random.default_rng(0).standard_normal((12, 12))
    for dtype in (float, complex):
        T, Q = scipy.linalg.schur(A.astype(dtype), output="real" if dtype is float else "complex")
        values = np.linalg.eigvals(A)
        chosen = values[np.argsort(abs(values))[:4]]
        T, Q, count = reordered(T, Q, chosen)
        np.testing.assert_allclose(Q @ T @ Q.conj().T, A, atol=1e-12)
        front = np.linalg.eigvals(T[:count, :count])
        assert all(abs(front - value).min() < 1e-10 for value in chosen)
        assert count in (4, 5)


def test_no_convergence_raises_scipys_error_with_what_converged(real_device: Device) -> None:
    values = np.concatenate([np.linspace(0, 1, 300), [1.001, 5.0, 9.0]])
    S = sp.csr_array(sp.diags_array([values, np.full(302, 0.01)], offsets=[0, 1]))
    with pytest.raises(sla.ArpackNoConvergence) as caught:
        eigs(GpuSparseMatrix(S, device=real_device), 4, maxiter=2)
    assert_same_values(caught.value.eigenvalues, np.array([9.0, 5.0]), 1e-10)
    assert_pairs(S, caught.value.eigenvalues, caught.value.eigenvectors)


def test_the_same_v0_gives_the_same_bits_on_the_device(device: Device) -> None:
    S = convection(9)
    A = GpuSparseMatrix(S, device=device)
    v0 = on_device(device, np.random.default_rng(0).standard_normal(81))
    first, second = (eigs(A, 2, v0=v0, tol=1e-6) for _ in range(2))
    assert device.owns(first[0])
    assert all(np.array_equal(host(a), host(b)) for a, b in zip(first, second, strict=True))


def test_tiny_problems_and_large_k_are_solved_and_a_larger_k_needs_a_dense_matrix() -> None:
    S = general(size=8)
    A = GpuSparseMatrix(S, device="cpu")
    assert_same_values(eigs(A, 3)[0], exact(S, 3, "LM"), 1e-12)
    with pytest.warns(RuntimeWarning, match="k >= N"), pytest.raises(TypeError, match="toarray"):
        eigs(A, 7)
    with pytest.warns(RuntimeWarning, match="k >= N"):
        assert_same_values(eigs(S.toarray(), 7)[0], np.linalg.eigvals(S.toarray()), 1e-12)
    T = general()
    w = eigs(GpuSparseMatrix(T, device="cpu"), SIZE - 2)[0]
    assert_same_values(w, exact(T, SIZE - 2, "LM"), 1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"which": "LA"}, "which must be"),
        ({"ncv": 7}, "ncv must be"),
        ({"OPpart": "r"}, "OPpart"),
        ({"sigma": 1j, "OPpart": "x"}, "OPpart"),
        ({"sigma": 1.0, "OPpart": "i"}, "OPpart"),
    ],
)
def test_misuse_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eigs(GpuSparseMatrix(general(), device="cpu"), **{"k": 6, **options})
    with pytest.raises(ShapeError):
        eigs(sp.csr_array((3, 4)), 1)


def test_a_shift_at_an_eigenvalue_gives_all_pairs_next_to_it(real_device: Device) -> None:
    """The matrix of a Markov chain has the eigenvalue 1, for a vector of ones."""
    rng = np.random.default_rng(2)
    S = sp.random_array((200, 200), density=0.03, rng=rng, format="csr") + sp.eye_array(200)
    S = sp.csr_array(sp.diags_array(1 / np.asarray(S.sum(axis=1)).ravel()) @ S)
    values = np.linalg.eigvals(S.toarray())
    w, v = eigs(GpuSparseMatrix(S, device=real_device), 4, sigma=1.0)
    np.testing.assert_allclose(np.sort(abs(w - 1)), np.sort(abs(values - 1))[:4], atol=1e-10)
    assert abs(S @ v - v * w).max() < 1e-9


# ---------------------------------------------------------------------- norms whose squares overflow or underflow

# Exponents of powers of two near 1e30 and 1e200.
FAR = {4: 100, 8: 664}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("eigsh", {"which": which}) for which in ("LM", "SM", "LA", "SA", "BE")),
    *(("eigsh", {"sigma": -0.05, "mode": mode}) for mode in ("normal", "buckling", "cayley")),
    ("eigsh", {"sigma": -0.05, "OPinv": True}),
    ("eigsh", {"M": True}),
    ("eigsh", {"M": True, "Minv": True}),
    *(("eigsh", {"M": True, "sigma": -0.05, "mode": mode}) for mode in ("normal", "buckling")),
    *(("eigs", {"which": which}) for which in ("LM", "LR", "SR", "SM")),
    ("eigs", {"sigma": -0.05}),
    ("eigs", {"sigma": 0.5 + 0.5j}),
    ("eigs", {"M": True, "sigma": -0.05, "OPinv": True}),
    *(("svds", {"which": which}) for which in ("LM", "SM")),
    *(("lobpcg", {"largest": largest}) for largest in (True, False)),
    ("lobpcg", {"largest": False, "M": True}),
]


def pairs(method: str, options: dict[str, Any], form: Callable[[Any], Any], S: Any, unit: int, unit_of_M: int) -> Any:
    """Return eigenvalues, eigenvectors and residuals of a matrix in other units, with options in these units."""
    size, dtype = S.shape[0], S.dtype
    A, options, factor = form(S * 2.0**unit), dict(options), 2.0 ** (unit - unit_of_M)
    mass = sp.diags_array(np.linspace(1, 2, size)).tocsr().astype(dtype)
    if method == "lobpcg":
        X = np.random.default_rng(0).standard_normal((size, 3)).astype(dtype)
        B = form(mass * 2.0**unit_of_M) if options.pop("M", False) else None
        tol = 1e3 * float(np.finfo(dtype).eps) * 2.0 ** (unit - unit_of_M // 2)
        w, v, residuals = linalg.lobpcg(A, X, B, tol=tol, maxiter=300, retResidualNormsHistory=True, **options)
        return w, v, residuals[-1]
    sigma = options.pop("sigma", None)
    if options.pop("OPinv", False):
        shifted = S - dtype.type(sigma) * (mass if "M" in options else sp.eye_array(size))
        options["OPinv"] = sla.aslinearoperator(np.linalg.inv(shifted.toarray()).astype(dtype) * 2.0**-unit)
    if options.pop("Minv", False):
        options["Minv"] = form(sp.diags_array(2.0**-unit_of_M / mass.diagonal()).tocsr().astype(dtype))
    if options.pop("M", False):
        options["M"] = form(mass * 2.0**unit_of_M)
    if sigma is not None:
        options["sigma"] = sigma * factor
    if method == "svds":
        u, s, _ = linalg.svds(A, 3, **options)
        return s, u, np.zeros(3)
    result = getattr(linalg, method)(A, 3, full_output=True, **options)
    return *result, result.residuals


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.complex128)], ids=str)
@pytest.mark.parametrize(("method", "options"), CASES, ids=str)
def test_eigenpairs_do_not_depend_on_units(dtype: Any, method: str, options: dict[str, Any]) -> None:
    off_diagonal = -1 + 0.25j if dtype.kind == "c" else -1.0
    far, epsilon = FAR[np.finfo(dtype).dtype.itemsize], np.finfo(dtype).eps
    as_matrix: Callable[[Any], Any] = lambda S: GpuSparseMatrix(S, device="cpu")  # noqa: E731
    for size, form in ((70, as_matrix), (70, sla.aslinearoperator), (70, lambda S: S.toarray()), (24, as_matrix)):
        diagonals = [np.conj(off_diagonal), np.linspace(2.1, 4, size), off_diagonal]
        S = sp.diags_array(diagonals, offsets=[-1, 0, 1], shape=(size, size)).tocsr().astype(dtype)
        values, vectors, expected = pairs(method, options, form, S, 0, 0)
        for unit, unit_of_M in ((far, 0), (-far, 0), *([(far, far), (0, -far)] if "M" in options else [])):
            w, v, residuals = pairs(method, options, form, S, unit, unit_of_M)
            length = -unit // 2 if options.get("mode") == "buckling" else -unit_of_M // 2 if method != "eigs" else 0
            np.testing.assert_allclose(w * 2.0 ** (unit_of_M - unit), values, rtol=3e3 * epsilon)
            np.testing.assert_allclose(abs(v) * 2.0**-length, abs(vectors), atol=30 * epsilon**0.5)
            limit = 10 * expected.max() + 1e3 * epsilon
            assert not (residuals * 2.0 ** -(unit + length) > limit).any()  # NaN if a solver was passed
