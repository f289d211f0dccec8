"""Incomplete factorizations without fill-in: A ≈ (I + L)·D·(I + U), where L and U are strictly triangular."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.kernels.steps import Call
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, VectorPasses
from gsparse.linalg.preconditioners.diagonal import BlockStep, num_block_entries
from gsparse.linalg.preconditioners.factors import (
    BlockFactorization,
    IncompleteFactorization,
    IncompleteFactors,
    RowFactorization,
)
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.preconditioners.triangular import SOLVES, Solve
from gsparse.linalg.registry import register

SolveKind = Literal["levels", "jacobi"]


class FactoredPreconditioner(MatrixPreconditioner):
    """Solves with I + L, D and I + U, one after the other.

    Parameters
    ----------
    matrix : SquareMatrix
    factorize : callable
        Returns the factors of this matrix, and of matrices of the same structure.
    kind : str
        See `Preconditioner`.
    """

    def __init__(self, matrix: SquareMatrix, factorize: Callable[[SquareMatrix], IncompleteFactors], kind: str) -> None:
        self._factorize = factorize
        super().__init__(matrix, kind)

    def _set_values(self, matrix: SquareMatrix) -> None:
        self._lower, self._inverse_diagonal, self._upper = self._factorize(matrix)
        inverse, size = self._inverse_diagonal, matrix.size
        self._num_entries = num_block_entries(inverse, size) if inverse.ndim > 1 else size
        self._num_entries += sum(triangle.nnz for triangle in {self._lower[0], self._upper[0]})

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        first, last = (self._upper, self._lower) if adjoint else (self._lower, self._upper)
        solve_first, solve_last = (t.bind(passes, adjoint=is_adjoint != adjoint) for t, is_adjoint in (first, last))
        solved, scaled = passes.vector(self.shape[0]), passes.vector(self.shape[0])
        if self._inverse_diagonal.ndim > 1:
            step = BlockStep(passes, self._inverse_diagonal, adjoint)
            scale = step.bind(1.0, solved, scaled, scaled, start=FROM_ZERO)
        else:
            scale = passes.bind("scale", d=passes.diagonal(self._inverse_diagonal, adjoint=adjoint), b=solved, x=scaled)

        def build(x: Array, y: Array) -> list[Call]:
            solves: tuple[Solve, Solve] = solve_first, solve_last
            return [*solves[0](x, solved), scale, *solves[1](scaled, y)]

        return build


@register("preconditioner")
def ilu0(
    A: Any,
    *,
    solve: SolveKind | None = None,
    sweeps: int = 3,
    shift: float = 0.0,
    block_size: int = 1,
    factor_sweeps: int | None = None,
) -> MatrixPreconditioner:
    """Precondition with incomplete LU factors that have entries only where A has: ILU(0), for gmres and bicgstab.

    L·U equals A wherever A has entries. The factors are computed on the device level by level; the rows of a level do
    not depend on each other. The factors are the same in every run.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    solve : {"jacobi", "levels"}, optional
        How to solve with the factors. "levels" solves exactly, level by level. On a GPU each wide level is a kernel
        launch, so this is fast only for few levels. On the CPU it is the default and processes the rows in order, on
        one thread. "jacobi" is a fixed number of Jacobi sweeps, which are products with all rows at once: the default
        on a GPU. It is an approximation, but a fixed linear map. The factors should not be far from diagonally
        dominant.
    sweeps : int, optional
        Number of sweeps for each factor with ``solve="jacobi"``. About as many sweeps as there are levels make the
        solve exact.
    shift : float, optional
        Manteuffel's shift: the magnitude of each diagonal element is first increased by this multiple of the sum of
        magnitudes of its row. Try 0.001 to 0.1 if the factors break down, or if they slow convergence.
    block_size : int, optional
        Number of consecutive rows that make a node, such as the unknowns of a grid point, at most 32. The factors are
        then those of the graph of nodes, whose entries are dense blocks: a block in which A has an entry is stored
        whole, and pivots are the inverses of dense blocks. There are fewer levels than by rows, and a row of blocks
        reads each index once. The last node may have fewer rows.
    factor_sweeps : int, optional
        Compute the factors by this number of sweeps of a fixed-point iteration, each of which updates all entries at
        once, instead of level by level. For many narrow levels this is faster on a GPU. The factors are approximate;
        3 to 5 sweeps suffice for most matrices, and twice as many as there are levels give the exact factors, to the
        bit. It needs ``block_size=1``.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If a pivot is zero, or with blocks singular, or if a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If an option is out of range, or `factor_sweeps` is passed with a `block_size` above 1.

    References
    ----------
    .. [1] J. A. Meijerink, H. A. van der Vorst, "An iterative solution method for linear systems of which the
       coefficient matrix is a symmetric M-matrix", Math. Comp. 31(137), 1977.
    .. [2] H. Anzt, E. Chow, J. Dongarra, "Iterative sparse triangular solves for preconditioning", Euro-Par 2015.
    .. [3] T. A. Manteuffel, "An incomplete factorization technique for positive definite linear systems", Math. Comp.
       34(150), 1980.
    .. [4] P. Concus, G. H. Golub, G. Meurant, "Block preconditioning for the conjugate gradient method", SIAM J. Sci.
       Stat. Comput. 6(1), 1985.
    .. [5] E. Chow, A. Patel, "Fine-grained parallel incomplete LU factorization", SIAM J. Sci. Comput. 37(2), 2015.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import ilu0
    >>> S = scipy.sparse.diags_array([-1.0, 3.0, -1.5], offsets=[-1, 0, 1], shape=(100, 100), format="csr")
    >>> x, info = scipy.sparse.linalg.gmres(S, numpy.ones(100), M=ilu0(S), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    factorization = _factorization("ilu0", solve, sweeps, shift, block_size, factor_sweeps)
    with SquareMatrix.of(A, "ilu0") as matrix:
        return FactoredPreconditioner(matrix, factorization, factorization.name)


@register("preconditioner")
def ic0(
    A: Any,
    *,
    solve: SolveKind | None = None,
    sweeps: int = 3,
    shift: float = 0.0,
    block_size: int = 1,
    factor_sweeps: int | None = None,
) -> MatrixPreconditioner:
    """Precondition with incomplete Cholesky factors that have entries only where A has: IC(0), for cg and minres.

    The factors have the form L·D·Lᴴ, to which ILU(0) reduces for a Hermitian A. The second solve is the adjoint of the
    first one, including the Jacobi sweeps, so M is Hermitian and positive definite for any number of sweeps.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        Hermitian and positive definite. A GpuSparseMatrix, or a sparse array that can be converted to one.
    solve : {"jacobi", "levels"}, optional
        As for `ilu0`.
    sweeps : int, optional
        As for `ilu0`.
    shift : float, optional
        As for `ilu0`.
    block_size : int, optional
        As for `ilu0`.
    factor_sweeps : int, optional
        As for `ilu0`.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If less than half of the digits of A and its conjugate transpose agree, unless A was declared Hermitian
        (``symmetric=``). If a pivot is not positive, which can happen for a positive definite A too; a shift is the
        usual remedy. If a value is not finite.
    ShapeError, TypeError, ValueError
        As for `ilu0`.

    References
    ----------
    .. [1] J. A. Meijerink, H. A. van der Vorst, "An iterative solution method for linear systems of which the
       coefficient matrix is a symmetric M-matrix", Math. Comp. 31(137), 1977.
    .. [2] H. Anzt, E. Chow, J. Dongarra, "Iterative sparse triangular solves for preconditioning", Euro-Par 2015.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, ic0
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> cg(A, numpy.ones(100), M=ic0(A), full_output=True).iterations  # exact: this A has no fill-in
    1
    """
    factorization = _factorization("ic0", solve, sweeps, shift, block_size, factor_sweeps)
    with SquareMatrix.of(A, "ic0") as matrix:
        return CholeskyPreconditioner(matrix, factorization, factorization.name)


class CholeskyPreconditioner(FactoredPreconditioner):
    """A `FactoredPreconditioner` that refuses a matrix that is not Hermitian."""

    def _set_values(self, matrix: SquareMatrix) -> None:
        if not matrix.is_roughly_hermitian():
            raise FactorizationError(
                "ic0 needs a symmetric (complex: Hermitian) matrix, this one is not: use ilu0(A) with gmres or "
                "bicgstab; where A is one triangle of a symmetric matrix, add the other one first"
            )
        super()._set_values(matrix)


def _factorization(
    name: str, solve: str | None, sweeps: int, shift: float, block_size: int, factor_sweeps: int | None
) -> IncompleteFactorization:
    """Check the options, and return the factorization that they describe."""
    if solve is not None and solve not in SOLVES:
        raise ValueError(f"solve must be one of {', '.join(map(repr, SOLVES))}, got {solve!r}")
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1, got {sweeps}")
    if not shift >= 0:
        raise ValueError(f"shift must not be negative, got {shift}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    if factor_sweeps is not None and (factor_sweeps < 1 or block_size > 1):
        raise ValueError(
            f"factor_sweeps must be at least 1 and needs block_size=1, got factor_sweeps={factor_sweeps} and "
            f"block_size={block_size}: leave one of them out"
        )
    if block_size > 1:
        return BlockFactorization(name, solve, sweeps, shift, block_size)
    return RowFactorization(name, solve, sweeps, shift, factor_sweeps)
