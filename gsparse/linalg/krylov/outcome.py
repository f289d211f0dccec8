"""The end of a solver's call: the true residual of its solution, and advice and a warning if it has not converged.

A few products show why conjugate gradients or MINRES failed: an operator is not Hermitian, or A is singular and A·x = b
has no solution.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.errors import ConvergenceWarning
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.krylov.units import ONES, SMALLEST_SQUARES
from gsparse.linalg.operators import Operator
from gsparse.linalg.result import CONVERGED, SolveResult, first_and_last, more_iterations
from gsparse.linalg.small_matrices import hashed_vector
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.sparse.reductions import sums_of_squares

# A solution is accepted if the norm of b - A·x is at most the tolerance times this factor. During the iterations,
# methods test a residual from a recurrence, which has other rounding errors than b - A·x.
_SLACK = 10


def _relative(norms: npt.NDArray[np.float64], system: LinearSystem) -> float | npt.NDArray[np.float64]:
    """Return the norms of b - (A - shift·I)·x divided by norm(b); not divided where b is zero."""
    with np.errstate(invalid="ignore"):  # b may hold inf
        relative = norms / system.scales()
    return float(relative[0]) if len(system.shape) == 1 else relative


def refute_by_residuals(
    loop: SolveLoop, tolerances: npt.NDArray[np.float64], claims: Collection[int] = (CONVERGED,)
) -> npt.NDArray[np.float64]:
    """Mark right-hand sides whose true residual b - A·x is too large as refuted. Synchronizes.

    Methods compute their residual by a recurrence. This residual can become arbitrarily small, although b - A·x cannot
    become smaller than its rounding errors. This test takes one product. Where b is zero, the tolerance is infinite,
    and x = 0 is the solution.

    Parameters
    ----------
    loop : SolveLoop
    tolerances : ndarray, shape (columns,)
        The largest norms that the residuals may have.
    claims : collection of int
        The stop codes that say that x is a solution.

    Returns
    -------
    ndarray, shape (columns,)
        The norms of the residuals, NaN if no right-hand side has converged.
    """
    system, is_claimed = loop.system, np.isin(loop.last.stop, list(claims)) & np.isfinite(tolerances)
    norms = system.residual_norms() if is_claimed.any() else np.full(system.columns, np.nan)
    loop.is_refuted = is_claimed & ~(norms <= _SLACK * tolerances)
    if system.units is ONES:  # otherwise x may still be rounded
        loop.relative_residual = _relative(norms, system)
    return norms


def refute_by_backward_errors(
    loop: SolveLoop,
    rtol_of_b: float,
    rtol_of_A: float,
    norms_of_A: npt.NDArray[np.float64],
    claims: Collection[int],
    *,
    adjoint: bool,
) -> npt.NDArray[np.bool_]:
    """Mark right-hand sides whose true residual r = b - A·x is too large as refuted. Synchronizes.

    The tolerance is ``rtol_of_b * norm(b) + min(rtol_of_A * norm(A) * norm(x), norm(b) / 10)``, and norm(r) may be ten
    times as large. Least-squares solutions, whose stop code is not `CONVERGED`, may have a larger norm(r) if norm(A.H @
    r) is at most ``10 * rtol_of_A * norm(A) * norm(r)``. The test for these takes two more products.

    Parameters
    ----------
    loop : SolveLoop
    rtol_of_b, rtol_of_A : float
        The tolerances of the method, which are raised to at least the machine precision.
    norms_of_A : ndarray, shape (columns,)
        Estimates of the norm of A. An estimate counts as zero if its square over- or underflows.
    claims : collection of int
        The stop codes that say that x is a solution or a least-squares solution.
    adjoint : bool
        Whether A and A.H are different operators.

    Returns
    -------
    ndarray of bool, shape (columns,)
        Whether norm(r) exceeds the tolerance itself, not ten times the tolerance.
    """
    system, epsilon = loop.system, float(np.finfo(loop.system.dtype).eps)
    is_normal = (norms_of_A > SMALLEST_SQUARES**0.5) & (norms_of_A < SMALLEST_SQUARES**-0.5)
    rtol_of_A, norms_of_A = max(rtol_of_A, epsilon), np.where(is_normal, norms_of_A, 0.0)
    norms_of_b = system.norms_of_b()
    with np.errstate(all="ignore"):
        products = np.nan_to_num(norms_of_A * system.norms(system.x), posinf=0.0)
    tolerances = max(rtol_of_b, epsilon) * norms_of_b + np.minimum(rtol_of_A * products, norms_of_b / _SLACK)
    tolerances[norms_of_b == 0] = np.inf
    norms = refute_by_residuals(loop, tolerances, claims)
    is_doubted = loop.is_refuted & (loop.last.stop != CONVERGED)
    if is_doubted.any():
        loop.is_refuted &= ~(is_doubted & system.is_least_squares(_SLACK * rtol_of_A * norms_of_A, adjoint=adjoint))
    return np.asarray(norms > tolerances)


def returned(result: SolveResult, system: LinearSystem, full_output: bool, show: bool = False) -> Any:
    """Return the result in the form that the caller of a solver asked for, and print it with `show`.

    The full output has the true residual, which takes a product if it is not known yet. All ranks that share the
    vectors must call this function. Without the full output, the caller gets a tuple as from SciPy, and a
    `ConvergenceWarning` if the solve has not converged. Ranks do not warn, because each would repeat the same warning;
    the process that started the ranks warns instead.
    """
    if (full_output or show) and np.isnan(result.relative_residual).any():
        with system.solving():  # synchronizes
            result = replace(result, relative_residual=_relative(system.residual_norms(), system))
    if show:
        print(result.log())
    if full_output:
        return result
    if system.A.ranks is None:
        warn_unless_converged(result)
    return result.in_scipys_form()


def warn_unless_converged(result: SolveResult) -> None:
    """Issue a `ConvergenceWarning` with the reason and the advice, once, if a solve has not converged."""
    if result.info == 0:
        return
    first, last = first_and_last(result.residuals)
    text = (
        f"the solve has not converged: {result.reason} after {result.iterations} iterations; {result.norm} "
        f"{first:.3e} → {last:.3e}. {result.advice} full_output=True returns all residuals and no warning"
    )
    warnings.warn(" ".join(text.split()), ConvergenceWarning, stacklevel=frames_to_the_caller())


# Number of test vectors. One pair of vectors misses a small asymmetry with a probability of about one percent.
_NUM_PROBES = 3
# Test vectors are uniform between -1/2 and 1/2. This factor gives their elements a variance of 1.
_SCALE = float(np.sqrt(12))
# The rows of A count as summing to zero if norm(A·ones) is at most this factor times eps·norm(A·v), with v random.
_NOISE = 100
_NO_SOLUTION = "stopped: no x reaches the tolerance"
_SUBTRACT_MEAN = (
    "A is singular, because its rows add up to zero, and only a b of mean zero has a solution: subtract the mean of b."
)
# The test needs three to five products with A, and three with M. It is made only after at least this many iterations,
# so that it takes at most a sixth of the time of the solve.
_MIN_ITERATIONS = 30


def with_symmetry_advice(result: SolveResult, system: LinearSystem, full_output: bool) -> SolveResult:
    """Return a failed result of a Hermitian method, with advice that names the operators that are not Hermitian.

    Without full output, a short solve is not tested: a caller may limit the iterations on purpose, for instance in a
    smoother, and the test would take much of the time.

    If A has a zero row or column, the advice names that row or column instead, because no other method would help. Call
    this function within `LinearSystem.solving`, and on all ranks that share the vectors. A result that needs no such
    advice is returned unchanged. Synchronizes.
    """
    if not _is_worth_a_check(result, full_output) or system.nonfinite_inputs():
        return result
    names = not_hermitian(system)
    if not names:
        return result
    on_zeros = system.advice_on_zeros()
    if on_zeros:
        return replace(result, advice=on_zeros)
    word = "Hermitian" if system.dtype.kind == "c" else "symmetric"
    advice = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not {word}: use gmres or bicgstab"
    if names == ["M"]:
        advice += f", or a preconditioner that is {word}: jacobi(A), ic0(A), isai(A)"
    return replace(result, advice=f"{advice}.")


def _is_worth_a_check(result: SolveResult, full_output: bool) -> bool:
    return result.info != 0 and (full_output or result.iterations >= _MIN_ITERATIONS)


def with_advice_for_cg(
    result: SolveResult, system: LinearSystem, full_output: bool, rtol: float, atol: float
) -> SolveResult:
    """Return a failed result of conjugate gradients with advice on the operators. Synchronizes.

    The advice names operators that are not Hermitian, or says that A is singular and the mean of b is not zero. Call
    this function within `LinearSystem.solving`, and on all ranks that share the vectors.
    """
    advised = with_symmetry_advice(result, system, full_output)
    if (
        advised is result
        and _is_worth_a_check(result, full_output)
        and _has_unreachable_mean(system, system.tolerances(rtol, atol)).any()
    ):
        return replace(result, reason=_NO_SOLUTION if result.info > 0 else result.reason, advice=_SUBTRACT_MEAN)
    return advised


def has_no_solution(system: LinearSystem, tolerances: npt.NDArray[np.float64]) -> bool:
    """Return whether it is certain that no right-hand side can reach its tolerance. Synchronizes.

    This is so if the rows of a Hermitian A add up to zero and the mean of b is not zero, because the mean of A·x is
    zero for every x. Call this function within `LinearSystem.solving`; it takes two products. It returns False if ranks
    share the vectors, because the messages of these products would mix with those of queued iterations.
    """
    return system.A.ranks is None and bool((np.isinf(tolerances) | _has_unreachable_mean(system, tolerances)).all())


def hermitian_maxiter_advice(system: LinearSystem) -> str:
    """Return the advice for a solve that reached maxiter, for a method whose preconditioner must be Hermitian."""
    return more_iterations("iterations (maxiter)", "jacobi(A), ic0(A), amg(A)", system.M is not None)


def not_hermitian(system: LinearSystem) -> list[str]:
    """Return "A", "M", both or none: the names of the operators that clearly are not Hermitian. Synchronizes."""
    operators = {"A": system.A} if system.M is None else {"A": system.A, "M": system.M}
    return [name for name, operator in operators.items() if not _is_hermitian(system, operator)]


def _has_unreachable_mean(system: LinearSystem, tolerances: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return whether the mean of each right-hand side alone keeps the residual above the tolerance. Synchronizes.

    This can only be so if the rows of a Hermitian A sum to zero. A mean that may be a rounding error does not count.
    """
    device, dtype, size = system.device, system.dtype, system.A.shape[0]
    xp, apply = device.xp, system.A.bind(device, dtype)
    vectors = xp.ones(size, dtype), _SCALE * hashed_vector(device, size, dtype, 0)
    products = xp.zeros((2, size), dtype)
    for x, product in zip(vectors, products, strict=True):
        apply(x, product)
    squares = sums_of_squares(device, products)
    sums = device.download(system.b.reshape(system.columns, -1).sum(axis=1)).astype(complex)
    total = system.sum_over_ranks(np.concatenate([squares, sums.real, sums.imag]))
    of_ones, of_probe = np.sqrt(total[:2])
    epsilon = float(np.finfo(dtype).eps)
    # The norm of the constant component of each b, which A·x does not have for any x.
    norms = np.hypot(*total[2:].reshape(2, -1)) / system.A.whole_shape[0] ** 0.5
    is_zero = 0 < of_probe < np.inf and of_ones <= _NOISE * epsilon * of_probe
    return np.asarray(is_zero & (norms > np.maximum(tolerances, epsilon**0.5 * system.norms_of_b())))


