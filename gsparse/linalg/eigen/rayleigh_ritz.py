"""The eigenproblem A·x = λ·B·x on blocks of vectors, and the small dense problems of the Rayleigh-Ritz method.

A block is an (n, k) array on the device. Gram matrices and coefficients are small host arrays. If several ranks share
the matrix, each rank has its own rows of a block, and all ranks have the same small arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.krylov_space import KrylovSpace, Space
from gsparse.linalg.eigen.problem import exponent_of_product
from gsparse.linalg.krylov.units import needed_exponent, times_power
from gsparse.linalg.operators import Apply, MatrixOperator, as_operator
from gsparse.linalg.small_matrices import agreed

Host = npt.NDArray[Any]
BlockProduct = Callable[[Array], Array]


@dataclass(eq=False)
class BlockEigenproblem:
    """A·x = λ·B·x, where A and B are functions that multiply blocks, and the operations on blocks that LOBPCG needs.

    Attributes
    ----------
    space : Space
        The vector space of the blocks' columns: device, dtype, ranks.
    A, B : callable or None
        Functions that return the product with a block; None for the identity.
    largest : bool
        Whether the largest eigenvalues are wanted, or the smallest.
    value_exponent, norm_exponent : int
        The caller's eigenvalues and residual norms are those of this problem times 2 to these powers.
    """

    space: Space
    A: BlockProduct | None
    B: BlockProduct | None
    largest: bool
    value_exponent: int = 0
    norm_exponent: int = 0

    @property
    def device(self) -> Device:
        return self.space.device

    def multiply(self, V: Array) -> tuple[Array, Array]:
        """Return A·V and B·V."""
        return multiply_block(self.A, V, "A"), multiply_block(self.B, V, "B")

    def inner(self, V: Array, W: Array) -> Host:
        """Return Vᴴ·W on the host. Synchronizes."""
        return self.device.download(self._gram(V, W))

    def norms(self, R: Array) -> Host:
        """Return the norms of the columns of R in the scale of the caller's problem, on the host. Synchronizes."""
        xp = self.device.xp
        squares: Host = self.device.download(self.space.sum_over_ranks(xp.sum(xp.abs(R) ** 2, axis=0)))
        norms: Host = np.sqrt(squares)
        return times_power(norms.astype(np.float64), self.norm_exponent) if self.norm_exponent else norms

    def combine(self, coefficients: Host, *blocks: Array) -> tuple[Array, ...]:
        """Return the product of each block with the matrix `coefficients`, as device arrays."""
        on_device = self.device.upload(np.ascontiguousarray(coefficients))
        return tuple(V @ on_device for V in blocks)

    def project_out(self, V: Array, basis: Array, B_basis: Array) -> Array:
        """Return V minus its projection on a B-orthonormal basis."""
        return V - basis @ self._gram(B_basis, V)

    def orthonormal(self, V: Array, basis: Array | None = None, B_basis: Array | None = None) -> Array:
        """Return a B-orthonormal basis of the part of V that is B-orthogonal to `basis`. Synchronizes.

        The result has fewer columns than V if the columns of V are linearly dependent.
        """
        for _ in range(2):  # the second pass restores orthogonality that an ill-conditioned block has lost
            if basis is not None and B_basis is not None:
                V = self.project_out(V, basis, B_basis)
            (V,) = self.combine(self._whitening(self.inner(V, multiply_block(self.B, V, "B"))), V)
        return V

    def ritz(self, gram: Host, mass: Host, count: int) -> tuple[Host, Host]:
        """Return the `count` wanted Ritz values, and the coefficients C of their vectors, with Cᴴ·mass·C = I."""
        whitening = self._whitening(mass)
        values, vectors = self._eigh(whitening.conj().T @ gram @ whitening)
        wanted = slice(None, -count - 1, -1) if self.largest else slice(count)
        return values[wanted], whitening @ vectors[:, wanted]

    def implicit_directions(self, C: Host, mass: Host, active: npt.NDArray[np.bool_]) -> Host:
        """Return the coefficients of the implicit search directions P of the active columns.

        P is the part of the new block's active columns that does not come from the old block X, made orthonormal and
        orthogonal to the new block.
        """
        P = C[:, active].copy()
        P[: C.shape[1]] = 0
        for _ in range(2):
            P -= C @ (C.conj().T @ (mass @ P))
            P = P @ self._whitening(P.conj().T @ mass @ P)
        return P

    def _whitening(self, gram: Host) -> Host:
        """Return T with Tᴴ·gram·T = I.

        T has one column for each eigenvalue of the Gram matrix that is not rounding error. The Gram matrix is first
        scaled to a unit diagonal, so that the norms of the columns do not matter.
        """
        lengths = np.sqrt(np.abs(np.diag(gram)))
        if not np.isfinite(gram).all() or not lengths.any():
            return gram[:, :0]
        scale = np.where(lengths > 0, 1 / np.where(lengths > 0, lengths, 1), 0).astype(lengths.dtype)
        values, vectors = self._eigh(scale[:, None] * gram * scale)
        is_significant = values > 10 * len(values) * np.finfo(values.dtype).eps * max(values[-1], 0)
        whitening: Host = scale[:, None] * vectors[:, is_significant] / np.sqrt(values[is_significant])
        return whitening

    def _eigh(self, gram: Host) -> tuple[Host, Host]:
        """Return the eigenvalues and eigenvectors of a Hermitian matrix, the same on all ranks."""
        return agreed(self.space.ranks, *eigh((gram + gram.conj().T) / 2))

    def _gram(self, V: Array, W: Array) -> Array:
        return self.space.sum_over_ranks(self.device.xp.ascontiguousarray(V.conj().T @ W))


