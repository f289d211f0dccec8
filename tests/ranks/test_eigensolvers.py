"""`eigsh` and `eigs` on several ranks: the same eigenvalues as on one, and vectors that stay on the workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse.linalg as gla
from gsparse import GpuSparseMatrix
from gsparse.distributed import RankMatrix, RowPartition, run_ranks
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.linalg.eigen.krylov_space import random_vector
from gsparse.linalg.eigen.problem import make_problem
from tests.linalg.problems import convection, laplacian

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed import distribute  # noqa: E402
from gsparse.distributed.client import products  # noqa: E402

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

S, NONSYMMETRIC = laplacian(12), convection(12)

CALLS: dict[str, Any] = {
    "largest": (S, lambda A, **options: gla.eigsh(A, 5, which="LA", tol=1e-9, **options)),
    "filtered": (S, lambda A, **options: gla.eigsh(A, 3, which="SA", tol=1e-5, **options)),
    "shifted": (S, lambda A, **options: gla.eigsh(A, 3, sigma=0.0, tol=1e-8, **options)),
    "complex": (laplacian(12, complex), lambda A, **options: gla.eigsh(A, 4, which="LM", tol=1e-9, **options)),
    "nonsymmetric": (NONSYMMETRIC, lambda A, **options: gla.eigs(A, 4, which="LR", tol=1e-9, **options)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.few(3)
def test_several_ranks_find_what_one_finds(name: str) -> None:
    matrix, call = CALLS[name]
    single = call(GpuSparseMatrix(matrix, device="cpu"))[0]
    for bounds in ((0, 144), (0, 70, 144), (0, 50, 50, 144)):
        rows = RowPartition(bounds)

        def solve(communicator: Communicator, rows: RowPartition = rows) -> Any:
            A = RankMatrix(matrix[rows.rows(communicator.rank)], rows, rows, communicator, device="cpu")
            return call(A)

        results = run_ranks(solve, len(bounds) - 1)
        values, vectors = results[0][0], np.concatenate([part[1] for part in results])
        for part in results:
            np.testing.assert_array_equal(part[0], values)
        np.testing.assert_allclose(np.sort_complex(values), np.sort_complex(single), rtol=1e-6)
        assert np.linalg.norm(matrix @ vectors - vectors * values, axis=0).max() < 2e-4
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=0), 1, rtol=1e-10)


def test_random_vectors_are_those_of_one_rank() -> None:
    rows = RowPartition((0, 30, 100, 144))

    def vectors(A: Any) -> Any:
        space = make_problem(A, None, None).space()
        return [random_vector(space, seed) for seed in (0, 5)]

    def on_rank(communicator: Communicator) -> Any:
        return vectors(RankMatrix(S[rows.rows(communicator.rank)], rows, rows, communicator, device="cpu"))

    parts = np.concatenate(run_ranks(on_rank, 3), axis=1)
    np.testing.assert_array_equal(parts, vectors(GpuSparseMatrix(S, device="cpu")))
    assert len(np.unique(parts)) == parts.size


@pytest.mark.parametrize("world_size", [1, 3])
def test_eigensolvers_run_on_the_workers(
    client: Any, workers: list[str], world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_on_multiply(*args: Any) -> None:
        raise AssertionError("vectors came back for a product")

    monkeypatch.setattr(products.WorkerProducts, "multiply", fail_on_multiply)
    exact = np.linalg.eigvalsh(S.toarray())
    with distribute(S, client=client, workers=workers[:world_size], reorder="rcm") as A:
        for v0 in (None, np.random.default_rng(0).standard_normal(144)):
            w, v = gla.eigsh(A, 3, which="LA", tol=1e-10, v0=v0)
            np.testing.assert_allclose(w, exact[-3:], rtol=1e-9)
            assert np.linalg.norm(S @ v - v * w, axis=0).max() < 1e-8
        w = gla.eigsh(A, 3, sigma=0, tol=1e-8, return_eigenvectors=False)
        np.testing.assert_allclose(w, exact[:3], rtol=1e-7)
        with pytest.raises(la.ArpackNoConvergence, match="0/3"):
            gla.eigsh(A, 3, which="SA", ncv=5, maxiter=1, tol=1e-12)
        with pytest.raises(la.ArpackNoConvergence, match=r"3/3 eigenvectors converged\): the search for copies"):
            gla.eigsh(A, 3, which="SA", ncv=60, maxiter=1, tol=1e-4)
        with pytest.raises(ValueError, match="which must be"):
            gla.eigsh(A, 3, which="XX")
    with distribute(NONSYMMETRIC, client=client, workers=workers[:world_size]) as A:
        w = gla.eigs(A, 2, which="LR", tol=1e-9)[0]
        np.testing.assert_allclose(w.real, np.sort(np.linalg.eigvals(NONSYMMETRIC.toarray()).real)[:-3:-1], rtol=1e-7)


def test_what_workers_lack_runs_on_the_client(client: Any, workers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    multiply, is_called = products.WorkerProducts.multiply, []

    def count(*args: Any) -> Any:
        is_called.append(True)
        return multiply(*args)

    monkeypatch.setattr(products.WorkerProducts, "multiply", count)
    exact = np.linalg.eigvalsh(S.toarray())
    mass = sp.csr_array(sp.diags_array(np.full(144, 2.0)))
    with distribute(S, client=client, workers=workers[:2]) as A:
        for call, expected in (
            (lambda: gla.eigsh(A, 3, M=mass, which="LA")[0], exact[-3:] / 2),
            (lambda: gla.eigsh(A, 3, which="LA", full_output=True).eigenvalues, exact[-3:]),
            (lambda: gla.svds(A, 3, return_singular_vectors=False), exact[-3:]),
            (lambda: gla.expm_multiply(A, np.ones(144), traceA=576), _exponential()),
        ):
            is_called.clear()
            np.testing.assert_allclose(call(), expected, rtol=1e-9)
            assert is_called


def _exponential() -> np.ndarray:
    return la.expm_multiply(S, np.ones(144))
