"""A Chebyshev polynomial as a preconditioner, and estimates of the largest eigenvalue of D⁻¹A."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call, Program, Step, queue
from gsparse.linalg.krylov.solve_state import SolveState
from gsparse.linalg.preconditioners.base import MatrixPreconditioner
from gsparse.linalg.preconditioners.relaxation import Relaxation, SmootherPreconditioner, chebyshev_omegas
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import register
from gsparse.linalg.small_matrices import hashed_vector

# Number of Lanczos iterations. With eight, the sum of the largest Ritz value and its error bound is 0.97 to 1.04 times
# the largest eigenvalue, for the Hermitian problems of asv_bench/elliptic_problems.py on all levels.
_STEPS = 8
# The sum of Ritz value and error bound, times this factor, is an upper bound of the largest eigenvalue.
_SAFETY = 1.05
# Dimension of the space whose Ritz values estimate the spectral radius of a non-Hermitian matrix.
_RITZ_VECTORS = 8

# `d` is the inverse diagonal. `rho_old` starts at infinity, which makes the first beta² zero. Each iteration records
# its alpha, and the beta² of the next iteration.
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
            """,
        ),
        Step(
            "advance",
            each="z = d * w - alpha * p - beta2 * q; q = z",
            sums="zz = abs2(z) / d",
            after="""
                rho = real(zz)
                record(rho / rho_old)
                iteration += 1
                stop = 1 if rho <= 1e-28 * rho_old or isnan(rho) else 0
            """,
        ),
    ),
)


def gershgorin_bound(matrix: SquareMatrix) -> float:
    """Return Gershgorin's upper bound of the magnitudes of the eigenvalues of D⁻¹A. Synchronizes.

    The bound is computed once for each `SquareMatrix`.

    Raises
    ------
    FactorizationError
        If a value is not finite.
    """
    bound = matrix.shared.get(gershgorin_bound)
    if bound is None:
        examine = kernels_of(matrix.device).aggregation.examine_rows
        bound = examine(matrix.device, matrix.csr, matrix.csr, 1, "symmetric", 0.0).bound if matrix.size else 1.0
        matrix.shared[gershgorin_bound] = bound
    if not np.isfinite(bound):
        raise FactorizationError("the matrix has values that are not finite: no eigenvalue bounds those of D⁻¹A")
    return float(bound)


def largest_eigenvalue(matrix: SquareMatrix, inverse_diagonal: Array, *, safety: float = _SAFETY) -> float:
    """Return an estimate of the largest eigenvalue of D⁻¹A, for a Hermitian A and a positive D. Synchronizes.

    The estimate is the smaller of two numbers: Gershgorin's bound, which always holds, and `safety` times the sum of
    the largest Ritz value and its error bound. With the default `safety`, the estimate is seldom too small; with
    ``safety=1``, it can be a few percent too small.
    """
    return min(gershgorin_bound(matrix), safety * sum(_largest_ritz_value(matrix, inverse_diagonal)))


def estimated_eigenvalue(matrix: SquareMatrix, inverse_diagonal: Array) -> float:
    """Return a lower bound of the largest eigenvalue of D⁻¹A, for a Hermitian A and a positive D. Synchronizes.

    The bound is the largest Ritz value of a few Lanczos iterations.
    """
    return _largest_ritz_value(matrix, inverse_diagonal)[0]


def _largest_ritz_value(matrix: SquareMatrix, inverse_diagonal: Array) -> tuple[float, float]:
    """Return the largest Ritz value, and an error bound: an eigenvalue is within this distance of it.

    Both numbers are computed once for each `SquareMatrix`. Synchronizes.
    """
    if _largest_ritz_value not in matrix.shared:
        matrix.shared[_largest_ritz_value] = _run_lanczos(matrix, inverse_diagonal) if matrix.whole_size else (1.0, 0.0)
    value: tuple[float, float] = matrix.shared[_largest_ritz_value]
    return value


