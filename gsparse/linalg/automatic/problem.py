"""The system of an automatic solve on its device: true residuals, and the best solution so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.norms import norm
from gsparse.linalg.operators import Operator

HostArray = npt.NDArray[Any]

# A least-squares solution is one where norm(Aᴴ·r) is at most this part of norm(A)·norm(r), or rtol if that is larger.
_NORMAL_TOLERANCE = 1e-7


@dataclass(eq=False)
class LinearProblem:
    """A·X = B, with a tolerance for each column.

    If x is to be damped, A and B are those of the caller with the rows damp·I and zeros below: the solution of these
    equations by least squares minimizes norm(b − A·x)² + damp²·norm(x)².

    Attributes
    ----------
    A : Operator
    matrix : GpuSparseMatrix or None
        A, if its entries can be read.
    system : LinearSystem
        B and the initial guess on the device, one column after the other.
    tolerances : ndarray, shape (columns,)
        The norm that each column of B − A·X has to reach.
    rtol : float
    x : array, shape (columns * num_cols,)
        The best solution so far.
    residuals : ndarray, shape (columns,)
        The norms of its true residuals.
    least_squares : bool
        Whether a solution that minimizes the residual is accepted as well.
    num_equations : int
        The number of rows of the caller's A.
    """

    A: Operator
    matrix: Any
    system: LinearSystem
    tolerances: npt.NDArray[np.float64]
    rtol: float
    least_squares: bool
    num_equations: int
    x: Array = field(init=False)
    residuals: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.norms = self.system.norms_of_b()
        kind = (self.device, self.system.dtype, self.columns)
        self._subtract = self._bind(*kind, adjoint=False)
        self._adjoint: Any = None
        self.x = self.system.x.copy()
        self.given_b, self.given_tolerances = self.system.b, self.tolerances
        self.residuals = self.true_residuals(self.x)

    def _bind(self, device: Device, dtype: np.dtype[Any], columns: int, *, adjoint: bool) -> Any:
        return self.A.bind(device, dtype, columns, adjoint=adjoint)

    @property
    def device(self) -> Device:
        return self.system.device

    @property
    def columns(self) -> int:
        return self.system.columns

    @property
    def is_solved(self) -> bool:
        return bool((self.residuals <= self.tolerances).all())

    @property
    def is_damped(self) -> bool:
        """Whether A has the rows of damping below those of the caller's matrix."""
        return self.num_equations < self.A.shape[0]

    @property
    def relative_residuals(self) -> npt.NDArray[np.float64]:
        """The norms of the true residuals over those of B; where B is zero, the norm of the residual itself.

        These are residuals of the caller's equations: if x is damped, they are computed anew, which synchronizes.
        """
        norms = self.residuals
        if self.is_damped:
            own = self.residual(self.x).reshape(self.columns, -1)[:, : self.num_equations]
            norms = self.system.norms(self.device.xp.ascontiguousarray(own).reshape(-1))
        return norms / np.where(self.norms == 0, 1, self.norms)

    def residual(self, x: Array) -> Array:
        """Return B − A·X."""
        product = self.device.xp.empty_like(self.system.b)
        self._subtract(x, product)
        residual: Array = self.system.b - product
        return residual

    def true_residuals(self, x: Array) -> npt.NDArray[np.float64]:
        """Return the norm of each column of B − A·X; infinite if it is not a number. Synchronizes."""
        with np.errstate(all="ignore"):
            norms = self.system.norms(self.residual(x))
        return np.where(np.isnan(norms), np.inf, norms)

    def replace_b(self, b: Array, tolerances: npt.NDArray[np.float64]) -> None:
        """Solve for another right-hand side, until `accept` puts the one of the caller back. Synchronizes."""
        self.system.b, self.tolerances = b, tolerances
        self.residuals = self.true_residuals(self.x)

    def accept(self, x: Array) -> None:
        """Keep this solution, whatever its residuals, for the right-hand side of the caller. Synchronizes."""
        self.system.b, self.tolerances, self.x = self.given_b, self.given_tolerances, x
        self.residuals = self.true_residuals(x)

    def offer(self, x: Array) -> bool:
        """Keep those columns of a solution that are better than before. Return whether there are any. Synchronizes."""
        residuals = self.true_residuals(x)
        is_better = residuals < self.residuals
        if is_better.any():
            shape = (self.columns, -1)
            mask = self.device.upload(is_better)
            self.x = self.device.xp.where(mask[:, None], x.reshape(shape), self.x.reshape(shape)).reshape(-1)
            self.residuals = np.minimum(residuals, self.residuals)
        return bool(is_better.any())

    def is_least_squares_solution(self) -> bool:
        """Return whether Aᴴ·r is zero for every column, up to `_NORMAL_TOLERANCE` or rtol. Synchronizes."""
        if self.matrix is None:
            return False
        if self._adjoint is None:
            self._adjoint = self._bind(self.device, self.system.dtype, self.columns, adjoint=True)
        r = self.residual(self.x)
        product = self.device.xp.empty_like(self.x)
        self._adjoint(r, product)
        bounds = max(self.rtol, _NORMAL_TOLERANCE) * norm(self.matrix) * self.residuals
        return bool(((self.system.norms(product) <= bounds) | (self.residuals <= self.tolerances)).all())

    def as_columns(self, flat: Array) -> Array:
        """Return a vector, or a matrix of columns, as solvers take it."""
        return flat if self.columns == 1 else flat.reshape(self.columns, -1).T

    def as_flat(self, x: Array) -> Array:
        """Return what a solver has returned as one column after the other."""
        xp = self.device.xp
        return xp.ascontiguousarray(x.reshape(x.shape[0], -1).T).reshape(-1).astype(self.system.dtype, copy=False)
