"""Adjoint operators, and an operator that makes SciPy's own solvers run at the speed of the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import ShapeError
from gsparse.linalg.krylov.units import DerivedOperator
from gsparse.linalg.operators import Apply, Operator, as_operator
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import find_method
from gsparse.linalg.result import SolveResult
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix


class AdjointOperator(DerivedOperator):
    """The adjoint of an operator."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self.shape = operator.shape[::-1]

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        return self._operator.bind(device, dtype, columns, adjoint=not adjoint)


# Default rtol. The key is the size in bytes of a real number of the dtype. After a solve with this rtol, SciPy's solver
# needs one to three iterations to reach its own tolerance. The value is large enough for ill-conditioned matrices.
_RTOL = {4: 1e-5, 8: 1e-10}

# Methods that "auto" tries in this order, until a method converges. Each has a limit of iterations, because a solve
# that needs more iterations is unlikely to converge at all.
_MAXITER = {"maxiter": 20_000}
_GMRES = {"restart": 50, "maxiter": 400}
_DEFINITE = (("cg", _MAXITER), ("gmres", _GMRES))
_HERMITIAN = (("minres", _MAXITER), ("gmres", _GMRES))
_GENERAL = (("bicgstab", _MAXITER), ("gmres", _GMRES))
_METHODS = ("cg", "minres", "bicgstab", "gmres", "fgmres")


