"""LOBPCG returns the results of SciPy's, in as many iterations, with blocks on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import lobpcg
from tests.linalg.problems import laplacian
from tests.support import DTYPES, host, on_device, random_values

SIDE = 9
# The eigenvalues are distinct, so that the iterates agree with SciPy's, and not only their span.
S = sp.csr_array(laplacian(SIDE) + sp.diags_array(np.linspace(0, 1, SIDE**2)))
MASS = sp.csr_array(sp.diags_array([0.1, 1.0, 0.1], offsets=[-1, 0, 1], shape=S.shape))
JACOBI = sp.csr_array(sp.diags_array(1 / S.diagonal()))
RNG = np.random.default_rng(0)
X = RNG.standard_normal((SIDE**2, 3))


def exact(largest: bool, B: Any = None, count: int = 3) -> Any:
    values = scipy.linalg.eigvalsh(S.toarray(), None if B is None else B.toarray())
    return values[:-1 - count:-1] if largest else values[:count]  # fmt: skip


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("B", [None, MASS], ids=["standard", "generalized"])
@pytest.mark.parametrize("M", [None, JACOBI], ids=["plain", "preconditioned"])
def test_lobpcg_follows_scipy(real_device: Device, largest: bool, B: Any, M: Any) -> None:
    options: dict[str, Any] = {"tol": 1e-6, "maxiter": 90, "largest": largest}
    options |= {"retLambdaHistory": True, "retResidualNormsHistory": True}
    expected = la.lobpcg(S, X.copy(), B, M, **options)
    A = GpuSparseMatrix(S, device=real_device)
    values, vectors, lambdas, norms = lobpcg(A, X, B, M, **options)
    np.testing.assert_allclose(values, exact(largest, B), rtol=1e-10)
    np.testing.assert_allclose(abs(vectors), abs(expected[1]), atol=1e-5)
    assert len(lambdas) == len(norms)
    assert abs(len(lambdas) - len(expected[2])) <= 2
    for ours, theirs in ((lambdas, expected[2]), (norms, expected[3])):
        np.testing.assert_allclose(ours[:12], theirs[:12], rtol=1e-6)
    right = vectors if B is None else B @ vectors
    np.testing.assert_allclose(np.linalg.norm(S @ vectors - right * values, axis=0), norms[-1], rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ right, np.eye(3), atol=1e-12)


def test_lobpcg_runs_on_every_device(device: Device) -> None:
    values, vectors = lobpcg(GpuSparseMatrix(S, device=device), X, tol=1e-7, maxiter=90)
    np.testing.assert_allclose(values, exact(True), rtol=1e-12)
    assert type(vectors) is np.ndarray


class VectorsOnly:
    """An operator that multiplies one vector at a time."""

    shape, dtype = S.shape, S.dtype

    def matvec(self, x: Any) -> Any:
        return S @ x


@pytest.mark.gpu
def test_lobpcg_returns_device_arrays_for_device_arrays(real_device: Device) -> None:
    values, vectors = lobpcg(GpuSparseMatrix(S, device=real_device), on_device(real_device, X), tol=1e-7, maxiter=90)
    assert real_device.owns(values)
    assert real_device.owns(vectors)
    np.testing.assert_allclose(host(values), exact(True), rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(2)
def test_lobpcg_computes_in_the_dtype_of_the_problem(real_device: Device, dtype: Any) -> None:
    H = sp.csr_array(laplacian(SIDE, dtype) + sp.diags_array(np.linspace(0, 1, SIDE**2)), dtype=dtype)
    start = random_values(np.random.default_rng(1), (SIDE**2, 2), dtype)
    tol = 1e-3 if dtype.itemsize // (1 + (dtype.kind == "c")) == 4 else 1e-7
    values, vectors = lobpcg(GpuSparseMatrix(H, device=real_device), start, tol=tol, maxiter=90)
    assert vectors.dtype == dtype
    assert values.dtype == np.empty(0, dtype).real.dtype
    np.testing.assert_allclose(values, np.linalg.eigvalsh(H.toarray())[:-3:-1], rtol=1e-5)


def test_eigenvectors_are_orthogonal_to_the_constraints(real_device: Device) -> None:
    A = GpuSparseMatrix(S, device=real_device)
    known = np.linalg.eigh(S.toarray())[1][:, -2:]
    for Y in (known, known @ [[1.0, 2.0], [3.0, 5.0]]):
        values, vectors = lobpcg(A, X, Y=Y, tol=1e-7, maxiter=90)
        np.testing.assert_allclose(values, exact(True, count=5)[2:], rtol=1e-12)
        assert abs(Y.T @ vectors).max() < 1e-12
    with pytest.raises(ValueError, match="Linearly dependent constraints"):
        lobpcg(A, X, Y=np.ones((SIDE**2, 2)))


def test_ill_conditioned_initial_vectors_converge(real_device: Device) -> None:
    A = GpuSparseMatrix(S, device=real_device)
    start = X * [1e-9, 1.0, 1e9]
    start[:, 0] += 1e-12 * X[:, 1]
    np.testing.assert_allclose(lobpcg(A, start, tol=1e-7, maxiter=90)[0], exact(True), rtol=1e-12)
    # If the guesses are solutions already, the residuals consist of rounding errors, which define no direction.
    vectors = np.linalg.eigh(S.toarray())[1][:, :-4:-1].copy()
    np.testing.assert_allclose(lobpcg(A, vectors, tol=1e-7)[0], exact(True), rtol=1e-12)
    with pytest.raises(ValueError, match="Linearly dependent initial approximations"):
        lobpcg(A, np.ones((SIDE**2, 2)))


def test_operators_and_callables_are_accepted_as_in_scipy(real_device: Device) -> None:
    from gsparse.linalg import jacobi

    A = GpuSparseMatrix(S, device=real_device)
    kinds = [S, S.toarray(), la.aslinearoperator(S), A.as_linear_operator(), lambda V: S @ V, VectorsOnly()]
    options: dict[str, Any] = {"tol": 1e-7, "maxiter": 90}
    for operator in kinds:
        np.testing.assert_allclose(lobpcg(operator, X, **options)[0], exact(True), rtol=1e-12)
    for M in (jacobi(A), la.aslinearoperator(JACOBI), lambda V: JACOBI @ V):
        np.testing.assert_allclose(lobpcg(A, X, M=M, largest=False, **options)[0], exact(False), rtol=1e-10)
    with pytest.raises(ValueError, match="keep the shape"):
        lobpcg(lambda V: V[:5], X)


def test_a_tolerance_that_is_not_reached_causes_a_warning(real_device: Device) -> None:
    A = GpuSparseMatrix(S, device=real_device)
    with pytest.warns(UserWarning, match="Exited at iteration 2: .*; raise maxiter") as seen:
        lobpcg(A, X, tol=1e-9, maxiter=2)
    assert [warning.filename for warning in seen] == [__file__]


def test_a_small_problem_is_solved_as_a_dense_problem(real_device: Device) -> None:
    A = GpuSparseMatrix(S[:9, :9], device=real_device)
    for largest in (True, False):
        with pytest.warns(UserWarning, match="dense eigensolver"):
            values, vectors = lobpcg(A, X[:9], MASS[:9, :9], largest=largest)
        with pytest.warns(UserWarning, match="dense eigensolver"):
            expected = la.lobpcg(S[:9, :9], X[:9], MASS[:9, :9], largest=largest)
        np.testing.assert_allclose(values, expected[0])
        np.testing.assert_allclose(abs(vectors), abs(expected[1]))
    with pytest.warns(UserWarning), pytest.raises(NotImplementedError, match="constraints"):
        lobpcg(A, X[:9], Y=X[:9, :1])


def test_integers_are_accepted_and_wrong_shapes_refused(real_device: Device) -> None:
    A = GpuSparseMatrix(laplacian(SIDE).astype(int), device=real_device)
    with pytest.warns(UserWarning, match="not inexact"):
        values, _ = lobpcg(A, np.eye(SIDE**2, 1, dtype=int) + 1, tol=1e-5, maxiter=60)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(laplacian(SIDE).toarray())[-1:], rtol=1e-6)
    with pytest.raises(ValueError, match="rank-2"):
        lobpcg(A, X[:, 0])
    with pytest.raises(ShapeError):
        lobpcg(A, X[1:])
    with pytest.raises(ShapeError, match=r"Y must have as many rows as X, "):
        lobpcg(A, X, Y=X[1:, :1])


def test_a_verbosity_level_prints_progress(real_device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    lobpcg(GpuSparseMatrix(S, device=real_device), X, tol=1, verbosityLevel=1)
    assert "iteration 0" in capsys.readouterr().out