def concatenate_columns(device: Device, blocks: tuple[Array, ...]) -> Array:
    """Return one block with the columns of several blocks."""
    return blocks[0] if len(blocks) == 1 else device.xp.concatenate(blocks, axis=1)


def multiply_block(multiply: BlockProduct | None, V: Array, name: str) -> Array:
    """Return the product with a block, or the block itself if `multiply` is None. An error message contains `name`."""
    if multiply is None:
        return V
    result = multiply(V)
    if result.shape != V.shape:
        raise ValueError(f"{name} must keep the shape {V.shape} of a block, its product has shape {result.shape}")
    return result


def as_block_product(A: Any, device: Device, on_host: bool, name: str = "A") -> BlockProduct | None:
    """Return a function that multiplies a block by a matrix, operator or callable of the user; None if A is None."""
    if A is None:
        return None
    if callable(A) and not hasattr(A, "shape"):
        return _on_host_arrays(A, device) if on_host else A
    operator = as_operator(A, device, name)
    blockwise: Any = operator.matrix if isinstance(operator, MatrixOperator) else operator
    matmat: BlockProduct = blockwise.matmat
    return matmat


def scaled_product(multiply: BlockProduct | None, space: Space) -> tuple[BlockProduct | None, int]:
    """Return `multiply` times 2^-e, and the e that keeps squares from over- or underflowing. Synchronizes."""
    if multiply is None:
        return None, 0
    exponent = needed_exponent([exponent_of_product(lambda x: multiply(x[:, None]), space)], space.dtype)
    return (lambda V: times_power(multiply(V), -exponent)) if exponent else multiply, exponent


def _on_host_arrays(function: BlockProduct, device: Device) -> BlockProduct:
    """Return a function of device arrays that calls a function of host arrays. On a GPU, its calls synchronize."""
    if device.is_host:
        return lambda V: np.asarray(function(V))
    return lambda V: device.upload(np.asarray(function(device.download(V))))


def residual_norms(space: Space, left: Array, values: Host, right: Array) -> Host:
    """Return, for each row, the norm of left - value·right with the value of this row. Synchronizes."""
    factors = space.device.upload(np.ascontiguousarray(values).astype(left.dtype))[:, None]
    squares = (abs(left - factors * right) ** 2).sum(axis=1)
    norms: Host = np.sqrt(space.download(space.sum_over_ranks(squares)))
    return norms


def hermitian_quotients(krylov: KrylovSpace, apply: Apply, count: int) -> tuple[Host, Host]:
    """Rotate the first `count` vectors to Ritz vectors of A; return Ritz values and residual norms. Synchronizes.

    Locked vectors are eigenvectors only up to the tolerance. The rotation costs little. After it, the error of the
    eigenvalues is proportional to the square of the error of the vectors.
    """
    space, xp = krylov.space, krylov.space.device.xp
    X = krylov.vectors[:count]
    AX = products(space.device, apply, X)
    gram = space.download(space.sum_over_ranks(xp.conj(X @ xp.conj(AX).T)))
    values, combinations = agreed(space.ranks, *np.linalg.eigh((gram + gram.conj().T) / 2))
    krylov.rotate(combinations)
    rows = space.device.upload(np.ascontiguousarray(combinations.T).astype(space.dtype))
    return values, residual_norms(space, rows @ AX, values, krylov.vectors[:count])


def products(device: Device, apply: Apply, vectors: Array, size: int | None = None) -> Array:
    """Return the products of an operator with the rows of `vectors`, as rows of `size` elements (None: no change)."""
    result = device.empty((len(vectors), vectors.shape[1] if size is None else size), vectors.dtype)
    for x, y in zip(vectors, result, strict=True):
        apply(x, y)
    return result
