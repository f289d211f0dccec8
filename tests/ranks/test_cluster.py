"""Distributed matrices on a dask cluster with real worker processes, used as a user would."""

from __future__ import annotations

import operator
import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse.linalg as gla
from asv_bench.elliptic_problems import elasticity, poisson
from gsparse import GpuSparseMatrix
from gsparse.device.select import get_device
from gsparse.errors import (
    CoarseningWarning,
    CommunicationError,
    ConvergenceWarning,
    DeviceError,
    DtypeError,
    FactorizationError,
    ShapeError,
    StructureError,
)
from tests.linalg.problems import convection, laplacian, rectangular, residual, right_hand_side
from tests.ranks.groups import LONG, SOON, make_certificate, wait_until
from tests.ranks.test_blocks import matrices
from tests.support import random_values

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
da = pytest.importorskip("dask.array")
from gsparse.distributed import LocalGpuCluster, distribute, from_dask, from_loaders  # noqa: E402
from gsparse.distributed.client import products  # noqa: E402
from gsparse.distributed.client.cluster import GpuCluster  # noqa: E402
from gsparse.distributed.client.rank_servers import RankServers  # noqa: E402
from gsparse.distributed.io.loaders import RowLoader  # noqa: E402
from tests.ranks.faults import (  # noqa: E402
    error_within_deadline,
    is_solving,
    limit_file_size,
    running_calls,
    start_solve,
)

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

NUM_WORKERS = 4


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_products_match_scipy(client: Any, workers: list[str], world_size: int, dtype: str) -> None:
    rng = np.random.default_rng(world_size)
    structures = matrices(dtype)
    names = list(structures) if world_size in (1, 4) else ["square", "fewer rows than ranks"]
    for name in names:
        S = structures[name]
        x, z = random_values(rng, S.shape[1], dtype), random_values(rng, S.shape[0], dtype)
        with distribute(S, client=client, workers=workers[:world_size], timeout=20) as A:
            assert (A.shape, A.dtype, A.nnz) == (S.shape, S.dtype, S.nnz)
            for got, expected in (
                (A @ x, S @ x), (A.T @ z, S.T @ z), (A.H @ z, S.conj().T @ z), (A.rmatvec(z), S.conj().T @ z),
                (A @ np.stack([x, 2 * x], axis=1), S @ np.stack([x, 2 * x], axis=1)),
                (A.T @ np.stack([z, z, z], axis=1), S.T @ np.stack([z, z, z], axis=1)),
                (A @ np.ones(S.shape[1], int), S @ np.ones(S.shape[1], int)),
            ):  # fmt: skip
                np.testing.assert_allclose(got, expected, atol=1e-12)
                assert got.dtype == expected.dtype


def test_products_with_dask_arrays_are_dask_arrays_chunked_by_rows(client: Any, workers: list[str]) -> None:
    S = matrices("float64")["square"]
    x = np.random.default_rng(0).standard_normal(101)
    with distribute(S, client=client, workers=workers[:3]) as A:
        lazy = A @ da.from_array(x, chunks=17)
        assert isinstance(lazy, da.Array)
        assert lazy.chunks == (tuple(np.diff(A.row_bounds).tolist()),)
        np.testing.assert_allclose(lazy.compute(), S @ x, atol=1e-12)
        np.testing.assert_allclose((A.T @ da.from_array(x, chunks=50)).compute(), S.T @ x, atol=1e-12)
        X = da.from_array(np.stack([x, x + 1], axis=1), chunks=(30, 1))
        np.testing.assert_allclose((A @ X).compute(), S @ X.compute(), atol=1e-12)
        np.testing.assert_allclose((A @ (A @ da.from_array(x, chunks=20))).compute(), S @ (S @ x), atol=1e-12)
        with pytest.raises(ShapeError, match="101"):
            A @ da.ones(7)


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32"])
def test_a_product_that_is_not_computed_yet_has_the_dtype_of_the_result(
    client: Any, workers: list[str], dtype: str
) -> None:
    S = laplacian(6).astype("int8")
    x = np.ones(36, dtype)
    with distribute(S, client=client, workers=workers[:2]) as A:
        for operator in (A, A.T):
            lazy = operator @ da.from_array(x, chunks=18)
            assert lazy.dtype == lazy.compute().dtype == (operator @ x).dtype


