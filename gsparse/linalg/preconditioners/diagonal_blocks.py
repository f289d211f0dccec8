"""The inverses of dense blocks on the diagonal of a matrix, and the relaxation steps that multiply by them."""

from __future__ import annotations

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.calls import Call
from gsparse.kernels.relaxation import EVERY_GROUP, FROM_ZERO, MAX_INVERSE
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.square_matrix import MAX_ERROR, SquareMatrix, solve_batch
from gsparse.linalg.random_vectors import hashed_vector

# Steps of the power method, and a factor for its estimate, which is usually too small.
_POWER_STEPS = 15
_SAFETY = 1.1


class BlockStep:
    """Steps x += ω·W·(b - r), where W is a block diagonal matrix, bound to vectors of one dtype.

    Parameters
    ----------
    passes : VectorPasses
    weights : array, shape (num_blocks, size, size)
        The blocks of W. The last one may be filled up.
    adjoint : bool
        Whether the adjoint of W is meant.
    """

    def __init__(self, passes: VectorPasses, weights: Array, adjoint: bool) -> None:
        xp, self._passes = passes.device.xp, passes
        transposed = xp.conj(weights) if adjoint else weights.swapaxes(1, 2)
        self._columns = xp.ascontiguousarray(transposed.astype(passes.dtype, copy=False))

    def bind(
        self, omega: float, b: Array, x: Array, r: Array, *, start: str = EVERY_GROUP, copies: bool = False
    ) -> Call:
        """Bind a step to its vectors, see `bind_block_step` of `gsparse.kernels.relaxation`."""
        device = self._passes.device
        vectors = b, x, r, self._passes.columns
        call: Call = kernels_of(device).diagonal_blocks.bind_block_step(
            device, self._columns, omega, *vectors, start, copies
        )
        return call


def inverse_blocks(matrix: SquareMatrix, size: int, name: str) -> Array:
    """Return the inverses of the diagonal blocks, of shape (number of blocks, size, size). Synchronizes.

    The last block is padded with the identity.

    Raises
    ------
    FactorizationError
        If a block is singular. `name` is the method that needs the inverses.
    """
    device, csr = matrix.device, matrix.csr
    if size < 1:
        raise ValueError(f"{name}: block_size must be at least 1, got {size}")
    if size <= MAX_INVERSE:
        inverses, is_good = kernels_of(device).diagonal_blocks.invert_blocks(
            device, csr, size, matrix.FILLS_EMPTY_ROWS, MAX_ERROR
        )
    else:
        blocks = _large_blocks(matrix, size)
        inverses, is_good = solve_batch(
            device.xp, blocks, device.xp.broadcast_to(device.xp.eye(size, dtype=csr.dtype), blocks.shape)
        )
    singular = kernels_of(device).reductions.first_where(device, is_good, "zero")
    if singular is not None:
        raise FactorizationError(
            f"{name}: the block of rows {singular * size} to {min((singular + 1) * size, matrix.size) - 1} is "
            "singular: use another block_size, or isai(A)"
        )
    result: Array = inverses
    return result


def num_block_entries(blocks: Array, size: int) -> int:
    """Return the number of elements of diagonal blocks that lie in a matrix with `size` rows."""
    count, rows, _ = blocks.shape
    last = size - (count - 1) * rows
    return (count - 1) * rows**2 + last**2 if count else 0


def _large_blocks(matrix: SquareMatrix, size: int) -> Array:
    """Return the diagonal blocks. Rows past the end are rows of the identity, and so are empty ones where allowed."""
    xp, csr, count = matrix.device.xp, matrix.csr, -(-matrix.size // size)
    blocks = xp.zeros((count, size, size), matrix.dtype)
    inside = matrix.rows // size == csr.indices // size
    rows, columns = matrix.rows[inside], csr.indices[inside]
    blocks[rows // size, rows % size, columns % size] = csr.data[inside]
    is_filled = xp.arange(count * size) >= matrix.size
    if matrix.FILLS_EMPTY_ROWS:
        is_filled |= (xp.abs(blocks).max(axis=2) == 0).reshape(-1)
    places = xp.flatnonzero(is_filled)  # synchronizes
    blocks[places // size, places % size, places % size] = 1
    return blocks


def largest_block_eigenvalue(matrix: SquareMatrix, inverses: Array) -> float:
    """Estimate the largest eigenvalue of W·A, with the `inverses` as W, by the power method. Synchronizes.

    The estimate includes a margin.
    """
    device, xp, dtype = matrix.device, matrix.device.xp, matrix.dtype
    if not matrix.size:
        return 1.0
    multiply = matrix.operator.bind(device, dtype)
    v = hashed_vector(device, matrix.size, dtype)
    w, norm = xp.empty_like(v), 1.0
    weigh = BlockStep(VectorPasses(device, dtype, 1), inverses, adjoint=False).bind(1.0, w, v, v, start=FROM_ZERO)
    for _ in range(_POWER_STEPS):
        v /= xp.linalg.norm(v)
        multiply(v, w)
        weigh()
        norm = float(xp.linalg.norm(v))  # synchronizes
        if not norm:
            return 1.0
    return _SAFETY * norm
