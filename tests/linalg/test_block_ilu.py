"""Incomplete factorizations on the graph of nodes equal a dense reference, and refuse what they cannot factorize."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.errors import FactorizationError
from gsparse.linalg import ic0, ilu0
from gsparse.linalg.preconditioners.triangular import are_positive_definite
from tests.linalg.problems import matrix
from tests.support import host


def random_matrix(size: int, dtype: str, seed: int = 0) -> sp.csr_array:
    """Return a matrix with entries at random places, no structure of blocks, and a diagonal that dominates roughly."""
    rng = np.random.default_rng(seed)
    S = sp.random_array((size, size), density=min(1.0, 4 / max(size, 1)), rng=rng, format="csr").astype(dtype)
    if np.dtype(dtype).kind == "c":
        S = S + 1j * sp.random_array((size, size), density=min(1.0, 3 / max(size, 1)), rng=rng, format="csr")
    return sp.csr_array(S + 4 * sp.eye_array(size), dtype=dtype)


def hermitian(size: int, dtype: str) -> sp.csr_array:
    S = random_matrix(size, dtype)
    return sp.csr_array(S + S.conj().T, dtype=dtype)


def reference(S: Any, size: int) -> Any:
    """Return the inverse of L·U for the dense factors of block ILU(0), by Saad's algorithm on blocks."""
    rows, count = S.shape[0], -(-S.shape[0] // size)
    blocks = np.eye(count * size, dtype=S.dtype)
    blocks[:rows, :rows] = S.toarray()
    blocks = blocks.reshape(count, size, count, size).swapaxes(1, 2).copy()
    places = (blocks != 0).any(axis=(2, 3))
    for i in range(count):
        for k in np.flatnonzero(places[i, :i]):
            blocks[i, k] = blocks[i, k] @ np.linalg.inv(blocks[k, k])
            for j in range(k + 1, count):
                if places[i, j] and places[k, j]:
                    blocks[i, j] -= blocks[i, k] @ blocks[k, j]
    is_below = np.tri(count, k=-1, dtype=bool)[:, :, None, None]
    lower, upper = (
        part.swapaxes(1, 2).reshape(count * size, count * size)
        for part in (np.where(is_below, blocks, 0), np.where(is_below, 0, blocks))
    )
    return np.linalg.inv((lower + np.eye(count * size)) @ upper)[:rows, :rows]


def assert_inverse(M: Any, expected: Any) -> None:
    """Check the products of an operator and of its adjoint with a few columns."""
    rows, rng = M.shape[0], np.random.default_rng(5)
    X = rng.standard_normal((rows, 3)).astype(M.dtype)
    if M.dtype.kind == "c":
        X += (1j * rng.standard_normal((rows, 3))).astype(M.dtype)
    close(host(M @ X), expected @ X)
    close(host(M.rmatmat(X)), expected.conj().T @ X)
    close(host(M @ X[:, 0]), expected @ X[:, 0])


def close(found: Any, expected: Any) -> None:
    tolerance = 2e-5 if found.dtype in (np.float32, np.complex64) else 1e-13
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, abs(expected).max(initial=0)))


