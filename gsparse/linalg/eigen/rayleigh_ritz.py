"""A pencil A - λ·B as products of blocks of vectors, and the small dense problems that they lead to.

Blocks are (n, k) arrays of the device, their Gram matrices and coefficients small arrays of the host. Where several
ranks share the rows, a block is a rank's rows of it, and all of them have the same small arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.linalg.operators import MatrixOperator, as_operator

__all__ = ["Group", "Multiply", "Pencil", "multiplier", "product", "side_by_side"]

Host = npt.NDArray[Any]
Multiply = Callable[[Array], Array]


class Group(Protocol):
    """What is needed of the ranks that share the rows of blocks. All call the same in the same order."""

    def allreduce(self, values: Array) -> None:
        """Add an array of the device up over all ranks, in place: the same bits on each."""
        ...

    def agreed(self, values: Host) -> Host:
        """Give what the first rank has, on all. Synchronizes."""
        ...

    def look(self, iteration: Any) -> None:
        """See the search as it is now; raise where it is to end."""
        ...


@dataclass(eq=False)
class Pencil:
    """A and B as products of blocks, and what is computed with them.

    Attributes
    ----------
    device : Device
    A, B : callable or None
        None is the identity.
    largest : bool
        Whether the largest eigenvalues are wanted, or the smallest.
    ranks : Group or None
    """

    device: Device
    A: Multiply | None
    B: Multiply | None
    largest: bool
    ranks: Group | None = None

    def multiply(self, V: Array) -> tuple[Array, Array]:
        """Give A·V and B·V."""
        return product(self.A, V, "A"), product(self.B, V, "B")

    def inner(self, V: Array, W: Array) -> Host:
        """Give Vᴴ·W on the host. Synchronizes."""
        return self.device.download(self._gram(V, W))

    def norms(self, R: Array) -> Host:
        """Give the norms of columns on the host. Synchronizes."""
        xp = self.device.xp
        squares: Host = self.device.download(self._summed(xp.sum(xp.abs(R) ** 2, axis=0)))
        return np.sqrt(squares)

    def combine(self, coefficients: Host, *blocks: Array) -> tuple[Array, ...]:
        """Give each block times the coefficients."""
        on_device = self.device.upload(np.ascontiguousarray(coefficients))
        return tuple(V @ on_device for V in blocks)

    def without(self, V: Array, basis: Array, B_basis: Array) -> Array:
        """Give V without what it has of a B-orthonormal basis."""
        return V - basis @ self._gram(B_basis, V)

    def orthonormal(self, V: Array, basis: Array | None = None, B_basis: Array | None = None) -> Array:
        """Give a B-orthonormal basis of what V adds to a B-orthonormal one. Synchronizes."""
        for _ in range(2):  # twice is enough: the first pass may have lost what an ill-conditioned block allows
            if basis is not None and B_basis is not None:
                V = self.without(V, basis, B_basis)
            (V,) = self.combine(self._whitening(self.inner(V, product(self.B, V, "B"))), V)
        return V

    def ritz(self, gram: Host, mass: Host, count: int) -> tuple[Host, Host]:
        """Solve the small problem: the wanted values and their coefficients, which are orthonormal in `mass`."""
        whitening = self._whitening(mass)
        values, vectors = self._eigh(whitening.conj().T @ gram @ whitening)
        chosen = slice(None, -count - 1, -1) if self.largest else slice(count)
        return values[chosen], whitening @ vectors[:, chosen]

    def directions(self, C: Host, mass: Host, active: npt.NDArray[np.bool_]) -> Host:
        """Give coefficients of what active columns have got from outside X, orthonormal and orthogonal to the new X."""
        found = C[:, active].copy()
        found[: C.shape[1]] = 0
        for _ in range(2):
            found -= C @ (C.conj().T @ (mass @ found))
            found = found @ self._whitening(found.conj().T @ mass @ found)
        return found

    def _whitening(self, gram: Host) -> Host:
        """Give T with Tᴴ·gram·T = 1, of as many columns as the Gram matrix has directions above rounding.

        Columns are scaled to length 1 before, so their sizes do not matter.
        """
        lengths = np.sqrt(np.abs(np.diag(gram)))
        if not np.isfinite(gram).all() or not lengths.any():
            return gram[:, :0]
        scale = np.where(lengths > 0, 1 / np.where(lengths > 0, lengths, 1), 0).astype(lengths.dtype)
        values, vectors = self._eigh(scale[:, None] * gram * scale)
        kept = values > 10 * len(values) * np.finfo(values.dtype).eps * max(values[-1], 0)
        found: Host = scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])
        return found

    def _eigh(self, gram: Host) -> tuple[Host, Host]:
        """Give eigenvalues and vectors of a Hermitian matrix: the first rank's, as hosts may differ in their signs."""
        values, vectors = eigh((gram + gram.conj().T) / 2)
        if self.ranks is None:
            return values, vectors
        both = self.ranks.agreed(np.vstack([values.astype(vectors.dtype), vectors]))
        return both[0].real.copy(), both[1:]

    def _gram(self, V: Array, W: Array) -> Array:
        return self._summed(V.conj().T @ W)

    def _summed(self, part: Array) -> Array:
        """Add up what the ranks have, where there are several."""
        if self.ranks is None:
            return part
        part = self.device.xp.ascontiguousarray(part)
        self.ranks.allreduce(part)
        return part


def side_by_side(device: Device, blocks: tuple[Array, ...]) -> Array:
    """Give one block of several."""
    return blocks[0] if len(blocks) == 1 else device.xp.concatenate(blocks, axis=1)


def product(multiply: Multiply | None, V: Array, name: str) -> Array:
    """Give the product with a block; without anything to multiply by, the block."""
    if multiply is None:
        return V
    found = multiply(V)
    if found.shape != V.shape:
        raise ValueError(f"{name} must keep the shape {V.shape} of a block, its product has shape {found.shape}")
    return found


def multiplier(A: Any, device: Device, on_host: bool, name: str = "A") -> Multiply | None:
    """Give the product of blocks for whatever a caller has."""
    if A is None:
        return None
    if callable(A) and not hasattr(A, "shape"):
        return _hosted(A, device) if on_host else A
    operator = as_operator(A, device, name)
    blockwise: Any = operator.matrix if isinstance(operator, MatrixOperator) else operator
    matmat: Multiply = blockwise.matmat
    return matmat


def _hosted(function: Multiply, device: Device) -> Multiply:
    """Give a function of host arrays as one of device arrays. Synchronizes."""
    if device.is_host:
        return lambda V: np.asarray(function(V))
    return lambda V: device.upload(np.asarray(function(device.download(V))))
