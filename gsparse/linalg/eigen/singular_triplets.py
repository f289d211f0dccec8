"""Singular triplets of sparse matrices by Golub-Kahan-Lanczos with restarts on the device.

Let A have no more columns than rows; otherwise its adjoint is used. The process builds an orthonormal basis V of a
Krylov space of AᴴA. Its steps are u = A·w, w = Aᴴ·u, and the recurrence of Lanczos; in exact arithmetic, these are the
vectors of Golub and Kahan's bidiagonalization. Only the right vectors, which are shorter, are stored and
orthogonalized. Then the singular value decomposition of A on the span of the k vectors that were found, A·V = U·Σ·Wᴴ,
gives singular values that are accurate relative to the norm of A.

Squaring hides singular values below sqrt(eps) times the largest one. If residuals show that such values are wanted, the
process is repeated with the matrix [0 A; Aᴴ 0], whose eigenvalues are the singular values themselves and their
negatives. The smallest singular values are found with the inverse of AᴴA, from factors of [sI A; Aᴴ -tI], unless these
factors would be too large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as scipy_linalg

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.interchange import parse_dense
from gsparse.errors import ShapeError
from gsparse.linalg.eigen.eigsh import matrix_cost
from gsparse.linalg.eigen.krylov_space import Space
from gsparse.linalg.eigen.problem import exponent_of_apply, no_convergence
from gsparse.linalg.eigen.rayleigh_ritz import products, residual_norms
from gsparse.linalg.eigen.restarted import Lanczos
from gsparse.linalg.eigen.runs import Wanted
from gsparse.linalg.eigen.transforms import FilterRule, Solve, Transform
from gsparse.linalg.krylov.units import DerivedOperator, needed_exponent, scaled_operator, times_power
from gsparse.linalg.operators import Apply, MatrixOperator, Operator
from gsparse.linalg.small_matrices import agreed, as_dense, rows_of, tall_qr, wide

Host = npt.NDArray[Any]

# A matrix is solved as a dense one if its smaller dimension is at most _SMALL and it has at most _MAX_DENSE elements.
_SMALL, _MAX_DENSE = 64, 4_000_000
# If rows and columns together are at most this many, the smallest singular values are found with factors.
_MAX_FACTORED = 100_000
# s, and √(s·t), relative to the norm of A (see `_Factors`).
_UPPER, _SHIFT = 1e-3, 1e-6
# If a residual is larger than this factor times its tolerance, [0 A; Aᴴ 0] is solved instead of Aᴴ·A.
_SLACK = 20.0


class CenteredOperator(DerivedOperator):
    """A - 1·cᵀ: the matrix A after the vector c is subtracted from each row, which is never formed.

    If ranks share A, `center` has the elements of the columns that this rank owns.
    """

    def __init__(self, operator: Operator, center: Array) -> None:
        super().__init__(operator)
        self._center = parse_dense(center)
        if self._center.shape != operator.shape[1:]:
            raise ShapeError(f"center must have shape {operator.shape[1:]}, got {self._center.shape}")
        self.dtype, self.is_resident = np.dtype(np.result_type(operator.dtype, self._center.dtype)), False

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        product, ranks = self._operator.bind(device, dtype, columns, adjoint=adjoint), self.ranks
        center, one = self._center.flat(device, dtype, 1), device.xp.ones(1, dtype)
        weights, factors = (one, center.conj()) if adjoint else (center, one)

        def apply(x: Array, y: Array) -> None:
            product(x, y)
            sums = (x.reshape(columns, -1) * weights).sum(axis=1)
            if ranks is not None:
                ranks.allreduce(sums)
            y.reshape(columns, -1)[...] -= sums[:, None] * factors

        return apply


@dataclass(frozen=True, eq=False)
class System:
    """A, or its adjoint if that has fewer columns, so that the right singular vectors are the shorter ones.

    Attributes
    ----------
    device : Device
    dtype : dtype
    A : Operator
    is_adjoint : bool
    on_host : bool
        Whether the caller gets NumPy arrays.
    exponent : int
        The singular values of the caller's matrix are those of A times 2 to this power.
    """

    device: Device
    dtype: np.dtype[Any]
    A: Operator
    is_adjoint: bool
    on_host: bool
    exponent: int = 0

    @property
    def rows(self) -> int:
        """Number of rows of the matrix, or of its adjoint if `is_adjoint`; of this rank if ranks share the matrix."""
        return self.A.shape[self.is_adjoint]

    @property
    def columns(self) -> int:
        """Number of columns, counted as `rows`; over all ranks, there are no more columns than rows."""
        return self.A.shape[not self.is_adjoint]

    def space(self, size: int) -> Space:
        """Return the space of vectors of which this rank has `size` elements. Synchronizes if ranks share them."""
        ranks = self.A.ranks
        if ranks is None:
            return Space(self.device, self.dtype, size, size)
        sizes, number = ranks.tabled(np.array([size]))
        return Space(self.device, self.dtype, size, int(sizes.sum()), int(sizes[:number].sum()), ranks)

    def products(self) -> tuple[Apply, Apply]:
        """Return the products with the matrix (columns to rows) and with its adjoint."""
        forward, backward = (self.A.bind(self.device, self.dtype, adjoint=adjoint) for adjoint in (False, True))
        return (backward, forward) if self.is_adjoint else (forward, backward)


@dataclass(frozen=True)
class Options:
    """The options of `svds`, with the same names and meanings."""

    k: int
    ncv: int | None
    tol: float
    which: str
    maxiter: int | None
    multiplicities: bool = True
    seed: int = 0


def scaled(system: System) -> System:
    """Return a system that is scaled if its squares may over- or underflow. Synchronizes."""
    dtype, space = system.dtype, system.space(system.columns)
    exponent = needed_exponent([exponent_of_apply(system.products()[0], space, system.rows)], dtype)
    return replace(system, A=scaled_operator(system.A, -exponent, dtype), exponent=exponent)


def triplets(system: System, options: Options, v0: Array | None) -> tuple[Array, Host, Array]:
    """Return left singular vectors (rows), singular values and right singular vectors (rows). Synchronizes.

    Raises
    ------
    ArpackNoConvergence
        If not all singular values converge.
    """
    is_default = options.ncv is None and options.maxiter is None
    if is_default and system.A.ranks is None and is_small(system.rows, system.columns):
        return _dense_triplets(system, options)
    return _iterated_triplets(system, options, v0)


# ---------------------------------------------------------------- dense


def is_small(rows: int, columns: int) -> bool:
    """Return whether a matrix is solved as a dense one."""
    return min(rows, columns) <= _SMALL and rows * columns <= _MAX_DENSE


def _dense_triplets(system: System, options: Options) -> tuple[Array, Host, Array]:
    A = as_dense(system.A, system.device, wide(system.dtype))
    U, s, Vh = scipy.linalg.svd(A.conj().T if system.is_adjoint else A, full_matrices=False)
    chosen = slice(None, options.k) if options.which == "LM" else slice(-options.k, None)
    left, right = (rows_of(part, system.dtype, system.device) for part in (U[:, chosen], Vh[chosen].conj().T))
    return left, s[chosen], right


# ---------------------------------------------------------------- iterations


def _normal(system: System) -> Apply:
    """Return the product with AᴴA."""
    (forward, backward), t = system.products(), system.device.xp.zeros(system.rows, system.dtype)

    def apply(x: Array, y: Array) -> None:
        forward(x, t)
        backward(t, y)

    return apply


def _augmented(system: System) -> Apply:
    """Return the product with [0 A; Aᴴ 0]."""
    (forward, backward), rows = system.products(), system.rows

    def apply(x: Array, y: Array) -> None:
        forward(x[rows:], y[:rows])
        backward(x[:rows], y[rows:])

    return apply


def _iterated_triplets(system: System, options: Options, v0: Array | None) -> tuple[Array, Host, Array]:
    """Return left singular vectors (rows), singular values, largest first, and right singular vectors (rows)."""
    factors = _Factors.of(system) if options.which == "SM" else None
    if factors is not None:  # the factors are in double precision, and so is everything computed with them
        system = factors.system
    start = None
    if v0 is not None:
        start = system.device.upload(np.asarray(v0)) if system.on_host else v0
        start = (start if system.dtype.kind == "c" else start.real).astype(system.dtype)
    which = "LM" if options.which == "LM" or factors is not None else "SA"
    lanczos = _run(system, options, start, which, factors)
    V = lanczos.krylov.vectors[: len(lanczos.values)]
    U, s, V = _decomposed(system, V if factors is None else factors.iterated(V))
    if not lanczos.is_complete:
        raise _no_convergence(system, lanczos, U, s)
    if factors is not None:
        return _with_left_null_vectors(system, factors, U, s, V)
    if options.which == "LM" and not _is_accurate(system, options, U, s, V):
        return _augmented_triplets(system, options)
    return U, s, V


def _run(system: System, options: Options, start: Array | None, which: str, solve: Apply | None) -> Lanczos:
    space = system.space(system.columns)
    normal = _normal(system)
    rule: FilterRule | None = None
    if solve is None:
        transform = Transform(normal, system.A.is_resident)
        cost = matrix_cost(system.A, system.dtype)
        if cost is not None and system.A.is_resident:
            # Bytes of a product with AᴴA, divided by the bytes of a right vector. The product reads the matrix twice,
            # and writes and reads a left vector.
            columns = max(system.columns, 1)
            per_column = 2 * cost * system.A.shape[0] / columns + 2 * system.rows / columns
            if space.ranks is not None:  # all ranks must decide alike
                per_column = float(space.ranks.agreed(np.array([per_column]))[0])
            rule = FilterRule(transform, per_column, options.tol, space.epsilon)
    else:
        transform = Solve(normal, False, solve=solve, kind="normal")
    return _lanczos(space, transform, options, rule, which, start)


def _lanczos(
    space: Space, transform: Transform, options: Options, rule: FilterRule | None, which: str, start: Array | None
) -> Lanczos:
    size = space.whole_size
    ncv = min(max(2 * options.k + 1, 20), size) if options.ncv is None else options.ncv
    maxiter = 10 * size if options.maxiter is None else options.maxiter
    wanted = Wanted(options.k, which, options.tol, ncv, maxiter, options.multiplicities, options.seed)
    lanczos = Lanczos(space, transform, wanted, rule)
    lanczos.solve(start)
    return lanczos


def _decomposed(system: System, V: Array) -> tuple[Array, Host, Array]:
    """Return the singular value decomposition of A on the span of the rows of V. Synchronizes."""
    device, ranks = system.device, system.A.ranks
    Q, R = tall_qr(device, ranks, products(device, system.products()[0], V, system.rows).T)
    left, s, right = scipy.linalg.svd(R)
    s, factors = agreed(ranks, s, np.vstack([left, right]))
    left, right = np.split(factors, 2)
    # A·V = Q·R = (Q·left)·s·right, so the right singular vectors are V·rightᴴ.
    U, rotation = (rows_of(factors, system.dtype, device) for factors in (left, right.conj().T))
    return U @ Q.T, s, rotation @ V


def _is_accurate(system: System, options: Options, U: Array, s: Host, V: Array) -> bool:
    """Return whether the residuals Aᴴ·u - s·v reach the user's tolerance. Synchronizes."""
    images = products(system.device, system.products()[1], U, system.columns)
    norms = residual_norms(system.space(system.columns), images, s, V)
    epsilon = float(np.finfo(system.dtype).eps)
    return bool((norms <= _SLACK * np.maximum(options.tol * s, epsilon * np.sqrt(len(s)) * s.max())).all())


