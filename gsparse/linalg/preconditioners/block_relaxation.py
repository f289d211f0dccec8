"""Block Jacobi as a smoother: relaxation with the inverses of dense blocks on the diagonal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.diagonal import block_diagonal
from gsparse.linalg.preconditioners.relaxation import OperatorRelaxation
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

__all__ = ["block_relaxation", "largest_block_eigenvalue"]

# Steps of the power method, and a factor for its estimate, which is a lower bound.
_POWER_STEPS = 15
_SAFETY = 1.1


def block_relaxation(
    matrix: SquareMatrix, inverses: Array, omega: float, subsets: Sequence[Array | None], name: str
) -> OperatorRelaxation:
    """Return steps x += ω·W·(b − A·x), where W is the block diagonal matrix of the inverses.

    Parameters
    ----------
    matrix : SquareMatrix
    inverses : array, shape (num_blocks, size, size)
    omega : float
    subsets : sequence of array or None
        For each step: a mask of the blocks that it changes, or None for all of them.
    name : str
    """
    operators: dict[int, MatrixOperator] = {}
    for subset in subsets:
        if id(subset) not in operators:
            blocks = inverses if subset is None else inverses * subset[:, None, None]
            operators[id(subset)] = matrix.operator_of(block_diagonal(matrix, blocks))
    return OperatorRelaxation(name, tuple((omega, operators[id(subset)], False) for subset in subsets))


def largest_block_eigenvalue(matrix: SquareMatrix, inverses: Array) -> float:
    """Estimate the largest eigenvalue of W·A by the power method, with a margin. Synchronizes."""
    device, xp, dtype = matrix.device, matrix.device.xp, matrix.dtype
    if not matrix.size:
        return 1.0
    weights = matrix.operator_of(block_diagonal(matrix, inverses)).bind(device, dtype)
    multiply = matrix.operator.bind(device, dtype)
    v = xp.cos(xp.arange(matrix.size, dtype=np.float64) ** 2).astype(dtype)  # looks random, has all frequencies
    w, norm = xp.empty_like(v), 1.0
    for _ in range(_POWER_STEPS):
        v /= xp.linalg.norm(v)
        multiply(v, w)
        weights(w, v)
        norm = float(xp.linalg.norm(v))  # synchronizes
        if not norm:
            return 1.0
    return _SAFETY * norm