SOLVES: dict[str, Callable[..., Any]] = {
    "cg": gla.cg, "bicgstab": gla.bicgstab, "gmres": gla.gmres, "fgmres": gla.fgmres, "minres": gla.minres,
    "cg, single reduction": lambda A, b, *x0, **o: gla.cg(A, b, *x0, single_reduction=True, **o),
    "chebyshev": lambda A, b, *x0, **o: gla.chebyshev(A, b, *x0, bounds=(0.05, 8), **o),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVES)
def test_our_solvers_run_on_the_workers(client: Any, workers: list[str], name: str) -> None:
    S = convection(11) if name in ("gmres", "fgmres", "bicgstab") else laplacian(11)
    b, solve = right_hand_side(S), SOLVES[name]
    single = solve(GpuSparseMatrix(S, device="cpu"), b, rtol=1e-10, full_output=True)
    with distribute(S, client=client, workers=workers[:3]) as A:
        result = solve(A, b, rtol=1e-10, full_output=True)
        assert type(result.x) is np.ndarray
        assert (result.info, result.reason) == (single.info, single.reason)
        np.testing.assert_allclose(result.x, single.x, atol=1e-7)
        assert abs(result.iterations - single.iterations) <= 2
        x, info = solve(A, da.from_array(b, chunks=40), rtol=1e-10)
        assert isinstance(x, da.Array)
        assert x.chunks == (tuple(np.diff(A.row_bounds).tolist()),)
        assert info == 0
        np.testing.assert_allclose(x.compute(), result.x, atol=1e-12)
        for guess in (
            solve(A, b, result.x, rtol=1e-8, full_output=True),
            solve(A, b, x0=result.x, rtol=1e-8, full_output=True),
        ):
            assert guess.iterations <= 1


@pytest.mark.parametrize("name", ["lsqr", "lsmr"])
def test_least_squares_solvers_run_on_the_workers(client: Any, workers: list[str], name: str) -> None:
    S = rectangular(80, 33)
    b, solve = right_hand_side(S), getattr(gla, name)
    single = solve(GpuSparseMatrix(S, device="cpu"), b, full_output=True)
    expected = single.in_scipys_form()
    with distribute(S, client=client, workers=workers[:3]) as A:
        result = solve(A, b)
        assert len(result) == len(expected)
        assert result[1] == expected[1]
        np.testing.assert_allclose(result[0], expected[0], atol=1e-6)
        full = solve(A, b, full_output=True)
        assert (full.info, full.reason) == (0, single.reason)
        for mine, local in zip(full.in_scipys_form(), result, strict=True):
            np.testing.assert_array_equal(mine, local)
        x = solve(A, da.from_array(b, chunks=30))[0]
        np.testing.assert_allclose(x.compute(), result[0], atol=1e-12)


