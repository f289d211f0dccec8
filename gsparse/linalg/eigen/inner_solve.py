"""Solves with M or with A - σ·M inside an eigensolver: by the caller's operator, by factors, or by iterations.

An eigensolver treats such a solve as a product with an operator, so its error must stay below the tolerance of the
eigenvalues. If every solve reaches ‖r‖ ≤ rtol·‖b‖, the relative error of the operator is at most rtol, and the error of
an eigenpair's residual at most rtol·|λ - σ|. Hence rtol is a tenth of the caller's tolerance, but at least 50 times the
machine precision.

If a method fails, the next one in the list replaces it for all further solves:

============================  ======================================================================================
matrix                        methods
============================  ======================================================================================
dense array                   LU factors on the host
diagonal                      division
few rows                      factors (`gsparse.linalg.factorized`)
Hermitian                     conjugate gradients with multigrid; factors; MINRES
not Hermitian                 GMRES with ILU(0); factors
an operator without entries   conjugate gradients and MINRES, or GMRES
============================  ======================================================================================
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import DeviceMemoryError, GsparseError, SingularMatrixError
from gsparse.linalg.direct.factorization import Factorization, choose_library
from gsparse.linalg.krylov.cg import cg
from gsparse.linalg.krylov.gmres import gmres
from gsparse.linalg.krylov.minres import minres
from gsparse.linalg.krylov.units import DerivedOperator
from gsparse.linalg.multigrid.amg import amg
from gsparse.linalg.operators import Apply, DenseOperator, MatrixOperator, Operator, as_operator
from gsparse.linalg.preconditioners.diagonal import jacobi
from gsparse.linalg.preconditioners.ilu import ilu0
from gsparse.linalg.small_matrices import as_dense
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

# The tolerance of a solve is this share of the eigensolver's tolerance, but at least _SMALLEST times the precision.
_SHARE, _SMALLEST = 0.1, 50
# Up to this number of rows, a matrix is factorized first, which takes less time than setting up multigrid.
_FEW_ROWS = 10_000
# If iterations fail, a matrix is factorized if it has at most this many rows, on the host and on the GPU. (For 100³
# rows, the factors of a 7-point Laplacian take 7.4 GB.)
_MAX_FACTORED_ROWS, _MAX_ROWS_ON_GPU = 100_000, 2_000_000
# If a solve needs more iterations than the first number, the next method takes over. The second number is GMRES's
# restart.
_MAX_ITERATIONS, _RESTART = 2000, 50
# Maximum number of runs of MINRES. Each run solves for the residual that is left, because MINRES has a tolerance
# relative to the norms of A and x.
_MAX_ROUNDS = 8


@dataclass(frozen=True)
class InnerSolve:
    """A summary of the solves inside of an eigensolver.

    Attributes
    ----------
    method : str
        The method of the last solve.
    rtol : float
        The tolerance for the relative residual of every solve; 0 for direct methods.
    solves : int
    iterations : int
        Total number of iterations of all solves.
    """

    method: str
    rtol: float
    solves: int
    iterations: int


class InnerSolver:
    """An `Apply` that solves K·x = b, by the first of several methods that succeeds.

    Parameters
    ----------
    methods : iterator of (str, callable)
        The name of each method, and its function: ``solve(b)`` returns x and the number of iterations, or None if it
        failed.
    rtol : float
    name : str
        The name of K in the error message.
    """

    def __init__(self, methods: Iterator[tuple[str, Callable[[Array], Any]]], rtol: float, name: str) -> None:
        self._methods, self.rtol, self._name = methods, rtol, name
        self._method, self._solve = next(methods)
        self._solves = self._iterations = 0
        self._failed: list[str] = []

    def __call__(self, b: Array, x: Array) -> None:
        while (result := self._solve(b)) is None:
            self._failed.append(self._method)
            following = next(self._methods, None)
            if following is None:
                raise ValueError(
                    f"no inner solver reached a relative residual of {self.rtol:.1e} for {self._name}: tried "
                    f"{', '.join(self._failed)}. Pass a solver of your own as OPinv (or Minv), or a larger tol"
                )
            self._method, self._solve = following
        x[...] = result[0]
        self._solves += 1
        self._iterations += result[1]

    @property
    def report(self) -> InnerSolve:
        is_direct = self._method in ("factors", "division", "LU", "given")
        return InnerSolve(self._method, 0.0 if is_direct else self.rtol, self._solves, self._iterations)


def given_solver(operator: Any, device: Device, dtype: np.dtype[Any], name: str) -> InnerSolver:
    """Return an `InnerSolver` that multiplies by the operator OPinv or Minv of the caller."""
    solve = _applied(as_operator(operator, device, name).bind(device, dtype), device)
    return InnerSolver(iter([("given", solve)]), 0.0, name)


def make_solver(
    K: Operator, device: Device, dtype: np.dtype[Any], tol: float, *, hermitian: bool, name: str
) -> InnerSolver:
    """Return a solver for K with the methods for this kind of matrix, which the module's docstring lists."""
    epsilon = float(np.finfo(dtype).eps)
    rtol = max(_SHARE * tol, _SMALLEST * epsilon)
    return InnerSolver(_methods(K, device, dtype, rtol, hermitian), rtol, name)


