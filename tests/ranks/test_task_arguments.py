"""Arrays on their way to the workers: dask does not warn of large ones, and they stay there no longer than needed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from tests.linalg.problems import laplacian, residual
from tests.ranks.groups import wait_until

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
import dask  # noqa: E402
import dask.array as da  # noqa: E402

from gsparse.distributed import distribute  # noqa: E402
from gsparse.errors import DtypeError, ShapeError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NUM_WORKERS = 2

# A vector of a rank has 130 kB, and the graph of a task without arrays some kilobytes.
S = laplacian(180)
B = np.random.default_rng(0).standard_normal(S.shape[0])
GRAPH_LIMIT = {"distributed.admin.large-graph-warning-threshold": "100kB"}


@pytest.fixture(autouse=True)
def strict_dask() -> Iterator[None]:
    """Make dask warn of graphs that hold the part of a vector, and make the warning an error."""
    with dask.config.set(GRAPH_LIMIT), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Sending large graph")
        yield


def stored_keys(dask_worker: Any) -> list[str]:
    """Return the keys of the data that dask keeps on a worker, without the references to matrices."""
    return [str(key) for key in dask_worker.data if "-rank" not in str(key)]


def check_nothing_is_stored(client: Any) -> None:
    wait_until(lambda: not any(client.run(stored_keys).values()))


def test_the_limit_is_below_the_arrays_of_this_test(client: Any) -> None:
    with pytest.raises(UserWarning, match="Sending large graph"):
        client.submit(len, B[: len(B) // 2])


@pytest.mark.parametrize("reorder", [None, pytest.param("rcm", marks=pytest.mark.whole)])
def test_dask_does_not_warn_in_normal_use(client: Any, tmp_path: Path, reorder: str | None) -> None:
    every = np.arange(S.shape[0])
    with distribute(S, client=client, reorder=reorder) as A, A.with_data(2 * S.data) as twice, A @ twice as square:
        check_nothing_is_stored(client)
        np.testing.assert_allclose(square @ B, 2 * (S @ (S @ B)), atol=1e-10)
        M = gla.amg(A, B=np.ones((S.shape[0], 1)))
        result = gla.cg(A, B, x0=B, M=M, rtol=1e-8, full_output=True)
        assert residual(S, result.x, B) < 1e-7
        product = M @ B
        np.testing.assert_allclose(product, M.H @ B, rtol=1e-6, atol=1e-8)
        M.update(twice)
        np.testing.assert_allclose(M @ B, product / 2, rtol=1e-10)
        with A[every] as same, square > twice as larger, A.multiply(B) as scaled:
            assert (same.tocsr() != S).nnz == 0
            assert larger.max(axis=0).shape == scaled.sum(axis=1).shape
        np.testing.assert_array_equal(A.diagonal(), S.diagonal())
        A.checkpoint(tmp_path)
        gla.lobpcg(A, np.stack([B, B**2], axis=1), maxiter=2, tol=10)
        gla.eigsh(A, k=1, v0=B, tol=0.1)
        check_nothing_is_stored(client)


def test_vectors_stay_on_the_workers(client: Any) -> None:
    with distribute(S, client=client) as A, distribute(S[:, :20_000], client=client) as tall:
        sizes = tuple(np.diff(A.row_bounds).tolist())
        options: dict[str, Any] = {"M": gla.jacobi(A), "rtol": 1e-6}
        expected = gla.cg(A, B, **options)[0]
        for b in (A.vector(B), A.vector(A.vector(B).rechunk(10_000))):
            assert b.chunks == (sizes,)
            x, info = gla.cg(A, b, **options)
            assert isinstance(x, da.Array)
            assert info == 0
            np.testing.assert_array_equal(x.compute(), expected)
        parts = distributed.futures_of(b)
        owners = client.who_has(parts)  # in any order
        for worker, first in zip(A.workers, A.row_bounds, strict=False):
            (part,) = [part for part in parts if part.result()[0] == B[first]]
            assert list(owners[part.key]) == [worker]
        blocks = A.vector(np.stack([B, 2 * B], axis=1))
        assert blocks.chunks == (sizes, (2,))
        np.testing.assert_array_equal(blocks.compute()[:, 1], 2 * B)
        columns = tall.vector(B[:20_000], axis=1)
        assert columns.chunks == tall.T.vector(B[:20_000]).chunks
        np.testing.assert_allclose((tall @ columns).compute(), S[:, :20_000] @ B[:20_000], atol=1e-12)
        del x, b, parts, part, blocks, columns
        gc.collect()  # dask's exceptions keep frames of the solves
        check_nothing_is_stored(client)
        with pytest.raises(ShapeError, match=r"a vector of shape \(3,\) does not fit a matrix of shape"):
            A.vector(np.ones(3))
        with pytest.raises(DtypeError):
            A.vector(np.full(S.shape[0], "x"))
        with pytest.raises(ValueError, match="axis must be 0 or 1, got 2"):
            A.vector(B, axis=2)
