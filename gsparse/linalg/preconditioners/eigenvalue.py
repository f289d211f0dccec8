"""Bounds of the largest eigenvalue of D⁻¹A: Gershgorin's, and an estimate by Lanczos's method.

Lanczos's method for D⁻¹A, in the inner product of D, without normalising the vectors (Saad, "Numerical Methods for
Large Eigenvalue Problems", section 6.3), in two passes over vectors per iteration:

    pass       equations                                 scalars                           vectors read and written
    weigh      w = A·p;  <p, w>                          alpha = <p, w> / rho              2
    advance    z = D⁻¹·w - alpha·p - beta²·q;  q = p;    rho = <z, D·z>                    6
               p = z                                     beta² = rho / rho_old

The eigenvalues of the tridiagonal matrix with diagonal alpha and off-diagonal beta approximate those of D⁻¹A. The
scalars stay on the device until the last iteration.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.solve_loop import SolveState
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

__all__ = ["estimated_eigenvalue", "gershgorin_bound", "largest_eigenvalue", "spectral_radius"]

# Iterations of Lanczos's method, and a factor for its estimate, which is a lower bound.
_STEPS = 12
_SAFETY = 1.1
# Dimension of the space whose Ritz values estimate the spectral radius of a matrix that is not Hermitian.
_RITZ_VECTORS = 8

# `d` is the inverse diagonal. `rho_old` starts at infinity, which makes the first beta² zero.
PROGRAM = Program(
    "lanczos",
    "p q w d",
    (
        Step("start", sums="pp = abs2(p) / d", after="rho = real(pp); stop = 1 if rho == 0 or isnan(rho) else 0"),
        Step(
            "weigh",
            sums="pw = conj(p) * w",
            after="""
                alpha = real(pw) / rho
                beta2 = rho / rho_old
                rho_old = rho
                record(alpha)
                iteration += 1
                record(beta2)
                iteration += 1
            """,
        ),
        Step(
            "advance",
            each="z = d * w - alpha * p - beta2 * q; q = p; p = z",
            sums="zz = abs2(z) / d",
            after="rho = real(zz); stop = 1 if rho <= 1e-28 * rho_old or isnan(rho) else 0",
        ),
    ),
)


def gershgorin_bound(matrix: SquareMatrix) -> float:
    """Return a bound of the magnitude of the eigenvalues of D⁻¹A, which always holds. Synchronizes.

    It is computed once for each `SquareMatrix`.

    Raises
    ------
    FactorizationError
        If a value is not finite.
    """
    bound = matrix.shared.get(gershgorin_bound)
    if bound is None:
        examine = kernels_of(matrix.device).examine_rows
        bound = examine(matrix.device, matrix.csr, matrix.csr, 1, "symmetric", 0.0).bound if matrix.size else 1.0
        matrix.shared[gershgorin_bound] = bound
    if not np.isfinite(bound):
        raise FactorizationError("the matrix has values that are not finite: no eigenvalue bounds those of D⁻¹A")
    return float(bound)


def largest_eigenvalue(matrix: SquareMatrix, inverse_diagonal: Array) -> float:
    """Return an upper bound of the largest eigenvalue of D⁻¹A, for a Hermitian A and a positive D. Synchronizes.

    It is the smaller one of Gershgorin's bound, which always holds, and 1.1 times the estimate of Lanczos's method.
    """
    return min(gershgorin_bound(matrix), _SAFETY * estimated_eigenvalue(matrix, inverse_diagonal))


def estimated_eigenvalue(matrix: SquareMatrix, inverse_diagonal: Array) -> float:
    """Return an estimate of the largest eigenvalue of D⁻¹A, for a Hermitian A and a positive D. Synchronizes.

    It is a lower bound, and computed once for each `SquareMatrix`.
    """
    if estimated_eigenvalue not in matrix.shared:
        matrix.shared[estimated_eigenvalue] = _estimate(matrix, inverse_diagonal) if matrix.size else 1.0
    return float(matrix.shared[estimated_eigenvalue])


def _estimate(matrix: SquareMatrix, inverse_diagonal: Array) -> float:
    """Run Lanczos's method with |D| in place of D. Synchronizes."""
    device, xp, dtype = matrix.device, matrix.device.xp, matrix.dtype
    multiply = matrix.operator.bind(device, dtype)
    state = SolveState(device, PROGRAM, dtype, 1, capacity=2 * _STEPS)
    state.set(rho_old=np.inf)
    vectors = {
        "p": _random_vector(matrix),
        "q": xp.zeros(matrix.size, dtype),
        "w": device.empty(matrix.size, dtype),
        "d": xp.abs(inverse_diagonal).astype(dtype, copy=False),
    }
    start, weigh, advance = (
        kernels_of(device).bind_step(device, PROGRAM, step, vectors, state) for step in PROGRAM.steps
    )
    start()
    for _ in range(min(_STEPS, matrix.size)):
        multiply(vectors["p"], vectors["w"])
        weigh()
        advance()
    snapshot = state.read()  # synchronizes
    count = int(snapshot.iterations[0])
    return _largest(snapshot.history[0, :count:2], snapshot.history[0, 1:count:2])


def spectral_radius(matrix: SquareMatrix, inverse_diagonal: Array) -> float:
    """Return an estimate of the largest magnitude of an eigenvalue of D⁻¹A, with a margin, for any A. Synchronizes.

    It is the largest Ritz value in the space of v, B·v, ..., Bᵐv with B = D⁻¹A - I. The basis consists of the Chebyshev
    polynomials in B, because that of the powers would be nearly singular:

        B·k₀ = k₁,  B·kⱼ = (kⱼ₋₁ + kⱼ₊₁) / 2,  that is  B·K = [K kₘ₊₁]·C
    """
    device, dtype, count = matrix.device, matrix.dtype, min(_RITZ_VECTORS, matrix.size)
    if not matrix.size:
        return 1.0
    multiply = matrix.operator.bind(device, dtype)
    basis, product = device.empty((count + 1, matrix.size), dtype), device.empty(matrix.size, dtype)
    basis[0] = _random_vector(matrix)
    for j in range(count):
        multiply(basis[j], product)
        basis[j + 1] = inverse_diagonal * product - basis[j]
        if j:
            basis[j + 1] *= 2
            basis[j + 1] -= basis[j - 1]
    gram = device.download(basis[:count].conj() @ basis.T)  # synchronizes
    recurrence = (np.eye(count + 1, count, -1) + np.eye(count + 1, count, 1)) / 2
    recurrence[1, 0] = 1
    with np.errstate(all="ignore"):
        projected = np.linalg.lstsq(gram[:, :count], gram @ recurrence, rcond=1e-10)[0]
        return _SAFETY * float(np.abs(np.linalg.eigvals(projected) + 1).max())


def _random_vector(matrix: SquareMatrix) -> Array:
    """Return Knuth's multiplicative hash of the row numbers: it looks random, and no two elements are equal."""
    xp = matrix.device.xp
    hashes = xp.arange(1, matrix.size + 1, dtype=np.uint32) * np.uint32(2654435761)
    return (hashes * np.float64(2.0**-32) - 0.5).astype(matrix.dtype, copy=False)


def _largest(alphas: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]) -> float:
    """Return the largest eigenvalue of a tridiagonal matrix; the squares of the off-diagonal begin with a 0."""
    betas = np.sqrt(squares[1:])
    return float(np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas, 1) + np.diag(betas, -1))[-1])
