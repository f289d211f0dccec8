"""Sparse algebra of matrices on a dask cluster, compared with SciPy's."""

from __future__ import annotations

import operator
import os
import pickle
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import gsparse.linalg as gla
import gsparse.sparse
from asv_bench.elliptic_problems import poisson
from gsparse.errors import CommunicationError, HostFallbackError, ShapeError, WorkerLostError
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.groups import wait_until
from tests.ranks.test_rank_algebra import ELEMENTWISE, NOT_FOR, numbers, random_matrix

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed import DistributedMatrix, LocalGpuCluster, distribute, from_loaders  # noqa: E402
from tests.ranks.faults import count_states  # noqa: E402

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

NUM_WORKERS = 4


def check(result: Any, expected: Any) -> None:
    """Compare a distributed matrix, or what it returns, with SciPy's result."""
    is_distributed = isinstance(result, DistributedMatrix)
    got = result.tocsr() if is_distributed else result
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    dense, wanted = (x.toarray() if sp.issparse(x) else x for x in (got, expected))
    eps = np.finfo(got.dtype).eps if got.dtype.kind in "fc" else 0
    np.testing.assert_allclose(dense, wanted, rtol=100 * eps, atol=100 * eps)
    if is_distributed:
        assert got.has_canonical_format
        x = np.arange(result.shape[1]) % 5
        np.testing.assert_allclose(result @ x, got @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("world_size", "dtype"), [(1, "int64"), (2, "complex128"), (3, "bool"), (4, "float32")])
def test_products_sums_and_multiples_match_scipy(client: Any, workers: list[str], world_size: int, dtype: str) -> None:
    rng = np.random.default_rng(world_size)
    for m, k, n, density in ((40, 30, 50, 0.1), (3, 20, 3, 0.4), (0, 4, 3, 0.5), (5, 5, 5, 0.0)):
        S, T, U = (
            random_matrix(rng, *shape, density, dtype if dtype in ("float32", "complex128") else "float64")
            for shape in ((m, k), (k, n), (m, k))
        )
        if dtype in ("int64", "bool"):
            S, T, U = ((100 * matrix).astype(dtype) for matrix in (S, T, U))
        options: dict[str, Any] = {"client": client, "workers": workers[:world_size], "timeout": 20}
        with (
            distribute(S, partition="rows", **options) as A,
            distribute(T, **options) as B,
            distribute(U, partition="rows", **options) as C,
        ):
            for result, expected in (
                (A @ B, S @ T), (A + C, S + U), (2 * A, 2 * S), (A * np.float32(3), S * np.float32(3)), (A / 2, S / 2),
                (A.T @ C, S.T @ U), (A @ C.T, S @ U.T), (A.H.tomatrix(), S.conj().T), (A.T + C.T, S.T + U.T),
                (-(A.T) if dtype != "bool" else A.T.tomatrix(), -S.T if dtype != "bool" else S.T),
                ((A - C) if dtype != "bool" else A + C, S - U if dtype != "bool" else S + U),
                ((A @ B) @ (A @ B).T, (S @ T) @ (S @ T).T),
            ):  # fmt: skip
                with result:
                    check(result, sp.csr_array(expected))


