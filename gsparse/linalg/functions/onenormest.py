"""Estimates of 1-norms by a few products (Higham and Tisseur 2000)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import ShapeError
from gsparse.linalg.eigen.dense import as_dense
from gsparse.linalg.eigen.krylov_space import Space, random_vector
from gsparse.linalg.operators import as_operator, device_for, solve_dtype

Host = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Products:
    """Products of an operator, and of its adjoint, with a block of t vectors, one after the other in one array."""

    device: Device
    dtype: np.dtype[Any]
    size: int
    forward: Callable[[Array, Array], None]
    adjoint: Callable[[Array, Array], None]

    def apply(self, product: Callable[[Array, Array], None], X: Array) -> Array:
        Y = self.device.empty(X.shape, X.dtype)
        product(X.reshape(-1), Y.reshape(-1))
        return Y


@dataclass(frozen=True, eq=False)
class Estimate:
    """A lower bound of ‖A‖₁, the place of the best unit vector that was tried, and that vector's image.

    The 1-norm of the image is the bound, unless the bound is due to the first block, of vectors of signs. The image is
    on the device, or on the host if A was made dense there.
    """

    norm: float
    place: int
    image: Array


def onenormest(A: Any, t: int = 2, itmax: int = 5, compute_v: bool = False, compute_w: bool = False) -> Any:
    """Estimate the 1-norm of a square matrix or operator by a few products, on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (n, n)
        An operator needs `rmatvec` too. The norm of a matrix with entries is ``gsparse.linalg.norm(A, 1)``, exactly and
        faster.
    t : int, optional
        Number of vectors of a block: more of them make the estimate better and more expensive. From t = n on, A is made
        dense on the host, and the norm is exact.
    itmax : int, optional
        Maximum number of iterations; two are typical.
    compute_v, compute_w : bool, optional
        Whether to return v and w too.

    Returns
    -------
    est : float
        A lower bound of the norm, seldom smaller than a third of it.
    v : ndarray, shape (n,)
        The best unit vector that was tried, with ``norm(A @ v, 1) == est``. That norm is smaller if `est` is due to the
        first block, whose vectors consist of signs, as in SciPy.
    w : ndarray, shape (n,)
        The product ``A @ v``.

    Raises
    ------
    ValueError
        If `t` or `itmax` is less than 1.
    ShapeError
        If A is not square.
    TypeError
        If A is no matrix or operator.
    DeviceMemoryError

    Notes
    -----
    The random vectors of the method are always the same ones, so that calls can be repeated bit for bit. The host waits
    four to six times in an iteration.

    References
    ----------
    .. [1] N. J. Higham, F. Tisseur, "A block algorithm for matrix 1-norm estimation, with an application to 1-norm
       pseudospectra", SIAM J. Matrix Anal. Appl. 21(4), 2000.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import onenormest
    >>> S = scipy.sparse.csr_array([[1.0, 0.0, 0.0], [5.0, 8.0, 2.0], [0.0, -1.0, 0.0]])
    >>> float(onenormest(GpuSparseMatrix(S, device="cpu")))
    9.0
    """
    if t < 1 or itmax < 1:
        raise ValueError(f"t and itmax must be at least 1, got {t} and {itmax}")
    device = device_for(A)
    with device.active(), device.memory_guard():
        operator = as_operator(A, device)
        if operator.shape[0] != operator.shape[1]:
            raise ShapeError(f"expected the operator to act like a square matrix, got shape {operator.shape}")
        size, dtype = operator.shape[0], solve_dtype(operator)
        if t >= size:
            dense = as_dense(operator, device, dtype)
            sums = abs(dense).sum(axis=0)
            place = int(np.argmax(sums)) if size else 0
            estimate = Estimate(
                sums[place] if size else 0.0, place, dense[:, place] if size else dense[:, :0].sum(axis=1)
            )
        else:
            forward, adjoint = (operator.bind(device, dtype, t, adjoint=is_adjoint) for is_adjoint in (False, True))
            estimate = estimate_one_norm(Products(device, dtype, size, forward, adjoint), t, itmax)
        if not (compute_v or compute_w):
            return estimate.norm
        v = np.zeros(size, dtype)
        v[estimate.place : estimate.place + 1] = 1
        w = estimate.image if isinstance(estimate.image, np.ndarray) else device.download(estimate.image)
    return (estimate.norm, *([v] if compute_v else []), *([w] if compute_w else []))


def estimate_one_norm(products: Products, t: int, itmax: int = 5) -> Estimate:
    """Estimate the 1-norm of an operator. Synchronizes.

    This is algorithm 2.4 of Higham and Tisseur. A block holds t vectors in rows. In an iteration, Y = A·X for a block X
    of unit vectors (at first, of vectors of signs), S = sign(Y), Z = Aᴴ·S, and the next unit vectors are those of the
    largest elements of Z that have not been tried.
    """
    device, size = products.device, products.size
    xp = device.xp
    X = _without_parallel(device, _random_signs(device, size, t, 0), None)
    X[0] = 1
    X = (X / size).astype(products.dtype)
    tried: list[int] = []
    signs, current = None, np.zeros(0, np.int64)
    best = Estimate(-1.0, 0, X[0])
    for iteration in range(1, itmax + 2):
        Y = products.apply(products.forward, X)
        norms = device.download(abs(Y).sum(axis=1))  # synchronizes
        row = int(np.argmax(norms))
        improved = norms[row] > best.norm
        if improved or iteration == 2:
            # Before the second iteration, no column of A has been looked at.
            place = int(current[row]) if len(current) else 0
            best = Estimate(max(norms[row], best.norm), place, Y[row].copy())
        if (iteration >= 2 and not improved) or iteration > itmax:
            break
        before, signs = signs, _signs(xp, Y)
        if products.dtype.kind != "c":
            if before is not None and _all_parallel(device, signs, before):
                break
            signs = _without_parallel(device, signs, before)
        sizes = abs(products.apply(products.adjoint, signs)).max(axis=0)
        places, largest, at_best = _largest(device, sizes, min(size, t + len(tried)), best.place)
        if iteration >= 2 and largest <= at_best:
            break
        if t > 1 and all(place in tried for place in places[:t]):
            break
        current = np.array([*(p for p in places if p not in tried), *(p for p in places if p in tried)][:t])
        tried += [int(p) for p in current if p not in tried]
        X = xp.zeros((t, size), products.dtype)
        X[xp.arange(t), device.upload(current)] = 1
    return best


def _signs(xp: Any, Y: Array) -> Array:
    """Return y / |y| of each element, and 1 for 0."""
    sizes = abs(Y)
    return xp.where(sizes > 0, Y / xp.where(sizes > 0, sizes, 1), 1).astype(Y.dtype)


def _random_signs(device: Device, size: int, count: int, seed: int) -> Array:
    space, xp = Space(device, np.dtype(np.float64), size, size), device.xp
    return xp.stack([xp.where(random_vector(space, seed + row) < 0, -1.0, 1.0) for row in range(count)])


def _all_parallel(device: Device, signs: Array, others: Array) -> bool:
    """Return whether each vector of signs is parallel to one of the others. Synchronizes."""
    gram = abs(device.download(signs.astype(np.float64) @ others.T.astype(np.float64)))
    return bool((gram.max(axis=1) == signs.shape[1]).all())


def _without_parallel(device: Device, signs: Array, before: Array | None) -> Array:
    """Replace signs that are parallel to earlier ones, or to some of `before`, by random ones. Synchronizes."""
    count, size = signs.shape
    for seed in range(1, 1 + count):  # a random vector is parallel to another one only if there are few elements
        others = signs if before is None else device.xp.concatenate([signs, before])
        gram = abs(device.download(signs.astype(np.float64) @ others.T.astype(np.float64)))
        earlier = np.tri(count, len(others), -1) + (np.arange(len(others)) >= count)
        parallel = np.flatnonzero(((gram == size) & (earlier > 0)).any(axis=1))
        if not len(parallel):
            break
        signs = signs.copy()
        signs[device.upload(parallel)] = _random_signs(device, size, len(parallel), 100 * seed)
    return signs


def _largest(device: Device, sizes: Array, count: int, place: int) -> tuple[list[int], float, float]:
    """Return the places of the largest elements, the largest element, and the element at `place`. Synchronizes."""
    xp = device.xp
    places = xp.argpartition(-sizes, count - 1)[:count]
    values = device.download(xp.concatenate([sizes[places], sizes[place : place + 1]]))
    order = np.lexsort((device.download(places), -values[:count]))
    return [int(p) for p in device.download(places)[order]], float(values[:count].max()), float(values[count])
