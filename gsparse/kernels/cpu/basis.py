"""Krylov bases and decompositions on the CPU; the contract and its notation are in `gsparse.kernels.basis`.

Each pass over the vectors is a loop over chunks of `CHUNK` elements. Each part of the loop owns the same number of
consecutive chunks, and stores partial sums of each chunk. Then the calling thread computes the small least-squares
problem, or the coefficients of a decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.kernels import basis
from gsparse.kernels.cpu.compiling import compiled_loosely
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.steps import Call, queue

# Number of elements of a chunk. A pass processes one chunk of all vectors before the following chunk, so that data that
# are read twice are still in the cache. Each chunk has its own sums, so results do not depend on the number of threads.
CHUNK = 512


class Small(NamedTuple):
    """The least-squares problem of one right-hand side. `p`, `s`, `Q` and `R` are named as in the contract."""

    sums: Array
    p: Array
    s: Array
    rotated: Array
    rhs: Array
    scales: Array
    num_vectors: Array
    Q: Array
    R: Array
    cells: Array
    history: Array


class Place(NamedTuple):
    """The elements that a pass visits: `size` elements, of right-hand side `column`, in `num_vectors` basis vectors."""

    size: int
    column: int
    num_columns: int
    num_vectors: int


class Arnoldi(basis.Arnoldi):
    """The Arnoldi process with two passes per iteration. After each pass, a part of the small problem is solved."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        m, wide = self.restart, self.state.cells.dtype
        self._partials = np.zeros((m + 2, -(-self.size // CHUNK)), wide)
        self._sums = np.zeros((self.columns, m + 2), wide)
        cells, history = (a.reshape(self.columns, -1) for a in (self.state.cells, self.state.history))
        self._small = []
        for c in range(self.columns):
            p, s, rotated, rhs = np.zeros((4, m + 1), wide)
            QR = np.zeros((m + 1, m + 1), wide), np.zeros((m, m), wide)
            counts = np.zeros(m, wide), np.zeros(1, np.int64)
            self._small.append(Small(self._sums[c], p, s, rotated, rhs, *counts, *QR, cells[c], history[c]))

    def project(self, j: int) -> Call:
        return self._pass(project, j, j + 1, lambda small: after_project(small, j, self.flexible, self.places))

    def orthogonalize(self, j: int) -> Call:
        def after(small: Small) -> None:
            after_orthogonalize(small, j, self.flexible, self.epsilon, self.places)

        return self._pass(orthogonalize, j, j + 2, after)

    def finish_column(self, j: int) -> Call:
        return partial(queue, ())  # `orthogonalize` has already done this.

    def _pass(self, loop: Callable[..., None], j: int, num_sums: int, after: Callable[[Small], None]) -> Call:
        vectors, w, u = self.vectors.reshape(-1), self.w, self.u
        partials = self._partials[:num_sums]
        norm = self.places[1]

        def run() -> None:
            busy = [c for c in range(self.columns) if self._is_busy(c)]
            for c in busy:
                place, small = (self.size, c, self.columns, j), self._small[c]
                coefficients = (small.s, small.p, small.cells[norm].real)
                run_parts(loop, self.size * (j + 4), place, (vectors, w, u), coefficients, partials)
                total(partials, small.sums)
            if self.reduce is not None:
                self.reduce(self._sums)
            for c in busy:
                after(self._small[c])

        return run

    def _is_busy(self, column: int) -> bool:
        cells = self._small[column].cells
        return bool(cells[0] == 0 and cells[self.places[0]] == 0)

    def combine(self, x: Array) -> Call:
        combined = (self.preconditioned if self.flexible else self.vectors).reshape(-1)

        def run() -> None:
            for c, small in enumerate(self._small):
                if small.cells[0] == 0:
                    solve(small)
                    num_vectors = int(small.num_vectors[0])
                    place = (self.size, c, self.columns, num_vectors)
                    run_parts(combine, self.size * (num_vectors + 2), place, combined, x, small.rotated)

        return run


# ---- loops over all elements


@compiled_loosely
def project(
    part: int, num_parts: int, place: Place, arrays: tuple[Array, Array, Array], coefficients: Any, partials: Array
) -> None:
    """Compute the inner products of u with the first j vectors, and with w."""
    size, column, columns, j = place
    vectors, w, u = arrays
    kind = partials.dtype.type
    num_chunks = partials.shape[1]
    for chunk in range(part * num_chunks // num_parts, (part + 1) * num_chunks // num_parts):
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, size)
        right = u[column * size + first : column * size + last]
        for k in range(j + 1):
            total = kind(0)
            if k < j:
                begin = (k * columns + column) * size
                left = vectors[begin + first : begin + last]
                for i in range(np.uint64(right.size)):
                    total += kind(np.conj(left[i])) * kind(right[i])
            else:
                own = w[column * size + first : column * size + last]
                for i in range(np.uint64(right.size)):
                    total += kind(np.conj(own[i])) * kind(right[i])
            partials[k, chunk] = total


@partial(compiled_loosely, allocates=True)
def orthogonalize(
    part: int, num_parts: int, place: Place, arrays: tuple[Array, Array, Array], coefficients: Any, partials: Array
) -> None:
    """Finish vector j, and compute the new w. Compute the inner products of the new w with all vectors and itself."""
    size, column, columns, j = place
    vectors, w, u = arrays
    s, p, norm = coefficients
    kind, wide = w.dtype.type, partials.dtype.type
    inverse, last_p = kind(1 / norm), kind(p[j])
    num_chunks = partials.shape[1]
    made, next_ = np.empty(CHUNK, w.dtype), np.empty(CHUNK, w.dtype)
    for chunk in range(part * num_chunks // num_parts, (part + 1) * num_chunks // num_parts):
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, size)
        old, right = w[column * size + first : column * size + last], u[column * size + first : column * size + last]
        for i in range(np.uint64(old.size)):
            made[i] = old[i]
            next_[i] = right[i]
        for k in range(j):
            begin = (k * columns + column) * size
            vector = vectors[begin + first : begin + last]
            by_w, by_u = kind(s[k]), kind(p[k])
            for i in range(np.uint64(old.size)):
                made[i] -= by_w * kind(vector[i])
                next_[i] -= by_u * kind(vector[i])
        begin = (j * columns + column) * size
        target = vectors[begin + first : begin + last]
        product, square = wide(0), wide(0)
        for i in range(np.uint64(old.size)):
            target[i] = vectors.dtype.type(made[i] * inverse)
            new = kind((next_[i] - last_p * kind(target[i])) * inverse)  # `target` holds the rounded, stored vector.
            next_[i] = new
            old[i] = new
            product += wide(np.conj(target[i])) * wide(new)
            square += wide(np.conj(new)) * wide(new)
        partials[j, chunk], partials[j + 1, chunk] = product, square
        for k in range(j):
            begin = (k * columns + column) * size
            vector = vectors[begin + first : begin + last]
            total = wide(0)
            for i in range(np.uint64(old.size)):
                total += wide(np.conj(vector[i])) * wide(next_[i])
            partials[k, chunk] = total


@compiled_loosely
def combine(part: int, num_parts: int, place: Place, vectors: Array, x: Array, y: Array) -> None:
    """Compute x += V·y. V consists of the first `num_vectors` vectors."""
    size, column, columns, num_vectors = place
    kind = x.dtype.type
    num_chunks = (size + CHUNK - 1) // CHUNK
    for chunk in range(part * num_chunks // num_parts, (part + 1) * num_chunks // num_parts):
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, size)
        target = x[column * size + first : column * size + last]
        for k in range(num_vectors):
            begin = (k * columns + column) * size
            vector, factor = vectors[begin + first : begin + last], kind(y[k])
            for i in range(np.uint64(target.size)):
                target[i] += factor * kind(vector[i])


@jitted
def total(partials: Array, sums: Array) -> None:
    """Add up the sums of all chunks: ``sums[k]`` becomes the sum of ``partials[k]``."""
    for k in range(partials.shape[0]):
        sums[k] = 0
        for chunk in range(partials.shape[1]):
            sums[k] += partials[k, chunk]


# ---- the small problem


@jitted
def after_project(small: Small, j: int, flexible: bool, places: tuple[int, ...]) -> None:
    """Finish p. In the first iteration of a cycle, also start the right-hand side of the least-squares problem."""
    norm = small.cells[places[1]]
    last = small.sums[j]
    for k in range(j):
        small.p[k] = small.sums[k]
        last -= np.conj(small.s[k]) * small.sums[k]
    small.p[j] = last / norm
    small.scales[j] = norm if flexible else 1
    if j == 0:
        small.rhs[0] = norm
        small.Q[0, 0] = 1


@jitted
def after_orthogonalize(small: Small, j: int, flexible: bool, epsilon: float, places: tuple[int, ...]) -> None:
    """Compute column j of R and the residual, and decide whether the cycle continues."""
    p, s, sums, rotated, rhs, Q, R = small.p, small.s, small.sums, small.rotated, small.rhs, small.Q, small.R
    cells, norm = small.cells, small.cells[places[1]].real
    left = height = 0.0
    for k in range(j + 1):
        rotated[k] = 0
        for column in range(min(k + 1, j) + 1):  # All further elements of Q's row k are 0.
            rotated[k] += Q[k, column] * (p[column] / norm + sums[column])
        if not flexible:
            for column in range(k, j):
                rotated[k] -= R[k, column] * s[column] / norm
        left += abs(sums[k]) ** 2
        height += abs(rotated[k]) ** 2
    for k in range(j + 1):
        s[k] = sums[k]
        R[k, j] = rotated[k]
    # Values below `noise` are rounding error.
    rest = sums[j + 1].real - left
    noise = 100 * epsilon * epsilon * (height + max(rest, 0.0))
    is_broken = rest <= noise
    is_singular = is_broken and abs(rotated[j]) ** 2 <= noise
    after = 0.0 if is_broken else np.sqrt(rest)
    cosine, sine, R[j, j] = rotation(cells.dtype.type(0 if is_singular else rotated[j]), after)
    for column in range(j + 1):
        Q[j + 1, column] = -np.conj(sine) * Q[j, column]
        Q[j, column] *= cosine
    Q[j, j + 1], Q[j + 1, j + 1] = sine, cosine
    rhs[j + 1] = -np.conj(sine) * rhs[j]
    rhs[j] = 0 if is_singular else cosine * rhs[j]
    residual, iteration = abs(rhs[j + 1]), cells[1].real + 1
    small.num_vectors[0] = j + 1
    small.history[np.int64(iteration) % small.history.size] = residual
    cells[1], cells[places[1]], cells[places[2]] = iteration, after, residual
    is_enough, is_limit = residual <= cells[places[3]].real, iteration >= cells[places[4]].real
    cells[places[0]] = 2 if is_broken else 1 if is_enough else 3 if is_limit else 0
    if np.isnan(residual):
        cells[0] = 2


@jitted
def rotation(f: Any, g: float) -> Any:
    """Return (cosine, sine, r) of the rotation that turns (f, g) into (r, 0), as LAPACK's lartg does."""
    size = abs(f)
    length = np.sqrt(size * size + g * g)
    if g == 0:
        return 1.0, f * 0, f
    if size == 0:
        return 0.0, f * 0 + 1, f * 0 + g
    phase = f / size
    return size / length, phase * (g / length), phase * length


@jitted
def solve(small: Small) -> None:
    """Solve R·y = rhs for y, and store y in `rotated`."""
    y, R = small.rotated, small.R
    num_vectors = small.num_vectors[0]
    for k in range(num_vectors):
        y[k] = small.rhs[k]
    for k in range(num_vectors - 1, -1, -1):
        if y[k] != 0:
            y[k] /= R[k, k]
        for i in range(k):
            y[i] -= y[k] * R[i, k]
    for k in range(num_vectors):
        y[k] /= small.scales[k]


class Decomposition(basis.Decomposition):
    """Krylov decompositions. A step has one loop over all vectors, or two if the operator is not Hermitian."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        m, wide = self.capacity, self.table.dtype
        self._partials = np.zeros((m + 2, -(-self.size // CHUNK)), wide)
        self._flat = self.vectors.reshape(-1)
        self._coefficients, self._not_needed = np.zeros(m + 1, wide), np.zeros(m + 2, wide)

    def project(self, j: int, first: int) -> Call:
        return self._products(j, self.u, self.table[j, 1])

    def measure(self, j: int, z: Array) -> Call:
        return self._products(j, z, self.table[j, 0])

    def _products(self, j: int, right: Array, row: Array) -> Call:
        def run() -> None:
            self._pass(project, j, j + 1, right, (row, row, 1.0), row)

        return run

    def predict(self, j: int, first: int) -> Call:
        place = self.state.program.cells["wu"]
        wu = self.state.cells[place : place + 1]
        last_s, s, p = self._s(max(j - 1, first), first), self._s(j, first), self.table[j, 1]
        found = self.memory[self.capacity + 2 :].reshape(6, -1)
        return lambda: predict(j, first, wu, last_s, s, p, found)

    def orthogonalize(self, j: int, first: int) -> Call:
        s, p = self._s(j, first), self.table[j, 1]
        next_s = self._not_needed if self.measures else self.table[j + 1, 0]

        def run() -> None:
            coefficients = (s, self._coefficients, finish_direction(j, s, p, self._coefficients))
            self._pass(orthogonalize, j, j + 2, self.u, coefficients, next_s)

        return run

    def finish(self, j: int) -> Call:
        return lambda: None  # `orthogonalize` and `measure` have already added up the chunks' sums.

    def _pass(
        self, loop: Callable[..., None], j: int, num_sums: int, right: Array, coefficients: Any, row: Array
    ) -> None:
        partials = self._partials[:num_sums]
        place, arrays = (self.size, 0, 1, j), (self._flat, self.w, right)
        run_parts(loop, self.size * (j + 4), place, arrays, coefficients, partials)
        total(partials, row)
        if self.reduce is not None:
            self.reduce(row[:num_sums])


@jitted
def finish_direction(j: int, s: Array, p: Array, coefficients: Array) -> float:
    """Copy p to `coefficients` and finish its last element; return the norm of w's part orthogonal to the basis.

    If this part is zero, return infinity, so that the following basis vector becomes zero.
    """
    square, dot = s[j].real, p[j]
    for k in range(j):
        square -= (np.conj(s[k]) * s[k]).real
        dot -= np.conj(s[k]) * p[k]
        coefficients[k] = p[k]
    norm = np.sqrt(square) if square > 0 else np.inf
    coefficients[j] = dot / norm
    return norm


@jitted
def predict(j: int, first: int, wu: Array, last_s: Array, s: Array, p: Array, found: Array) -> None:
    """For a Hermitian operator, finish column j - 1 of the projected matrix, and compute p from this column."""
    theta, b, alpha, beta, last, norms = found
    square, coupling = s[j].real, s[j] * 0
    for k in range(j):
        square -= (np.conj(s[k]) * s[k]).real
        if k < first:
            coupling += b[k] * s[k]
    norm = np.sqrt(square) if square > 0 else 0.0
    norms[j] = norm
    if j > first:
        k = j - 1
        left = beta[k - 1] * last_s[k - 1] if k > first else s[j] * 0
        inverse = 1 / norms[k].real if norms[k].real > 0 else 0.0
        alpha[k] = ((last[k] - left) * inverse + s[k]).real
        beta[k] = norm
    dot = wu[0]
    for k in range(j):
        after = s[k + 1] if k + 1 < j else norm + s[j] * 0
        if k < first:
            p[k] = theta[k] * s[k] + np.conj(b[k]) * (s[first] if first < j else norm)
        else:
            p[k] = (coupling if k == first else beta[k - 1] * s[k - 1]) + alpha[k] * s[k] + beta[k] * after
        dot -= np.conj(s[k]) * p[k]
    p[j] = wu[0]
    last[j] = dot / norm if norm > 0 else dot * 0