def _run_lanczos(matrix: SquareMatrix, inverse_diagonal: Array) -> tuple[float, float]:
    """Run Lanczos's method with |D| in place of D. Return the largest Ritz value and its error bound. Synchronizes."""
    device, xp, dtype = matrix.device, matrix.device.xp, matrix.dtype
    kernels_of(device).steps.compile_steps(device, PROGRAM, dtype)
    multiply = matrix.operator.bind(device, dtype)
    state = SolveState(device, PROGRAM, dtype, 1, capacity=2 * _STEPS, ranks=matrix.operator.ranks)
    state.set(rho_old=np.inf)
    p = hashed_vector(device, matrix.size, dtype, first_row=matrix.operator.first_index)
    q, w = xp.zeros(matrix.size, dtype), device.empty(matrix.size, dtype)
    d = xp.abs(inverse_diagonal).astype(dtype, copy=False)

    def bind(name: str, p: Array, q: Array) -> Call:
        return state.bind(name, {"p": p, "q": q, "w": w, "d": d})

    turns: list[list[Call]] = [
        [partial(multiply, now, w), bind("weigh", now, other), bind("advance", now, other)]
        for now, other in ((p, q), (q, p))
    ]
    queue([bind("start", p, q)])
    for iteration in range(min(_STEPS, matrix.whole_size)):
        queue(turns[iteration % 2])
    snapshot = state.read()  # synchronizes
    recorded = snapshot.history[0, : int(snapshot.iterations[0])]
    return _largest(recorded[::2], recorded[1::2])


def spectral_radius(matrix: SquareMatrix, inverse_diagonal: Array) -> float:
    """Return an estimate of the largest magnitude of an eigenvalue of D⁻¹A, with a margin, for any A. Synchronizes.

    The estimate is 1.05 times the sum of the largest magnitude of a Ritz value and the residual norm of its Ritz
    vector. (The Ritz value alone is up to a fifth too small if convection dominates.) The space is that of v, B·v, ...,
    Bᵐ⁻¹v with B = D⁻¹A - I. The basis K = [k₀ ... kₘ₋₁] consists of Chebyshev polynomials in B, applied to v, because a
    basis of powers would be nearly singular:

        B·k₀ = k₁,  B·kⱼ = (kⱼ₋₁ + kⱼ₊₁) / 2,  that is  B·K = [K kₘ]·C

    If an eigenvalue is so large that the polynomials overflow (in single precision, above about 100), Gershgorin's
    bound is returned instead.

    Raises
    ------
    FactorizationError
        If a value is not finite.
    """
    device, dtype, count = matrix.device, matrix.dtype, min(_RITZ_VECTORS, matrix.whole_size)
    if not matrix.whole_size:
        return 1.0
    multiply = matrix.operator.bind(device, dtype)
    basis, product = device.empty((count + 1, matrix.size), dtype), device.empty(matrix.size, dtype)
    basis[0] = hashed_vector(device, matrix.size, matrix.dtype, first_row=matrix.operator.first_index)
    with np.errstate(over="ignore", invalid="ignore"):
        for j in range(count):
            multiply(basis[j], product)
            basis[j + 1] = inverse_diagonal * product - basis[j]
            if j:
                basis[j + 1] *= 2
                basis[j + 1] -= basis[j - 1]
        products, ranks = (basis.conj() @ basis.T).reshape(-1), matrix.operator.ranks
    if ranks is not None:
        ranks.allreduce(products)
    read = device.read_async(products, None if ranks is None else ranks.wait)
    gram = read().reshape(count + 1, count + 1)  # synchronizes
    if not np.isfinite(gram).all():
        return gershgorin_bound(matrix)
    recurrence = (np.eye(count + 1, count, -1) + np.eye(count + 1, count, 1)) / 2
    recurrence[1, 0] = 1
    return _SAFETY * _largest_magnitude(gram, recurrence)


