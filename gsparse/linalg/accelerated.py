"""SciPy's own solvers at the speed of the device: an operator whose preconditioner is a whole solve."""

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
from gsparse.linalg.operators import Apply, Operator, as_operator
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import find_method
from gsparse.linalg.result import SolveResult
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix

__all__ = ["AcceleratedOperator"]

# Tight enough that SciPy's own tolerance is met in one to three of its steps, within reach on ill-conditioned problems.
_RTOL = {4: 1e-5, 8: 1e-10}

# Methods that "auto" tries, each where the one before has not converged, with bounds on iterations so that the next one
# has its turn: whatever has not converged by then hardly will.
_MAXITER = {"maxiter": 20_000}
_GMRES = {"restart": 50, "maxiter": 400}
_DEFINITE = (("cg", _MAXITER), ("gmres", _GMRES))
_HERMITIAN = (("minres", _MAXITER), ("gmres", _GMRES))
_GENERAL = (("bicgstab", _MAXITER), ("gmres", _GMRES))
_METHODS = ("cg", "minres", "bicgstab", "gmres", "fgmres")


class AcceleratedOperator(LinearOperator):  # type: ignore[misc]
    """A matrix for SciPy's own solvers, which then run at the speed of the device; `A.accelerated()` gives it.

    SciPy's vectors stay on the host, so its iterations cost far more than products do. But where a solver gets no `M`,
    it takes `A.psolve` for the preconditioner, and the one of this operator is a whole solve on the device: `cg`,
    `cgs`, `bicg`, `bicgstab`, `gmres`, `lgmres`, `gcrotmk`, `tfqmr`, `minres` and `qmr` of `scipy.sparse.linalg` end
    after one to three of their iterations.

    Parameters
    ----------
    matrix : GpuSparseMatrix or a view of one, shape (N, N)
        What is solved with, on its device.
    method : {"auto", "cg", "minres", "bicgstab", "gmres"} or callable, optional
        Of `gsparse.linalg`, or what is called like one of these. "auto" takes `cg` for a Hermitian matrix with a
        positive diagonal, `minres` for another Hermitian one and `bicgstab` for the rest; where that does not
        converge, `gmres`.
    M : operator, optional
        Preconditioner for `method`.
    rtol : float, optional
        What `method` gets: the residual of a solve on the device, by its right-hand side. 1e-10 by default, 1e-5 in
        single precision.
    **options
        Other arguments of `method`.

    Attributes
    ----------
    last : SolveResult or None
        How the last solve on the device went.

    Raises
    ------
    ShapeError
        Where the matrix is not square.
    ValueError
        Where the method is none.

    Warns
    -----
    RuntimeWarning
        Where a solve on the device does not converge; SciPy goes on from there.

    Notes
    -----
    A callback sees SciPy's iterations, not those on the device: one to three calls, the first already with a solution
    as good as `rtol` makes it; `bicgstab` ends within its first iteration and calls none. An inexact solve is no linear
    operator, strictly; at the default `rtol` no SciPy solver notices, but `tfqmr` does not see what a solve lacks, and
    its residual can be some ten times `rtol`. SciPy's `minres` takes positive definite preconditioners only, so it
    raises for an indefinite matrix: use `gmres` there.

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
        self._is_hermitian, is_positive = _structure(matrix)
        if method == "auto":
            chosen = (_DEFINITE if is_positive else _HERMITIAN) if self._is_hermitian else _GENERAL
            self._methods = [(_named(name), {**bounds, **options}) for name, bounds in chosen]
        else:
            self._methods = [(_named(method) if isinstance(method, str) else method, options)]

    # ------------------------------------------------- what SciPy asks of an operator

    def _matvec(self, x: Array) -> Array:
        return self.matrix.matvec(x)

    def _rmatvec(self, x: Array) -> Array:
        return self.matrix.rmatvec(x)

    def _matmat(self, X: Array) -> Array:
        return self.matrix.matmat(X)

    def _rmatmat(self, X: Array) -> Array:
        return self.matrix.rmatmat(X)

    # ------------------------------------------- what they take as the preconditioner

    def psolve(self, b: npt.NDArray[Any], which: str = "left") -> npt.NDArray[Any]:
        """Solve A·x = b on the device.

        Parameters
        ----------
        b : ndarray, shape (N,) or (N, 1)
            On the host.
        which : {"left", "right"}
            `qmr` asks for two factors; the right one is the identity.

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
            # SciPy comes with residuals of any size: solvers get length 1, far from underflow.
            norm = float(device.xp.linalg.norm(right))  # synchronizes
            if norm == 0 or not np.isfinite(norm):
                return np.full_like(b, norm, dtype=right.dtype)
            x = self._solved(right / norm, adjoint).x * norm
            return device.download_vector(x).reshape(b.shape)

    def _solved(self, right: Array, adjoint: bool) -> SolveResult:
        """Solve for a right-hand side of the device by the first method that can, else the best; others go."""
        A = self.matrix.H if adjoint else self.matrix
        M = self.M if self.M is None or not adjoint else _Adjoint(as_operator(self.M, self.matrix.device, "M"))
        tried = []
        for method, options in self._methods:
            found: SolveResult = method(A, right, rtol=self.rtol, M=M, full_output=True, **options)
            seen = found.residuals[np.isfinite(found.residuals)]
            tried.append((found.info != 0, float(seen[-1]) if seen.size else np.inf, found, (method, options)))
            if found.info == 0:
                break
        is_inexact, _, self.last, chosen = min(tried, key=lambda attempt: attempt[:2])
        self._methods = [chosen]
        if is_inexact:
            why = f"{self.last.reason}. {self.last.advice}"
            text = f"the solve on the device was inexact, SciPy's goes on from there: {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        return self.last


def _named(method: str) -> Callable[..., Any]:
    if method not in _METHODS:
        raise ValueError(f"method must be auto, a function or one of {', '.join(_METHODS)}, got {method!r}")
    return find_method(method, "solver").function


def _structure(matrix: DeviceMatrix) -> tuple[bool, bool]:
    """Tell whether a matrix is Hermitian, and whether its diagonal is positive too. Synchronizes."""
    with SquareMatrix.of(matrix, "accelerated", finite=False) as square:
        return square.is_hermitian(), bool((square.diagonal.real > 0).all())


class _Adjoint(Operator):
    """The adjoint of an operator."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self.shape, self.dtype = operator, operator.shape[::-1], operator.dtype
        self.is_resident = operator.is_resident

    def home(self) -> Device:
        return self._operator.home()

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        return self._operator.bind(device, dtype, columns, adjoint=not adjoint)
