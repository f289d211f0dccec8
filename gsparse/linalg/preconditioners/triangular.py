"""Solves with I + N for a strictly triangular N: exactly, level by level, or by a fixed number of Jacobi sweeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.calls import Call
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

__all__ = ["SOLVES", "Solve", "UnitTriangularMatrix", "levels_of"]

# How to solve.
SOLVES = ("levels", "jacobi")
# ``solve(x, y)`` returns the calls that write the solution for the right-hand side x into y.
Solve = Callable[[Array, Array], list[Call]]


class UnitTriangularMatrix:
    """The matrix I + N on a device.

    Parameters
    ----------
    matrix : SquareMatrix
        The matrix of which I + N is a factor.
    csr : Csr
        N.
    solve : {"levels", "jacobi"}
    sweeps : int
        Number of Jacobi sweeps.
    upper : bool
        Whether N is above the diagonal.
    """

    def __init__(self, matrix: SquareMatrix, csr: Csr, solve: str, sweeps: int, *, upper: bool) -> None:
        self._matrix, self._csr, self._solve, self._sweeps, self._upper = matrix, csr, solve, sweeps, upper

    @property
    def nnz(self) -> int:
        """Number of entries of N."""
        return self._csr.nnz

    def bind(self, passes: VectorPasses, *, adjoint: bool) -> Solve:
        """Prepare for solves with I + N, or with its adjoint."""
        prepare = {"levels": self._solve_by_levels, "jacobi": self._solve_by_sweeps}[self._solve]
        return prepare(passes, adjoint)

    @cached_property
    def _operator(self) -> Any:
        return self._matrix.operator_of(self._csr)

    @cached_property
    def _adjoint(self) -> Csr:
        device = self._matrix.device
        csr: Csr = kernels_of(device).csr_transpose(device, self._csr)
        return csr.with_data(device.xp.conj(csr.data))

    def _solve_by_levels(self, passes: VectorPasses, adjoint: bool) -> Solve:
        """Solve level by level, or row after row where one thread does it."""
        device, upper = passes.device, self._upper != adjoint
        csr = self._adjoint if adjoint else self._csr
        levels = levels_of(device, csr, upper=upper) if kernels_of(device).NEEDS_LEVELS else None
        csr = csr.with_data(csr.data.astype(passes.dtype, copy=False))
        solve = self._bind_solver(csr, levels, passes.columns, upper)
        return lambda x, y: [partial(solve, x, y)]

    def _bind_solver(
        self, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        device = self._matrix.device
        solve: Callable[[Array, Array], None] = kernels_of(device).triangular_solver(
            device, csr, levels, columns, upper
        )
        return solve

    def _solve_by_sweeps(self, passes: VectorPasses, adjoint: bool) -> Solve:
        """Repeat y = x - N·y, beginning with y = x."""
        kind = (passes.device, passes.dtype, passes.columns)
        subtract = self._operator.bind(*kind, adjoint=adjoint, alpha=-1, beta=1)
        buffer = passes.vector(self._matrix.size)

        def build(x: Array, y: Array) -> list[Call]:
            calls, source = [], x
            for num_left in reversed(range(self._sweeps)):
                target = buffer if num_left % 2 else y  # the target of the last sweep is y
                calls.append(passes.bind("copy", x=target, b=x))
                calls.append(partial(subtract, source, target))
                source = target
            return calls

        return build


def levels_of(device: Device, csr: Csr, *, upper: bool) -> Levels:
    """Compute the levels of a strictly triangular matrix on the host, and copy them to the device. Synchronizes."""
    from gsparse.kernels.cpu.triangular import order_levels  # imports numba, so only if needed

    indptr, indices = (device.download(part) for part in (csr.indptr, csr.indices))
    levels = order_levels(indptr, indices, upper)
    return Levels(device.upload(levels.order), levels.bounds)
