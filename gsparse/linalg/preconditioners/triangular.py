"""Solves with I + N for a strictly triangular N: exactly, level by level, or by a fixed number of Jacobi sweeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Self

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.calls import Call
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.square_matrix import operator_of

SOLVES = ("levels", "jacobi")
# ``solve(x, y)`` returns the calls that write the solution for the right-hand side x into y.
Solve = Callable[[Array, Array], list[Call]]


class UnitTriangularMatrix:
    """The matrix I + N on a device.

    Parameters
    ----------
    device : Device
    size : int
        Number of rows.
    csr : Csr
        N.
    solve : {"levels", "jacobi"}
    sweeps : int
        Number of Jacobi sweeps.
    upper : bool
        Whether N is above the diagonal.
    """

    def __init__(self, device: Device, size: int, csr: Csr, solve: str, sweeps: int, *, upper: bool) -> None:
        self._device, self._size, self._csr = device, size, csr
        self._solve, self._sweeps, self._upper = solve, sweeps, upper
        # What matrices of this structure share, by name: levels, the transpose, the matrix that multiplies.
        self._shared: dict[Any, Any] = {}

    def with_data(self, data: Array) -> Self:
        """Return the matrix with the same structure and other values, which shares what depends on the structure."""
        other = type(self)(
            self._device, self._size, self._csr.with_data(data), self._solve, self._sweeps, upper=self._upper
        )
        other._shared = self._shared
        return other

    @property
    def nnz(self) -> int:
        """Number of entries of N."""
        return self._csr.nnz

    def bind(self, passes: VectorPasses, *, adjoint: bool) -> Solve:
        """Prepare for solves with I + N, or with its adjoint."""
        prepare = {"levels": self._solve_by_levels, "jacobi": self._solve_by_sweeps}[self._solve]
        return prepare(passes, adjoint)

    def _find_shared(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    @cached_property
    def _operator(self) -> MatrixOperator:
        known: MatrixOperator | None = self._shared.get("operator")
        # A matrix with other values shares the structure with the one before, and what was made of it.
        if known is None:
            operator = operator_of(self._device, self._csr)
        else:
            operator = MatrixOperator(known.matrix.with_data(self._csr.data))
        self._shared["operator"] = operator
        return operator

    @property
    def _transposed_numbers(self) -> Csr:
        """The transpose, with the position of each entry of N as its value."""
        device, csr = self._device, self._csr
        numbers = Csr(csr.shape, csr.indptr, csr.indices, device.xp.arange(csr.nnz))
        transposed: Csr = self._find_shared(
            "transposed", lambda: kernels_of(device).transpose.csr_transpose(device, numbers)
        )
        return transposed

    @cached_property
    def _adjoint(self) -> Csr:
        transposed = self._transposed_numbers
        return transposed.with_data(self._device.xp.conj(self._csr.data[transposed.data]))

    def _solve_by_levels(self, passes: VectorPasses, adjoint: bool) -> Solve:
        """Solve level by level, or row after row where one thread does it."""
        device, upper, kernels = passes.device, self._upper != adjoint, kernels_of(passes.device)
        csr, levels = self._adjoint if adjoint else self._csr, None
        if kernels.triangular.NEEDS_LEVELS:
            levels = self._find_shared(
                ("levels", adjoint), lambda: kernels.triangular.triangular_levels(device, csr, upper)
            )
        csr = csr.with_data(csr.data.astype(passes.dtype, copy=False))
        solve = self._bind_solver(csr, levels, passes.columns, upper)
        return lambda x, y: [partial(solve, x, y)]

    def _bind_solver(
        self, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        bind: Callable[..., Callable[[Array, Array], None]] = kernels_of(self._device).triangular.triangular_solver
        return bind(self._device, csr, levels, columns, upper)

    def _solve_by_sweeps(self, passes: VectorPasses, adjoint: bool) -> Solve:
        """Repeat y = x - N·y, beginning with y = x."""
        kind = (passes.device, passes.dtype, passes.columns)
        subtract = self._operator.bind(*kind, adjoint=adjoint, alpha=-1, beta=1)
        buffer = passes.vector(self._size)

        def build(x: Array, y: Array) -> list[Call]:
            calls, source = [], x
            for num_left in reversed(range(self._sweeps)):
                target = buffer if num_left % 2 else y  # the target of the last sweep is y
                calls.append(passes.bind("copy", x=target, b=x))
                calls.append(partial(subtract, source, target))
                source = target
            return calls

        return build