class AcceleratedOperator(LinearOperator):  # type: ignore[misc]
    """A matrix for SciPy's own solvers, which then run at the speed of the device. `A.accelerated()` returns it.

    SciPy's vectors stay on the host, so its iterations cost far more than the products. But a SciPy solver that gets no
    `M` uses `A.psolve` as the preconditioner, and for this operator that is a complete solve on the device: `cg`,
    `cgs`, `bicg`, `bicgstab`, `gmres`, `lgmres`, `gcrotmk`, `tfqmr`, `minres` and `qmr` of `scipy.sparse.linalg` end
    after one to three of their iterations.

    Parameters
    ----------
    matrix : GpuSparseMatrix or a view of one, shape (N, N)
        The matrix; solves run on its device.
    method : {"auto", "cg", "minres", "bicgstab", "gmres", "fgmres"} or callable, optional
        A solver of `gsparse.linalg`, or a function with the same arguments. "auto" selects `cg` for a Hermitian matrix
        with a positive diagonal, `minres` for any other Hermitian matrix and `bicgstab` for the rest, with at most
        20,000 iterations. If that does not converge, `gmres` is tried, with ``restart=50`` and ``maxiter=400``. Later
        solves use only the solver that has converged, or the one with the smallest residual.
    M : operator, optional
        Preconditioner for `method`.
    rtol : float, optional
        Tolerance of `method`: the norm of the residual relative to the norm of the right-hand side (for `minres`,
        relative to the norm of the matrix times that of the solution). 1e-10 by default, 1e-5 in single precision.
    **options
        Other arguments of `method`.

    Attributes
    ----------
    last : SolveResult or None
        The result of the last solve on the device.

    Raises
    ------
    ShapeError
        If the matrix is not square.
    ValueError
        If there is no such method.

    Warns
    -----
    RuntimeWarning
        If a solve on the device does not converge. SciPy then continues from its result.

    Notes
    -----
    A callback is called for SciPy's iterations, not for those on the device: one to three times, the first time already
    with a solution of the accuracy `rtol`. `bicgstab` ends within its first iteration and does not call it. Strictly,
    an inexact solve is not a linear operator. At the default `rtol` this does not affect SciPy's solvers, except that
    `tfqmr` does not notice the remaining error of a solve, and its residual can be about ten times `rtol`. SciPy's
    `minres` accepts only positive definite preconditioners and raises for an indefinite matrix: use `gmres` for it.

    Examples
    --------
    >>> import numpy, scipy.sparse, scipy.sparse.linalg
    >>> from gsparse import GpuSparseMatrix
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> calls = []
    >>> x, info = scipy.sparse.linalg.cg(A.accelerated(), numpy.ones(50), callback=calls.append)
    >>> info, len(calls), bool(numpy.allclose(S @ x, 1))
    (0, 1, True)
    """

    def __init__(
        self,
        matrix: DeviceMatrix,
        method: str | Callable[..., Any] = "auto",
        M: Any = None,
        rtol: float | None = None,
        **options: Any,
    ) -> None:
        if matrix.shape[0] != matrix.shape[1]:
            raise ShapeError(f"expected square matrix, but got shape={matrix.shape}: use lsqr or lsmr")
        dtype = np.dtype(matrix.dtype if matrix.dtype.kind in "fc" else np.float64)
        super().__init__(dtype, matrix.shape)
        self.matrix, self.M = matrix, M
        self.last: SolveResult | None = None
        self.rtol = _RTOL[8 if dtype.name in ("float64", "complex128") else 4] if rtol is None else rtol
        with SquareMatrix.of(matrix, "accelerated", finite=False) as square:
            self._is_hermitian, is_positive = square.is_hermitian(), square.has_positive_diagonal()
        if method == "auto":
            candidates = (_DEFINITE if is_positive else _HERMITIAN) if self._is_hermitian else _GENERAL
            self._methods = [(_find_solver(name), {**bounds, **options}) for name, bounds in candidates]
        else:
            self._methods = [(_find_solver(method) if isinstance(method, str) else method, options)]

    # ---------------------------------------------------- SciPy's LinearOperator interface

    def _matvec(self, x: Array) -> Array:
        return self.matrix.matvec(x)

    def _rmatvec(self, x: Array) -> Array:
        return self.matrix.rmatvec(x)

    def _matmat(self, X: Array) -> Array:
        return self.matrix.matmat(X)

    def _rmatmat(self, X: Array) -> Array:
        return self.matrix.rmatmat(X)

    # --------------------- Methods that SciPy's solvers look for in a matrix that has a preconditioner

    def psolve(self, b: npt.NDArray[Any], which: str = "left") -> npt.NDArray[Any]:
        """Solve A·x = b on the device.

        Parameters
        ----------
        b : ndarray, shape (N,) or (N, 1)
            On the host.
        which : {"left", "right"}
            `qmr` asks for two factors of the preconditioner. The right factor is the identity: the result is b.

        Returns
        -------
        ndarray, shape (N,) or (N, 1)
            On the host. Synchronizes.
        """
        return b if which == "right" else self._solve(b, adjoint=False)

    def rpsolve(self, b: npt.NDArray[Any], which: str = "left") -> npt.NDArray[Any]:
        """Solve Aᴴ·x = b on the device.

        Parameters
        ----------
        b : ndarray, shape (N,) or (N, 1)
            On the host.
        which : {"left", "right"}
            As for `psolve`.

        Returns
        -------
        ndarray, shape (N,) or (N, 1)
            On the host. Synchronizes.
        """
        return b if which == "right" else self._solve(b, adjoint=not self._is_hermitian)

    def _solve(self, b: npt.NDArray[Any], adjoint: bool) -> npt.NDArray[Any]:
        device = self.matrix.device
        with device.active(), device.memory_guard():
            right = device.upload(b.reshape(-1).astype(np.result_type(b.dtype, self.dtype), copy=False))
            if not np.isfinite(b).all():
                return np.full_like(b, np.nan, dtype=right.dtype)
            x = self._try_methods(right, adjoint).x
            return device.download_vector(x).reshape(b.shape)

    def _try_methods(self, right: Array, adjoint: bool) -> SolveResult:
        """Solve for a right-hand side on the device. Try one method after the other until one converges.

        Later solves use only the method that converged; if none did, the method that reached the smallest residual.
        """
        A = self.matrix.H if adjoint else self.matrix
        M = self.M if self.M is None or not adjoint else AdjointOperator(as_operator(self.M, self.matrix.device, "M"))
        attempts = []
        for method, options in self._methods:
            result: SolveResult = method(A, right, rtol=self.rtol, M=M, full_output=True, **options)
            finite = result.residuals[np.isfinite(result.residuals)]
            attempts.append((result.info != 0, float(finite[-1]) if finite.size else np.inf, result, (method, options)))
            if result.info == 0:
                break
        is_inexact, _, self.last, best_method = min(attempts, key=lambda attempt: attempt[:2])
        self._methods = [best_method]
        if is_inexact:
            cause = f"{self.last.reason}. {self.last.advice}"
            text = f"the solve on the device was inexact, and SciPy's solver continues from it: {cause}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        return self.last


def _find_solver(method: str) -> Callable[..., Any]:
    if method not in _METHODS:
        raise ValueError(f"method must be auto, a function or one of {', '.join(_METHODS)}, got {method!r}")
    return find_method(method, "solver").function
