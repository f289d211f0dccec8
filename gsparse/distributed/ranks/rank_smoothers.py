"""The matrices of the levels of multigrid over ranks, and their smoothers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.rank_operator import RankOperator
from gsparse.distributed.ranks.rank_rows import RankRows
from gsparse.kernels.steps import Call
from gsparse.linalg.multigrid.level_setup import LevelMatrix, MakeSmoothers
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.relaxation import BoundSmoother, Smoother
from gsparse.linalg.preconditioners.square_matrix import canonical_csr

# The smoothers whose steps multiply by the whole matrix. The others smooth the diagonal block of each rank, and
# multiply the entries in columns of other ranks by the x before their first step.
_WHOLE = ("jacobi", "l1_jacobi", "chebyshev")


@dataclass(frozen=True, eq=False)
class RankLevelMatrix(LevelMatrix):
    """A rank's rows of the matrix of a level. `csr` has the columns of `RankRows`, and `operator` is a `RankOperator`.

    Attributes
    ----------
    part : RankRows
    """

    part: RankRows

    @staticmethod
    def of_rows(part: RankRows, operator: RankOperator) -> RankLevelMatrix:
        whole: Callable[..., RankLevelMatrix] = RankLevelMatrix  # `operator` is not one of the device alone
        return whole(part.context.device, part.csr, operator, part)

    def has_positive_diagonal(self) -> bool:
        """Return whether all elements of the diagonal on all ranks are positive. Synchronizes."""
        # Not a cached property: with Python 3.11, threads that are ranks would wait for each other's lock.
        key = RankLevelMatrix.has_positive_diagonal
        if key not in self.shared:
            self.shared[key] = self.part.context.all_ranks(super().has_positive_diagonal())
        is_positive: bool = self.shared[key]
        return is_positive

    def own_block(self) -> LevelMatrix:
        """Return the block of the rank's rows and columns, as a matrix of its own."""
        diagonal = self.operator.diagonal  # type: ignore[attr-defined]
        csr = canonical_csr(diagonal)
        return LevelMatrix(self.device, csr, MatrixOperator(diagonal))


def smoothers_over_ranks(
    make: MakeSmoothers, name: str
) -> Callable[[RankLevelMatrix, bool], tuple[Smoother, Smoother]]:
    """Return the function that makes the smoothers of a level over ranks.

    Parameters
    ----------
    make : callable
        The function that makes them for a matrix on one device.
    name : str
        The name of the smoother, or "auto".
    """

    def make_over_ranks(matrix: RankLevelMatrix, hermitian: bool) -> tuple[Smoother, Smoother]:
        is_polynomial = name == "auto" and hermitian and matrix.has_positive_diagonal()
        if is_polynomial or name in _WHOLE:
            return make(matrix, hermitian)
        block = matrix.own_block()
        before, after = (_BlockSmoother(s.name, s, block.operator) for s in make(block, False))
        return before, after

    return make_over_ranks


@dataclass(frozen=True, eq=False)
class _BlockSmoother(Smoother):
    """Smooths the rows of each rank by themselves: x += S(b - A·x), where S smooths A's diagonal block from zero.

    Attributes
    ----------
    smoother : Smoother
        S.
    block : MatrixOperator
        The diagonal block.
    """

    name: str
    smoother: Smoother
    block: MatrixOperator

    def __str__(self) -> str:
        return f"{self.smoother}, on each rank"

    def bind(self, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> BoundSmoother:
        return _BoundBlockSmoother(self, passes, operator, adjoint)

    def mirrored(self) -> _BlockSmoother:
        return replace(self, smoother=self.smoother.mirrored())


class _BoundBlockSmoother(BoundSmoother):
    """Traffic in vectors, besides that of the smoother of the block: 6 from x, none from zero."""

    def __init__(self, smoother: _BlockSmoother, passes: VectorPasses, operator: MatrixOperator, adjoint: bool) -> None:
        super().__init__(passes, operator, adjoint)
        self._smoother = smoother.smoother.bind(passes, smoother.block, adjoint)
        size = smoother.block.shape[0]
        self._correction, self._work = passes.vector(size), passes.vector(size)

    def _relax(self, x: Array, b: Array, r: Array, guess: bool) -> list[Call]:
        if not guess:
            return self._smoother.calls(x, b, r, guess=False, residual=False)
        smooth = self._smoother.calls(self._correction, r, self._work, guess=False, residual=False)
        add = partial(self._passes.device.xp.add, x, self._correction, out=x)
        return [*self._residual(x, b, r), *smooth, add]
