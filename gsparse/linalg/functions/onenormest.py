"""Estimates of 1-norms by a few products, and the degrees of Taylor polynomials for `expm_multiply`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import ShapeError
from gsparse.linalg.eigen.krylov_space import Space, random_vector
from gsparse.linalg.operators import DenseOperator, MatrixOperator, Operator, as_operator, device_for, solve_dtype
from gsparse.linalg.small_matrices import as_dense

Host = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Products:
    """Products of an operator, and of its adjoint, with a block of t vectors that are stored one after the other."""

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
    """A lower bound `norm` of ‖A‖₁. `image` is A times the unit vector number `place`, the best one that was tried.

    The 1-norm of `image` is the bound, unless the bound comes from the first block, whose vectors consist of signs.
    `image` is a device array, or a host array if A was made dense on the host.
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
        Number of vectors of a block. More vectors make the estimate more accurate and slower. If t is at least n, A is
        made dense on the host, and the norm is exact.
    itmax : int, optional
        Maximum number of iterations; two are typical.
    compute_v, compute_w : bool, optional
        Whether to return v and w too.

    Returns
    -------
    est : float
        A lower bound of the norm, seldom smaller than a third of the norm.
    v : ndarray, shape (n,)
        The best unit vector that was tried, with ``norm(A @ v, 1) == est``. As in SciPy, that norm is smaller than
        `est` if `est` comes from the first block, whose vectors consist of signs.
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
    of unit vectors (at first, of vectors of signs), S = sign(Y), Z = Aᴴ·S, and the next unit vectors are those for the
    largest elements of Z, except for vectors that have been tried.
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
            # The first X consisted of vectors of signs, so no column of A is known yet.
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
    """Return y / |y| for each element y, and 1 for 0."""
    sizes = abs(Y)
    return xp.where(sizes > 0, Y / xp.where(sizes > 0, sizes, 1), 1).astype(Y.dtype)


def _random_signs(device: Device, size: int, count: int, seed: int) -> Array:
    space, xp = Space(device, np.dtype(np.float64), size, size), device.xp
    return xp.stack([xp.where(random_vector(space, seed + row) < 0, -1.0, 1.0) for row in range(count)])


def _all_parallel(device: Device, signs: Array, others: Array) -> bool:
    """Return whether each row of `signs` is parallel to a row of `others`. Synchronizes."""
    gram = abs(device.download(signs.astype(np.float64) @ others.T.astype(np.float64)))
    return bool((gram.max(axis=1) == signs.shape[1]).all())


def _without_parallel(device: Device, signs: Array, before: Array | None) -> Array:
    """Replace rows that are parallel to earlier rows, or to rows of `before`, by random signs. Synchronizes."""
    count, size = signs.shape
    for seed in range(1, 1 + count):  # random rows are parallel only if they have few elements
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
    """Return the indices of the `count` largest elements, the largest element, and element `place`. Synchronizes."""
    xp = device.xp
    places = xp.argpartition(-sizes, count - 1)[:count]
    values = device.download(xp.concatenate([sizes[places], sizes[place : place + 1]]))
    order = np.lexsort((device.download(places), -values[:count]))
    return [int(p) for p in device.download(places)[order]], float(values[:count].max()), float(values[count])


# θ_m is the largest norm for which the Taylor polynomial of degree m has a backward error of at most 2⁻⁵³ (or 2⁻²⁴):
# the root of Σ |c_k|·θ^(k-1) = error with the coefficients c_k of log(exp(-x)·T_m(x)). Table 3.1 of the paper has some
# of these values; tests/linalg/test_expm_multiply.py computes all. Terms of the series, and their rounding errors, grow
# like exp(θ), so the table ends at degree 22 in single precision. With degree 55, errors would be 1000 times as large.
_DEGREES = (*range(1, 31), 35, 40, 45, 50, 55)
_DOUBLE = (
    *(2.220e-16, 2.580e-8, 1.386e-5, 3.397e-4, 2.400e-3, 9.065e-3, 2.384e-2, 4.991e-2, 8.957e-2, 1.441e-1),
    *(2.142e-1, 2.996e-1, 3.997e-1, 5.139e-1, 6.410e-1, 7.802e-1, 9.305e-1, 1.090, 1.260, 1.438),
    *(1.623, 1.816, 2.014, 2.219, 2.428, 2.642, 2.861, 3.084, 3.310, 3.539, 4.728, 5.968, 7.245, 8.546, 9.867),
)
_SINGLE = (
    *(1.192e-7, 5.978e-4, 1.123e-2, 5.116e-2, 1.308e-1, 2.495e-1, 4.014e-1, 5.800e-1, 7.795e-1, 9.951e-1),
    *(1.223, 1.461, 1.707, 1.959, 2.217, 2.478, 2.742, 3.010, 3.279, 3.550, 3.823, 4.098),
)
THETA = {np.dtype(np.float64): dict(zip(_DEGREES, _DOUBLE, strict=True)),
         np.dtype(np.float32): dict(enumerate(_SINGLE, 1))}  # fmt: skip