def _augmented_triplets(system: System, options: Options) -> tuple[Array, Host, Array]:
    """Return the largest singular triplets from eigenpairs of [0 A; Aᴴ 0]."""
    space = system.space(system.rows + system.columns)
    transform = Transform(_augmented(system), system.A.is_resident)
    lanczos = _lanczos(space, transform, options, None, "LA", None)
    V = lanczos.krylov.vectors[: len(lanczos.values), system.rows :]
    # The two halves of an eigenvector have the same length, unless its eigenvalue is 0.
    Q, _ = tall_qr(system.device, space.ranks, V.T)
    U, s, V = _decomposed(system, system.device.xp.ascontiguousarray(Q.T))
    if not lanczos.is_complete:
        raise _no_convergence(system, lanczos, U, s)
    return U, s, V


def _no_convergence(system: System, lanczos: Lanczos, U: Array, s: Host) -> scipy_linalg.ArpackNoConvergence:
    order = np.argsort(s, kind="stable")
    vectors = np.ascontiguousarray(system.device.download(U).T[:, order])
    s = times_power(s[order], system.exponent)
    return no_convergence(lanczos.cycles, len(s), lanczos.wanted.k, s, vectors)


@dataclass(frozen=True, eq=False)
class _Factors:
    """Factors of K = [sI A; Aᴴ -tI] on the host. K·[y; z] = [0; -b] has z = s·(AᴴA + st)⁻¹·b.

    The shift s·t bounds the inverses of singular values that are almost 0, so that their rounding errors do not hide
    the others. A refinement step makes the errors of a solve small relative to each block of K. So singular values
    below √(s·t) can still be distinguished, although their inverses are almost equal.
    """

    system: System
    norm: float
    K: Any
    factors: Any

    @classmethod
    def of(cls, system: System) -> _Factors | None:
        """Return the factors; None if A is too large, has a value that is not finite, or has no readable entries."""
        A = system.A
        if not isinstance(A, MatrixOperator) or system.rows + system.columns > _MAX_FACTORED:
            return None
        host: Any = sp.csr_array(A.matrix)
        host = (host.conj().T if system.is_adjoint else host).astype(wide(system.dtype))
        norm = float(scipy_linalg.norm(host)) or 1.0
        if not np.isfinite(norm):
            return None
        s, t = _UPPER * norm, _SHIFT**2 * norm / _UPPER
        blocks = [[s * sp.eye_array(system.rows), host], [host.conj().T, -t * sp.eye_array(system.columns)]]
        K = sp.csc_array(sp.block_array(blocks, format="csc"), dtype=host.dtype)
        return cls(replace(system, dtype=host.dtype), norm, K, scipy_linalg.splu(K))

    def solve(self, b: Host) -> Host:
        """Return K⁻¹·b, refined once."""
        x = self.factors.solve(b)
        return np.asarray(x + self.factors.solve(b - self.K @ x))

    def __call__(self, x: Array, y: Array) -> None:
        """Compute y = s·(AᴴA + st)⁻¹·x."""
        device, rows = self.system.device, self.system.rows
        right = np.zeros(rows + self.system.columns, self.K.dtype)
        right[rows:] = -(np.asarray(x) if device.is_host else device.download(x))  # synchronizes
        y[...] = device.upload(np.ascontiguousarray(self.solve(right)[rows:].astype(self.system.dtype)))

    def iterated(self, V: Array) -> Array:
        """Return an orthonormal basis after one step of inverse iteration, which makes the rows of V more accurate."""
        xp = self.system.device.xp
        images = products(self.system.device, self, V)
        images /= xp.linalg.norm(images, axis=1)[:, None]
        return xp.ascontiguousarray(xp.linalg.qr(images.T)[0].T)

    def left(self, U: Host) -> Host:
        """Return t·(AAᴴ + st)⁻¹·U for host columns U: inverse iteration for the smallest left singular vectors."""
        right = np.zeros((self.system.rows + self.system.columns, U.shape[1]), self.K.dtype)
        right[: self.system.rows] = U
        return self.solve(right)[: self.system.rows]


def _with_left_null_vectors(
    system: System, factors: _Factors, U: Array, s: Host, V: Array
) -> tuple[Array, Host, Array]:
    """Improve the left singular vectors of values that are almost 0, because A·v does not determine their direction."""
    device = system.device
    small = np.flatnonzero(s < 10 * _SHIFT * factors.norm)
    if not len(small):
        return U, s, V
    host = device.download(U).T.astype(factors.K.dtype)
    others = np.delete(host, small, axis=1)
    # Start with random vectors: if A·v = 0, the vectors U may have no component in the null space.
    candidates = np.random.default_rng(0).standard_normal((system.rows, len(small))).astype(host.dtype)
    for _ in range(3):
        candidates = factors.left(candidates)
        candidates -= others @ (others.conj().T @ candidates)
        candidates = np.linalg.qr(candidates)[0]
    host[:, small] = candidates
    AV = products(device, system.products()[0], V, system.rows)
    left, s, right = scipy.linalg.svd(host.conj().T @ device.download(AV).T)
    U, rotation = (rows_of(factors, system.dtype, device) for factors in (host @ left, right.conj().T))
    return U, s, rotation @ V