@pytest.mark.parametrize(
    ("world_size", "shape", "options"),
    [(1, (41, 41), {"reorder": "rcm"}), (2, (30, 50), {}), (3, (41, 41), {"reorder": "rcm"}), (4, (41, 41), {}),
     (4, (0, 4), {}), (4, (3, 7), {"partition": "rows"})],
    ids=str,
)  # fmt: skip
def test_entries_match_scipy(
    client: Any, workers: list[str], world_size: int, shape: tuple[int, int], options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(7)
    S = random_matrix(rng, *shape, 0.2, "float64")
    with distribute(S, client=client, workers=workers[:world_size], **options) as A:
        check(A.tocsr(), S)
        for k in (0, 3, -2, 100, -100):
            check(A.diagonal(k), S.diagonal(k))
        for axis in (None, 0, 1, -1):
            check(A.sum(axis), S.sum(axis))
        rows = [slice(1, 9), slice(None, None, -2), np.arange(S.shape[0]) % 3 == 1, []]
        if S.shape[0]:
            rows += [[2, 0, -1, 2], 2, np.int64(-1)]
        for selected in rows:
            check(
                A[selected],
                sp.csr_array(S[selected]) if np.ndim(selected) or isinstance(selected, slice) else S[selected],
            )
        if "reorder" in options:
            assert A.permutation is not None


@pytest.mark.parametrize(("world_size", "dtype"), [(1, "float64"), (2, "int8"), (3, "complex128"), (3, "bool")])
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_element_wise_operations_match_scipy(client: Any, workers: list[str], world_size: int, dtype: str) -> None:
    rng = np.random.default_rng(world_size)
    options: dict[str, Any] = {"client": client, "workers": workers[:world_size], "partition": "rows"}
    for m, n, reorder in ((20, 30, None), (9, 9, "rcm"), (0, 4, None)):
        S, T = numbers(rng, m, n, 0.3, dtype), numbers(rng, m, n, 0.3, dtype)
        if reorder:  # Both are permuted in the same way if they have the same structure.
            T = sp.csr_array((rng.permutation(S.data), S.indices, S.indptr), shape=S.shape)
        row, column, dense = (numbers(rng, *shape, 1.0, dtype).toarray() for shape in ((1, n), (m, 1), (m, n)))
        column[column == 0] = 1
        with distribute(S, reorder=reorder, **options) as A, distribute(T, reorder=reorder, **options) as C:
            for name in ELEMENTWISE:
                if name not in NOT_FOR.get(dtype, ()):
                    with ELEMENTWISE[name](A, C, row, column, dense) as result:
                        check(result, sp.csr_array(ELEMENTWISE[name](S, T, row, column, dense)))
            if m and dtype == "float64":
                with (
                    A.multiply(A.vector(row[0], axis=1)) as result,
                    result / A.vector(column[:, 0])[:, None] as quotient,
                ):
                    check(quotient, sp.csr_array(S.multiply(row) / column))


@pytest.mark.parametrize(("world_size", "reorder"), [(1, None), (2, "rcm"), (3, None)], ids=str)
def test_selections_stacks_and_reductions_match_scipy(
    client: Any, workers: list[str], world_size: int, reorder: str | None
) -> None:
    rng = np.random.default_rng(world_size)
    S = random_matrix(rng, 24, 24, 0.2, "float64")
    wide = random_matrix(rng, 24, 40, 0.2, "float64")
    p, mask = rng.permutation(24), rng.random(24) < 0.5
    options: dict[str, Any] = {"client": client, "workers": workers[:world_size], "partition": "rows"}
    with distribute(S, reorder=reorder, **options) as A, distribute(wide, **options) as W:
        for key in (slice(3, 17), slice(None, None, -2), p, mask, [5, 5, 0], (slice(None), mask), (p, slice(2, 9)),
                    np.ix_(p, p), (Ellipsis, slice(0, 5)), (slice(4, 4), slice(None))):  # fmt: skip
            with A[key] as part:
                check(part, sp.csr_array(S[key]))
        with A[p][:, p] as part, part[np.argsort(p)] as back, back[:, np.argsort(p)] as same:
            check(same, S)
        for key in (3, -1, (3, 4), (2, slice(1, 9))):
            got, expected = A[key], S[key]
            assert np.array_equal(*(each.toarray() if sp.issparse(each) else each for each in (got, expected)))
        with gsparse.sparse.vstack([A, A[:5]]) as below, gsparse.sparse.hstack([A, W]) as beside:
            check(below, sp.vstack([S, S[:5]], format="csr"))
            check(beside, sp.hstack([S, wide], format="csr"))
        for axis in (None, 0, 1, -1):
            for name in ("sum", "mean", "max", "min", "nanmax", "nanmin", "argmax", "argmin", "count_nonzero"):
                got, expected = getattr(A, name)(axis=axis), getattr(S, name)(axis=axis)
                got, expected = (each.toarray() if sp.issparse(each) else each for each in (got, expected))
                np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13, err_msg=f"{name} {axis}")
        assert A.trace() == pytest.approx(S.trace())
        for order in (None, "fro", 1, -1, np.inf, -np.inf):
            assert gla.norm(A, order) == pytest.approx(spla.norm(S, order), rel=1e-13)
        for axis in (0, 1):
            np.testing.assert_allclose(gla.norm(A, axis=axis), spla.norm(S, axis=axis), rtol=1e-13)
        for function in (np.log1p, np.square, np.negative, lambda M: np.multiply(2.0, M)):
            with function(A) as result:
                check(result, sp.csr_array(function(S)))
        check(p @ A, p @ S)
        with pytest.raises(TypeError, match=r"numpy\.exp"):
            np.exp(A)


