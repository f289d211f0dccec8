"""Jacobi and block Jacobi: the inverse of the diagonal, or of dense blocks on the diagonal."""

from __future__ import annotations

from functools import partial
from typing import Any

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.calls import Call
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.linalg.operators import MatrixOperator, Operator
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, Preconditioner, VectorPasses
from gsparse.linalg.preconditioners.diagonal_blocks import BlockStep, inverse_blocks, num_block_entries
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import register


class DiagonalPreconditioner(Preconditioner):
    """Multiplies each element of a vector by an element of the diagonal."""

    def __init__(self, device: Device, diagonal: Array) -> None:
        super().__init__(device, int(diagonal.size), diagonal.dtype, "diagonal", int(diagonal.size))
        self._diagonal = diagonal

    @property
    def scaling(self) -> Array:
        return self._diagonal

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        return _scaling(passes, self._diagonal, adjoint)


def _scaling(passes: VectorPasses, diagonal: Array, adjoint: bool) -> CallBuilder:
    d = passes.diagonal(diagonal, adjoint=adjoint)
    return lambda x, y: [passes.bind("scale", d=d, b=x, x=y)]


class JacobiPreconditioner(MatrixPreconditioner):
    """Multiplies each element of a vector by the inverse of an element of the diagonal of a matrix."""

    def _set_values(self, matrix: SquareMatrix) -> None:
        self._diagonal = matrix.inverse_diagonal(self._kind)
        self._num_entries = matrix.size

    @property
    def scaling(self) -> Array:
        return self._diagonal

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        return _scaling(passes, self._diagonal, adjoint)


class BlockDiagonalPreconditioner(MatrixPreconditioner):
    """Multiplies blocks of a vector by the inverses of dense blocks on the diagonal of a matrix."""

    def __init__(self, matrix: SquareMatrix, size: int) -> None:
        self._size = size
        super().__init__(matrix, "block_jacobi")

    def _set_values(self, matrix: SquareMatrix) -> None:
        self._inverses = inverse_blocks(matrix, self._size, self._kind)
        self._num_entries = num_block_entries(self._inverses, matrix.size)

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        step = BlockStep(passes, self._inverses, adjoint)
        return lambda x, y: [step.bind(1.0, x, y, y, start=FROM_ZERO)]


class ProductPreconditioner(Preconditioner):
    """A product of operators, some of which may be adjoint.

    Parameters
    ----------
    *factors : (Operator, bool)
        The factors, square matrices or preconditioners of one size, in the order of their application, and whether to
        use the adjoint of each. The product has the dtype and the device of the first one.
    kind : str
        See `Preconditioner`.
    """

    def __init__(self, *factors: tuple[Operator, bool], kind: str) -> None:
        operator = factors[0][0]
        matrices = {id(f.matrix): f.matrix for f, _ in factors if isinstance(f, MatrixOperator)}
        num_entries = sum(int(m.nnz) for m in matrices.values()) if matrices else None
        super().__init__(operator.home(), operator.shape[0], operator.dtype, kind, num_entries)
        self._factors, self.is_resident = factors, all(factor.is_resident for factor, _ in factors)

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        factors = [(f, not is_adjoint) for f, is_adjoint in reversed(self._factors)] if adjoint else self._factors
        products = [
            f.bind(passes.device, passes.dtype, passes.columns, adjoint=is_adjoint) for f, is_adjoint in factors
        ]
        intermediate = [passes.vector(self.shape[0]) for _ in products[1:]]

        def build(x: Array, y: Array) -> list[Call]:
            vectors = [x, *intermediate, y]
            return [
                partial(product, source, target)
                for product, source, target in zip(products, vectors[:-1], vectors[1:], strict=True)
            ]

        return build


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
        return JacobiPreconditioner(matrix, "jacobi")


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
        return BlockDiagonalPreconditioner(matrix, block_size)
