"""The solvers run unchanged on matrices whose rows are distributed over several ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse.linalg as gla
from gsparse import GpuSparseMatrix
from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks
from gsparse.errors import CommunicationError, ShapeError
from tests.linalg.problems import (
    convection,
    indefinite,
    jumping_coefficients,
    laplacian,
    rectangular,
    residual,
    right_hand_side,
)
from tests.ranks.groups import GROUPS
from tests.support import random_values

# Largest relative difference from the solution on one rank: sums are added in another order.
TOLERANCE = 1e-8

SOLVES: dict[str, Callable[..., Any]] = {
    "cg": lambda A, b, **o: gla.cg(A, b, rtol=1e-10, full_output=True, **o),
    "cg, single reduction": lambda A, b, **o: gla.cg(A, b, rtol=1e-10, single_reduction=True, full_output=True, **o),
    "cg, refined": lambda A, b, **o: gla.cg(A, b, rtol=1e-10, inner_dtype=np.float32, full_output=True, **o),
    "bicgstab": lambda A, b, **o: gla.bicgstab(A, b, rtol=1e-10, full_output=True, **o),
    "gmres": lambda A, b, **o: gla.gmres(A, b, rtol=1e-10, restart=25, full_output=True, **o),
    "fgmres": lambda A, b, **o: gla.fgmres(A, b, rtol=1e-10, restart=25, full_output=True, **o),
    "minres": lambda A, b, **o: gla.minres(A, b, rtol=1e-12, check=True, full_output=True, **o),
    "chebyshev": lambda A, b, **o: gla.chebyshev(A, b, rtol=1e-10, bounds=(0.05, 8), full_output=True, **o),
}
LEAST_SQUARES: dict[str, Callable[..., Any]] = {
    "lsqr": lambda A, b: gla.lsqr(A, b, atol=1e-12, btol=1e-12, full_output=True),
    "lsmr": lambda A, b: gla.lsmr(A, b, atol=1e-12, btol=1e-12, full_output=True),
}
MATRICES = {"minres": indefinite, "gmres": convection, "fgmres": convection, "bicgstab": convection}


def solve_on_ranks(
    run: Callable[..., Any], world_size: int, S: sp.csr_array, b: Any, solve: Callable[..., Any]
) -> list[Any]:
    """Solve on several ranks and return the result of each rank."""
    rows, columns = RowPartition.by_nnz(S.indptr, world_size), RowPartition.by_rows(S.shape[1], world_size)
    columns = rows if S.shape[0] == S.shape[1] else columns

    def work(communicator: Communicator) -> Any:
        own = rows.rows(communicator.rank)
        return solve(RankMatrix(S[own], rows, columns, communicator, device="cpu"), b[own])

    return run(work, world_size)


def check(results: list[Any], single: Any, tolerance: float = TOLERANCE, iteration_tolerance: float = 0.1) -> Any:
    """Compare the results of the ranks with those of a single rank, and return the assembled solution."""
    first = results[0]
    for other in results[1:]:
        assert (other.info, other.iterations, other.reason) == (first.info, first.iterations, first.reason)
        np.testing.assert_array_equal(other.residuals, first.residuals)
    assert first.info == single.info
    assert abs(first.iterations - single.iterations) <= max(2, iteration_tolerance * single.iterations)
    x = np.concatenate([part.x for part in results])
    np.testing.assert_allclose(x, single.x, rtol=0, atol=tolerance * abs(single.x).max())
    return x


@pytest.mark.parametrize("run", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("name", SOLVES)
def test_solvers_return_the_same_on_several_ranks_as_on_one(run: Callable[..., Any], name: str) -> None:
    S = MATRICES.get(name, laplacian)(12)
    b, solve = right_hand_side(S), SOLVES[name]
    single = solve(GpuSparseMatrix(S, device="cpu"), b)
    for world_size in (2, 3):
        x = check(solve_on_ranks(run, world_size, S, b, solve), single)
        assert residual(S, x, b) < 1e-8


@pytest.mark.parametrize("name", SOLVES)
@pytest.mark.whole
def test_complex_systems_with_several_right_hand_sides_are_solved(name: str) -> None:
    S = MATRICES.get(name, laplacian)(7, complex)
    b, solve = right_hand_side(S, 3), SOLVES[name]
    single = solve(GpuSparseMatrix(S, device="cpu"), b)
    check(solve_on_ranks(run_ranks, 4, S, b, solve), single)


@pytest.mark.parametrize("name", LEAST_SQUARES)
@pytest.mark.parametrize("shape", [(90, 40), (40, 90)])
def test_least_squares_are_solved_with_distributed_rows_and_columns(name: str, shape: tuple[int, int]) -> None:
    S = rectangular(*shape)
    b, solve = right_hand_side(S), LEAST_SQUARES[name]
    check(solve_on_ranks(run_ranks, 3, S, b, solve), solve(GpuSparseMatrix(S, device="cpu"), b), 1e-6)


EIGENPAIRS: dict[str, dict[str, Any]] = {
    "largest": {},
    "smallest": {"largest": False},
    "preconditioned": {"largest": False, "M": gla.ic0},
    "constrained": {"largest": False, "Y": 2},
}


@pytest.mark.parametrize("run", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("name", EIGENPAIRS)
@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.few(1)
def test_lobpcg_returns_the_same_on_several_ranks_as_on_one(run: Callable[..., Any], name: str, dtype: type) -> None:
    S = with_distinct_eigenvalues(9, dtype)
    rng = np.random.default_rng(1)
    X, options = random_values(rng, (81, 3), np.dtype(dtype)), {**EIGENPAIRS[name]}
    make, exact = options.pop("M", None), np.linalg.eigh(S.toarray())
    fixed = exact[1][:, : options.pop("Y")] if "Y" in options else None
    options |= {"tol": 1e-8, "maxiter": 150, "retResidualNormsHistory": True}
    single = gla.lobpcg(GpuSparseMatrix(S, device="cpu"), X, Y=fixed, M=make and make(GpuSparseMatrix(S)), **options)
    for world_size in (1, 2, 3):
        rows = RowPartition.by_nnz(S.indptr, world_size)

        def solve(A: RankMatrix, _: Any, rows: RowPartition = rows) -> Any:
            own = rows.rows(A.communicator.rank)
            rank_options = {"Y": None if fixed is None else fixed[own], "M": make and make(A.diagonal)}
            return gla.lobpcg(A, X[own], **rank_options, **options)

        results = solve_on_ranks(run if world_size > 1 else run_ranks, world_size, S, X, solve)
        values, vectors = results[0][0], np.concatenate([part[1] for part in results])
        for part in results:
            np.testing.assert_array_equal(part[0], values)
        np.testing.assert_allclose(values, single[0], rtol=1e-12)
        assert np.linalg.norm(S @ vectors - vectors * values, axis=0).max() < 2e-8
        np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(3), atol=1e-12)
        if make is None:  # IC(0) of the diagonal blocks differs from IC(0) of A
            assert abs(len(results[0][2]) - len(single[2])) <= 2


def with_distinct_eigenvalues(side: int, dtype: Any) -> sp.csr_array:
    """Return a matrix with distinct eigenvalues, so that the iterates agree and not only their span."""
    S = laplacian(side, dtype)
    return sp.csr_array(S + sp.diags_array(np.linspace(0, 1, S.shape[0])))


def test_lobpcg_works_with_an_empty_rank_and_refuses_too_few_rows() -> None:
    S = with_distinct_eigenvalues(6, float)
    rows, X = RowPartition((0, 20, 20, 36)), np.random.default_rng(0).standard_normal((36, 2))

    def solve(communicator: Communicator, columns: int) -> Any:
        own = rows.rows(communicator.rank)
        A = RankMatrix(S[own], rows, rows, communicator, device="cpu")
        return gla.lobpcg(A, np.tile(X, columns)[own], tol=1e-9, maxiter=100)

    results = run_ranks(lambda communicator: solve(communicator, 1), 3)
    eigenvectors = np.concatenate([vectors for _, vectors in results])
    np.testing.assert_allclose(S @ eigenvectors, eigenvectors * results[0][0], atol=1e-8)
    with pytest.raises(ShapeError, match="on one"):
        run_ranks(lambda communicator: solve(communicator, 4), 3)


@pytest.mark.parametrize("name", ["cg", "cg, single reduction", "gmres", "minres"])
def test_solvers_work_with_fewer_rows_than_ranks(name: str) -> None:
    S = laplacian(12)[:3, :3]
    b = right_hand_side(S)
    results = solve_on_ranks(run_ranks, 5, S, b, SOLVES[name])
    np.testing.assert_allclose(np.concatenate([part.x for part in results]), np.linalg.solve(S.toarray(), b), atol=1e-8)


@pytest.mark.parametrize("name", ["cg", "cg, single reduction"])
def test_blocks_precondition_their_own_rows(name: str) -> None:
    S = laplacian(16)
    b = right_hand_side(S)

    def solve(A: RankMatrix, own: Any) -> Any:
        return SOLVES[name](A, own, M=gla.ic0(A))

    plain, preconditioned = solve_on_ranks(run_ranks, 3, S, b, SOLVES[name]), solve_on_ranks(run_ranks, 3, S, b, solve)
    assert residual(S, np.concatenate([part.x for part in preconditioned]), b) < 1e-8
    assert preconditioned[0].iterations < 0.7 * plain[0].iterations


def test_all_ranks_replace_a_residual_that_rounding_has_made_too_small() -> None:
    S = jumping_coefficients(12, 1e6)
    b = right_hand_side(S)

    def solve(A: RankMatrix, own: Any) -> Any:
        return gla.cg(A, own, rtol=1e-12, single_reduction=True, full_output=True)

    results = solve_on_ranks(run_ranks, 2, S, b, solve)
    assert len({(part.info, part.iterations) for part in results}) == 1
    assert residual(S, np.concatenate([part.x for part in results]), b) < 2e-12


def test_a_callback_receives_the_part_of_its_rank() -> None:
    S = laplacian(8)
    b = right_hand_side(S)

    def solve(A: RankMatrix, own: Any) -> Any:
        iterates: list[Any] = []
        result = gla.cg(A, own, rtol=1e-10, callback=lambda x: iterates.append(x.copy()), full_output=True)
        return result, iterates

    results = solve_on_ranks(run_ranks, 3, S, b, solve)
    counts = {len(iterates) for _, iterates in results}
    assert len(counts) == 1
    np.testing.assert_array_equal(results[1][1][-1], results[1][0].x)


@pytest.mark.parametrize("run", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("others", [0, 25])
def test_ranks_that_stop_at_different_times_raise_an_error(run: Callable[..., Any], others: int) -> None:
    S = laplacian(8)

    def solve(A: RankMatrix, own: Any) -> Any:
        return gla.cg(A, own, rtol=1e-12, maxiter=others if A.communicator.rank else 5)

    with pytest.raises(CommunicationError):
        solve_on_ranks(partial(run, timeout=1.0), 2, S, right_hand_side(S), solve)


@pytest.mark.parametrize("name", ["cg", "cg, single reduction", "bicgstab", "gmres", "minres"])
def test_all_ranks_name_the_argument_of_which_one_rank_has_nan(name: str) -> None:
    S = MATRICES.get(name, laplacian)(8)
    b = right_hand_side(S)
    b[-1] = np.nan
    for result in solve_on_ranks(run_ranks, 2, S, b, SOLVES[name]):
        assert result.info != 0
        assert "b holds NaN or inf" in result.advice
