"""Eigensolvers and `svds` on several ranks: the same values as on one, and vectors that stay on the workers."""

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
from tests.linalg.test_svds import assert_triplets, general, graded

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


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("which", ["LM", "SM"])
def test_several_ranks_find_singular_triplets(world_size: int, which: str) -> None:
    # Squares of the last matrix's singular values are below the rounding errors of the square of the largest one.
    others = general((90, 160), np.float32), graded(np.r_[10.0 ** -np.arange(0, 16, 2), np.zeros(92)])
    for matrix in (general((160, 90), complex), *(others if which == "LM" else ())):
        for center in (None, matrix.toarray().mean(axis=0)):
            # One rank owns no rows.
            rows, columns = (RowPartition((0, *[size // 3] * (world_size - 1), size)) for size in matrix.shape)

            def solve(
                c: Communicator, S: Any = matrix, m: Any = center, rows: Any = rows, columns: Any = columns
            ) -> Any:
                A = RankMatrix(S[rows.rows(c.rank)], rows, columns, c, device="cpu")
                return gla.svds(A, 5, which=which, tol=1e-6, center=None if m is None else m[columns.rows(c.rank)])

            left, values, right = zip(*run_ranks(solve, world_size), strict=True)
            assert all(np.array_equal(values[0], s) for s in values)
            triplets = np.concatenate(left), values[0], np.concatenate(right, axis=1)
            centered = sp.csr_array(matrix.toarray() - (0 if center is None else center))
            assert_triplets(centered, triplets, 5, which, tol=1e-6, slack=20)


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


@pytest.mark.parametrize("shape", [(160, 90), (90, 160), (120, 120), (12, 9)])
def test_svds_runs_on_the_workers(
    client: Any, workers: list[str], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(products.WorkerProducts, "multiply")
    matrix, k = general(shape), 5
    mean = matrix.toarray().mean(axis=0)
    centered = sp.csr_array(matrix.toarray() - mean)
    with distribute(matrix, client=client, workers=workers[:2], reorder="rcm" if shape[0] == shape[1] else None) as A:
        assert_triplets(matrix, gla.svds(A, k, v0=np.arange(1.0, min(shape) + 1)), k, "LM")
        for center in (mean, A.vector(mean, axis=1)):
            triplets = gla.svds(A, k, center=center)
            assert_triplets(centered, triplets, k, "LM")
        np.testing.assert_allclose(gla.svds(A, k, center=mean, return_singular_vectors=False), triplets[1], rtol=1e-13)
        assert [x is None for x in gla.svds(A, k, return_singular_vectors="u")] == [False, False, True]
        with pytest.raises(la.ArpackNoConvergence, match=f"/{k} eigenvectors"):
            gla.svds(A, k, which="SM", ncv=k + 1, maxiter=1)


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
            (lambda: gla.expm_multiply(A, np.ones(144), traceA=576), la.expm_multiply(S, np.ones(144))),
        ):
            is_called.clear()
            np.testing.assert_allclose(call(), expected, rtol=1e-9)
            assert is_called
