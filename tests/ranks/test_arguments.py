"""What a newcomer gives to distributed matrices: taken as meant, or refused in words before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse.linalg as gla
from gsparse import GpuSparseMatrix
from tests.linalg.problems import convection, laplacian, residual, right_hand_side

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse[dask]'")

from gsparse.distributed import LocalGpuCluster, distribute  # noqa: E402
from gsparse.distributed.gang import Gang  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # (dask's and tornado's own)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with LocalGpuCluster(2, device="cpu") as cluster, distributed.Client(cluster) as client:
        yield client


# ------------------------------------------------------------------ preconditioners


def test_preconditioners_serve_scipys_solvers(client: Any) -> None:
    S = laplacian(12)
    b = right_hand_side(S)
    counts = []
    with distribute(S, client=client, reorder="rcm") as A:
        for M in (None, gla.ic0(A)):
            seen: list[Any] = []
            x, info = la.cg(A, b, rtol=1e-8, M=M, callback=seen.append)
            assert info == 0
            assert residual(S, x, b) < 1e-7
            counts.append(len(seen))
    assert counts[1] < 0.7 * counts[0]


@pytest.mark.parametrize("dtype", [float, complex])
def test_preconditioners_multiply_as_those_of_the_blocks(client: Any, dtype: Any) -> None:
    S = sp.csr_array(convection(8).astype(dtype) * (1 + (1j if dtype is complex else 0)))
    X = right_hand_side(S, 3)
    with distribute(S, client=client) as A:
        cut = A.row_bounds[1]
        blocks = [GpuSparseMatrix(S[own, own], device="cpu") for own in (slice(0, cut), slice(cut, None))]
        M = gla.ilu0(A)
        local = [gla.ilu0(block) for block in blocks]
        expected = np.concatenate([m @ part for m, part in zip(local, (X[:cut], X[cut:]), strict=True)])
        turned = np.concatenate([m.rmatmat(part) for m, part in zip(local, (X[:cut], X[cut:]), strict=True)])
        np.testing.assert_allclose(M @ X, expected, rtol=1e-12)
        np.testing.assert_allclose(M @ X[:, 0], expected[:, 0], rtol=1e-12)
        np.testing.assert_allclose(M.H @ X, turned, rtol=1e-12)
        np.testing.assert_allclose(M.rmatvec(X[:, 0]), turned[:, 0], rtol=1e-12)
        np.testing.assert_allclose(la.aslinearoperator(2 * M) @ X, 2 * expected, rtol=1e-12)


def test_a_preconditioner_of_another_matrix_is_refused(client: Any) -> None:
    S = laplacian(8)
    b = right_hand_side(S)
    with distribute(S, client=client) as A, distribute(2 * S, client=client) as B:
        with pytest.raises(TypeError, match="made of the distributed matrix that is solved with"):
            gla.cg(A, b, M=gla.ic0(B))
        x, info = la.cg(A, b, rtol=1e-8, M=gla.ic0(B))
        assert info == 0
        assert residual(S, x, b) < 1e-7


# ------------------------------------------------------------------ arguments of solvers


def test_arguments_that_a_function_does_not_take_are_refused_before_anything_is_sent(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = laplacian(6)
    b = np.ones(36)
    with distribute(S, client=client) as A, monkeypatch.context() as patch:

        def sent(*args: Any) -> None:
            raise AssertionError("a task was sent")

        patch.setattr(Gang, "submit", sent)
        for call, words in (
            (lambda: gla.block_jacobi(A), r"block_jacobi\(\) missing a required argument: 'block_size'"),
            (lambda: gla.jacobi(A, on_failure="raise"), r"jacobi\(\) got an unexpected keyword argument 'on_failure'"),
            (lambda: gla.cg(A, b, tol=1e-8), r"cg\(\) got an unexpected keyword argument 'tol'"),
            (lambda: gla.fgmres(A, b, tol=1e-8), r"fgmres\(\) got an unexpected keyword argument 'tol'"),
            (lambda: gla.lsqr(A, b, M=None), r"lsqr\(\) got an unexpected keyword argument 'M'"),
            (lambda: gla.lobpcg(A), r"lobpcg\(\) missing a required argument: 'X'"),
            (lambda: gla.cg(A), r"cg\(\) missing a required argument: 'b'"),
        ):
            with pytest.raises(TypeError, match=words):
                call()
