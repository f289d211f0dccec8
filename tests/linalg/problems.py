"""Linear systems that are small enough for emulated devices, and measures of their solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from tests.support import host, random_values


def matrix(device: Device, S: Any) -> GpuSparseMatrix:
    """Return a matrix on the device of a test."""
    return GpuSparseMatrix(S, device=device)


def laplacian(n: int, dtype: Any = float) -> sp.csr_array:
    """Return the 5-point Laplacian of an n×n grid; it is complex Hermitian if the dtype is complex."""
    dtype = np.dtype(dtype)
    off_diagonal = -1 + 0.5j if dtype.kind == "c" else -1.0
    line = sp.diags_array([off_diagonal, 2.0, np.conj(off_diagonal)], offsets=[-1, 0, 1], shape=(n, n), dtype=dtype)
    eye = sp.eye_array(n, dtype=dtype)
    return sp.csr_array(sp.kron(line, eye) + sp.kron(eye, line), dtype=dtype)


def positive(n: int, dtype: Any = float) -> sp.csr_array:
    """Return a Hermitian, positive definite operator on an n×n grid."""
    return sp.csr_array(laplacian(n, dtype) + 0.5 * sp.eye_array(n * n, dtype=dtype), dtype=dtype)


def convection(n: int, dtype: Any = float) -> sp.csr_array:
    """Return a nonsymmetric upwind convection-diffusion operator on an n×n grid."""
    dtype = np.dtype(dtype)
    line = sp.diags_array([-1.5, 2.5, -1.0], offsets=[-1, 0, 1], shape=(n, n), dtype=dtype)
    eye = sp.eye_array(n, dtype=dtype)
    S = sp.kron(line, eye) + sp.kron(eye, line)
    return sp.csr_array(S + 0.3j * sp.eye_array(n * n) if dtype.kind == "c" else S, dtype=dtype)


def indefinite(n: int, dtype: Any = float) -> sp.csr_array:
    """Return a Hermitian operator with eigenvalues of both signs, none near 0."""
    S = laplacian(n, dtype)
    signs = np.where(np.arange(n * n) % 2, 3, -6)
    return sp.csr_array(S + sp.diags_array(signs.astype(S.dtype)), dtype=S.dtype)


def exchanged(n: int, dtype: Any = float) -> sp.csr_array:
    """Return a nonsymmetric matrix with zeros on the diagonal: its rows are in another order."""
    S = convection(n, dtype)
    return sp.csr_array(S[np.roll(np.arange(n * n), 3)])


def saddle_point(n: int, dtype: Any = float) -> sp.csr_array:
    """Return [[A, Bᵀ], [B, 0]] with the 5-point Laplacian A and n constraints."""
    A, rng = laplacian(n, dtype), np.random.default_rng(0)
    columns = rng.permutation(n * n)[: 3 * n].reshape(3, n)
    B = sp.csr_array((rng.standard_normal(3 * n), (np.tile(np.arange(n), 3), columns.ravel())), shape=(n, n * n))
    return sp.csr_array(sp.block_array([[A, B.T], [B, None]]), dtype=dtype)


def jumping_coefficients(n: int, jump: float) -> sp.csr_array:
    """Return the 7-point finite volumes of -div(c·grad) on an n×n×n grid, where each cell has c = 1 or c = jump."""
    c = np.where(np.random.default_rng(0).random((n, n, n)) < 0.5, 1.0, jump)
    numbers, diagonal = np.arange(n**3).reshape(c.shape), np.zeros(c.shape)
    S = sp.csr_array((n**3, n**3))
    for axis in range(3):
        c_axis, i, sums = (np.moveaxis(array, axis, 0) for array in (c, numbers, diagonal))
        flux = 2 * c_axis[1:] * c_axis[:-1] / (c_axis[1:] + c_axis[:-1])
        S = S - sp.coo_array((flux.ravel(), (i[1:].ravel(), i[:-1].ravel())), shape=S.shape)
        sums[1:] += flux
        sums[:-1] += flux
        sums[[0, -1]] += 2 * c_axis[[0, -1]]
    return sp.csr_array(S + S.T + sp.diags_array(diagonal.ravel()))


def poisson(n: int) -> sp.csr_array:
    """Return the 7-point Laplacian of an n×n×n grid."""
    return sp.csr_array(jumping_coefficients(n, 1.0))


def rectangular(rows: int, columns: int, dtype: Any = float) -> sp.csr_array:
    """Return a sparse matrix of full rank with about ten entries per row or column."""
    rng = np.random.default_rng(rows + columns)
    S = sp.random_array((rows, columns), density=min(1, 10 / min(rows, columns)), rng=rng, dtype=float).tocsr()
    S.data = random_values(rng, S.nnz, dtype)
    return sp.csr_array(S + 12 * sp.eye_array(rows, columns, dtype=np.dtype(dtype)), dtype=dtype)


def right_hand_side(S: Any, columns: int | None = None, seed: int = 0) -> Any:
    shape = S.shape[0] if columns is None else (S.shape[0], columns)
    return random_values(np.random.default_rng(seed), shape, S.dtype)


def residual(S: Any, x: Any, b: Any) -> Any:
    """Return norm(b - S·x) / norm(b) of each column."""
    return np.linalg.norm(b - S @ host(x), axis=0) / np.linalg.norm(b, axis=0)


class Count:
    """A callback that counts its calls and keeps the last argument."""

    def __init__(self) -> None:
        self.calls, self.last = 0, None

    def __call__(self, x: Any) -> None:
        self.calls, self.last = self.calls + 1, x


def dense(M: Any, name: str = "matvec") -> Any:
    """Return an operator as a dense matrix, column by column."""
    product, eye = getattr(M, name), np.eye(M.shape[0], dtype=M.dtype)
    return np.stack([host(product(column)) for column in eye], axis=1)


def close(found: Any, expected: Any, tolerance: float = 1e-13) -> None:
    """Compare arrays up to a tolerance relative to their largest element, or to 1 if that is smaller."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, abs(expected).max(initial=0)))
