"""Functions that `eigsh` and `eigs` share: scaling, shifts, transforms and small dense problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.inner_solve import InnerSolver, given_solver, make_solver, shifted
from gsparse.linalg.eigen.krylov_space import random_vector
from gsparse.linalg.eigen.problem import (
    Eigenproblem,
    EigenResult,
    exponent_of_apply,
    no_convergence,
    start_vector,
)
from gsparse.linalg.eigen.runs import Runs, Wanted
from gsparse.linalg.eigen.transforms import SingularShiftError, Solve, Transform
from gsparse.linalg.krylov.units import needed_exponent, scaled_operator, times_power
from gsparse.linalg.operators import Apply, Operator, as_operator
from gsparse.linalg.small_matrices import as_dense
from gsparse.sparse.reductions import sums_of_squares

# Two distances, in units of the rounding errors of A - σM (machine precision times norm). An eigenvalue closer to the
# shift than _NOISE counts as equal to the shift. If the shift is moved, it is moved by at least _SMALLEST_MOVE.
_NOISE, _SMALLEST_MOVE = 10, 1000


@dataclass(frozen=True)
class Shift:
    """A shift σ, and the norms that are needed to detect that it is an eigenvalue.

    Attributes
    ----------
    sigma : complex
    epsilon : float
        The machine precision.
    size : float
        norm((A - σM)·x) / norm(M·x) for a random x.
    mass_size : float
        norm(M·x) / norm(x) for the same x.
    has_constant_vector : bool
        Whether the vector of ones is an eigenvector to the eigenvalue σ, as in a Laplacian for σ = 0.
    """

    sigma: complex
    epsilon: float
    size: float
    mass_size: float
    has_constant_vector: bool

    @classmethod
    def of(cls, problem: Eigenproblem, sigma: complex) -> Shift:
        """Return the `Shift` for σ, found by products of A and M with two vectors. Synchronizes."""
        space, device, dtype = problem.space(), problem.device, problem.dtype
        multiply_A = problem.A.bind(device, dtype)
        multiply_M = None if problem.M is None else problem.M.bind(device, dtype)
        # For each vector x: (A - σM)·x, M·x, and x itself.
        parts = device.xp.zeros((2, 3, space.size), dtype)
        for (product, mass, x), vector in zip(parts, (random_vector(space, 0), 1), strict=True):
            x[...] = mass[...] = vector
            multiply_A(x, product)
            if multiply_M is not None:
                multiply_M(x, mass)
            product[...] -= dtype.type(sigma) * mass
        squares = device.xp.asarray(sums_of_squares(device, parts.reshape(6, -1)))
        norms = np.sqrt(space.download(space.sum_over_ranks(squares))).reshape(2, 3)
        with np.errstate(divide="ignore", invalid="ignore"):
            size, size_for_ones = norms[:, 0] / norms[:, 1]
            mass_size = norms[0, 1] / norms[0, 2]
        noise = _NOISE * space.epsilon * size
        has_constant_vector = bool(0 < noise < np.inf and size_for_ones <= noise)
        return cls(sigma, space.epsilon, float(size), float(mass_size), has_constant_vector)

    @property
    def noise(self) -> float:
        """An eigenvalue at most this far from σ may be equal to σ, because of rounding errors. 0 if unknown."""
        noise = _NOISE * self.epsilon * self.size
        return noise if np.isfinite(noise) else 0.0

    def is_trusted(self, residuals: npt.NDArray[Any], tol: float) -> bool:
        """Return whether all residual norms of eigenpairs are small. A norm that is NaN is unknown, and is ignored."""
        limit = max(self.epsilon**0.5, 10 * tol) * self.size * max(self.mass_size, self.mass_size**0.5)
        return not bool((residuals > limit).any())

    def moved(self, side: int, next_distance: float = np.inf) -> complex:
        """Return a shift to use instead of σ.

        Parameters
        ----------
        side : {1, -1}
            Whether the next eigenvalue is greater or smaller than σ. The shift is moved to the other side.
        next_distance : float
            The distance from σ to the next eigenvalue; infinity if unknown.
        """
        roughly, least = self.epsilon**0.5 * self.size, _SMALLEST_MOVE * self.epsilon * self.size
        distance = max(self.epsilon**0.2 * next_distance, least) if np.isfinite(next_distance) else roughly
        return self.sigma - float(side * distance)


# Number of solves after which the shift may be moved. The first solve may not find the distance to the next eigenvalue.
_CHECKED_SHIFTS = 2


@dataclass(frozen=True, eq=False)
class Options:
    """The options of a call that describe the transform.

    Attributes
    ----------
    mode : {"normal", "buckling", "cayley"}
    part : {"", "r", "i"}
        For a real problem with a complex shift: use the real or imaginary part of the inverse, so that vectors stay
        real.
    inner_product : {"", "M", "A"}
        The matrix that defines the inner product of the eigenvectors; empty for the standard one.
    """

    sigma: complex | None
    Minv: Any
    OPinv: Any
    tol: float
    mode: str = "normal"
    part: str = ""
    inner_product: str = ""
    noise: float = 0.0


# ``solve_dense(problem, options, wanted)`` solves a small problem on the host.
SolveDense = Callable[[Eigenproblem, Options, Wanted], EigenResult]
# ``solve(problem, options, wanted, v0)`` solves any other problem on the device.
SolveOnDevice = Callable[[Eigenproblem, Options, Wanted, Array | None], EigenResult]


def run(
    problem: Eigenproblem,
    wanted: Wanted,
    options: Options,
    v0: Any,
    is_dense: bool,
    solvers: tuple[SolveDense, SolveOnDevice],
    return_eigenvectors: bool,
    full_output: bool,
) -> Any:
    """Find the eigenpairs, and return them in the form that the caller asked for. Synchronizes.

    Parameters
    ----------
    problem : Eigenproblem
    wanted : Wanted
    options : Options
    is_dense : bool
        Whether the problem is small enough for the dense solver.
    solvers : (callable, callable)
        The dense solver, and the solver on the device.
    v0, return_eigenvectors, full_output
        The arguments of the eigensolver.

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        If there are fewer than k finite eigenvalues.
    """
    with problem.device.active(), problem.device.memory_guard(), problem.device.own_stream():
        problem, options, exponent = _scaled(problem, options)
        if is_dense and options.OPinv is None and problem.A.ranks is None:
            result = solvers[0](problem, options, wanted)
        else:
            result = _solve(solvers[1], problem, options, wanted, start_vector(problem, v0))
    result = replace(result, residuals=times_power(result.residuals, exponent))
    w, v = result
    if len(w) < wanted.k:  # M is semidefinite, and some eigenvalues are infinite
        raise no_convergence(result.restarts, len(w), wanted.k, w, v)
    if full_output:
        return result
    return (w, v) if return_eigenvectors else w


def _solve(
    solve: SolveOnDevice, problem: Eigenproblem, options: Options, wanted: Wanted, v0: Array | None
) -> EigenResult:
    """Find the eigenpairs on the device. If the shift is an eigenvalue, move it and solve again."""
    # A real problem with a complex shift uses the real or imaginary part of the inverse; its shift is never moved.
    has_part = problem.dtype.kind != "c" and bool(np.imag(options.sigma or 0))
    if options.sigma is None or options.OPinv is not None or has_part:
        return solve(problem, options, wanted, v0)
    shift = Shift.of(problem, options.sigma)
    sigma = shift.moved(1) if shift.has_constant_vector else shift.sigma
    for _ in range(_CHECKED_SHIFTS):
        side, next_distance = 1, np.inf
        try:
            result = solve(problem, replace(options, sigma=sigma, noise=shift.noise), wanted, v0)
            if shift.is_trusted(result.residuals, wanted.tol):
                return result
        except SingularShiftError as error:
            # Before the shift has been moved, the reported distance may be a rounding error.
            side, next_distance = error.side, np.inf if sigma == shift.sigma else error.next_distance
        sigma = shift.moved(side, next_distance)
    return solve(problem, replace(options, sigma=sigma), wanted, v0)


def result_of(
    problem: Eigenproblem, method: Runs, solver: InnerSolver | None, values: Any, vectors: Array, residuals: Any
) -> EigenResult:
    """Return the eigenpairs that a method found, or raise an error if some are missing.

    The rows of `vectors` are the eigenvectors.
    """
    w, v = problem.deliver(values, vectors)
    if not method.is_complete:
        raise no_convergence(method.cycles, len(w), method.wanted.k, w, v)
    report = None if solver is None else solver.report
    return EigenResult(w, v, residuals, method.cycles, method.num_products, method.runs, report)


def _scaled(problem: Eigenproblem, options: Options) -> tuple[Eigenproblem, Options, int]:
    """Scale a problem whose squares may overflow or underflow (`gsparse.linalg.krylov.units`). Synchronizes.

    Returns
    -------
    problem : Eigenproblem
    options : object
    exponent : int
        The residual norms of the original problem are those of the scaled problem times 2 to this power.
    """
    A, M, sigma, OPinv, dtype = problem.A, problem.M, options.sigma, options.OPinv, problem.dtype
    size_of_M = 0 if M is None else _exponent(problem, M)
    if OPinv is not None:  # A may be a placeholder then
        OPinv = as_operator(OPinv, problem.device, "OPinv")
        inverse = _exponent(problem, OPinv, is_complex=bool(np.imag(sigma or 0)))
        sizes_of_A = [None if inverse is None else -inverse]
    else:
        sizes_of_A = [_exponent(problem, A)]
        if sigma and size_of_M is not None:
            sizes_of_A.append(int(np.frexp(abs(sigma))[1]) // 2 * 2 + size_of_M)
    a, m = needed_exponent(sizes_of_A, dtype), 0 if M is None else needed_exponent([size_of_M], dtype)
    if not a and not m:
        return problem, options, 0
    of_vectors = {"A": -a // 2, "M": -m // 2, "": 0}[options.inner_product]
    M = None if M is None else scaled_operator(M, -m, dtype)
    problem = replace(problem, A=scaled_operator(A, -a, dtype), M=M, value_exponent=a - m, vector_exponent=of_vectors)
    if sigma is not None:
        options = replace(options, sigma=times_power(sigma, m - a))
    if OPinv is not None:
        options = replace(options, OPinv=scaled_operator(OPinv, a, dtype))
    if options.Minv is not None:
        options = replace(options, Minv=scaled_operator(as_operator(options.Minv, problem.device, "Minv"), m, dtype))
    return problem, options, a + of_vectors


def _exponent(problem: Eigenproblem, operator: Operator, *, is_complex: bool = False) -> int | None:
    """Return an even e such that the operator times 2^-e has a norm near 1; None if unknown. Synchronizes.

    `is_complex` says that the operator of a real problem may be complex.
    """
    dtype = problem.dtype
    if is_complex or operator.dtype.kind == "c":
        dtype = np.dtype(np.result_type(dtype, np.complex64))
    product = operator.bind(problem.device, dtype)
    return exponent_of_apply(product, replace(problem.space(), dtype=dtype), operator.shape[0])


def dense_arrays(problem: Eigenproblem, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return A and M (None for the identity) as dense arrays on the host. Synchronizes."""
    A = as_dense(problem.A, problem.device, dtype)
    return A, None if problem.M is None else as_dense(problem.M, problem.device, dtype)