def _is_hermitian(system: LinearSystem, operator: Operator) -> bool:
    """Compare <u, B·v> with the conjugate of <v, B·u> for pseudorandom vectors of variance 1. Synchronizes.

    The difference is about as large as the Frobenius norm of B - Bᴴ, and the norms of the products B·v are about as
    large as the Frobenius norm of B. The tolerance, eps to the power 1/4, is far above rounding errors, even for a
    preconditioner that computes in single precision.
    """
    device, dtype, size = system.device, system.dtype, operator.shape[0]
    xp, probes = device.xp, [_SCALE * hashed_vector(device, size, dtype, number) for number in range(_NUM_PROBES)]
    apply, products = operator.bind(device, dtype), [xp.zeros(size, dtype) for _ in probes]
    for probe, product in zip(probes, products, strict=True):
        apply(probe, product)
    dots = np.array([[complex(xp.vdot(u, Bv)) for Bv in products] for u in probes])  # synchronizes
    squares = np.array([float(xp.vdot(Bv, Bv).real) for Bv in products])  # synchronizes
    total = system.sum_over_ranks(np.concatenate([dots.real.ravel(), dots.imag.ravel(), squares]))
    real, imaginary = total[: 2 * dots.size].reshape(2, *dots.shape)
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite count as Hermitian
        gram = real + 1j * imaginary
        mismatch = float(np.abs(gram - gram.conj().T).max())
        length = float(np.sqrt(total[2 * dots.size :].mean()))
    return not mismatch > float(np.finfo(dtype).eps) ** 0.25 * length