def test_strict_forbids_operations_on_the_hosts_of_workers(client: Any, workers: list[str]) -> None:
    with distribute(laplacian(6), client=client, workers=workers[:2]) as A:
        lend = partial(A._rank_group.call, lambda rank: rank.matrix.diagonal.data.size)
        lend()
        with gsparse.strict():
            assert A.tocsr().nnz == A.nnz
            with pytest.raises(HostFallbackError):
                lend()


@pytest.mark.filterwarnings("ignore::gsparse.errors.ConvergenceWarning")
def test_solve_chooses_a_method_for_the_matrix(client: Any, workers: list[str]) -> None:
    S, rng = poisson(12, 7), np.random.default_rng(0)
    flow = sp.csr_array(S + sp.diags_array([1.0, -0.4], offsets=[0, 1], shape=S.shape))
    scale = sp.diags_array(10.0 ** rng.integers(-8, 9, S.shape[0]))  # The scaled matrix is Hermitian row by row only.
    for matrix, method in (
        (S, "cg with amg"),
        (sp.csr_array(scale @ S @ scale), "cg with amg"),
        (flow, "fgmres with amg"),
        (sp.csr_array(scale @ flow), "fgmres with amg"),
        (sp.csr_array(sp.random_array((300, 100), density=0.1, rng=rng)), "lsmr"),
    ):
        b = matrix @ rng.standard_normal(matrix.shape[1])
        with distribute(matrix, client=client, workers=workers[:2]) as A:
            result = gla.solve(A, b)
            assert result.attempts[0].method == method
            assert result.info or np.linalg.norm(matrix @ result.x - b) <= 1.01e-7 * np.linalg.norm(b)
    with distribute(S, client=client, workers=workers[:2]) as A:
        assert gla.solve(A, np.ones(S.shape[0])).method == "cg with amg"
        with pytest.raises(TypeError, match="call lsmr"):
            gla.solve(A, np.ones(S.shape[0]), damp=1.0)
        with pytest.raises(TypeError, match=r"pass A\.tocsr\(\), or call solve"):
            gla.spsolve(A, np.ones(S.shape[0]))


