"""The inverses of diagonal blocks and the steps with them equal their definitions, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from asv_bench.elliptic_problems import elasticity
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FactorizationError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import EVERY_GROUP, FROM_ZERO, MAX_INVERSE
from gsparse.linalg import amg, block_jacobi, cg, rigid_body_modes
from gsparse.linalg.multigrid.level_setup import LevelMatrix
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.diagonal import inverse_blocks
from gsparse.linalg.preconditioners.square_matrix import MAX_ERROR, SquareMatrix
from tests.linalg.test_relaxation_kernels import upload
from tests.support import DTYPES, INDEX_DTYPES, host, random_values

SIZES = (1, 2, 3, 5, 8, 17, MAX_INVERSE)


def random_matrix(rng: np.random.Generator, num_rows: int, dtype: Any) -> sp.csr_array:
    """Return a matrix whose diagonal blocks need pivoting: most elements of its diagonal are 0."""
    dense = random_values(rng, (num_rows, num_rows), dtype) * (rng.random((num_rows, num_rows)) < 0.8)
    dense[np.arange(num_rows), np.arange(num_rows)] *= rng.random(num_rows) < 0.3
    return sp.csr_array(dense.astype(dtype))


def padded_blocks(S: Any, size: int) -> Any:
    """Return the diagonal blocks; the last one is filled up with the identity."""
    count = -(-S.shape[0] // size)
    dense = np.eye(count * size, dtype=S.dtype)
    dense[: S.shape[0], : S.shape[0]] = S.toarray()
    return np.stack([dense[i : i + size, i : i + size] for i in range(0, count * size, size)])


def block_product(weights: Any, vectors: Any) -> Any:
    """Return W·v for each row of `vectors`, whose last block may be smaller."""
    count, size, _ = weights.shape
    padded = np.zeros((len(vectors), count * size), vectors.dtype)
    padded[:, : vectors.shape[1]] = vectors
    return np.einsum("bij,vbj->vbi", weights, padded.reshape(-1, count, size)).reshape(len(vectors), -1)[
        :, : vectors.shape[1]
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.few(6)
def test_blocks_are_inverted_with_pivoting(
    device: Device, size: int, index: Any, dtype: Any, rng: np.random.Generator
) -> None:
    S = random_matrix(rng, 37 * size + size // 2, dtype)
    with device.active():
        inverses, is_regular = kernels_of(device).triangular.invert_blocks(
            device, upload(device, S, index), size, False, MAX_ERROR
        )
    blocks = padded_blocks(S, size)
    for block, inverse, is_good in zip(blocks, host(inverses), host(is_regular), strict=True):
        condition, eps = np.linalg.cond(block), np.finfo(dtype).eps
        assert is_good or condition > 1e-3 / eps
        if is_good:  # The kernel has found a small error; its product of the block and the inverse has rounding errors.
            assert condition < 1e2 / eps
            error = abs(block.astype(np.complex128) @ inverse - np.eye(size)).max()
            bound = MAX_ERROR + 2 * size * eps * (abs(block).astype(float) @ abs(inverse)).max()
            assert error <= min(bound, 4 * eps * condition + size * eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [EVERY_GROUP, FROM_ZERO])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("size", (1, 3, 8, 40, 300))
@pytest.mark.few(6)
def test_a_step_adds_the_product_of_the_blocks_and_the_residual(
    device: Device, size: int, copies: bool, start: str, dtype: Any, rng: np.random.Generator
) -> None:
    num_blocks, columns, omega = 2 if size > 40 else 90, 3, 0.7
    num_rows = num_blocks * size - size // 2
    weights = random_values(rng, (num_blocks, size, size), dtype)
    b, x, r = (random_values(rng, (columns, num_rows), dtype) for _ in range(3))
    values = b if start == FROM_ZERO else b - r
    expected, bound = (block_product(f(weights), f(values)) for f in (np.array, abs))
    if start == FROM_ZERO:
        x[...] = r[...] = np.nan  # What they contain is not read.
        expected = omega * expected
    else:
        expected, bound = x + omega * expected, bound + abs(x) + block_product(abs(weights), abs(b) + abs(r))
    arrays = [device.upload(np.ascontiguousarray(part).reshape(-1)) for part in (b, x, r)]
    transposed = device.upload(np.ascontiguousarray(weights.swapaxes(1, 2)))
    with device.active():
        kernels_of(device).triangular.bind_block_step(device, transposed, omega, *arrays, columns, start, copies)()
    got = [host(array).reshape(columns, -1) for array in arrays]
    assert np.all(abs(got[1] - expected) <= 4 * (size + 4) * np.finfo(dtype).eps * bound)
    np.testing.assert_array_equal(got[0], b)
    np.testing.assert_array_equal(got[2], b if copies else r)


def test_a_nan_stays_within_its_block(device: Device, rng: np.random.Generator) -> None:
    S = sp.csr_array(random_matrix(rng, 40, float) + 20 * sp.eye_array(40))
    M, x = block_jacobi(GpuSparseMatrix(S, device=device), 4), rng.standard_normal(40)
    x[9], x[21] = np.nan, np.inf
    y = host(M @ x)
    assert np.isnan(y[8:12]).all() and not np.isfinite(y[20:24]).any()
    assert np.isfinite(np.delete(y, [*range(8, 12), *range(20, 24)])).all()


@pytest.mark.parametrize("size", [3, MAX_INVERSE + 1])
def test_empty_rows_of_levels_count_as_rows_of_the_identity(
    device: Device, size: int, rng: np.random.Generator
) -> None:
    dense = random_values(rng, (5 * size, 5 * size), float) + 9 * size * np.eye(5 * size)
    empty = [0, 4, size + 1, 4 * size - 1]
    dense[empty] = dense[:, empty] = 0
    A = GpuSparseMatrix(sp.csr_array(dense), device=device)
    with SquareMatrix.of(A, "test") as matrix:
        with pytest.raises(FactorizationError, match=f"test: the block of rows 0 to {size - 1} is singular"):
            inverse_blocks(matrix, size, "test")
        inverses = inverse_blocks(LevelMatrix(device, matrix.csr, MatrixOperator(A)), size, "test")
    dense[empty, empty] = 1
    np.testing.assert_allclose(
        host(inverses), np.linalg.inv(padded_blocks(sp.csr_array(dense), size)), rtol=1e-11, atol=1e-13
    )


@pytest.mark.few(1)
def test_multigrid_with_block_jacobi_solves_elasticity(device: Device) -> None:
    """Two steps with blocks of a node take no more iterations than two with the diagonal."""
    S, coordinates = elasticity((5, 4, 4), 0.45)
    A, b = GpuSparseMatrix(S, device=device), np.random.default_rng(0).standard_normal(S.shape[0])
    counts = {}
    for name, smoother in (("blocks", ("block_jacobi", {"block_size": 3})), ("diagonal", "jacobi")):
        M = amg(A, B=rigid_body_modes(coordinates), block_size=3, max_coarse=10, smoother=smoother)
        result = cg(A, b, M=M, rtol=1e-8, full_output=True)
        assert result.info == 0
        assert np.linalg.norm(S @ result.x - b) <= 2e-8 * np.linalg.norm(b)
        counts[name] = result.iterations
    assert counts["blocks"] <= counts["diagonal"]


@pytest.mark.parametrize("symmetry", ["hermitian", "nonsymmetric"])
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:.*diverges:gsparse.errors.SmootherWarning")  # entries were taken out at random
def test_coarse_matrices_consist_of_the_blocks_that_they_are_stored_in(
    device: Device, symmetry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    S, coordinates = elasticity((6, 5, 4))
    S.data[::7] = 0
    S.eliminate_zeros()  # The blocks of the finest matrix are not full.
    monkeypatch.setattr("gsparse.linalg.multigrid.level_setup._MIN_BLOCK_ENTRIES", 1)
    M = amg(GpuSparseMatrix(S, device=device), B=rigid_body_modes(coordinates), block_size=3, symmetry=symmetry,
            max_coarse=2)  # fmt: skip
    assert len(M.levels) >= 2
    for level in M.levels[1:]:
        A = level.operator.matrix
        structure = A._prepared()[0].structure.sparsity
        assert structure.known_blocksize == A.block_shape == (6, 6)
        found = kernels_of(device).blocks.full_blocks(device, structure.csr)
        assert (found[0] % 6, found[1] % 6) == (0, 0)
        assert "bsr" in {candidate.format for candidate in A.plan.candidates}
        x = np.random.default_rng(1).standard_normal(A.shape[0])
        plain = sp.csr_array(A.tocoo())
        for format in ("bsr", "csr_scalar"):
            got = GpuSparseMatrix(A, format=format, device=device) @ x
            assert np.all(abs(got - plain @ x) <= 1e-13 * (abs(plain) @ abs(x)))
