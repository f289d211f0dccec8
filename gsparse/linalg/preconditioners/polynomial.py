"""A Chebyshev polynomial in the matrix as a preconditioner."""

from __future__ import annotations

from functools import partial
from typing import Any

from gsparse.errors import FactorizationError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.base import MatrixPreconditioner
from gsparse.linalg.preconditioners.eigenvalue import largest_eigenvalue
from gsparse.linalg.preconditioners.relaxation import Relaxation, SmootherPreconditioner, chebyshev_omegas
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import register

# Default ratio of the smallest eigenvalue that is damped to the largest: the same as in PyAMG's and hypre's smoothers.
_DEFAULT_RATIO = 1 / 30


@register("preconditioner")
def chebyshev_polynomial(A: Any, degree: int = 4, bounds: tuple[float, float] | None = None) -> MatrixPreconditioner:
    """Precondition with the polynomial in D⁻¹A that best approximates its inverse for eigenvalues within `bounds`.

    D is the diagonal of A. An application consists of products with A and needs no inner products. The preconditioner
    is Hermitian and positive definite if A is, provided that no eigenvalue exceeds the sum of both bounds.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        Hermitian and positive definite, as `cg` needs it. A GpuSparseMatrix, or a sparse array that can be converted to
        one. Later changes of the values of a GpuSparseMatrix have no effect.
    degree : int, optional
        Number of steps. An application takes one product less.
    bounds : (float, float), optional
        The smallest and the largest eigenvalue of D⁻¹A that are to be damped. By default, the largest is estimated with
        eight products, and the smallest is a thirtieth of it.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy. Besides reading A, an application moves 3
        vectors in the first step and 6 in each further one.

    Raises
    ------
    FactorizationError
        If the diagonal has an element that is not positive, or a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If `degree` is less than 1, or `bounds` are not positive or not in rising order.

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
    >>> result = cg(A, numpy.ones(100), M=chebyshev_polynomial(A, 4), full_output=True)
    >>> result.info, result.iterations < plain.iterations / 2
    (0, True)
    """
    if degree < 1:
        raise ValueError(f"degree must be at least 1, got {degree}")
    if bounds is not None and not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"bounds must be 0 < smallest <= largest, got {bounds}")
    with SquareMatrix.of(A, "chebyshev_polynomial", keep=True) as matrix:
        return SmootherPreconditioner(matrix, partial(_make_relaxation, degree, bounds), "chebyshev_polynomial")


def _make_relaxation(degree: int, bounds: tuple[float, float] | None, matrix: SquareMatrix, _: Any) -> Relaxation:
    inverse = matrix.inverse_diagonal("chebyshev_polynomial")
    row = kernels_of(matrix.device).reductions.first_where(matrix.device, inverse, "not positive")
    if row is not None:
        raise FactorizationError(
            f"chebyshev_polynomial needs a positive diagonal, row {row} has {complex(matrix.diagonal[row]):.3g}: "
            "use isai(A) or ilu0(A) with gmres or bicgstab"
        )
    if bounds is None:
        high = largest_eigenvalue(matrix, inverse)
        bounds = (high * _DEFAULT_RATIO, high)
    return Relaxation.scaled(matrix.device, chebyshev_omegas(*bounds, degree), inverse, "chebyshev")