def _largest_magnitude(gram: npt.NDArray[Any], recurrence: npt.NDArray[np.float64]) -> float:
    """Return the sum of the largest magnitude of a Ritz value of B + I and the residual norm of its Ritz vector.

    Parameters
    ----------
    gram : array, shape (m + 1, m + 1)
        The inner products of the vectors of [K kₘ].
    recurrence : array, shape (m + 1, m)
        C, with B·K = [K kₘ]·C.
    """
    inner = gram[:-1, :-1]
    with np.errstate(all="ignore"):
        projected = np.linalg.lstsq(inner, gram[:-1] @ recurrence, rcond=1e-10)[0]
        values, vectors = np.linalg.eig(projected)
        place = int(np.argmax(np.abs(values + 1)))
        value, vector = values[place], vectors[:, place]
        residual = recurrence @ vector - value * np.append(vector, 0)
        squares = [np.vdot(v, g @ v).real for v, g in ((residual, gram), (vector, inner))]
        return float(abs(value + 1) + np.sqrt(max(squares[0], 0) / squares[1]))


def _largest(alphas: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the largest Ritz value, and an error bound: an eigenvalue is within this distance of it.

    Parameters
    ----------
    alphas : array, shape (k,)
        The diagonal of the tridiagonal matrix.
    squares : array, shape (k,)
        The squares of the off-diagonal elements; the last one is the squared norm of the next Lanczos vector.
    """
    betas = np.sqrt(squares)
    off_diagonal = betas[:-1]
    values, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
    return float(values[-1]), float(betas[-1] * abs(vectors[-1, -1]))


# Default of the smallest eigenvalue that is damped, divided by the largest eigenvalue; PyAMG and hypre use the same.
_DEFAULT_RATIO = 1 / 30


@register("preconditioner")
def chebyshev_polynomial(A: Any, degree: int = 4, bounds: tuple[float, float] | None = None) -> MatrixPreconditioner:
    """Precondition with the polynomial in D⁻¹A that best approximates (D⁻¹A)⁻¹ for eigenvalues within `bounds`.

    D is the diagonal of A. The polynomial is applied by products with A, without inner products. The preconditioner is
    Hermitian and positive definite if A is, provided that no eigenvalue exceeds the sum of both bounds.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        Hermitian and positive definite. A GpuSparseMatrix, or a sparse array that can be converted to
        one. Later changes of the values of a GpuSparseMatrix have no effect.
    degree : int, optional
        Number of steps. The preconditioner takes ``degree - 1`` products with A.
    bounds : (float, float), optional
        The smallest and the largest eigenvalue of D⁻¹A that are to be damped. By default, the largest is estimated with
        eight products, and the smallest is a thirtieth of it.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy. Besides A, it reads or writes 3 vectors in
        the first step and 6 in each further step.

    Raises
    ------
    FactorizationError
        If the diagonal has an element that is not positive, or a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If `degree` is less than 1, or `bounds` are not positive or not in rising order.

    References
    ----------
    .. [1] Y. Saad, "Iterative methods for sparse linear systems", 2nd ed., SIAM, 2003, section 12.3.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, chebyshev_polynomial
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> plain = cg(A, numpy.ones(100), full_output=True)
    >>> result = cg(A, numpy.ones(100), M=chebyshev_polynomial(A, 4), full_output=True)
    >>> result.info, result.iterations < plain.iterations / 2
    (0, True)
    """
    if degree < 1:
        raise ValueError(f"degree must be at least 1, got {degree}")
    if bounds is not None and not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"bounds must be 0 < smallest <= largest, got {bounds}")
    with SquareMatrix.of(A, "chebyshev_polynomial", keep=True) as matrix:
        return SmootherPreconditioner(matrix, "chebyshev_polynomial", partial(_make_relaxation, degree, bounds))


def _make_relaxation(degree: int, bounds: tuple[float, float] | None, matrix: SquareMatrix, _: Any) -> Relaxation:
    inverse = matrix.inverse_diagonal("chebyshev_polynomial")
    row = kernels_of(matrix.device).reductions.first_where(matrix.device, inverse, "not positive")
    if row is not None:
        raise FactorizationError(
            f"chebyshev_polynomial needs a positive diagonal, row {row} has {complex(matrix.diagonal[row]):.3g}: "
            "use isai(A) or ilu0(A) with gmres or bicgstab"
        )
    if bounds is None:
        high = largest_eigenvalue(matrix, inverse)
        bounds = (high * _DEFAULT_RATIO, high)
    return Relaxation.scaled(matrix.device, chebyshev_omegas(*bounds, degree), inverse, "chebyshev")
