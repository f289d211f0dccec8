"""How ranks compute their rows of a matrix from matrices that they have."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.worker.rank import find_rank, rank_key

# The operations, by the name that the client sends.
_OPERATIONS: Mapping[str, Callable[..., RankMatrix]] = {
    "product": operator.matmul,
    "sum": operator.add,
    "difference": operator.sub,
    "multiple": operator.mul,
    "quotient": operator.truediv,
    "negative": operator.neg,
    "transpose": RankMatrix.transpose,
    "adjoint": RankMatrix.adjoint,
    "with data": RankMatrix.with_data,
}


@dataclass(frozen=True)
class Computation:
    """A matrix as the result of an operation, instead of its rows. All ranks compute their rows at the same time.

    Attributes
    ----------
    operation : str
    operands : tuple of str
        The keys of the matrices on the workers.
    arguments : tuple
        Further arguments of the operation: a number, or this rank's values.
    """

    operation: str
    operands: tuple[str, ...]
    arguments: tuple[Any, ...] = ()

    def matrix(self, rank: int, communicator: Communicator, columns: RowPartition) -> RankMatrix:
        """Return the result, which is connected by the first operand's communicator; its columns have these owners."""
        ranks = [find_rank(rank_key(key, rank)) for key in self.operands]
        operands = [operand.require_matrix().over(communicator) for operand in ranks]
        return _OPERATIONS[self.operation](*operands, *self.arguments).with_columns(columns)
