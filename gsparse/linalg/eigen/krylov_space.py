"""A Krylov space on the device: its vectors, the steps that extend it, and its restarts.

The rows of `vectors` are the basis. The last row is w, from which the next vector is made:

    0 .. num_locked-1      num_locked .. first-1      first .. m-1            capacity
    +----------------------+--------------------------+-----------------------+----+
    | locked: converged    | kept by the last restart | vectors of this cycle | w  |
    +----------------------+--------------------------+-----------------------+----+

A cycle of steps only queues work. Then the host reads the coefficients, and decides from the small projected matrix H =
VᴴBV which combinations of the vectors to keep.

References
----------
K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix Anal. Appl.
22(2), 2000; G. W. Stewart, "A Krylov-Schur algorithm for large eigenproblems", SIAM J. Matrix Anal. Appl. 23(3), 2002.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from gsparse.device.base import Device
from gsparse.device.counters import recorded_products
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call, Program, Step, queue
from gsparse.linalg.krylov.solve_state import SolveState
from gsparse.linalg.operators import Apply, RankGroup
from gsparse.linalg.small_matrices import with_one_blas_thread

Host = npt.NDArray[Any]

# The passes over vectors in addition to those of `Decomposition`. A step of a Hermitian space needs the sum `wu` = <w,
# u>. The pass `dot` computes this sum if the kernel of the product has not. The other passes evaluate a polynomial by
# the Chebyshev recurrence for B = (A - center)·inverse, with t = A·x:
#
#     first     y = B·x                 T₁
#     second    y = 2·B·x - w           T₂
#     next      y = 2·B·x - y           T₃, T₄, ...; before the pass, y holds the term before last
#     last      the same, and the sum `wu` of the result
PROGRAM = Program(
    "krylov_space",
    "w u t x y",
    (
        Step("dot", sums="wu = conj(w) * u"),
        Step("first", each="y = inverse * (t - center * x)"),
        Step("second", each="y = twice * (t - center * x) - w"),
        Step("next", each="y = twice * (t - center * x) - y"),
        Step("last", each="y = twice * (t - center * x) - y", sums="wu = conj(w) * y"),
    ),
    exported=("wu",),
)

# If the remainder is at most this factor times the rounding error of a step, the vectors span an invariant subspace.
_NOISE = 50
# A cycle is captured in a CUDA graph when it runs for this time. Capturing takes as long as queueing the cycle, so it
# would not pay for cycles that run once or twice.
_CAPTURED_RUN = 3
# Number of elements of the buffer in which a restart combines vectors.
_BUFFER_SIZE = 2**27


class SpaceOperator(Protocol):
    """An operator B, with the calls that a Krylov space needs."""

    is_resident: bool

    def calls(self, space: KrylovSpace) -> list[Call]:
        """Return the calls that compute u = B·w and, if the space is Hermitian, the sum `wu` = <w, u>."""
        ...


@dataclass(frozen=True, eq=False)
class Space:
    """The vector space of an eigenproblem: its device, dtype, size, ranks and inner product.

    Attributes
    ----------
    device : Device
    dtype : dtype
    size, whole_size : int
        Number of elements of a vector on this rank and on all ranks.
    first_index : int
        Number of elements on the ranks before this one.
    ranks : RankGroup or None
    multiply_mass : Apply or None
        The product with M, if the inner product is xᴴMy.
    """

    device: Device
    dtype: np.dtype[Any]
    size: int
    whole_size: int
    first_index: int = 0
    ranks: RankGroup | None = None
    multiply_mass: Apply | None = None

    @property
    def epsilon(self) -> float:
        return float(np.finfo(self.dtype).eps)

    def sum_over_ranks(self, values: Array) -> Array:
        if self.ranks is not None:
            self.ranks.allreduce(values)
        return values

    def download(self, values: Array) -> Host:
        """Copy a small device array to the host. Synchronizes."""
        copy = self.device.read_async(values.reshape(-1), None if self.ranks is None else self.ranks.wait)()
        return np.array(copy).reshape(values.shape)

    def times_mass(self, x: Array) -> Array:
        """Return M·x, or x itself if there is no M."""
        if self.multiply_mass is None:
            return x
        y = self.device.empty(x.shape, x.dtype)
        self.multiply_mass(x, y)
        return y


@dataclass(frozen=True, eq=False)
class Projection:
    """The projected matrix after a cycle: B·V = V·H + v_m·hᴴ with h = remainder·e_m.

    Attributes
    ----------
    matrix : ndarray, shape (m, m)
        H. If the first vectors span an invariant subspace, m is the number of these vectors.
    remainder : float
        The norm of the next vector before it is normalized; 0 if the subspace is invariant.
    leftover : ndarray, shape (m,)
        The components of w in the directions of V that have not been removed yet.
    scale : float
        Estimate of the norm of B.
    """

    matrix: Host
    remainder: float
    leftover: Host
    scale: float


@dataclass(eq=False)
class KrylovSpace:
    """A Krylov space of an operator and the steps that extend it.

    Parameters
    ----------
    space : Space
    capacity : int
        The largest number of vectors.
    hermitian : bool
        Whether the operators are Hermitian with respect to the inner product.
    """

    space: Space
    capacity: int
    hermitian: bool
    num_locked: int = 0
    first: int = 0
    kept: Host = field(init=False, repr=False)
    num_steps: int = 0

    def __post_init__(self) -> None:
        space, device = self.space, self.space.device
        self.vectors = device.xp.zeros((self.capacity + 1, space.size), space.dtype)
        self.w, self.u = self.vectors[self.capacity], device.xp.zeros(space.size, space.dtype)
        # M·w, or w itself if there is no M.
        self.z = self.w if space.multiply_mass is None else device.xp.zeros(space.size, space.dtype)
        width = max(1, min(space.size, _BUFFER_SIZE // (self.capacity + 1)))
        self._buffer = device.empty((self.capacity + 1) * width, space.dtype)
        self.state = SolveState(device, PROGRAM, space.dtype, 1, 1, space.ranks)
        options = {"hermitian": self.hermitian, "measures": space.multiply_mass is not None}
        self.decomposition = kernels_of(device).basis.Decomposition(device, self.state, self.vectors, self.u, **options)
        self._products: dict[Any, tuple[list[Call], Any]] = {}
        self._calls: dict[Any, list[Call]] = {}
        self._runs: dict[Any, int] = {}
        self._graphs: dict[Any, Any] = {}
        self.kept, self._next = np.zeros((1, 0)), 0

    # ---------------------------------------------------------------- steps

    def dot_calls(self, product: Apply) -> list[Call]:
        """Return the calls for u = product(w) and, if Hermitian, the sum `wu` = <w, u>: one kernel if possible."""
        num_dots = getattr(product, "num_dots", 0)
        w, u = self.w, self.u
        if self.hermitian and num_dots and self.space.multiply_mass is None:
            dots, finish = kernels_of(self.space.device).steps.bind_dots(self.space.device, self.state, "wu", num_dots)
            fused: Any = product
            calls: list[Call] = [lambda: fused(w, u, dots)]
            return calls if finish is None else [*calls, finish]
        calls = [lambda: product(w, u)]
        return [*calls, self.dot()] if self.hermitian else calls

    def dot(self) -> Call:
        """Return the call that computes the sum `wu`, the inner product of w and u."""
        return self.step("dot", w=self.z, u=self.u)

    def step(self, name: str, **vectors: Array) -> Call:
        """Return the call that runs the pass `name` of `PROGRAM` on these vectors."""
        return self.state.bind(name, vectors)

    def cycle(self, operator: SpaceOperator, end: int) -> Projection:
        """Extend the space to `end` vectors, and return the projected matrix. Synchronizes once, at the end.

        A cycle may consist of several calls, each of which adds some vectors.
        """
        key = (operator, self.first, self._next, end)
        if key not in self._calls:
            self._calls[key] = self._bind(operator, end)
        runs = self._runs[key] = self._runs.get(key, 0) + 1
        is_captured = runs == _CAPTURED_RUN and operator.is_resident and not self.space.device.is_host
        if is_captured and getattr(self.space.multiply_mass, "is_resident", self.space.multiply_mass is None):
            with recorded_products() as count_products:
                launch = self.space.device.capture(lambda: queue(self._calls[key]))
            self._graphs[key] = launch, count_products
        if key in self._graphs:
            launch, count_products = self._graphs[key]
            launch()
            count_products()
        else:
            queue(self._calls[key])
        self.num_steps, self._next = self.num_steps + end - self._next, end
        return self._project(self.space.download(self.decomposition.table), end)  # synchronizes

    def _bind(self, operator: SpaceOperator, end: int) -> list[Call]:
        steps, multiply_mass = self.decomposition, self.space.multiply_mass
        product = self._product(operator)
        calls: list[Call] = [] if multiply_mass is None else [self._mass_product]
        for j in range(self._next, end):
            make_p = steps.predict if self.hermitian else steps.project
            calls += [*product, make_p(j, self.first), steps.orthogonalize(j, self.first)]
            if multiply_mass is not None:
                calls += [self._mass_product, steps.measure(j + 1, self.z)]
        return [*calls, steps.finish(end)]

    def _product(self, operator: SpaceOperator) -> list[Call]:
        """Return the calls of u = B·w, created once per operator; make `predict` read this product's sum `wu`."""
        if operator not in self._products:
            calls = operator.calls(self)
            self._products[operator] = calls, self.state.partial_sums.get("wu")
        calls, self.state.partial_sums["wu"] = self._products[operator]
        return calls

    def _mass_product(self) -> None:
        assert self.space.multiply_mass is not None
        self.space.multiply_mass(self.w, self.z)

    @with_one_blas_thread
    def _project(self, table: Host, end: int) -> Projection:
        """Return the projection with H = U·N⁻¹, computed from the table of sums (see `gsparse.kernels.basis`)."""
        first, places = self.first, np.arange(end + 1)
        left, products = np.tril(table[:, 0, : end + 1], -1), table[:, 1, : end + 1]
        left[first] = 0
        squares = table[places, 0, places].real - (abs(left[: end + 1]) ** 2).sum(axis=1)
        norms = np.sqrt(np.maximum(squares, 0))
        norms[first] = 1.0
        if not np.isfinite(norms[first:]).all():
            raise ValueError("the products of A contain NaN or infinity: check the values of A, M and v0")
        # The last element of each p: (wᴴu - sᴴp) / norm.
        dots = products[places[:-1], places[:-1]] - (np.tril(products, -1) * left.conj())[:end].sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            last = np.where(norms[:end] > 0, dots / norms[:end], 0)
        end, scale = self._invariant(norms, last, end)
        N = left[:end, :end].T + np.diag(norms[:end])
        U = np.zeros((end + 1, end), products.dtype)
        U[:end] = np.tril(products[:end, :end], -1).T + np.diag(last[:end])
        U[np.arange(1, end + 1), np.arange(end)] = norms[:end] * norms[1 : end + 1]
        U[:end] += np.triu(left[1 : end + 1, :end].T) * norms[:end]
        H = np.zeros((end + 1, end), products.dtype)
        H[: first + 1, :first] = self.kept
        right = U[:, first:] - H[:, :first] @ N[:first, first:]
        H[:, first:] = solve_triangular(N[first:, first:], right.T, trans="T").T
        remainder = float(norms[end]) if end < len(norms) and norms[end] > _NOISE * self.space.epsilon * scale else 0.0
        return Projection(H[:end], remainder, left[end, :end] if remainder else np.zeros(end), scale)

    def _invariant(self, norms: Host, last: Host, end: int) -> tuple[int, float]:
        """Return the number of linearly independent vectors of the basis, and an estimate of the norm of B."""
        scale = float(abs(self.kept).max(initial=0))
        for j in range(self.first, end):
            if j > self.first and norms[j] <= _NOISE * self.space.epsilon * scale:
                return j, scale
            scale = max(scale, abs(last[j]) / norms[j], norms[j + 1])
        return end, scale

    # ---------------------------------------------------------------- restarts

    def start(self, x: Array, operator: SpaceOperator | None = None) -> bool:
        """Begin a new run with the part of x that is orthogonal to the locked vectors. Synchronizes.

        If an operator B is passed, B·x takes the place of x, so that the vector lies in B's range.

        Returns
        -------
        bool
            False if the vector is zero or not finite, or lies in the span of the locked vectors.
        """
        xp, locked = self.space.device.xp, self.vectors[: self.num_locked]
        self.w[...] = x
        if operator is not None:
            if self.space.multiply_mass is not None:
                self._mass_product()
            queue(self._product(operator))
            self.w[...] = self.u
        before = self._norm()
        for _ in range(2):  # the second pass removes the rounding errors of the first
            if self.num_locked:
                coefficients = xp.conj(locked @ xp.conj(self.space.times_mass(self.w)))
                self.w -= self.space.sum_over_ranks(coefficients) @ locked
        norm = self._norm()
        if not np.isfinite(before) or not norm > _NOISE * self.space.epsilon * before:
            return False
        self.w *= self.space.dtype.type(1 / norm)
        return True

    def _norm(self) -> float:
        """Return the norm of w. Synchronizes."""
        xp = self.space.device.xp
        square = xp.vdot(self.w, self.space.times_mass(self.w)).reshape(1).astype(self.state.cells.dtype)
        return float(np.sqrt(max(self.space.download(self.space.sum_over_ranks(square))[0].real, 0)))

    def length(self, row: int) -> float:
        """Return the 2-norm of row `row`, whatever the inner product of the space is. Synchronizes."""
        vector = self.vectors[row]
        square = self.space.device.xp.vdot(vector, vector).real.reshape(1).astype(np.float64)
        return float(np.sqrt(self.space.download(self.space.sum_over_ranks(square))[0]))

    def begin(self, kept: Host) -> None:
        """Begin a cycle that adds vectors to those that are kept.

        `kept` holds the columns of H for the kept vectors. It has one more row than columns: the row of w.
        """
        self.first = self._next = kept.shape[1]
        self.kept = kept
        if self.hermitian:
            self.decomposition.begin(self.first, np.diagonal(kept), kept[self.first])
        else:
            self.decomposition.begin(self.first)

    def keep(self, projection: Projection, combinations: Host) -> None:
        """Replace the vectors that are not locked by combinations of these vectors, and w by the next basis vector."""
        count, end = combinations.shape[1], len(projection.matrix)
        if projection.remainder:
            # v_m = (w - V·leftover) / remainder: the sum over V is one more combination.
            columns = np.zeros((end, count + 1), np.result_type(combinations, projection.leftover))
            columns[self.num_locked :, :count] = combinations
            columns[:, count] = -projection.leftover / projection.remainder
            self.w *= self.space.dtype.type(1 / projection.remainder)
            self._combine(columns, 0, end, self.num_locked, add_last=True)
        else:
            self._combine(combinations, self.num_locked, end, self.num_locked)

    def rotate(self, combinations: Host) -> None:
        """Replace the first vectors by linear combinations of them, one for each column of `combinations`."""
        self._combine(combinations, 0, combinations.shape[0], 0)

    def _combine(self, columns: Host, begin: int, end: int, target: int, *, add_last: bool = False) -> None:
        """Store linear combinations of rows `begin` to `end` in the rows from `target` on, one per column of `columns`.

        With `add_last`, the last combination is added to w instead.
        """
        xp, dtype = self.space.device.xp, self.space.dtype
        count = columns.shape[1]
        rows = self.space.device.upload(np.ascontiguousarray(columns.T).astype(dtype))
        size, width = self.space.size, self._buffer.size // (self.capacity + 1)
        for left in range(0, size, width):
            right = min(left + width, size)
            made = self._buffer[: count * (right - left)].reshape(count, right - left)
            xp.matmul(rows, self.vectors[begin:end, left:right], out=made)
            if add_last:
                self.w[left:right] += made[-1]
                made = made[:-1]
            self.vectors[target : target + len(made), left:right] = made


def random_vector(space: Space, seed: int) -> Array:
    """Return a vector of numbers between -1 and 1, the same on every device and for every number of ranks.

    The numbers are 32-bit hashes of their positions, mixed as in Wellons' `lowbias32`.
    """
    xp, offset = space.device.xp, space.first_index
    bits = xp.arange(offset, offset + space.size).astype(np.uint32)
    parts = []
    for part in range(2 if space.dtype.kind == "c" else 1):
        mixed = bits * np.uint32(2) + np.uint32(part)
        mixed ^= np.uint32((seed * 0x9E3779B9) % 2**32)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            mixed ^= mixed >> np.uint32(shift)
            mixed *= np.uint32(factor)
        mixed ^= mixed >> np.uint32(16)
        parts.append(mixed.astype(np.float64) / 2.0**31 - 1.0)
    values = parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]
    return values.astype(space.dtype)