def make_transform(problem: Eigenproblem, options: Options, *, hermitian: bool) -> tuple[Transform, InnerSolver | None]:
    """Return the operator whose Krylov space is built, and its inner solver or None.

    With `hermitian`, the inner product is xᴴMy (for buckling, xᴴAy). The Krylov space then multiplies w by M (or A)
    before it calls the solve.
    """
    device, dtype = problem.device, problem.dtype
    product = problem.A.bind(device, dtype)
    if options.sigma is None:
        if problem.M is None:
            return Transform(product, problem.A.is_resident), None
        if options.Minv is not None:
            solver = given_solver(options.Minv, device, dtype, "Minv")
        else:
            solver = make_solver(problem.M, device, dtype, options.tol, hermitian=True, name="M")
        return Solve(product, False, solve=solver, kind="mass"), solver
    wide_dtype = np.dtype(np.result_type(dtype, np.complex64)) if options.part else dtype
    if options.OPinv is not None:
        solver = given_solver(options.OPinv, device, wide_dtype, "OPinv")
    else:
        K = shifted(problem.A, options.sigma, problem.M, device, wide_dtype)
        solver = make_solver(K, device, wide_dtype, options.tol, hermitian=hermitian, name="A - sigma * M")
    solve: Apply = _part_of(solver, wide_dtype, options.part) if options.part else solver
    mass = None if hermitian or problem.M is None else problem.M.bind(device, dtype)
    return Solve(product, False, solve, options.mode, options.sigma, mass, options.noise), solver


def _part_of(solver: InnerSolver, dtype: np.dtype[Any], part: str) -> Apply:
    """Return an `Apply` for real vectors that computes the real or the imaginary part of a complex solve."""

    def solve(b: Array, x: Array) -> None:
        wide_b = b.astype(dtype)
        result = wide_b.copy()
        solver(wide_b, result)
        x[...] = result.real if part == "r" else result.imag

    return solve