@pytest.mark.parametrize("is_dask", [False, True])
@pytest.mark.parametrize("name", ["cg", "minres", "bicgstab", "lsqr", "lsmr"])
def test_a_solve_that_has_not_converged_warns_once_in_the_words_of_a_local_one(
    client: Any, workers: list[str], name: str, is_dask: bool
) -> None:
    S, solve = laplacian(9), getattr(gla, name)
    b = right_hand_side(S)
    limit: dict[str, Any] = {"iter_lim" if name == "lsqr" else "maxiter": 2}
    with pytest.warns(ConvergenceWarning) as local:
        solve(GpuSparseMatrix(S, device="cpu"), b, **limit)
    with distribute(S, client=client, workers=workers[:2]) as A:
        rhs = da.from_array(b, chunks=50) if is_dask else b
        with warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            solve(A, rhs, **limit)
        issued = [warning for warning in issued if warning.category is ConvergenceWarning]
        assert [(str(w.message), w.filename) for w in issued] == [(str(local[0].message), __file__)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            result = solve(A, rhs, **limit, full_output=True)
            solve(A, rhs)
        assert result.info != 0
        assert result.advice in str(issued[0].message)


def test_preconditioners_but_multigrid_are_made_of_each_ranks_block(client: Any, workers: list[str]) -> None:
    S = laplacian(20)
    b = right_hand_side(S)
    with distribute(S, client=client, workers=workers[:2]) as A:
        plain = gla.cg(A, b, rtol=1e-10, full_output=True)
        owned = [slice(lo, hi) for lo, hi in pairwise(A.row_bounds)]
        for make, most in ((gla.ic0, 0.7), (gla.amg, 0.3), (gla.jacobi, 1.05)):
            M = make(A)
            result = gla.cg(A, b, rtol=1e-10, M=M, full_output=True)
            assert result.info == 0
            assert residual(S, result.x, b) < 1e-9
            assert result.iterations <= most * plain.iterations
            of_blocks = np.concatenate([make(GpuSparseMatrix(S[own, own], device="cpu")) @ b[own] for own in owned])
            assert np.allclose(M @ b, of_blocks, rtol=1e-12) == (make is not gla.amg)
        with pytest.raises(TypeError, match="made of the distributed matrix"):
            gla.cg(A, b, M=sp.eye_array(S.shape[0]))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_lobpcg_runs_on_the_workers(
    client: Any, workers: list[str], world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = laplacian(10) + sp.diags_array(np.linspace(0, 1, 100))
    X = np.random.default_rng(0).standard_normal((100, 3))
    options: dict[str, Any] = {"tol": 1e-8, "maxiter": 100, "largest": False}
    single = gla.lobpcg(GpuSparseMatrix(S, device="cpu"), X, **options)

    def fail_on_multiply(*args: Any) -> None:
        raise AssertionError("blocks came back for a product")

    monkeypatch.setattr(products.WorkerProducts, "multiply", fail_on_multiply)
    with distribute(S, client=client, workers=workers[:world_size], reorder="rcm") as A:
        for M, x in ((None, X), (gla.ic0(A), X), (gla.jacobi(A), da.from_array(X, chunks=(30, 2)))):
            values, vectors, norms = gla.lobpcg(A, x, M=M, retResidualNormsHistory=True, **options)
            np.testing.assert_allclose(values, single[0], rtol=1e-12)
            assert type(vectors) is type(x)
            vectors = np.asarray(vectors)
            assert max(np.linalg.norm(S @ vectors - vectors * values, axis=0).max(), norms[-1].max()) < 1e-7
        second = gla.lobpcg(A, X[:, 1:], Y=np.asarray(single[1])[:, :1], **options)
        np.testing.assert_allclose(second[0], single[0][1:], rtol=1e-10)
        with pytest.warns(UserWarning, match="above the tolerance"):
            gla.lobpcg(A, X, tol=1e-12, maxiter=2)
        with pytest.raises(ShapeError, match="does not fit"):
            gla.lobpcg(A, X[1:])


@pytest.mark.parametrize(("partition", "reorder"), [("rows", None), ("nnz", "rcm"), ("metis", None), ("metis", "rcm")])
def test_orders_and_partitions_do_not_change_results(
    client: Any, workers: list[str], partition: str, reorder: str | None
) -> None:
    if partition == "metis":
        pytest.importorskip("pymetis", reason="needs pymetis")
    S = laplacian(12)
    shuffled = np.random.default_rng(1).permutation(S.shape[0])
    S = sp.csr_array(S[shuffled][:, shuffled])
    b = right_hand_side(S)
    with distribute(S, client=client, workers=workers[:3], partition=partition, reorder=reorder) as A:
        np.testing.assert_allclose(A @ b, S @ b, atol=1e-12)
        np.testing.assert_allclose(A.T @ b, S.T @ b, atol=1e-12)
        np.testing.assert_allclose((A @ da.from_array(b, chunks=40)).compute(), S @ b, atol=1e-12)
        assert residual(S, gla.cg(A, b, rtol=1e-10)[0], b) < 1e-9
        assert residual(S, gla.cg(A, da.from_array(b, chunks=60), rtol=1e-10)[0].compute(), b) < 1e-9
        if (partition, reorder) != ("rows", None):
            with distribute(S, client=client, workers=workers[:3]) as plain:
                assert sum(A.ghosts_per_worker) < sum(plain.ghosts_per_worker)


def rows_of_laplacian(lo: int, hi: int) -> Any:
    distributed.get_worker()  # an error in the process of the client
    return laplacian(12)[lo:hi]


def test_loaders_and_checkpoints_are_read_by_the_workers(
    client: Any, workers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("the client has read rows")

    monkeypatch.setattr(RowLoader, "rows", fail)
    with pytest.raises(ValueError, match="No worker"):
        rows_of_laplacian(0, 1)
    S = laplacian(12)
    b = right_hand_side(S)
    sp.save_npz(tmp_path / "top.npz", S[:60])
    sp.save_npz(tmp_path / "bottom.npz", S[60:])
    for sources in ([rows_of_laplacian], [tmp_path / "top.npz", tmp_path / "bottom.npz"]):
        with from_loaders(sources, S.shape, client=client, workers=workers[:3]) as A:
            np.testing.assert_allclose(A @ b, S @ b, atol=1e-12)
            assert residual(S, gla.cg(A, b, rtol=1e-10)[0], b) < 1e-9
            files = A.checkpoint(tmp_path / "not" / "there")
        with from_loaders(files, S.shape, client=client, workers=workers[:2]) as again:
            np.testing.assert_allclose(again @ b, S @ b, atol=1e-12)


def test_a_checkpoint_of_a_reordered_matrix_restores_the_matrix(
    client: Any, workers: list[str], tmp_path: Path
) -> None:
    S = laplacian(12)
    shuffled = np.random.default_rng(1).permutation(S.shape[0])
    S = sp.csr_array(S[shuffled][:, shuffled])
    b = right_hand_side(S)
    with distribute(S, client=client, workers=workers[:3], reorder="rcm") as A:
        order = A.permutation
        files = A.checkpoint(tmp_path)
    blocks = sp.vstack([sp.load_npz(file) for file in files])
    assert (blocks != S[order][:, order]).nnz == 0
    with from_loaders(files, S.shape, client=client, workers=workers[:2]) as again:
        np.testing.assert_array_equal(again.permutation, order)
        np.testing.assert_allclose(again @ b, S @ b, atol=1e-12)
        np.testing.assert_allclose((again.T @ da.from_array(b, chunks=50)).compute(), S.T @ b, atol=1e-12)
        assert residual(S, gla.cg(again, b, rtol=1e-10)[0], b) < 1e-9
    sp.save_npz(tmp_path / "plain.npz", sp.load_npz(files[2]))
    for wrong in ([files[1], files[0], files[2]], [*files[:2], tmp_path / "plain.npz"]):
        with pytest.raises(StructureError, match=r"the list that checkpoint\(\) has returned"):
            from_loaders(wrong, S.shape, client=client, workers=workers[:2])


def test_a_failed_checkpoint_leaves_only_the_older_one(client: Any, workers: list[str], tmp_path: Path) -> None:
    S = sp.csr_array(sp.diags_array(np.arange(1.0, 9001)))
    x = np.ones(9000)
    with distribute(S, client=client, workers=workers[:3]) as A:
        files = A.checkpoint(tmp_path)
    with distribute(5 * S, client=client, workers=workers[:3]) as B:
        client.run(limit_file_size, 20_000, workers=workers[1:2])
        try:
            with pytest.raises(OSError, match="File too large"):
                B.checkpoint(tmp_path)
        finally:
            client.run(limit_file_size, -1, workers=workers[1:2])
        assert len(list(tmp_path.iterdir())) == 2  # the link, and the folder of the older one
        with from_loaders(files, S.shape, client=client, workers=workers[:2]) as again:
            np.testing.assert_array_equal(again @ x, S @ x)
        (tmp_path / ("0" * 32)).mkdir()  # as left by a killed rank
        assert B.checkpoint(tmp_path) == files
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(map(str, (tmp_path / "rows").iterdir())) == files
    with from_loaders(files, S.shape, client=client, workers=workers[:2]) as again:
        np.testing.assert_array_equal(again @ x, 5 * (S @ x))


def test_dask_arrays_of_sparse_blocks_become_matrices(client: Any, workers: list[str]) -> None:
    S = laplacian(12)
    chunks = (20, 50, 4, 70)
    ends = np.cumsum((0, *chunks))
    blocks = [
        da.from_delayed(client.submit(operator.getitem, S, slice(a, b), pure=False), (b - a, S.shape[1]), dtype=float)
        for a, b in pairwise(ends.tolist())
    ]
    X = da.concatenate(blocks)
    x = right_hand_side(S)
    with from_dask(X, client=client, workers=workers[:2]) as A:
        assert set(A.row_bounds) <= set(ends.tolist())
        np.testing.assert_allclose(A @ x, S @ x, atol=1e-12)
    with from_dask(X, client=client, workers=workers[:2], partition=(0, 74, 144)) as A:
        assert A.row_bounds == (0, 74, 144)
    with pytest.raises(ShapeError, match="must be bounds of chunks"):
        from_dask(X, client=client, workers=workers[:2], partition=(0, 75, 144))
    with pytest.raises(ShapeError, match="whole rows"):
        from_dask(da.ones((4, 4), chunks=2), client=client)
    for options in ({"reorder": "rcm"}, {"partition": "metis"}):
        with pytest.raises(ValueError, match="need the whole matrix"):
            from_dask(X, client=client, workers=workers[:2], **options)


def test_repartition_closes_the_old_matrix_and_str_describes_the_new_one(client: Any, workers: list[str]) -> None:
    S = laplacian(10)
    x = right_hand_side(S)
    A = distribute(S, client=client, workers=workers[:2], partition=(0, 30, 100))
    assert A.row_bounds == (0, 30, 100)
    assert A.workers == tuple(workers[:2])
    assert sum(A.nnz_per_worker) == S.nnz
    assert A.ghosts_per_worker == [10, 10]
    text = str(A)
    assert all(address in text for address in A.workers)
    with A.repartition(workers=workers, reorder="rcm") as B:
        assert len(B.workers) == 4
        np.testing.assert_allclose(B @ x, S @ x, atol=1e-12)
        with pytest.raises(CommunicationError, match=r"closed by repartition\(\): use the matrix that it returned"):
            A @ x
    assert "closed" in repr(B)
    with pytest.raises(CommunicationError, match="closed: distribute it again"):
        B @ x
    with pytest.raises(CommunicationError, match="no workers"):
        distribute(S, client=client, workers=["tcp://nobody:1"])
    with pytest.raises(ShapeError, match="row bounds"):
        distribute(S, client=client, workers=workers[:2], partition=(0, 1, 2, 100))


@contextmanager
def nothing_is_sent() -> Iterator[None]:
    """Raise an error where this process sends a task, an array or a call to the workers."""

    def fail(*args: Any, **options: Any) -> None:
        raise AssertionError("something was sent to the workers")

    with pytest.MonkeyPatch.context() as patch:
        for method in ("submit", "compute", "scatter", "run"):
            patch.setattr(distributed.Client, method, fail)
        patch.setattr(RankServers, "request", fail)
        yield


def test_vectors_of_another_length_are_refused_with_both_shapes(client: Any, workers: list[str]) -> None:
    S = matrices("float64")["fewer rows than ranks"]
    rows, columns = S.shape
    assert rows != columns
    with distribute(S, client=client, workers=workers[:1]) as A:
        for factor, shape in ((A, (rows, columns)), (A.T, (columns, rows)), (A.H, (columns, rows))):
            for x in (np.ones(shape[0]), np.ones((shape[0], 2)), da.ones(shape[0])):
                with pytest.raises(ShapeError, match=re.escape(f"{shape} times {x.shape}")):
                    factor @ x
            sizes = {"matvec": shape[1], "rmatvec": shape[0], "matmat": shape[1], "rmatmat": shape[0]}
            for method, size in sizes.items():
                wrong = np.ones((size + 1, 2) if method.endswith("mat") else size + 1)
                with pytest.raises(ShapeError, match=re.escape(f"times {wrong.shape}")):
                    getattr(factor, method)(wrong)
            for words in ("x", np.full(shape[1], "x"), np.ones(shape[1], object)):
                with pytest.raises(DtypeError, match="a product needs numbers"):
                    factor @ words
            np.testing.assert_allclose((2 * factor) @ np.ones(shape[1]), 2 * (factor @ np.ones(shape[1])), atol=1e-12)


def test_solvers_refuse_values_that_are_not_numbers_before_anything_is_sent(client: Any, workers: list[str]) -> None:
    S = laplacian(6)
    b = np.ones(36)
    words, lazy = np.full(36, "x"), da.ones(36, dtype=object, chunks=9)
    with distribute(S, client=client, workers=workers[:2]) as A:
        for wrong in (b.astype(object), words, b.astype("M8[s]"), da.from_array(words), lazy):
            for solve, name in (
                (lambda x: gla.cg(A, x), "b"), (lambda x: gla.lsqr(A, x), "b"), (lambda x: gla.cg(A, b, x0=x), "x0"),
                (lambda x: A @ x, "a product"),
            ):  # fmt: skip
                with nothing_is_sent(), pytest.raises(DtypeError, match=f"{name} needs numbers, got .*: use astype"):
                    solve(wrong)
        np.testing.assert_allclose(A @ b, S @ b, atol=1e-12)
        assert gla.cg(A, b)[1] == 0


def test_without_a_client_the_message_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_client() -> None:
        raise ValueError("No global client found and no address provided")

    monkeypatch.setattr(distributed, "get_client", raise_no_client)
    with pytest.raises(ValueError, match=r"start one: Client\(LocalGpuCluster\(\)\)"):
        distribute(laplacian(4))


def test_callbacks_see_whole_vectors(client: Any, workers: list[str]) -> None:
    S = laplacian(8)
    b = right_hand_side(S)
    with distribute(S, client=client, workers=workers[:2], reorder="rcm") as A:
        iterates: list[Any] = []
        x, _ = gla.cg(A, b, rtol=1e-6, callback=iterates.append)
        np.testing.assert_array_equal(iterates[-1], x)
        norms: list[Any] = []
        gla.gmres(A, b, rtol=1e-6, callback=norms.append, callback_type="pr_norm")
        assert norms[-1] < norms[0]
        with pytest.raises(ZeroDivisionError):
            gla.cg(A, b, callback=lambda x: 1 / 0)


def test_progress_bars_of_short_solves_end_at_the_last_iteration(
    client: Any, workers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    S = laplacian(8)
    b = right_hand_side(S)
    with distribute(S, client=client, workers=workers[:2]) as A:
        for solve in (gla.cg, gla.lsqr):
            result = solve(A, b, progress=True, full_output=True)
            last_line = capsys.readouterr().err.rpartition("\r")[2]
            assert last_line.startswith(f"{solve.__name__}: {result.iterations}it"), last_line
            assert f"residual {result.residuals[-1]:.2e}" in last_line
        itn = gla.lsmr(A, right_hand_side(S, 2), progress=True)[2]
        assert f"lsmr: {itn.max()}it" in capsys.readouterr().err


def test_errors_of_solvers_reach_the_client_unchanged(client: Any, workers: list[str]) -> None:
    S = laplacian(6)
    with distribute(S, client=client, workers=workers[:2]) as A:
        with pytest.raises(ValueError, match="atol"):
            gla.cg(A, np.ones(36), atol=-1)
        with pytest.raises(ShapeError, match="does not fit"):
            gla.cg(A, np.ones(35))
        with pytest.raises(ValueError, match="on_failure"):
            gla.cg(A, np.ones(36), on_failure="ignore")
        with pytest.raises(TypeError, match="too many positional arguments"):
            gla.cg(A, np.ones(36), None, 1e-8)
        with pytest.raises(TypeError, match="keyword arguments after b"):
            gla.lsqr(A, np.ones(36), 0.1)
        assert gla.cg(A, np.ones(36))[1] == 0
        assert gla.cg(A, np.ones(36), x0="Mb", M=gla.jacobi(A))[1] == 0
    A = distribute(rectangular(20, 10), client=client, workers=workers[:2])
    with A, pytest.raises(ShapeError, match="square"):
        gla.cg(A, np.ones(20))


def test_missing_gpus_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr(GpuCluster, "__init__", fail)
    try:
        get_device("gpu")
    except DeviceError:
        count = None
    else:
        count = 1000
    with pytest.raises(DeviceError, match="device='cpu'"):
        LocalGpuCluster(count, device="gpu")


def test_a_cluster_with_tls_multiplies_and_solves(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    names = {
        f"tls_{role}_{kind}": certificate[kind]
        for role in ("client", "scheduler", "worker")
        for kind in ("cert", "key")
    }
    security = distributed.Security(tls_ca_file=certificate["cert"], require_encryption=True, **names)
    S = laplacian(8)
    b = right_hand_side(S)
    with (
        LocalGpuCluster(2, device="cpu", security=security) as cluster,
        distributed.Client(cluster, security=security) as client,
        distribute(S, client=client) as A,
    ):
        assert all(address.startswith("tls://127.0.0.1") for address in A.workers)
        np.testing.assert_allclose(A @ b, S @ b, atol=1e-12)
        assert gla.cg(A, b)[1] == 0
        np.testing.assert_allclose((A @ da.from_array(b, chunks=20)).compute(), S @ b, atol=1e-12)


S = laplacian(12)
B = right_hand_side(S)


def number_of_results() -> int:
    """Return how many vectors of solves wait on this worker."""
    from gsparse.distributed.worker.rank import _vectors

    return len(_vectors)


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not pickled")


def fail(rank: Any, error: type[Exception]) -> None:
    if rank.number:
        raise error("planted")


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [(ShapeError, ShapeError, "^planted"), (UnpicklableError, RuntimeError, "^UnpicklableError: planted")],
)
def test_the_error_of_a_rank_reaches_the_client(
    client: Any, error: type[Exception], raised: type[Exception], words: str
) -> None:
    with distribute(S, client=client) as A:
        with pytest.raises(raised, match=words) as caught:
            A._rank_group.call(fail, [(error,)] * len(A.workers))
        assert caught.traceback[-1].name == "fail" or error is UnpicklableError
        np.testing.assert_allclose(A @ B, S @ B, atol=1e-12)


def test_ranks_that_dask_has_dropped_are_an_error_and_not_a_wait(client: Any) -> None:
    with distribute(S, client=client) as A:
        solve = start_solve(client, A)
        client.cancel(A._rank_group.servers.references)
        errors = [solve.wait(SOON), error_within_deadline(lambda: A @ B)]
        for error in errors:
            assert isinstance(error, CommunicationError), repr(error)
        assert "can no longer be called" in str(errors[1])
        wait_until(lambda: not any(client.run(is_solving).values()))


def test_calls_pass_through_the_scheduler_if_this_process_cannot_reach_the_workers(
    client: Any, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = client.rpc.connect

    async def refuse(address: str, *args: Any, **options: Any) -> Any:
        if address in workers:
            raise OSError("no route to the worker")
        return await connect(address, *args, **options)

    monkeypatch.setattr(client.rpc, "connect", refuse)
    with distribute(S, client=client) as A, 2 * A as twice:
        np.testing.assert_allclose(twice @ B, 2 * (S @ B), atol=1e-12)


def test_products_of_several_threads_have_the_bits_of_one(client: Any) -> None:
    with distribute(S, client=client) as A, ThreadPoolExecutor(8) as pool:
        expected = A @ B
        for product in pool.map(lambda _: A @ B, range(40)):
            np.testing.assert_array_equal(product, expected)


def test_a_result_of_dask_outlasts_its_matrix(client: Any) -> None:
    with distribute(S, client=client) as A:
        x, info = gla.cg(A, da.from_array(B, chunks=20), rtol=1e-10)
    assert info == 0
    assert residual(S, x.compute(), B) < 1e-9


def test_results_that_are_dropped_at_once_do_not_stay_on_the_workers(client: Any) -> None:
    with distribute(S, client=client) as A:
        chunks = client.persist(da.from_array(B, chunks=(tuple(np.diff(A.row_bounds).tolist()),)))
        for _ in range(10):
            gla.cg(A, chunks)
            gla.cg(A, B)
        wait_until(lambda: not any(client.run(number_of_results).values()))


def test_parts_that_lie_on_other_workers_are_moved(client: Any, workers: list[str]) -> None:
    with distribute(S, client=client, workers=workers[:2]) as A:
        (chunks,) = [tuple(np.diff(A.row_bounds).tolist())]
        lazy = da.from_array(B, chunks=(chunks,))
        elsewhere = client.persist(lazy, workers=workers[2:], allow_other_workers=False)
        distributed.wait(elsewhere)
        for guess in (None, B, elsewhere):
            x, info = gla.cg(A, elsewhere, x0=guess, rtol=1e-10)
            assert info == 0
            assert residual(S, x.compute(), B) < 1e-9
        assert type(gla.cg(A, B, x0=elsewhere)[0]) is np.ndarray


def test_an_interrupted_solve_ends_on_the_workers_and_the_next_one_is_right(client: Any) -> None:
    def interrupt() -> None:
        wait_until(lambda: all(client.run(running_calls).values()))
        os.kill(os.getpid(), signal.SIGINT)

    with distribute(S, client=client) as A:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            gla.gmres(A, B, rtol=0, maxiter=10**9)
        thread.join(LONG)
        wait_until(lambda: not any(client.run(running_calls).values()))
        x, info = gla.cg(A, B, rtol=1e-10)
        assert info == 0
        assert residual(S, x, B) < 1e-9


def test_amg_spans_the_workers(client: Any) -> None:
    S = poisson(20, 7)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    one = GpuSparseMatrix(S, device="cpu")
    expected = gla.cg(one, b, M=gla.amg(one), rtol=1e-8, full_output=True).iterations
    with distribute(S, client=client) as A:
        M = gla.amg(A)
        assert "4 workers" in repr(M)
        assert "amg" in repr(M)
        assert "Number of levels" in str(M)
        for _ in range(2):
            result = gla.cg(A, b, M=M, rtol=1e-8, full_output=True)
            assert residual(S, result.x, b) < 1e-7
            assert result.iterations <= expected + 2
        lazily = gla.cg(A, da.from_array(b, chunks=3000), M=M, rtol=1e-8)[0]
        assert residual(S, np.asarray(lazily), b) < 1e-7
        product, adjoint = M @ b, M.H @ b
        assert np.allclose(product, adjoint, rtol=1e-10, atol=1e-12 * np.abs(product).max())
        x, info = la.cg(A, b, M=M, rtol=1e-8)
        assert info == 0
        assert residual(S, x, b) < 1e-7


@pytest.mark.parametrize("options", [{}, {"reorder": "rcm"}, {"partition": "rows"}], ids=str)
def test_candidates_are_split_for_the_workers(client: Any, options: dict[str, Any]) -> None:
    S, coordinates = elasticity((6, 5, 5))
    B, b = gla.rigid_body_modes(coordinates), np.random.default_rng(0).standard_normal(S.shape[0])
    blocks = sp.bsr_array(S, blocksize=(3, 3))
    one = GpuSparseMatrix(S, device="cpu")
    expected = gla.cg(one, b, M=gla.amg(one, B=B, block_size=3), rtol=1e-8, full_output=True).iterations
    with distribute(blocks, client=client, **options) as A:
        if "reorder" in options:  # it does not keep the unknowns of a node together
            M = gla.amg(A, B=B, block_size=1, strength=None)
            assert gla.cg(A, b, M=M, rtol=1e-8)[1] == 0
            return
        assert all(bound % 3 == 0 for bound in A.row_bounds)
        result = gla.cg(A, b, M=gla.amg(A, B=B), rtol=1e-8, full_output=True)
        assert residual(S, result.x, b) < 1e-7
        assert result.iterations <= expected + 2


def test_errors_and_warnings_reach_the_user(client: Any) -> None:
    S = poisson(20, 5)
    bad = S.copy()
    bad.data[300] = np.inf
    with distribute(bad, client=client) as A, pytest.raises(FactorizationError, match="holds inf"):
        gla.amg(A)
    with distribute(S, client=client, workers=3, partition=[0, 100, 250, 400]) as A:
        with pytest.raises(ShapeError, match="multiples of 4"):
            gla.amg(A, block_size=4)
        with pytest.raises(ShapeError, match="B of shape"):
            gla.amg(A, B=np.ones(7))
        with pytest.raises(ValueError, match="cycle"):
            gla.amg(A, cycle="F")
        with pytest.raises(TypeError, match="surprise"):
            gla.amg(A, surprise=1)
        assert gla.cg(A, np.ones(400), M=gla.amg(A), rtol=1e-8)[1] == 0  # the workers are still connected
    S = poisson(240, 5)
    with distribute(S, client=client) as A, pytest.warns(CoarseningWarning, match="only smoothed"):
        gla.amg(A, strength=("symmetric", {"theta": 0.9}))


def test_lobpcg_takes_multigrid(client: Any) -> None:
    S = poisson(16, 5)
    X = np.random.default_rng(0).standard_normal((S.shape[0], 3))
    with distribute(S, client=client) as A:
        values, _ = gla.lobpcg(A, X, M=gla.amg(A), largest=False, tol=1e-6, maxiter=100)
    assert np.allclose(np.sort(values), np.sort(la.eigsh(S, 3, sigma=0)[0]), rtol=1e-6)