# Norms of powers of A - μI are estimated up to this power plus one, as far as the table has degrees for them.
_MAX_POWER = 8
# Number of vectors in a block for these estimates.
_BLOCK = 2
# Number of random vectors for the trace of an operator whose entries cannot be read.
_TRACE_SAMPLES = 4


@dataclass(eq=False)
class ShiftedNorms:
    """1-norms of A - μI and of its powers. Each norm is computed when first needed."""

    A: Operator
    device: Device
    dtype: np.dtype[Any]
    shift: complex
    _roots: dict[int, float] = field(default_factory=dict)

    def one_norm(self) -> float:
        """Return ‖A - μI‖₁: the exact norm if A's entries can be read, otherwise an estimate."""
        if 1 not in self._roots:
            exact = _exact_one_norm(self.A, self.device, self.shift)
            self._roots[1] = self.root(1) if exact is None else exact
        return self._roots[1]

    def root(self, p: int) -> float:
        """Return an estimate of ‖(A - μI)^p‖₁^(1/p); infinity if the power overflows."""
        if p not in self._roots:
            size, block = self.A.shape[0], min(_BLOCK, self.A.shape[0])
            forward, adjoint = (self._power(p, block, is_adjoint) for is_adjoint in (False, True))
            products = Products(self.device, self.dtype, size, forward, adjoint)
            with np.errstate(over="ignore", invalid="ignore"):
                norm = float(estimate_one_norm(products, block).norm)
            self._roots[p] = norm ** (1 / p) if np.isfinite(norm) else np.inf
        return self._roots[p]

    def _power(self, p: int, columns: int, is_adjoint: bool) -> Callable[[Array, Array], None]:
        product = self.A.bind(self.device, self.dtype, columns, adjoint=is_adjoint)
        shift = self.dtype.type(np.conj(self.shift) if is_adjoint else self.shift)

        def apply(x: Array, y: Array) -> None:
            source = x
            for _ in range(p):
                product(source, y)
                y -= shift * source
                source = y.copy()

        return apply

    def degree_and_steps(self, t: complex, columns: int) -> tuple[int, int]:
        """Return the degree m and the number of steps s that take the fewest products for exp(t·A).

        Raises
        ------
        ValueError
            If t·A is so large that rounding errors leave no correct digit.
        """
        theta, norm = THETA[np.dtype(np.finfo(self.dtype).dtype)], abs(t) * self.one_norm()
        if norm == 0 or not np.isfinite(norm):
            return 0 if norm == 0 else 1, 1
        quotients, largest = [(m, norm / theta[m]) for m in theta], max(theta)
        powers = [p for p in range(2, _MAX_POWER + 1) if p * (p - 1) - 1 <= largest]
        # Estimating the norms of powers also takes products. If `norm` is at most `worth`, these are more products than
        # the estimates can save.
        worth = 2 * _BLOCK * powers[-1] * (powers[-1] + 3) * theta[largest] / (columns * largest)
        if norm > worth:
            quotients = []
            for p in powers:
                alpha = abs(t) * max(self.root(p), self.root(p + 1))
                quotients += [(m, alpha / theta[m]) for m in theta if m >= p * (p - 1) - 1]
        pairs = [(m, max(np.ceil(quotient), 1.0)) for m, quotient in quotients]
        degree, steps = min(pairs, key=lambda pair: (pair[0] * pair[1], pair[1]))
        if not steps * np.finfo(self.dtype).eps < 1:
            raise ValueError(
                f"the norm of A times the time, {norm:.1e} after a shift of A, is too large for {self.dtype}: it takes "
                f"{steps:.1e} steps, whose rounding errors leave no correct digit. Use a shorter time or a scaled A"
            )
        return degree, int(steps)


def _exact_one_norm(A: Operator, device: Device, shift: complex) -> float | None:
    """Return ‖A - shift·I‖₁ if A's entries can be read, otherwise None."""
    if isinstance(A, DenseOperator):
        array = A.array if isinstance(A.array, np.ndarray) else device.download(A.array)
        return float(abs(array - shift * np.eye(len(array))).sum(axis=0).max(initial=0))
    if not isinstance(A, MatrixOperator):
        return None
    matrix: Any = A.matrix
    diagonal = matrix.diagonal()
    sums = np.asarray(abs(matrix).sum(axis=0)).reshape(-1) - abs(diagonal) + abs(diagonal - shift)
    return float(sums.max(initial=0))


def trace_of(A: Operator, device: Device, dtype: np.dtype[Any]) -> complex:
    """Return the trace of A, or an estimate by random signs if A's entries cannot be read (Hutchinson 1989)."""
    if isinstance(A, MatrixOperator):
        matrix: Any = A.matrix
        return complex(matrix.trace())
    if isinstance(A, DenseOperator):
        return complex(A.array.trace())
    real = np.dtype(np.finfo(dtype).dtype)
    space = Space(device, real, A.shape[0], A.shape[0])
    product, total = A.bind(device, dtype), 0j
    y = device.xp.zeros(A.shape[0], dtype)
    for seed in range(_TRACE_SAMPLES):
        signs = device.xp.where(random_vector(space, seed) < 0, -1, 1).astype(dtype)
        product(signs, y)
        total += complex(device.xp.vdot(signs, y))  # synchronizes
    return total / _TRACE_SAMPLES