@pytest.mark.parametrize(("rows", "size"), [(30, 3), (31, 3), (25, 2), (44, 6), (70, 32), (3, 4), (1, 2), (7, 7)])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.few(4)
def test_factors_in_blocks_equal_those_of_dense_blocks(device: Device, rows: int, size: int, dtype: str) -> None:
    S = random_matrix(rows, dtype)
    expected = reference(S, size)
    # As many sweeps as there are nodes make the solve exact.
    for options in ({"solve": "levels"}, {"solve": "jacobi", "sweeps": -(-rows // size)}):
        assert_inverse(ilu0(matrix(device, S), block_size=size, **options), expected)


@pytest.mark.few(2)
def test_wide_levels_are_factorized_by_many_thread_blocks(device: Device) -> None:
    nodes, size, rng = 900, 3, np.random.default_rng(2)
    # Two levels: each node of the second half depends on one of the first half.
    graph = sp.csr_array(sp.eye_array(nodes) + sp.eye_array(nodes, k=-nodes // 2))
    blocks = rng.uniform(-1, 1, (graph.nnz, size, size))
    S = sp.bsr_array((blocks, graph.indices, graph.indptr)).tocsr()
    S = sp.csr_array(S + 4 * sp.eye_array(nodes * size))
    x = rng.standard_normal(nodes * size)
    M = ilu0(matrix(device, S), block_size=size, solve="levels")
    close(host(M @ (S @ x)), x)  # there is no fill-in, so that the factors are exact
    close(host(M.rmatvec(S.T @ x)), x)


def test_blocks_with_a_zero_diagonal_are_inverted_with_pivots(device: Device) -> None:
    block = np.array([[0.0, 2], [1, 0]])
    S = sp.csr_array(sp.kron(sp.diags_array([1.0, 4, 1], offsets=[-1, 0, 1], shape=(9, 9)), block))
    with pytest.raises(FactorizationError, match="the pivot in row 0 is zero"):
        ilu0(matrix(device, S))
    assert_inverse(ilu0(matrix(device, S), block_size=2, solve="levels"), np.linalg.inv(S.toarray()))


@pytest.mark.parametrize("make", [ilu0, ic0])
def test_the_node_of_a_singular_block_is_named(device: Device, make: Any) -> None:
    blocks = [np.eye(3), np.ones((3, 3)), np.eye(2)]
    S = sp.csr_array(sp.block_diag([sp.coo_array(block) for block in blocks]))
    fault = "is singular" if make is ilu0 else "is not positive definite"
    with pytest.raises(
        FactorizationError, match=rf"node 1 \(rows 3 to 5\) {fault}: try {make.__name__}\(A, block_size=3"
    ):
        make(matrix(device, S), block_size=3)
    assert np.all(np.isfinite(host(make(matrix(device, S), block_size=3, shift=0.1) @ np.ones(8))))
    blocks[1], blocks[2] = np.eye(3), np.zeros((2, 2))
    S = sp.csr_array(sp.block_diag([sp.coo_array(block) for block in blocks]))
    with pytest.raises(FactorizationError, match=r"node 2 \(rows 6 to 7\)"):
        make(matrix(device, S), block_size=3)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_ic0_in_blocks_is_ilu0_of_a_hermitian_matrix(device: Device, dtype: str) -> None:
    S = hermitian(32, dtype)
    for options in ({"solve": "levels"}, {"solve": "jacobi", "sweeps": 11}):
        assert_inverse(ic0(matrix(device, S), block_size=3, **options), reference(S, 3))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_positive_definite_blocks_are_told_from_others(device: Device, dtype: str) -> None:
    rng = np.random.default_rng(4)
    B = rng.standard_normal((40, 4, 4)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        B = B + 1j * rng.standard_normal((40, 4, 4)).astype(np.float32)
    blocks = (B + B.conj().swapaxes(1, 2)) / 2 + rng.uniform(-1, 4, 40)[:, None, None] * np.eye(4)
    blocks = np.concatenate([blocks, [np.zeros((4, 4))]]).astype(dtype)
    expected = np.linalg.eigvalsh(blocks)[:, 0] > 0
    assert expected.any() and not expected.all()
    with device.active():
        assert (host(are_positive_definite(device, device.upload(blocks))) == expected).all()


@pytest.mark.parametrize("make", [ilu0, ic0])
def test_sizes_of_blocks_that_do_not_exist_are_refused(real_device: Device, make: Any) -> None:
    A = matrix(real_device, hermitian(9, "float64"))
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        make(A, block_size=0)
    with pytest.raises(ValueError, match=f"{make.__name__}: block_size must be at most 32, got 33"):
        make(A, block_size=33)
