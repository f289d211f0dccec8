"""Degrees and steps of the Taylor polynomials of `expm_multiply`, from the norms of a shifted matrix and its powers.

The text of `gsparse.linalg.functions.expm_multiply` explains the symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.krylov_space import Space, random_vector
from gsparse.linalg.functions.onenormest import Products, estimate_one_norm
from gsparse.linalg.operators import DenseOperator, MatrixOperator, Operator

# θ_m: the largest norm for which the Taylor polynomial of degree m has a backward error of at most 2⁻⁵³ or 2⁻²⁴: the
# root of Σ |c_k|·θ^(k-1) with the coefficients c_k of log(exp(-x)·T_m(x)). (The paper's table 3.1 has some of them.)
# tests/linalg/test_expm_multiply.py computes them. Terms of the series reach exp(θ), and so do their rounding errors.
# In single precision, the table therefore ends at degree 22: that leaves errors of about ε·‖A‖ for as many products as
# in double precision, and degree 55 would leave errors that are 1000 times as large.
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
# The largest power of which norms are estimated, where the table has a degree for it.
_MAX_POWER = 8
# Columns of the estimates of norms.
_BLOCK = 2
# Random vectors that estimate the trace of an operator without entries.
_TRACE_SAMPLES = 4


@dataclass(eq=False)
class ShiftedNorms:
    """1-norms of A - μI and of its powers, computed when they are first needed."""

    A: Operator
    device: Device
    dtype: np.dtype[Any]
    shift: complex
    _roots: dict[int, float] = field(default_factory=dict)

    def one_norm(self) -> float:
        """Return ‖A - μI‖₁: exactly if A has entries, otherwise an estimate."""
        if 1 not in self._roots:
            exact = _exact_one_norm(self.A, self.device, self.shift)
            self._roots[1] = self.root(1) if exact is None else exact
        return self._roots[1]

    def root(self, p: int) -> float:
        """Return an estimate of ‖(A - μI)^p‖₁^(1/p), infinite if the power overflows."""
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
        """Return the degree m and the number of steps s with the fewest products, for exp(t·A) with some columns.

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
        # The norms of powers cost products too; below this norm, they cannot save as many.
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
    """Return ‖A - shift·I‖₁ if A has entries."""
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
    """Return the trace of A, estimated with random signs if A has no entries (Hutchinson 1989)."""
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
