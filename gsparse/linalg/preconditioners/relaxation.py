"""Smoothers: sequences of steps x += N·(b − A·x). Jacobi, Richardson and Chebyshev differ in their weights ω."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call
from gsparse.linalg.operators import Apply, MatrixOperator
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, VectorPasses
from gsparse.linalg.preconditioners.square_matrix import DIAGONAL_RANGE, SquareMatrix


class Smoother(ABC):
    """A stationary iterative method for one matrix.

    Attributes
    ----------
    name : str
        Name of the method.
    replaces : str
        Name of the method that this one replaces, because no device runs that method or because this one is faster for
        the matrix; empty if there is none.
    """

    name: str
    replaces: str = ""

    def __str__(self) -> str:
        return f"{self.name} instead of {self.replaces}" if self.replaces else self.name

    @abstractmethod
    def bind(self, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> BoundSmoother:
        """Prepare for vectors of one dtype. `operator` is the matrix.

        With `adjoint`, the smoother is that of the adjoint matrix whose product is the adjoint of this smoother's: the
        steps follow each other in the reverse order.
        """

    def mirrored(self) -> Smoother:
        """Return the postsmoother that makes the cycle of a Hermitian A Hermitian if this is the presmoother."""
        return self


class BoundSmoother(ABC):
    """A smoother that is bound to vectors of one dtype, on one device.

    Parameters
    ----------
    passes : VectorPasses
    operator : MatrixOperator
    adjoint : bool
    """

    def __init__(self, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> None:
        self._passes, self._operator, self._adjoint = passes, operator, adjoint
        self._subtract: Apply | None = None

    @abstractmethod
    def _relax(self, x: Array, b: Array, r: Array, guess: bool) -> list[Call]:
        """Return the calls that relax x; r is a work vector."""

    def calls(self, x: Array, b: Array, r: Array, *, guess: bool, residual: bool) -> list[Call]:
        """Return the calls that relax x.

        Without `guess`, x begins as zero, whatever the array contains. With `residual`, the calls finally write
        b − A·x into r, which is a work vector before that.
        """
        return [*self._relax(x, b, r, guess), *(self._residual(x, b, r) if residual else [])]

    def _residual(self, x: Array, b: Array, r: Array) -> list[Call]:
        """Return the calls that write b − A·x into r."""
        return [self._passes.bind("copy", x=r, b=b), self._subtract_product(x, r)]

    def _subtract_product(self, x: Array, r: Array) -> Call:
        """Return the call r -= A·x."""
        if self._subtract is None:
            self._subtract = self._product(alpha=-1, beta=1)
        return partial(self._subtract, x, r)

    def _product(self, **options: Any) -> Apply:
        bind: Callable[..., Apply] = self._operator.bind
        passes = self._passes
        return bind(passes.device, passes.dtype, passes.columns, adjoint=self._adjoint, **options)


@dataclass(frozen=True, eq=False)
class Relaxation(Smoother):
    """A sequence of relaxation steps x += ω·D⁻¹(b − A·x), without the matrix.

    Attributes
    ----------
    omegas : tuple of float
        The weight ω of each step.
    inverse_diagonal : array or None
        D⁻¹, on the device; None stands for the identity. A constant D is contained in the weights instead, which saves
        reading a vector.
    name : str
    subsets : tuple of array
        If it is not empty: D⁻¹ of each step, with zeros at the unknowns that the step leaves as they are.
    """

    omegas: tuple[float, ...]
    inverse_diagonal: Array | None = None
    name: str = "none"
    subsets: tuple[Array, ...] = ()
    replaces: str = ""

    def __str__(self) -> str:
        count = len(self.omegas)
        return f"{super().__str__()}, {count} step{'s' if count > 1 else ''}" if count else self.name

    @staticmethod
    def scaled(device: Device, omegas: tuple[float, ...], inverse_diagonal: Array, name: str) -> Relaxation:
        """Return a relaxation with a diagonal, or without one if all its elements are the same real number.

        Synchronizes.
        """
        differs, first_where = inverse_diagonal != inverse_diagonal[:1], kernels_of(device).reductions.first_where
        if not inverse_diagonal.size or first_where(device, differs, "not zero") is not None:
            return Relaxation(omegas, inverse_diagonal, name)
        factor = complex(inverse_diagonal[0])  # synchronizes
        if factor.imag:
            return Relaxation(omegas, inverse_diagonal, name)
        return Relaxation._with_factor(omegas, factor.real, name)

    @staticmethod
    def by_diagonal(matrix: SquareMatrix, omegas: tuple[float, ...], inverse_diagonal: Array, name: str) -> Relaxation:
        """Return what `scaled` does for the reciprocals of the diagonal. Synchronizes unless its range is known."""
        smallest, largest = matrix.shared.get(DIAGONAL_RANGE, (0.0, 0.0))
        if smallest == 0 or matrix.dtype.kind == "c":
            return Relaxation.scaled(matrix.device, omegas, inverse_diagonal, name)
        if smallest < largest:
            return Relaxation(omegas, inverse_diagonal, name)
        return Relaxation._with_factor(omegas, float(1 / matrix.dtype.type(smallest)), name)

    @staticmethod
    def _with_factor(omegas: tuple[float, ...], factor: float, name: str) -> Relaxation:
        """Return a relaxation whose D⁻¹ is this number times the identity."""
        return Relaxation(tuple(omega * factor for omega in omegas), name=name)

    def bind(self, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> BoundSmoother:
        return _BoundRelaxation(self, passes, operator, adjoint)

    def mirrored(self) -> Relaxation:
        return replace(self, omegas=self.omegas[::-1], subsets=self.subsets[::-1]) if self.subsets else self


class _BoundRelaxation(BoundSmoother):
    """A relaxation of one matrix, bound to vectors of one dtype.

    Traffic in vectors, not counting what the products read: 3 for the first step from x = 0 and 6 for every other step
    (without a diagonal, 2 and 5), and 3 for the residual after the last step.
    """

    def __init__(self, relaxation: Relaxation, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> None:
        super().__init__(passes, operator, adjoint)
        if adjoint:
            relaxation = relaxation.mirrored()
        # Polynomials in D⁻¹A commute, so that their steps may keep their order.
        self._omegas, single = relaxation.omegas, relaxation.inverse_diagonal
        bound = {
            id(d): {"d": passes.diagonal(d, adjoint=adjoint)} for d in (single, *relaxation.subsets) if d is not None
        }
        diagonals = relaxation.subsets or (single,) * max(len(self._omegas), 1)
        self._scales: list[dict[str, Array]] = [bound.get(id(d), {}) for d in diagonals]
        self._multiply = self._product()

    def _relax(self, x: Array, b: Array, r: Array, guess: bool) -> list[Call]:
        return self.calls(x, b, r, guess=guess, residual=False)

    def calls(self, x: Array, b: Array, r: Array, *, guess: bool, residual: bool) -> list[Call]:
        omegas = self._omegas if guess else self._omegas or (0.0,)
        calls: list[Call] = []
        for step, (omega, scale) in enumerate(zip(omegas, self._scales, strict=False)):
            if step or guess:
                calls.append(partial(self._multiply, x, r))
            name = "relax" if step or guess else "begin"
            name += "_scaled" if scale else ""
            copies_b = residual and step == len(omegas) - 1
            vectors = {"x": x, "b": b, **scale, **({"r": r} if copies_b or step or guess else {})}
            calls.append(self._passes.bind(name + "_residual" if copies_b else name, omega, **vectors))
        if residual:
            calls += [] if omegas else [self._passes.bind("copy", x=r, b=b)]
            calls.append(self._subtract_product(x, r))
        return calls


@dataclass(frozen=True, eq=False)
class StepRelaxation(Smoother):
    """A sequence of steps, which follow each other in the reverse order after the coarse correction."""

    name: str
    steps: tuple[Any, ...]
    replaces: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()}, {len(self.steps)} step{'s' if len(self.steps) > 1 else ''}"

    def mirrored(self) -> Self:
        return replace(self, steps=self.steps[::-1])


class OperatorRelaxation(StepRelaxation):
    """A sequence of steps x += ω·W·(b − A·x) with matrices W, such as the inverses of diagonal blocks.

    Attributes
    ----------
    name : str
    steps : tuple of (float, MatrixOperator, bool)
        ω, W, and whether the adjoint of W is meant.
    """

    def bind(self, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> BoundSmoother:
        return _BoundOperatorRelaxation(self, passes, operator, adjoint)


class _BoundOperatorRelaxation(BoundSmoother):
    """Traffic in vectors, not counting what the products read: 6 for each step with a residual, 1 for one from zero."""

    def __init__(
        self, relaxation: OperatorRelaxation, passes: VectorPasses, operator: MatrixOperator, adjoint: bool
    ) -> None:
        super().__init__(passes, operator, adjoint)
        kind = (passes.device, passes.dtype, passes.columns)
        self._steps = []
        for omega, weights, is_adjoint in relaxation.steps[::-1] if adjoint else relaxation.steps:
            bind = partial(weights.bind, *kind, adjoint=is_adjoint != adjoint, alpha=omega)
            self._steps.append((bind(), bind(beta=1)))

    def _relax(self, x: Array, b: Array, r: Array, guess: bool) -> list[Call]:
        calls: list[Call] = []
        for number, (begin, add) in enumerate(self._steps):
            if number == 0 and not guess:
                calls.append(partial(begin, b, x))
            else:
                calls += [*self._residual(x, b, r), partial(add, r, x)]
        return calls


class SmootherPreconditioner(MatrixPreconditioner):
    """A smoother that begins with x = 0.

    Parameters
    ----------
    matrix : SquareMatrix
    make : callable
        ``make(matrix, smoother)`` returns the smoother of a matrix. `smoother` is that of the matrix before, which has
        the same structure, or None the first time.
    kind : str
    """

    _KEEPS_MATRIX = True

    def __init__(self, matrix: SquareMatrix, make: Callable[[SquareMatrix, Any], Smoother], kind: str) -> None:
        self._make = make
        self._smoother: Smoother | None = None
        super().__init__(matrix, kind)

    def _set_values(self, matrix: SquareMatrix) -> None:
        self._smoother = self._make(matrix, self._smoother)
        self._operator = matrix.operator

    def __repr__(self) -> str:
        end = f", on {self.device.name}>"
        return f"{super().__repr__().removesuffix(end)}: {self._smoother}{end}"

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        assert self._smoother is not None
        smoother, r = self._smoother.bind(passes, self._operator, adjoint), passes.vector(self.shape[0])
        return lambda x, y: smoother.calls(y, x, r, guess=False, residual=False)


def chebyshev_omegas(low: float, high: float, degree: int) -> tuple[float, ...]:
    """Return the weights that reduce errors of eigenvalues between `low` and `high` the most.

    They are the reciprocals of the roots of the Chebyshev polynomial on this interval, in Leja's order, in which
    intermediate residuals stay small.
    """
    roots = 0.5 * (high + low) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(degree) + 0.5) / degree)
    return tuple(float(1 / root) for root in in_leja_order(roots))


def in_leja_order(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sort points into Leja's order: each one maximizes the product of its distances to the previous ones."""
    remaining = list(np.sort(points)[::-1])
    ordered = [remaining.pop(0)] if remaining else []
    while remaining:
        distances = [np.sum(np.log(np.abs(point - np.array(ordered)) + np.finfo(float).tiny)) for point in remaining]
        ordered.append(remaining.pop(int(np.argmax(distances))))
    return np.array(ordered)
