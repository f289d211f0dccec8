"""What `eigs` and `eigsh` have in common: arguments, inner solves, and the form of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.dense import as_dense
from gsparse.linalg.eigen.inner_solve import InnerSolver, given_solver, make_solver, shifted
from gsparse.linalg.eigen.lanczos import Wanted
from gsparse.linalg.eigen.problem import Eigenproblem, EigenResult, is_small, no_convergence, seed_of, start_vector
from gsparse.linalg.eigen.shifts import Shift
from gsparse.linalg.eigen.transforms import SingularShiftError
from gsparse.linalg.eigen.units import exponent_of_product, needed_exponent, times_power
from gsparse.linalg.krylov.units import scaled_operator
from gsparse.linalg.operators import Operator, as_operator

# Number of solves after which the shift may be moved. The first one may not tell how far the next eigenvalue is.
_CHECKED_SHIFTS = 2


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an eigensolver.

    Attributes
    ----------
    problem : Eigenproblem
    wanted : Wanted
    is_dense : bool
        Whether the problem is small, and is solved by LAPACK on the host.
    """

    problem: Eigenproblem
    wanted: Wanted
    is_dense: bool

    @classmethod
    def of(
        cls,
        problem: Eigenproblem,
        k: int,
        which: str,
        ncv: int | None,
        smallest_ncv: int,
        maxiter: int | None,
        tol: float,
        multiplicities: bool,
        rng: Any,
    ) -> Call:
        """Return a call with the arguments of the function; `smallest_ncv` is the least number of basis vectors."""
        size = problem.ncv(k, ncv, smallest_ncv)
        is_dense = is_small(problem.n, k, ncv, maxiter) and problem.A.ranks is None
        maxiter = 10 * problem.n if maxiter is None else int(maxiter)
        return cls(problem, Wanted(k, which, tol, size, maxiter, multiplicities, seed_of(rng)), is_dense)

    def run(
        self,
        solve_dense: Callable[[Eigenproblem, Any, Wanted], EigenResult],
        solve: Callable[[Eigenproblem, Any, Wanted, Array | None], EigenResult],
        options: Any,
        v0: Any,
        *,
        return_eigenvectors: bool,
        full_output: bool,
    ) -> Any:
        """Find the pairs, and return what the caller has asked for. Synchronizes.

        Parameters
        ----------
        solve_dense : callable
            ``solve_dense(problem, options, wanted)`` solves a small problem on the host.
        solve : callable
            ``solve(problem, options, wanted, v0)`` solves any other problem on the device.
        options : object
            The options of the transform, which both of these functions take.
        v0, return_eigenvectors, full_output
            The arguments of the eigensolver.

        Raises
        ------
        scipy.sparse.linalg.ArpackNoConvergence
            If there are fewer than k finite eigenvalues.
        """
        device = self.problem.device
        with device.active(), device.memory_guard(), device.own_stream():
            problem, options, exponent = _scaled(self.problem, options)
            if self.is_dense:
                result = solve_dense(problem, options, self.wanted)
            else:
                result = replace(self, problem=problem)._solve(solve, options, start_vector(problem, v0))
        result = replace(result, residuals=times_power(result.residuals, exponent))
        w, v = result
        if len(w) < self.wanted.k:  # M is semidefinite, and other eigenvalues are infinite
            raise no_convergence(result.restarts, len(w), self.wanted.k, w, v)
        if full_output:
            return result
        return (w, v) if return_eigenvectors else w

    def _solve(self, solve: Callable[..., EigenResult], options: Any, v0: Array | None) -> EigenResult:
        """Find the pairs on the device. A shift that is an eigenvalue is moved."""
        # Of a real problem with a complex shift, the real or imaginary part of the inverse is used.
        has_part = self.problem.dtype.kind != "c" and bool(np.imag(options.sigma or 0))
        if options.sigma is None or options.OPinv is not None or has_part:
            return solve(self.problem, options, self.wanted, v0)
        shift = Shift.of(self.problem, options.sigma)
        sigma = shift.moved(1) if shift.has_constant_vector else shift.sigma
        for _ in range(_CHECKED_SHIFTS):
            side, next_distance = 1, np.inf
            try:
                result = solve(self.problem, replace(options, sigma=sigma, noise=shift.noise), self.wanted, v0)
                if shift.is_trusted(result.residuals, self.wanted.tol):
                    return result
            except SingularShiftError as error:
                # With a shift that has not been moved, the distance may be that of a rounding error.
                side, next_distance = error.side, np.inf if sigma == shift.sigma else error.next_distance
            sigma = shift.moved(side, next_distance)
        return solve(self.problem, replace(options, sigma=sigma), self.wanted, v0)


def _scaled(problem: Eigenproblem, options: Any) -> tuple[Eigenproblem, Any, int]:
    """Scale a problem whose squares may overflow or underflow (`gsparse.linalg.eigen.units`). Synchronizes.

    Returns
    -------
    problem : Eigenproblem
    options : object
    exponent : int
        The norms of residuals are those of the scaled problem times 2 to this power.
    """
    A, M, sigma, OPinv, dtype = problem.A, problem.M, options.sigma, options.OPinv, problem.dtype
    size_of_M = 0 if M is None else _exponent(problem, M)
    if OPinv is not None:  # A may be a placeholder then
        OPinv = as_operator(OPinv, problem.device, "OPinv")
        inverse = _exponent(problem, OPinv, is_complex=bool(np.imag(sigma)))
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
    """Return the exponent of the norm of an operator, which may be complex where the problem is real. Synchronizes."""
    dtype = problem.dtype
    if is_complex or operator.dtype.kind == "c":
        dtype = np.dtype(np.result_type(dtype, np.complex64))
    space, product = replace(problem.space(), dtype=dtype), operator.bind(problem.device, dtype)

    def multiply(x: Array) -> Array:
        y = problem.device.xp.zeros_like(x)
        product(x, y)
        return y

    return exponent_of_product(multiply, space)


def dense_arrays(problem: Eigenproblem, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return A and M (None for the identity) as dense arrays on the host. Synchronizes."""
    A = as_dense(problem.A, problem.device, dtype)
    return A, None if problem.M is None else as_dense(problem.M, problem.device, dtype)


def mass_solver(problem: Eigenproblem, Minv: Any, tol: float) -> InnerSolver:
    """Return the solver with M, which is not the identity: the caller's, or one that is chosen by the matrix."""
    assert problem.M is not None
    if Minv is not None:
        return given_solver(Minv, problem.device, problem.dtype, "Minv")
    return make_solver(problem.M, problem.device, problem.dtype, tol, hermitian=True, name="M")


def shifted_solver(
    problem: Eigenproblem, sigma: complex, OPinv: Any, tol: float, dtype: np.dtype[Any], *, hermitian: bool
) -> InnerSolver:
    """Return the solver with A - sigma·M for vectors of a dtype: the caller's, or one that is chosen by the matrix."""
    if OPinv is not None:
        return given_solver(OPinv, problem.device, dtype, "OPinv")
    K = shifted(problem.A, sigma, problem.M, problem.device, dtype)
    return make_solver(K, problem.device, dtype, tol, hermitian=hermitian, name="A - sigma * M")
