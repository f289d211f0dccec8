"""Block Jacobi as a smoother: relaxation with the inverses of dense blocks on the diagonal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from gsparse.device.dtypes import Array
from gsparse.kernels.calls import Call
from gsparse.kernels.relaxation import EVERY_GROUP, FROM_ZERO
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.diagonal_blocks import BlockStep
from gsparse.linalg.preconditioners.relaxation import BoundSmoother, Smoother


@dataclass(frozen=True, eq=False)
class BlockRelaxation(Smoother):
    """A sequence of at least one step x += ω·W·(b - A·x) with block diagonal matrices W.

    Attributes
    ----------
    name : str
    steps : tuple of (float, array)
        ω and W, of shape (num_blocks, size, size), for each step. The blocks are inverses of diagonal blocks of A, or 0
        where a step leaves the unknowns as they are.
    """

    name: str
    steps: tuple[tuple[float, Array], ...]
    replaces: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()}, {len(self.steps)} step{'s' if len(self.steps) > 1 else ''}"

    def bind(self, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> BoundSmoother:
        return _BoundBlockRelaxation(self, passes, operator, adjoint)

    def mirrored(self) -> BlockRelaxation:
        return replace(self, steps=self.steps[::-1])


class _BoundBlockRelaxation(BoundSmoother):
    """A relaxation with blocks, bound to vectors of one dtype.

    Traffic in vectors, not counting what the products and W read: 2 for the first step from x = 0, 5 for every other
    step, and 3 for the residual after the last step.
    """

    def __init__(
        self, relaxation: BlockRelaxation, passes: VectorPasses, operator: MatrixOperator, adjoint: bool
    ) -> None:
        super().__init__(passes, operator, adjoint)
        steps = relaxation.steps[::-1] if adjoint else relaxation.steps
        bound = {id(weights): BlockStep(passes, weights, adjoint) for _, weights in steps}
        self._steps = [(omega, bound[id(weights)]) for omega, weights in steps]
        self._multiply = self._product()

    def _relax(self, x: Array, b: Array, r: Array, guess: bool) -> list[Call]:
        return self.calls(x, b, r, guess=guess, residual=False)

    def calls(self, x: Array, b: Array, r: Array, *, guess: bool, residual: bool) -> list[Call]:
        calls: list[Call] = []
        for number, (omega, step) in enumerate(self._steps):
            begins = number == 0 and not guess
            if not begins:
                calls.append(partial(self._multiply, x, r))
            copies = residual and number == len(self._steps) - 1
            calls.append(step.bind(omega, b, x, r, start=FROM_ZERO if begins else EVERY_GROUP, copies=copies))
        return [*calls, self._subtract_product(x, r)] if residual else calls
