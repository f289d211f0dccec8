"""Jacobi and block Jacobi: inverses of the diagonal or of its dense blocks, as preconditioners and as smoothers."""

from __future__ import annotations

from typing import Any

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import EVERY_GROUP, FROM_ZERO, MAX_INVERSE
from gsparse.kernels.steps import Call
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, VectorPasses
from gsparse.linalg.preconditioners.relaxation import BindStep, BoundSmoother, StepRelaxation
from gsparse.linalg.preconditioners.square_matrix import MAX_ERROR, SquareMatrix, solve_batch
from gsparse.linalg.registry import register
from gsparse.linalg.small_matrices import hashed_vector

# Number of steps of the power method, and a factor that enlarges its estimate, which is usually too small.
_POWER_STEPS = 15
_SAFETY = 1.1


class BlockStep:
    """Makes the calls of steps x += ω·W·(b - r) for vectors of one dtype, where W is a block diagonal matrix.

    Parameters
    ----------
    passes : VectorPasses
    weights : array, shape (num_blocks, size, size)
        The blocks of W. The last block may be padded.
    adjoint : bool
        Whether to use the adjoint of W in place of W.
    """

    def __init__(self, passes: VectorPasses, weights: Array, adjoint: bool) -> None:
        xp, self._passes = passes.device.xp, passes
        transposed = xp.conj(weights) if adjoint else weights.swapaxes(1, 2)
        self._columns = xp.ascontiguousarray(transposed.astype(passes.dtype, copy=False))

    def bind(
        self, omega: float, b: Array, x: Array, r: Array, *, start: str = EVERY_GROUP, copies: bool = False
    ) -> Call:
        """Return the call of a step. `bind_block_step` of `gsparse.kernels` describes `start` and `copies`."""
        device = self._passes.device
        vectors = b, x, r, self._passes.columns
        call: Call = kernels_of(device).triangular.bind_block_step(
            device, self._columns, omega, *vectors, start, copies
        )
        return call


def inverse_blocks(matrix: SquareMatrix, size: int, name: str) -> Array:
    """Return the inverses of the diagonal blocks, of shape (number of blocks, size, size). Synchronizes.

    The last block is padded with the identity.

    Raises
    ------
    FactorizationError
        If a block is singular. The message names the method `name`.
    """
    device, csr = matrix.device, matrix.csr
    if size < 1:
        raise ValueError(f"{name}: block_size must be at least 1, got {size}")
    if size <= MAX_INVERSE:
        inverses, is_good = kernels_of(device).triangular.invert_blocks(
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


def _large_blocks(matrix: SquareMatrix, size: int) -> Array:
    """Return the diagonal blocks. Rows past the end, and empty rows if permitted, become rows of the identity."""
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
    """Estimate the largest eigenvalue of W·A, where W has the diagonal blocks `inverses`. Synchronizes.

    The power method's estimate is multiplied by a safety factor.
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


class BlockRelaxation(StepRelaxation):
    """Steps whose W is a block diagonal matrix.

    Attributes
    ----------
    steps : tuple of (float, array)
        For each step, ω and W of shape (num_blocks, size, size); at least one step. The blocks are inverses of diagonal
        blocks of A, or 0 for unknowns that the step does not change.

    Notes
    -----
    Vectors read or written, besides the products and W: 2 in the first step from x = 0, 5 in every other step, and 3 in
    the residual after the last step.
    """

    def bind_weights(self, bound: BoundSmoother, weights: Array) -> BindStep:
        step = BlockStep(bound.passes, weights, bound.adjoint)
        return lambda omega, x, b, r, begins, copies: step.bind(
            omega, b, x, r, start=FROM_ZERO if begins else EVERY_GROUP, copies=copies
        )


class DiagonalPreconditioner(MatrixPreconditioner):
    """The product with the inverse of the diagonal of a matrix."""

    @property
    def scaling(self) -> Array:
        inverses: Array = self._values
        return inverses

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        d = passes.diagonal(self._values, adjoint=adjoint)
        return lambda x, y: [passes.bind("scale", d=d, b=x, x=y)]


class BlockDiagonalPreconditioner(MatrixPreconditioner):
    """The product with the inverses of the dense diagonal blocks of a matrix."""

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        step = BlockStep(passes, self._values, adjoint)
        return lambda x, y: [step.bind(1.0, x, y, y, start=FROM_ZERO)]


@register("preconditioner")
def jacobi(A: Any) -> MatrixPreconditioner:
    """Precondition with the inverse of the diagonal.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy. A product moves three vectors.

    Raises
    ------
    FactorizationError
        If the diagonal has a zero, or a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, jacobi
    >>> S = scipy.sparse.diags_array([-1.0, numpy.arange(3.0, 103.0), -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> result = cg(A, numpy.ones(100), M=jacobi(A), full_output=True)
    >>> result.info, result.iterations < 15
    (0, True)
    """
    with SquareMatrix.of(A, "jacobi") as matrix:
        return DiagonalPreconditioner(matrix, "jacobi", lambda matrix, _: matrix.inverse_diagonal("jacobi"))


@register("preconditioner")
def block_jacobi(A: Any, block_size: int) -> MatrixPreconditioner:
    """Precondition with the inverses of dense blocks on the diagonal.

    One kernel launch inverts all blocks of up to 32 rows. A product is one launch, which reads the inverses and moves
    two vectors.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    block_size : int
        Number of rows of a block, for example the unknowns of a grid point, or of a small part of the domain. The last
        block may be smaller.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If a block is singular, or a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If `block_size` is less than 1.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import block_jacobi
    >>> block = scipy.sparse.csr_array([[2.0, 1.0], [1.0, 2.0]])
    >>> S = scipy.sparse.block_diag([block] * 3, format="csr")
    >>> (block_jacobi(S, 2) @ numpy.ones(6)).round(3).tolist()
    [0.333, 0.333, 0.333, 0.333, 0.333, 0.333]
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    with SquareMatrix.of(A, "block_jacobi") as matrix:
        kind = "block_jacobi"
        return BlockDiagonalPreconditioner(matrix, kind, lambda matrix, _: inverse_blocks(matrix, block_size, kind))
