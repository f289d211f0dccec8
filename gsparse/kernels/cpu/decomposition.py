"""Krylov decompositions on the CPU; the contract and its notation are in `gsparse.kernels.basis`.

The passes over the vectors are those of `gsparse.kernels.cpu.basis`. What follows from their sums is computed on the
calling thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.kernels import basis
from gsparse.kernels.cpu.basis import CHUNK, orthogonalize, project, total
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.steps import Call


class Decomposition(basis.Decomposition):
    """One loop over all vectors per step or, if the operator is not Hermitian, two."""

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
        return lambda: None  # `orthogonalize` and `measure` have added up their sums

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
    """Copy p with its last element finished, and return the norm of w without what is left of the basis in it.

    The norm is infinite if nothing is left, so that the next vector becomes zero.
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
    """Compute p of a Hermitian operator from the projected matrix, after column j - 1 of it has been finished."""
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
