"""Smoothers: sequences of steps x += N·(b − A·x). Jacobi, Richardson and Chebyshev differ in their weights ω."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call
from gsparse.linalg.operators import Apply, MatrixOperator
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, VectorPasses
from gsparse.linalg.preconditioners.square_matrix import DIAGONAL_RANGE, SquareMatrix

# ``relax(x, b, r, guess, residual)`` returns the calls that relax x. r is a work vector. Without `guess`, x starts as
# zero. With `residual`, the caller needs b − A·x afterwards, and the calls leave in r what `Smoother.leaves` says.
Relax = Callable[[Array, Array, Array, bool, bool], list[Call]]
# ``step(omega, x, b, r, begins, copies)`` returns the call x += ω·W·(b − r). With `begins`, x starts as zero and r is
# not read. With `copies`, the call also copies b to r.
BindStep = Callable[[float, Array, Array, Array, bool, bool], Call]


class Smoother(ABC):
    """A stationary iterative method for one matrix.

    Attributes
    ----------
    name : str
        Name of the method.
    replaces : str
        Name of the requested method that this one replaces, because no device runs it or because it is slower for the
        matrix; empty if there is none.
    """

    name: str
    replaces: str = ""

    def __str__(self) -> str:
        return f"{self.name} instead of {self.replaces}" if self.replaces else self.name

    def bind(self, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> BoundSmoother:
        """Return this smoother for vectors of one dtype. `operator` is the matrix.

        With `adjoint`, return the adjoint of this smoother: the adjoint matrix is used, and the steps run in reverse
        order.
        """
        return BoundSmoother(self, passes, operator, adjoint)

    @abstractmethod
    def relaxation(self, bound: BoundSmoother) -> Relax:
        """Allocate memory for the vectors of `bound`, and return the `Relax` function."""

    def leaves(self, adjoint: bool) -> Literal["nothing", "b", "the residual"]:
        """Return what the calls of `relaxation` leave in the work vector r if their argument `residual` is true."""
        return "nothing"

    def mirrored(self) -> Smoother:
        """Return the postsmoother that, after this presmoother, makes the cycle of a Hermitian A Hermitian."""
        return self


class BoundSmoother:
    """A smoother that is bound to vectors of one dtype, on one device; see `Smoother.bind`."""

    def __init__(self, smoother: Smoother, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> None:
        self.passes, self.adjoint, self._operator = passes, adjoint, operator
        self._subtract: Apply | None = None
        self._relax, self._leaves = smoother.relaxation(self), smoother.leaves(adjoint)

    def calls(self, x: Array, b: Array, r: Array, *, guess: bool, residual: bool) -> list[Call]:
        """Return the calls that relax x.

        Without `guess`, x starts as zero, whatever the array contains. With `residual`, the last calls write b − A·x
        into r. The other calls use r as a work vector.
        """
        calls = self._relax(x, b, r, guess, residual)
        if not residual or self._leaves == "the residual":
            return calls
        return [*calls, *self.residual(x, b, r)[self._leaves == "b" :]]

    def residual(self, x: Array, b: Array, r: Array) -> list[Call]:
        """Return the call that copies b to r, and the call r -= A·x."""
        if self._subtract is None:
            self._subtract = self.product(alpha=-1, beta=1)
        return [self.passes.bind("copy", x=r, b=b), partial(self._subtract, x, r)]

    def product(self, **options: Any) -> Apply:
        bind: Callable[..., Apply] = self._operator.bind
        passes = self.passes
        return bind(passes.device, passes.dtype, passes.columns, adjoint=self.adjoint, **options)


@dataclass(frozen=True, eq=False)
class StepRelaxation(Smoother):
    """A sequence of steps x += ω·W·(b − A·x). The postsmoother has the same steps in reverse order.

    Attributes
    ----------
    name : str
    steps : tuple of tuple
        For each step ω, and what describes W: nothing for W = 1, otherwise as the subclass says.
    """

    name: str
    steps: tuple[Any, ...]
    replaces: str = ""

    def __str__(self) -> str:
        count = len(self.steps)
        return f"{super().__str__()}, {count} step{'s' if count > 1 else ''}" if count else self.name

    def mirrored(self) -> Self:
        return replace(self, steps=self.steps[::-1])

    def leaves(self, adjoint: bool) -> Literal["nothing", "b", "the residual"]:
        return "b"

    def bind_weights(self, bound: BoundSmoother, weights: Any) -> BindStep:
        """Return the function that makes the calls of steps with this W, given by `weights`."""
        raise NotImplementedError

    def relaxation(self, bound: BoundSmoother) -> Relax:
        steps = (self.mirrored() if bound.adjoint else self).steps
        binders = {id(weights): self.bind_weights(bound, weights) for _, weights in steps}
        multiply = bound.product()

        def relax(x: Array, b: Array, r: Array, guess: bool, residual: bool) -> list[Call]:
            calls: list[Call] = []
            for number, (omega, weights) in enumerate(steps):
                begins = number == 0 and not guess
                calls += [] if begins else [partial(multiply, x, r)]
                copies = residual and number == len(steps) - 1
                calls.append(binders[id(weights)](omega, x, b, r, begins, copies))
            return calls

        return relax


class Relaxation(StepRelaxation):
    """Steps whose W is a diagonal, or the identity.

    Attributes
    ----------
    steps : tuple of (float, array or None)
        ω and the diagonal of W, or None for the identity. A constant diagonal is a factor of ω instead, which saves
        reading a vector. Where the diagonal is zero, the step does not change the unknown.

    Notes
    -----
    Vectors read or written, besides the products: 3 in the first step from x = 0 and 6 in every other step (without a
    diagonal, 2 and 5), and 3 in the residual after the last step.
    """

    @staticmethod
    def scaled(device: Device, omegas: tuple[float, ...], inverse_diagonal: Array, name: str) -> Relaxation:
        """Return a relaxation with a diagonal. If the diagonal is constant and real, ω is multiplied by the constant.

        Synchronizes.
        """
        differs, first_where = inverse_diagonal != inverse_diagonal[:1], kernels_of(device).reductions.first_where
        if inverse_diagonal.size and first_where(device, differs, "not zero") is None:
            factor = complex(inverse_diagonal[0])  # synchronizes
            if not factor.imag:
                return Relaxation(name, tuple((omega * factor.real, None) for omega in omegas))
        return Relaxation(name, tuple((omega, inverse_diagonal) for omega in omegas))

    @staticmethod
    def by_diagonal(matrix: SquareMatrix, omegas: tuple[float, ...], inverse_diagonal: Array, name: str) -> Relaxation:
        """Return a relaxation with the reciprocals of the diagonal. Synchronizes unless their range is known."""
        smallest, largest = matrix.shared.get(DIAGONAL_RANGE, (0.0, 0.0))
        if smallest == 0 or matrix.dtype.kind == "c":
            return Relaxation.scaled(matrix.device, omegas, inverse_diagonal, name)
        if smallest < largest:
            return Relaxation(name, tuple((omega, inverse_diagonal) for omega in omegas))
        factor = float(1 / matrix.dtype.type(smallest))
        return Relaxation(name, tuple((omega * factor, None) for omega in omegas))

    def mirrored(self) -> Self:
        # Polynomials in W·A commute, so steps with the same W need not be reversed.
        return super().mirrored() if len({id(weights) for _, weights in self.steps}) > 1 else self

    def bind_weights(self, bound: BoundSmoother, weights: Array | None) -> BindStep:
        passes, suffix = bound.passes, "" if weights is None else "_scaled"
        scale = {} if weights is None else {"d": passes.diagonal(weights, adjoint=bound.adjoint)}

        def step(omega: float, x: Array, b: Array, r: Array, begins: bool, copies: bool) -> Call:
            name = f"{'begin' if begins else 'relax'}{suffix}{'_residual' if copies else ''}"
            vectors = {"x": x, "b": b, **scale, **({"r": r} if copies or not begins else {})}
            return passes.bind(name, omega, **vectors)

        return step

    def relaxation(self, bound: BoundSmoother) -> Relax:
        if self.steps:
            return super().relaxation(bound)
        copy = partial(bound.passes.bind, "copy")
        return lambda x, b, r, guess, residual: [
            *([] if guess else [bound.passes.bind("begin", 0.0, x=x, b=b)]),
            *([copy(x=r, b=b)] if residual else []),
        ]


class OperatorRelaxation(StepRelaxation):
    """Steps whose W is a sparse matrix. Besides the products, a step reads or writes 6 vectors, or 1 from x = 0.

    Attributes
    ----------
    steps : tuple of (float, MatrixOperator, bool)
        ω, W, and whether to use the adjoint of W.
    """

    def leaves(self, adjoint: bool) -> Literal["nothing", "b", "the residual"]:
        return "nothing"

    def relaxation(self, bound: BoundSmoother) -> Relax:
        passes, steps = bound.passes, []
        for omega, weights, is_adjoint in (self.mirrored() if bound.adjoint else self).steps:
            kind = (passes.device, passes.dtype, passes.columns)
            bind = partial(weights.bind, *kind, adjoint=is_adjoint != bound.adjoint, alpha=omega)
            steps.append((bind(), bind(beta=1)))

        def relax(x: Array, b: Array, r: Array, guess: bool, residual: bool) -> list[Call]:
            calls: list[Call] = []
            for number, (begin, add) in enumerate(steps):
                is_first = number == 0 and not guess
                calls += [partial(begin, b, x)] if is_first else [*bound.residual(x, b, r), partial(add, r, x)]
            return calls

        return relax


class SmootherPreconditioner(MatrixPreconditioner):
    """A smoother as a preconditioner. Each product relaxes from x = 0."""

    _KEEPS_MATRIX = True

    def _set_values(self, matrix: SquareMatrix) -> None:
        super()._set_values(matrix)
        self._operator = matrix.operator

    def __repr__(self) -> str:
        end = f", on {self.device.name}>"
        return f"{super().__repr__().removesuffix(end)}: {self._values}{end}"

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        smoother, r = self._values.bind(passes, self._operator, adjoint), passes.vector(self.shape[0])
        return lambda x, y: smoother.calls(y, x, r, guess=False, residual=False)


def chebyshev_omegas(low: float, high: float, degree: int) -> tuple[float, ...]:
    """Return the weights ω of Chebyshev steps for eigenvalues between `low` and `high`.

    The weights are the reciprocals of the roots of the Chebyshev polynomial on this interval, in Leja's order, which
    keeps intermediate residuals small.
    """
    roots = 0.5 * (high + low) + 0.5 * (high - low) * np.cos(np.pi * (np.arange(degree) + 0.5) / degree)
    return tuple(float(1 / root) for root in in_leja_order(roots))


def in_leja_order(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sort points into Leja's order: each point has the largest product of distances to the points before it."""
    remaining = list(np.sort(points)[::-1])
    ordered = [remaining.pop(0)] if remaining else []
    while remaining:
        distances = [np.sum(np.log(np.abs(point - np.array(ordered)) + np.finfo(float).tiny)) for point in remaining]
        ordered.append(remaining.pop(int(np.argmax(distances))))
    return np.array(ordered)