def shifted(A: Operator, sigma: complex, M: Operator | None, device: Device, dtype: np.dtype[Any]) -> Operator:
    """Return A - sigma·M as an operator. Its entries can be read if those of A and M can."""
    if sigma == 0:
        return A
    shift = dtype.type(sigma)
    if isinstance(A, MatrixOperator) and (M is None or isinstance(M, MatrixOperator)):
        other = sp.eye_array(A.shape[0], dtype=dtype, format="csr") if M is None else M.matrix
        return as_operator(GpuSparseMatrix(A.matrix - shift * other, device=device), device)
    if isinstance(A, DenseOperator) and (M is None or isinstance(M, DenseOperator | MatrixOperator)):
        other = as_dense(M, device, dtype) if M is not None else np.eye(A.shape[0], dtype=dtype)
        return DenseOperator(as_dense(A, device, dtype) - shift * other)
    return _Shifted(A, shift, M)


class _Shifted(DerivedOperator):
    """A - sigma·M as an operator whose entries cannot be read."""

    def __init__(self, A: Operator, sigma: Any, M: Operator | None) -> None:
        super().__init__(A)
        self._sigma, self._M = sigma, M
        self.dtype, self.is_resident = np.dtype(np.result_type(A.dtype, sigma)), False

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        sigma = np.conj(self._sigma) if adjoint else self._sigma
        A = self._operator.bind(device, dtype, columns, adjoint=adjoint)
        M = None if self._M is None else self._M.bind(device, dtype, columns, adjoint=adjoint)
        t = device.empty(columns * self.shape[0], dtype)

        def apply(x: Array, y: Array) -> None:
            A(x, y)
            if M is not None:
                M(x, t)
            y[...] -= sigma * (x if M is None else t)

        return apply


def _methods(
    K: Operator, device: Device, dtype: np.dtype[Any], rtol: float, hermitian: bool
) -> Iterator[tuple[str, Callable[[Array], Any]]]:
    if isinstance(K, DenseOperator):
        yield "LU", _dense_solve(as_dense(K, device, dtype), device)
        return
    if not isinstance(K, MatrixOperator):
        yield from _iterations(K, None, rtol, hermitian, with_entries=False)
        return
    matrix: Any = K.matrix
    rows = matrix.shape[0]
    diagonal = matrix.diagonal()
    if matrix.nnz <= rows and np.count_nonzero(diagonal) == rows:
        reciprocal = device.upload(np.ascontiguousarray(1 / diagonal.astype(dtype)))
        yield "division", lambda b: (b * reciprocal, 0)
        return
    if rows <= _FEW_ROWS:
        yield "factors", _factorized_solve(matrix, device, dtype)
    yield from _iterations(K, diagonal, rtol, hermitian, with_entries=True)
    on_host = choose_library(None, device, "general")[0].runs_on_host
    if _FEW_ROWS < rows <= (_MAX_FACTORED_ROWS if on_host else _MAX_ROWS_ON_GPU):
        with suppress(DeviceMemoryError):
            yield "factors", _factorized_solve(matrix, device, dtype)
    if hermitian:
        yield "minres", _minres(K, rtol)