def test_zeros_are_removed_and_too_large_matrices_refused(
    client: Any, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    S = random_matrix(np.random.default_rng(1), 30, 30, 0.3, "float64")
    S.data[::3] = 0
    T, x = S.copy(), np.arange(30.0)
    T.eliminate_zeros()
    with distribute(S, client=client, workers=workers[:3]) as A:
        before = A @ x
        A.eliminate_zeros()
        assert A.nnz == T.nnz
        np.testing.assert_allclose(A @ x, before, rtol=1e-14)
        with A.with_data(np.arange(T.nnz) + 1.0) as B, A.copy() as copy:
            np.testing.assert_array_equal(B.tocsr().data, np.arange(T.nnz) + 1.0)
            check(copy, T)
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
        with pytest.raises(MemoryError, match=r"take a part, A\[rows\]\.tocsr\(\)"):
            A.toarray()


@pytest.mark.parametrize("world_size", [1, 3])
def test_permuted_matrices_match_scipy(client: Any, workers: list[str], world_size: int) -> None:
    rng = np.random.default_rng(5)
    S = laplacian(9)
    shuffled = rng.permutation(81)
    S = sp.csr_array(S[shuffled][:, shuffled])
    T = S.copy()
    T.data = rng.standard_normal(T.nnz)
    T.sort_indices()
    placement: dict[str, Any] = {"client": client, "workers": workers[:world_size]}
    with distribute(S, reorder="rcm", **placement) as A, A.with_data(T.data) as B, A.T.tomatrix() as transposed:
        assert A.permutation is not None
        for result, expected in ((A @ B, S @ T), (A - B, S - T), (A.T @ B, S.T @ T), (A + transposed, S + S.T)):
            with result:
                assert np.array_equal(result.permutation, A.permutation)
                check(result, sp.csr_array(expected))
        check(B, T)
        check(B.diagonal(1), T.diagonal(1))
        check(B[[5, 80, 0]], T[[5, 80, 0]])
        with distribute(T, **placement) as other, pytest.raises(ShapeError, match="different orders"):
            A @ other
        moved = (A @ B).repartition("rows", workers=workers[:1])
        with moved:
            check(moved, S @ T)


@pytest.mark.parametrize(("world_size", "options"), [(2, {}), (4, {"reorder": "rcm"})], ids=str)
def test_time_stepping_updates_multigrid(
    client: Any, workers: list[str], world_size: int, options: dict[str, Any]
) -> None:
    S = poisson(24, 5)
    mass = sp.diags_array(np.linspace(0, 200, S.shape[0]), format="csr")
    structure_only: dict[str, Any] = {"strength": None, "max_levels": 2, "max_coarse": 20}
    rng = np.random.default_rng(0)
    b = rng.standard_normal(S.shape[0])
    A = distribute(S, client=client, workers=workers[:world_size], **options)
    M = gla.amg(A, **structure_only)
    for step in range(3):
        T = sp.csr_array(S * (1 + rng.random()) + step * mass)
        previous, A = A, A.with_data(T.data)
        assert (A.row_bounds, A.ghosts_per_worker) == (previous.row_bounds, previous.ghosts_per_worker)
        M.update(A)
        previous.close()
        np.testing.assert_allclose(M @ b, gla.amg(A, **structure_only) @ b, rtol=1e-8)
        assert residual(T, gla.cg(A, b, M=M, rtol=1e-8)[0], b) < 1e-7
    A.close()


def test_multigrid_is_updated_after_its_matrix_has_been_closed(client: Any, workers: list[str]) -> None:
    S, b = poisson(24, 5), np.random.default_rng(0).standard_normal(24**2)
    T = sp.csr_array(S + sp.diags_array(np.linspace(0, 20, S.shape[0])))
    A = distribute(S, client=client, workers=workers[:2])
    M = gla.amg(A, max_coarse=20)
    with A.with_data(T.data) as B:
        A.close()
        assert M.update(B) is M
        np.testing.assert_allclose(M @ b, gla.amg(B, max_coarse=20) @ b, rtol=1e-8)
        assert residual(T, gla.cg(B, b, M=M, rtol=1e-8)[0], b) < 1e-7


def test_results_solve_and_are_saved_like_any_matrix(client: Any, workers: list[str], tmp_path: Path) -> None:
    S = laplacian(10)
    b = right_hand_side(S)
    with distribute(S, client=client, workers=workers[:2]) as A, A.T @ A as N:
        expected = sp.csr_array(S.T @ S)
        A.close()
        result = gla.cg(N, b, M=gla.amg(N), rtol=1e-10, full_output=True, on_failure="resume")
        assert residual(expected, result.x, b) < 1e-8
        assert gla.cg(N, b, M=gla.ic0(N))[1] == 0
        files = N.checkpoint(tmp_path)
        with from_loaders(files, N.shape, client=client, workers=workers[:2]) as saved:
            check(saved, expected)
        with pytest.raises(ValueError, match=r"distribute\(A.tocsr\(\), ...\)"):
            N.repartition(reorder="rcm")
        everywhere = N.repartition()
        assert len(everywhere.workers) == 4
        check(everywhere, expected)
        again = everywhere.repartition((0, 0, 30, 100), workers=3)
        check(again, expected)
        again.close()
        with pytest.raises(CommunicationError, match="closed"):
            again.repartition()


def test_the_result_outlives_its_operands(client: Any, workers: list[str]) -> None:
    S, T = laplacian(6), sp.csr_array(2.0 * laplacian(6))
    A, B = (distribute(matrix, client=client, workers=workers[:2]) for matrix in (S, T))
    results = [A @ B, A + B, 3 * A, A.T.tomatrix(), A.with_data(S.tocsr().data)]
    A.close()
    B.close()
    for result, expected in zip(results, (S @ T, S + T, 3 * S, S.T, S), strict=True):
        check(result, sp.csr_array(expected))
        assert gla.cg(result, np.ones(36), rtol=1e-8)[1] == 0
        result.close()
    for call in (lambda: A @ B, lambda: 2 * A, lambda: A.T @ B, A.tocsr, A.diagonal, A.sum, lambda: A[1:2]):
        with pytest.raises(CommunicationError, match="closed"):
            call()


def test_results_that_nobody_refers_to_are_released(client: Any, workers: list[str]) -> None:
    S = laplacian(6)
    before = client.run(count_states)
    with distribute(S, client=client, workers=workers[:2]) as A:
        (A @ A).close()
        x = (2 * A + A.T) @ np.ones(36)
        step = A
        for factor in range(3):
            step = step.with_data((factor + 1) * S.data)
        np.testing.assert_allclose(x, 3 * (S @ np.ones(36)), atol=1e-12)
        del step
        # An actor and a rank of A are left.
        wait_until(lambda: max(client.run(count_states).values()) <= 2 + max(before.values()))
    wait_until(lambda: client.run(count_states) == before)


def test_operands_that_do_not_fit_are_refused(client: Any, workers: list[str]) -> None:
    S = laplacian(6)
    placement: dict[str, Any] = {"client": client, "workers": workers[:2]}
    with (
        distribute(S, **placement) as A,
        distribute(S, partition=(0, 5, 36), **placement) as other,
        distribute(S, client=client, workers=workers[1::-1]) as elsewhere,
        distribute(sp.csr_array((7, 5)), **placement) as small,
    ):
        for combine in (operator.add, operator.sub):
            with pytest.raises(ShapeError, match=r"B.repartition\(A.row_bounds, workers=A.workers\)"):
                combine(A, other)
            with pytest.raises(ShapeError, match="inconsistent shapes"):
                combine(A, small)
        with A @ other as product:  # a product takes rows from wherever they are
            check(product, S @ S)
        with pytest.raises(ShapeError, match=r"\(36, 36\) times \(7, 5\)"):
            A @ small
        with pytest.raises(ShapeError, match=r"B.repartition\(workers=A.workers\)"):
            A @ elsewhere
        for wrong in (lambda: A @ S, lambda: S @ A, lambda: A + S, lambda: A - S, lambda: A.T @ S):
            with pytest.raises(TypeError, match="distribute it first"):
                wrong()
        for wrong in (lambda: S == A, lambda: A != S, lambda: A.multiply(S)):
            with pytest.raises(TypeError, match="distribute it first"):
                wrong()
        for wrong in (lambda: A.maximum(np.ones(36)), lambda: A / A, lambda: np.ones(36) == A, lambda: A.power("2")):
            with pytest.raises(TypeError, match="over ranks"):
                wrong()
        with pytest.raises(NotImplementedError, match="nonzero scalar"):
            A + 1
        assert len({A, A.T, other}) == 3
        for wrong in (lambda: A * "2", lambda: A / "2", lambda: "2" * A):
            with pytest.raises(TypeError):
                wrong()
        with pytest.raises(ValueError, match="scalar"):
            A @ 2
        for wrong, words in ((([1, 2], [3, 4]), r"A\[rows\]\[:, columns\]"), ([36], "out of range"), (0.5, "dimension"),
                             (np.ones(3, bool), r"shape \(3,\)"), ([[1, 2], [3, 4]], "of one dimension"),
                             ((0, 1, 2), "Too many indices"), ((None, 3), "of one dimension")):  # fmt: skip
            with pytest.raises(IndexError, match=words):
                A[wrong]
        with pytest.raises(ValueError, match="axis"):
            A.sum(2)
        np.testing.assert_allclose(A @ np.ones(36), S @ np.ones(36), atol=1e-12)


def test_a_result_says_that_a_lost_worker_takes_its_rows(tmp_path: Path) -> None:
    S = laplacian(6)
    with (
        LocalGpuCluster(2, device="cpu") as cluster,
        distributed.Client(cluster, set_as_default=False) as own_client,
        distribute(S, client=own_client) as A,
        A @ A as squared,
    ):
        pid = own_client.run(os.getpid)[squared.workers[1]]
        own_client.retire_workers([squared.workers[1]], close_workers=True)
        os.kill(pid, signal.SIGKILL)  # as it might go on for a moment
        for call in (
            lambda: gla.cg(squared, np.ones(36), on_failure="resume"),
            lambda: gla.cg(squared, np.ones(36)),
            lambda: squared @ np.ones(36),
            lambda: squared @ squared,
            lambda: -squared,
            lambda: squared.vector(np.ones(36)),
            lambda: gla.amg(squared),
            squared.repartition,
            lambda: squared.repartition("rows", workers=1),
            lambda: squared.repartition((0, 36), workers=1),
            squared.tocsr,
            squared.diagonal,
            lambda: squared.checkpoint(tmp_path),
        ):
            with pytest.raises(
                WorkerLostError, match=r"gone, .*computed from other matrices, so compute it .* again"
            ) as lost:
                call()
            assert (lost.value.rank, lost.value.address) == (1, squared.workers[1])
            assert str(pickle.loads(pickle.dumps(lost.value))) == str(lost.value)
        for call in (A.tocsr, lambda: A @ np.ones(36)):
            with pytest.raises(WorkerLostError, match=r"A = A\.repartition\(\) makes them again"):
                call()
        with A.repartition() as again, again @ again as result:
            check(result, S @ S)
            result.close()
            with pytest.raises(CommunicationError, match="closed: the matrix was computed from other matrices"):
                result.repartition()
