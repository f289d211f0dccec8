"""Multigrid of a matrix on a dask cluster, used as a user would."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse.linalg as gla
from asv_bench.elliptic_problems import elasticity, poisson
from gsparse import GpuSparseMatrix
from gsparse.errors import CoarseningWarning, FactorizationError, ShapeError
from tests.linalg.problems import residual

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
da = pytest.importorskip("dask.array")

from gsparse.distributed import distribute  # noqa: E402
from gsparse.distributed.worker import solve_tasks  # noqa: E402

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # dask and tornado warn


def test_amg_spans_the_workers(client: Any) -> None:
    S = poisson(20, 7)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    one = GpuSparseMatrix(S, device="cpu")
    expected = gla.cg(one, b, M=gla.amg(one), rtol=1e-8, full_output=True).iterations
    with distribute(S, client=client) as A:
        M = gla.amg(A)
        assert "3 workers" in repr(M)
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
    with distribute(S, client=client, partition=[0, 100, 250, 400]) as A:
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


def test_only_the_warnings_of_multigrid_are_sent_to_the_client() -> None:
    with pytest.warns(RuntimeWarning, match="of another kind") as caught, solve_tasks._recorded_warnings() as sent:
        warnings.warn("of multigrid", CoarseningWarning, stacklevel=1)
        warnings.warn("of another kind", RuntimeWarning, stacklevel=1)
    assert sent == [("of multigrid", CoarseningWarning)]
    assert [(one.category, one.filename) for one in caught] == [(RuntimeWarning, __file__)]


def test_lobpcg_takes_multigrid(client: Any) -> None:
    S = poisson(16, 5)
    X = np.random.default_rng(0).standard_normal((S.shape[0], 3))
    with distribute(S, client=client) as A:
        values, _ = gla.lobpcg(A, X, M=gla.amg(A), largest=False, tol=1e-6, maxiter=100)
    assert np.allclose(np.sort(values), np.sort(la.eigsh(S, 3, sigma=0)[0]), rtol=1e-6)
