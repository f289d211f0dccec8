"""The last step of an eigensolver: eigenpairs within the span of the vectors that were found, and their residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.krylov_space import KrylovSpace
from gsparse.linalg.operators import Apply

Host = npt.NDArray[Any]


def products(krylov: KrylovSpace, apply: Apply, vectors: Array) -> Array:
    """Return the products of an operator with each row."""
    result = krylov.space.device.empty(vectors.shape, vectors.dtype)
    for x, y in zip(vectors, result, strict=True):
        apply(x, y)
    return result


def residual_norms(krylov: KrylovSpace, left: Array, values: Host, right: Array) -> Host:
    """Return the norms of left - value·right for each row. Synchronizes."""
    space = krylov.space
    factors = space.device.upload(np.ascontiguousarray(values).astype(left.dtype))[:, None]
    squares = (abs(left - factors * right) ** 2).sum(axis=1)
    norms: Host = np.sqrt(space.download(space.sum_over_ranks(squares)))
    return norms


def hermitian_quotients(krylov: KrylovSpace, apply: Apply, count: int) -> tuple[Host, Host]:
    """Rotate the first vectors to eigenvectors of A within their span; return eigenvalues and residuals. Synchronizes.

    Locked vectors are eigenvectors up to the tolerance only. A rotation within a cluster costs little, and makes the
    error of the eigenvalues quadratic in that of the vectors.
    """
    space, xp = krylov.space, krylov.space.device.xp
    X = krylov.vectors[:count]
    AX = products(krylov, apply, X)
    gram = space.download(space.sum_over_ranks(xp.conj(X @ xp.conj(AX).T)))
    values, combinations = np.linalg.eigh((gram + gram.conj().T) / 2)
    if space.ranks is not None:  # the signs of eigenvectors may differ between hosts
        both = space.ranks.agreed(np.vstack([values.astype(combinations.dtype), combinations]))
        values, combinations = both[0].real.copy(), both[1:].copy()
    krylov.rotate(combinations)
    rows = space.device.upload(np.ascontiguousarray(combinations.T).astype(space.dtype))
    return values, residual_norms(krylov, rows @ AX, values, krylov.vectors[:count])