def _iterations(
    K: Operator, diagonal: Any, rtol: float, hermitian: bool, *, with_entries: bool
) -> Iterator[tuple[str, Callable[[Array], Any]]]:
    if not hermitian:
        M, name = _preconditioner(K, ("ilu0", ilu0), ("jacobi", jacobi)) if with_entries else (None, "")
        yield f"gmres{name}", _krylov(gmres, K, M, rtol, restart=_RESTART, maxiter=_MAX_ITERATIONS // _RESTART)
        return
    if not with_entries:
        yield "cg", _krylov(cg, K, None, rtol, maxiter=_MAX_ITERATIONS)
        if K.ranks is None:
            yield "minres", _minres(K, rtol)
    elif (diagonal.real > 0).all():  # otherwise K is not positive definite
        M, name = _preconditioner(K, ("amg", amg), ("jacobi", jacobi))
        yield f"cg{name}", _krylov(cg, K, M, rtol, maxiter=_MAX_ITERATIONS)


def _preconditioner(K: Any, *choices: tuple[str, Callable[[Any], Any]]) -> tuple[Any, str]:
    """Return the first preconditioner that can be made for K, and its name as a suffix; otherwise None and ""."""
    for name, make in choices:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return make(K.matrix), f" with {name}"
        except (GsparseError, ImportError, ValueError, ArithmeticError):
            continue
    return None, ""


def _krylov(solver: Any, K: Operator, M: Any, rtol: float, **options: Any) -> Callable[[Array], Any]:
    def solve(b: Array) -> tuple[Array, int] | None:
        result = solver(K, b, rtol=rtol, M=M, full_output=True, **options)
        # A result with `is_refuted` is accepted, because its true residual may be rounding error above the tolerance.
        return (result.x, result.iterations) if result.info == 0 or result.is_refuted else None

    return solve


def _minres(K: Operator, rtol: float) -> Callable[[Array], Any]:
    """Return a function that solves by MINRES, again for each residual, until the residual is small relative to b."""

    def solve(b: Array) -> tuple[Array, int] | None:
        xp = K.home().xp
        product = K.bind(K.home(), np.dtype(b.dtype))
        x, r, iterations, target = xp.zeros_like(b), b.copy(), 0, rtol * float(xp.linalg.norm(b))
        for _ in range(_MAX_ROUNDS):
            result = minres(K, r, rtol=rtol, full_output=True)
            x += result.x
            iterations += result.iterations
            product(x, r)
            r[...] = b - r
            norm = float(xp.linalg.norm(r))  # synchronizes
            if norm <= target or not np.isfinite(norm):
                break
        noise = _SMALLEST * float(np.finfo(b.dtype).eps) * result.iterations**0.5
        return (x, iterations) if norm <= max(target, noise * float(xp.linalg.norm(b))) else None

    return solve


@contextmanager
def _named_if_singular() -> Iterator[None]:
    try:
        yield
    except (SingularMatrixError, scipy.linalg.LinAlgError, scipy.linalg.LinAlgWarning) as error:
        text = f"A - sigma·M, or M without sigma, is singular: choose another sigma, or pass one ({error})"
        raise RuntimeError(text) from error


def _factorized_solve(matrix: Any, device: Device, dtype: np.dtype[Any]) -> Callable[[Array], Any]:
    with _named_if_singular():
        return _applied(Factorization(matrix.astype(dtype, copy=False), name="sigma").bind(device, dtype), device)


def _applied(product: Apply, device: Device) -> Callable[[Array], Any]:
    """Return a function that solves by one product with an inverse, and reports 0 iterations."""

    def solve(b: Array) -> tuple[Array, int]:
        x = device.empty(b.shape, b.dtype)
        product(b, x)
        return x, 0

    return solve


def _dense_solve(array: Any, device: Device) -> Callable[[Array], Any]:
    with _named_if_singular(), warnings.catch_warnings():
        warnings.simplefilter("error", scipy.linalg.LinAlgWarning)
        factors = scipy.linalg.lu_factor(array)

    def solve(b: Array) -> tuple[Array, int]:
        host = np.array(b) if device.is_host else device.download(b)  # synchronizes
        return device.upload(np.ascontiguousarray(scipy.linalg.lu_solve(factors, host).astype(b.dtype, copy=False))), 0

    return solve
