"""A Chebyshev polynomial in the matrix."""

from __future__ import annotations

from typing import Any

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.kernels.calls import Call
from gsparse.linalg.preconditioners.base import Build, Passes, Preconditioner
from gsparse.linalg.preconditioners.relaxation import (
    BoundRelaxation,
    Relaxation,
    chebyshev_sizes,
    largest_eigenvalue,
)
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, first_where
from gsparse.linalg.registry import register

__all__ = ["chebyshev_polynomial"]

# The smallest eigenvalue aimed at, over the largest, where nobody says: that of PyAMG's and hypre's smoothers.
_DEFAULT_RATIO = 1 / 30


class PolynomialPreconditioner(Preconditioner):
    """Some relaxations from 0: a polynomial in D⁻¹A, times D⁻¹."""

    def __init__(self, matrix: SquareMatrix, relaxation: Relaxation) -> None:
        super().__init__(matrix.device, matrix.size, matrix.dtype, "chebyshev_polynomial")
        self._operator, self._relaxation = matrix.operator, relaxation

    def _prepare(self, passes: Passes, adjoint: bool) -> Build:
        relaxation, r = BoundRelaxation(passes, self._operator, self._relaxation, adjoint), passes.vector(self.shape[0])

        def build(x: Array, y: Array) -> list[Call]:
            return relaxation.calls(y, x, r, guess=False, residual=False)

        return build


@register("preconditioner")
def chebyshev_polynomial(A: Any, degree: int = 4, bounds: tuple[float, float] | None = None) -> Preconditioner:
    """Precondition with the polynomial in D⁻¹A that is nearest to its inverse between two eigenvalues; D the diagonal.

    It needs products and nothing else, no inner product either: on a GPU and on many of them each of its steps costs a
    product. It is Hermitian and positive definite where A is, as long as no eigenvalue is above both bounds' sum.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        Hermitian and positive definite, as `cg` needs it. GpuSparseMatrix, or what becomes one. Later changes to a
        GpuSparseMatrix's values are not seen.
    degree : int, optional
        Steps; products are one fewer.
    bounds : (float, float), optional
        The smallest and the largest eigenvalue of D⁻¹A that are to be damped. By default the largest is estimated, with
        a dozen products, and the smallest is a thirtieth of it.

    Returns
    -------
    Preconditioner
        For `M` of the solvers here, of SciPy and of CuPy. Moves 3 vectors and 6 a further step, beside A.

    Raises
    ------
    FactorizationError
        Where the diagonal has an element that is not positive, or a value is not finite.
    ShapeError, TypeError, ValueError

    References
    ----------
    .. [1] Y. Saad, "Iterative methods for sparse linear systems", 2nd ed., SIAM, 2003, section 12.3.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, chebyshev_polynomial
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> plain = cg(A, numpy.ones(100), full_output=True)
    >>> found = cg(A, numpy.ones(100), M=chebyshev_polynomial(A, 4), full_output=True)
    >>> found.info, found.iterations < plain.iterations / 2
    (0, True)
    """
    if degree < 1:
        raise ValueError(f"degree must be at least 1, got {degree}")
    if bounds is not None and not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"bounds must be 0 < smallest <= largest, got {bounds}")
    with SquareMatrix.of(A, "chebyshev_polynomial", keep=True) as matrix:
        inverse = matrix.inverse_diagonal("chebyshev_polynomial")
        row = first_where(matrix.device, ~(inverse.real > 0))
        if row is not None:
            raise FactorizationError(
                f"chebyshev_polynomial needs a positive diagonal, row {row} has {complex(matrix.diagonal[row]):.3g}: "
                "use isai(A) or ilu0(A) with gmres or bicgstab"
            )
        if bounds is None:
            high = largest_eigenvalue(matrix, inverse)
            bounds = (high * _DEFAULT_RATIO, high)
        sizes = chebyshev_sizes(*bounds, degree)
        return PolynomialPreconditioner(matrix, Relaxation.scaled(matrix.device, sizes, inverse, "chebyshev"))
